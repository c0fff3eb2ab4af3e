"""Find the smallest architecture that contains all graphs, or the largest one in all graphs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from archgraph.analysis.axes import axes
from archgraph.analysis.structure import structure
from archgraph.analysis.widths import matching_parts
from archgraph.errors import ArchGraphError, RewriteError
from archgraph.graph.argument import GraphLike, graph_of
from archgraph.graph.ir import ArchGraph
from archgraph.graph.passes import notes_of, prune
from archgraph.layout.layouts import AxisRef
from archgraph.relate.align import align
from archgraph.relate.alignment import Alignment, Unmatched
from archgraph.relate.copied import resized, with_copy
from archgraph.rewrites.graft import graft
from archgraph.rewrites.skip import skip
from archgraph.states import Rewritten, Transfer
from archgraph.tables import Table

# A graph, and for each other graph the transfer between its states and those of the graph.
Attempt: TypeAlias = "tuple[ArchGraph, Mapping[ArchGraph, Transfer]]"


@dataclass(frozen=True)
class Related:
    """An architecture with a transfer to or from each of several other architectures.

    Attributes:
        graph: The architecture.
        transfers: Transfers for the other architectures, in the order of the arguments.
    """

    graph: ArchGraph
    transfers: tuple[Transfer, ...]

    def __repr__(self) -> str:
        size = f"{len(self.graph.nodes)} operators, {len(self.graph.params)} leaves"
        of = f"of {len(self.transfers)} graphs"
        return f"<{type(self).__name__} {of}: {self.graph.name or 'graph'} with {size}>"

    def _repr_html_(self) -> str:
        rows = tuple((str(i), t.summary()) for i, t in enumerate(self.transfers))
        return Table(repr(self).strip("<>"), ("graph", "transfer"), rows)._repr_html_()


class Joined(Related):
    """The result of :func:`join`: the smallest architecture that contains several others.

    Each transfer maps a state of this architecture to a state of one of the others. It drops
    blocks, and takes the first channels of each axis.
    """


class Met(Related):
    """The result of :func:`meet`: the largest architecture that several others contain.

    Each transfer maps a state of one of the others to a state of this architecture.
    """


def join(graphs: Iterable[GraphLike]) -> Joined:
    """Return the smallest architecture that contains all given graphs.

    The graphs may have been written independently. Every section has the largest number of blocks
    that it has in any graph. Every axis has the largest width that it has in any graph. The names
    are those of the graph with the most blocks. To add a missing block, the last block of its
    section is repeated, or the block is copied from another graph. A block of the result can be
    removed if it can be removed from every graph that has this block.

    Args:
        graphs: At least one graph.

    Raises:
        RewriteError: If the graphs cannot be joined. The message names the first part that cannot
            be added, and gives the reason.

    Example:
        >>> import torch
        >>> from archgraph import shorten, take, trace
        >>> net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))
        >>> graph = trace(net, torch.zeros(1, 4)).graph
        >>> join([take(graph, 0.5), shorten(graph, {"0": 2})]).graph == graph
        True
    """
    several = _checked(graphs, "join")
    graph, transfers = _first_possible(_ordered(several, largest_first=True), _joined)
    return Joined(graph.replace(notes=notes_of(several)), tuple(transfers[g] for g in several))


def meet(graphs: Iterable[GraphLike]) -> Met:
    """Return the largest architecture that is contained in all given graphs.

    The graphs need not be rewrites of the same graph. The result has the blocks that all graphs
    have. Each axis has the smallest of its widths in the graphs. The names are those of the graph
    with the fewest blocks.

    Args:
        graphs: At least one graph.

    Raises:
        RewriteError: If a block that one graph lacks cannot be removed from another graph. The
            message names the block and the reason.

    Example:
        >>> import torch
        >>> from archgraph import take, trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> graph = trace(net, torch.zeros(1, 3)).graph
        >>> met = meet([graph, take(graph, 0.5).graph])
        >>> [p.shape for p in met.graph.params if "weight" in p.name]
        [(4, 3), (2, 4)]
    """
    several = _checked(graphs, "meet")
    graph, transfers = _first_possible(_ordered(several, largest_first=False), _met)
    return Met(graph.replace(notes=notes_of(several)), tuple(transfers[g] for g in several))


def _checked(graphs: Iterable[GraphLike], verb: str) -> tuple[ArchGraph, ...]:
    """Check the graphs and return them as a tuple."""
    if isinstance(graphs, (ArchGraph, Rewritten)) or not isinstance(graphs, Iterable):
        kind = type(graphs).__name__
        raise RewriteError(f"not graphs to {verb}", found=kind, expected="several graphs")
    several = tuple(map(graph_of, graphs))
    if not several:
        raise RewriteError(f"nothing to {verb}", expected="at least one graph")
    return several


def _ordered(graphs: Iterable[ArchGraph], *, largest_first: bool) -> list[ArchGraph]:
    """Sort distinct graphs by number of sections, blocks and state elements, then by digest."""

    def extent(graph: ArchGraph) -> tuple[int, int, int, str]:
        parts = structure(graph)
        size = sum(math.prod(p.shape) for p in graph.params if p.role != "constant")
        return len(parts.sections), len(parts.blocks), size, graph.digest

    return sorted(dict.fromkeys(graphs), key=extent, reverse=largest_first)


def _first_possible(
    bases: Sequence[ArchGraph], make: Callable[[ArchGraph, Sequence[ArchGraph]], Attempt]
) -> Attempt:
    """Return the result for the first graph for which there is one."""
    # The first base is the most likely one, so report its problem.
    problem: ArchGraphError | None = None
    for base in bases:
        try:
            return make(base, bases)
        except ArchGraphError as error:
            problem = problem or error
    assert problem is not None
    raise problem


# -- join ---------------------------------------------------------------------------------------


def _joined(base: ArchGraph, graphs: Sequence[ArchGraph]) -> Attempt:
    """Add the blocks that the base lacks, then give every axis the largest width.

    Axes that are tied (:func:`_ties`) get the same width.
    """
    import networkx as nx  # imported here because most commands do not join graphs

    joint = base
    for graph in graphs:
        joint = _deepened(joint, graph)
    # Not earlier: a block that a later graph adds may change the partners of an earlier graph.
    alignments = [align(graph, joint) for graph in graphs]
    sizes = _sizes_asked(alignments)
    tied = nx.Graph(_ties(joint, alignments))
    tied.add_nodes_from(sizes)
    widest: dict[str, int] = {}
    for group in nx.connected_components(tied):
        claimed = [n for axis in group for n in sizes.get(axis, ())]
        widest |= {axis: max(claimed) for axis in group if claimed}
    joint = resized(joint, widest)
    # Align again, since the widths of the joint graph have changed.
    return joint, {graph: align(graph, joint).transfer for graph in graphs}


def _deepened(joint: ArchGraph, graph: ArchGraph) -> ArchGraph:
    """Add all blocks of another graph, whatever their widths."""
    alignment = align(graph, joint)
    while lacking := next((u for u in alignment.unmatched if u.side == "client"), None):
        problem = ""
        for grow in _ways(joint, graph, alignment):
            try:
                grown = grow()
            except ArchGraphError as error:
                problem = str(error)
                continue
            again = align(graph, grown)
            # Unless more operators match, the loop would add blocks forever.
            if len(again.nodes) > len(alignment.nodes):
                joint, alignment = grown, again
                break
        else:
            raise RewriteError(
                "graphs cannot be joined",
                where=f"{graph.name or 'graph'}: {lacking.part}",
                hint=f"{lacking.reason}; {problem}" if problem else lacking.reason,
            )
    return joint


def _ways(
    joint: ArchGraph, graph: ArchGraph, alignment: Alignment
) -> Iterator[Callable[[], ArchGraph]]:
    """Yield ways to add the first missing block: by repeating a section's last block, or a copy."""
    names = {name for name, _ in alignment.blocks}
    missing = [b for b in structure(graph).blocks if b.name not in names]
    if not missing:
        return
    first = missing[0]
    same = sum(b.section == first.section for b in missing)
    for name in [b for a, b in alignment.sections if a == first.section]:
        depth = len(structure(joint).section(name).blocks)
        for more in dict.fromkeys((same, 1)):
            yield functools.partial(_repeated, joint, name, depth + more)
    yield functools.partial(with_copy, joint, graph, alignment, first)


