"""The layouts of an operator's arguments, and methods with which the operator's rule relates them.

A layout describes a tensor dimension by its axes (:mod:`archgraph.layout`).

Some arguments contain sizes, such as the shape of ``view``, the number of groups or the sizes of a
split. A rule records the layouts to which these sizes belong. After a cut, the argument is computed
again from the layouts, so rules do not need an inverse.

An operator with several tensors must relate every dimension that the tensors share. This includes
the batch, because heads are often part of the batch dimension. Without an equation between the two
batches of ``grid_sample``, for example, the heads of values and of offsets would be two axes, and a
network with a cut in one of them would not run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from archgraph.graph.ir import (
    ArchGraph,
    Leaf,
    Mode,
    Node,
    Polynomial,
    Ref,
    Size,
    Value,
    in_mode,
    walk,
)
from archgraph.graph.polynomial import divide
from archgraph.layout.layouts import Fixed, Layout, Solver, Var, leaves, product
from archgraph.ops.schema import op_schema

Dims: TypeAlias = list[Layout]
Dirt: TypeAlias = tuple[Layout, ...]
# Remedies for an axis that an operator pins.
PROJECT = "a linear layer or convolution between would free it"
ORDER = "the order of its positions matters"
StatedSizes: TypeAlias = "Layout | Size | tuple[StatedSizes, ...] | None"


@dataclass
class Equations:
    """The layouts (axes of each dimension) of all tensors of a graph while they are solved.

    Attributes:
        graph: The graph.
        solver: The unification state.
        values: Dict from node to the layouts of its results, one list of dimensions per result.
        leaves: Dict from parameter, buffer or constant to the layouts of its dimensions.
        attributes: Dict from node and argument to the layouts whose sizes the argument contains.
        spans: Norms, softmaxes and reductions over a layout: (layout, node, operation).
        runs: All operations over a layout, including operations that zeros do not affect: (layout,
            node, operation).
        contractions: Products that are summed over a layout: (layout, node, operands and
            dimensions).
        roles: Roles of layouts that an operator recognises: (layout, role, node).
        dirt: Dict from node to the *dirt* of each result. Dirt is the set of layouts at whose
            masked (removed) positions the result may be nonzero.
        scores: Dict from each product of two activations, which a softmax may turn into attention,
            to the layouts that it sums over and the layouts that both activations share (heads).
        attends: Names of the nodes that compute attention weights.
        attention: Dict from each product of attention weights and values to the layouts that both
            share (heads) and the layout of a value.
        node: The operator whose rule is running.
    """

    graph: ArchGraph
    solver: Solver = field(default_factory=Solver)
    values: dict[str, list[Dims]] = field(default_factory=dict)
    leaves: dict[str, Dims] = field(default_factory=dict)
    attributes: dict[tuple[str, str], StatedSizes] = field(default_factory=dict)
    spans: list[tuple[Layout, str, str]] = field(default_factory=list)
    runs: list[tuple[Layout, str, str]] = field(default_factory=list)
    contractions: list[tuple[Layout, str, tuple[tuple[Value, int], ...]]] = field(
        default_factory=list
    )
    roles: list[tuple[Layout, str, str]] = field(default_factory=list)
    dirt: dict[str, list[Dirt]] = field(default_factory=dict)
    scores: dict[str, tuple[Dims, Dims]] = field(default_factory=dict)
    attends: set[str] = field(default_factory=set)
    attention: dict[str, tuple[Dims, Layout]] = field(default_factory=dict)
    node: Node = field(default_factory=lambda: Node("", ""))
    _tainted: list[Layout] = field(default_factory=list)

    def of(self, value: Value) -> Dims:
        """Return the layouts of the dimensions of a tensor argument, or of its first result."""
        match value:
            case Ref(name):
                return [self.solver.resolve(d) for d in self.values[name][0]]
            case Leaf(name):
                return [self.solver.resolve(d) for d in self.leaves[name]]
            case Mode():  # either branch may run, so unify their layouts
                dims = [self.of(b) for b in (value.train, value.eval)]
                for a, b in zip(dims[0], dims[1], strict=False):
                    self.unify(a, b)
                return [self.solver.resolve(d) for d in dims[0] or dims[1]]
            case _:
                return []

    def arg(self, name: str) -> Dims:
        """Return the layouts of an argument."""
        return self.of(self.node.arg(name))

    def has(self, name: str) -> bool:
        """Return whether a tensor argument is present."""
        value = self.node.arg(name)
        return any(isinstance(in_mode(value, mode), (Ref, Leaf)) for mode in (True, False))

    def operand_dtype(self, value: Value) -> str:
        """Return the dtype of a tensor operand."""
        value = in_mode(value, False)
        if isinstance(value, Ref):
            return self.graph.node[value.name].dtype
        return self.graph.param[value.name].dtype if isinstance(value, Leaf) else ""

    def value(self, name: str, default: Value = None) -> Value:
        """Return an argument, or its default from the operator's schema."""
        value = self.node.arg(name)
        if value is None and self.node.op.startswith("aten."):
            argument = op_schema(self.node.op).by_name.get(name)
            value = argument.default if argument is not None else None
        return default if value is None else value

    def ints(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        """Return an argument that is a list of integers; a single integer becomes a list."""
        value = self.value(name)
        if isinstance(value, tuple):
            return tuple(v for v in value if isinstance(v, int))
        return (value,) if isinstance(value, int) else tuple(default)

    def integer(self, name: str, default: int = 0) -> int:
        """Return an integer argument.

        Raises:
            ValueError: If the argument is an open (dynamic) size.
        """
        value = self.value(name)
        if isinstance(value, Polynomial):
            raise ValueError(f"{name} is an open size")
        return value if isinstance(value, int) else default

    def dim(self, name: str, rank: int, default: int = 0) -> int:
        """Return an argument that is the index of a dimension, counted from the front."""
        return self.integer(name, default) % max(rank, 1)

    def along(self) -> tuple[Dims, int]:
        """Return the layouts of ``self``, and the argument ``dim``."""
        x = self.arg("self")
        return x, self.dim("dim", len(x))

    def grouped(self, layout: Layout, groups: Value, argument: str) -> tuple[Layout, Layout]:
        """Split a layout into the groups and the positions inside a group.

        After a cut, ``argument`` gets the new number of groups. An open (dynamic) number of groups
        is the number of examples, possibly multiplied by the sizes of axes that are merged into the
        batch dimension.
        """
        assert isinstance(groups, int | Polynomial)
        size = divide(layout.size, groups)
        assert size is not None
        if isinstance(groups, int):
            pair = self.new(groups), self.new(size)
            self.unify(layout, product(pair))
        else:
            split = self.solver.split_product(layout, size)
            assert split is not None
            pair = split
        self.states(argument, pair[0])
        return pair

    def new(self, size: Size) -> Layout:
        """Return a new axis."""
        return self.solver.new(size)

    def resolve(self, layout: Layout) -> Layout:
        """Return the layout in the current solution."""
        return self.solver.resolve(layout)

    def unify(self, a: Layout, b: Layout) -> None:
        """Add the equation that two layouts are equal."""
        self.solver.unify(a, b)

    def agree(self, ours: Sequence[Layout], theirs: Sequence[Layout]) -> None:
        """Add the equations that two tensors have the same layouts."""
        for a, b in zip(ours, theirs, strict=True):
            self.unify(a, b)

    def vectors(self, layout: Layout, *names: str) -> None:
        """Add the equations that some arguments, if present, are vectors with this layout."""
        for name in names:
            if self.has(name):
                self.unify(self.arg(name)[0], layout)

    def broadcast(self, operands: Sequence[Dims]) -> Dims:
        """Broadcast operands: unify dimensions from the right, and stretch those of size 1."""
        rank = max((len(o) for o in operands), default=0)
        out: Dims = []
        for position in range(rank):
            result: Layout = Fixed(1)
            for operand in operands:
                index = position - rank + len(operand)
                if index < 0 or operand[index].size == 1:
                    continue  # the operand is constant along it
                if result.size == 1:
                    result = operand[index]
                else:
                    self.unify(result, operand[index])
            out.append(self.resolve(result))
        return out

    def pin(self, dims: Sequence[Layout], why: str = "", free: str = "") -> None:
        """Forbid cutting the axes of some layouts, and record the reason and a remedy."""
        reason = f"{why} ({self.place()})" + (f"; {free}" if free else "")
        for layout in dims:
            self.solver.pin(layout, reason if why else self.solver.reason)

    def place(self) -> str:
        """Return the text for the current operator in the reasons of pins."""
        node = self.node
        where = f" at {node.source}" if node.source else ""
        return f"{node.op} %{node.name}{' in ' + node.scope if node.scope else ''}{where}"

    def span(self, layout: Layout, what: str) -> None:
        """Record that the operator combines all positions of a layout without using weights."""
        self.spans.append((layout, self.node.name, what))
        self.runs.append((layout, self.node.name, what))

    # -- zeros: which results are zero wherever an axis is masked -----------------------------

    def axes_in(self, dims: Sequence[Layout]) -> dict[Var, None]:
        """Return the axes in layouts, in the current solution."""
        parts = (v for d in dims for v in leaves(self.resolve(d)))
        # A dict is an ordered set: results must not depend on hashes.
        return dict.fromkeys(v for v in parts if isinstance(v, Var))

    def dirt_of(self, value: Value) -> Dirt:
        """Return the layouts at whose masked positions a value may be nonzero.

        Parameters, buffers and constants are zero at all masked positions.
        """
        match value:
            case Ref(name):
                return self.dirt.get(name, [()])[0]
            case Mode():
                return self.dirt_of(value.train) + self.dirt_of(value.eval)
            case _:
                return ()

    def operands(self) -> list[Value]:
        """Return all tensor arguments in order, including those in lists."""
        values = (v for _, v in self.node.args)
        items = (i for v in values for i in (v if isinstance(v, tuple) else (v,)))
        # A Mode is a single operand: its branches share their layouts.
        return [i for i in items if any(isinstance(j, (Ref, Leaf)) for j in walk(i))]

    def layouts(self) -> list[Dims]:
        """Return the layouts of all tensor arguments, in order."""
        return [self.of(value) for value in self.operands()]

    def cut_all(self, layout: Layout, sizes: Sequence[Size]) -> list[Layout] | None:
        """Cut a layout into parts of the given sizes; None if this is not possible."""
        parts: list[Layout] = []
        rest = layout
        for size in sizes[:-1]:
            pair = self.solver.cut(rest, size)
            if pair is None:
                return None
            parts.append(pair[0])
            rest = pair[1]
        return [*parts, rest]

    def taint(self, dims: Sequence[Layout]) -> None:
        """Record that the current operator writes nonzero values along the axes of layouts."""
        self._tainted += [d for d in dims if not isinstance(d, Fixed)]

    def settle(self, results: list[Dims], dirt: list[Dirt]) -> None:
        """Record the axes at whose masked positions each result may be nonzero.

        Axes that are not in the dimensions of a result are dropped.
        """
        tainted, self._tainted = tuple(self._tainted), []
        settled: list[Dirt] = []
        for dims, layouts in zip(results, dirt, strict=True):
            dirty = layouts + tainted
            if dirty:
                axes = self.axes_in(dims)
                dirty = tuple(v for v in self.axes_in(dirty) if v in axes)
            settled.append(dirty)
        self.dirt[self.node.name] = settled

    def follow(self) -> None:
        """Record attention scores and weights that pass through a pointwise operator."""
        for used in self.node.uses():
            if used in self.scores:
                self.scores.setdefault(self.node.name, self.scores[used])
            if used in self.attends:
                self.attends.add(self.node.name)

    def contract(self, layout: Layout, operands: Sequence[tuple[Value, int]], what: str) -> None:
        """Record that products of operands are summed over a layout.

        If one of the factors is zero at the masked positions, the sum equals that of the cut
        network. Otherwise the operation is recorded in :attr:`spans`.

        Args:
            layout: Layout that is summed over.
            operands: Pairs of an operand and the index of its dimension that has this layout.
            what: One word for the operation.
        """
        dims = tuple((v, d % max(len(self.of(v)), 1)) for v, d in operands)
        self.contractions.append((layout, self.node.name, dims))
        dirt = [self.dirt_of(operand) for operand, _ in operands]
        # One factor that is zero at the masked positions suffices.
        if all(dirt):
            first, *others = map(self.axes_in, dirt)
            self._span_axes(layout, {v: None for v in first if all(v in o for o in others)}, what)

    def total(self, layout: Layout, operands: Sequence[Value], what: str) -> None:
        """Record that operands are summed over a layout.

        If all operands are zero at the masked positions, the sum equals that of the cut network.
        """
        self.runs.append((layout, self.node.name, what))
        for operand in operands:
            if self.dirt_of(operand):
                self._span_axes(layout, self.axes_in(self.dirt_of(operand)), what)

    def _span_axes(self, layout: Layout, dirty: Mapping[Var, None], what: str) -> None:
        # Usually nothing is dirty: then do not resolve the layout, which may be long.
        for var in self.axes_in([layout]) if dirty else ():
            if var in dirty:
                self.span(var, what)

    def role(self, layout: Layout, role: str) -> None:
        """Record the role of a layout (such as ``heads``), which becomes part of its name."""
        self.roles.append((layout, role, self.node.name))

    def states(self, argument: str, sizes: StatedSizes) -> None:
        """Record that an argument contains the sizes of layouts. A cut recomputes the argument."""
        self.attributes[self.node.name, argument] = sizes

    def fixed(self, shape: Sequence[Size]) -> Dims:
        """Return the layouts of a tensor of this shape that cannot be cut in any dimension."""
        return [Fixed(s) for s in shape]

    def conform(self, dims: Dims, index: int = 0) -> Dims:
        """Replace layouts whose size broadcasting changes by fixed layouts of the result's size."""
        shape = self.node.types[index].shape
        return [d if d.size == s else Fixed(s) for d, s in zip(dims, shape, strict=True)]

    def opaque(self, why: str = "no rule for this operator") -> list[Dims]:
        """Forbid cutting the axes of the operands; return the layouts of the results."""
        for dims in self.layouts():
            self.pin(dims, why, PROJECT)
        return [self.fixed(t.shape) for t in self.node.types]
