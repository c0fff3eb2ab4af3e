"""Join and meet: the least architecture that contains all, the greatest that all contain."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import networkx as nx
import numpy as np

from archgraph.analysis.axes import axes
from archgraph.analysis.structure import Block, structure
from archgraph.analysis.widths import Equation, alike, axes_of, side_by_side, solve
from archgraph.errors import ArchGraphError, RewriteError
from archgraph.graph.ir import ArchGraph, Leaf, Node, Ref, Value, prune, renumber, replace, walk
from archgraph.layout.layouts import AxisRef
from archgraph.ops.check import check
from archgraph.ops.infer import infer
from archgraph.relate.align import Alignment, Unmatched, align
from archgraph.rewrite.depth import graft, skip
from archgraph.rewrite.insert import last_leaf, with_leaves
from archgraph.rewrite.width import cut
from archgraph.states import Transfer

Found: TypeAlias = "tuple[ArchGraph, Mapping[ArchGraph, Transfer]]"


@dataclass(frozen=True)
class Joined:
    """The least architecture that contains some others.

    Attributes:
        graph: The architecture.
        transfers: From its states to those of each of the others, in the order given: blocks left
            out, a prefix of every axis.
    """

    graph: ArchGraph
    transfers: tuple[Transfer, ...]


@dataclass(frozen=True)
class Met:
    """The greatest architecture that some others contain.

    Attributes:
        graph: The architecture.
        transfers: From the states of each of the others, in the order given, to its own.
    """

    graph: ArchGraph
    transfers: tuple[Transfer, ...]


def join(graphs: Iterable[ArchGraph]) -> Joined:
    """Find the least architecture that contains all of some, whoever wrote them.

    Per section it has the most blocks that any of them has, per axis the largest width; what could
    be left out in all that have it still can be. Names are those of the graph with most blocks.
    What it lacks is added by repeating a section's last block, or by copying the block behind its
    predecessor's counterpart.

    Args:
        graphs: At least one.

    Raises:
        RewriteError: If two of them cannot be brought together; names the first part that stands
            in the way, and why.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> def net(*widths):
        ...     layers = []
        ...     for a, b in zip((3, *widths), widths):
        ...         layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
        ...     layers += [torch.nn.Linear(widths[-1], 2)]
        ...     return trace(torch.nn.Sequential(*layers), torch.zeros(1, 3)).graph
        >>> joined = join([net(8), net(4, 4)])
        >>> [p.shape for p in joined.graph.params if "weight" in p.name]
        [(8, 3), (8, 8), (2, 8)]
    """
    given = _given(graphs, "join")
    bases = sorted(dict.fromkeys(given), key=_extent, reverse=True)
    graph, transfers = _first_of(bases, _joined)
    return Joined(graph, tuple(transfers[g] for g in given))


def meet(graphs: Iterable[ArchGraph]) -> Met:
    """Find the greatest architecture that all of some contain, whoever wrote them.

    Per section it has the blocks that all of them have, per axis the smallest width. Names are
    those of the graph with fewest blocks.

    Args:
        graphs: At least one.

    Raises:
        RewriteError: If a block that one of them lacks cannot be left out; names it, and why.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> def net(*widths):
        ...     layers = []
        ...     for a, b in zip((3, *widths), widths):
        ...         layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
        ...     layers += [torch.nn.Linear(widths[-1], 2)]
        ...     return trace(torch.nn.Sequential(*layers), torch.zeros(1, 3)).graph
        >>> met = meet([net(8), net(4, 4)])
        >>> [p.shape for p in met.graph.params if "weight" in p.name]
        [(4, 3), (2, 4)]
    """
    given = _given(graphs, "meet")
    bases = sorted(dict.fromkeys(given), key=_extent)
    graph, transfers = _first_of(bases, _met)
    return Met(graph, tuple(transfers[g] for g in given))


def _given(graphs: Iterable[ArchGraph], what: str) -> tuple[ArchGraph, ...]:
    given = tuple(graphs) if isinstance(graphs, Iterable) else (graphs,)
    if isinstance(graphs, ArchGraph) or not all(isinstance(g, ArchGraph) for g in given):
        found = type(graphs) if isinstance(graphs, ArchGraph) else [type(g) for g in given]
        raise RewriteError(f"not graphs to {what}", found=found, expected="several ArchGraph")
    if not given:
        raise RewriteError(f"nothing to {what}", expected="at least one graph")
    return given


def _extent(graph: ArchGraph) -> tuple[int, int, int, str]:
    """What graphs are ordered by: sections, blocks, numbers in the state; then any order."""
    found = structure(graph)
    size = sum(math.prod(p.shape) for p in graph.params if p.role != "constant")
    return len(found.sections), len(found.blocks), size, graph.digest


def _first_of(
    bases: Sequence[ArchGraph], make: Callable[[ArchGraph, Sequence[ArchGraph]], Found]
) -> Found:
    """What is made from the first graph from which it can be.

    Raises:
        RewriteError: Why it cannot be made from the first one, if from none.
    """
    problem: ArchGraphError | None = None
    for base in bases:
        try:
            return make(base, bases)
        except ArchGraphError as error:
            problem = problem or error
    assert problem is not None
    raise problem


# -- join ---------------------------------------------------------------------------------------


def _joined(base: ArchGraph, graphs: Sequence[ArchGraph]) -> Found:
    whole = base
    for graph in graphs:
        whole = _deepened(whole, graph)
    found = [align(graph, whole) for graph in graphs]
    sizes = _sizes(whole, found)
    tied = nx.Graph(_ties(whole, found))
    tied.add_nodes_from(sizes)
    widest: dict[str, int] = {}
    for group in nx.connected_components(tied):
        claimed = [n for axis in group for n in sizes.get(axis, ())]
        widest |= {axis: max(claimed) for axis in group if claimed}
    whole = _cut(whole, widest)
    return whole, {graph: align(graph, whole).transfer for graph in graphs}


def _deepened(whole: ArchGraph, graph: ArchGraph) -> ArchGraph:
    """A graph with all blocks of another one, of whatever widths.

    Raises:
        RewriteError: Names the first block that has no place in it.
    """
    found = align(graph, whole)
    while any(item.side == "client" for item in found.unmatched):
        problem = ""
        for grow in _ways(whole, graph, found):
            try:
                grown = grow()
            except ArchGraphError as error:
                problem = str(error)
                continue
            again = align(graph, grown)
            if len(again.nodes) > len(found.nodes):
                whole, found = grown, again
                break
        else:
            item = next(item for item in found.unmatched if item.side == "client")
            raise RewriteError(
                "graphs cannot be joined",
                where=f"{graph.name or 'graph'}: {item.part}",
                hint=f"{item.reason}; {problem}" if problem else item.reason,
            )
    return whole


def _ways(
    whole: ArchGraph, graph: ArchGraph, found: Alignment
) -> Iterator[Callable[[], ArchGraph]]:
    """Ways to add the first block that the whole lacks: a repetition, else a copy."""
    names = {name for name, _ in found.blocks}
    missing = [b for b in structure(graph).blocks if b.name not in names]
    if not missing:
        return
    first = missing[0]
    same = sum(b.section == first.section for b in missing)
    for name in [b for a, b in found.sections if a == first.section]:
        depth = len(structure(whole).section(name).blocks)
        for more in dict.fromkeys((same, 1)):
            yield functools.partial(_repeated, whole, name, depth + more)
    yield lambda: _Copy(whole, graph, found, first).graph()


def _repeated(whole: ArchGraph, section: str, depth: int) -> ArchGraph:
    return graft(whole, {section: depth}).graph


class _Copy:
    """A block of one graph on its way into another."""

    def __init__(self, whole: ArchGraph, graph: ArchGraph, found: Alignment, block: Block) -> None:
        self.whole, self.found, self.block = whole, found, block
        self.spot, behind = self._spot(graph)
        self.last = last_leaf(whole, behind) if behind is not None else ""
        self.given = self._fitted(graph)
        self.module = self._module()

    def graph(self) -> ArchGraph:
        """The whole with the block in it.

        Raises:
            RewriteError: If it cannot stand alone.
            GraphError: If what follows does not work on its result.
        """
        nodes, updates = self._nodes()
        names = {n.name: f"{n.name}~new" for n in nodes} | {self.block.entry: self.spot}
        used = {leaf for n in nodes for leaf in n.leaves()}
        self._alone(nodes, used)
        used |= self._silent(used)
        leaf = {name: self._renamed(name) for name in used}

        def change(value: Value) -> Value:
            match value:
                case Ref(name):
                    return Ref(names[name])
                case Leaf(name):
                    return Leaf(leaf[name])
                case _:
                    return value

        made = [
            dataclasses.replace(
                n,
                name=names[n.name],
                args=tuple((k, replace(v, change)) for k, v in n.args),
                scope=self.module(n.scope),
            )
            for n in nodes
        ]
        end = Ref(names[self.block.exit])

        def follow(value: Value) -> Value:
            return end if value == Ref(self.spot) else value

        after = [
            dataclasses.replace(n, args=tuple((k, replace(v, follow)) for k, v in n.args))
            for n in self.whole.nodes
        ]
        at = next(i for i, n in enumerate(after) if n.name == self.spot) + 1
        params = [
            (self.last, dataclasses.replace(p, name=leaf[p.name], aliases=()))
            for p in self.given.params
            if p.name in leaf
        ]
        new = self.whole.replace(
            nodes=(*after[:at], *made, *after[at:]),
            params=with_leaves(self.whole, params),
            outputs=replace(self.whole.outputs, follow),
            updates=(
                *self.whole.updates,
                *((leaf[k], replace(v, change)) for k, v in updates),
            ),
            sections=(),
        )
        new = renumber(infer(new))
        check(new)
        return new

    def _spot(self, graph: ArchGraph) -> tuple[str, Block | None]:
        """The result behind which the block goes, and the block that makes it.

        Raises:
            RewriteError: If the other graph has something of its own there.
        """
        pairs = dict(self.found.blocks)
        mine, theirs = structure(graph).blocks, structure(self.whole).blocks
        place = {b.name: i for i, b in enumerate(theirs)}
        index = [b.name for b in mine].index(self.block.name)
        after = [place[pairs[b.name]] for b in mine[:index] if b.name in pairs]
        before = [place[pairs[b.name]] for b in mine[index:] if b.name in pairs]
        begin, end = max(after, default=-1), min(before, default=len(theirs))
        matched = {name for _, name in self.found.blocks}
        others = [b for b in theirs[begin + 1 : end] if b.name not in matched and not b.removable]
        if others and not self.block.removable:
            raise RewriteError(
                "the other graph has a block of its own there",
                where=self.block.name,
                found=f"{others[0].name}, which {others[0].reason}",
            )
        before_it = next((b for b in mine if b.exit == self.block.entry), None)
        if before_it is None:
            inputs = [[n.name for n in g.nodes if n.op == "input"] for g in (graph, self.whole)]
            if self.block.entry not in inputs[0] or len(inputs[0]) != len(inputs[1]):
                raise RewriteError("takes what no block makes", where=self.block.name)
            return inputs[1][inputs[0].index(self.block.entry)], None
        if before_it.name not in pairs:
            raise RewriteError("what comes before it has no counterpart", where=self.block.name)
        behind = theirs[place[pairs[before_it.name]]]
        return behind.exit, behind

    def _fitted(self, graph: ArchGraph) -> ArchGraph:
        """The block's graph, cut or widened so that the block fits where it goes.

        Raises:
            RewriteError: If it does not.
        """
        solved = axes(graph)
        there = axes(self.whole).value[self.spot][0]
        shape = self.whole.node[self.spot].shape
        equations: list[Equation] = []
        for name in (self.block.entry, self.block.exit):
            layouts = solved.value[name][0]
            if len(layouts) != len(there):
                raise RewriteError(
                    "makes a result of another rank",
                    where=self.block.name,
                    found=len(layouts),
                    expected=len(there),
                )
            for mine, theirs, size in zip(layouts, there, shape, strict=True):
                if isinstance(size, int) and axes_of(mine):
                    parts = side_by_side(mine, theirs)
                    equations += [(self.block.name, part, wanted) for part, wanted in parts]
        claims, open_ = solve(equations)
        if open_ or any(len(sizes) > 1 for sizes in claims.values()):
            raise RewriteError("does not fit where it would go", where=self.block.name)
        return _cut(graph, {axis: sizes[0] for axis, sizes in claims.items()})

    def _nodes(self) -> tuple[list[Node], list[tuple[str, Value]]]:
        """The operators that make the block's result or keep its counters, and the counters."""
        inside = set(self.block.nodes) - {self.block.entry}
        node = self.given.node
        updates = [
            (k, v)
            for k, v in self.given.updates
            if inside.issuperset(i.name for i in walk(v) if isinstance(i, Ref))
            and inside.issuperset(self.given.leaf_users[k])
        ]
        needed: set[str] = set()
        pending = [self.block.exit]
        pending += [i.name for _, v in updates for i in walk(v) if isinstance(i, Ref)]
        while pending:
            name = pending.pop()
            if name in needed or name == self.block.entry:
                continue
            if name not in inside:
                raise RewriteError(f"takes %{name} from elsewhere", where=self.block.name)
            needed.add(name)
            pending += node[name].uses()
        return [n for n in self.given.nodes if n.name in needed], updates

    def _alone(self, nodes: Sequence[Node], used: set[str]) -> None:
        """Check that nothing else has the block's weights.

        Raises:
            RewriteError: Names a leaf that is shared.
        """
        names = {n.name for n in nodes}
        shared = [k for k in sorted(used) if not names.issuperset(self.given.leaf_users[k])]
        if shared:
            raise RewriteError(f"shares {shared[0]} with others", where=self.block.name)

    def _silent(self, used: set[str]) -> set[str]:
        """Leaves of the block's modules that no operator uses (counters)."""
        modules = {name.rpartition(".")[0] for name in used}
        return {
            p.name
            for p in self.given.params
            if p.role != "constant"
            and not self.given.leaf_users[p.name]
            and p.name.rpartition(".")[0] in modules
        }

    def _module(self) -> Callable[[str], str]:
        """New names of the block's modules: their own where those are free."""
        taken = {n for p in self.whole.params for n in (p.name, *p.aliases)}
        taken |= {n.scope for n in self.whole.nodes}
        nodes = [self.given.node[n] for n in self.block.nodes]
        used = {leaf for n in nodes for leaf in n.leaves()}
        wanted = {n.scope for n in nodes} | used | {leaf.rpartition(".")[0] for leaf in used}
        wanted = {name for name in wanted if name not in {"", self.block.name.rpartition(".")[0]}}
        for count in itertools.count():
            rename = _numbered(self.block.name, count)
            if taken.isdisjoint(map(rename, wanted)):
                return rename
        raise AssertionError

    def _renamed(self, leaf: str) -> str:
        prefix, _, last = leaf.rpartition(".")
        module = self.module(prefix) if prefix else ""
        return f"{module}.{last}" if module else self.module(last)


