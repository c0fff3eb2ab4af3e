"""Axes: which parameter dimensions change together when a layer gets wider or narrower."""

from __future__ import annotations

import fnmatch
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from archgraph.analysis.naming import Naming
from archgraph.analysis.side_branches import side_branches
from archgraph.errors import AxisError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph, Leaf, Ref, Value, per_graph, walk
from archgraph.graph.polynomial import Polynomial
from archgraph.hints import nearest, unknown
from archgraph.layout.layouts import AxisRef, Fixed, Layout, Prod, Sum, Var, concatenation, product
from archgraph.ops.equations import Equations, StatedSizes
from archgraph.ops.table import row
from archgraph.tables import Table


@dataclass(frozen=True, slots=True)
class Axis:
    """A set of tensor dimensions (or factors of them) that are cut together.

    Attributes:
        name: Name, taken from the first layer that has the axis, e.g. ``layer1.0.conv1.out``.
        size: Number of positions (indices).
        role: ``channels``, ``heads``, ``head_dim``, ``value_dim``, ``hidden``, ``cell``, or
            ``rank`` (of a low-rank adapter).
        reason: Why the axis is pinned, that is, cannot be cut; empty if it can be cut.
        spans: Norms, softmaxes and reductions over the axis, each as ``operator in module``. If the
            axis is cut, their results differ from those of a network with zeros at the removed
            positions. The axis can still be cut, as HeteroFL and NeFL do in Transformers.
    """

    name: str
    size: int
    role: str = "channels"
    reason: str = ""
    spans: tuple[str, ...] = ()

    @property
    def free(self) -> bool:
        """Whether the axis can be cut."""
        return not self.reason


@dataclass(frozen=True, slots=True)
class Contraction:
    """A sum of products of tensors over one dimension of each, such as a matrix product.

    Attributes:
        node: The operator.
        layout: Layout (see :class:`Axes`) of the dimension that is summed over.
        operands: Pairs of an operand and the index of its dimension that is summed over.
    """

    node: str
    layout: Layout
    operands: tuple[tuple[Value, int], ...]


