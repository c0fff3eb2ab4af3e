"""A round's updates on disk, for medians, trimmed means and distances between clients.

A mean needs only sums, but a median needs all clients' values of a parameter at once. Therefore
updates are written to a file and read back in *slabs*. A slab contains some rows of a global
parameter, from all updates whose model contains any of these rows. A client's values are those that
a mean over this client alone would give, ``v_c = A_cᵀ θ_c / |A_c|ᵀ|A_c| 1``. If the client trains a
part of the model, these are its own values. If the client trains sums of channels, each of these
channels gets an equal fraction of the sum. Values that the client's model does not contain are
masked.

Memory is bounded by one slab and one result, whatever the number of clients. Values do not depend
on how rows are split into slabs, or on the order of the clients.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from archgraph.analysis.roles import frozen
from archgraph.graph.argument import GraphLike, graph_of
from archgraph.graph.ir import ArchGraph
from archgraph.states.coverage import Term
from archgraph.states.dimension_map import DimMap
from archgraph.states.entry import Entry
from archgraph.states.robust import Cut, distances, middle
from archgraph.states.spill import Spill, StoredState
from archgraph.states.state import Signature, State, accumulator, signature, widened
from archgraph.states.transfer import Transfer
from archgraph.states.updates import Update, unsummable

# Number of values of all updates together that are in memory at a time; a row is never split.
SLAB = 2**20


class PooledUpdate(NamedTuple):
    """An update in the file.

    Attributes:
        client: Id of the client.
        update: The update, without its state.
        stored: Dict from name to the tensor's offset, shape and dtype in the file.
    """

    client: int
    update: Update
    stored: StoredState


class Slab(NamedTuple):
    """Some rows of a global parameter or buffer, from every update that contains it.

    Attributes:
        clients: Ids of the clients, ascending.
        rows: Slice of the rows.
        values: ``[update, row, ...]``; complex numbers are pairs in a last dimension.
        covered: Mask of the values that the clients' models contain, with the shape of ``values``.
    """

    clients: tuple[int, ...]
    rows: slice
    values: Tensor
    covered: Tensor


class Pool:
    """Updates of many architectures on disk, read back in the global shape.

    Args:
        graph: The global architecture, or its signature. Its frozen parameters are never read.
        state: The old global state.
        slab: Number of values of all updates together that are in memory at a time.

    >>> from archgraph.states import DimMap, Entry, Slot
    >>> slots, small = (Slot("w", (3,), "float32"),), (Slot("w", (2,), "float32"),)
    >>> half = Transfer(slots, small, {"w": Entry("w", (DimMap.of([0, 1], 3),))})
    >>> pool = Pool(slots, {"w": torch.tensor([7.0, 8.0, 9.0])})
    >>> for client, values in enumerate(([1.0, 1.0], [4.0, 1.0], [1e30, 2.0])):
    ...     pool.add(client, Update(half, {"w": torch.tensor(values)}))
    >>> pool.middle(lambda count: (count - 1) // 2)["w"].tolist()
    [4.0, 1.0, 9.0]
    """

    def __init__(self, graph: GraphLike | Signature, state: State, *, slab: int = SLAB) -> None:
        self.graph = graph if isinstance(graph, tuple) else graph_of(graph)
        self.signature = signature(self.graph)
        untrained = frozen(self.graph) if isinstance(self.graph, ArchGraph) else ()
        self._frozen = unsummable(self.graph, state).keys() | untrained
        self._old = state
        self._slab = slab
        self._spill = Spill()
        self.updates: list[PooledUpdate] = []

    def add(self, client: int, update: Update) -> None:
        """Write an update, whose shapes and values are already checked, to the file.

        Raises:
            RunError: If the disk is full.
        """
        stored = self._spill.put(
            {k: v for k, v in update.state.items() if k not in update.unmerged}
        )
        self.updates.append(PooledUpdate(client, update._replace(state={}), stored))

    def read(self, clients: Collection[int]) -> Iterator[Update]:
        """Read clients' updates back, one at a time in ascending order of the clients."""
        for one in self._of(clients):
            yield one.update._replace(state=self._spill.get(one.stored))

    def _of(self, clients: Collection[int] | None) -> list[PooledUpdate]:
        # Sorted, since updates are stored in the order of their arrival.
        return sorted(
            (one for one in self.updates if clients is None or one.client in clients),
            key=lambda one: one.client,
        )

    @torch.no_grad()
    def slabs(self, name: str, clients: Collection[int] | None = None) -> Iterator[Slab]:
        """Yield the clients' values of a global parameter or buffer, some rows at a time.

        Args:
            name: Name of the parameter or buffer. Frozen and bool tensors yield no slabs.
            clients: Ids of the clients. Default: all.
        """
        old = self._old[name]
        if name in self._frozen or old.dtype == torch.bool:
            return
        lanes: list[tuple[PooledUpdate, list[str]]] = []
        for one in self._of(clients):
            names = _by_source(one.update.transfer)[name]
            if entries := [n for n in names if n not in one.update.unmerged]:
                lanes.append((one, entries))
        if not lanes:
            return
        dtype, shape = accumulator(old.dtype), (*old.shape, 1)  # a scalar is one row
        step = max(self._slab // max(len(lanes) * math.prod(shape[1:]), 1), 1)
        for start in range(0, shape[0], step):
            window = slice(start, min(start + step, shape[0]))
            part = (window.stop - start, *old.shape[1:]) if old.dim() else ()
            values = torch.zeros(len(lanes), *part, dtype=dtype)
            covered = torch.zeros(len(lanes), *part, dtype=torch.bool)
            for row, (one, entries) in enumerate(lanes):
                self._fill(one, entries, window, values[row], covered[row])
            if dtype.is_complex:
                values = torch.view_as_real(values)
                covered = covered.unsqueeze(-1).expand(values.shape)
            yield Slab(tuple(one.client for one, _ in lanes), window, values, covered)

    def middle(
        self,
        cut: Cut,
        *,
        quorum: int = 1,
        clients: Collection[int] | None = None,
        multiply: Mapping[str, float] | None = None,
    ) -> dict[str, Tensor]:
        """Return the new global state: for each value, a trimmed mean or median over clients.

        Clients' weights are ignored. Integers take the lower median. Bools keep their old values. A
        value whose mean is not finite also keeps its old value.

        Args:
            cut: Function from the number of clients to the number of values that are discarded at
                each end.
            quorum: Minimum number of clients whose models contain a value. With fewer, the old
                value is kept.
            clients: Ids of the clients. Default: all.
            multiply: Dict from global parameter to a factor on its mean.
        """
        return self.middle_and_reach(cut, quorum=quorum, clients=clients, multiply=multiply)[0]

    @torch.no_grad()
    def middle_and_reach(
        self,
        cut: Cut,
        *,
        quorum: int = 1,
        clients: Collection[int] | None = None,
        multiply: Mapping[str, float] | None = None,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the result of :meth:`middle`, and for each tensor a mask of the new values."""
        new, reached = {}, {}
        for slot in self.signature:
            old, factor = self._old[slot.name], (multiply or {}).get(slot.name, 1.0)
            new[slot.name] = old.clone()
            # Complex numbers become pairs; a scalar becomes one row.
            pairs = torch.view_as_real(new[slot.name]) if old.is_complex() else new[slot.name]
            seen = torch.zeros(pairs.shape, dtype=torch.bool)
            into, at = (x if old.dim() else x.unsqueeze(0) for x in (pairs, seen))
            for slab in self.slabs(slot.name, clients):
                mean, counts = middle(slab.values, slab.covered, cut)
                if slot.averaged:
                    mean = (mean * factor).to(pairs.dtype)
                use, rows = (counts >= quorum) & widened(mean).isfinite(), into[slab.rows]
                at[slab.rows].copy_(use)
                rows.copy_(torch.where(use.to(old.device), mean.to(old.device), rows))
            reached[slot.name] = seen.any(-1) if old.is_complex() else seen
        return new, reached

    @torch.no_grad()
    def squared_distances(self, clients: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Sum squared differences between updates, and count the values in each sum.

        Args:
            clients: Ids of the clients, ascending.

        Returns:
            Sums and counts, both ``[client, client]`` in float64, over values that the models of
            both clients contain.
        """
        index = {client: number for number, client in enumerate(clients)}
        sums = torch.zeros(len(clients), len(clients), dtype=torch.float64)
        counts = torch.zeros_like(sums)
        for slot in self.signature:
            old = widened(self._old[slot.name].cpu())
            origin = torch.view_as_real(old) if old.is_complex() else old
            for slab in self.slabs(slot.name, clients) if slot.averaged else ():
                # Differences do not depend on the origin; one near the values loses no digits.
                values = slab.values.double() - (origin[slab.rows] if old.dim() else origin)
                at = torch.tensor([index[client] for client in slab.clients])
                squares, common = distances(values.flatten(1), slab.covered.flatten(1))
                sums[at[:, None], at] += squares
                counts[at[:, None], at] += common
        return sums, counts

    def _fill(
        self,
        one: PooledUpdate,
        names: Iterable[str],
        window: slice,
        values: Tensor,
        covered: Tensor,
    ) -> None:
        """Write an update's values for some rows of a global entry, and the mask of covered ones.

        1. Map the client's entries for these rows back to the global model: ``Aᵀ θ_c``.
        2. Mask values where ``|A|ᵀ|A| 1``, summed over these entries, is 0.
        3. Divide by this sum. A selected value stays the same; a fold is divided into equal parts.
        """
        coverage = torch.zeros(values.shape, dtype=torch.float64)
        averaged = values.is_floating_point() or values.is_complex()
        for name in names:
            mask = one.update.rows.get(name) if averaged else None
            entry = one.update.transfer.entries[name]
            inner = _within(entry, window, mask)
            if inner is None:
                continue
            first, last, part = inner
            piece = self._spill.rows(one.stored[name], first, last).to(values.dtype)
            part.push(piece, values, one.update.scales.get(name, 1.0) if averaged else 1.0)
            coverage += _outer(entry, window, mask)
        covered.copy_(coverage > 0)
        coverage.masked_fill_(~covered, 1.0)
        if averaged:
            values.div_(coverage)
        else:
            values.floor_divide_(coverage.to(values.dtype))


@functools.lru_cache(maxsize=256)
def _by_source(transfer: Transfer) -> Mapping[str, tuple[str, ...]]:
    """Return names of the target's entries by source entry, for every entry of the source."""
    names: dict[str, tuple[str, ...]] = {slot.name: () for slot in transfer.source}
    for name, entry in transfer.entries.items():
        if entry.source is not None:
            names[entry.source] += (name,)
    return names


def _within(entry: Entry, window: slice, mask: Tensor | None) -> tuple[int, int, Entry] | None:
    """Return bounds of the rows of a client's entry within some global rows, and their map."""
    if not entry.dims:
        return 0, 1, entry
    map_, size = entry.dims[0], window.stop - window.start
    if map_ is None and mask is None:
        return window.start, window.stop, entry
    columns = np.arange(window.start, window.stop) if map_ is None else map_.positions
    targets = columns if map_ is None else map_.targets
    inside = (columns >= window.start) & (columns < window.stop)
    if mask is not None:
        inside &= mask.cpu().numpy()[targets] > 0
    if not inside.any():
        return None
    targets, columns = targets[inside], columns[inside] - window.start
    weights = np.ones(len(columns)) if map_ is None else map_.values[inside]
    first, last = int(targets.min()), int(targets.max()) + 1
    part = DimMap.sparse(targets - first, columns, weights, size=size, length=last - first)
    return first, last, dataclasses.replace(entry, dims=(part, *entry.dims[1:]))


def _outer(entry: Entry, window: slice, mask: Tensor | None) -> Tensor:
    """Return the coverage of some source rows by an entry, in a shape that broadcasts."""
    term = Term.of(entry, rows=() if mask is None else tuple(mask.tolist()))
    product = torch.tensor(term.factor, dtype=torch.float64)
    for dim, steps in enumerate(term.steps()):
        if steps is not None:
            along = torch.tensor(steps.vector, dtype=torch.float64)
            along = along[window] if dim == 0 else along
            product = product * along.view(-1, *[1] * (len(entry.dims) - dim - 1))
    return product
