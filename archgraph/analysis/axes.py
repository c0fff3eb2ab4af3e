"""Axes: which parameter dimensions change together when a layer gets wider or narrower."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from archgraph.errors import AxisError
from archgraph.graph.ir import ArchGraph, Leaf, Ref, Size, Value, per_graph, walk
from archgraph.hints import similar
from archgraph.layout.layouts import (
    AxisRef,
    Fixed,
    Layout,
    Prod,
    Sum,
    Var,
    concatenation,
    leaves,
    product,
)
from archgraph.ops.equations import Equations, Sizes
from archgraph.ops.table import row


@dataclass(frozen=True, slots=True)
class Axis:
    """A set of tensor dimensions (or factors of them) that are cut together.

    Attributes:
        name: Its producer, e.g. ``layer1.0.conv1.out`` or ``encoder.attn.qkv.heads``.
        size: Number of positions.
        role: ``channels``, ``heads``, ``head_dim`` or ``hidden``.
        reason: Why it cannot be cut; empty where it can.
        spans: Norms, softmaxes and reductions that run over it, as ``what in place``: cutting it
            changes what they compute, so that mask ≡ take does not hold for it.
    """

    name: str
    size: int
    role: str = "channels"
    reason: str = ""
    spans: tuple[str, ...] = ()

    @property
    def free(self) -> bool:
        """Whether it may be cut."""
        return not self.reason


@dataclass(frozen=True, slots=True)
class Contraction:
    """A product of tensors that an operator sums over a dimension of each.

    Attributes:
        node: The operator.
        layout: What is summed over.
        operands: Each with its dimension.
    """

    node: str
    layout: Layout
    operands: tuple[tuple[Value, int], ...]


@dataclass(frozen=True)
class Axes:
    """All axes of a graph, and of what layout every dimension is.

    Attributes:
        all: Axes in order of their producers.
        leaf: Layouts of each leaf's dimensions.
        value: Layouts of each operator's results.
        attributes: Layouts whose sizes an operator's argument states, by (node, argument).
        contractions: Products that are summed over a layout.
        runs: Layouts that an operator runs over otherwise (norms, softmaxes, sums), by node.
    """

    all: tuple[Axis, ...]
    leaf: Mapping[str, tuple[Layout, ...]]
    value: Mapping[str, tuple[tuple[Layout, ...], ...]]
    attributes: Mapping[tuple[str, str], Sizes]
    contractions: tuple[Contraction, ...] = ()
    runs: tuple[tuple[str, Layout], ...] = ()

    @property
    def free(self) -> tuple[Axis, ...]:
        """Axes that may be cut."""
        return tuple(a for a in self.all if a.free)

    @property
    def pinned(self) -> tuple[Axis, ...]:
        """Axes that may not, each with its reason."""
        return tuple(a for a in self.all if not a.free)

    def __getitem__(self, name: str) -> Axis:
        """Axis by name.

        Raises:
            AxisError: Names the nearest axis.
        """
        for axis in self.all:
            if axis.name == name:
                return axis
        raise _no_axis(name, [a.name for a in self.all])

    def of(self, leaf: str) -> tuple[Layout, ...]:
        """Layouts of a leaf's dimensions.

        Raises:
            AxisError: If the graph has no such leaf.
        """
        if leaf not in self.leaf:
            raise _no_axis(leaf, list(self.leaf))
        return self.leaf[leaf]

    def match(self, pattern: str) -> tuple[Axis, ...]:
        """Free axes by name, role or pattern (``layer1.*``, ``heads``), in order.

        A prefix matches whole name parts: ``layer1`` stands for ``layer1.*``.

        Raises:
            AxisError: If nothing matches; says whether a pinned axis does, and why it is pinned.
        """
        found = tuple(a for a in self.all if _matches(a, pattern))
        free = tuple(a for a in found if a.free)
        if free:
            return free
        if found:
            raise AxisError("axis cannot be cut", where=found[0].name, found=found[0].reason)
        raise _no_axis(pattern, [a.name for a in self.all])


def _matches(axis: Axis, pattern: str) -> bool:
    return (
        axis.name == pattern
        or axis.role == pattern
        or axis.name.startswith(pattern + ".")
        or fnmatch.fnmatchcase(axis.name, pattern)
    )


def _no_axis(name: str, known: Sequence[str]) -> AxisError:
    near = similar(name, known, cutoff=0.4)
    return AxisError("no such axis", found=name, expected=near[0] if near else ", ".join(known[:8]))


@per_graph
def axes(graph: ArchGraph) -> Axes:
    """Solve the axis equations of a graph.

    Args:
        graph: Any graph; an operator without a row pins what it touches and says so.

    Returns:
        Axes and layouts; cached with the graph.

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
    for path, ref in _outputs(graph.outputs):
        for index, layout in enumerate(eq.of(ref)):
            eq.solver.pin(layout, f"dimension {index} of the model's output{path}")
    for buffer, value in graph.updates:
        for ref in (i for i in walk(value) if isinstance(i, (Ref, Leaf))):
            for a, b in zip(eq.leaves[buffer], eq.of(ref), strict=False):
                eq.unify(a, b)
    return _Naming(eq).axes()


