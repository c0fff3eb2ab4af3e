"""Coverage: for each value of a state, the total weight of the clients whose model contains it."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from archgraph.states.dimension_map import DimMap, Vector
from archgraph.states.entry import Entry

# With more bands of equal coverage than this, divide by a dense tensor instead of band by band.
MAX_BANDS = 64

# A sum of at most this many values is divided by a dense tensor, since every band costs a call.
SMALL = 2**12

# A division with at most this many numbers is cached for the next rounds.
KEPT = 2**17

_Edges: TypeAlias = npt.NDArray[np.int64]
_Cells: TypeAlias = npt.NDArray[Any]
# For each dimension the edges of its cells (0, …, extent), and the table of the cells' values.
Grid: TypeAlias = tuple[tuple[_Edges, ...], Vector]
Slices: TypeAlias = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Term:
    """One term of a coverage: the contribution of one parameter or buffer of an update.

    The contribution is an outer product of vectors, one per dimension, times a factor.

    Attributes:
        factor: Factor on the outer product.
        dims: Maps of the update's entry, one per dimension.
        rows: Weights along the first dimension of the update's entry; empty if all are one.
    """

    factor: float
    dims: tuple[DimMap | None, ...]
    rows: tuple[float, ...] = ()

    @staticmethod
    def of(entry: Entry, weight: float = 1.0, rows: tuple[float, ...] = ()) -> Term:
        """Return the contribution of an entry with a weight to the coverage of its source."""
        # |A|ᵀ|A| 1 contains the scale twice, as push(pull(θ)) does.
        return Term(weight * entry.scale**2, entry.dims, rows)

    def steps(self) -> Iterator[SteppedVector | None]:
        """Yield the vectors of the outer product, without the factor; None for a vector of ones."""
        for dim, map_ in enumerate(self.dims):
            if self.rows and dim == 0:
                rows = np.asarray(self.rows)
                yield SteppedVector.of(rows if map_ is None else map_.coverage(rows))
            else:
                yield None if map_ is None else _steps(map_)


class SteppedVector(NamedTuple):
    """A vector and the positions where its value changes."""

    vector: Vector
    edges: tuple[int, ...]

    @staticmethod
    def of(vector: Vector) -> SteppedVector:
        """Find the positions where a vector changes."""
        changes = np.flatnonzero(vector[1:] != vector[:-1]) + 1
        return SteppedVector(vector, tuple(changes.tolist()))


@functools.lru_cache(maxsize=1024)
def _steps(map_: DimMap) -> SteppedVector:
    """Return the coverage of a map; cached, since it is the same in every round."""
    return SteppedVector.of(map_.coverage())


@dataclass(frozen=True, eq=False)
class Division:
    """How to divide a sum of updates by its coverage.

    Attributes:
        bands: Slices along the first dimension, each with the divisor for its rows. The divisor is
            1 for values that no update covers.
        uncovered: Regions of values that no update covers, as slices.
        covered: Mask of the covered values, if there are too many such regions; else None.
    """

    bands: list[tuple[slice, Tensor]]
    uncovered: list[Slices]
    covered: Tensor | None


class Coverage(Mapping[str, Tensor]):
    """Read-only dict from tensor name to the total weight of the clients that have each value.

    The weights of a parameter or buffer are a float64 tensor of the same shape. It is computed on
    access from a sum of outer products. If all values have the same weight, the tensor is an
    expanded view of one number.

    Args:
        shapes: Dict from name to shape.
        terms: Dict from name to the terms of the sum; without terms, no value is covered.

    >>> term = Term.of(Entry("w", (DimMap.of(range(2), 4), None)), weight=5)
    >>> coverage = Coverage({"w": (4, 3)}, {"w": [term]})
    >>> coverage["w"][:, 0].tolist(), coverage.share("w")
    ([5.0, 5.0, 0.0, 0.0], 0.5)
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], terms: Mapping[str, Sequence[Term]]
    ) -> None:
        self._shapes = dict(shapes)
        self._terms = {name: tuple(terms.get(name, ())) for name in shapes}
        self._unit = 1.0
        # Entries of equal shape and coverage (all norms of a width) share their grid. Maps are
        # distinguished by identity: the terms keep them alive, and hashing them takes longer.
        self._grids: dict[tuple[object, ...], Grid] = {}
        self._divisions: dict[tuple[object, ...], Division] = {}

    @staticmethod
    def of(shapes: Mapping[str, tuple[int, ...]], entries: Iterable[Entry]) -> Coverage:
        """Return the coverage of a transfer's source: how often the transfer uses each value."""
        terms: dict[str, list[Term]] = {}
        for entry in entries:
            if entry.source is not None:
                terms.setdefault(entry.source, []).append(Term.of(entry))
        return Coverage(shapes, terms)

    def __getitem__(self, name: str) -> Tensor:
        bounds, table = self.grid(name)
        return torch.from_numpy(_stretched(table, bounds)).expand(self._shapes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def grid(self, name: str) -> Grid:
        """Return the coverage of a tensor as a grid of cells with constant values."""
        key = self._key(name)
        if key not in self._grids:
            self._grids[key] = _grid(self._shapes[name], self._terms[name])
        bounds, table = self._grids[key]
        return bounds, np.asarray(table * self._unit)

    def division(self, name: str, dtype: torch.dtype) -> Division:
        """Return how to divide a sum of this dtype by its coverage."""
        key = (*self._key(name), dtype)
        if key not in self._divisions:
            shape, terms = self._shapes[name], self._terms[name]
            known = _light_division(shape, terms, self._unit, dtype)
            self._divisions[key] = known or _division(self.grid(name), shape, dtype)
        return self._divisions[key]

    def even(self, name: str) -> float | None:
        """Return the coverage of a tensor if it is the same for all values, else None."""
        for term in self._terms[name]:
            if term.rows or any(term.dims):
                return None
        return sum(term.factor for term in self._terms[name]) * self._unit

    def times(self, factor: float) -> Coverage:
        """Return this coverage with every weight multiplied by a factor."""
        result = Coverage(self._shapes, self._terms)
        result._unit = self._unit * factor
        return result

    def share(self, name: str) -> float:
        """Return the fraction of a tensor's values that any update covers, 0 to 1."""
        bounds, table = self.grid(name)
        sizes: _Cells = np.asarray(1)
        for edges in bounds:
            sizes = np.multiply.outer(sizes, np.diff(edges))
        return float((sizes * (table > 0)).sum() / max(sizes.sum(), 1))

    def _key(self, name: str) -> tuple[object, ...]:
        """Return a key that entries with equal coverage share."""
        terms = [(id(term.dims), term.factor, term.rows) for term in self._terms[name]]
        return (self._shapes[name], *terms)

    def __repr__(self) -> str:
        full = sum(self.share(name) == 1 for name in self)
        return f"Coverage({full} of {len(self)} entries covered everywhere)"


def _grid(shape: tuple[int, ...], terms: tuple[Term, ...]) -> Grid:
    """Sum outer products on the coarsest grid whose cells each have a single value.

    The grid has an edge wherever the vector of any product changes. The value of a cell is the sum
    of the products at its lower corner.
    """
    products = [(term.factor, list(term.steps())) for term in terms]
    bounds = []
    for dim, extent in enumerate(shape):
        cuts = {edge for _, axes in products if (steps := axes[dim]) for edge in steps.edges}
        bounds.append(np.array([0, *sorted(cuts), extent]))
    table = np.zeros([len(edges) - 1 for edges in bounds])
    for factor, axes in products:
        part = np.asarray(factor)
        for edges, steps in zip(bounds, axes, strict=True):
            if steps is not None and len(steps.vector):
                part = np.multiply.outer(part, steps.vector[edges[:-1]])
            else:
                part = part[..., None]
        table += part
    return tuple(bounds), table


def _boxes(
    bounds: Sequence[list[int]], table: Any, outer: Slices = ()
) -> Iterator[tuple[Slices, float]]:
    """Yield cells of a table (nested lists) as boxes, joining equal neighbours along each axis."""
    if not bounds:
        yield outer, table
        return
    edges, start = bounds[0], 0
    for stop in range(1, len(table) + 1):
        if stop == len(table) or table[stop] != table[start]:
            yield from _boxes(bounds[1:], table[start], (*outer, slice(edges[start], edges[stop])))
            start = stop


@functools.lru_cache(maxsize=256)
def _light_division(
    shape: tuple[int, ...], terms: tuple[Term, ...], unit: float, dtype: torch.dtype
) -> Division | None:
    """Return a division by a few bands, usually the same every round; None if it is a large one."""
    bounds, table = _grid(shape, terms)
    # Large ones come from scattered positions, which differ in every round.
    if table.shape[:1] > (MAX_BANDS,) or table.size > KEPT:
        return None
    division = _division((bounds, table * unit), shape, dtype)
    numbers = sum(divisor.numel() for _, divisor in division.bands)
    return division if numbers <= KEPT and division.covered is None else None


def _division(grid: Grid, shape: tuple[int, ...], dtype: torch.dtype) -> Division:
    """Compute a :class:`Division`. Each band is divided by one row, which stays cached."""
    bounds, table = grid
    covered = table > 0
    divisors = np.where(covered, table, 1.0)
    edges = bounds[0].tolist()
    starts = [0, *(i for i in range(1, len(table)) if (divisors[i] != divisors[i - 1]).any())]
    bands = []
    if math.prod(shape) > SMALL and len(starts) <= MAX_BANDS:
        for start, stop in itertools.pairwise([*starts, len(table)]):
            row = _dense(divisors[start], bounds[1:], shape[1:]).to(dtype)
            bands.append((slice(edges[start], edges[stop]), row))
    else:
        bands.append((slice(None), _dense(divisors, bounds, shape).to(dtype)))
    if covered.all():
        return Division(bands, [], None)
    if table.size > MAX_BANDS:
        return Division(bands, [], _dense(covered, bounds, shape))
    boxes = _boxes([part.tolist() for part in bounds], covered.tolist())
    return Division(bands, [box for box, reached in boxes if not reached], None)


def _stretched(table: _Cells, bounds: Iterable[_Edges]) -> _Cells:
    """Repeat each cell of a table to its size, except along dimensions with a single cell."""
    for dim, edges in enumerate(bounds):
        if len(edges) > 2:
            table = np.repeat(table, np.diff(edges), axis=dim)
    return table


def _dense(table: _Cells, bounds: Iterable[_Edges], shape: tuple[int, ...]) -> Tensor:
    """Expand each cell of a table to its size."""
    return torch.from_numpy(np.array(np.broadcast_to(_stretched(table, bounds), shape)))
