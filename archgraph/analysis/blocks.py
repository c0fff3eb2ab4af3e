"""Build drafts of blocks from the pieces of the main stream, following the module hierarchy.

:mod:`archgraph.analysis.stream` defines the main stream (the path of the data from the input to the
output) and its pieces. :mod:`archgraph.analysis.structure` defines blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

from archgraph.analysis.draft import BlockDraft, draft, set_fingerprint
from archgraph.analysis.merging import Merging
from archgraph.analysis.modules import (
    Modules,
    Path,
    common,
    is_numbered,
    path_of,
    siblings,
    under,
    unique,
)
from archgraph.analysis.stream import Piece, Stream
from archgraph.graph.ir import ArchGraph, Node
from archgraph.graph.passes import reachable, specialise
from archgraph.ops.table import row


class Drafts:
    """The blocks of one graph under construction (drafts).

    Attributes:
        chains: For each tower (an encoder that leads into the main stream), the drafts of its
            blocks. The last item contains the drafts of the main stream.
        ends: Drafts of the blocks of additional outputs.
        named: The user's sections that do not list their blocks.
        cuts: Nodes that every path from the input to the output passes, in order.
    """

    def __init__(self, graph: ArchGraph) -> None:
        self.graph, self.node = graph, graph.node
        # Blocks are found in evaluation. Operators that run only in training are then added.
        evaluated = specialise(graph, training=False)
        self.stream = Stream(evaluated)
        self.modules = Modules(graph, self.stream)
        self.order = self.modules.order
        self.merging = Merging(graph, self.modules)
        # The user's sections that do not list their blocks.
        self.named = {name for name, blocks in graph.sections if not blocks}
        chains = [self._chain(pieces) for pieces in (*self.stream.towers, self.stream.pieces)]
        self.chains = [self._apart(chain) for chain in chains] if self.named else chains
        flat = [d for chain in self.chains for d in chain]
        self.ends = _assign(self.modules, evaluated, flat)
        self.cuts = tuple(p.exit for p in self.stream.pieces)
        self._name(flat)
        # Last, since the fingerprint of a block includes its operators outside the stream.
        for d in flat:
            set_fingerprint(self.modules, d, self.node[self.exit(d)])

    @property
    def all(self) -> list[BlockDraft]:
        """Drafts of all blocks: in the towers (encoders), on the main path and of extra outputs."""
        return [d for chain in self.chains for d in chain] + self.ends

    def lift(self, graph: ArchGraph, lifted: Callable[[Piece], Piece]) -> None:
        """Replace the graph by another graph, and each piece of the drafts by ``lifted(piece)``."""
        self.graph, self.node = graph, graph.node
        self.order = {n.name: i for i, n in enumerate(graph.nodes)}
        changed = {piece: lifted(piece) for d in self.all for piece in d.pieces}
        for d in self.all:
            d.heads, d.pieces = ([changed[p] for p in pieces] for pieces in (d.heads, d.pieces))

    def _chain(self, pieces: Sequence[Piece]) -> list[BlockDraft]:
        """Divide a chain into blocks: merge pieces with layers, then assign the pieces between."""
        heads = [p for p in pieces if p.heavy]
        if not heads:
            return [draft(self.modules, [], list(pieces))] if pieces else []
        drafts = self.merging.merged(heads)
        index = {p.exit: i for i, p in enumerate(pieces)}
        begin = [index[d.heads[0].exit] for d in drafts]
        end = [index[d.heads[-1].exit] for d in drafts]
        for d, i, j in zip(drafts, begin, end, strict=True):
            d.pieces = list(pieces[i : j + 1])
        first = list(pieces[: begin[0]])
        lead: list[BlockDraft] = []
        if first and _identity(drafts[0]) and any(not self._is_input(p) for p in first):
            lead = [draft(self.modules, [], first)]
        else:
            drafts[0].pieces[:0] = first
        for k in range(1, len(drafts)):
            between = pieces[end[k - 1] + 1 : begin[k]]
            cut = self._divide(between, drafts[k - 1], drafts[k])
            drafts[k - 1].pieces += between[:cut]
            drafts[k].pieces[:0] = between[cut:]
        rest = pieces[end[-1] + 1 :]
        cut = self._divide(rest, drafts[-1], None)
        drafts[-1].pieces += rest[:cut]
        tail = [draft(self.modules, [], list(rest[cut:]))] if rest[cut:] else []
        return [*lead, *drafts, *tail]

    def _apart(self, chain: Sequence[BlockDraft]) -> list[BlockDraft]:
        """Give user sections without parameters (such as pooling) a block of their own."""
        works = {self.section(n) for n in self.stream.heavy}
        drafts: list[BlockDraft] = []
        for d in chain:
            names = [self.section(p.exit) for p in d.pieces]
            if self._is_input(d.pieces[0]):  # the input belongs to the piece that follows
                names[:1] = names[1:2] or names[:1]
            groups = itertools.groupby(zip(names, d.pieces, strict=True), key=lambda pair: pair[0])
            runs = [(name, [piece for _, piece in pairs]) for name, pairs in groups]
            idle = [bool(name) and name not in works for name, _ in runs]
            before = len([*itertools.takewhile(bool, idle)])
            after = max(before, len(runs) - len([*itertools.takewhile(bool, reversed(idle))]))
            drafts += itertools.starmap(self._idle, runs[:before])
            if before < after:
                d.pieces = [p for _, pieces in runs[before:after] for p in pieces]
                drafts.append(d)
            drafts += itertools.starmap(self._idle, runs[after:])
        return drafts

    def _idle(self, name: str, pieces: list[Piece]) -> BlockDraft:
        """Return the draft of the block of a section without layers."""
        block = draft(self.modules, [], pieces)
        block.path = block.path or (name,)
        return block

    def section(self, name: str) -> str:
        """Return the section in :attr:`named` that contains an operator; '' if there is none."""
        first, *_ = (*self.modules.place(name), "")
        return first if first in self.named else ""

    def _is_input(self, piece: Piece) -> bool:
        return self.node[piece.exit].op == "input"

    def _divide(self, between: Sequence[Piece], left: BlockDraft, right: BlockDraft | None) -> int:
        """Return how many of the pieces between two blocks belong to the first block."""
        begins = (i for i, p in enumerate(between) if self._is_next(p, left, right))
        return next(begins, len(between))

    def _is_next(self, piece: Piece, left: BlockDraft, right: BlockDraft | None) -> bool:
        """Return whether a piece between two blocks belongs to the second block.

        1. A piece in the module of only one of the blocks belongs to this block.
        2. Elementwise operators belong to the first block, unless the first block has several
           layers and they change the shape of its result.
        3. A norm after a single layer belongs to the first block. After a block of several layers,
           a norm belongs to the second block, unless the second block has an identity shortcut.
        """
        inside = common(map(self.modules.place, piece.nodes))
        mine = bool(left.path) and under(inside, left.path)
        theirs = right is not None and self._prepares(piece, inside, right)
        if mine != theirs:  # 1
            return theirs
        rows = [row(self.node[n].op) for n in piece.nodes]
        pointwise = all(r.pointwise for r in rows)
        if pointwise and not (left.whole and self._reshapes(piece)):  # 2
            return False
        if right is not None and _identity(right):  # 3
            return False
        closes = right is None or right.whole or all(r.normalises for r in rows)
        return left.whole or not closes

    def _prepares(self, piece: Piece, inside: Path, block: BlockDraft) -> bool:
        """Return whether a piece is inside the module of the block that follows the piece."""
        module = self._outer(block)
        # If the piece combines the stream with another value, the module must be the block's own.
        return (
            bool(module)
            and under(inside, module)
            and (not self._combines(piece) or self.modules.work[module] <= self._work(block))
        )

    def _reshapes(self, piece: Piece) -> bool:
        """Return whether the output of a piece has another shape than its input."""
        node = self.node
        return bool(piece.entry) and node[piece.entry].shape != node[piece.exit].shape

    def _combines(self, piece: Piece) -> bool:
        """Return whether a piece is an elementwise operator of the stream and another value."""
        node = self.node[piece.exit]
        alone = len(piece.nodes) == 1 and row(node.op).pointwise
        return alone and len({*node.uses(), *node.leaves()}) > 1

    def _work(self, draft: BlockDraft) -> int:
        """Return the number of layers in a block."""
        heavy = self.stream.heavy
        return self.modules.count(n for p in draft.heads for n in p.nodes if n in heavy)

    def _outer(self, draft: BlockDraft) -> Path:
        """Return the outermost module that contains no layers of other blocks."""
        work = self._work(draft)
        path = draft.path
        while len(path) > 1 and self.modules.work[path[:-1]] == work:
            path = path[:-1]
        return path

    def _name(self, drafts: list[BlockDraft]) -> None:
        """Set the name of each block, and the module that the block is or belongs to."""
        first = [chain[0] for chain in self.chains if chain]
        names = [self._own_name(d, "input" if d in first else "output") for d in drafts]
        self._tell_apart(drafts, names)
        shared = {d.unit for d in drafts if d.unit and d.heads}
        for a, b in itertools.pairwise(drafts):  # a module around a list does not name a block
            if siblings(a.unit, b.unit):
                shared -= {a.unit[:size] for size in range(len(common((a.unit, b.unit))) + 1)}
        for d, name in zip(drafts, unique(names), strict=True):
            d.name = name
            outer = (d.unit[:size] for size in range(1, len(d.unit)))
            d.unit = next((p for p in outer if p in shared), d.unit)

    def _tell_apart(self, drafts: Sequence[BlockDraft], names: list[str]) -> None:
        """Name blocks of the same module after the inner modules with their first layer."""
        alike: dict[str, list[int]] = {}
        for i, (d, name) in enumerate(zip(drafts, names, strict=True)):
            if not d.user_block:
                alike.setdefault(name, []).append(i)
        for name, which in alike.items():
            if len(which) == 1:
                continue
            module = path_of(name)
            begins = [self._begin(drafts[i]) for i in which]
            if not all(under(begin, module) for begin in begins):
                continue
            deeper = [
                [".".join(begin[:size]) for begin in begins]
                for size in range(len(module), max(map(len, begins)) + 1)
            ]
            best = max(deeper, key=lambda each: len(set(each)))  # the shortest among equal ones
            # Unless another block already has one of these names.
            if not set(best).intersection(alike.keys() - {name}):
                for i, longer in zip(which, best, strict=True):
                    names[i] = longer

    def _begin(self, draft: BlockDraft) -> Path:
        """Return the module of a block's first layer."""
        heavy = (n for n in draft.stream if n in self.stream.heavy)
        return next((self.modules.place(n) for n in heavy), ())

    def _own_name(self, draft: BlockDraft, default: str) -> str:
        """Return the name of a block, not yet unique, and set its ``unit`` to its module."""
        draft.unit = path = draft.path
        if draft.user_block:
            return draft.user_block
        heavy = [n for n in draft.stream if n in self.stream.heavy]
        # The module belongs to this block alone if it has no other layers.
        if path and self.modules.work[path] == self.modules.count(heavy):
            draft.unit = path = self._whole_module(draft, path)
        else:
            first = self.modules.place(heavy[0]) if heavy else ()
            path = first[: len(path) + 1] if under(first, path) else path
            draft.unit = draft.unit or path
        leaf = next((leaf for n in heavy for leaf in self.stream.weights(n)), "")
        return ".".join(path) or leaf or default

    def _whole_module(self, draft: BlockDraft, path: Path) -> Path:
        """Return the module of a block: the item of a list, or the innermost with all its norms."""
        modules, work = self.modules, self.modules.work[path]
        layers = [n for n in draft.stream if modules.is_layer(n)]
        around = common(map(modules.place, layers))
        if around and under(path, around) and modules.layers[around] == modules.count(layers):
            path = around
        while len(path) > 1 and not is_numbered(path[-1]) and modules.work[path[:-1]] == work:
            path = path[:-1]
        return path

    def exit(self, draft: BlockDraft) -> str:
        """Return the node that computes the block's output."""
        return draft.pieces[-1].exit if draft.pieces else self.graph.nodes[-1].name

    def entry(self, draft: BlockDraft) -> str:
        """Return the node whose result is the block's input."""
        for piece in draft.pieces:
            if piece.entry:
                return piece.entry
            if self._is_input(piece):
                return piece.exit
        sources = [n for n in draft.stream if n in self.stream.sources]
        inputs = [n for n in draft.extra if self.node[n].op == "input"]
        return (*sources, *filter(None, [self.stream.source]), *inputs, self.graph.nodes[0].name)[0]


