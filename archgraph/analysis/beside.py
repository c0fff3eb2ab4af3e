"""What stands beside the stream: which block each such operator belongs to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from archgraph.analysis.draft import BlockDraft
from archgraph.analysis.modules import Modules, common
from archgraph.analysis.stream import Piece
from archgraph.graph.ir import ArchGraph, Node


def assign(modules: Modules, evaluated: ArchGraph, drafts: list[BlockDraft]) -> list[BlockDraft]:
    """Give every operator beside the stream to a block; further outputs become blocks.

    What serves the stream belongs to the first block that it serves; what else depends on the
    stream hangs on the last block that it needs; a counter goes with its module.
    """
    graph = modules.graph
    owner = {n: i for i, d in enumerate(drafts) for n in d.stream}
    below = dict.fromkeys(owner)  # the stream and all that depends on it, in order
    for n in graph.nodes:
        if n.name not in below and any(u in below for u in n.uses()):
            below[n.name] = None
    ends = _ends(modules, evaluated, owner, below, len(drafts))
    drafts += ends
    if not drafts:
        drafts.append(BlockDraft([], [], ()))
    streamed = set(owner)
    alone = _serve(graph, [n for n in graph.nodes if n.name not in owner], owner)
    for n in alone:
        if n.name in below:
            owner[n.name] = max(owner[u] for u in n.uses() if u in below)
    alone = _serve(graph, [n for n in alone if n.name not in owner], owner)
    for n in alone:  # a chain of counters keeps its order
        used = [owner[u] for u in n.uses() if u in owner]
        owner[n.name] = 0 if n.op == "input" else max([_nearest(modules, n, owner), *used])
    for n in graph.nodes:
        if n.name not in streamed:
            drafts[owner[n.name]].extra.append(n.name)
    return ends


def _ends(
    modules: Modules,
    evaluated: ArchGraph,
    owner: dict[str, int],
    below: Collection[str],
    number: int,
) -> list[BlockDraft]:
    """Blocks of further outputs, numbered from ``number`` on; their operators get owners."""
    stream, order = modules.stream, modules.order
    ends: list[BlockDraft] = []
    for output in stream.outputs:
        needed = stream.ancestors((output,)) - stream.live
        nodes = sorted((n for n in needed if n in below and n not in owner), key=order.__getitem__)
        if nodes:
            sources = [u for n in nodes for u in evaluated.node[n].uses() if u in owner]
            entry = max(sources, key=order.__getitem__, default="")
            piece = Piece(tuple(nodes), entry, output)
            work = [n for n in nodes if n in stream.heavy]
            path = common(map(modules.place, work or nodes))
            owner |= dict.fromkeys(nodes, number + len(ends))
            ends.append(BlockDraft([piece], [piece], path, kind="head"))
    return ends


def _serve(graph: ArchGraph, nodes: Sequence[Node], owner: dict[str, int]) -> list[Node]:
    """Give operators to the first block that they serve; returns those that serve none."""
    alone: list[Node] = []
    for n in reversed(nodes):
        users = [owner[u] for u in graph.users[n.name] if u in owner]
        if users:
            owner[n.name] = min(users)
        else:
            alone.append(n)
    return alone[::-1]


def _nearest(modules: Modules, node: Node, owner: Mapping[str, int]) -> int:
    """Block of the operator next to a free one, first of all in its own module."""
    place, index = modules.place(node.name), modules.order[node.name]
    nodes = modules.graph.nodes
    best: tuple[int, int] | None = None
    for distance in range(1, len(nodes)):
        for other in (index + distance, index - distance):
            if not 0 <= other < len(nodes) or nodes[other].name not in owner:
                continue
            shared = len(common((place, modules.place(nodes[other].name))))
            if best is None or shared > best[0]:
                best = shared, owner[nodes[other].name]
            if best[0] == len(place) or distance > 16:
                return best[1]
    return best[1] if best is not None else 0
