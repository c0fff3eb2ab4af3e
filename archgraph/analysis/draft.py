"""A block while it is put together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from archgraph.analysis.modules import Modules, Path, common, path_of, under
from archgraph.analysis.stream import Piece

BlockKind = Literal["residual", "chain", "parallel", "dense", "head"]


@dataclass(eq=False)
class BlockDraft:
    """A block while it is put together.

    Attributes:
        heads: The pieces that do its work.
        pieces: All its pieces; consecutive.
        path: Innermost module of its work.
        given: The user's name for it, if any.
        uses: How often its layers are used, one round after the other.
        extra: Operators beside the stream that hang on it or only serve it.
        kind: As in :class:`archgraph.analysis.structure.Block`.
        name: Its name.
        unit: Module that it is, or is a part of.
        full: Operators and wiring, sizes aside.
        spine: Layers and norms on the way with most work.
        out: What the blocks of a section have in common: dtype and shape of the result.
    """

    heads: list[Piece]
    pieces: list[Piece]
    path: Path
    given: str = ""
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
        """Its last piece that does work."""
        return self.heads[-1] if self.heads else None

    @property
    def whole(self) -> bool:
        """Whether it is more than a single layer: what stages are made of."""
        return len(self.heads) > 1 or self.kind in ("residual", "parallel", "dense")

    @property
    def stream(self) -> list[str]:
        """Its operators in the stream, in topological order."""
        return [n for p in self.pieces for n in p.nodes]


def draft(modules: Modules, heads: list[Piece], pieces: list[Piece], given: str = "") -> BlockDraft:
    """A draft of some pieces; its module is that of its work, or of what it learns."""
    node, heavy = modules.graph.node, modules.stream.heavy
    work = [modules.place(n) for p in heads for n in p.nodes if n in heavy]
    if not heads:
        nodes = [n for p in pieces for n in p.nodes]
        learned = [n for n in nodes if any(node[n].leaves())]
        work = [modules.place(n) for n in learned or nodes]
    path = common(work)
    kinds = [p.kind for p in heads]
    last = heads[-1] if heads else None
    if last is not None and last.kind in ("residual", "parallel"):
        outer = modules.place(last.exit)
        path = outer if outer and under(path, outer) else path
    kind: BlockKind = "chain"
    for candidate in ("dense", "parallel", "residual"):
        if candidate in kinds:
            kind = candidate
    return BlockDraft(heads, pieces, path_of(given.partition("~")[0]) or path, given, kind=kind)
