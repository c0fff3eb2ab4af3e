"""Polynomials of named sizes, for shapes with open (dynamic) sizes and for costs of operators."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Monomial: TypeAlias = tuple[str, ...]
"""Names of sizes, in sorted order. A name that occurs twice is squared."""


class Quotient(str):
    """A quotient that is rounded down. Its printed form is used as a name in monomials.

    >>> print(Quotient(Polynomial.of("height"), 2))
    height // 2
    """

    dividend: Polynomial
    divisor: Size

    def __new__(cls, dividend: Polynomial, divisor: Size) -> Quotient:
        """Create the name of a quotient."""
        self = super().__new__(cls, f"{_operand(dividend)} // {_operand(divisor)}")
        self.dividend, self.divisor = dividend, divisor
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return Quotient, (self.dividend, self.divisor)


@dataclass(frozen=True, slots=True, repr=False)
class Polynomial:
    """A sum of products of named sizes, some of which may be quotients.

    A size that is a constant is a number, not a polynomial: :func:`as_size` converts constants.

    Attributes:
        terms: Dict from monomial to its nonzero coefficient.

    Example:
        >>> out, inside = Polynomial.of("out"), Polynomial.of("in")
        >>> weight = 9 * out * inside + out
        >>> print(weight)
        9*in*out + out
        >>> weight.value({"out": 4, "in": 3})
        112
    """

    terms: Mapping[Monomial, int]
    _hash: int | None = field(default=None, init=False, repr=False, compare=False)

    @staticmethod
    @functools.lru_cache(maxsize=1 << 12)
    def of(name: str) -> Polynomial:
        """Return the polynomial that consists of a single size."""
        return Polynomial({(name,): 1})

    @classmethod
    def total(cls, amounts: Iterable[Polynomial | int]) -> Polynomial:
        """Return the sum of many polynomials and numbers, in time linear in the number of terms.

        >>> print(Polynomial.total([Polynomial.of("out"), 3, Polynomial.of("out")]))
        2*out + 3
        """
        return _collected(term for amount in amounts for term in _terms(amount))

    @property
    def names(self) -> frozenset[str]:
        """Names of the sizes that occur in the polynomial, including those inside quotients."""
        names: set[str] = set()
        for name in {name for monomial in self.terms for name in monomial}:
            if isinstance(name, Quotient):
                names.update(*(sizes_in(part) for part in (name.dividend, name.divisor)))
            else:
                names.add(name)
        return frozenset(names)

    def value(self, sizes: Mapping[str, int]) -> int:
        """Evaluate the polynomial; ``sizes`` must have a value for each of :attr:`names`."""
        return sum(
            factor * math.prod(_value(name, sizes) for name in monomial)
            for monomial, factor in self.terms.items()
        )

    def replaced(self, sizes: Mapping[str, Size]) -> Size:
        """Return the polynomial with some names replaced by other sizes."""
        return as_size(
            Polynomial.total(
                factor * math.prod((_replaced(name, sizes) for name in monomial), start=ONE)
                for monomial, factor in self.terms.items()
            )
        )

    def without(self, names: Collection[str]) -> Polynomial:
        """Return the polynomial with some sizes set to zero."""
        return Polynomial({m: c for m, c in self.terms.items() if not any(n in names for n in m)})

    def __add__(self, other: Polynomial | int) -> Polynomial:
        return _collected([*self.terms.items(), *_terms(other)])

    __radd__ = __add__

    def __sub__(self, other: Polynomial | int) -> Polynomial:
        return self + -1 * other

    def __rsub__(self, other: int) -> Polynomial:
        return -1 * self + other

    def __mul__(self, other: Polynomial | int) -> Polynomial:
        return _collected(
            (tuple(sorted(a + b)), x * y) for a, x in self.terms.items() for b, y in _terms(other)
        )

    __rmul__ = __mul__

    def __floordiv__(self, other: Size) -> Size:
        return floor_divide(self, other)

    def __rfloordiv__(self, other: int) -> Size:
        return floor_divide(other, self)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Polynomial) and self.terms == other.terms

    def __hash__(self) -> int:
        if self._hash is None:
            object.__setattr__(self, "_hash", hash(frozenset(self.terms.items())))
        assert self._hash is not None
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        return Polynomial, (dict(self.terms),)  # hashes of strings differ between processes

    def __str__(self) -> str:
        text = ""
        for monomial, factor in sorted(self.terms.items(), key=lambda item: (-len(item[0]), item)):
            sign = "-" if factor < 0 else "+"
            # `-n // 2` would be the quotient of -n, and `-n` alone the name of a leaf.
            text += (
                f" {sign} {_product(monomial, abs(factor))}" if text else _product(monomial, factor)
            )
        return text or "0"

    __repr__ = __str__


Size: TypeAlias = int | Polynomial
ONE = Polynomial({(): 1})


def as_size(size: Size) -> Size:
    """Convert a constant polynomial to a number, and return other sizes unchanged.

    >>> as_size(Polynomial.of("batch") - Polynomial.of("batch") + 3)
    3
    """
    if isinstance(size, Polynomial) and not any(size.terms):
        return size.terms.get((), 0)
    return size


def sizes_in(size: Size) -> frozenset[str]:
    """Return the names of open sizes that occur in a size.

    >>> sorted(sizes_in(Polynomial.of("height") // 2 * Polynomial.of("batch"))), sizes_in(3)
    (['batch', 'height'], frozenset())
    """
    return size.names if isinstance(size, Polynomial) else frozenset()


def divide(a: Size, b: Size) -> Size | None:
    """Return the quotient of two sizes; None if the division has a remainder.

    >>> batch = Polynomial.of("batch")
    >>> divide(12, 4), divide(12, 5), str(divide(64 * batch, 16)), divide(6 * batch, 2 * batch)
    (3, None, '4*batch', 3)

    1. Numbers divide each coefficient.
    2. For polynomials, repeatedly divide the leading term of the remainder by the leading term of
       the divisor.
    """
    if isinstance(b, int):  # 1.
        if not isinstance(a, Polynomial):
            return a // b if b and a % b == 0 else None
        divides = b and all(factor % b == 0 for factor in a.terms.values())
        return Polynomial({m: c // b for m, c in a.terms.items()}) if divides else None
    if not isinstance(a, Polynomial):
        return None if a else 0
    lead, factor = max(b.terms.items(), key=_degree)  # 2.
    quotient, rest = Polynomial({}), a
    while rest.terms:
        monomial, count = max(rest.terms.items(), key=_degree)
        names = list(monomial)
        for name in lead:
            if name not in names:
                return None
            names.remove(name)
        if count % factor:
            return None
        term = Polynomial({tuple(names): count // factor})
        quotient, rest = quotient + term, rest - term * b
    return as_size(quotient)


def floor_divide(a: Size, b: Size) -> Size:
    """Return the quotient of two sizes, rounded down, in canonical form.

    >>> height = Polynomial.of("height")
    >>> print((height - 1) // 2 + 1, height // 2 // 2, (4 * height + 3) // 8, sep=", ")
    (height + 1) // 2, height // 4, height // 2

    1. An exact quotient is not rounded.
    2. If the divisor is a number, take its multiples in each coefficient out of the quotient.
    3. Cancel factors that the divisor shares with all terms except the constant.
    4. Replace a nested quotient: ⌊(⌊n / a⌋ + r) / b⌋ = ⌊(n + a·r) / (a·b)⌋.
    """
    exact = divide(a, b)  # 1.
    if exact is not None:
        return exact
    if not isinstance(a, Polynomial):
        return a // b if isinstance(b, int) else as_size(_atom(ONE * a, b))
    if not isinstance(b, int):
        return _atom(a, b)
    outside = Polynomial({m: c // b for m, c in a.terms.items() if c // b})  # 2.
    inside = Polynomial({m: c % b for m, c in a.terms.items() if c % b})
    shared = math.gcd(b, *(c for m, c in inside.terms.items() if m))  # 3.
    if shared > 1:
        reduced = Polynomial({m: c // shared for m, c in inside.terms.items() if c // shared})
        return as_size(outside + floor_divide(as_size(reduced), b // shared))
    return as_size(outside + _rounded(inside, b))  # 4.


def _rounded(dividend: Polynomial, divisor: int) -> Size:
    """Return a quotient that is rounded down, after replacing the first nested quotient."""
    for monomial, factor in dividend.terms.items():
        name = monomial[0] if len(monomial) == 1 else ""
        if isinstance(name, Quotient) and factor == 1 and isinstance(name.divisor, int):
            rest = dividend - Polynomial({monomial: 1})
            inner = as_size(name.dividend + name.divisor * rest)
            return floor_divide(inner, name.divisor * divisor)
    return _atom(dividend, divisor)


def _atom(dividend: Polynomial, divisor: Size) -> Polynomial:
    return Polynomial({(Quotient(dividend, divisor),): 1})


def _degree(term: tuple[Monomial, int]) -> tuple[int, Monomial]:
    return len(term[0]), term[0]


def _value(name: str, sizes: Mapping[str, int]) -> int:
    if not isinstance(name, Quotient):
        return sizes[name]
    divisor = name.divisor if isinstance(name.divisor, int) else name.divisor.value(sizes)
    return name.dividend.value(sizes) // divisor


def _replaced(name: str, sizes: Mapping[str, Size]) -> Size:
    if not isinstance(name, Quotient):
        return sizes.get(name, Polynomial.of(name))
    divisor = name.divisor if isinstance(name.divisor, int) else name.divisor.replaced(sizes)
    return floor_divide(name.dividend.replaced(sizes), divisor)


def _product(monomial: Monomial, factor: int) -> str:
    """Render a term, with a quotient in parentheses if there are other factors."""
    alone = factor == 1 and len(monomial) == 1
    parts = [str(factor)] if factor != 1 or not monomial else []
    for name in sorted(dict.fromkeys(monomial), key=lambda name: isinstance(name, Quotient)):
        power = monomial.count(name)
        text = f"({name})" if isinstance(name, Quotient) and not alone else name
        parts.append(text if power == 1 else f"{text}**{power}")
    return "*".join(parts)


def _operand(size: Size) -> str:
    """Render one side of a quotient."""
    text = str(size)
    return text if text.isidentifier() or text.isdecimal() else f"({text})"


def _terms(value: Polynomial | int) -> list[tuple[Monomial, int]]:
    return list(value.terms.items()) if isinstance(value, Polynomial) else [((), value)]


def _collected(terms: Iterable[tuple[Monomial, int]]) -> Polynomial:
    total: dict[Monomial, int] = {}
    for monomial, factor in terms:
        total[monomial] = total.get(monomial, 0) + factor
    return Polynomial({monomial: factor for monomial, factor in total.items() if factor})
