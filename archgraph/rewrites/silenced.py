"""Remove the effect of blocks without removing the blocks, to check :func:`archgraph.skip`.

The additions of a block's branches are found from the block's layers, not from the boundaries that
the analysis found. Therefore, the check also detects wrong boundaries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from archgraph.analysis.structure import Block
from archgraph.analysis.summands import Summand, summands
from archgraph.graph.ir import ArchGraph, Node, Ref
from archgraph.graph.passes import prune, reachable, renaming, specialise
from archgraph.ops.table import growth, row
from archgraph.rewrites.insert import following, fresh, operands_in


def silenced(graph: ArchGraph, blocks: Iterable[tuple[Block, bool]]) -> ArchGraph:
    """Return the graph for evaluation, changed so that some blocks have no effect.

    1. Multiply the block's branches by zero. An operand of an addition is such a branch if all
       layers on which only this operand depends belong to the block, and if the other operand is
       computed from an input of these layers without passing through them.
    2. Keep elementwise operators of the block that combine the block's input with a value or
       parameter from outside the block.
    3. Replace the block's other operators outside branches (a norm, a linear layer) by the
       identity. Keep operators that only move values (a partition into windows).

    Args:
        graph: The graph.
        blocks: Pairs of a block and a flag. If the flag is True, the projection shortcut of the
            block remains, and steps 2 and 3 are omitted.
    """
    graph = specialise(graph, training=False)
    zero: list[Summand] = []
    stands_in: dict[str, str] = {}
    for block, projection_stays in blocks:
        members = {name for name in block.nodes if name in graph.node}
        layers = {name for name in members if _is_layer(graph, name)}
        if projection_stays:
            layers -= reachable([block.shortcut], operands_in(graph), members)
        branches = _branches(graph, layers)  # 1
        zero += branches
        if not projection_stays:  # 2, 3
            inside = members.difference(*(b.private for b in branches), (b.sum for b in branches))
            stands_in |= _steps(graph, block, branches, inside)
            stands_in = {**dict(_norms(graph, inside)), **stands_in}
    return _edited(graph, zero, stands_in)


def _steps(
    graph: ArchGraph, block: Block, branches: Iterable[Summand], inside: Collection[str]
) -> dict[str, str]:
    """Return replacements for results between a block's additions and operators of rule 2."""
    position = {node.name: i for i, node in enumerate(graph.nodes)}
    ends = [(branch.sum, branch.other) for branch in branches]
    ends += _foreign(graph, block, inside)
    stands_in: dict[str, str] = {}
    last = block.entry
    for name, before in (*sorted(ends, key=lambda end: position[end[0]]), ("", block.exit)):
        same = graph.node[before].types == graph.node[last].types
        between = _below(graph, last) & reachable([before], operands_in(graph))
        computes = not all(growth(graph.node[n].op).picks for n in between - {last})
        if same and computes and before in between:
            stands_in[before] = last
        last = name
    return stands_in


def _edited(graph: ArchGraph, zero: Iterable[Summand], stands_in: Mapping[str, str]) -> ArchGraph:
    """Multiply branches by zero, and replace results."""
    used = set(graph.node)
    nodes = {node.name: [node] for node in graph.nodes}
    for branch in zero:
        *_, node = nodes[branch.sum]
        args = (("self", Ref(branch.name)), ("other", 0))
        product = Node(fresh(used, "zero"), "aten.mul.Tensor", args, graph.node[branch.name].type)
        silent = node.mapped(renaming({branch.name: product.name}))
        nodes[branch.sum] = [product, silent]

    edited = graph.replace(nodes=tuple(n for group in nodes.values() for n in group))
    # Keep leaves, since the state has all of them.
    follow = following({name: Ref(other) for name, other in stands_in.items()})
    return prune(edited.mapped(follow), leaves=False)


def _is_layer(graph: ArchGraph, name: str) -> bool:
    return any(graph.param[leaf].role == "parameter" for leaf in graph.node[name].leaves())


def _branches(graph: ArchGraph, layers: Collection[str]) -> list[Summand]:
    """Return the branches that contain only the given layers, without nested branches."""
    branches = []
    for summand in summands(graph):
        inner = {name for name in summand.private if _is_layer(graph, name)}
        if inner and inner.issubset(layers) and _is_branch(graph, summand, layers):
            branches.append(summand)
    nested = {name for branch in branches for name in branch.private}
    return [branch for branch in branches if branch.sum not in nested]


def _is_branch(graph: ArchGraph, summand: Summand, layers: Collection[str]) -> bool:
    """Return whether the other operand is computed from an input of the branch without layers."""

    def back(name: str) -> tuple[str, ...]:
        stops = name in summand.enters or name in layers
        return () if stops else tuple(graph.node[name].uses())

    return not summand.enters.isdisjoint(reachable([summand.other], back))


def _norms(graph: ArchGraph, inside: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield norms outside of branches, each with its operand."""
    for node in map(graph.node.__getitem__, inside):
        before = next(node.uses(), None)
        if row(node.op).normalises and before and graph.node[before].types == node.types:
            yield node.name, before


def _below(graph: ArchGraph, name: str) -> set[str]:
    return reachable([name], graph.users.__getitem__)


def _foreign(graph: ArchGraph, block: Block, inside: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield operators that take a value from outside the block, and their operand from inside."""
    below, nodes = _below(graph, block.entry), set(block.nodes)
    for node in graph.nodes:
        if node.name not in inside or not row(node.op).pointwise:
            continue
        stream = [u for u in node.uses() if u in below]
        beside = [u for u in node.uses() if u not in below]
        if len(stream) != 1 or _are_own(graph, nodes, beside, node.leaves()):
            continue
        around = reachable([block.entry], graph.users.__getitem__, set(graph.node) - {node.name})
        if block.exit not in around:  # on every path through the block
            yield node.name, stream[0]


def _are_own(
    graph: ArchGraph, nodes: set[str], results: Collection[str], leaves: Iterable[str]
) -> bool:
    """Return whether only this block computes the results and uses the modules of the leaves."""
    made_of = reachable(results, operands_in(graph), nodes)
    used = {name for n in made_of for name in graph.node[n].uses()}
    behind = {*leaves, *(leaf for n in made_of for leaf in graph.node[n].leaves())}
    modules = tuple(f"{leaf.rpartition('.')[0]}." for leaf in behind)
    around = (p for p in graph.leaf_users if p in behind or p.startswith(modules))
    alone = all(nodes.issuperset(graph.leaf_users[name]) for name in around)
    return alone and made_of.issuperset([*results, *used])
