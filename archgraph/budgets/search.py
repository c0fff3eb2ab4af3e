"""Search for the sizes and blocks of a submodel within budgets, with exact cost polynomials.

A *width* is a group of axes that are cut together (:class:`~archgraph.budgets.widths.AxisGroup`).
Its size is counted in units, equal parts into which each of its axes is divided. The search keeps
the proportions between widths, since without scores no width is known to be more important than
another.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from archgraph.analysis.cost_polynomial import CostPart

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]


# A width first grows in steps of about 1 / STEPS of its grid of sizes.
STEPS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Submodel:
    """The sizes and the removed blocks that define a submodel.

    Attributes:
        at: For each width, the index of its size in its list of possible sizes. Shape ``[width]``.
        skipped: Names of the removed blocks.
    """

    at: Ints
    skipped: frozenset[str] = frozenset()


class Tally:
    """The cost polynomial of one measure, as NumPy arrays for fast evaluation.

    Args:
        parts: The terms of the measure's cost polynomial.
        widths: Dict from axis to the index of its width, and the number of the axis' positions in a
            unit. For an axis that is not cut, the pair is ``count`` and the axis' size.
        count: Number of widths.
        blocks: Dict from each removable block to the axes that are removed with it.
    """

    def __init__(
        self,
        parts: Sequence[CostPart],
        widths: Mapping[str, tuple[int, int]],
        count: int,
        blocks: Mapping[str, tuple[str, ...]],
    ) -> None:
        self.parts, self.blocks, self.count = parts, blocks, count
        terms = [
            (p, m, c) for p, part in enumerate(parts) for m, c in part.polynomial.terms.items()
        ]
        self.part = np.array([p for p, _, _ in terms], dtype=np.int64)
        self.monomials = [m for _, m, _ in terms]
        scaled = [c * math.prod(widths[name][1] for name in m) for _, m, c in terms]
        self.coefficients = np.array(scaled, dtype=np.float64)
        degree = max((len(m) for m in self.monomials), default=0)
        # Factors of each term. Terms with fewer factors are padded with index `count`, of size 1.
        self.factors = np.full((len(terms), degree), self.count)
        places: dict[tuple[int, int], int] = {}  # (term, width): exponent
        for term, monomial in enumerate(self.monomials):
            for column, name in enumerate(monomial):
                width = self.factors[term, column] = widths[name][0]
                if width < count:
                    places[term, width] = places.get((term, width), 0) + 1
        self.term, self.width = (np.array([k[i] for k in places], dtype=np.int64) for i in (0, 1))
        self.exponent = np.array(list(places.values()), dtype=np.float64)
        self.active: dict[frozenset[str], Floats] = {}

    def there(self, skipped: frozenset[str]) -> Floats:
        """Return the coefficients of all terms; 0 for terms of removed blocks."""
        if skipped not in self.active:
            gone = {name for block in skipped for name in self.blocks[block]}
            stays = np.array([part.there(skipped) for part in self.parts])[self.part]
            if gone:
                stays &= [gone.isdisjoint(monomial) for monomial in self.monomials]
            self.active[skipped] = self.coefficients * stays
        return self.active[skipped]

    def terms(self, sizes: Floats, skipped: frozenset[str]) -> Floats:
        """Return the value of every term."""
        padded = np.append(sizes, 1.0)
        values: Floats = self.there(skipped) * padded[self.factors].prod(axis=1)
        return values

    def value(self, sizes: Floats, skipped: frozenset[str]) -> float:
        """Return the cost. It is exact if it is an integer below 2⁵³."""
        return float(self.terms(sizes, skipped).sum())

    def changes(self, sizes: Floats, others: Floats, skipped: frozenset[str]) -> Floats:
        """Return the cost change for each width if only that width takes its size in ``others``."""
        ratio = (others / sizes)[self.width] ** self.exponent - 1
        weights = self.terms(sizes, skipped)[self.term] * ratio
        changes: Floats = np.bincount(self.width, weights, minlength=self.count).astype(np.float64)
        return changes

    def elasticity(self, sizes: Floats) -> Floats:
        """Return the elasticity of the cost in each width, ∂log cost / ∂log size."""
        terms = self.terms(sizes, frozenset())
        weights = terms[self.term] * self.exponent
        return np.bincount(self.width, weights, minlength=self.count) / max(terms.sum(), 1.0)


@dataclass(frozen=True)
class Search:
    """A search for submodels within budgets.

    Attributes:
        tallies: Dict from measure to its :class:`Tally`.
        limits: Dict from each measure with a budget to the largest allowed cost.
        grids: For each width, its possible sizes in ascending order, ending with its full size.
        shares: For each width, the fraction of its positions, or of their scores, that each
            possible size keeps. At the full size, the fraction is 1.
        losses: For each width, the penalty for each possible size: −log of the fraction in
            ``shares``, times the elasticity of the costs in this width. At the full size, the
            penalty is 0.
        depths: For each section, its number of blocks and the names of its removable blocks, in the
            order in which they are removed.
    """

    tallies: Mapping[str, Tally]
    limits: Mapping[str, int]
    grids: Sequence[Ints]
    shares: Sequence[Floats]
    losses: Sequence[Floats]
    depths: Sequence[tuple[int, Sequence[str]]] = ()

    def sizes(self, at: Ints) -> Floats:
        """Return the sizes of all widths from their indices in the grids."""
        chosen = (grid[i] for grid, i in zip(self.grids, at, strict=True))
        return np.fromiter(chosen, dtype=np.float64, count=len(at))

    def lost(self, at: Ints) -> Floats:
        """Return the penalty (see ``losses``) for the size of each width."""
        chosen = (loss[i] for loss, i in zip(self.losses, at, strict=True))
        return np.fromiter(chosen, dtype=np.float64, count=len(at))

    @property
    def start(self) -> Submodel:
        """The full network, as a submodel."""
        return Submodel(np.array([len(grid) - 1 for grid in self.grids], dtype=np.int64))

    def exceeded(self, point: Submodel) -> tuple[str, ...]:
        """Return the measures whose budget a submodel exceeds."""
        sizes = self.sizes(point.at)
        values = {m: self.tallies[m].value(sizes, point.skipped) for m in self.limits}
        return tuple(m for m, value in values.items() if value > self.limits[m])

    def smallest(self) -> Submodel:
        """Return the submodel with the smallest widths and without removable blocks."""
        skipped = frozenset(name for _, names in self.depths for name in names)
        return Submodel(np.zeros(len(self.grids), dtype=np.int64), skipped)

    def by_share(self, *, uniform: bool) -> Iterator[Submodel]:
        """Yield submodels within the budgets, each defined by one fraction for all widths.

        1. Let the fraction decrease from 1 to 0. Each width has the smallest possible size that is
           at least this fraction of the width, and each section the smallest such number of blocks.
        2. If several widths change at the same fraction, they change one after the other.
        3. Each change makes the submodel cheaper, so bisection finds the first submodel that fits.
           If ``uniform`` is True, submodels between two changes at the same fraction are skipped.
        """
        shares = [share[:-1] for share in self.shares]  # where each width moves down
        shares += [np.arange(n - 1, n - 1 - len(names), -1) / n for n, names in self.depths]
        mover = np.repeat(np.arange(len(shares)), [len(s) for s in shares])
        falls = np.concatenate([np.sort(s)[::-1] for s in shares]) if shares else np.zeros(0)
        order = np.argsort(-falls, kind="stable")
        mover, falls = mover[order], falls[order]
        widths = len(self.grids)

        def point(changes: int) -> Submodel:
            counts = np.bincount(mover[:changes], minlength=len(shares))
            gone = zip(self.depths, counts[widths:], strict=True)
            skipped = frozenset(name for (_, names), n in gone for name in names[:n])
            return Submodel(self.start.at - counts[:widths], skipped)

        complete = np.append(falls[1:] != falls[:-1], [True] if len(falls) else [])
        numbers = [0, *(np.flatnonzero(complete if uniform else np.ones(len(falls))) + 1)]
        first = bisect.bisect_left(numbers, True, key=lambda n: not self.exceeded(point(int(n))))
        yield from (point(int(number)) for number in numbers[first:])

    def filled(self, point: Submodel, last: Ints | None = None) -> Submodel:
        """Widen single widths of a submodel until no width can be wider within the budgets.

        In each step, the width with the largest decrease of the penalty per additional cost is
        widened.

        Args:
            point: The submodel.
            last: For each width, the largest allowed index. Default: the index of its full size.
        """
        at = point.at.copy()
        longest = max((len(grid) for grid in self.grids), default=1)
        stride = 1 << max(longest // STEPS, 1).bit_length()
        last = self.start.at if last is None else last
        while stride:
            sizes, higher = self.sizes(at), np.minimum(at + stride, last)
            others = self.sizes(higher)
            fits, spent = higher > at, np.zeros(len(at))
            for measure, limit in self.limits.items():
                tally = self.tallies[measure]
                changes = tally.changes(sizes, others, point.skipped)
                fits &= changes <= limit - tally.value(sizes, point.skipped)
                spent += changes / max(limit, 1)
            gains = self.lost(at) - self.lost(higher)
            fits &= spent > 0  # a width of removed blocks costs nothing
            if not fits.any():
                stride //= 2
                continue
            best = int(np.where(fits, gains / np.where(fits, spent, 1.0), -np.inf).argmax())
            at[best] = higher[best]
        return Submodel(at, point.skipped)

    def narrower(self, point: Submodel) -> Iterator[Submodel]:
        """Yield a submodel, then variants with one width a step smaller and other widths larger."""
        yield point
        for width in np.flatnonzero(point.at):
            at, last = point.at.copy(), self.start.at
            at[width] = last[width] = at[width] - 1
            yield self.filled(Submodel(at, point.skipped), last)
