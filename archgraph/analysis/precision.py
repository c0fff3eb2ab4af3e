"""Ignore casts between floating types while blocks are found; then add each cast to a block.

A model in bfloat16 computes its norms and softmaxes in float32, with casts before and after. The
graph of the same model in float32 has no casts. Both graphs must have the same blocks and sections.
"""

from __future__ import annotations

import dataclasses

from archgraph.analysis.blocks import Drafts
from archgraph.analysis.draft import BlockDraft
from archgraph.analysis.stream import Piece
from archgraph.graph.ir import ArchGraph, Leaf, Node, Ref, TensorType, Value
from archgraph.ops.operands import type_of
from archgraph.ops.schema import torch_dtype
from archgraph.ops.table import row


class Casts:
    """The casts of a graph between floating types.

    Attributes:
        graph: The graph.
        source: Dict from cast to the result or parameter that it converts. For a cast of a cast, it
            is the value before the first cast.
        plain: The graph without casts and entirely in float32; ``graph`` itself if it has no casts.
    """

    def __init__(self, graph: ArchGraph) -> None:
        self.graph = graph
        self.source: dict[str, Ref | Leaf] = {}
        for node in graph.nodes:
            value = node.arg("self")
            if row(node.op).casts and isinstance(value, (Ref, Leaf)) and _floating(node.type):
                origin = self._origin(value)
                if _floating(type_of(graph, value)) and isinstance(origin, (Ref, Leaf)):
                    self.source[node.name] = origin
        self.plain = self._plain() if self.source else graph

    def _origin(self, value: Value) -> Value:
        return self.source.get(value.name, value) if isinstance(value, Ref) else value

    def of(self, name: str) -> str:
        """Return the operator whose result a cast converts, or the operator itself."""
        return self.source[name].name if name in self.source else name

    def _plain(self) -> ArchGraph:
        graph = self.graph.mapped(self._origin)

        def single(node: Node) -> Node:
            types = tuple(map(_single, node.types))
            type_ = types if isinstance(node.type, tuple) else types[0]
            return dataclasses.replace(node, type=type_)

        # Drop values: their bytes are in the constant's original dtype.
        params = (dataclasses.replace(p, type=_single(p.type), value=None) for p in graph.params)
        nodes = (single(n) for n in graph.nodes if n.name not in self.source)
        return graph.replace(params=tuple(params), nodes=tuple(nodes))

    def restore(self, drafts: Drafts) -> None:
        """Add the casts to blocks that were found without them.

        1. If the result of a block has another dtype than its input (for the first block: than its
           weights), and is only used after a cast back to that dtype, the block ends with the cast.
        2. A cast of a value inside a piece belongs to the piece. Any other cast belongs to the
           first block that uses its result, or else to the block of the value that it converts.
        3. If a block now ends with a cast, the cast is the input of the next block.
        """
        if not self.source:
            return
        ended = self._end_blocks(drafts)  # 1
        inner = self._distribute(drafts.all)  # 2
        drafts.lift(self.graph, lambda piece: self._piece(piece, ended, inner, drafts))  # 3
        drafts.cuts = tuple(
            n for e in drafts.cuts for n in (e, *((ended[e],) if e in ended else ()))
        )

    def _end_blocks(self, drafts: Drafts) -> dict[str, str]:
        """Apply step 1 of :meth:`restore`; return a dict from result to the last cast of it."""
        ended: dict[str, str] = {}
        for chain in drafts.chains:
            for d in chain:  # in order: the input of a block is the output of the block before
                entry, end = drafts.entry(d), drafts.exit(d)
                dtype = self.graph.node[ended.get(entry, entry)].dtype
                run = self._back(end, self._weight_dtype(d, dtype) if d is chain[0] else dtype)
                if run:
                    d.pieces.append(Piece(tuple(run), end, run[-1]))
                    ended[end] = run[-1]
        return ended

    def _weight_dtype(self, draft: BlockDraft, default: str) -> str:
        types = (
            self.graph.param[leaf].type
            for name in draft.stream
            for leaf in self.graph.node[name].leaves()
        )
        return next((t.dtype for t in types if _floating(t)), default)

    def _distribute(self, flat: list[BlockDraft]) -> dict[str, list[str]]:
        """Apply step 2 of :meth:`restore`; return a dict from value to its casts inside pieces."""
        owner = {n: i for i, d in enumerate(flat) for n in (*d.stream, *d.extra)}
        inner: dict[str, list[str]] = {}
        for node in reversed(self.graph.nodes):  # users before their operands
            if node.name in owner:
                continue
            users = [owner[u] for u in self.graph.users[node.name] if u in owner]
            origin = self.of(node.name)
            owner[node.name] = min(users, default=owner.get(origin, 0))
            d = flat[owner[node.name]]
            if any(origin in p.nodes and origin != p.exit for p in d.pieces):
                inner.setdefault(origin, []).append(node.name)
            else:
                d.extra.append(node.name)
        return inner

    def _back(self, end: str, dtype: str) -> list[str]:
        """Return the casts that convert a result to a dtype, if nothing else uses the result."""
        run: list[str] = []
        name = end
        while self.graph.node[name].dtype != dtype:
            users = self.graph.users[name]
            # If something else uses the result, the block ends with it, not with the cast.
            if len(users) != 1 or users[0] not in self.source or name in self.graph.output_refs():
                return []
            name = users[0]
            run.append(name)
        return run

    def _piece(
        self, piece: Piece, ended: dict[str, str], inner: dict[str, list[str]], drafts: Drafts
    ) -> Piece:
        nodes = [*piece.nodes]
        for name in piece.nodes:
            nodes += inner.get(name, ()) if name != piece.exit else ()
        shortcut = piece.shortcut
        if piece.kind == "residual":
            used = self.graph.node[piece.exit].uses()
            shortcut = next((u for u in used if self.of(u) == shortcut), shortcut)
        return dataclasses.replace(
            piece,
            nodes=tuple(sorted(nodes, key=drafts.order.__getitem__)),
            entry=ended.get(piece.entry, piece.entry),
            shortcut=ended.get(shortcut, shortcut),
        )

    def ends(self, draft: BlockDraft) -> Piece:
        """Return the last piece of a block that is not a cast."""
        return next(p for p in reversed(draft.pieces) if p.nodes[-1] not in self.source)


def _floating(type_: TensorType | tuple[TensorType, ...] | None) -> bool:
    return isinstance(type_, TensorType) and torch_dtype(type_.dtype).is_floating_point


def _single(type_: TensorType) -> TensorType:
    return dataclasses.replace(type_, dtype="float32") if _floating(type_) else type_