def _numbered(block: str, count: int) -> Callable[[str], str]:
    """A function that tells the modules of a copied block from others of their names."""

    def rename(module: str) -> str:
        if not count or not module:
            return module
        if module == block or module.startswith(f"{block}."):
            return f"{block}_{count}{module[len(block) :]}"
        return f"{module}_{count}"

    return rename


# -- meet ---------------------------------------------------------------------------------------


def _met(base: ArchGraph, graphs: Sequence[ArchGraph]) -> Found:
    common = base
    for graph in graphs:
        found = align(common, graph)
        while gone := [item for item in found.unmatched if item.side == "client"]:
            common = _without(common, gone[0])
            found = align(common, graph)
    sizes = _sizes(common, [align(graph, common) for graph in graphs])
    common = _cut(common, {axis: min(claimed) for axis, claimed in sizes.items() if claimed})
    return common, {graph: align(common, graph).transfer for graph in graphs}


def _without(graph: ArchGraph, item: Unmatched) -> ArchGraph:
    """A graph without a block, a section or a leaf that evaluation does not use.

    Raises:
        RewriteError: If it cannot be left out.
    """
    found = structure(graph)
    names = [b.name for s in found.sections if s.name == item.part for b in s.blocks]
    names = [b.name for b in found.blocks if b.name == item.part] or names
    if not names:
        return _unused(graph, item)
    try:
        return skip(graph, names).graph
    except ArchGraphError as error:
        raise RewriteError(
            "graphs have no common part that could stand alone",
            where=f"{graph.name or 'graph'}: {item.part}",
            hint=f"{item.reason}; it {error.found}",
        ) from error


