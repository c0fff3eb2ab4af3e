"""Linear maps from one dimension of a tensor to another, for example a choice of channels.

A :class:`DimMap` is a sparse matrix in a canonical form, so that equal maps compare equal. Composed
maps are maps again. A transfer is a Kronecker product of such maps for each parameter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from archgraph.errors import RewriteError

PositionArray: TypeAlias = "Sequence[int] | npt.NDArray[np.int64]"
Vector: TypeAlias = npt.NDArray[np.float64]
Segment: TypeAlias = tuple[int, int, int]  # start, stop, step

# A selection with more contiguous runs than this, or with shorter ones, is gathered by index.
MAX_RUNS = 64
MIN_RUN = 4


def _pack(values: npt.NDArray[Any], dtype: str) -> bytes:
    return np.ascontiguousarray(values, dtype=dtype).tobytes()


@dataclass(frozen=True, slots=True)
class DimMap:
    """The linear map of one dimension: a sparse ``length × size`` matrix in canonical form.

    A position is an index along a dimension. The value at target position ``i`` is the sum ``Σ_k
    weight[k] · source[position[k]]`` over the terms ``k`` of ``i``. A map that selects or
    replicates has one term per target position. A map with several terms is called a fold; without
    a term, the value is zero. Create a map with :meth:`of` or :meth:`sparse`, which return ``None``
    for the identity. Equal maps compare equal.

    Attributes:
        size: Size of the source dimension.
        length: Size of the target dimension.
        runs: Source positions as a few slices ``(start, stop, step)``, in order; empty if ``index``
            is used.
        index: Source positions as packed int64; empty if a few slices describe them.
        weights: Weights as packed float64, one per source position; empty if all are one.
        offsets: Packed int64 of ``length + 1`` bounds: the terms of target position ``i`` are those
            from ``offsets[i]`` to before ``offsets[i + 1]``. Empty if every target position has
            exactly one term.
    """

    size: int
    length: int
    runs: tuple[Segment, ...] = ()
    index: bytes = b""
    weights: bytes = b""
    offsets: bytes = b""

    @staticmethod
    def of(
        positions: PositionArray, size: int, weights: Sequence[float] | Vector | None = None
    ) -> DimMap | None:
        """Return the map that takes these source positions in this order, each with its weight.

        The result is ``None`` for the identity. Arithmetic progressions and a few contiguous ranges
        are stored as slices, all other positions as an index. Positions may repeat.

        Raises:
            RewriteError: If a position lies outside ``0 … size - 1``.

        >>> DimMap.of(range(8), 8) is None
        True
        >>> print(DimMap.of(range(4), 8), DimMap.of([1, 3, 5], 8), DimMap.of([0, 0, 3], 8))
        :4 1:6:2 [0, 0, 3]
        >>> print(DimMap.of([0, 1, 2, 3, 8, 9, 10, 11], 16))
        0:4+8:12
        """
        where = np.asarray(positions, dtype=np.int64).reshape(-1)
        factors = None if weights is None else np.asarray(weights, dtype=np.float64).reshape(-1)
        if factors is not None and factors.shape != where.shape:
            raise RewriteError(f"{len(factors)} weights for {len(where)} positions")
        return DimMap._make(where, size, len(where), factors, None)

    @staticmethod
    def sparse(
        rows: PositionArray,
        columns: PositionArray,
        weights: Sequence[float] | Vector,
        *,
        size: int,
        length: int,
    ) -> DimMap | None:
        """Return the matrix with ``weights`` at (``rows``, ``columns``); duplicates are summed.

        Raises:
            RewriteError: If a row or column lies outside the matrix.

        Example:
            Four units merged into two, the second half averaged:

            >>> print(DimMap.sparse([0, 0, 1, 1], [0, 1, 2, 3], [1, 1, 0.5, 0.5], size=4, length=2))
            fold 4 → 2
        """
        row, column = (np.asarray(index, dtype=np.int64) for index in (rows, columns))
        weight = np.asarray(weights, dtype=np.float64)
        if len(row) and (row.min() < 0 or row.max() >= length):
            raise RewriteError("row outside the map", found=int(row.max()), expected=f"< {length}")
        order = np.lexsort((column, row))
        row, column, weight = row[order], column[order], weight[order]
        if len(row):
            first = np.flatnonzero(np.r_[True, (np.diff(row) != 0) | (np.diff(column) != 0)])
            row, column, weight = row[first], column[first], np.add.reduceat(weight, first)
        # Drop zeros and sort entries, so that equal maps are equal values.
        stays = weight != 0
        row, column, weight = row[stays], column[stays], weight[stays]
        counts = np.bincount(row, minlength=length)
        offsets = None if (counts == 1).all() else np.r_[0, np.cumsum(counts)]
        return DimMap._make(column, size, length, weight, offsets)

    @staticmethod
    def _make(
        where: npt.NDArray[np.int64],
        size: int,
        length: int,
        weights: Vector | None,
        offsets: npt.NDArray[np.int64] | None,
    ) -> DimMap | None:
        if len(where) and (where.min() < 0 or where.max() >= size):
            raise RewriteError(
                "position outside the axis",
                found=int(where.max() if where.min() >= 0 else where.min()),
                expected=f"0 … {size - 1}",
            )
        if weights is not None and (weights == 1).all():
            weights = None
        runs = _runs(where)
        plain = weights is None and offsets is None
        if plain and length == size and runs == (((0, size, 1),) if size else ()):
            return None
        return DimMap(
            size,
            length,
            runs,
            b"" if runs else _pack(where, "<i8"),
            b"" if weights is None else _pack(weights, "<f8"),
            b"" if offsets is None else _pack(offsets, "<i8"),
        )

    @property
    def selects(self) -> bool:
        """Whether every target value is the unscaled value of one source position."""
        return not self.weights and not self.offsets

    @property
    def slices(self) -> bool:
        """Whether the map selects by a few slices, without an index."""
        return self.selects and bool(self.runs)

    @property
    def window(self) -> slice | None:
        """The single slice by which the map selects; None if there is no such slice."""
        return slice(*self.runs[0]) if self.selects and len(self.runs) == 1 else None

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        """Source positions of all terms, in the order of the target positions."""
        if self.runs:
            return np.concatenate([np.arange(*run, dtype=np.int64) for run in self.runs])
        return np.frombuffer(self.index, dtype="<i8").astype(np.int64)

    @property
    def values(self) -> Vector:
        """Weights of all terms."""
        if self.weights:
            return np.frombuffer(self.weights, dtype="<f8").astype(np.float64)
        return np.ones(len(self.positions))

    @property
    def targets(self) -> npt.NDArray[np.int64]:
        """Target positions of all terms."""
        every = np.arange(self.length)
        return np.repeat(every, np.diff(self._bounds)) if self.offsets else every

    @property
    def _bounds(self) -> npt.NDArray[np.int64]:
        return np.frombuffer(self.offsets, dtype="<i8")

    def then(self, other: DimMap) -> DimMap | None:
        """Return the map that applies this one, then the other (``other · self``).

        >>> half, last = DimMap.of(range(4), 8), DimMap.of([2, 3], 4)
        >>> print(half.then(last))
        2:4
        """
        if self.length != other.size:
            raise RewriteError(
                "size of the second map is not the length of the first",
                found=other.size,
                expected=self.length,
            )
        if self.selects and other.selects:
            if len(self.runs) == len(other.runs) == 1:
                # A slice of a slice is a slice. Most compositions (a prefix of a prefix) end here.
                (start, _, step), (first, stop, stride) = self.runs[0], other.runs[0]
                low, high = start + first * step, start + (stop - 1) * step + 1
                width = step * stride if other.length > 1 else 1
                return DimMap(self.size, other.length, ((low, high, width),))
            return DimMap.of(self.positions[other.positions], self.size)
        via, outer = other.positions, other.values
        if self.offsets:
            bounds = self._bounds
            counts = (bounds[1:] - bounds[:-1])[via]
            within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            picked = np.repeat(bounds[:-1][via], counts) + within
            rows, factors = np.repeat(other.targets, counts), np.repeat(outer, counts)
        else:
            picked, rows, factors = via, other.targets, outer
        columns, weights = self.positions[picked], self.values[picked] * factors
        product = DimMap.sparse(rows, columns, weights, size=self.size, length=other.length)
        # Round only composed weights, so that widen followed by net2net's narrow is the identity.
        return None if product is None else product._rounded()

    def _rounded(self) -> DimMap | None:
        """Round weights that are integers up to rounding errors (3 · 1/3)."""
        values = self.values
        integers = np.rint(values)
        values = np.where(np.abs(values - integers) < 1e-12, integers, values)
        return DimMap._make(
            self.positions, self.size, self.length, values, self._bounds if self.offsets else None
        )

    def coverage(self, rows: Vector | None = None) -> Vector:
        """Compute ``|A|ᵀ (rows ∘ |A| 1)``, how often each source position is used.

        Args:
            rows: Weight of each target position. Default: ones.

        >>> DimMap.of([0, 0, 2], 4).coverage().tolist()
        [2.0, 0.0, 1.0, 0.0]
        """
        if window := self.window:
            covered = np.zeros(self.size)
            covered[window] = 1 if rows is None else rows
            return covered
        weights, targets = np.abs(self.values), self.targets
        sums: Vector = np.bincount(targets, weights, minlength=self.length).astype(np.float64)
        if rows is not None:
            sums = sums * rows
        spread = np.bincount(self.positions, sums[targets] * weights, minlength=self.size)
        return spread.astype(np.float64)

    def matrix(self) -> Vector:
        """Return the ``length × size`` matrix.

        >>> DimMap.of([2, 2], 3, weights=[0.5, 0.5]).matrix().tolist()
        [[0.0, 0.0, 0.5], [0.0, 0.0, 0.5]]
        """
        dense = np.zeros((self.length, self.size))
        np.add.at(dense, (self.targets, self.positions), self.values)
        return dense

    def gather(self, x: Tensor, dim: int) -> Tensor:
        """Compute ``A x`` along one dimension as a new tensor.

        Shapes:
            x: ``[…, size, …]`` → ``[…, length, …]``
        """
        if self.slices:
            return torch.cat([x[_at(dim, run)] for run in self.runs], dim)
        if self._dense:
            matrix = torch.from_numpy(self.matrix()).to(x)
            return torch.tensordot(matrix, x, dims=([1], [dim])).movedim(0, dim)
        y = x.index_select(dim, self._tensor(self.positions, x))
        if self.weights:  # scale whole rows: later dimensions may be as short as a kernel
            factors = torch.from_numpy(self.values).to(x)
            y.flatten(dim).mul_(factors.repeat_interleave(math.prod(x.shape[dim + 1 :])))
        if self.offsets:
            y = x.new_zeros((*x.shape[:dim], self.length, *x.shape[dim + 1 :])).index_add_(
                dim, self._tensor(self.targets, x), y
            )
        return y

    def scatter(self, y: Tensor, dim: int, into: Tensor, alpha: float = 1.0) -> None:
        """Add ``alpha · Aᵀ y`` along one dimension to ``into``, in place.

        Shapes:
            y: ``[…, length, …]``; into: ``[…, size, …]``
        """
        if self.slices:
            begin = 0
            for run in self.runs:
                end = begin + len(range(*run))
                into[_at(dim, run)].add_(y[_at(dim, (begin, end, 1))], alpha=alpha)
                begin = end
        elif self._dense:
            matrix = torch.from_numpy(self.matrix()).to(y)
            into.add_(torch.tensordot(matrix, y, dims=([0], [dim])).movedim(0, dim), alpha=alpha)
        elif dim > 0 and self._injective:
            into.add_(self.expand(y, dim), alpha=alpha)
        else:
            if self.offsets:
                y = y.index_select(dim, self._tensor(self.targets, y))
            if self.weights:
                y = y * self._factors(dim, y)
            into.index_add_(dim, self._tensor(self.positions, y), y.to(into.dtype), alpha=alpha)

    def expand(self, y: Tensor, dim: int) -> Tensor:
        """Compute ``Aᵀ y`` along one dimension as a new tensor.

        Shapes:
            y: ``[…, length, …]`` → ``[…, size, …]``
        """
        if self._injective:
            # Gathering with the inverse is several times faster than adding slices one by one.
            if self.weights:
                y = y * self._factors(dim, y)
            inverse = np.full(self.size, self.length)
            inverse[self.positions] = np.arange(self.length)
            nothing = y.new_zeros((*y.shape[:dim], 1, *y.shape[dim + 1 :]))
            padded = torch.cat([y, nothing], dim)
            return padded.index_select(dim, self._tensor(inverse, y))
        wide = y.new_zeros((*y.shape[:dim], self.size, *y.shape[dim + 1 :]))
        self.scatter(y, dim, wide)
        return wide

    @property
    def _injective(self) -> bool:
        """Whether it takes by index and takes no source position twice."""
        if self.slices or self.offsets:
            return False
        return bool(np.bincount(self.positions, minlength=1).max() == 1)

    @property
    def _dense(self) -> bool:
        """Whether a matrix product is cheaper than gathering every weight."""
        return bool(self.offsets) and len(self.positions) > 4 * (self.size + self.length)

    def _factors(self, dim: int, like: Tensor) -> Tensor:
        """Return the weights, shaped to broadcast along a dimension."""
        shape = [-1 if d == dim else 1 for d in range(like.dim())]
        return torch.from_numpy(self.values).to(like).view(shape)

    @staticmethod
    def _tensor(positions: npt.NDArray[np.int64], like: Tensor) -> Tensor:
        return torch.from_numpy(positions).to(like.device)

    def __repr__(self) -> str:
        return f"<DimMap {self.size} → {self.length}: {self}>"

    def __str__(self) -> str:
        if self.offsets:
            return f"fold {self.size} → {self.length}"
        if len(self.runs) == 1:
            start, stop, step = self.runs[0]
            ends = ("" if start == 0 else str(start), "" if stop == self.size else str(stop))
            text = f"{ends[0]}:{ends[1]}" + (f":{step}" if step > 1 else "")
        elif self.runs and len(self.runs) <= 4:
            text = "+".join(f"{start}:{stop}" for start, stop, _ in self.runs)
        elif self.length <= 8:
            text = f"[{', '.join(map(str, self.positions))}]"
        else:
            text = f"[{', '.join(map(str, self.positions[:3]))}, … {self.length} of {self.size}]"
        return f"weighted {text}" if self.weights else text


def _runs(where: npt.NDArray[np.int64]) -> tuple[Segment, ...]:
    """Return a few slices that list these positions in order; empty if none or too many needed."""
    count = len(where)
    if count == 0:
        return ()
    steps = np.diff(where)
    if count == 1 or (steps[0] > 0 and (steps == steps[0]).all()):
        return ((int(where[0]), int(where[-1]) + 1, int(steps[0]) if count > 1 else 1),)
    breaks = np.flatnonzero(steps != 1)
    if len(breaks) >= MAX_RUNS or count < MIN_RUN * (len(breaks) + 1):
        return ()
    starts, stops = where[np.r_[0, breaks + 1]], where[np.r_[breaks, count - 1]] + 1
    return tuple((int(a), int(b), 1) for a, b in zip(starts, stops, strict=True))


def _at(dim: int, run: Segment) -> tuple[slice, ...]:
    return (*[slice(None)] * dim, slice(*run))


def composed(a: DimMap | None, b: DimMap | None) -> DimMap | None:
    """Return the map ``a`` followed by ``b``, where ``None`` is the identity.

    >>> composed(None, None) is None, str(composed(None, DimMap.of([0], 2)))
    (True, ':1')
    """
    if a is None or b is None:
        return b if a is None else a
    return a.then(b)