def _repeated(joint: ArchGraph, section: str, depth: int) -> ArchGraph:
    return graft(joint, {section: depth}).graph


def _ties(joint: ArchGraph, alignments: Sequence[Alignment]) -> Iterator[tuple[str, str]]:
    """Yield axes before and after a block that are equally wide in every graph that has the block.

    They stay equal, so that removable blocks remain removable and a section has a single width.
    """
    even: dict[str, bool] = {}
    for alignment in alignments:
        node = alignment.client.node
        blocks = {b.name: b for b in structure(alignment.client).blocks}
        for mine, name in alignment.blocks:
            block = blocks[mine]
            same = node[block.entry].type == node[block.exit].type
            even[name] = even.get(name, True) and same
    value = axes(joint).value
    for block in structure(joint).blocks:
        if even.get(block.name):
            for layouts in zip(value[block.entry][0], value[block.exit][0], strict=False):
                for before, behind in matching_parts(*layouts):
                    if isinstance(before, AxisRef) and isinstance(behind, AxisRef):
                        yield before.name, behind.name


# -- meet ---------------------------------------------------------------------------------------


def _met(base: ArchGraph, graphs: Sequence[ArchGraph]) -> Attempt:
    """Remove from the base the parts that a graph lacks, then cut axes to the smallest width."""
    common = base
    for graph in graphs:
        alignment = align(common, graph)
        while lacking := [item for item in alignment.unmatched if item.side == "client"]:
            common = _without(common, lacking[0])
            alignment = align(common, graph)
    sizes = _sizes_asked([align(graph, common) for graph in graphs])
    common = resized(common, {axis: min(claimed) for axis, claimed in sizes.items() if claimed})
    return common, {graph: align(common, graph).transfer for graph in graphs}


