"""What two blocks are compared by: operators and wiring, the way with most work, the result."""

from __future__ import annotations

from collections.abc import Sequence

from archgraph.analysis.draft import BlockDraft
from archgraph.analysis.modules import Modules
from archgraph.analysis.stream import Piece, Stream
from archgraph.graph.ir import ArchGraph, Batch, Leaf, Mode, Node, Ref, Value
from archgraph.ops.table import base


def describe(modules: Modules, draft: BlockDraft, end: Node) -> None:
    """What two blocks are compared by."""
    graph = modules.graph
    draft.full = _body(graph, sorted([*draft.stream, *draft.extra], key=modules.order.__getitem__))
    spine = filter(modules.is_layer, _spine(modules.stream, draft))
    draft.spine = tuple(base(graph.node[n].op) for n in spine)
    shape: tuple[object, ...] = end.shape
    if draft.kind in ("dense", "parallel") and draft.last is not None:
        # What joins branches has a width of its own: only the rest of its shape counts.
        parts = [graph.node[n].shape for n in _joined(graph, draft.last)]
        whole = graph.node[draft.last.exit].shape
        wide = {i for p in parts if len(p) == len(whole) for i, s in enumerate(p) if s != whole[i]}
        shape = tuple("wide" if i in wide else s for i, s in enumerate(end.shape))
    draft.out = (draft.kind == "dense", end.dtype, shape)


def _joined(graph: ArchGraph, piece: Piece) -> list[str]:
    """What the end of a region takes as items of a list."""
    lists = [v for _, v in graph.node[piece.exit].args if isinstance(v, tuple)]
    return [i.name for v in lists for i in v if isinstance(i, Ref)]


def _spine(stream: Stream, draft: BlockDraft) -> list[str]:
    """The way through a block with most work on it."""
    nodes = draft.stream
    inside: dict[str, tuple[int, str]] = {}
    for name in nodes:
        before = [p for p in stream.preds[name] if p in inside]
        best = max(before, key=lambda p: inside[p][0], default="")
        most = inside[best][0] if best else 0
        inside[name] = most + (name in stream.heavy), best
    way, name = [], nodes[-1] if nodes else ""
    while name:
        way.append(name)
        name = inside[name][1]
    return way[::-1]


def _body(graph: ArchGraph, nodes: Sequence[str]) -> tuple[str, ...]:
    """Operators and wiring of a block, sizes and names aside."""
    local = {name: i for i, name in enumerate(nodes)}
    params, node_of = graph.param, graph.node

    def look(value: Value) -> str:
        match value:
            case Ref(name):
                return f"%{local[name]}" if name in local else "%"
            case Leaf(name):
                leaf = params[name]
                return f"{leaf.role}{len(leaf.type.shape)}"
            case tuple():
                return f"({','.join(map(look, value))})"
            case Mode():
                return f"train({look(value.train)},{look(value.eval)})"
            case bool() | None | str():
                return repr(value)
            case int() | Batch():
                return "n"
            case _:
                return type(value).__name__

    lines = []
    for name in nodes:
        node = node_of[name]
        if node.op != "input":
            lines.append(f"{node.op} {' '.join(f'{k}={look(v)}' for k, v in node.args)}")
    return tuple(lines)