def _identity(draft: BlockDraft) -> bool:
    """Return whether a block starts with a residual piece that has an identity shortcut."""
    first = draft.heads[0] if draft.heads else None
    return first is not None and first.kind == "residual" and first.shortcut == first.entry


def _assign(modules: Modules, evaluated: ArchGraph, drafts: list[BlockDraft]) -> list[BlockDraft]:
    """Assign every operator outside the stream to a block, and return the blocks of other outputs.

    1. An operator that leads into the stream belongs to the first block that uses its result.
    2. Any other operator that depends on the stream belongs to the last block that it depends on.
       Operators that lead into it belong to the same block.
    3. Any remaining operator (a counter) belongs to the nearest block, preferably of its module.
    """
    graph = modules.graph
    owner = {n: i for i, d in enumerate(drafts) for n in d.stream}
    below = reachable(owner, graph.users.__getitem__)  # the stream and everything that uses it
    ends = _ends(modules, evaluated, owner, below, len(drafts))
    drafts += ends
    if not drafts:
        drafts.append(BlockDraft([], [], ()))
    beside = [n for n in graph.nodes if n.name not in owner]
    for n in _serve(graph, owner):  # 1
        if n.name in below:  # 2
            owner[n.name] = max(owner[u] for u in n.uses() if u in below)
    for n in _serve(graph, owner):  # 2, 3
        used = [owner[u] for u in n.uses() if u in owner]
        owner[n.name] = 0 if n.op == "input" else max([_nearest(modules, n, owner), *used])
    for n in beside:
        drafts[owner[n.name]].extra.append(n.name)
    return ends


