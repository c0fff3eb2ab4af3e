"""Facts about an architecture: what can be cut or left out, why not, and what that would save.

Savings are exact: sizes after a cut come from the solved layouts, multiply–accumulates from the
operator table, both only where the axis is met. No graph is rewritten, so all of them together
take about as long as one rewrite; tests hold them against the rewrites themselves.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from archgraph.analysis.axes import Axes, Axis, Kept, axes, size_after, sizes_after
from archgraph.analysis.cost import cost
from archgraph.analysis.structure import Block, Structure, structure
from archgraph.graph.ir import (
    ArchGraph,
    Leaf,
    Node,
    Param,
    Ref,
    TensorType,
    Value,
    per_graph,
    specialise,
    walk,
)
from archgraph.layout.layouts import AxisRef, Layout, Prod, Sum
from archgraph.ops.equations import Sizes
from archgraph.ops.table import macs as node_macs
from archgraph.ops.table import row


@dataclass(frozen=True, slots=True)
class Saving:
    """What a change would save.

    Attributes:
        parameters: Elements of parameters, tied ones once.
        macs: Multiply–accumulates of one example in evaluation.
        parameters_share: The same as a share of the whole model, 0 to 1.
        macs_share: The same as a share of the whole model, 0 to 1.
    """

    parameters: int
    macs: int
    parameters_share: float
    macs_share: float


@dataclass(frozen=True, slots=True)
class Pin:
    """Why an axis cannot be cut.

    Attributes:
        why: The cause, a short fact.
        operator: Operator that pins it; None where no operator uses it.
        node: Name of that operator in the graph.
        place: Module that the operator was called in; a leaf or the model where none is known.
        source: Line of the user's code; None where the graph does not know it.
        remedy: What would free it.
    """

    why: str
    operator: str | None
    node: str | None
    place: str
    source: str | None
    remedy: str


@dataclass(frozen=True, slots=True)
class Member:
    """A dimension of a leaf that an axis is in.

    Attributes:
        leaf: State-dict key.
        shape: Shape of the leaf.
        dimension: Number of the dimension.
        layout: What the dimension is made of; a long concatenation is shortened.
    """

    leaf: str
    shape: tuple[int, ...]
    dimension: int
    layout: str


@dataclass(frozen=True, slots=True)
class AxisFact:
    """An axis.

    Attributes:
        name: Its name.
        size: Number of positions.
        role: ``channels``, ``heads``, ``head_dim`` or ``hidden``.
        free: Whether it may be cut.
        section: Section of the operator that makes it; empty where none does.
        block: Block of that operator.
        spans: Norms, softmaxes and reductions that run over it, as ``what in place``.
        members: Dimensions of leaves that are cut with it.
        operators: Names of the operators whose arguments or results have it.
        halved: Number of positions that stay when half of them go.
        saving: What that saves; None for a pinned axis.
        pin: Why it is pinned; None for a free axis.
    """

    name: str
    size: int
    role: str
    free: bool
    section: str
    block: str
    spans: tuple[str, ...]
    members: tuple[Member, ...]
    operators: tuple[str, ...]
    halved: int
    saving: Saving | None
    pin: Pin | None


@dataclass(frozen=True, slots=True)
class GroupFact:
    """Free axes that belong together: those of a role, or those that a section makes.

    Attributes:
        name: The role or the section.
        axes: Names of the axes.
        saving: What halving all of them saves.
    """

    name: str
    axes: tuple[str, ...]
    saving: Saving


@dataclass(frozen=True, slots=True)
class BlockFact:
    """A block.

    Attributes:
        name: Its name.
        section: Section that holds it.
        kind: ``residual``, ``chain``, ``parallel``, ``dense`` or ``head``.
        removable: Whether it can be left out.
        reason: Why not; empty where it can.
        entry: Operator whose value it consumes.
        exit: Operator whose value it makes.
        operators: Its operators.
        axes: Axes that it makes.
        saving: What leaving it out saves; None where it cannot be left out.
    """

    name: str
    section: str
    kind: str
    removable: bool
    reason: str
    entry: str
    exit: str
    operators: tuple[str, ...]
    axes: tuple[str, ...]
    saving: Saving | None


@dataclass(frozen=True, slots=True)
class LeafFact:
    """A parameter, buffer or constant.

    Attributes:
        name: State-dict key.
        role: ``parameter``, ``buffer`` or ``constant``.
        shape: Its shape.
        layout: What each dimension is made of; long concatenations are shortened.
        axes: Names of the axes in them.
        operators: Names of the operators that use it.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    layout: tuple[str, ...]
    axes: tuple[str, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OperatorFact:
    """An operator of the graph.

    Attributes:
        name: Its name in the graph.
        operator: What it does, e.g. ``aten.conv2d``.
        place: Module that it was called in.
        source: Line of the user's code; None where the graph does not know it.
        section: Section that holds it.
        block: Block that holds it.
        shapes: Shape of each result, ``batch`` included.
        layout: What each dimension of each result is made of, likewise.
        axes: Names of the axes in its arguments and results.
        leaves: Leaves that it uses.
        macs: Multiply–accumulates of one example in evaluation.
    """

    name: str
    operator: str
    place: str
    source: str | None
    section: str
    block: str
    shapes: tuple[str, ...]
    layout: tuple[tuple[str, ...], ...]
    axes: tuple[str, ...]
    leaves: tuple[str, ...]
    macs: int


@dataclass(frozen=True)
class Facts:
    """All facts about a graph, each kind in the order of the graph.

    Attributes:
        parameters: Elements of all parameters, tied ones once.
        macs: Multiply–accumulates of one example in evaluation.
        reach: Share of the parameters that are on a free axis, 0 to 1.
        halving: What halving every free axis saves.
        axes: Axes by name.
        roles: Free axes by role.
        sections: Free axes by section.
        blocks: Blocks by name.
        leaves: Leaves by name.
        operators: Operators by name.
        bill: Prices any other change of the graph.
    """

    parameters: int
    macs: int
    reach: float
    halving: Saving
    axes: Mapping[str, AxisFact]
    roles: Mapping[str, GroupFact]
    sections: Mapping[str, GroupFact]
    blocks: Mapping[str, BlockFact]
    leaves: Mapping[str, LeafFact]
    operators: Mapping[str, OperatorFact]
    bill: Bill = field(compare=False, repr=False)


@per_graph
def facts(graph: ArchGraph) -> Facts:
    """Collect the facts about a graph; cached with it.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> found = facts(trace(net, torch.zeros(1, 3)).graph)
        >>> found.parameters, found.halving.parameters, found.axes["2.out"].pin.place
        (50, 24, '2')
    """
    return _Collector(graph).facts()


class Bill:
    """What a graph costs, and what it would cost with other sizes or without some operators."""

    def __init__(self, graph: ArchGraph) -> None:
        self.graph = graph
        self.solved: Axes = axes(graph)
        self.evaluated = specialise(graph, training=False)
        self.whole = cost(graph)
        self._names: dict[int, frozenset[str]] = {}
        self.leaves_of: dict[str, list[str]] = {a.name: [] for a in self.solved.all}
        self.nodes_of: dict[str, list[str]] = {a.name: [] for a in self.solved.all}
        leaf_names = {
            leaf: frozenset[str]().union(*map(self.names, dims))
            for leaf, dims in self.solved.leaf.items()
        }
        for leaf, held in leaf_names.items():
            for name in held:
                self.leaves_of[name].append(leaf)
        value_names = {
            node: frozenset[str]().union(*(self.names(d) for dims in results for d in dims))
            for node, results in self.solved.value.items()
        }
        stated: dict[str, set[str]] = {}
        for (node_name, _), sizes in self.solved.attributes.items():
            stated.setdefault(node_name, set()).update(*map(self.names, _layouts(sizes)))
        self.met: dict[str, frozenset[str]] = {}
        for node in graph.nodes:
            held = value_names[node.name].union(stated.get(node.name, ()))
            held = held.union(*(value_names[used] for used in node.uses()))
            held = held.union(*(leaf_names[leaf] for leaf in node.leaves()))
            self.met[node.name] = held
            for name in held:
                self.nodes_of[name].append(node.name)
        self.counting = frozenset(n.name for n in self.evaluated.nodes if row(n.op).macs)
        self._trained = _Living(graph)
        self._evaluated = _Living(self.evaluated)
        self._silent: dict[str, list[str]] = {}
        for param in graph.params:
            if not graph.leaf_users[param.name]:
                self._silent.setdefault(param.name.rpartition(".")[0], []).append(param.name)

    def names(self, layout: Layout) -> frozenset[str]:
        """Axes in a layout."""
        key = id(layout)
        if key not in self._names:
            self._names[key] = frozenset(_axis_names(layout))
        return self._names[key]

    def numel(self, leaf: str) -> int:
        """Elements of a leaf that count as parameters."""
        param = self.graph.param[leaf]
        return math.prod(param.shape) if param.role == "parameter" else 0

    def halving(self, chosen: Iterable[Axis | AxisFact]) -> Saving:
        """What halving some axes at once saves; halves are rounded up."""
        return self.cutting({a.name: np.arange(halved(a.size)) for a in chosen})

    def cutting(
        self, kept: Kept, nodes: Collection[str] = (), leaves: Collection[str] = ()
    ) -> Saving:
        """What keeping some positions of some axes saves, some operators and leaves gone."""
        parameters = sum(map(self.numel, leaves))
        macs = sum(self.whole.nodes[name].macs for name in nodes)
        touched = dict.fromkeys(leaf for name in kept for leaf in self.leaves_of[name])
        sizes = {leaf: self._leaf_after(leaf, kept) for leaf in touched}
        for leaf, param in sizes.items():
            if leaf not in leaves and param.role == "parameter":
                parameters += self.numel(leaf) - math.prod(param.shape)
        counted = [
            name
            for name in dict.fromkeys(n for axis in kept for n in self.nodes_of[axis])
            if name in self.counting and name not in nodes
        ]
        if counted:
            small = self._resized(counted, sizes, kept)
            macs += sum(
                self.whole.nodes[name].macs - node_macs(small, small.node[name]) for name in counted
            )
        return self.saving(parameters, macs)

    def skipping(self, block: Block) -> Saving:
        """What leaving a block out saves, with all that only it needs."""
        merge = self.graph.node.get(block.merge)
        terms: list[str] = []
        if block.kind == "dense" and merge is not None:
            inside = set(block.nodes)
            terms = [name for name in _listed(merge) if name in inside]
        # a dense block takes the width that it appends away from all that reads it
        none = np.zeros(0, dtype=np.int64)
        kept = {
            name: none
            for term in terms
            for layout in self.solved.value[term][0]
            for name in self.names(layout)
        }
        gone = self._trained.without(block.exit, block.entry, terms)
        leaves = self._trained.unused(gone)
        for module in {leaf.rpartition(".")[0] for leaf in leaves} & self._silent.keys():
            used = self._trained.leaves_under.get(module, frozenset())
            if used <= leaves:
                leaves = leaves.union(self._silent[module])
        return self.cutting(kept, self._evaluated.without(block.exit, block.entry, terms), leaves)

    def saving(self, parameters: int, macs: int) -> Saving:
        """A saving with its shares."""
        return Saving(
            parameters,
            macs,
            parameters / self.whole.parameters if self.whole.parameters else 0.0,
            macs / self.whole.macs if self.whole.macs else 0.0,
        )

    def _leaf_after(self, leaf: str, kept: Kept) -> Param:
        param = self.graph.param[leaf]
        shape = tuple(
            size if self.names(layout).isdisjoint(kept) else size_after(layout, kept)
            for size, layout in zip(param.shape, self.solved.leaf[leaf], strict=True)
        )
        return Param(leaf, TensorType(shape, param.dtype), param.role)

    def _node_after(self, node: Node, kept: Kept) -> Node:
        """The operator with the sizes after a cut, as far as costs depend on them."""
        layouts = self.solved.value[node.name]
        args = {
            key: sizes_after(sizes, kept)
            for key, _ in node.args
            if (sizes := self.solved.attributes.get((node.name, key), ())) != ()
        }
        if args:
            node = node.with_args(**args)
        if node.op == "input":
            return node
        types = tuple(
            TensorType(tuple(size_after(d, kept) for d in dims), t.dtype)
            if not frozenset[str]().union(*map(self.names, dims)).isdisjoint(kept)
            else t
            for t, dims in zip(node.types, layouts, strict=True)
        )
        return dataclasses.replace(node, type=types if isinstance(node.type, tuple) else types[0])

    def _resized(self, names: Iterable[str], sizes: Mapping[str, Param], kept: Kept) -> ArchGraph:
        """Some operators and all that they use, with the sizes after a cut."""
        nodes: dict[str, Node] = {}
        params: dict[str, Param] = {}
        for name in names:
            node = self.evaluated.node[name]
            for used in (name, *node.uses()):
                if used not in nodes:
                    nodes[used] = self._node_after(self.evaluated.node[used], kept)
            for leaf in node.leaves():
                params[leaf] = sizes.get(leaf) or self.graph.param[leaf]
        return ArchGraph((), tuple(params.values()), tuple(nodes.values()), None)


class _Living:
    """What of a graph its outputs need, and what they need no more without a part of it."""

    def __init__(self, graph: ArchGraph) -> None:
        self.graph = graph
        outputs = list(walk(graph.outputs))
        self.roots = {i.name for i in outputs if isinstance(i, Ref)}
        self.returned = {i.name for i in outputs if isinstance(i, Leaf)}
        live: set[str] = set()
        pending = list(self.roots)
        while pending:
            name = pending.pop()
            if name not in live:
                live.add(name)
                pending.extend(graph.node[name].uses())
        self.users = {n: [u for u in graph.users[n] if u in live] for n in live}
        self.leaf_users = {
            leaf: [u for u in users if u in live] for leaf, users in graph.leaf_users.items()
        }
        under: dict[str, set[str]] = {}
        for leaf, users in graph.leaf_users.items():
            if users:
                under.setdefault(leaf.rpartition(".")[0], set()).add(leaf)
        self.leaves_under = {module: frozenset(held) for module, held in under.items()}

    def without(self, end: str, entry: str, terms: Sequence[str]) -> frozenset[str]:
        """Operators that are gone when a value stands in for another and lists lose terms."""
        starts = {end, *terms}
        gone: set[str] = set()
        pending = [name for name in starts if name in self.users]
        while pending:
            name = pending.pop()
            if name in gone or name == entry or self.graph.node[name].op == "input":
                continue
            needed = name in self.roots or any(u not in gone for u in self.users[name])
            if needed and name not in starts:
                continue
            gone.add(name)
            pending.extend(self.graph.node[name].uses())
        return frozenset(gone)

    def unused(self, gone: Collection[str]) -> frozenset[str]:
        """Leaves that only these operators use."""
        held = {leaf for name in gone for leaf in self.graph.node[name].leaves()}
        return frozenset(
            leaf
            for leaf in held - self.returned
            if all(user in gone for user in self.leaf_users[leaf])
        )


class _Collector:
    """Facts from the analyses."""

    def __init__(self, graph: ArchGraph) -> None:
        self.graph = graph
        self.bill = Bill(graph)
        self.solved = self.bill.solved
        self.found: Structure = structure(graph)
        self.home = {name: block for block in self.found.blocks for name in block.nodes}
        self.returned: dict[str, str] = {}  # the operator that returns an axis
        for name in {i.name: None for i in walk(graph.outputs) if isinstance(i, Ref)}:
            for layout in (d for dims in self.solved.value[name] for d in dims):
                for axis in self.bill.names(layout):
                    self.returned.setdefault(axis, name)
        self.maker: dict[str, str] = {}  # the first operator with a leaf that has an axis
        for node in graph.nodes:
            for leaf in node.leaves():
                for layout in self.solved.leaf[leaf]:
                    for axis in self.bill.names(layout):
                        self.maker.setdefault(axis, node.name)

    def facts(self) -> Facts:
        bill, graph = self.bill, self.graph
        every = {a.name: self._axis(a) for a in self.solved.all}
        made: dict[str, list[str]] = {}
        for axis in every.values():
            made.setdefault(axis.block, []).append(axis.name)
        on_free = {leaf for a in self.solved.free for leaf in bill.leaves_of[a.name]}
        reached = sum(map(bill.numel, on_free))
        order = {a.name: i for i, a in enumerate(self.solved.all)}
        return Facts(
            bill.whole.parameters,
            bill.whole.macs,
            reached / bill.whole.parameters if bill.whole.parameters else 0.0,
            bill.halving(self.solved.free),
            every,
            self._groups((a, a.role) for a in self.solved.free),
            self._groups(
                [(a, every[a.name].section) for a in self.solved.free],
                [s.name for s in self.found.sections],
            ),
            {b.name: self._block(b, tuple(made.get(b.name, ()))) for b in self.found.blocks},
            {
                p.name: LeafFact(
                    p.name,
                    p.role,
                    p.shape,
                    tuple(map(layout_text, self.solved.leaf[p.name])),
                    tuple(n for d in self.solved.leaf[p.name] for n in _axis_names(d)),
                    graph.leaf_users[p.name],
                )
                for p in graph.params
            },
            {n.name: self._operator(n, order) for n in graph.nodes},
            bill,
        )

    def _axis(self, axis: Axis) -> AxisFact:
        home = self.home.get(self.maker.get(axis.name, ""))
        members = tuple(
            Member(leaf, self.graph.param[leaf].shape, i, layout_text(layout, axis.name))
            for leaf in self.bill.leaves_of[axis.name]
            for i, layout in enumerate(self.solved.leaf[leaf])
            if axis.name in self.bill.names(layout)
        )
        return AxisFact(
            axis.name,
            axis.size,
            axis.role,
            axis.free,
            home.section if home else "",
            home.name if home else "",
            axis.spans,
            members,
            tuple(self.bill.nodes_of[axis.name]),
            halved(axis.size),
            self.bill.halving([axis]) if axis.free else None,
            None if axis.free else self._pin(axis),
        )

    def _groups(
        self, pairs: Iterable[tuple[Axis, str]], names: Iterable[str] = ()
    ) -> dict[str, GroupFact]:
        groups: dict[str, list[Axis]] = {name: [] for name in names}
        for axis, name in pairs:
            groups.setdefault(name, []).append(axis)
        return {
            name: GroupFact(name, tuple(a.name for a in members), self.bill.halving(members))
            for name, members in groups.items()
        }

    def _block(self, block: Block, made: tuple[str, ...]) -> BlockFact:
        return BlockFact(
            block.name,
            block.section,
            block.kind,
            block.removable,
            block.reason,
            block.entry,
            block.exit,
            block.nodes,
            made,
            self.bill.skipping(block) if block.removable else None,
        )

    def _operator(self, node: Node, order: Mapping[str, int]) -> OperatorFact:
        home = self.home.get(node.name)
        return OperatorFact(
            node.name,
            node.op,
            node.scope,
            node.source or None,
            home.section if home else "",
            home.name if home else "",
            tuple(map(str, node.types)),
            tuple(tuple(map(layout_text, dims)) for dims in self.solved.value[node.name]),
            tuple(sorted(self.bill.met[node.name], key=order.__getitem__)),
            tuple(dict.fromkeys(node.leaves())),
            self.bill.whole.nodes[node.name].macs,
        )

    def _pin(self, axis: Axis) -> Pin:
        """The reason taken apart: what, which operator, where in the model and in its source."""
        why, node, said = axis.reason, None, None
        found = _PLACE.fullmatch(axis.reason)
        if found is not None and found["node"] in self.graph.node:
            why, said, node = found["why"], found["remedy"], self.graph.node[found["node"]]
        if node is None:
            name = self.returned.get(axis.name) or self.maker.get(axis.name)
            node = self.graph.node[name] if name else None
        if node is None:
            place = self.bill.leaves_of[axis.name][0]
            return Pin(why, None, None, place, None, _remedy(why, said, False))
        first = next(iter(node.leaves()), "").rpartition(".")[0]
        given = any(self.graph.node[used].op == "input" for used in node.uses())
        return Pin(
            why,
            node.op,
            node.name,
            node.scope or first or "the model itself",
            node.source or None,
            _remedy(why, said, given),
        )


# Terms of a concatenation that are told; a dense network has one of hundreds in every leaf.
TERMS = 8


def layout_text(layout: Layout, axis: str = "") -> str:
    """A layout in words; of a long concatenation its ends and the terms with an axis.

    >>> layout_text(Sum(tuple(AxisRef(name, 2) for name in "abcdefghi")), "d")
    'a[2] + … + d[2] + … + i[2]'
    """
    match layout:
        case Prod(factors):
            texts = ((f, layout_text(f, axis)) for f in factors)
            return " × ".join(f"({text})" if isinstance(f, Sum) else text for f, text in texts)
        case Sum(terms) if len(terms) > TERMS:
            told = {0, len(terms) - 1}
            told |= {i for i, term in enumerate(terms) if axis in _axis_names(term)}
            parts = [layout_text(t, axis) if i in told else "…" for i, t in enumerate(terms)]
            return " + ".join(text for text, _ in itertools.groupby(parts))
        case Sum(terms):
            return " + ".join(layout_text(term, axis) for term in terms)
        case _:
            return str(layout)


# The reason of an operator: `indexed by values (aten.index.Tensor %index in net at net.py:12)`,
# and what would free the axis, if anything.
_PLACE = re.compile(
    r"(?P<why>.*?) \((?P<op>\S+) %(?P<node>\S+?)(?: in (?P<scope>.*?))?(?: at (?P<source>.*?))?\)"
    r"(?:; (?P<remedy>.*))?",
    re.DOTALL,
)

# What would free an axis where no operator says it, by how the reason begins.
_REMEDIES = (
    ("kernel size", "nothing: it is the extent of a kernel, not a width"),
    ("dimension ", "a layer after it: what callers receive keeps its size"),
    ("no operator uses it", "an operator that uses it"),
    ("a single position", "nothing: one position cannot be cut"),
    (
        "meets a dimension that is no channel axis",
        "nothing where that counts pixels or tokens; else a layer with weights between",
    ),
)


def _remedy(why: str, said: str | None, given: bool) -> str:
    if said:
        return said.removesuffix(" would free it")
    if given and why.startswith("meets a dimension"):
        return "another input: its size comes from outside"
    for beginning, remedy in _REMEDIES:
        if why.startswith(beginning):
            return remedy
    return "nothing: its positions are no channels"


def halved(size: int) -> int:
    """Positions that stay of an axis when half of them go, as :func:`archgraph.take` rounds."""
    return -(-size // 2)


def _axis_names(layout: Layout) -> Iterator[str]:
    match layout:
        case AxisRef(name):
            yield name
        case Prod(parts) | Sum(parts):
            for part in parts:
                yield from _axis_names(part)


def _layouts(sizes: Sizes) -> Iterator[Layout]:
    if isinstance(sizes, tuple):
        for item in sizes:
            yield from _layouts(item)
    elif sizes is not None and not isinstance(sizes, int):
        yield sizes


def _listed(node: Node) -> list[str]:
    """Operands that an operator takes in lists."""
    lists: Iterable[tuple[Value, ...]] = (v for _, v in node.args if isinstance(v, tuple))
    return [i.name for v in lists for i in v if isinstance(i, Ref)]


def plain(fact: Any) -> Any:
    """A fact as values that JSON can write: dataclasses as mappings, tuples as lists."""
    if dataclasses.is_dataclass(fact):
        return {f.name: plain(getattr(fact, f.name)) for f in dataclasses.fields(fact)}
    if isinstance(fact, tuple):
        return [plain(item) for item in fact]
    return fact
