"""Streaming aggregation: updates of many architectures into one global state.

The covered mean of DESIGN §6, ``θ = (Σ_c w_c A_cᵀ θ_c) / (Σ_c w_c |A_c|ᵀ|A_c| 1)`` where anything
reached, elsewhere the old value bit for bit. What a transfer takes by slices (prefixes, windows,
whole entries) is added straight into a view of one sum of the global size, which becomes the new
state in place. What it takes by index, with weights or as a fold is summed per distinct transfer
in the client's own shape and embedded once. Neither grows with the number of clients.

Sums cannot overflow: weights are relative, and scaled by powers of two where they add up to more
than ``HEAVY``; so are the values of an entry where they reach ``SUMMABLE``. As long as all updates
of an entry are equal, its sum holds that value instead, so their mean is that value exactly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
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
    SUMMABLE,
    check_options,
    check_update,
    expected_entries,
    finite,
    unsummable,
)

# Fewer values than this are compared faster as they are.
SMALL = 1 << 12

# Weights are relative to a unit that keeps their sum below HEAVY; one below LIGHT counts as that:
# beside the others it is less than a rounding, and where it is alone its value stays.
HEAVY, LIGHT = 2.0**26, 2.0**-64

# Factor of one value that with HEAVY · SUMMABLE stays within single precision.
STEEP = 2.0**20


@dataclass(slots=True)
class _Lane:
    """One entry of a transfer on its way into the global state.

    Attributes:
        entry: Where the client's entry comes from.
        source: Its global name.
        dtype: What it is summed in.
        view: The part of the global sum that it adds straight into; None: it has a sum of its own.
        averaged: Whether it is averaged; else the maximum counts.
        into: What it adds to, once that exists: the view, or its own sum in the client's shape;
            for an integer entry the maximum.
        weight: ``Σ w`` of the updates that gave the entry as a whole.
        rows: ``Σ w · rows`` of those that gave only some rows of it.
        repeated: While all updates of the global entry came here and were equal, the factor of that
            value that ``into`` holds instead of their sum; else 0.
        shrunk: Power of two that the values of the global entry are multiplied by.
    """

    entry: Entry
    source: str
    dtype: torch.dtype
    view: Slices | None
    averaged: bool
    into: Tensor | None = None
    weight: float = 0.0
    rows: Vector | None = None
    repeated: float = 0.0
    shrunk: float = 1.0

    @property
    def sliced(self) -> bool:
        """Whether it adds straight into a view of the global sum."""
        return self.view is not None

    @property
    def scale(self) -> float:
        """Factor that goes with ``into``: a sum of its own is scaled when it is embedded."""
        return self.shrunk if self.view is None else self.entry.scale * self.shrunk

    def term(self) -> Term | None:
        """Coverage that it gives its global entry."""
        if self.rows is not None:
            return Term.of(self.entry, rows=tuple((self.rows + self.weight).tolist()))
        return Term.of(self.entry, self.weight) if self.weight else None


# The lanes of one distinct transfer, by client entry.
Lanes: TypeAlias = dict[str, _Lane]


class Merger:
    """Adds up updates one at a time and gives the covered mean.

    It stores one sum of the global size, which becomes the new state, and per distinct transfer
    the sums of what it does not take by slices; beyond ``groups`` transfers, those of the least
    recently used are embedded. The old state is only referred to, and no update is stored.

    Args:
        graph: The global architecture, or its signature. Its frozen parameters and what
            :func:`.unsummable` finds keep their old values bit for bit.
        state: The old global state.
        dtype: Of the sums; by default float32 for half precision, else the entry's own. In
            float64, means of float32 do not depend on the clients' order beyond their last
            rounding; adding takes several times as long.
        groups: For how many distinct transfers sums are stored.

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
        self,
        graph: GraphLike | Signature,
        state: State,
        *,
        dtype: torch.dtype | None = None,
        groups: int = 16,
    ) -> None:
        graph = graph if isinstance(graph, tuple) else graph_of(graph)
        self.signature = signature(graph)
        check_update(self.signature, state, finite=False)
        self._fixed = unsummable(graph, state)
        self._frozen = self._fixed.keys() | (frozen(graph) if isinstance(graph, ArchGraph) else ())
        self._old = state
        self._device = next((value.device for value in state.values()), torch.device("cpu"))
        self._dtype = dtype
        self._limit = max(groups, 1)
        self._sums: dict[str, Tensor] = {}
        self._groups: dict[str, Lanes] = {}  # by transfer, in order of last use
        self._unit: float | None = None
        self._total = 0.0
        self._repeated: dict[str, _Lane] = {}  # by global entry, what holds a value, not a sum
        self._shrunk: dict[str, float] = {}  # by global entry, where it is not 1
        self._taken = False
        self.clients = 0

    def __repr__(self) -> str:
        state = "finished" if self._taken else f"{len(self._groups)} transfers pending"
        return f"<Merger of {len(self._old)} entries, {state}>"

    @torch.no_grad()
    def add(
        self,
        transfer: Transfer,
        state: State,
        weight: float = 1.0,
        *,
        scales: Mapping[str, float] | None = None,
        rows: Mapping[str, Tensor] | None = None,
        skip: Collection[str] = (),
        trusted: bool = False,
        through: Transfer | None = None,
    ) -> None:
        """Add one client's update.

        Args:
            transfer: Global → client.
            state: The client's state after training.
            weight: Of this client against the others (examples, say); any positive number. Only
                ratios matter, so equal weights are exactly the uniform mean; one below 2⁻⁶⁴ of
                the largest only counts where no other client covers an entry.
            scales: Factor per client entry on the numerator alone (FedFA's 1/n_c).
            rows: Per client entry, a vector of 0 and 1 over its first axis: the rows that this
                client gives (HeteroFL's classes).
            skip: Client entries that are left out (norm statistics, personal layers, a head of
                another size), whether the state has them or not.
            trusted: Whether the values are known to be finite and below ``SUMMABLE``; saves a pass
                over them.
            through: What makes the client's entries of those of ``state``, one at a time while they
                are added; None: they are those of ``state``.

        Raises:
            RejectedUpdate: If the update, its weight, scales or rows are not fit for merging, with
                the entry's name; nothing of it was added.
            ArchGraphError: If the transfer does not start at the global architecture or where
                ``through`` ends, or the result was already taken.
        """
        self._check_open()
        group = self._groups.get(transfer.digest) or self._group(transfer)
        scales, rows = scales or {}, rows or {}
        if through is not None and through.target != transfer.target:
            raise ArchGraphError(
                "what makes the client's entries does not end where the transfer does",
                **first_difference(through.target, transfer.target),
            )
        if through is not None and not trusted:  # what is made is looked at as a whole
            check_update(through.source, state, finite=False)
            state, through = through.pull(state, copy=False), None
        if through is not None:
            large = check_update(through.source, state, finite=False)
        else:
            if skip:
                state = {name: value for name, value in state.items() if name not in skip}
            fixed = transfer.covered(self._fixed)
            large = check_update(
                transfer.target, state, finite=not trusted, optional=skip, fixed=fixed
            )
        if {value.device for value in state.values()} != {self._device}:
            state = {name: value.to(self._device) for name, value in state.items()}
        check_options(transfer, weight, scales, rows, skip, large)
        # From here on nothing can be refused.
        self._groups.pop(transfer.digest, None)
        self._groups[transfer.digest] = group
        weight = self._relative(weight)
        for name in {*large, *(n for n, scale in scales.items() if abs(scale) > STEEP)}:
            self._shrink(group.get(name), large.get(name, SUMMABLE) * abs(scales.get(name, 1.0)))
        self.clients += 1
        sums: dict[float, tuple[list[Tensor], list[Tensor]]] = {}  # by the factor of the values
        for name, lane in group.items():
            if name in skip:
                continue
            value = state[name] if through is None else through.entry(name, state)
            if not lane.averaged:
                lane.into = value.clone() if lane.into is None else lane.into.maximum(value)
                continue
            into = lane.into if lane.into is not None else self._view(lane)
            if into is not None and name not in rows:  # what nearly every update is made of
                scale = scales.get(name, 1.0)
                if not (lane.repeated and self._repeats(lane, into, value, scale)):
                    factor = weight * lane.scale * scale
                    if through is not None:  # while it is in the cache
                        into.add_(value, alpha=factor)
                    else:
                        totals, values = sums.setdefault(factor, ([], []))
                        totals.append(into)
                        values.append(value)
                lane.weight += weight
            else:
                self._add(lane, value, weight, scales.get(name, 1.0), rows.get(name))
        for factor, (totals, values) in sums.items():
            _add_each(totals, values, factor)
        if len(self._groups) > self._limit:
            self._embed(keep=self._limit)

    @torch.no_grad()
    def result(
        self, multiply: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Tensor], Coverage]:
        """The new global state, and what covered it, in the weights of the updates.

        Integers are the maximum over the clients that have them; bools keep their old values. The
        sums become the new state in place, so this ends the merger.

        Args:
            multiply: Factor per global entry on the mean (FedFA's mean norm).

        Raises:
            ArchGraphError: If the result was already taken, a factor names an unknown entry, or a
                mean times its factor is not finite.
        """
        self._check_open()
        multiply = multiply or {}
        for name in multiply:
            if name not in self._old:
                raise ArchGraphError("factor of an unknown entry", where=name)
        self._taken = True
        terms: dict[str, list[Term]] = {}
        for group in self._groups.values():
            for lane in group.values():
                if lane.averaged and (term := lane.term()) is not None:
                    terms.setdefault(lane.source, []).append(term)
        self._embed(keep=0)
        new = self._peaks()
        self._groups.clear()  # and with them all further references to the sums
        coverage = Coverage({slot.name: slot.shape for slot in self.signature}, terms)
        for name in coverage:
            if name in terms:
                factor = multiply.get(name, 1.0)
                new[name] = self._mean(name, coverage, factor)
                if factor != 1 and not finite(new[name]):
                    raise ArchGraphError(
                        "the mean is not finite", where=name, found=f"factor {factor:g}"
                    )
            elif name not in new:
                new[name] = self._old[name].clone()
        return {name: new[name] for name in coverage}, coverage.times(self._unit or 1.0)

    def _check_open(self) -> None:
        if self._taken:
            raise ArchGraphError("the result was already taken", hint="make a new Merger")

    def _group(self, transfer: Transfer) -> Lanes:
        if transfer.source != self.signature:
            raise ArchGraphError(
                "the transfer does not start at the merger's graph",
                hint="Merger.add takes the transfer from the global architecture to the client's",
            )
        lanes: Lanes = {}
        for want in expected_entries(transfer.target):
            entry = transfer.entries[want.name]
            if entry.source is None or entry.source in self._frozen or want.dtype == torch.bool:
                continue
            dtype = self._dtype or accumulator(self._old[entry.source].dtype)
            view = transfer.views.get(want.name)
            lane = _Lane(entry, entry.source, dtype, view, want.averaged)
            lane.shrunk = self._shrunk.get(lane.source, 1.0)
            lanes[want.name] = lane
        return lanes

    def _relative(self, weight: float) -> float:
        """A weight in units of the first one, the unit enlarged where weights become heavy."""
        self._unit = self._unit or weight
        if weight / self._unit + self._total > HEAVY:
            power = max(math.frexp(weight)[1] - math.frexp(self._unit)[1], 26)
            self._unit = math.ldexp(self._unit, power)
            factor = max(2.0**-power, LIGHT)
            self._total *= factor
            for sums in self._sums.values():
                sums.mul_(factor)
            for lane in self._lanes():
                lane.weight, lane.repeated = lane.weight * factor, lane.repeated * factor
                lane.rows = None if lane.rows is None else lane.rows * factor
                if lane.into is not None and not lane.sliced:
                    lane.into.mul_(factor)
        weight = max(weight / self._unit, LIGHT)
        self._total += weight
        return weight

    def _lanes(self) -> list[_Lane]:
        """All lanes of entries that are averaged."""
        return [v for lanes in self._groups.values() for v in lanes.values() if v.averaged]

    def _shrink(self, lane: _Lane | None, size: float) -> None:
        """Multiply a global entry's sums by a power of two, so that values of a size fit."""
        if lane is None or not lane.averaged:
            return
        source, old = lane.source, self._shrunk.get(lane.source, 1.0)
        power = 2.0 ** -min(max(math.frexp(size)[1] - math.frexp(SUMMABLE)[1] + 1, 0), 100)
        if power >= old:
            return
        self._shrunk[source] = power
        if source in self._sums:
            self._sums[source].mul_(power / old)
        for one in self._lanes():
            if one.source == source:
                one.shrunk = power
                if one.into is not None and not one.sliced:
                    one.into.mul_(power / old)

    def _repeats(self, lane: _Lane, into: Tensor, value: Tensor, scale: float) -> bool:
        """Whether an update is equal to those before it; if not, they become their sum."""
        factor = lane.repeated * lane.scale
        same = value.to(lane.dtype) if factor == 1 else value.to(lane.dtype) * factor
        if scale == 1 and _equal(into, same):
            return True
        self._differ(lane.source)
        return False

    def _differ(self, source: str) -> None:
        """From a value that all updates of an entry had so far to their sum."""
        lane = self._repeated.pop(source, None)
        if lane is not None and lane.into is not None:
            if lane.weight != lane.repeated:
                lane.into.mul_(lane.weight / lane.repeated)
            lane.repeated = 0.0

    def _view(self, lane: _Lane) -> Tensor | None:
        """What a lane adds to from now on, if others have made its sum."""
        if lane.view is not None and lane.source in self._sums:
            self._differ(lane.source)
            lane.into = self._sums[lane.source][lane.view]
        return lane.into

    def _add(
        self, lane: _Lane, value: Tensor, weight: float, scale: float, rows: Tensor | None
    ) -> None:
        """Add ``weight · scale · value`` to the sum that it belongs to, and count the weight."""
        self._differ(lane.source)
        first = lane.sliced and lane.source not in self._sums
        fresh = False
        if lane.into is None and lane.view is not None:
            # The first update of a whole entry need not be added to zeros.
            fresh = rows is None and not lane.view and lane.source not in self._sums
            lane.into = self._sum(lane.source, lane.dtype, empty=fresh)[lane.view]
        elif lane.into is None:
            fresh = rows is None
            make = torch.empty if fresh else torch.zeros
            lane.into = make(value.shape, dtype=lane.dtype, device=self._device)
        factor, total = weight * scale * lane.scale, lane.into
        if rows is not None:
            mask = rows.to(device=self._device, dtype=lane.dtype)
            mask = mask.view(-1, *[1] * (value.dim() - 1))
            total.addcmul_(value.to(lane.dtype), mask, value=factor)
            counted: Vector = weight * rows.double().cpu().numpy()
            lane.rows = counted if lane.rows is None else lane.rows + counted
            return
        if not fresh:
            total.add_(value, alpha=factor)
        elif factor == 1:
            total.copy_(value)
        else:
            torch.mul(value.to(lane.dtype), factor, out=total)
        lane.weight += weight
        if first and scale == 1:
            lane.repeated, self._repeated[lane.source] = weight, lane

    def _sum(self, source: str, dtype: torch.dtype, *, empty: bool = False) -> Tensor:
        """The global sum of an entry, created when it is first needed."""
        self._differ(source)
        if source not in self._sums:
            old = self._old[source]
            make = torch.empty if empty else torch.zeros
            self._sums[source] = make(old.shape, dtype=dtype, device=self._device)
        return self._sums[source]

    def _embed(self, keep: int) -> None:
        """Add the transfers' own sums into the global one, except those of the last few used."""
        own = (
            [v for v in lanes.values() if v.averaged and v.into is not None and not v.sliced]
            for lanes in self._groups.values()
        )
        unembedded = list(filter(None, own))
        for lane in itertools.chain(*unembedded[: max(len(unembedded) - keep, 0)]):
            if lane.into is not None:
                lane.entry.push(lane.into, self._sum(lane.source, lane.dtype))
                lane.into = None

    def _mean(self, name: str, coverage: Coverage, factor: float) -> Tensor:
        """``factor · Σ / coverage`` of one entry, the old value where nothing covers it."""
        old, new = self._old[name], self._sums.pop(name)
        share = self._shrunk.get(name, 1.0)
        count = 1.0
        if name in self._repeated:  # one value, counted once
            count = self._repeated[name].weight
            share *= self._repeated[name].repeated
        large = name in self._shrunk and factor == 1
        if name in self._shrunk and factor:  # in one step: the mean alone may be too large
            share, factor = share / factor, 1.0
        division = None
        if even := coverage.even(name):
            new.div_(even / count * share)
        else:
            division = coverage.division(name, new.dtype, count, share)
            for rows, divisor in division.bands:
                new[rows].div_(divisor.to(self._device))
        if factor != 1:
            new.mul_(factor)
        if large:  # rounded beyond the largest number
            new.nan_to_num_(nan=math.nan)
        new = new.to(old.dtype)
        if division is None:
            return new
        for box in division.kept:
            new[box] = old[box]
        covered = division.covered
        return new if covered is None else torch.where(covered.to(self._device), new, old)

    def _peaks(self) -> dict[str, Tensor]:
        """Maximum over the clients of every integer entry, the old value where none has it."""
        result: dict[str, Tensor] = {}
        seen: dict[str, Tensor] = {}
        lanes = [v for group in self._groups.values() for v in group.values() if not v.averaged]
        # Whole entries first: where there is one, all is seen.
        for lane in sorted(lanes, key=lambda lane: any(lane.entry.dims)):
            name, value = lane.source, lane.into
            if value is None:
                continue
            if not any(lane.entry.dims):
                result[name] = result[name].maximum(value) if name in result else value
                continue
            if name not in seen:
                whole = torch.full_like(self._old[name], name in result, dtype=torch.bool)
                seen[name] = whole.view(-1)
                result[name] = result.get(name, self._old[name]).flatten().clone()
            # An integer entry only selects: pulling positions tells where values belong.
            places = torch.arange(seen[name].numel(), device=self._device)
            at = lane.entry.pull(places.view(self._old[name].shape)).flatten()
            result[name][at[~seen[name][at]]] = torch.iinfo(value.dtype).min
            result[name].scatter_reduce_(0, at, value.flatten(), "amax")
            seen[name][at] = True
        return {name: value.view(self._old[name].shape) for name, value in result.items()}


def _add_each(sums: list[Tensor], values: list[Tensor], factor: float) -> None:
    """Add ``factor · values`` to sums in their order: some may be views of the same one."""
    if all(value.is_cpu for value in sums):
        torch._foreach_add_(sums, values, alpha=factor)  # one after the other there
    else:
        for into, value in zip(sums, values, strict=True):
            into.add_(value, alpha=factor)


def _equal(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors of one shape and dtype are equal; stops at the first difference."""
    pair = (first, second)
    if first.numel() > SMALL and all(
        t.is_contiguous() and t.nbytes % 8 == t.storage_offset() == 0 for t in pair
    ):
        # Bits as integers of eight bytes compare several times as fast as numbers.
        pair = (first.view(-1).view(torch.int64), second.view(-1).view(torch.int64))
    return torch.equal(*pair)