@dataclass(frozen=True, repr=False)
class Axes:
    """All axes of a graph, and the layout of every dimension.

    The layout of a dimension is one axis, a product of axes (heads · width per head), a
    concatenation, or a fixed size.

    Attributes:
        all: All axes, in the order of the operators that produce them.
        leaf: Dict from parameter, buffer or constant to the layouts of its dimensions.
        value: Dict from operator to the layouts of the dimensions of its results.
        attributes: Dict from (operator, argument) to layouts, for arguments that contain sizes of
            axes, such as the shape of a reshape or a number of groups.
        contractions: Sums of products over a dimension.
        runs: Pairs of an operator and a layout over which it normalises or reduces (norms,
            softmaxes, sums).
        attention: Dict from an operator that multiplies attention weights by values to the number
            of heads and the width per head. Contains only attention that is computed by several
            operators.
    """

    all: tuple[Axis, ...]
    leaf: Mapping[str, tuple[Layout, ...]]
    value: Mapping[str, tuple[tuple[Layout, ...], ...]]
    attributes: Mapping[tuple[str, str], StatedSizes]
    contractions: tuple[Contraction, ...] = ()
    runs: tuple[tuple[str, Layout], ...] = ()
    attention: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def free(self) -> tuple[Axis, ...]:
        """Axes that can be cut."""
        return tuple(a for a in self.all if a.free)

    @property
    def pinned(self) -> tuple[Axis, ...]:
        """Axes that cannot be cut, each with its reason."""
        return tuple(a for a in self.all if not a.free)

    def __repr__(self) -> str:
        return f"<Axes: {len(self.free)} free, {len(self.pinned)} pinned>"

    def _repr_html_(self) -> str:
        rows = tuple((a.name, str(a.size), a.role, a.reason or "free") for a in self.all)
        columns = ("axis", "size", "role", "may be cut")
        return Table(repr(self).strip("<>"), columns, rows, frozenset({1}))._repr_html_()

    def __getitem__(self, name: str) -> Axis:
        """Return the axis with a name.

        Raises:
            AxisError: If the graph has no axis with this name; suggests the nearest name.
        """
        for axis in self.all:
            if axis.name == name:
                return axis
        raise _no_axis(name, (a.name for a in self.all))

    def of(self, leaf: str) -> tuple[Layout, ...]:
        """Return the layouts of the dimensions of a parameter, buffer or constant.

        Raises:
            AxisError: If the graph has no parameter, buffer or constant with this name.
        """
        if leaf not in self.leaf:
            raise _no_axis(leaf, self.leaf)
        return self.leaf[leaf]

    @functools.cached_property
    def products(self) -> tuple[tuple[str, ...], ...]:
        """All products of axes that occur in the sizes of parameters, each once."""
        layouts = itertools.chain.from_iterable(self.leaf.values())
        return tuple(dict.fromkeys(itertools.chain.from_iterable(map(products_of, layouts))))

    def independent(self, among: Iterable[Axis] | None = None) -> tuple[Axis, ...]:
        """Return the axes that one fraction for all widths cuts: at most one axis of every product.

        For example, halving the number of heads already halves an attention layer. Halving the
        width of each head as well would leave a quarter.

        1. Ignore axes that are not in ``among``.
        2. Sort the axes. Numbers of heads come first, beginning with those in the most products.
           Other axes are sorted by how often they are the last factor of a product, most often
           first, so that the width of a group precedes the number of groups. Among equal axes,
           those in the fewest products come first.
        3. Go through the sorted axes. Select an axis unless one of its products contains an axis
           that is already selected.

        Args:
            among: The axes to select from. Default: all free axes except ranks of adapters.

        Example:
            >>> import torch
            >>> from archgraph.capture.trace import trace
            >>> convs = [torch.nn.Conv1d(*sizes) for sizes in ((2, 6, 1), (6, 2, 1))]
            >>> convs.insert(1, torch.nn.Conv1d(6, 6, 1, groups=3))
            >>> solved = axes(trace(torch.nn.Sequential(*convs), torch.zeros(1, 2, 5)).graph)
            >>> [(a.name, a.size) for a in solved.free], [a.name for a in solved.independent()]
            ([('0.out.0', 3), ('0.out.1', 2), ('1.out.1', 2)], ['1.out.1', '0.out.1'])
        """
        among = [a for a in self.free if a.role != "rank"] if among is None else list(among)
        names = {axis.name for axis in among}
        products = {tuple(name for name in one if name in names) for one in self.products}  # 1
        cut: dict[str, Axis] = {}
        for axis in sorted(among, key=_precedence(products)):  # 2
            factors = itertools.chain.from_iterable(p for p in products if axis.name in p)
            if cut.keys().isdisjoint(factors):  # 3
                cut[axis.name] = axis
        return tuple(cut.values())

    def match(self, pattern: str) -> tuple[Axis, ...]:
        """Return the free axes that match a name, role or pattern (``layer1.*``, ``heads``).

        The name of a module matches all axes in the module: ``layer1`` means ``layer1.*``.

        Raises:
            AxisError: If no free axis matches. If a pinned axis matches, the message says why it is
                pinned.
        """
        matching = tuple(a for a in self.all if _matches(a, pattern))
        free = tuple(a for a in matching if a.free)
        if free:
            return free
        if matching:
            raise AxisError("axis cannot be cut", where=matching[0].name, found=matching[0].reason)
        # The hint may name a pinned axis. A lookup of that axis then reports why it is pinned.
        error = _no_axis(pattern, (a.name for a in self.free))
        error.hint = nearest(pattern, (a.name for a in self.all), cutoff=0.4) or error.hint
        raise error


def products_of(layout: Layout) -> list[tuple[str, ...]]:
    """Return the products of axes whose sum is the size of a layout; () for a fixed number."""
    if isinstance(layout, Sum):
        return [product for term in layout.terms for product in products_of(term)]
    if isinstance(layout, Prod):
        parts = itertools.product(*map(products_of, layout.factors))
        # An axis that is squared is listed once.
        return [tuple(dict.fromkeys(itertools.chain.from_iterable(part))) for part in parts]
    return [(layout.name,) if isinstance(layout, AxisRef) else ()]


def _precedence(products: Collection[tuple[str, ...]]) -> Callable[[Axis], tuple[bool, int, int]]:
    """Return the sort key of :meth:`Axes.independent`: axes that sort first are selected first."""
    often = Counter(itertools.chain.from_iterable(products))
    last = Counter(factors[-1] for factors in products if len(factors) > 1)
    return lambda axis: (
        axis.role != "heads",
        -(often if axis.role == "heads" else last)[axis.name],
        often[axis.name],
    )


def _no_axis(name: str, known: Iterable[str]) -> AxisError:
    return AxisError("no such axis", **unknown(name, known, cutoff=0.4))


def _matches(axis: Axis, pattern: str) -> bool:
    return (
        axis.name == pattern
        or axis.role == pattern
        or axis.name.startswith(pattern + ".")
        or fnmatch.fnmatchcase(axis.name, pattern)
    )


