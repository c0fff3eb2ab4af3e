"""Infer the layout of each tensor dimension by unification.

A dimension has a *layout*. It is an axis that may be cut (:class:`Var` while solving,
:class:`AxisRef` when solved), a row-major flattened product (:class:`Prod`), a concatenation
(:class:`Sum`), or a dimension that cannot be cut (:class:`Fixed`), such as batch, pixels, tokens or
classes. Each operator defines equations between layouts. :class:`Solver` refines axes until all
equations hold, or pins the axes (forbids cutting them).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from archgraph.graph.polynomial import Polynomial, Size, as_size, divide


@dataclass(frozen=True, slots=True)
class Fixed:
    """A dimension that cannot be cut, such as batch, pixels, tokens or classes."""

    size: Size

    def __str__(self) -> str:
        return str(self.size)


@dataclass(frozen=True, slots=True)
class Prod:
    """Row-major flattening of its factors, outermost first."""

    factors: tuple[Layout, ...]
    size: Size = field(init=False, compare=False, repr=False)
    memo: Memo = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        _settle(self, self.factors, math.prod(f.size for f in self.factors))

    def __str__(self) -> str:
        return " × ".join(f"({f})" if isinstance(f, Sum) else str(f) for f in self.factors)


@dataclass(frozen=True, slots=True)
class Sum:
    """Concatenation of its terms, first term first."""

    terms: tuple[Layout, ...]
    size: Size = field(init=False, compare=False, repr=False)
    memo: Memo = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        _settle(self, self.terms, sum(term.size for term in self.terms))

    def __str__(self) -> str:
        return " + ".join(map(str, self.terms))


@dataclass(eq=False, slots=True)
class Var:
    """An axis while solving: free, bound to a finer layout, or pinned with a reason.

    Attributes:
        size: Number of positions along the axis.
        bound: The layout that unification has found to equal the axis; None if the axis is free.
        pinned: The reason why the axis cannot be cut; empty if it can be cut.
        part: Whether a product or concatenation contains the axis.
    """

    size: int
    bound: Layout | None = None
    pinned: str = ""
    part: bool = False

    def __str__(self) -> str:
        return f"{'!' if self.pinned else ''}{self.size}"


@dataclass(frozen=True, slots=True)
class AxisRef:
    """A solved axis, with its name in :class:`archgraph.analysis.axes.Axes`."""

    name: str
    size: int

    def __str__(self) -> str:
        return f"{self.name}[{self.size}]"


Layout: TypeAlias = "Fixed | Prod | Sum | Var | AxisRef"
# What a product or concatenation resolved to, and the solver's state at which it did.
Memo: TypeAlias = "tuple[object, Layout] | None"
UNIT = Fixed(1)


def _settle(composite: Prod | Sum, parts: Iterable[Layout], size: Size) -> None:
    for part in parts:
        if isinstance(part, Var):
            part.part = True
    object.__setattr__(composite, "size", as_size(size))
    object.__setattr__(composite, "memo", None)


def fixed_size(layout: Layout) -> int:
    """Return the size of a layout that does not contain open (dynamic) sizes."""
    assert isinstance(layout.size, int)
    return layout.size


def product(factors: Iterable[Layout]) -> Layout:
    """Return a product in normal form.

    Nested products are flattened, sizes of 1 are dropped, and adjacent fixed factors are joined.
    """
    flat: list[Layout] = []
    for f in factors:
        parts = f.factors if isinstance(f, Prod) else (f,)
        for part in parts:
            if part.size == 1 and isinstance(part, Fixed):
                continue
            if flat and isinstance(part, Fixed) and isinstance(flat[-1], Fixed):
                flat[-1] = Fixed(flat[-1].size * part.size)
            else:
                flat.append(part)
    if not flat:
        return UNIT
    return flat[0] if len(flat) == 1 else Prod(tuple(flat))


def concatenation(terms: Iterable[Layout]) -> Layout:
    """Return a sum in normal form.

    Nested sums are flattened, empty terms are dropped, and adjacent fixed terms are joined.
    """
    terms = [term for term in terms if term.size != 0]
    flat: list[Layout] = []
    size: Size = 0
    states = _states(terms)
    for t in terms:
        size += t.size
        parts = t.terms if isinstance(t, Sum) else (t,)
        first, last = parts[0], flat[-1] if flat else None
        if isinstance(first, Fixed) and isinstance(last, Fixed):
            flat[-1] = Fixed(as_size(last.size + first.size))
            flat += parts[1:]
        else:
            flat += parts
        if isinstance(t, Var):
            t.part = True
    if len(flat) < 2:
        return flat[0] if flat else Fixed(0)
    # Dense networks concatenate thousands of terms: skip the constructor's pass over them.
    composite = object.__new__(Sum)
    object.__setattr__(composite, "terms", tuple(flat))
    _settle(composite, (), size)
    if len(states) == 1 and id(None) not in states:  # then so is the sum
        object.__setattr__(composite, "memo", (*states.values(), composite))
    return composite


def _states(terms: Iterable[Layout]) -> dict[int, object]:
    """Return the states, by their identity, at which some terms are known to be resolved."""
    states = dict[int, object]()
    for t in terms:
        if isinstance(t, (Prod, Sum)):
            state = t.memo[0] if t.memo is not None and t.memo[1] is t else None
            states[id(state)] = state
        elif isinstance(t, Var) and t.bound is not None:
            states[id(None)] = None
    return states


def leaves(layout: Layout) -> Iterator[Layout]:
    """Yield the axes and fixed parts of a layout, left to right."""
    match layout:
        case Prod(parts) | Sum(parts):
            for part in parts:
                yield from leaves(part)
        case _:
            yield layout


@dataclass
class Solver:
    """Solver of equations between layouts, by unification.

    The solver binds axes to layouts, refines layouts to common factors or terms, or pins axes with
    a reason.
    """

    reason: str = ""  # why the current equation holds, for pins
    state: object = field(default_factory=object)  # another one when resolved layouts change

    def new(self, size: Size) -> Layout:
        """Return a new axis, or a fixed layout for an open (dynamic) size or a size of 1."""
        if isinstance(size, Polynomial) or size <= 1:
            return Fixed(size)
        return Var(size)

    def resolve(self, layout: Layout) -> Layout:
        """Return a layout in which bound axes are replaced by their layouts, in normal form."""
        if isinstance(layout, Var):
            chain: list[Var] = []  # as long as a network is deep: no recursion
            end: Layout = layout
            while isinstance(end, Var) and end.bound is not None:
                chain.append(end)
                end = end.bound
            if not isinstance(end, Var):
                end = self.resolve(end)
            for var in chain:
                var.bound = end
            return end
        if not isinstance(layout, (Prod, Sum)):
            return layout
        if layout.memo is not None and layout.memo[0] is self.state:
            return layout.memo[1]
        resolved: Layout
        if isinstance(layout, Prod):
            resolved = product(map(self.resolve, layout.factors))
        else:
            resolved = concatenation(map(self.resolve, layout.terms))
        resolved = layout if resolved == layout else resolved
        for known in (layout, resolved):
            if isinstance(known, (Prod, Sum)):
                object.__setattr__(known, "memo", (self.state, resolved))
        return resolved

    def bind(self, var: Var, layout: Layout) -> None:
        """Bind an axis to a layout. Layouts that contain the axis must be resolved again."""
        var.bound = layout
        # A ban on cuts of the axis holds for all that it stands for from now on.
        if var.pinned:
            self.pin(layout, var.pinned)
        if var.part:
            self.state = object()

    def pin(self, layout: Layout, reason: str = "") -> None:
        """Forbid cutting the axes of a layout; an axis keeps the first reason."""
        for leaf in leaves(self.resolve(layout)):
            if isinstance(leaf, Var) and not leaf.pinned:
                leaf.pinned = reason or self.reason

    def unify(self, a: Layout, b: Layout) -> None:
        """Unify two layouts, so that a cut keeps the same positions of both."""
        a, b = self.resolve(a), self.resolve(b)
        if a is b or a == b:
            return
        # A fixed part cannot be cut, so what equals it cannot be cut either; sizes that differ
        # (broadcasting) leave no position of one for a position of the other.
        if a.size != b.size or isinstance(a, Fixed) or isinstance(b, Fixed):
            self.pin(a)
            self.pin(b)
        elif isinstance(a, Var) and not (a.part and isinstance(b, Var)):
            self.bind(a, b)
        elif isinstance(b, Var):
            self.bind(b, a)
        elif isinstance(a, Sum) or isinstance(b, Sum):
            self._match_cuts(a, b)
        else:
            assert isinstance(a, Prod) and isinstance(b, Prod)
            self._match_factors(list(a.factors), list(b.factors))

    def _match_factors(self, xs: list[Layout], ys: list[Layout]) -> None:
        """Refine two products to common factors, from the innermost factor outwards."""
        while xs and ys:
            x, y = self.resolve(xs.pop()), self.resolve(ys.pop())
            if x.size == y.size:
                self.unify(x, y)
                continue
            if divide(x.size, y.size) is None:
                x, y, xs, ys = y, x, ys, xs
            parts = self.split_product(x, y.size)
            # Sizes without a common refinement mix positions (6 · 4 regrouped to 8 · 3).
            if parts is None:
                for rest in (x, y, *xs, *ys):
                    self.pin(rest)
                return
            xs.append(parts[0])
            self.unify(parts[1], y)
            # a binding may have turned neighbours into products: flatten before going on
            xs = _factors(self.resolve(product(map(self.resolve, xs))))
            ys = _factors(self.resolve(product(map(self.resolve, ys))))

    def split_product(self, x: Layout, inner: Size) -> tuple[Layout, Layout] | None:
        """Split a layout into an outer and an inner factor; None if it cannot be split."""
        x = self.resolve(x)
        outer = divide(x.size, inner)
        if outer is None:
            return None
        if inner == 1:
            return x, UNIT
        if outer == 1:
            return UNIT, x
        match x:
            case Fixed():
                return Fixed(outer), Fixed(inner)
            case Var():
                parts = (self.new(outer), self.new(inner))
                self.bind(x, Prod(parts))
                return parts
            case Prod(factors):
                rest = list(factors)
                innermost = self._take_inner(rest, inner)
                return (product(rest), innermost) if innermost is not None else None
            case Sum(terms):
                return self._split_sum_as_product(terms, inner)
        return None

    def _take_inner(self, rest: list[Layout], size: Size) -> Layout | None:
        """Remove the last factors, whose product is ``size``, from a list; None if impossible."""
        factors: list[Layout] = []
        while size != 1:
            if not rest:
                return None
            last = self.resolve(rest.pop())
            if isinstance(last, Prod):
                rest += last.factors
                continue
            smaller = divide(size, last.size)
            if smaller is None:
                parts = self.split_product(last, size)
                if parts is None:
                    return None
                rest.append(parts[0])
                last, smaller = parts[1], 1
            factors.insert(0, last)
            size = smaller
        return product(factors)

    def _split_sum_as_product(
        self, terms: Sequence[Layout], inner: Size
    ) -> tuple[Layout, Layout] | None:
        if all(divide(t.size, inner) is not None for t in terms):
            pairs = []
            for t in terms:
                pair = self.split_product(t, inner)
                if pair is None:
                    return None
                pairs.append(pair)
            # All terms share the inner factor: cutting it must cut each of them alike.
            for _, inside in pairs[1:]:
                self.unify(pairs[0][1], inside)
            return concatenation(o for o, _ in pairs), pairs[0][1]
        pieces: list[list[Layout]] = [[]]
        for t in terms:
            pieces[-1].append(t)
            total = concatenation(pieces[-1]).size
            if total == inner:
                pieces.append([])
            elif isinstance(total, int) and isinstance(inner, int) and total > inner:
                return None
        if pieces[-1]:
            return None
        groups = [concatenation(p) for p in pieces[:-1]]
        # Terms that fill whole rows: equal rows, so cuts of one are cuts of all.
        for piece in groups[1:]:
            self.unify(groups[0], piece)
        return Fixed(len(groups)), groups[0]

    def _match_cuts(self, a: Layout, b: Layout) -> None:
        """Refine two concatenations to common terms, from the first term on."""
        xs, ys = _terms(a)[::-1], _terms(b)[::-1]  # the next term last
        while xs and ys:
            x, y = self.resolve(xs.pop()), self.resolve(ys.pop())
            if isinstance(x, Sum) or isinstance(y, Sum):
                xs, ys = xs + _terms(x)[::-1], ys + _terms(y)[::-1]
                continue
            if x.size == y.size:
                self.unify(x, y)
                continue
            if _exceeds(y.size, x.size):
                x, y, xs, ys = y, x, ys, xs
            parts = self.cut(x, y.size) if _exceeds(x.size, y.size) else None
            if parts is None:
                for rest in (x, y, *xs, *ys):
                    self.pin(rest)
                return
            self.unify(parts[0], y)
            xs.append(parts[1])

    def cut(self, x: Layout, first: Size) -> tuple[Layout, Layout] | None:
        """Cut a layout into two terms, the first of size ``first``; None if it cannot be cut.

        1. If one of the terms would be empty, the layout does not change.
        2. A fixed layout can be cut anywhere. An axis becomes the sum of two axes.
        3. A sum is cut between two terms, or inside of a term.
        4. A product is cut along its outermost factor, if the first term consists of whole rows.
        """
        x = self.resolve(x)
        if first == 0:  # 1.
            return Fixed(0), x
        if first == x.size:
            return x, Fixed(0)
        match x:
            case Fixed():  # 2.
                return Fixed(first), Fixed(as_size(x.size - first))
            case Var() if isinstance(first, int):
                parts = (self.new(first), self.new(x.size - first))
                self.bind(x, concatenation(parts))
                return parts
            case Sum(terms):  # 3.
                at = _term_at(terms, first)
                if at is not None and (inner := self.cut(terms[at[0]], at[1])) is not None:
                    head, rest = terms[: at[0]], terms[at[0] + 1 :]
                    return concatenation((*head, inner[0])), concatenation((inner[1], *rest))
            case Prod((outermost, *rest)):  # 4.
                row = product(rest)
                count = divide(first, row.size)
                outer = self.cut(outermost, count) if count is not None else None
                if outer is not None:
                    return product((outer[0], row)), product((outer[1], row))
        return None

    def regroup(self, dims: Sequence[Layout], sizes: Sequence[Size]) -> list[Layout] | None:
        """Return the layouts of a tensor after a row-major reshape from ``dims`` to ``sizes``.

        Returns None, without pinning an axis, if the sizes cannot be formed from the factors.
        """
        rest = _factors(product(self.resolve(d) for d in dims))
        out: list[Layout] = []
        for size in reversed(sizes):
            factor = self._take_inner(rest, size)
            if factor is None:
                return None
            out.insert(0, factor)
        return out if all(r.size == 1 for r in rest) else None


def _term_at(terms: Sequence[Layout], size: Size) -> tuple[int, Size] | None:
    """Return the index of the term in which a size ends, and the size inside it; None if none."""
    for position, term in enumerate(terms):
        if size == 0 or _exceeds(term.size, size):
            return position, size
        if term.size != size and not _exceeds(size, term.size):
            return None  # which one is larger depends on an open size
        size = as_size(size - term.size)
    return None


def _exceeds(a: Size, b: Size) -> bool:
    """Return whether a size is larger than another size for all values of open sizes."""
    rest = as_size(a - b)
    return rest > 0 if isinstance(rest, int) else all(n > 0 for n in rest.terms.values())


def _factors(layout: Layout) -> list[Layout]:
    return list(layout.factors) if isinstance(layout, Prod) else [layout]


def _terms(layout: Layout) -> list[Layout]:
    return list(layout.terms) if isinstance(layout, Sum) else [layout]