def _outputs(value: Value, path: str = "") -> Iterable[tuple[str, Ref | Leaf]]:
    for item in dict.fromkeys(i for i in walk(value) if isinstance(i, (Ref, Leaf))):
        yield path, item


class _Naming:
    """Turn solved variables into named axes."""

    def __init__(self, eq: Equations) -> None:
        self.eq = eq
        self.roles: dict[Var, str] = {}
        self.spans: dict[Var, dict[str, None]] = {}
        self.names: dict[Var, str] = {}
        self.spoken: dict[str, int] = {}
        self.held: set[Var] = set()
        self.inside: dict[int, tuple[Var, ...]] = {}
        self.done: set[int] = set()  # runs of axes that all have names

    def axes(self) -> Axes:
        eq = self.eq
        for layout, role, _ in eq.roles:
            for var in self._vars(layout):
                self.roles.setdefault(var, role)
        for layout, node, what in eq.spans:
            place = eq.graph.node[node].scope or f"%{node}"
            for var in self._vars(layout):
                self.spans.setdefault(var, {})[f"{what} in {place}"] = None
        seen: set[int] = set()
        met: dict[Var, int] = {}  # order of the axes: as operators meet their leaves
        used = [leaf for node in eq.graph.nodes for leaf in node.leaves()]
        for leaf in dict.fromkeys([*used, *eq.leaves]):
            for found in map(self._vars, eq.leaves[leaf]):
                if len(found) == 1 or id(found) not in seen:
                    seen.add(id(found))
                    for var in found:
                        met.setdefault(var, len(met))
        self.held = set(met)
        weighed = {
            var
            for param in eq.graph.params
            if param.role == "parameter"
            for layout in eq.leaves[param.name]
            for var in self._vars(layout)
        }
        for user in eq.graph.nodes:  # a weight's sides say best what an axis is
            sides = row(user.op).sides
            for argument, value in user.args:
                for item in walk(value) if argument in sides else ():
                    if isinstance(item, Leaf):
                        self._name_leaf(item.name, sides[argument])
                    elif isinstance(item, Ref) and user.scope:
                        self._name(user.scope, "", eq.of(item), sides[argument])
        constant = {p.name: p.role == "constant" for p in eq.graph.params}
        for leaf in sorted(dict.fromkeys(used), key=constant.__getitem__):
            self._name_leaf(leaf, ())
        for param in eq.graph.params:
            self._name_leaf(param.name, ())
            if not eq.graph.leaf_users[param.name]:
                for layout in eq.leaves[param.name]:
                    eq.solver.pin(layout, "no operator uses it")
        ordered = sorted(self.names, key=met.__getitem__)
        for var in ordered:
            if var.size == 1 and not var.pinned:
                var.pinned = "a single position"
            elif var not in weighed and not var.pinned:
                var.pinned = "no parameter has it"
        public = {
            var: Axis(
                name,
                var.size,
                self.roles.get(var, "channels"),
                var.pinned,
                tuple(self.spans.get(var, ())),
            )
            for var, name in ((var, self.names[var]) for var in ordered)
        }

        shown: dict[int, Layout] = {}  # by identity, as in _vars

        def show(layout: Layout) -> Layout:
            layout = eq.resolve(layout)
            if id(layout) not in shown:
                match layout:
                    case Var():
                        axis = public.get(layout)
                        found: Layout = Fixed(layout.size)
                        found = AxisRef(axis.name, axis.size) if axis else found
                    case Prod(factors):
                        found = product(map(show, factors))
                    case Sum(terms):
                        found = concatenation(map(show, terms))
                    case _:
                        return layout
                shown[id(layout)] = found
            return shown[id(layout)]

        def show_sizes(sizes: Sizes) -> Sizes:
            if isinstance(sizes, tuple):
                return tuple(show_sizes(s) for s in sizes)
            return sizes if isinstance(sizes, int) or sizes is None else show(sizes)

        return Axes(
            tuple(public.values()),
            {k: tuple(map(show, v)) for k, v in eq.leaves.items()},
            {k: tuple(tuple(map(show, r)) for r in v) for k, v in eq.values.items()},
            {k: show_sizes(v) for k, v in eq.attributes.items()},
            tuple(Contraction(node, show(d), given) for d, node, given in eq.contractions),
            tuple((node, show(d)) for d, node, _ in eq.runs),
        )

    def _vars(self, layout: Layout) -> tuple[Var, ...]:
        layout = self.eq.resolve(layout)
        if isinstance(layout, Var):
            return (layout,)
        if isinstance(layout, Fixed):
            return ()
        found = self.inside.get(id(layout))  # nothing is bound any more: resolved ones stay alive
        if found is None:
            found = tuple(v for v in leaves(layout) if isinstance(v, Var))
            self.inside[id(layout)] = found
        return found

    def _name_leaf(self, leaf: str, sides: Sequence[str]) -> None:
        prefix, _, last = leaf.rpartition(".")
        self._name(prefix or last, leaf, self.eq.leaves[leaf], sides)

    def _name(self, owner: str, leaf: str, dims: Sequence[Layout], sides: Sequence[str]) -> None:
        """Name the axes of a tensor by its owner and their sides, or by the leaf's dimensions.

        A weight that is computed from leaves (weight norm, a scaled kernel) is named after its
        user.
        """
        for index, layout in enumerate(dims):
            found = self._vars(layout)
            if id(found) in self.done:
                continue
            if len(found) > 1 and (leaf or index < len(sides)):
                self.done.add(id(found))
            for position, var in enumerate(found):
                if var in self.names or var not in self.held:
                    continue
                role = self.roles.get(var)
                if role:
                    stem = f"{owner}.{role}"
                else:
                    if index < len(sides):
                        stem = f"{owner}.{sides[index]}"
                    elif leaf:
                        stem = f"{leaf}.{index}"
                    else:
                        continue
                    if len(found) > 1:
                        stem += f".{position}"
                self.names[var] = self._fresh(stem)

    def _fresh(self, stem: str) -> str:
        count = self.spoken.get(stem, 0)
        self.spoken[stem] = count + 1
        return stem if not count else f"{stem}~{count + 1}"


