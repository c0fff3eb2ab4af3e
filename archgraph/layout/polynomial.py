"""Polynomials of named sizes: what an operator costs, whatever it is cut to."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

Monomial: TypeAlias = tuple[str, ...]
"""Names in order; one that stands twice is squared."""


@dataclass(frozen=True, slots=True)
class Polynomial:
    """A sum of products of sizes.

    Attributes:
        terms: Coefficient, not 0, by monomial.

    Example:
        >>> out, inside = Polynomial.of("out"), Polynomial.of("in")
        >>> weight = 9 * out * inside + out
        >>> print(weight)
        9·in·out + out
        >>> weight.value({"out": 4, "in": 3})
        112
    """

    terms: Mapping[Monomial, int]

    @classmethod
    def of(cls, name: str) -> Polynomial:
        """Return the polynomial that is one size."""
        return cls({(name,): 1})

    @classmethod
    def total(cls, amounts: Iterable[Polynomial | int]) -> Polynomial:
        """Return the sum of many, in time proportional to their terms.

        >>> print(Polynomial.total([Polynomial.of("out"), 3, Polynomial.of("out")]))
        2·out + 3
        """
        return _collected(term for amount in amounts for term in _terms(amount))

    @property
    def names(self) -> frozenset[str]:
        """The sizes that occur in it."""
        return frozenset(name for monomial in self.terms for name in monomial)

    def value(self, sizes: Mapping[str, int]) -> int:
        """Return the value at sizes; all that occur must be there."""
        return sum(
            factor * math.prod(sizes[name] for name in monomial)
            for monomial, factor in self.terms.items()
        )

    def without(self, names: Collection[str]) -> Polynomial:
        """Return the polynomial where some sizes are zero."""
        return Polynomial({m: c for m, c in self.terms.items() if not any(n in names for n in m)})

    def __add__(self, other: Polynomial | int) -> Polynomial:
        return _collected([*self.terms.items(), *_terms(other)])

    __radd__ = __add__

    def __mul__(self, other: Polynomial | int) -> Polynomial:
        return _collected(
            (tuple(sorted(a + b)), x * y) for a, x in self.terms.items() for b, y in _terms(other)
        )

    __rmul__ = __mul__

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __str__(self) -> str:
        texts = []
        for monomial, factor in sorted(self.terms.items(), key=lambda item: (-len(item[0]), item)):
            parts = [f"{factor:,}"] if factor != 1 or not monomial else []
            texts.append("·".join((*parts, *monomial)))
        return " + ".join(texts) or "0"


def _terms(value: Polynomial | int) -> list[tuple[Monomial, int]]:
    return list(value.terms.items()) if isinstance(value, Polynomial) else [((), value)]


def _collected(terms: Iterable[tuple[Monomial, int]]) -> Polynomial:
    total: dict[Monomial, int] = {}
    for monomial, factor in terms:
        total[monomial] = total.get(monomial, 0) + factor
    return Polynomial({monomial: factor for monomial, factor in total.items() if factor})
