"""Similarity of blocks of two graphs, and reasons why a block cannot be part of another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable

from archgraph.analysis.forms import Form, factor
from archgraph.analysis.positions import axis_refs
from archgraph.analysis.widths import flat, matching_parts, stated
from archgraph.layout.layouts import AxisRef, Layout, Prod, Sum
from archgraph.relate.sides import SideGraph, Sides, level

# Score per common operator of two runs of blocks.
OPERATOR = 10**8


class Likeness:
    """Scores the similarity of consecutive blocks of two graphs.

    Results are cached, because models repeat their blocks.

    Attributes:
        refused: Dict from pair of blocks to the reason why they cannot be matched, although they
            have the same form.
    """

    def __init__(self, sides: Sides) -> None:
        self.sides = sides
        self.refused: dict[tuple[int, int], str] = {}
        self._looks: dict[int, int] = {}
        self._numbers: dict[Hashable, int] = {}
        self._verdicts: dict[tuple[int, int], tuple[int, str]] = {}

    def value(self, a: range, b: range) -> int:
        """Return a score for two runs of consecutive blocks; 0 if they do not match."""
        mine, theirs = self.sides
        x, y = mine.form(a), theirs.form(b)
        key = self._look(mine, x), self._look(theirs, y)
        if key not in self._verdicts:
            value, reason = 0, ""
            if x.lines == y.lines and x.lines:
                shapes = zip(_shapes(mine, x), _shapes(theirs, y), strict=True)
                value = OPERATOR * len(x.lines) + sum(s == t for s, t in shapes)
                reason = self.obstacle(x, y)
            self._verdicts[key] = value, reason
        value, reason = self._verdicts[key]
        if reason:
            # The cached reason may name parts of other blocks: find the reason for these.
            self.refused.setdefault((a[0], b[0]), self.obstacle(x, y))
            return 0
        return value

    def obstacle(self, mine: Form, theirs: Form) -> str:
        """Return why neither of two blocks can be a part of the other; empty if one of them can."""
        leaves_ = zip(mine.leaves, theirs.leaves, strict=True)
        nodes = zip(mine.nodes, theirs.nodes, strict=True)
        reasons = itertools.chain(
            (self._leaf_obstacle(a, b) for a, b in leaves_),
            (self._node_obstacle(a, b, mine, theirs) for a, b in nodes),
        )
        return next(filter(None, reasons), "")

    def _leaf_obstacle(self, a: str, b: str) -> str:
        mine, theirs = self.sides
        one, other = mine.graph.param[a], theirs.graph.param[b]
        if one.dtype != other.dtype:
            return f"{a} is {one.dtype}, not {other.dtype}"
        layouts = zip(mine.axes.of(a), theirs.axes.of(b), strict=True)
        for dim, (x, y) in enumerate(layouts):
            if not self._cuts(x, y):
                return f"dimension {dim} is {x} in {a} and {y} in {b}"
        constant = "constant" in (one.role, other.role)
        if constant and one.shape == other.shape and one.value != other.value:
            return f"{a} and {b} have different values"
        return ""

    def _node_obstacle(self, a: str, b: str, mine: Form, theirs: Form) -> str:
        client, other = (side.graph for side in self.sides)
        for key, x, y in stated(client, a, other, b):
            if not self._cuts(x, y) and self._level(a, b):
                return f"{key} is {x} in %{a} and {y} in %{b}"
        factors = factor(client.node[a]), factor(other.node[b])
        if factors[0] != factors[1] and not self._roots(mine, theirs, factors):
            return f"the factor is {factors[0]} in %{a} and {factors[1]} in %{b}"
        return ""

    def _cuts(self, x: Layout, y: Layout) -> bool:
        """Return whether one of two dimensions can be a cut of the other, part by part."""
        free = [side.free for side in self.sides]
        return all(_fit(u, v, *free) for u, v in matching_parts(x, y))

    def _level(self, a: str, b: str) -> bool:
        """Return whether the inputs of two operators have the same resolution."""
        used = [next(s.graph.node[n].uses(), "") for s, n in zip(self.sides, (a, b), strict=True)]
        return all(used) and level(self.sides, (used[0], used[1]))

    def _roots(self, mine: Form, theirs: Form, factors: tuple[float | None, float | None]) -> bool:
        """Return whether two factors are roots of a width of each graph (attention's scale)."""
        f, g = factors
        if f is None or g is None or f <= 0 or g <= 0:
            return False
        values = [side.axes.value for side in self.sides]
        pairs = (
            (x.size, y.size)
            for a, b in zip(mine.nodes, theirs.nodes, strict=True)
            for x, y in zip(values[0][a][0], values[1][b][0], strict=False)
        )
        return any(
            math.isclose(f, m**power, rel_tol=1e-6) and math.isclose(g, n**power, rel_tol=1e-6)
            for m, n in pairs
            for power in (0.5, -0.5)
            if isinstance(m, int) and isinstance(n, int) and m > 0 < n
        )

    def _look(self, side: SideGraph, form: Form) -> int:
        """Return a number for everything in a form that :meth:`value` depends on, without names."""
        if id(form) not in self._looks:  # forms are cached, and hashing them would take longer
            graph, attributes, facts = side.graph, side.axes.attributes, []
            for name in form.nodes:
                node = graph.node[name]
                sizes = [d for key, _ in node.args for d in flat(attributes.get((name, key)))]
                types = [graph.node[used].types for used in itertools.islice(node.uses(), 1)]
                facts.append((factor(node), node.types, *types, _nameless(side, sizes)))
            looks = tuple(_nameless(side, side.axes.of(leaf)) for leaf in form.leaves)
            constants = tuple(graph.param[leaf].value for leaf in form.leaves)
            key = form.lines, _shapes(side, form), looks, constants, tuple(facts)
            self._looks[id(form)] = self._numbers.setdefault(key, len(self._numbers))
        return self._looks[id(form)]


def _shapes(side: SideGraph, form: Form) -> tuple[tuple[int, ...], ...]:
    return tuple(side.graph.param[leaf].shape for leaf in form.leaves)


def _fit(mine: Layout, theirs: Layout, free: frozenset[str], other: frozenset[str]) -> bool:
    """Return whether one of two dimensions can be a cut of the other."""
    if mine.size == theirs.size:
        return True
    if theirs.size == 1:
        return _cuttable(mine, free)
    return _cuttable(theirs, other) and (mine.size == 1 or bool(axis_refs(mine)))


def _cuttable(layout: Layout, free: frozenset[str]) -> bool:
    return any(axis.name in free for axis in axis_refs(layout))


def _nameless(side: SideGraph, layouts: Iterable[Layout]) -> tuple[object, ...]:
    """Return layouts without the names of their axes."""

    def look(layout: Layout) -> object:
        match layout:
            case AxisRef(name, size):
                return "free" if name in side.free else size
            case Prod(parts) | Sum(parts):
                return (type(layout).__name__, *map(look, parts))
            case _:
                return layout.size

    return tuple(map(look, layouts))