@takes_graph
@per_graph
def axes(graph: ArchGraph) -> Axes:
    """Find the axes of a graph: the dimensions that must be cut together.

    For example, the output channels of a layer and the input channels of the next layer are one
    axis. Every operator states which dimensions of its operands and results are equal. The solution
    of these equations is cached with the graph.

    Args:
        graph: Any graph. An axis that an unknown operator uses is pinned, which means that it
            cannot be cut. The reason for the pin names the operator.

    Returns:
        The axes, and for each dimension of a tensor the axes that form this dimension.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> [(a.name, a.size) for a in axes(trace(net, torch.zeros(1, 3)).graph).free]
        [('0.out', 8)]
    """
    eq = Equations(graph)
    for param in graph.params:
        eq.leaves[param.name] = [eq.new(s) for s in param.shape]
    for node in graph.nodes:
        eq.node = node
        eq.solver.reason = f"meets a dimension that is not a channel axis ({eq.place()})"
        if node.op == "input":
            eq.values[node.name] = [list(map(Fixed, node.shape))]
            continue
        eq.values[node.name] = [[eq.resolve(d) for d in dims] for dims in row(node.op).axes(eq)]
    _state_ends(eq)
    return _axes(eq)


def _state_ends(eq: Equations) -> None:
    """Add the equations for the outputs of a graph and for the buffers that it updates."""
    for ref in dict.fromkeys(i for i in walk(eq.graph.outputs) if isinstance(i, (Ref, Leaf))):
        # The user of an output relies on its sizes.
        for index, layout in enumerate(eq.of(ref)):
            eq.solver.pin(layout, f"dimension {index} of the model's output")
    for buffer, value in eq.graph.updates:
        # A buffer and its update (a running mean and the batch's mean) are cut together.
        for ref in (i for i in walk(value) if isinstance(i, (Ref, Leaf))):
            for a, b in zip(eq.leaves[buffer], eq.of(ref), strict=False):
                eq.unify(a, b)


def _axes(eq: Equations) -> Axes:
    """Return the solved equations, with names instead of variables."""
    for branch in side_branches(eq.graph):
        if branch.low_rank:
            eq.roles.append((eq.leaves[branch.down][branch.rank_dim], "rank", ""))
    public = _public(eq, Naming(eq))
    layouts = _NamedLayouts(eq, public)
    return Axes(
        tuple(public.values()),
        {k: tuple(map(layouts.of, v)) for k, v in eq.leaves.items()},
        {k: tuple(tuple(map(layouts.of, r)) for r in v) for k, v in eq.values.items()},
        {k: restated(v, layouts.of) for k, v in eq.attributes.items()},
        tuple(Contraction(node, layouts.of(d), ends) for d, node, ends in eq.contractions),
        tuple((node, layouts.of(d)) for d, node, _ in eq.runs),
        {
            node: (math.prod(var.size for var in eq.axes_in(shared)), value.size)
            for node, (shared, value) in eq.attention.items()
            if isinstance(value.size, int)
        },
    )


def _public(eq: Equations, naming: Naming) -> dict[Var, Axis]:
    """Return a dict from variable to axis; pin axes of no parameter, and axes of unused leaves."""
    for param in eq.graph.params:
        if not eq.graph.leaf_users[param.name]:
            for layout in eq.leaves[param.name]:
                eq.solver.pin(layout, "no operator uses it")
    public: dict[Var, Axis] = {}
    for var, name in naming.names.items():
        if not var.pinned:
            single = "a single position" if var.size == 1 else ""
            var.pinned = single or ("" if var in naming.weighed else "no parameter has it")
        role, spans = naming.roles.get(var, "channels"), tuple(naming.spans.get(var, ()))
        public[var] = Axis(name, var.size, role, var.pinned, spans)
    return public


class _NamedLayouts:
    """Translates layouts of solved equations to named axes."""

    def __init__(self, eq: Equations, public: Mapping[Var, Axis]) -> None:
        self._eq, self._public = eq, public
        self._cache: dict[int, Layout] = {}  # by identity: resolved layouts stay alive

    def of(self, layout: Layout) -> Layout:
        """Return a layout in terms of named axes."""
        layout = self._eq.resolve(layout)
        if id(layout) not in self._cache:
            self._cache[id(layout)] = self._renamed(layout)
        return self._cache[id(layout)]

    def _renamed(self, layout: Layout) -> Layout:
        match layout:
            case Var():  # a variable without a name is not an axis of any leaf
                axis = self._public.get(layout)
                return Fixed(layout.size) if axis is None else AxisRef(axis.name, axis.size)
            case Prod(factors):
                return product(map(self.of, factors))
            case Sum(terms):
                return concatenation(map(self.of, terms))
            case _:
                return layout


def restated(sizes: StatedSizes, of: Callable[[Layout], Any]) -> Any:
    """Replace each layout in an argument (see :class:`Axes`) by ``of(layout)``; keep numbers."""
    if isinstance(sizes, tuple):
        return tuple(restated(size, of) for size in sizes)
    return sizes if isinstance(sizes, int | Polynomial) or sizes is None else of(sizes)
