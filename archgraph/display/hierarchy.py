"""Which neighbouring blocks are equal: a picture or a page shows them once, with their number.

A block is read line by line, without the names of its operators and leaves. Blocks of equal lines
fold if each takes from outside what the one before takes, or what that one makes, and if nothing
but the next block uses what one makes: then the first and a number say everything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from archgraph.graph.ir import ArchGraph, Leaf, Ref, Value, replace, show
from archgraph.graph.values import refs

# Blocks alternate in at most so many kinds: attention and feed-forward; a decoder's three.
PERIODS = (1, 2, 3, 4)
# So many blocks fold although their widths differ (the layers of a dense block).
GROWING = 3
# Names of blocks longer than this are shown without the name of their section.
LONG = 20
# Section and blocks: names with the names of their operators in topological order.
NamedBlocks = Sequence[tuple[str, Sequence[str]]]
Sections = Sequence[tuple[str, NamedBlocks]]


@dataclass(frozen=True, slots=True)
class Fold:
    """Neighbouring blocks that are equal; each repetition is one block or a few in turn.

    Attributes:
        blocks: Names of the blocks of each repetition.
        nodes: Operators of each repetition; those at one place correspond.
        growing: Whether widths differ from one repetition to the next.
    """

    blocks: tuple[tuple[str, ...], ...]
    nodes: tuple[tuple[str, ...], ...]
    growing: bool = False

    @property
    def times(self) -> int:
        """Number of repetitions."""
        return len(self.blocks)

    @property
    def name(self) -> str:
        """First and last block, in one word where only a number tells them apart.

        >>> Fold((("layer.0",), ("layer.1",), ("layer.2",)), ((), (), ())).name
        'layer.0–2'
        """
        return between(self.blocks[0][0], self.blocks[-1][-1])


def between(first: str, last: str) -> str:
    """Merge two texts where a single number tells them apart.

    >>> between("layer.0", "layer.11"), between("conv → 8", "conv → 8"), between("a.0", "b.1")
    ('layer.0–11', 'conv → 8', 'a.0 – b.1')
    """
    if first == last:
        return first
    a, b = (re.split(r"(\d+)", text) for text in (first, last))  # numbers at odd positions
    apart = [i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y]
    if len(a) == len(b) and len(apart) == 1 and apart[0] % 2:
        a[apart[0]] += f"–{b[apart[0]]}"
        return "".join(a)
    return f"{first} – {last}"


def short(name: str, within: str) -> str:
    """Return a block's name, without the name of its section if it is long.

    >>> short("layer1.0", "layer1"), short("encoder.layers.encoder_layer_0.mlp", "encoder.layers")
    ('layer1.0', 'encoder_layer_0.mlp')
    """
    return name.removeprefix(f"{within}.") if len(name) > LONG else name


def folds(
    graph: ArchGraph,
    sections: Sections,
    feeds: Mapping[str, Sequence[str]],
    marks: Mapping[str, object] | None = None,
) -> tuple[Fold, ...]:
    """Return runs of equal blocks within each section, in order.

    Args:
        graph: The architecture.
        sections: Sections in order: name and blocks, a block being a name and its operators.
        feeds: Operators that each operator takes values from.
        marks: What tells equal blocks apart, by the name of a leaf or block (their coverage).

    Example:
        >>> import torch
        >>> from archgraph.analysis.structure import structure
        >>> from archgraph.capture.trace import trace
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> net = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        >>> graph = trace(net, torch.zeros(1, 5, 8)).graph
        >>> parts = structure(graph).sections
        >>> blocks = [(s.name, [(b.name, b.nodes) for b in s.blocks]) for s in parts]
        >>> feeds = {n.name: tuple(n.uses()) for n in graph.nodes}
        >>> [(fold.name, fold.times) for fold in folds(graph, blocks, feeds)]
        [('layers.0–2', 3)]
    """
    reading = _Reading(graph, feeds, marks or {})
    folded: list[Fold] = []
    for _, blocks in sections:
        # Inputs stand outside: the block that they lead to is like the next one.
        operators = [(b, [n for n in nodes if graph.node[n].op != "input"]) for b, nodes in blocks]
        folded += reading.section([block for block in operators if block[1]])
    return tuple(folded)


class _Reading:
    """A graph while its blocks are compared."""

    def __init__(
        self, graph: ArchGraph, feeds: Mapping[str, Sequence[str]], marks: Mapping[str, object]
    ) -> None:
        self.graph, self.feeds, self.marks = graph, feeds, marks
        # The caller is a user, too, of no name: a block whose value it gets does not fold.
        self.users: dict[str, list[str]] = {name: [""] for name in refs(graph.outputs)}
        for name, before in feeds.items():
            for used in before:
                self.users.setdefault(used, []).append(name)

    def section(self, blocks: NamedBlocks) -> list[Fold]:
        """Fold a section: at each block the fold that covers most, equal widths first."""
        folded: list[Fold] = []
        start = 0
        while start < len(blocks):
            strict = [self.run(blocks[start:], period) for period in PERIODS]
            # A single block covers nothing, whatever its period.
            best = max(strict, key=lambda fold: fold.times * len(fold.blocks[0]) * (fold.times > 1))
            # Blocks that grow (DenseNet) fold only if no blocks of equal width do.
            if best.times < 2:
                best = self.run(blocks[start:], 1, growing=True)
            if best.times >= (GROWING if best.growing else 2):
                folded.append(best)
                start += best.times * len(best.blocks[0])
            else:
                start += 1
        return folded

    def run(self, blocks: NamedBlocks, period: int, growing: bool = False) -> Fold:
        """Fold the first blocks and all that repeat them."""
        starts = range(0, len(blocks) - period + 1, period)
        units = [blocks[i : i + period] for i in starts] or [()]
        names = tuple(tuple(name for name, _ in unit) for unit in units)
        nodes = tuple(tuple(n for _, members in unit for n in members) for unit in units)
        many = 1
        lines, before = self.read(nodes[0], names[0], growing)
        relation: list[tuple[str, object]] | None = None
        # A repetition has the lines of the first one and takes from its predecessor what that took
        # from its own: the second one decides which values these are.
        while many < len(units):
            here, outside = self.read(nodes[many], names[many], growing)
            current = _relation(outside, before, nodes[many - 1])
            if (
                here != lines
                or relation not in (None, current)
                or ("made before", None) in current
                or not self.private(nodes[many - 1], nodes[many])
            ):
                break
            relation, before, many = current, outside, many + 1
        return Fold(names[:many], nodes[:many], growing)

    def private(self, nodes: Sequence[str], after: Sequence[str]) -> bool:
        """Return whether nothing but the next repetition uses what one makes."""
        near = {*nodes, *after}
        return all(user in near for name in nodes for user in self.users.get(name, ()))

    def read(
        self, nodes: Sequence[str], blocks: Sequence[str], growing: bool
    ) -> tuple[list[object], list[str]]:
        """Return the lines of a repetition, and what it takes from outside in the order of use."""
        order = _FirstUse({name: f"%{i}" for i, name in enumerate(nodes)})
        lines: list[object] = [tuple(self.marks.get(block) for block in blocks)]
        for name in nodes:
            node = self.graph.node[name]
            used = tuple(show(order(Ref(other))) for other in self.feeds.get(name, ()))
            # Of what grows, ranks are compared, not sizes; arguments may name sizes, too.
            if growing:
                refs = [len(self.graph.param[leaf].shape) for leaf in node.leaves()]
                lines.append((node.op, used, refs, [len(kind.shape) for kind in node.types]))
            else:
                args = tuple((k, show(replace(v, order))) for k, v in node.args)
                lines.append((node.op, used, args, node.types))
        if growing:
            weights = dict.fromkeys(k for n in nodes for k in self.graph.node[n].leaves())
            lines.append([self.marks.get(leaf) for leaf in weights])
        for leaf in order.leaves:  # of what grows there are none
            param = self.graph.param[leaf]
            lines.append((param.type, param.role, param.trainable, self.marks.get(leaf)))
        return lines, list(order.outside)


@dataclass
class _FirstUse:
    """Replaces names by the order of their first use, so that equal blocks have equal lines.

    Attributes:
        inside: The operators of a block, by name.
        outside: The operators that it takes values from.
        leaves: Its parameters and buffers.
    """

    inside: Mapping[str, str]
    outside: dict[str, str] = field(default_factory=dict)
    leaves: dict[str, str] = field(default_factory=dict)

    def __call__(self, value: Value) -> Value:
        match value:
            case Ref(name):
                number = f"<{len(self.outside)}"
                return Ref(self.inside.get(name) or self.outside.setdefault(name, number))
            case Leaf(name):
                return Leaf(self.leaves.setdefault(name, f"#{len(self.leaves)}"))
            case _:
                return value


def _relation(
    outside: Sequence[str], before: Sequence[str], nodes: Sequence[str]
) -> list[tuple[str, object]]:
    """Return where a repetition takes values from: from where its predecessor does, or from that.

    Args:
        outside: What it takes from outside.
        before: What its predecessor takes from outside.
        nodes: The operators of its predecessor.
    """
    position = {name: i for i, name in enumerate(nodes)}
    return [
        ("same", name) if name == other else ("made before", position.get(name))
        for name, other in zip(outside, before, strict=False)
    ]
