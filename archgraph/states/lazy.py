"""A state whose tensors are computed on access, a few rows at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import numpy as np
from torch import Tensor

from archgraph.states.dimension_map import DimMap
from archgraph.states.transfer import Transfer

# Bytes of a source that are read at once: they stay in the CPU cache until they are copied.
BAND = 2**21
# Read at most this many rows per used row if the used rows are not adjacent.
SPARSE = 4

Rows: TypeAlias = "Callable[[str, int, int], Tensor]"


class LazyState(Mapping[str, Tensor]):
    """A state that stores no tensors: every access computes the tensor again.

    Attributes:
        types: Dict from name to a meta tensor with the shape and dtype of the tensor.

    Args:
        types: See the attribute.
        rows: Function that computes rows ``start`` to ``stop`` of a tensor; a scalar has one row.

    >>> import torch
    >>> types = {"w": torch.empty(3, 2, device="meta")}
    >>> state = LazyState(types, lambda name, start, stop: torch.ones(stop - start, 2))
    >>> state["w"].shape, [tuple(band.shape) for band in state.bands("w")]
    (torch.Size([3, 2]), [(3, 2)])
    """

    def __init__(self, types: Mapping[str, Tensor], rows: Rows) -> None:
        self.types, self._rows = types, rows

    def __getitem__(self, name: str) -> Tensor:
        return self.rows(name, 0, _count(self.types[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self.types)

    def __len__(self) -> int:
        return len(self.types)

    def __repr__(self) -> str:
        size = sum(value.nbytes for value in self.types.values())
        return f"<LazyState: {len(self)} tensors, {size / 1e6:,.1f} MB>"

    def through(self, transfer: Transfer, *, seed: int = 0) -> LazyState:
        """Apply a transfer lazily: :meth:`Transfer.pull`, computed on access.

        Args:
            transfer: Transfer from the state's architecture to another architecture.
            seed: Seed of the new parameters that the transfer initialises.
        """
        return Pulled(transfer, self, seed=seed)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Compute some rows of a tensor."""
        return self._rows(name, start, stop)

    def bands(self, name: str) -> Iterator[Tensor]:
        """Yield a tensor a few rows at a time, to be concatenated along dimension 0."""
        like = self.types[name]
        count = _count(like)
        step = max(1, BAND * count // max(like.nbytes, 1))
        for start in range(0, count, step):
            yield self.rows(name, start, min(start + step, count))


class Pulled(LazyState):
    """The lazy result of a transfer, with exactly the values of :meth:`Transfer.pull`.

    Args:
        transfer: The transfer.
        state: A lazy state to which the transfer is applied.
        seed: As in :meth:`Transfer.pull`.
    """

    def __init__(self, transfer: Transfer, state: LazyState, *, seed: int = 0) -> None:
        self.transfer, self.source, self._seed = transfer, state, seed
        super().__init__(transfer.pull(state.types), self._whole_rows)

    def _whole_rows(self, name: str, start: int, stop: int) -> Tensor:
        entry = self.transfer.entries[name]
        needed = {} if entry.source is None else {entry.source: self.source[entry.source]}
        value = self.transfer.only({name}).pull(needed, seed=self._seed, copy=False)[name]
        return value if value.dim() == 0 else value[start:stop]

    def bands(self, name: str) -> Iterator[Tensor]:
        """Yield a tensor a few rows at a time.

        If all values are copied from the source, only the needed rows are read each time. Otherwise
        the tensor is computed at once, since sums in another order would change the last bits.
        """
        entry, like = self.transfer.entries[name], self.types[name]
        if entry.source is None or not entry.dims or any(m and m.offsets for m in entry.dims):
            yield self[name]
            return
        origin, first = self.source.types[entry.source], entry.dims[0]
        positions = np.arange(len(origin)) if first is None else first.positions
        step = max(1, BAND * len(origin) // max(origin.nbytes, 1))
        for start in range(0, len(positions), step):
            chosen = positions[start : start + step]
            low, high = int(chosen.min()), int(chosen.max()) + 1
            if high - low > SPARSE * step:  # scattered over the tensor
                yield from _split(self[name][start:], step)
                return
            weights = None if first is None else first.values[start : start + step]
            rows = DimMap.of(chosen - low, high - low, weights)
            part = dataclasses.replace(entry, dims=(rows, *entry.dims[1:]))
            value = self.source.rows(entry.source, low, high)
            yield (value if part.unchanged else part.pull(value)).to(like.dtype)


def _count(like: Tensor) -> int:
    return len(like) if like.dim() else 1


def _split(value: Tensor, step: int) -> Iterator[Tensor]:
    return iter(value.split(step))
