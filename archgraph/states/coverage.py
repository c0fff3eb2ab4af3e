"""How much of a source state some entries cover, as a sum of outer products."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from archgraph.states.dimension_map import DimMap, Vector
from archgraph.states.entry import Entry

# Per dimension the edges of cells (0, …, extent), and the table of the cells' values.
Grid: TypeAlias = tuple[tuple[npt.NDArray[np.int64], ...], Vector]
Slices: TypeAlias = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Term:
    """A share of one entry's coverage: what one target entry gives its source entry.

    Attributes:
        factor: Of the whole entry.
        dims: The target entry's maps.
        rows: Weights along the target entry's first dimension; empty: ones.
    """

    factor: float
    dims: tuple[DimMap | None, ...]
    rows: tuple[float, ...] = ()

    @staticmethod
    def of(entry: Entry, weight: float = 1.0, rows: tuple[float, ...] = ()) -> Term:
        """The coverage that an entry gives its source when it counts this much."""
        return Term(weight * entry.scale**2, entry.dims, rows)

    def vectors(self) -> Iterator[Vector | None]:
        """The vectors of the outer product that it is, ``None`` for ones; without the factor."""
        for dim, map_ in enumerate(self.dims):
            rows = np.asarray(self.rows) if self.rows and dim == 0 else None
            yield rows if map_ is None else map_.coverage(rows)


class Coverage(Mapping[str, Tensor]):
    """How much reached each position, by entry name: dense float64 tensors, made when looked up.

    Stored is the sum of outer products that the coverage consists of; an entry that is covered
    evenly is looked up as one number, expanded.

    Args:
        shapes: Of every entry.
        terms: What covers them; an entry without terms is not covered.

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
        # Entries of one shape that are covered alike (all norms of a width) share their grid. Maps
        # are told apart by identity: the terms keep them alive, and hashing them takes longer.
        self._grids: dict[tuple[Any, ...], tuple[Grid, list[tuple[Slices, float]]]] = {}

    @staticmethod
    def of(shapes: Mapping[str, tuple[int, ...]], entries: Iterable[Entry]) -> Coverage:
        """What entries of a transfer cover of its source."""
        terms: dict[str, list[Term]] = {}
        for entry in entries:
            if entry.source is not None:
                terms.setdefault(entry.source, []).append(Term.of(entry))
        return Coverage(shapes, terms)

    def __getitem__(self, name: str) -> Tensor:
        bounds, table = self.grid(name)
        for dim, edges in enumerate(bounds):
            if len(edges) > 2:
                table = np.repeat(table, np.diff(edges), axis=dim)
        return torch.from_numpy(np.array(table)).expand(self._shapes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def grid(self, name: str) -> Grid:
        """The coverage of an entry as cells of equal value."""
        bounds, table = self._alike(name)[0]
        return bounds, np.asarray(table * self._unit)

    def boxes(self, name: str, limit: int) -> list[tuple[Slices, float]]:
        """The coverage of an entry as disjoint boxes that fill it, each of one value."""
        (bounds, table), boxes = self._alike(name)
        if not boxes and table.size <= limit:
            edges = [part.tolist() for part in bounds]
            boxes.extend(_boxes(edges, (table * self._unit).tolist()))
        return boxes

    def times(self, factor: float) -> Coverage:
        """The coverage, every weight multiplied."""
        result = Coverage(self._shapes, self._terms)
        result._unit = self._unit * factor
        return result

    def share(self, name: str) -> float:
        """Fraction of an entry's positions that anything reached, 0 to 1."""
        bounds, table = self.grid(name)
        sizes: npt.NDArray[Any] = np.asarray(1)
        for edges in bounds:
            sizes = np.multiply.outer(sizes, np.diff(edges))
        return float((sizes * (table > 0)).sum() / max(sizes.sum(), 1))

    def _alike(self, name: str) -> tuple[Grid, list[tuple[Slices, float]]]:
        shape, terms = self._shapes[name], self._terms[name]
        key = (shape, *[(id(term.dims), term.factor, term.rows) for term in terms])
        if key not in self._grids:
            self._grids[key] = _grid(shape, terms), []
        return self._grids[key]

    def __repr__(self) -> str:
        full = sum(self.share(name) == 1 for name in self)
        return f"Coverage({full} of {len(self)} entries covered everywhere)"


def _grid(shape: tuple[int, ...], terms: tuple[Term, ...]) -> Grid:
    """The sum of outer products, on the coarsest grid whose cells have one value each.

    An edge stands where the vector of any product changes; a cell's value is the sum over the
    products of their vectors' values at its lower corner.
    """
    products = [(term.factor, list(term.vectors())) for term in terms]
    bounds = []
    for dim, extent in enumerate(shape):
        changes = np.zeros(max(extent - 1, 0), dtype=bool)
        for _, vectors in products:
            if (vector := vectors[dim]) is not None:
                changes |= vector[1:] != vector[:-1]
        bounds.append(np.concatenate(([0], np.flatnonzero(changes) + 1, [extent])))
    table = np.zeros([len(edges) - 1 for edges in bounds])
    for factor, vectors in products:
        part = np.asarray(factor)
        for edges, vector in zip(bounds, vectors, strict=True):
            cells = np.ones(len(edges) - 1)
            if vector is not None and len(vector):
                cells = vector[edges[:-1]]
            part = np.multiply.outer(part, cells)
        table += part
    return tuple(bounds), table


def _boxes(
    bounds: Sequence[list[int]], table: Any, outer: Slices = ()
) -> Iterator[tuple[Slices, float]]:
    """Cells of a table (nested lists) as boxes, equal neighbours along an axis joined."""
    if not bounds:
        yield outer, table
        return
    edges, start = bounds[0], 0
    for stop in range(1, len(table) + 1):
        if stop == len(table) or table[stop] != table[start]:
            here = slice(edges[start], edges[stop])
            yield from _boxes(bounds[1:], table[start], (*outer, here))
            start = stop
