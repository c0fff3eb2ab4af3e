"""Blocks under construction (drafts), and the fingerprints that compare them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from archgraph.analysis.modules import Modules, Path, common, path_of, under
from archgraph.analysis.stream import Piece, Stream
from archgraph.graph.ir import ArchGraph, Leaf, Mode, Node, Polynomial, Ref, Value, refs
from archgraph.ops.table import base

BlockKind = Literal["residual", "chain", "parallel", "dense", "head"]


@dataclass(eq=False)
class BlockDraft:
    """A block under construction, built from pieces (see :mod:`archgraph.analysis.stream`).

    Attributes:
        heads: The pieces with the block's layers.
        pieces: All pieces of the block, which are consecutive.
        path: Innermost module that contains the block's layers.
        user_block: The block's name in the user's sections; empty if it has none.
        uses: Number of times that the block's layers run in a forward pass.
        extra: Operators of the block outside the main stream, which use values of the main stream
            or compute values for it.
        kind: As in :class:`archgraph.analysis.structure.Block`.
        name: Name of the block.
        unit: Module that the block forms, alone or together with other blocks.
        full: Fingerprint of the operators: their kinds and connections, without sizes.
        spine: Fingerprint of the path with most layers: its layers and norms.
        out: Properties that are equal for all blocks of a section: whether the block is dense, and
            the dtype and shape of its result.
    """

    heads: list[Piece]
    pieces: list[Piece]
    path: Path
    user_block: str = ""
    uses: int = 1
    extra: list[str] = field(default_factory=list)
    kind: BlockKind = "chain"
    name: str = ""
    unit: Path = ()
    full: tuple[str, ...] = ()
    spine: tuple[str, ...] = ()
    out: tuple[object, ...] = ()

    @property
    def last(self) -> Piece | None:
        """The last piece with layers; None if no piece has any."""
        return self.heads[-1] if self.heads else None

    def terms(self, graph: ArchGraph) -> tuple[str, ...]:
        """Return the results that a dense block concatenates to its input."""
        last = self.last
        if last is None or last.kind != "dense" or len(self.heads) > 1:
            return ()
        inside = {n for n in last.nodes if n != last.exit}
        return tuple(n for n in list_items(graph.node[last.exit]) if n in inside)

    @property
    def whole(self) -> bool:
        """Whether the block has more than a single layer. Stages consist of such blocks."""
        return len(self.heads) > 1 or self.kind in ("residual", "parallel", "dense")

    @property
    def stream(self) -> list[str]:
        """The block's operators in the stream, in topological order."""
        return [n for p in self.pieces for n in p.nodes]


def draft(
    modules: Modules, heads: list[Piece], pieces: list[Piece], user_block: str = ""
) -> BlockDraft:
    """Return a block under construction that consists of these pieces."""
    path = common(map(modules.place, _work(modules, heads, pieces)))
    kinds = [p.kind for p in heads]
    last = heads[-1] if heads else None
    if last is not None and last.kind in ("residual", "parallel"):
        # The module of the addition also contains the shortcut. A list of blocks is not a block.
        outer = modules.place(last.exit)
        path = outer if outer and under(path, outer) and not modules.lists(outer, path) else path
    order: tuple[BlockKind, ...] = ("residual", "parallel", "dense")
    kind: BlockKind = next((candidate for candidate in order if candidate in kinds), "chain")
    return BlockDraft(
        heads, pieces, path_of(user_block.partition("~")[0]) or path, user_block, kind=kind
    )


def _work(modules: Modules, heads: Sequence[Piece], pieces: Sequence[Piece]) -> list[str]:
    """Return a block's layers; if it has none, its operators with leaves, else all operators."""
    nodes = [n for p in heads or pieces for n in p.nodes]
    if heads:
        return [n for n in nodes if n in modules.stream.heavy]
    return [n for n in nodes if any(modules.graph.node[n].leaves())] or nodes


def set_fingerprint(modules: Modules, draft: BlockDraft, end: Node) -> None:
    """Set the fingerprint of a block: its operators, its path with most layers, and its result."""
    graph = modules.graph
    draft.full = _body(graph, sorted([*draft.stream, *draft.extra], key=modules.order.__getitem__))
    spine = filter(modules.is_layer, _spine(modules.stream, draft))
    draft.spine = tuple(base(graph.node[n].op) for n in spine)
    shape: tuple[object, ...] = end.shape
    if draft.kind in ("dense", "parallel") and draft.last is not None:
        # The width of a concatenation depends on its operands, so compare only the other sizes.
        joins = graph.node[draft.last.exit]
        parts, joined = [graph.node[n].shape for n in all_items(joins)], joins.shape
        wide = {
            i for p in parts if len(p) == len(joined) for i, s in enumerate(p) if s != joined[i]
        }
        shape = tuple("wide" if i in wide else s for i, s in enumerate(end.shape))
    draft.out = (draft.kind == "dense", end.dtype, shape)


def all_items(node: Node) -> list[str]:
    """Return the items of all list arguments of an operator."""
    return [name for _, v in node.args if isinstance(v, tuple) for name in refs(v)]


def list_items(node: Node) -> tuple[str, ...]:
    """Return the results that an operator uses as items of lists and not as single arguments."""
    items = [i for _, v in node.args if isinstance(v, tuple) for i in v if isinstance(i, Ref)]
    plain = {n for _, v in node.args if not isinstance(v, tuple) for n in refs(v)}
    return tuple(dict.fromkeys(i.name for i in items if i.name not in plain))


def _spine(stream: Stream, draft: BlockDraft) -> list[str]:
    """Return the operators on the path through a block with most layers."""
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
    """Return one line per operator of a block: its name and operands, without sizes."""
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
            case bool() | None | str():  # before int, since bool is a subclass of int
                return repr(value)
            case int() | Polynomial():
                return "n"
            case _:
                return type(value).__name__

    lines = []
    for name in nodes:
        node = node_of[name]
        if node.op != "input":
            lines.append(f"{node.op} {' '.join(f'{k}={look(v)}' for k, v in node.args)}")
    return tuple(lines)
