"""Silenced: the unchanged graph in which some blocks do nothing, as the law of skipping states it.

Where a branch is added follows from the layers of a block and from the graph, not from where the
analysis says that the block begins and ends: a wrong boundary shows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from archgraph.analysis.structure import Block
from archgraph.analysis.summands import Summand, summands
from archgraph.graph.ir import ArchGraph, Node, Ref, Value
from archgraph.graph.passes import prune, reachable, renaming, specialise
from archgraph.ops.table import growth, row
from archgraph.rewrites.insert import fresh


def silenced(graph: ArchGraph, blocks: Iterable[tuple[Block, bool]]) -> ArchGraph:
    """Return a graph in evaluation in which some blocks do nothing.

    1. A sum adds the branch of a block if all layers that are private to one operand are the
       block's, and the other operand comes from what enters that private part, past none of its
       layers. There the operand is multiplied by zero.
    2. An operator that combines the stream with a result or a parameter which is not the block's
       stays as it is, wherever the block is said to begin and to end.
    3. What the block does between these (a norm, a plain layer) is the identity. What only moves
       positions there (a partition into windows) stays.

    Args:
        graph: The graph.
        blocks: Blocks, each with whether its projection shortcut stays; then 2 and 3 do not apply.
    """
    graph = specialise(graph, training=False)
    position = {node.name: i for i, node in enumerate(graph.nodes)}
    zero: list[Summand] = []
    stands_in: dict[str, str] = {}
    for block, projection_stays in blocks:
        members = {name for name in block.nodes if name in position}
        layers = {name for name in members if _is_layer(graph, name)}
        if projection_stays:
            layers -= reachable([block.shortcut], lambda n: graph.node[n].uses(), members)
        branches = _branches(graph, layers)
        zero += branches
        if projection_stays:
            continue
        steps = [(branch.sum, branch.other) for branch in branches]
        inside = members.difference(*(b.private for b in branches), (b.sum for b in branches))
        steps += _foreign(graph, block, inside)
        last = block.entry
        for name, before in (*sorted(steps, key=lambda s: position[s[0]]), ("", block.exit)):
            same = graph.node[before].types == graph.node[last].types
            between = _below(graph, last) & reachable([before], lambda n: graph.node[n].uses())
            computes = not all(growth(graph.node[n].op).picks for n in between - {last})
            if same and computes and before in between:
                stands_in[before] = last
            last = name
        stands_in |= {n: v for n, v in _norms(graph, inside) if n not in stands_in}
    return _edited(graph, zero, stands_in)


def _edited(graph: ArchGraph, zero: Iterable[Summand], stands_in: Mapping[str, str]) -> ArchGraph:
    """Multiply branches by zero; let results stand in for others."""
    used = set(graph.node)
    nodes = {node.name: [node] for node in graph.nodes}
    for branch in zero:
        *_, node = nodes[branch.sum]
        args = (("self", Ref(branch.name)), ("other", 0))
        product = Node(fresh(used, "zero"), "aten.mul.Tensor", args, graph.node[branch.name].type)
        silent = node.mapped(renaming({branch.name: product.name}))
        nodes[branch.sum] = [product, silent]

    def follow(value: Value) -> Value:
        while isinstance(value, Ref) and value.name in stands_in:
            value = Ref(stands_in[value.name])
        return value

    edited = graph.replace(nodes=tuple(n for group in nodes.values() for n in group))
    # Leaves stay, as the state has all of them.
    return prune(edited.mapped(follow), leaves=False)


def _is_layer(graph: ArchGraph, name: str) -> bool:
    return any(graph.param[leaf].role == "parameter" for leaf in graph.node[name].leaves())


def _branches(graph: ArchGraph, layers: Collection[str]) -> list[Summand]:
    """Return the branches that have only some layers, those inside another one aside."""
    branches = []
    for summand in summands(graph):
        inner = {name for name in summand.private if _is_layer(graph, name)}
        if inner and inner.issubset(layers) and _is_branch(graph, summand, layers):
            branches.append(summand)
    nested = {name for branch in branches for name in branch.private}
    return [branch for branch in branches if branch.sum not in nested]


def _is_branch(graph: ArchGraph, summand: Summand, layers: Collection[str]) -> bool:
    """Return whether what it is added to comes from what enters it, past no layer."""

    def back(name: str) -> tuple[str, ...]:
        stops = name in summand.enters or name in layers
        return () if stops else tuple(graph.node[name].uses())

    return not summand.enters.isdisjoint(reachable([summand.other], back))


def _norms(graph: ArchGraph, inside: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield norms outside of branches, each with the result that it prepares."""
    for node in map(graph.node.__getitem__, inside):
        before = next(node.uses(), None)
        if row(node.op).normalises and before and graph.node[before].types == node.types:
            yield node.name, before


def _below(graph: ArchGraph, name: str) -> set[str]:
    return reachable([name], graph.users.__getitem__)


def _foreign(graph: ArchGraph, block: Block, inside: set[str]) -> Iterator[tuple[str, str]]:
    """Yield operators that take what is not the block's, each with the result before it."""
    below, nodes = _below(graph, block.entry), set(block.nodes)

    def own(name: str) -> bool:
        made_of = reachable([name], lambda n: graph.node[n].uses(), nodes)
        outside = {u for n in made_of for u in graph.node[n].uses()} - made_of
        leaves = (leaf for n in made_of for leaf in graph.node[n].leaves())
        return bool(made_of) and not outside and all(map(mine, leaves))

    def mine(leaf: str) -> bool:
        module = leaf.rpartition(".")[0]
        names = [p for p in graph.leaf_users if p == leaf or p.startswith(f"{module}.")]
        return all(nodes.issuperset(graph.leaf_users[name]) for name in names)

    for node in graph.nodes:
        if node.name not in inside or not row(node.op).pointwise:
            continue
        stream = [u for u in node.uses() if u in below]
        beside = [u for u in node.uses() if u not in below]
        if len(stream) != 1 or (all(map(own, beside)) and all(map(mine, node.leaves()))):
            continue
        around = reachable([block.entry], graph.users.__getitem__, set(graph.node) - {node.name})
        if block.exit not in around:  # on every way through the block
            yield node.name, stream[0]