def _without(graph: ArchGraph, item: Unmatched) -> ArchGraph:
    """Remove a block, a section, or a leaf that evaluation does not use."""
    parts = structure(graph)
    names = [b.name for s in parts.sections if s.name == item.part for b in s.blocks]
    names = [b.name for b in parts.blocks if b.name == item.part] or names
    if not names:
        return _without_leaf(graph, item)
    try:
        return skip(graph, names).graph
    except ArchGraphError as error:
        raise _inseparable(graph, item, f"it {error.found}") from error


def _without_leaf(graph: ArchGraph, item: Unmatched) -> ArchGraph:
    """Remove a leaf."""
    updates = tuple((k, v) for k, v in graph.updates if k != item.part)
    rest = prune(graph.replace(updates=updates))
    users = rest.leaf_users.get(item.part)
    if users:
        raise _inseparable(graph, item, f"in training %{users[0]} uses it")
    return rest.replace(params=tuple(p for p in rest.params if p.name != item.part))


def _inseparable(graph: ArchGraph, item: Unmatched, problem: str) -> RewriteError:
    return RewriteError(
        "graphs have no self-contained common part",
        where=f"{graph.name or 'graph'}: {item.part}",
        hint=f"{item.reason}; {problem}",
    )


def _sizes_asked(alignments: Iterable[Alignment]) -> dict[str, list[int]]:
    """Collect the widths of several graphs for the axes of the graph they are aligned with."""
    sizes: dict[str, list[int]] = {}
    for alignment in alignments:
        alignment.widths.decided(alignment.client.name or "graph")
        for axis, claimed in alignment.widths.claims.items():
            sizes.setdefault(axis, []).extend(n for n in claimed if n)
    return sizes
