"""What an operator's row sees while axes are solved: its arguments as layouts, verbs for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from archgraph.ir import ArchGraph, Leaf, Mode, Node, Ref, Size, Value, in_mode
from archgraph.layout import Fixed, Layout, Solver, concatenation

Dims: TypeAlias = list[Layout]
Sizes: TypeAlias = "Layout | int | tuple[Sizes, ...] | None"


@dataclass
class Equations:
    """Layouts of all tensors of a graph under construction.

    Attributes:
        graph: The graph.
        solver: The unification state.
        values: Per node, the layouts of its results: one list of dimensions per result.
        leaves: Per leaf, the layouts of its dimensions.
        attributes: Per node and argument, the layouts whose sizes the argument states.
        spans: Layouts that a norm, softmax or reduction runs over: (layout, node, what).
        roles: What an operator knows a layout to be: (layout, role, node).
        kept: Numbers that an operator takes from a size and that a cut must not change.
    """

    graph: ArchGraph
    solver: Solver = field(default_factory=Solver)
    values: dict[str, list[Dims]] = field(default_factory=dict)
    leaves: dict[str, Dims] = field(default_factory=dict)
    attributes: dict[tuple[str, str], Sizes] = field(default_factory=dict)
    spans: list[tuple[Layout, str, str]] = field(default_factory=list)
    roles: list[tuple[Layout, str, str]] = field(default_factory=list)
    node: Node = field(default_factory=lambda: Node("", ""))

    def of(self, value: Value) -> Dims:
        """Layouts of a tensor argument's dimensions (of its first result)."""
        match value:
            case Ref(name):
                return [self.solver.resolve(d) for d in self.values[name][0]]
            case Leaf(name):
                return [self.solver.resolve(d) for d in self.leaves[name]]
            case Mode():  # either branch may run: their layouts are one
                dims = [self.of(b) for b in (value.train, value.eval)]
                for a, b in zip(dims[0], dims[1], strict=False):
                    self.unify(a, b)
                return [self.solver.resolve(d) for d in dims[0] or dims[1]]
            case _:
                return []

    def arg(self, name: str) -> Dims:
        """Layouts of an argument."""
        return self.of(self.node.arg(name))

    def has(self, name: str) -> bool:
        """Whether a tensor argument is given."""
        value = self.node.arg(name)
        return any(isinstance(in_mode(value, mode), (Ref, Leaf)) for mode in (True, False))

    def ints(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        """An integer-list argument; a single integer counts as a list of one."""
        value = self.node.arg(name)
        if value is None:
            return tuple(default)
        if isinstance(value, tuple):
            return tuple(v for v in value if isinstance(v, int))
        return (value,) if isinstance(value, int) else tuple(default)

    def integer(self, name: str, default: int = 0) -> int:
        """An integer argument."""
        value = self.node.arg(name)
        return value if isinstance(value, int) else default

    def dim(self, name: str, rank: int, default: int = 0) -> int:
        """A dimension argument, counted from the front."""
        return self.integer(name, default) % max(rank, 1)

    def new(self, size: Size) -> Layout:
        """A fresh axis."""
        return self.solver.new(size)

    def resolve(self, layout: Layout) -> Layout:
        """The layout as known now."""
        return self.solver.resolve(layout)

    def unify(self, a: Layout, b: Layout) -> None:
        """State that two layouts are one."""
        self.solver.unify(a, b)

    def broadcast(self, operands: Sequence[Dims]) -> Dims:
        """Elementwise: dimensions agree from the right, size-one dimensions stretch."""
        rank = max((len(o) for o in operands), default=0)
        out: Dims = []
        for position in range(rank):
            result: Layout = Fixed(1)
            for operand in operands:
                index = position - rank + len(operand)
                if index < 0 or operand[index].size == 1:
                    continue
                if result.size == 1:
                    result = operand[index]
                else:
                    self.unify(result, operand[index])
            out.append(self.resolve(result))
        return out

    def pin(self, dims: Sequence[Layout], why: str = "") -> None:
        """Forbid to cut the axes of some layouts."""
        for layout in dims:
            self.solver.pin(layout, f"{why} ({self.place()})" if why else self.solver.reason)

    def place(self) -> str:
        """Where the current operator stands, for reasons."""
        node = self.node
        where = f" at {node.source}" if node.source else ""
        return f"{node.op} %{node.name}{' in ' + node.scope if node.scope else ''}{where}"

    def span(self, layout: Layout, what: str) -> None:
        """Note that the operator mixes all positions of a layout without a weight per position."""
        self.spans.append((layout, self.node.name, what))

    def role(self, layout: Layout, role: str) -> None:
        """Note what a layout is, for its name."""
        self.roles.append((layout, role, self.node.name))

    def states(self, argument: str, sizes: Sizes) -> None:
        """Note that an argument states the sizes of layouts: a cut recomputes it."""
        self.attributes[self.node.name, argument] = sizes

    def before(self, terms: Sequence[Layout]) -> Layout:
        """The concatenation of the parts before an offset; its size is the offset."""
        return concatenation(terms)

    def fixed(self, shape: Sequence[Size]) -> Dims:
        """No channel axis anywhere in a shape."""
        return [Fixed(s) for s in shape]


Layouts: TypeAlias = Mapping[str, list[Dims]]
