"""What runs of blocks of two graphs have in common, and what keeps them from being cuts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable

from archgraph.analysis.forms import Form, factor
from archgraph.analysis.widths import alike, axes_of, flat, stated
from archgraph.layout.layouts import AxisRef, Layout, Prod, Sum, leaves
from archgraph.relate.sides import Index, Sides, agree, resolution

# Value of an operator that two runs of blocks have in common.
OPERATOR = 10**8


class Likeness:
    """What runs of blocks of two graphs have in common.

    Verdicts are computed once per pair of looks: models repeat their blocks.

    Attributes:
        refused: Blocks of one form that are not matched, and why.
    """

    def __init__(self, sides: Sides) -> None:
        self.sides = sides
        self.refused: dict[tuple[int, int], str] = {}
        self._looks: dict[int, int] = {}
        self._numbers: dict[Hashable, int] = {}
        self._verdicts: dict[tuple[int, int], tuple[int, str]] = {}

    def value(self, a: range, b: range) -> int:
        """What two runs of blocks have in common; 0 where they do not match."""
        x, y = self.sides.form(0, a), self.sides.form(1, b)
        key = self._look(0, x), self._look(1, y)
        if key not in self._verdicts:
            value, reason = 0, ""
            if x.lines == y.lines and x.lines:
                shapes = zip(self._shapes(0, x), self._shapes(1, y), strict=True)
                value = OPERATOR * len(x.lines) + sum(s == t for s, t in shapes)
                reason = self.obstacle(x, y)
            self._verdicts[key] = value, reason
        value, reason = self._verdicts[key]
        if reason:
            self.refused.setdefault((a[0], b[0]), self.obstacle(x, y))
            return 0
        return value

    def obstacle(self, mine: Form, theirs: Form) -> str:
        """Why two parts of one form cannot be cuts of one another; empty: they can."""
        leaves_ = zip(mine.leaves, theirs.leaves, strict=True)
        nodes = zip(mine.nodes, theirs.nodes, strict=True)
        reasons = itertools.chain(
            (self._leaf_obstacle(a, b) for a, b in leaves_),
            (self._node_obstacle(a, b, mine, theirs) for a, b in nodes),
        )
        return next(filter(None, reasons), "")

    def _leaf_obstacle(self, a: str, b: str) -> str:
        one, other = self.sides.graphs[0].param[a], self.sides.graphs[1].param[b]
        if one.dtype != other.dtype:
            return f"{a} is {one.dtype}, not {other.dtype}"
        layouts = zip(self.sides.axes[0].of(a), self.sides.axes[1].of(b), strict=True)
        for dim, (x, y) in enumerate(layouts):
            if not self._cuts(x, y):
                return f"dimension {dim} is {x} in {a} and {y} in {b}"
        constant = "constant" in (one.role, other.role)
        if constant and one.shape == other.shape and one.value != other.value:
            return f"{a} has other numbers than {b}"
        return ""

    def _node_obstacle(self, a: str, b: str, mine: Form, theirs: Form) -> str:
        client, whole = self.sides.graphs
        for key, x, y in stated(client, a, whole, b):
            if not self._cuts(x, y) and self._level(a, b):
                return f"{key} is {x} in %{a} and {y} in %{b}"
        factors = factor(client.node[a]), factor(whole.node[b])
        if factors[0] != factors[1] and not self._roots(mine, theirs, factors):
            return f"the factor is {factors[0]} in %{a} and {factors[1]} in %{b}"
        return ""

    def _cuts(self, x: Layout, y: Layout) -> bool:
        """Whether one of two dimensions can be a cut of the other, part by part."""
        return all(_fit(u, v, *self.sides.free) for u, v in alike(x, y))

    def _level(self, a: str, b: str) -> bool:
        """Whether the inputs of two operators have one resolution."""
        values = []
        for graph, solved, name in zip(self.sides.graphs, self.sides.axes, (a, b), strict=True):
            used = next(graph.node[name].uses(), None)
            if used is None:
                return False
            values.append(resolution(solved.value[used][0]))
        return agree(*values)

    def _roots(self, mine: Form, theirs: Form, factors: tuple[float | None, float | None]) -> bool:
        """Whether two factors are the roots of a width of each graph's (attention's scale)."""
        f, g = factors
        if f is None or g is None or f <= 0 or g <= 0:
            return False
        pairs = (
            (x.size, y.size)
            for a, b in zip(mine.nodes, theirs.nodes, strict=True)
            for x, y in zip(
                self.sides.axes[0].value[a][0], self.sides.axes[1].value[b][0], strict=False
            )
        )
        return any(
            math.isclose(f, m**power, rel_tol=1e-6) and math.isclose(g, n**power, rel_tol=1e-6)
            for m, n in pairs
            for power in (0.5, -0.5)
            if isinstance(m, int) and isinstance(n, int) and m > 0 < n
        )

    def _look(self, side: Index, form: Form) -> int:
        """A number for all that :meth:`value` sees of a form; names of axes aside."""
        if id(form) not in self._looks:  # forms are cached, and hashing them takes longer
            layouts = (self.sides.axes[side].of(leaf) for leaf in form.leaves)
            looks = tuple(self._without_names(side, dims) for dims in layouts)
            key = form.lines, self._shapes(side, form), looks, self._facts(side, form)
            self._looks[id(form)] = self._numbers.setdefault(key, len(self._numbers))
        return self._looks[id(form)]

    def _facts(self, side: Index, form: Form) -> Hashable:
        """What else :meth:`obstacle` looks at."""
        graph, solved = self.sides.graphs[side], self.sides.axes[side]
        constants = tuple(graph.param[leaf].value for leaf in form.leaves)
        facts = []
        for name in form.nodes:
            node = graph.node[name]
            sizes = [flat(solved.attributes.get((name, key))) for key, _ in node.args]
            looks = self._without_names(side, itertools.chain.from_iterable(sizes))
            types = [graph.node[used].types for used in itertools.islice(node.uses(), 1)]
            facts.append((factor(node), node.types, *types, looks))
        return constants, tuple(facts)

    def _shapes(self, side: Index, form: Form) -> tuple[tuple[int, ...], ...]:
        return tuple(self.sides.graphs[side].param[leaf].shape for leaf in form.leaves)

    def _without_names(self, side: Index, layouts: Iterable[Layout]) -> tuple[object, ...]:
        return tuple(_nameless(d, self.sides.free[side]) for d in layouts)


def _fit(mine: Layout, theirs: Layout, free: frozenset[str], other: frozenset[str]) -> bool:
    """Whether one of two dimensions can be a cut of the other."""
    if mine.size == theirs.size:
        return True
    if theirs.size == 1:
        return _cuttable(mine, free)
    return _cuttable(theirs, other) and (mine.size == 1 or bool(axes_of(mine)))


def _cuttable(layout: Layout, free: frozenset[str]) -> bool:
    return any(isinstance(leaf, AxisRef) and leaf.name in free for leaf in leaves(layout))


def _nameless(layout: Layout, free: frozenset[str]) -> object:
    """A layout without the names of its axes."""
    match layout:
        case AxisRef(name, size):
            return "free" if name in free else size
        case Prod(parts) | Sum(parts):
            return (type(layout).__name__, *(_nameless(p, free) for p in parts))
        case _:
            return layout.size
