"""Streaming aggregation: average updates of many architectures into one global state.

A value that is in the model of at least one client becomes the covered mean, ``θ = (Σ_c w_c A_cᵀ
θ_c) / (Σ_c w_c |A_c|ᵀ|A_c| 1)``. All other values stay exactly the same. If a transfer only selects
values, the divisor is ``Aᵀ 1``. If a transfer replicates values or adds them up, the average
recovers the replicated values and divides sums into equal parts.

Parameters that a transfer takes by slices are added directly into a view of a sum of the global
size. This sum becomes the new state in place. All other parameters are first summed for each
distinct transfer in the client's shape, then added to the global sum once. Memory does not grow
with the number of clients.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from archgraph.analysis.roles import frozen
from archgraph.errors import ArchGraphError
from archgraph.graph.argument import GraphLike, graph_of
from archgraph.graph.ir import ArchGraph
from archgraph.states.coverage import Coverage, Term
from archgraph.states.dimension_map import Vector
from archgraph.states.entry import Entry
from archgraph.states.state import (
    Signature,
    State,
    accumulator,
    first_difference,
    signature,
    widened,
)
from archgraph.states.transfer import Transfer
from archgraph.states.updates import (
    Update,
    check_options,
    check_update,
    expected_entries,
    finite,
    unsummable,
)

# Weights are relative to the first one. While weights times scales add up to at most HEAVY, sums of
# values below LARGEST fit into float32; beyond it they may not, so the means are checked.
# With a weight below LIGHT, values underflow float32, even where no other client has any. With a
# weight above its inverse, a sum of weights may overflow float32: divided by it, all values vanish.
HEAVY, LIGHT = 2.0**40, 2.0**-80

# Bytes of sums that are added to, and divided, while they are in the cache.
CHUNK = 2**20

# Keep separate sums for at most this many distinct transfers; those of others are embedded.
GROUPS = 16


class _Lane(NamedTuple):
    """The path of one entry of a transfer into the global state.

    Attributes:
        name: Name of the client's entry.
        entry: Its origin.
        source: Name of the global entry.
        shape: Shape of the client's entry.
        view: Size, strides and offset of the part of the global sum that it adds straight into;
            ``()`` for all of it; None if it has a separate sum, in the client's shape.
        masked: Whether updates contain only some of its rows.
        scale: Factor on its values in the sum; a separate sum is scaled when it is embedded.
    """

    name: str
    entry: Entry
    source: str
    shape: torch.Size
    view: tuple[()] | tuple[tuple[int, ...], tuple[int, ...], int] | None
    masked: bool
    scale: float


class _Plan(NamedTuple):
    """The paths of all entries of a transfer; the same in every round.

    Attributes:
        lanes: Entries that are averaged.
        at: Lanes by global entry, each with its index in ``lanes``.
        counted: Integer entries, which take the maximum.
        apart: Indices of the lanes with separate sums.
        bytes: Size of the client's state.
    """

    lanes: tuple[_Lane, ...]
    at: Mapping[str, Sequence[tuple[int, _Lane]]]
    counted: tuple[_Lane, ...]
    apart: tuple[int, ...]
    bytes: int


# Bounded, since moving transfers (FedRolex) differ in every round.
@functools.lru_cache(maxsize=64)
def _plan(
    transfer: Transfer, fixed: frozenset[str], unmerged: frozenset[str], masked: frozenset[str]
) -> _Plan:
    """Plan how the entries of a transfer are added to the global state.

    Args:
        transfer: Global → client.
        fixed: Global entries that keep their old values.
        unmerged: Client entries that are not merged.
        masked: Entries of which only some rows count.
    """
    lanes: list[_Lane] = []
    at: dict[str, list[tuple[int, _Lane]]] = {}
    counted: list[_Lane] = []
    for want in expected_entries(transfer.target):
        entry = transfer.entries[want.name]
        if want.name in unmerged or entry.source is None or want.dtype == torch.bool:
            continue
        if entry.source in fixed:
            # Averaging equal frozen values would change them by a rounding error every round.
            continue
        slices, view = transfer.views.get(want.name), None
        if slices is not None:
            part = torch.empty(transfer.shapes[entry.source], device="meta")[slices]
            view = (part.shape, part.stride(), int(part.storage_offset())) if slices else ()
        scale = 1.0 if view is None else entry.scale
        lane = _Lane(want.name, entry, entry.source, want.shape, view, want.name in masked, scale)
        if want.averaged:
            at.setdefault(lane.source, []).append((len(lanes), lane))
        (lanes if want.averaged else counted).append(lane)
    apart = tuple(i for i, lane in enumerate(lanes) if lane.view is None)
    size = sum(
        want.shape.numel() * want.dtype.itemsize for want in expected_entries(transfer.target)
    )
    return _Plan(tuple(lanes), at, tuple(counted), apart, size)


@dataclass(slots=True)
class _Group:
    """The sums of all updates with the same plan.

    Attributes:
        plan: How each entry of these updates is added.
        weight: ``Σ w`` of the updates.
        sums: The sum that each lane adds to: part of a global sum, or a separate one; None if it
            does not exist yet.
        rows: ``Σ w · rows`` of masked lanes, by name.
        peaks: Maxima of the entries of ``plan.counted``.
    """

    plan: _Plan
    sums: list[Tensor | None]
    weight: float = 0.0
    rows: dict[str, Vector] = field(default_factory=dict)
    peaks: list[Tensor] = field(default_factory=list)

    def count(self, peaks: list[Tensor]) -> None:
        """Update the maxima with those of an update."""
        if peaks and self.peaks:
            torch._foreach_maximum_(self.peaks, peaks)
        else:
            self.peaks = [peak.clone() for peak in peaks]

    def terms(self) -> Iterator[tuple[str, Term]]:
        """Yield the coverage of global entries by this group."""
        for lane in self.plan.lanes:
            rows = tuple(self.rows[lane.name].tolist()) if lane.masked else ()
            yield lane.source, Term.of(lane.entry, 1.0 if rows else self.weight, rows)


class _Waiting(NamedTuple):
    """An update that is waiting to be added.

    Attributes:
        group: Its group.
        update: The update.
        weight: Its weight relative to the first one.
        through: Transfer from the update's state to the client's entries, if there is one.
    """

    group: _Group
    update: Update
    weight: float
    through: Transfer | None

    def entry(self, name: str) -> Tensor:
        """Return one of its entries."""
        state = self.update.state
        return self.through.entry(name, state) if self.through else state[name]


class Merger:
    """Computes the mean of clients' states, which are added one at a time.

    Each value of the global state is averaged over the clients whose models contain this value. The
    merger stores one sum for each value of the global state. The new state is computed in the
    memory of these sums. For a transfer that does more than slice tensors, the merger also stores
    sums in the client's shapes, for at most 16 such transfers at a time. The old state is not
    copied.

    Args:
        graph: The global architecture, or its signature (names, shapes and dtypes). Frozen
            parameters and the tensors that :func:`.unsummable` returns keep exactly their old
            values.
        state: The old global state.
        dtype: Minimum precision of the sums. With float64, another order of the clients changes the
            means of float32 values by at most a rounding error in the last digit. The largest
            weight may then be more than ``2**80`` times the smallest weight. Adding takes several
            times as long.
        wait: Number of bytes up to which updates are collected. Collected updates are added
            together, which is faster. Do not change the tensors of an update before :meth:`result`.

    Raises:
        RejectedUpdate: If the state does not match the graph.

    >>> from archgraph.states import DimMap, Entry, Slot
    >>> slots, small = (Slot("w", (3,), "float32"),), (Slot("w", (2,), "float32"),)
    >>> half = Transfer(slots, small, {"w": Entry("w", (DimMap.of([0, 1], 3),))})
    >>> merger = Merger(slots, {"w": torch.tensor([7.0, 8.0, 9.0])})
    >>> merger.add(half, {"w": torch.tensor([1.0, 1.0])}, weight=10)
    >>> merger.add(half, {"w": torch.tensor([4.0, 1.0])}, weight=20)
    >>> state, coverage = merger.result()
    >>> state["w"].tolist(), coverage["w"].tolist()
    ([3.0, 1.0, 9.0], [30.0, 30.0, 0.0])
    """

    def __init__(
        self,
        graph: GraphLike | Signature,
        state: State,
        *,
        dtype: torch.dtype = torch.float32,
        wait: int = 0,
    ) -> None:
        graph = graph if isinstance(graph, tuple) else graph_of(graph)
        self.signature = signature(graph)
        check_update(self.signature, state, finite=False)
        self._fixed = unsummable(graph, state)
        still = frozen(graph) if isinstance(graph, ArchGraph) else ()
        self._frozen = frozenset(self._fixed).union(still)
        self._old = state
        self._device = next((value.device for value in state.values()), torch.device("cpu"))
        self._dtype = dtype
        self._wait = wait
        self._waiting: list[_Waiting] = []
        self._bytes = 0  # of waiting updates
        self._sums: dict[str, Tensor] = {}
        # By transfer, unmerged and masked entries; in order of last use.
        self._groups: dict[tuple[str, frozenset[str], frozenset[str]], _Group] = {}
        self._unit = 0.0  # the first weight
        self._steepest = 1.0  # the largest scale
        self._reach = 0.0  # a bound on sums and means, in units of LARGEST
        self._finished = False
        self.clients = 0

    def __repr__(self) -> str:
        state = "finished" if self._finished else f"{len(self._groups)} transfers pending"
        return f"<Merger of {len(self._old)} entries, {state}>"

    def add(
        self,
        transfer: Transfer,
        state: State,
        weight: float = 1.0,
        *,
        scales: Mapping[str, float] | None = None,
        rows: Mapping[str, Tensor] | None = None,
        unmerged: Collection[str] = (),
    ) -> None:
        """Check one client's update and add it.

        Args:
            transfer: Transfer from the global architecture to the client's.
            state: The client's state after training.
            weight: Weight of this client relative to the others, for example its number of
                examples; positive. Only ratios matter, so equal weights give exactly the uniform
                mean.
            scales: Dict from the client's parameter to a factor (FedFA's 1/n_c). The values of the
                parameter are multiplied by the factor. The weight of the client is unchanged.
            rows: Dict from the client's parameter to a vector with one number per row: 1 if the row
                is averaged, 0 if it is ignored (HeteroFL's masks of classes).
            unmerged: Names of the client's parameters and buffers that are not averaged, such as
                norm statistics and private layers. They may be missing in the state.

        Raises:
            RejectedUpdate: If the update, its weight, scales or rows cannot be averaged. The
                message names the parameter. No part of the update was added.
            ArchGraphError: If the transfer's source is not the global architecture, or
                :meth:`result` was already called.
        """
        self._check(transfer)
        check_update(transfer.target, state, optional=unmerged, fixed=transfer.covered(self._fixed))
        update = Update(transfer, state, weight, scales or {}, rows or {}, unmerged)
        check_options(update)
        self.accumulate(update)

    @torch.no_grad()
    def accumulate(self, update: Update, *, through: Transfer | None = None) -> None:
        """Add an update whose shapes and values are already checked.

        1. Divide the weight by the weight of the first update. Equal weights thus become exactly 1.
        2. For tensors of integers, store the maximum over the updates.
        3. Collect the update, and add all collected updates once they exceed ``wait``.

        Args:
            update: The update.
            through: Transfer that is applied to the update's state first. FedADP, for example,
                enlarges clients' models in this way. The new tensors are computed one at a time,
                which saves memory. Default: none.

        Raises:
            ArchGraphError: If the update's transfer does not start at the global architecture; if
                ``through`` does not end at the client's architecture; if the weight is too small or
                too large in relation to the first weight; if :meth:`result` was already called.
        """
        transfer, state = update.transfer, update.state
        key = transfer.digest, frozenset(update.unmerged), frozenset(update.rows)
        group = self._groups.get(key)
        if group is None:
            self._check(transfer)
            plan = _plan(transfer, self._frozen, *key[1:])
            group = _Group(plan, [None] * len(plan.lanes))
        if through is not None and through.target != transfer.target:
            raise ArchGraphError(
                "`through` does not end at the architecture that the transfer ends at",
                **first_difference(through.target, transfer.target),
            )
        if any(value.device != self._device for value in state.values()):
            state = {name: value.to(self._device) for name, value in state.items()}
        self._unit = self._unit or update.weight
        weight = update.weight / self._unit  # 1
        if not LIGHT <= weight <= 1 / LIGHT and self._dtype != torch.float64:
            smaller = "it vanishes next to the first" if weight < 1 else "the first one vanishes"
            raise ArchGraphError(
                f"a weight is out of range: {smaller}",
                found=weight,
                hint="use Merger(dtype=torch.float64)",
            )
        steepest = max(1.0, *map(abs, update.scales.values()), 1.0)
        self._steepest = max(self._steepest, steepest)
        self._reach += max(weight, 1.0) * steepest
        self.clients += 1
        self._groups.pop(key, None)
        self._groups[key] = group  # the most recently used is the last
        group.weight += weight
        for name, mask in update.rows.items():
            counted: Vector = weight * mask.double().cpu().numpy()
            group.rows[name] = group.rows.get(name, 0.0) + counted
        waiting = _Waiting(group, update._replace(state=state), weight, through)
        self._waiting.append(waiting)
        group.count([waiting.entry(lane.name) for lane in group.plan.counted])  # 2
        self._bytes += group.plan.bytes
        if self._bytes > self._wait:  # 3
            self._flush()
        if len(self._groups) > GROUPS:
            self._embed(keep=GROUPS)

    @torch.no_grad()
    def result(
        self, multiply: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Tensor], Coverage]:
        """Return the new global state, and for each value the total weight of clients that have it.

        A value of an integer tensor is the maximum over the clients that have this value. Boolean
        tensors are unchanged. The merger cannot be used afterwards, because its sums become the new
        state.

        Args:
            multiply: Dict from global parameter to a factor by which its mean is multiplied
                (FedFA's mean norm).

        Raises:
            ArchGraphError: If the result was already returned, ``multiply`` has an unknown name, or
                a mean times its factor is not finite.
        """
        self._check()
        multiply = multiply or {}
        for name in multiply:
            if name not in self._old:
                raise ArchGraphError("factor of an unknown entry", where=name)
        self._finished = True
        terms: dict[str, list[Term]] = {}
        for source, term in itertools.chain(*(group.terms() for group in self._groups.values())):
            terms.setdefault(source, []).append(term)
        self._embed(keep=0)
        maxima = self._maxima()
        # Drop all further references to the sums: each is freed once it has been divided.
        self._groups.clear()
        coverage = Coverage({slot.name: slot.shape for slot in self.signature}, terms)
        new: dict[str, Tensor] = {}
        for names in self._chunks(coverage):
            self._add(names)
            self._divide_evenly([name for name in names if name in terms], coverage)
            for name in names:
                if name in terms:
                    new[name] = self._mean(name, coverage, multiply.get(name, 1.0))
                else:
                    new[name] = maxima[name] if name in maxima else self._old[name].clone()
        self._waiting = []
        return new, coverage.times(self._unit or 1.0)

    def _divide_evenly(self, names: Iterable[str], coverage: Coverage) -> None:
        """Divide evenly covered sums, all those with the same divisor in one call."""
        even: dict[float, list[Tensor]] = {}
        for name in names:
            if divisor := coverage.even(name):
                even.setdefault(divisor, []).append(self._sums[name])
        for divisor, sums in even.items():
            torch._foreach_div_(sums, divisor)

    def _check(self, transfer: Transfer | None = None) -> None:
        """Check that the merger is open and that a transfer starts at its graph."""
        if self._finished:
            raise ArchGraphError("the result was already returned", hint="create a new Merger")
        if transfer is not None and transfer.source != self.signature:
            raise ArchGraphError(
                "the transfer does not start at the merger's graph",
                hint="Merger.add takes the transfer from the global architecture to the client's",
            )

    def _type(self, source: str) -> torch.dtype:
        """Return the dtype in which a global entry is summed."""
        return torch.promote_types(accumulator(self._old[source].dtype), self._dtype)

    def _flush(self) -> None:
        """Add the waiting updates to the sums."""
        for names in self._chunks(itertools.chain(*(one.group.plan.at for one in self._waiting))):
            self._add(names)
        self._waiting, self._bytes = [], 0

    def _chunks(self, names: Iterable[str]) -> Iterator[list[str]]:
        """Yield each global entry once, in chunks whose sums fit into the cache."""
        chunk, size = list[str](), 0
        for name in dict.fromkeys(names):
            chunk.append(name)
            size += self._old[name].nbytes
            if size > CHUNK:
                yield chunk
                chunk, size = [], 0
        yield chunk

    def _add(self, names: Sequence[str]) -> None:
        """Add the lanes of some global entries, for all waiting updates in their order.

        1. Write the first value of a sum, scaled, instead of adding it to zeros, which costs one
           pass more. It waits for the second value, since writing their sum is also one pass.
        2. Add an entry of which only some rows count under a mask.
        3. Add others with equal factors in one call.
        """
        last, sums, values = 1.0, list[Tensor](), list[Tensor]()
        firsts: dict[str, Tensor] = {}
        for waiting, source in itertools.product(self._waiting, names):
            group, update, weight, _ = waiting
            for index, lane in group.plan.at.get(source, ()):
                into, name, fresh = group.sums[index], lane.name, False
                value = widened(waiting.entry(name))
                factor = weight * lane.scale * update.scales.get(name, 1.0)
                if into is None:
                    into, fresh = self._into(lane)
                    group.sums[index] = into
                direct = lane.view == () and not lane.masked and value.dtype == into.dtype
                if fresh:  # 1
                    if factor != 1:
                        torch.mul(value.to(into.dtype), factor, out=into)
                    elif direct:
                        firsts[source] = value
                    else:
                        into.copy_(value)
                    continue
                if (first := firsts.pop(source, None)) is not None:
                    if direct:
                        torch.add(first, value, alpha=factor, out=into)
                        continue
                    self._sums[source].copy_(first)
                if lane.masked or factor != last:
                    _add_each(sums, values, last)
                    last, sums, values = factor, [], []
                if lane.masked:  # 2
                    shape = (-1, *[1] * (into.dim() - 1))
                    mask = update.rows[name].to(self._device, into.dtype).view(shape)
                    into.addcmul_(value.to(into.dtype), mask, value=factor)
                else:  # 3
                    sums.append(into)
                    values.append(value)
        _add_each(sums, values, last)
        for source, first in firsts.items():
            self._sums[source].copy_(first)

    def _into(self, lane: _Lane) -> tuple[Tensor, bool]:
        """Return the sum that a lane adds to, and whether it is still to be written."""
        if lane.view is None:
            return self._new(lane.shape, lane.source, empty=not lane.masked), not lane.masked
        fresh = not (lane.masked or lane.view or lane.source in self._sums)
        total = self._sum(lane.source, empty=fresh)
        return total.as_strided(*lane.view) if lane.view else total, fresh

    def _sum(self, source: str, *, empty: bool = False) -> Tensor:
        """Return the global sum of an entry; create it on first use."""
        if source not in self._sums:
            self._sums[source] = self._new(self._old[source].shape, source, empty=empty)
        return self._sums[source]

    def _new(self, shape: torch.Size, source: str, *, empty: bool) -> Tensor:
        """Return a new sum for values of a global entry."""
        make = torch.empty if empty else torch.zeros
        return make(shape, dtype=self._type(source), device=self._device)

    def _embed(self, keep: int) -> None:
        """Add separate sums into the global ones, except those of the last ``keep`` transfers."""
        separate = [group for group in self._groups.values() if group.plan.apart]
        if len(separate) > keep:
            self._flush()
        pending = [g for g in separate if any(g.sums[i] is not None for i in g.plan.apart)]
        for group in pending[: max(len(pending) - keep, 0)]:
            for index in group.plan.apart:
                lane, total = group.plan.lanes[index], group.sums[index]
                if total is not None:
                    lane.entry.push(total, self._sum(lane.source))
                group.sums[index] = None  # created again if another update arrives

    def _mean(self, name: str, coverage: Coverage, factor: float) -> Tensor:
        """Return ``factor · Σ / coverage`` of one entry; the old value where nothing covers it."""
        old, new = self._old[name], self._sums.pop(name)
        division = None
        if not coverage.even(name):  # else it is already divided
            division = coverage.division(name, new.dtype)
            for rows, divisor in division.bands:
                new[rows].div_(divisor.to(self._device))
        if factor != 1:
            new.mul_(factor)
        # If not steep, it is a mean of finite values below LARGEST, times a factor that keeps it
        # within single precision: no pass is needed to prove it finite.
        steep = self._reach > HEAVY or abs(factor) * self._steepest > HEAVY
        steep = steep or (old.dtype.itemsize < 4 and (factor != 1 or self._steepest > 1))
        new = new.to(old.dtype)
        if steep and not finite(new):
            raise ArchGraphError("the mean is not finite", where=name, found=f"factor {factor:g}")
        if division is None:
            return new
        for box in division.uncovered:
            new[box] = old[box]
        covered = division.covered
        return new if covered is None else torch.where(covered.to(self._device), new, old)

    def _maxima(self) -> dict[str, Tensor]:
        """Return the maximum of each integer entry over the clients that have it."""
        result: dict[str, Tensor] = {}
        parts: dict[str, list[tuple[_Lane, Tensor]]] = {}
        for group in self._groups.values():
            for lane, peak in zip(group.plan.counted, group.peaks, strict=True):
                parts.setdefault(lane.source, []).append((lane, peak))
        for source, several in parts.items():
            old = self._old[source]
            if all(lane.entry.unchanged for lane, _ in several):
                result[source] = functools.reduce(torch.maximum, [peak for _, peak in several])
                continue
            # An integer entry only selects: pulling positions shows where values belong.
            positions = torch.arange(old.numel(), device=self._device).view(old.shape)
            at = torch.cat([lane.entry.pull(positions).flatten() for lane, _ in several])
            largest = old.flatten().clone()
            largest[at] = torch.iinfo(old.dtype).min  # so that only clients' values count
            values = torch.cat([peak.flatten() for _, peak in several])
            result[source] = largest.scatter_reduce_(0, at, values, "amax").view(old.shape)
        return result


def _add_each(sums: list[Tensor], values: list[Tensor], factor: float) -> None:
    """Add ``factor · values`` to sums in order: some may be views of the same sum."""
    if sums and all(value.is_cpu for value in sums):
        torch._foreach_add_(sums, values, alpha=factor)  # sequential on the CPU
    else:
        for into, value in zip(sums, values, strict=True):
            into.add_(value, alpha=factor)