def _unused(graph: ArchGraph, item: Unmatched) -> ArchGraph:
    """A graph without a leaf.

    Raises:
        RewriteError: If training uses it.
    """
    updates = tuple((k, v) for k, v in graph.updates if k != item.part)
    rest = prune(graph.replace(updates=updates))
    users = rest.leaf_users.get(item.part)
    if users:
        raise RewriteError(
            "graphs have no common part that could stand alone",
            where=f"{graph.name or 'graph'}: {item.part}",
            hint=f"{item.reason}; in training %{users[0]} uses it",
        )
    return rest.replace(params=tuple(p for p in rest.params if p.name != item.part))


# -- widths -------------------------------------------------------------------------------------


def _sizes(graph: ArchGraph, found: Sequence[Alignment]) -> dict[str, list[int]]:
    """The widths that some graphs have for the axes of another one.

    Args:
        graph: The other one.
        found: The graphs, each aligned with it.

    Raises:
        RewriteError: If a shape does not tell.
    """
    sizes: dict[str, list[int]] = {}
    for alignment in found:
        alignment.widths.decided(alignment.client.name or "graph")
        for axis, claimed in alignment.widths.claims.items():
            sizes.setdefault(axis, []).extend(n for n in claimed if n)
    return sizes


def _ties(whole: ArchGraph, found: Sequence[Alignment]) -> Iterator[tuple[str, str]]:
    """Axes before and behind a block that are equally wide in each graph that has the block.

    They stay so: what can be left out can still be left out, and a section keeps one width.
    """
    even: dict[str, bool] = {}
    for alignment in found:
        node = alignment.client.node
        blocks = {b.name: b for b in structure(alignment.client).blocks}
        for mine, name in alignment.blocks:
            block = blocks[mine]
            same = node[block.entry].type == node[block.exit].type
            even[name] = even.get(name, True) and same
    value = axes(whole).value
    for block in structure(whole).blocks:
        if even.get(block.name):
            for layouts in zip(value[block.entry][0], value[block.exit][0], strict=False):
                for before, behind in alike(*layouts):
                    if isinstance(before, AxisRef) and isinstance(behind, AxisRef):
                        yield before.name, behind.name


def _cut(graph: ArchGraph, sizes: Mapping[str, int]) -> ArchGraph:
    """A graph with axes of other sizes, smaller or larger.

    Raises:
        RewriteError: For an axis that cannot change.
    """
    solved = axes(graph)
    kept = {}
    for name, size in sizes.items():
        axis = solved[name]
        if size == axis.size:
            continue
        if not axis.free:
            raise RewriteError(
                "axis cannot have another width",
                where=name,
                found=size,
                expected=axis.size,
                hint=axis.reason,
            )
        kept[name] = np.arange(size) % axis.size
    return cut(graph, kept).graph if kept else graph
