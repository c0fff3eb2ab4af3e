"""Streaming aggregation: updates of many architectures into one global state.

The covered mean of DESIGN §6, ``θ = (Σ_c w_c A_cᵀ θ_c) / (Σ_c w_c |A_c|ᵀ|A_c| 1)`` where anything
reached, elsewhere the old value bit for bit. What a transfer takes by slices (prefixes, windows,
whole entries) is added straight into a view of one sum of the global size, which becomes the new
state in place. What it takes by index, with weights or as a fold is summed per distinct transfer
in the client's own shape and embedded once. Neither grows with the number of clients.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from archgraph.analysis.roles import frozen
from archgraph.errors import ArchGraphError
from archgraph.graph.argument import GraphLike, graph_of
from archgraph.graph.ir import ArchGraph
from archgraph.states.coverage import Coverage, Slices, Term
from archgraph.states.dimension_map import Vector
from archgraph.states.entry import Entry
from archgraph.states.state import Signature, State, accumulator, first_difference, signature
from archgraph.states.transfer import Transfer
from archgraph.states.updates import (
    Update,
    check_options,
    check_update,
    expected_entries,
    finite,
    unsummable,
)

# Weights are relative to the first one. While they and their scales add up to at most HEAVY, sums
# of values below LARGEST stay within float32; beyond it they may not, so that means are looked at.
# Times a lighter weight than LIGHT, values vanish below float32, also where nobody else has any;
# with one heavier than its inverse, a sum of weights may pass float32: divided by it, all vanish.
HEAVY, LIGHT = 2.0**40, 2.0**-80

# For so many distinct transfers sums of their own are stored; those of others are embedded.
GROUPS = 16


@dataclass(slots=True)
class _Lane:
    """One entry of a transfer on its way into the global state.

    Attributes:
        entry: Where the client's entry comes from.
        source: Its global name.
        view: The part of the global sum that it adds straight into; None: it has a sum of its own.
        averaged: Whether it is averaged; else the maximum counts.
        into: What it adds to, once that exists: the view, or its own sum in the client's shape;
            for an integer entry the maximum.
        weight: ``Σ w`` of the updates that gave all rows of the entry.
        rows: ``Σ w · rows`` of those that gave only some rows of it.
    """

    entry: Entry
    source: str
    view: Slices | None
    averaged: bool
    into: Tensor | None = None
    weight: float = 0.0
    rows: Vector | None = None

    @property
    def scale(self) -> float:
        """Factor of values in ``into``: a sum of its own is scaled when it is embedded."""
        return 1.0 if self.view is None else self.entry.scale

    def term(self) -> Term | None:
        """Return the coverage that it gives its global entry."""
        if self.rows is not None:
            return Term.of(self.entry, rows=tuple((self.rows + self.weight).tolist()))
        return Term.of(self.entry, self.weight) if self.weight else None


# The lanes of one distinct transfer, by client entry.
Lanes: TypeAlias = dict[str, _Lane]


class Merger:
    """Adds up updates one at a time and gives the covered mean.

    It stores one sum of the global size, which becomes the new state, and per distinct transfer
    the sums of what it does not take by slices; beyond 16 transfers, those of the least recently
    used are embedded. The old state is only referred to, and no update is stored.

    Args:
        graph: The global architecture, or its signature. Its frozen parameters and what
            :func:`.unsummable` finds keep their old values bit for bit.
        state: The old global state.
        dtype: Least precision of the sums. In float64, means of float32 do not depend on the
            clients' order beyond their last rounding, and weights may differ by more than
            ``2**80``; adding takes several times as long.

    Raises:
        RejectedUpdate: If the state is not one of the graph.

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
        self, graph: GraphLike | Signature, state: State, *, dtype: torch.dtype = torch.float32
    ) -> None:
        graph = graph if isinstance(graph, tuple) else graph_of(graph)
        self.signature = signature(graph)
        check_update(self.signature, state, finite=False)
        self._fixed = unsummable(graph, state)
        self._frozen = self._fixed.keys() | (frozen(graph) if isinstance(graph, ArchGraph) else ())
        self._old = state
        self._device = next((value.device for value in state.values()), torch.device("cpu"))
        self._dtype = dtype
        self._sums: dict[str, Tensor] = {}
        self._groups: dict[str, Lanes] = {}  # by transfer, in order of last use
        self._unit = 0.0  # the first weight
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
            transfer: Global → client.
            state: The client's state after training.
            weight: Of this client against the others (examples, say); a positive number. Only
                ratios matter, so equal weights are exactly the uniform mean.
            scales: Factor per client entry on the numerator alone (FedFA's 1/n_c).
            rows: Per client entry, a vector of 0 and 1 over its first axis: the rows that this
                client gives (HeteroFL's classes).
            unmerged: Client entries that are left out (norm statistics, personal layers, a head of
                another size), whether the state has them or not.

        Raises:
            RejectedUpdate: If the update, its weight, scales or rows are not fit for merging, with
                the entry's name; nothing of it was added.
            ArchGraphError: If the transfer does not start at the global architecture, or the result
                was already returned.
        """
        self._check(transfer)
        fixed = transfer.covered(self._fixed)
        check_update(transfer.target, state, optional=unmerged, fixed=fixed)
        update = Update(transfer, state, weight, scales or {}, rows or {}, unmerged)
        check_options(update)
        self.accumulate(update)

    @torch.no_grad()
    def accumulate(self, update: Update, *, through: Transfer | None = None) -> None:
        """Add an update whose form and values were checked where it arrived.

        1. Make the weight relative to the first one: equal weights are exactly 1.
        2. Integers: keep the maximum of each entry.
        3. The first update of a sum becomes the sum, scaled: adding it to zeros costs a pass more.
        4. An entry of which only some rows count is added under a mask.
        5. All others are collected by their factor and added in one call for each factor.

        Args:
            update: The update.
            through: What makes the client's entries of those of the update, one at a time while
                they are added, so that the larger state never exists as a whole (FedADP's growth).
                None: they are those of the update.

        Raises:
            ArchGraphError: If the transfer does not start at the global architecture or where
                ``through`` ends, the weight is too light beside the first one, or the result was
                already returned.
        """
        transfer, state = update.transfer, update.state
        group = self._groups.get(transfer.digest)
        if group is None:
            self._check(transfer)
            group = self._lanes_of(transfer)
        if through is not None and through.target != transfer.target:
            problem = "what makes the client's entries does not end where the transfer does"
            raise ArchGraphError(problem, **first_difference(through.target, transfer.target))
        self._groups.pop(transfer.digest, None)
        self._groups[transfer.digest] = group  # the most recently used is the last
        if any(value.device != self._device for value in state.values()):
            state = {name: value.to(self._device) for name, value in state.items()}
        self._unit = self._unit or update.weight
        weight = update.weight / self._unit  # 1
        if not LIGHT <= weight <= 1 / LIGHT and self._dtype != torch.float64:
            smaller = "it vanishes beside the first one" if weight < 1 else "the first one vanishes"
            hint = "use Merger(dtype=torch.float64)"
            raise ArchGraphError(f"a weight is out of range: {smaller}", found=weight, hint=hint)
        self._reach += max(weight, 1.0) * max(1.0, *map(abs, update.scales.values()), 1.0)
        self.clients += 1
        batches: dict[float, tuple[list[Tensor], list[Tensor]]] = {}  # sums and values by factor
        for name, lane in group.items():
            if name in update.unmerged:
                continue
            value = state[name] if through is None else through.entry(name, state)
            if not lane.averaged:  # 2
                lane.into = value.clone() if lane.into is None else lane.into.maximum(value)
                continue
            factor = weight * lane.scale * update.scales.get(name, 1.0)
            mask = update.rows.get(name)
            if lane.into is None and self._begin(lane, value, factor, fresh=mask is None):  # 3
                lane.weight += weight
                continue
            assert lane.into is not None
            if mask is not None:  # 4
                self._add_rows(lane, value, mask, weight, factor)
                continue
            lane.weight += weight
            if through is not None:  # while it is in the cache
                lane.into.add_(value, alpha=factor)
            else:  # 5
                sums, values = batches.setdefault(factor, ([], []))
                sums.append(lane.into)
                values.append(value)
        for factor, (sums, values) in batches.items():
            _add_each(sums, values, factor)
        if len(self._groups) > GROUPS:
            self._embed(keep=GROUPS)

    @torch.no_grad()
    def result(
        self, multiply: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Tensor], Coverage]:
        """Return the new global state, and what covered it, in the weights of the updates.

        Integers are the maximum over the clients that have them; bools keep their old values. The
        sums become the new state in place, so this ends the merger.

        Args:
            multiply: Factor per global entry on the mean (FedFA's mean norm).

        Raises:
            ArchGraphError: If the result was already returned, a factor names an unknown entry, or
                a mean times its factor is not finite.
        """
        self._check()
        multiply = multiply or {}
        for name in multiply:
            if name not in self._old:
                raise ArchGraphError("factor of an unknown entry", where=name)
        self._finished = True
        terms: dict[str, list[Term]] = {}
        for lane in self._lanes():
            if (term := lane.term()) is not None:
                terms.setdefault(lane.source, []).append(term)
        self._embed(keep=0)
        maxima = self._maxima()
        # And with them all further references to the sums: each is freed once it has been divided.
        self._groups.clear()
        coverage = Coverage({slot.name: slot.shape for slot in self.signature}, terms)
        new: dict[str, Tensor] = {}
        for name in coverage:
            if name in terms:
                new[name] = self._mean(name, coverage, multiply.get(name, 1.0))
            else:
                new[name] = maxima[name] if name in maxima else self._old[name].clone()
        return new, coverage.times(self._unit or 1.0)

    def _check(self, transfer: Transfer | None = None) -> None:
        """Check that the merger is open and that a transfer starts at its graph."""
        if self._finished:
            raise ArchGraphError("the result was already taken", hint="make a new Merger")
        if transfer is not None and transfer.source != self.signature:
            hint = "Merger.add takes the transfer from the global architecture to the client's"
            raise ArchGraphError("the transfer does not start at the merger's graph", hint=hint)

    def _lanes_of(self, transfer: Transfer) -> Lanes:
        lanes: Lanes = {}
        for want in expected_entries(transfer.target):
            entry = transfer.entries[want.name]
            # Averaging would move equal frozen numbers by a rounding error in every round.
            if entry.source is None or entry.source in self._frozen or want.dtype == torch.bool:
                continue
            view = transfer.views.get(want.name)
            lanes[want.name] = _Lane(entry, entry.source, view, want.averaged)
        return lanes

    def _lanes(self) -> Iterator[_Lane]:
        """Yield the lanes of all transfers."""
        for lanes in self._groups.values():
            yield from lanes.values()

    def _type(self, source: str) -> torch.dtype:
        """Return what a global entry is summed in."""
        return torch.promote_types(accumulator(self._old[source].dtype), self._dtype)

    def _begin(self, lane: _Lane, value: Tensor, factor: float, *, fresh: bool) -> bool:
        """Give a lane what it adds to.

        Args:
            lane: The lane.
            value: Its first value.
            factor: Of the value.
            fresh: Whether that value as a whole may become the sum.

        Returns:
            Whether it has become the sum, so that nothing is left to add.
        """
        if lane.view is None:
            make = torch.empty if fresh else torch.zeros
            lane.into = make(value.shape, dtype=self._type(lane.source), device=self._device)
        else:
            # A view that is a part leaves the rest of its sum to be zero.
            fresh = fresh and not lane.view and lane.source not in self._sums
            lane.into = self._sum(lane.source, empty=fresh)[lane.view]
        if fresh and factor == 1:
            lane.into.copy_(value)
        elif fresh:
            torch.mul(value.to(lane.into.dtype), factor, out=lane.into)
        return fresh

    def _add_rows(
        self, lane: _Lane, value: Tensor, rows: Tensor, weight: float, factor: float
    ) -> None:
        """Add some rows of an entry, and count the weight of these."""
        assert lane.into is not None
        mask = rows.to(device=self._device, dtype=lane.into.dtype)
        mask = mask.view(-1, *[1] * (value.dim() - 1))
        lane.into.addcmul_(value.to(lane.into.dtype), mask, value=factor)
        counted: Vector = weight * rows.double().cpu().numpy()
        lane.rows = counted if lane.rows is None else lane.rows + counted

    def _sum(self, source: str, *, empty: bool = False) -> Tensor:
        """Return the global sum of an entry, created when it is first needed."""
        if source not in self._sums:
            make = torch.empty if empty else torch.zeros
            shape, dtype = self._old[source].shape, self._type(source)
            self._sums[source] = make(shape, dtype=dtype, device=self._device)
        return self._sums[source]

    def _embed(self, keep: int) -> None:
        """Add the transfers' own sums into the global one, except those of the last few used."""
        separate = (
            [v for v in lanes.values() if v.averaged and v.view is None and v.into is not None]
            for lanes in self._groups.values()
        )
        pending = list(filter(None, separate))
        for lane in itertools.chain(*pending[: max(len(pending) - keep, 0)]):
            assert lane.into is not None
            lane.entry.push(lane.into, self._sum(lane.source))
            lane.into = None

    def _mean(self, name: str, coverage: Coverage, factor: float) -> Tensor:
        """Return ``factor · Σ / coverage`` of one entry, the old value where nothing covers it."""
        old, new = self._old[name], self._sums.pop(name)
        division = None
        if even := coverage.even(name):
            new.div_(even)
        else:
            division = coverage.division(name, new.dtype)
            for rows, divisor in division.bands:
                new[rows].div_(divisor.to(self._device))
        if factor != 1:
            new.mul_(factor)
        # Else it is a mean of finite values below LARGEST, which needs no pass to prove it finite.
        steep = factor != 1 or self._reach > HEAVY
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
        """Return the maximum of every integer entry that a client has, else the old values."""
        result: dict[str, Tensor] = {}
        parts: list[tuple[_Lane, Tensor, Tensor]] = []
        for lane in self._lanes():
            if lane.averaged or lane.into is None:
                continue
            # An integer entry only selects: pulling positions tells where values belong.
            old = self._old[lane.source]
            positions = torch.arange(old.numel(), device=self._device).view(old.shape)
            at = lane.entry.pull(positions).flatten()
            peak = result.setdefault(lane.source, old.flatten().clone())
            peak[at] = torch.iinfo(old.dtype).min  # so that only clients' values count
            parts.append((lane, at, lane.into))
        for lane, at, values in parts:
            result[lane.source].scatter_reduce_(0, at, values.flatten(), "amax")
        return {name: value.view(self._old[name].shape) for name, value in result.items()}


def _add_each(sums: list[Tensor], values: list[Tensor], factor: float) -> None:
    """Add ``factor · values`` to sums in their order: some may be views of the same one."""
    if all(value.is_cpu for value in sums):
        torch._foreach_add_(sums, values, alpha=factor)  # one after the other there
    else:
        for into, value in zip(sums, values, strict=True):
            into.add_(value, alpha=factor)
