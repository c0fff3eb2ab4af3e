"""Streaming aggregation: updates of many architectures into one global state.

The covered mean of DESIGN §6, ``θ = (Σ_c w_c A_cᵀ θ_c) / (Σ_c w_c |A_c|ᵀ|A_c| 1)`` where anything
reached, elsewhere the old value bit for bit. Clients of one architecture share one sum in their own
shape; it is embedded into the global shape once, when the result is asked for. What is kept does
not grow with the number of clients.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from archgraph.dimmap import Vector
from archgraph.errors import RejectedUpdate, RewriteError
from archgraph.ir import ArchGraph
from archgraph.transfer import (
    Coverage,
    Entry,
    Signature,
    Slot,
    State,
    Term,
    Transfer,
    accumulator,
    signature,
)

# More cells of equal coverage than this are divided by a dense tensor instead of one by one.
MAX_CELLS = 64


def check_update(graph: ArchGraph | Signature, state: State, *, finite: bool = True) -> None:
    """Check that a state is one of this architecture, and fit for averaging.

    Args:
        graph: The architecture, or its signature.
        state: The update.
        finite: Whether to look for NaN and infinity (one pass over the values).

    Raises:
        RejectedUpdate: For a missing or further entry, another type, shape or dtype, NaN or
            infinity; names the entry.

    >>> slots = (Slot("w", (2,), "float32"),)
    >>> check_update(slots, {"w": torch.tensor([1.0, float("nan")])})
    Traceback (most recent call last):
    archgraph.errors.RejectedUpdate: w: not finite; found 1 NaN and 0 infinite of 2 values; ...
    """
    slots = signature(graph)
    for slot in slots:
        if slot.name not in state:
            raise RejectedUpdate("missing entry", where=slot.name, expected=str(slot))
        value = state[slot.name]
        if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_meta:
            kind = type(value).__name__
            if isinstance(value, Tensor):
                kind = f"{value.layout} tensor on {value.device}"
            raise RejectedUpdate("no dense tensor", where=slot.name, found=kind)
        if tuple(value.shape) != slot.shape:
            raise RejectedUpdate(
                "wrong shape", where=slot.name, found=list(value.shape), expected=list(slot.shape)
            )
        if value.dtype != slot.torch_dtype:
            raise RejectedUpdate(
                "wrong dtype",
                where=slot.name,
                found=str(value.dtype).removeprefix("torch."),
                expected=slot.dtype,
            )
    if len(state) != len(slots):
        further = sorted(set(state) - {slot.name for slot in slots})
        raise RejectedUpdate("unknown entry", where=str(further[0]), found=f"{len(further)} more")
    if finite:
        for slot in slots:
            if slot.averaged:
                _check_finite(slot.name, state[slot.name])


@torch.no_grad()
def _check_finite(name: str, value: Tensor) -> None:
    # One NaN or infinity spoils the sum, so a finite sum proves all values finite, in one pass
    # that writes nothing. A sum can also overflow: then look at every value.
    if math.isfinite(abs(value.sum(dtype=accumulator(value.dtype)).item())):
        return
    wrong, infinite = int(value.isnan().sum()), int(value.isinf().sum())
    if wrong or infinite:
        raise RejectedUpdate(
            "not finite",
            where=name,
            found=f"{wrong} NaN and {infinite} infinite of {value.numel()} values",
            expected="finite values",
        )


@dataclass(slots=True)
class _Group:
    """The sum over the clients of one transfer, in the client's own shape.

    Attributes:
        transfer: Global → client.
        sums: ``Σ w θ`` (times scales and rows) by client entry.
        peaks: Element-wise maximum of integer entries.
        weights: ``Σ w`` of the updates that gave the entry as a whole.
        rows: ``Σ w · rows`` of those that gave only some rows of it.
    """

    transfer: Transfer
    sums: dict[str, Tensor] = field(default_factory=dict)
    peaks: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    rows: dict[str, Vector] = field(default_factory=dict)

    def add(
        self, slot: Slot, value: Tensor, weight: float, scale: float, dtype: torch.dtype
    ) -> None:
        """Add ``weight · scale · value`` and count the weight."""
        factor = weight * scale
        if slot.name in self.sums:
            self.sums[slot.name].add_(value, alpha=factor)
        elif factor == 1:
            fresh = torch.empty(slot.shape, dtype=dtype, device=value.device)
            self.sums[slot.name] = fresh.copy_(value)
        else:
            self.sums[slot.name] = value.to(dtype).mul(factor)
        self.weights[slot.name] = self.weights.get(slot.name, 0.0) + weight

    def add_rows(
        self,
        slot: Slot,
        value: Tensor,
        weight: float,
        scale: float,
        dtype: torch.dtype,
        rows: Tensor,
    ) -> None:
        """Add ``weight · scale · value`` in the given rows only."""
        if slot.name not in self.sums:
            self.sums[slot.name] = torch.zeros(slot.shape, dtype=dtype, device=value.device)
        mask = rows.to(device=value.device, dtype=dtype).view(-1, *[1] * (value.dim() - 1))
        self.sums[slot.name].addcmul_(value.to(dtype), mask, value=weight * scale)
        counted = weight * rows.double().cpu().numpy()
        self.rows[slot.name] = self.rows.get(slot.name, 0.0) + counted

    def peak(self, slot: Slot, value: Tensor) -> None:
        """Keep the larger of what is there and the value, element by element."""
        if slot.name in self.peaks:
            torch.maximum(self.peaks[slot.name], value, out=self.peaks[slot.name])
        else:
            self.peaks[slot.name] = value.clone()

    def terms(self) -> Iterator[tuple[str, Entry, str, Term]]:
        """Source name, entry, client name and coverage of every averaged entry that was added."""
        for name, entry in self.transfer.entries.items():
            weight, rows = self.weights.get(name, 0.0), self.rows.get(name)
            if entry.source is not None and (weight or rows is not None):
                if rows is None:
                    yield entry.source, entry, name, Term.of(entry, weight)
                else:
                    yield entry.source, entry, name, Term.of(entry, rows=rows + weight)


class Merger:
    """Adds up updates one at a time and gives the covered mean.

    Kept: one sum per distinct transfer, in the client's shape; beyond ``groups`` of them the least
    recently used is embedded into one sum of the global size. The global state is only referred
    to, and the updates are not kept.

    Args:
        graph: The global architecture, or its signature.
        state: The old global state.
        dtype: What sums are kept in; by default float32 for half precision, else the entry's own.
        groups: How many sums of distinct transfers are kept.

    Raises:
        RejectedUpdate: If the state is not one of the graph.

    >>> slots = (Slot("w", (3,), "float32"),)
    >>> old = {"w": torch.tensor([7.0, 8.0, 9.0])}
    >>> from archgraph.transfer import DimMap
    >>> half = Transfer(
    ...     slots, (Slot("w", (2,), "float32"),), {"w": Entry("w", (DimMap.of([0, 1], 3),))}
    ... )
    >>> merger = Merger(slots, old)
    >>> merger.add(half, {"w": torch.tensor([1.0, 1.0])}, weight=10)
    >>> merger.add(half, {"w": torch.tensor([4.0, 1.0])}, weight=20)
    >>> state, coverage = merger.result()
    >>> state["w"].tolist(), coverage["w"].tolist()
    ([3.0, 1.0, 9.0], [30.0, 30.0, 0.0])
    """

    def __init__(
        self,
        graph: ArchGraph | Signature,
        state: State,
        *,
        dtype: torch.dtype | None = None,
        groups: int = 16,
    ) -> None:
        self.signature = signature(graph)
        check_update(self.signature, state, finite=False)
        if groups < 1:
            raise RewriteError("a merger keeps at least one sum", found=groups)
        self._old = state
        self._dtype = dtype
        self._limit = groups
        self._slots = {slot.name: slot for slot in self.signature}
        self._groups: dict[str, _Group] = {}  # in order of last use
        self._spilt: dict[str, Tensor] = {}
        self._unit: float | None = None
        self.clients = 0

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
    ) -> None:
        """Add one client's update.

        Args:
            transfer: Global → client.
            state: The client's state after training.
            weight: Of this client against the others (examples, say). Only ratios to the first
                client's matter, so equal weights are exactly the uniform mean.
            scales: Factor per client entry on the numerator alone (FedFA's 1/n_c).
            rows: Per client entry, a vector of 0 and 1 over its first axis: the rows that this
                client gives (HeteroFL's classes).
            skip: Client entries that are not given at all (norm statistics, personal layers).
            trusted: Whether the values are known to be finite; saves a pass over them.

        Raises:
            RejectedUpdate: If the update, its weight, scales or rows are not fit for merging, with
                the entry's name; nothing of it was added.
            RewriteError: If the transfer does not start at the global architecture.
        """
        group = self._groups.get(transfer.digest)
        if group is None and transfer.source != self.signature:
            raise RewriteError("the transfer does not start at the merger's graph")
        scales, rows = scales or {}, rows or {}
        check_update(transfer.target, state, finite=not trusted)
        self._check_options(transfer, weight, scales, rows, skip)
        # From here on nothing can be refused.
        self._unit = self._unit or weight
        weight = weight / self._unit
        self.clients += 1
        group = self._groups.pop(transfer.digest, None) or _Group(transfer)
        self._groups[transfer.digest] = group
        for slot in transfer.target:
            source = transfer.entries[slot.name].source
            if source is None or slot.name in skip:
                continue
            device = self._old[source].device
            value = state[slot.name].to(device)
            if slot.averaged:
                scale, dtype = scales.get(slot.name, 1.0), self._sum_dtype(self._slots[source])
                if slot.name in rows:
                    group.add_rows(slot, value, weight, scale, dtype, rows[slot.name])
                else:
                    group.add(slot, value, weight, scale, dtype)
            elif slot.dtype != "bool":
                group.peak(slot, value)
        self._spill()

    @torch.no_grad()
    def result(
        self, multiply: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Tensor], Coverage]:
        """The new global state, and what covered it, in the weights that were given.

        May be asked for at any time; nothing is used up. Integers are the maximum over the clients
        that have them; bools keep their old values.

        Args:
            multiply: Factor per global entry on the mean (FedFA's mean norm).
        """
        multiply = multiply or {}
        unknown = sorted(set(multiply) - set(self._slots))
        if unknown:
            raise RewriteError("no such global entry", where=unknown[0])
        parts: dict[str, list[tuple[Entry, Tensor]]] = {}
        terms: dict[str, list[Term]] = {}
        for group in self._groups.values():
            for source, entry, name, term in group.terms():
                terms.setdefault(source, []).append(term)
                if name in group.sums:
                    parts.setdefault(source, []).append((entry, group.sums[name]))
        shapes = {slot.name: slot.shape for slot in self.signature}
        coverage = Coverage(shapes, terms)
        new: dict[str, Tensor] = {}
        for slot in self.signature:
            old = self._old[slot.name]
            if slot.averaged and slot.name in terms:
                factor = multiply.get(slot.name, 1.0)
                new[slot.name] = self._mean(slot, parts.get(slot.name, []), coverage, factor)
            elif slot.averaged or slot.dtype == "bool":
                new[slot.name] = old.clone()
            else:
                new[slot.name] = self._peak(slot)
        unit = self._unit or 1.0
        scaled = {
            name: [Term(term.factor * unit, term.vectors) for term in terms_]
            for name, terms_ in terms.items()
        }
        return new, Coverage(shapes, scaled)

    def _check_options(
        self,
        transfer: Transfer,
        weight: float,
        scales: Mapping[str, float],
        rows: Mapping[str, Tensor],
        skip: Collection[str],
    ) -> None:
        if not (math.isfinite(weight) and weight > 0):
            raise RejectedUpdate(
                "unusable weight", where="weight", found=weight, expected="a positive number"
            )
        for kind, names in (("scale", scales), ("row mask", rows), ("skipped entry", skip)):
            for name in names:
                if name not in transfer.entries:
                    raise RejectedUpdate(f"{kind} of an unknown entry", where=name)
        for name, scale in scales.items():
            if not math.isfinite(scale):
                raise RejectedUpdate("unusable scale", where=name, found=scale)
        shapes = {slot.name: slot.shape for slot in transfer.target}
        for name, mask in rows.items():
            if tuple(mask.shape) != shapes[name][:1] or not shapes[name]:
                raise RejectedUpdate(
                    "row mask of another length",
                    where=name,
                    found=list(mask.shape),
                    expected=list(shapes[name][:1]),
                )
            if not ((mask == 0) | (mask == 1)).all():
                raise RejectedUpdate("row mask with other values than 0 and 1", where=name)

    def _sum_dtype(self, slot: Slot) -> torch.dtype:
        return self._dtype or accumulator(slot.torch_dtype)

    def _spill(self) -> None:
        """Embed the sums of the least recently used transfers beyond the limit."""
        held = [group for group in self._groups.values() if group.sums]
        for group in held[: -self._limit]:
            for name, total in group.sums.items():
                entry = group.transfer.entries[name]
                assert entry.source is not None
                if entry.source not in self._spilt:
                    slot = self._slots[entry.source]
                    self._spilt[entry.source] = torch.zeros(
                        slot.shape, dtype=total.dtype, device=total.device
                    )
                entry.push(total, self._spilt[entry.source])
            group.sums = {}

    def _mean(
        self,
        slot: Slot,
        parts: Sequence[tuple[Entry, Tensor]],
        coverage: Coverage,
        factor: float,
    ) -> Tensor:
        """``factor · Σ / coverage`` of one entry, the old value where nothing covers it."""
        old, dtype = self._old[slot.name], self._sum_dtype(slot)
        edges, table = coverage.grid(slot.name)
        spilt = self._spilt.get(slot.name)
        if table.size <= MAX_CELLS and all(_is_box(entry) for entry, _ in parts):
            # Wide enough for the old values too: they come through bit for bit.
            wide = torch.promote_types(dtype, old.dtype)
            new = torch.empty(slot.shape, dtype=wide, device=old.device)
            for cell in itertools.product(*map(range, table.shape)):
                box = tuple((int(e[i]), int(e[i + 1])) for e, i in zip(edges, cell, strict=True))
                _mean_of_box(new, old, spilt, parts, box, float(table[cell]), factor)
            return new.to(old.dtype)
        new = torch.zeros(slot.shape, dtype=dtype, device=old.device)
        if spilt is not None:
            new.add_(spilt)
        for entry, total in parts:
            entry.push(total, new)
        cover = coverage[slot.name].to(device=old.device, dtype=dtype)
        new.div_(cover)
        if factor != 1:
            new.mul_(factor)
        return torch.where(cover > 0, new.to(old.dtype), old)

    def _peak(self, slot: Slot) -> Tensor:
        """Maximum over the clients of an integer entry, the old value where none has it."""
        old = self._old[slot.name]
        where = torch.arange(old.numel(), device=old.device).view(slot.shape)
        new, seen = old.clone().view(-1), torch.zeros_like(old, dtype=torch.bool).view(-1)
        for group in self._groups.values():
            for name, peak in group.peaks.items():
                entry = group.transfer.entries[name]
                if entry.source != slot.name:
                    continue
                # An integer entry only selects: pulling positions tells where each value belongs.
                at, value = entry.pull(where).view(-1), peak.reshape(-1)
                new[at[~seen[at]]] = torch.iinfo(old.dtype).min
                new.scatter_reduce_(0, at, value, "amax")
                seen[at] = True
        return new.view(slot.shape)


def _is_box(entry: Entry) -> bool:
    """Whether it takes a contiguous box of its source, unscaled."""
    return entry.scale == 1 and all(
        m is None or (m.selects and len(m.runs) == 1 and m.runs[0][2] == 1) for m in entry.dims
    )


def _mean_of_box(
    new: Tensor,
    old: Tensor,
    spilt: Tensor | None,
    parts: Sequence[tuple[Entry, Tensor]],
    box: tuple[tuple[int, int], ...],
    cover: float,
    factor: float,
) -> None:
    """Write the mean of one box of equal coverage: one pass per sum that reaches it."""
    here = tuple(slice(*bounds) for bounds in box)
    if cover == 0:
        new[here] = old[here]
        return
    inside = [] if spilt is None else [spilt[here]]
    for entry, total in parts:
        starts = [m.runs[0][0] if m else 0 for m in entry.dims]
        moved = [(a - s, b - s) for (a, b), s in zip(box, starts, strict=True)]
        if all(0 <= a and b <= n for (a, b), n in zip(moved, total.shape, strict=True)):
            inside.append(total[tuple(slice(*bounds) for bounds in moved)])
    target = new[here]
    if len(inside) == 1:
        torch.div(inside[0], cover, out=target)
    else:
        torch.add(inside[0], inside[1], out=target)
        for more in inside[2:]:
            target.add_(more)
        target.div_(cover)
    if factor != 1:
        target.mul_(factor)