def _ends(
    modules: Modules,
    evaluated: ArchGraph,
    owner: dict[str, int],
    below: Collection[str],
    number: int,
) -> list[BlockDraft]:
    """Return the blocks of additional outputs, and record their operators in ``owner``.

    The blocks are numbered from ``number``.
    """
    stream, order = modules.stream, modules.order
    ends: list[BlockDraft] = []
    for output in stream.outputs:
        needed = stream.ancestors((output,)) - stream.live
        nodes = sorted((n for n in needed if n in below and n not in owner), key=order.__getitem__)
        if nodes:
            # The block starts at the last result that it takes from the stream.
            sources = [u for n in nodes for u in evaluated.node[n].uses() if u in owner]
            entry = max(sources, key=order.__getitem__, default="")
            piece = Piece(tuple(nodes), entry, output)
            work = [n for n in nodes if n in stream.heavy]
            path = common(map(modules.place, work or nodes))
            owner |= dict.fromkeys(nodes, number + len(ends))
            ends.append(BlockDraft([piece], [piece], path, kind="head"))
    return ends


def _serve(graph: ArchGraph, owner: dict[str, int]) -> list[Node]:
    """Assign operators to the first block that uses their result; return those without users."""
    alone: list[Node] = []
    # Backwards, so that the users of an operator have a block before the operator itself.
    for n in reversed([n for n in graph.nodes if n.name not in owner]):
        users = [owner[u] for u in graph.users[n.name] if u in owner]
        if users:
            owner[n.name] = min(users)
        else:
            alone.append(n)
    return alone[::-1]


def _nearest(modules: Modules, node: Node, owner: Mapping[str, int]) -> int:
    """Return the block of the nearest operator that has a block, preferably of the same module."""
    module, index = modules.place(node.name), modules.order[node.name]
    nodes = modules.graph.nodes
    best: tuple[int, int] | None = None
    for distance in range(1, len(nodes)):
        for other in (index + distance, index - distance):
            if not 0 <= other < len(nodes) or nodes[other].name not in owner:
                continue
            shared = len(common((module, modules.place(nodes[other].name))))
            if best is None or shared > best[0]:
                best = shared, owner[nodes[other].name]
            if best[0] == len(module) or distance > 16:
                return best[1]
    return best[1] if best is not None else 0