# -- positions --------------------------------------------------------------------------------

Kept = Mapping[str, np.ndarray]  # positions kept, by axis name; an axis not named keeps all


def size_after(layout: Layout, kept: Kept) -> Size:
    """Size of a layout when some axes keep only some positions."""
    match layout:
        case AxisRef(name, size):
            return len(kept[name]) if name in kept else size
        case Prod(factors):
            total: Size = 1
            for f in factors:
                total = size_after(f, kept) * total
            return total
        case Sum(terms):
            return sum(s for s in (size_after(t, kept) for t in terms) if isinstance(s, int))
        case _:
            return layout.size


def sizes_after(sizes: Sizes, kept: Kept) -> Value:
    """Value of an argument that states the sizes of layouts."""
    if isinstance(sizes, tuple):
        return tuple(sizes_after(s, kept) for s in sizes)
    if sizes is None or isinstance(sizes, int):
        return sizes
    return size_after(sizes, kept)


def touched(layout: Layout, kept: Kept) -> bool:
    """Whether a layout contains an axis that is cut."""
    return any(isinstance(a, AxisRef) and a.name in kept for a in leaves(layout))


def shares(layout: Layout, kept: Kept, share: Mapping[str, np.ndarray]) -> np.ndarray:
    """A number for each position that stays: the product of those of its axes.

    Args:
        layout: A dimension's layout.
        kept: Positions kept, repeated or not, by axis.
        share: The number of each kept position, by axis; an axis not named has ones.

    >>> layout = Prod((AxisRef("heads", 2), AxisRef("head_dim", 3)))
    >>> shares(layout, {"heads": np.array([0, 1, 1])}, {"heads": np.array([1, 0.5, 0.5])})
    array([1. , 1. , 1. , 0.5, 0.5, 0.5, 0.5, 0.5, 0.5])
    """
    match layout:
        case AxisRef(name, size):
            return share[name] if name in share else np.ones(len(kept.get(name, range(size))))
        case Prod(factors):
            result = np.ones(1)
            for f in factors:
                result = np.multiply.outer(result, shares(f, kept, share)).reshape(-1)
            return result
        case Sum(terms):
            return np.concatenate([shares(t, kept, share) for t in terms])
        case _:
            assert isinstance(layout.size, int)
            return np.ones(layout.size)


def positions(layout: Layout, kept: Kept) -> np.ndarray:
    """Positions of a dimension that stay, in order: Kronecker for products, blocks for sums.

    >>> layout = Prod((AxisRef("heads", 2), AxisRef("head_dim", 3)))
    >>> positions(layout, {"head_dim": np.array([0, 2])})
    array([0, 2, 3, 5])
    """
    match layout:
        case AxisRef(name, size):
            return np.asarray(kept[name]) if name in kept else np.arange(size)
        case Prod(factors):
            index = np.zeros(1, dtype=np.int64)
            for f in factors:
                if not isinstance(f.size, int):
                    raise AxisError("a flattened batch axis has no positions")
                index = (index[:, None] * f.size + positions(f, kept)[None, :]).reshape(-1)
            return index
        case Sum(terms):
            parts, offset = [], 0
            for t in terms:
                parts.append(positions(t, kept) + offset)
                assert isinstance(t.size, int)
                offset += t.size
            return np.concatenate(parts)
        case _:
            assert isinstance(layout.size, int)
            return np.arange(layout.size)
