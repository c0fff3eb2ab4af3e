"""Folds: runs of equal neighbouring blocks, which pictures and pages show once with their number.

A block is read line by line, without the names of its operators and leaves. Blocks with equal lines
fold if each takes from outside the values that its predecessor takes or makes, and if only the next
block uses the values that it makes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from archgraph.graph.ir import ArchGraph, Leaf, Ref, Value, replace, show
from archgraph.graph.values import refs

# Numbers of blocks in one repetition: attention and feed-forward are two, a decoder's layer three.
PERIODS = (1, 2, 3, 4)
# Least number of blocks that fold although their widths differ (the layers of a dense block).
GROWING = 3
# Names of blocks longer than this are shown without the name of their section.
LONG = 20
# Section and blocks: names with the names of their operators in topological order.
NamedBlocks = Sequence[tuple[str, Sequence[str]]]
Sections = Sequence[tuple[str, NamedBlocks]]


@dataclass(frozen=True, slots=True)
class Fold:
    """Equal neighbouring blocks; a repetition is one block or several different ones.

    Attributes:
        blocks: Names of the blocks of each repetition.
        nodes: Operators of each repetition; operators with the same index correspond.
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
        """First and last block, as one word if they differ only in a number.

        >>> Fold((("layer.0",), ("layer.1",), ("layer.2",)), ((), (), ())).name
        'layer.0–2'
        """
        return between(self.blocks[0][0], self.blocks[-1][-1])


def between(first: str, last: str) -> str:
    """Merge two texts that differ in a single number, or in the letter after their last number.

    >>> between("layer.0", "layer.11"), between("conv → 8", "conv → 8"), between("a.0", "b.1")
    ('layer.0–11', 'conv → 8', 'a.0 – b.1')
    >>> between("inception4a", "inception4e")
    'inception4a–e'
    """
    if first == last:
        return first
    a, b = (re.split(r"(\d+|(?<=\d)[a-z]$)", t) for t in (first, last))  # numbers at odd positions
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
        sections: Sections in order: name and blocks, a block being a name and its operators
            without inputs.
        feeds: Operators that each operator takes values from.
        marks: Values by leaf or block, such as coverage; blocks fold only if theirs are equal.

    Example:
        >>> import torch
        >>> from archgraph.analysis.structure import structure
        >>> from archgraph.capture.trace import trace
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> net = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        >>> graph = trace(net, torch.zeros(1, 5, 8)).graph
        >>> parts = structure(graph).sections
        >>> inputs = {node.name for node in graph.nodes if node.op == "input"}
        >>> blocks = [
        ...     (s.name, [(b.name, [n for n in b.nodes if n not in inputs]) for b in s.blocks])
        ...     for s in parts
        ... ]
        >>> feeds = {n.name: tuple(n.uses()) for n in graph.nodes}
        >>> [(fold.name, fold.times) for fold in folds(graph, blocks, feeds)]
        [('layers.0–2', 3)]
    """
    reading = _Reading(graph, feeds, marks or {})
    return tuple(fold for _, blocks in sections for fold in reading.section(blocks))


class _Reading:
    """Compares the blocks of a graph."""

    def __init__(
        self, graph: ArchGraph, feeds: Mapping[str, Sequence[str]], marks: Mapping[str, object]
    ) -> None:
        self.graph, self.feeds, self.marks = graph, feeds, marks
        # The caller is a user without a name: a block that returns a value to it does not fold.
        self.users: dict[str, list[str]] = {name: [""] for name in refs(graph.outputs)}
        for name, before in feeds.items():
            for used in before:
                self.users.setdefault(used, []).append(name)

    def section(self, blocks: NamedBlocks) -> list[Fold]:
        """Fold a section: at each block use the fold that covers most, equal widths first."""
        folded: list[Fold] = []
        start = 0
        while start < len(blocks):
            strict = [self.run(blocks[start:], period) for period in PERIODS]
            # A single repetition is not a fold.
            best = max(strict, key=lambda fold: fold.times * len(fold.blocks[0]) * (fold.times > 1))
            # Blocks that grow (DenseNet) fold only where no blocks of equal width do.
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
        # A repetition has the lines of the first one and uses the same values of its predecessor
        # as that uses of its own; the second repetition decides which values these are.
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
        """Return whether only the next repetition uses the values that one makes."""
        near = {*nodes, *after}
        return all(user in near for name in nodes for user in self.users.get(name, ()))

    def read(
        self, nodes: Sequence[str], blocks: Sequence[str], growing: bool
    ) -> tuple[list[object], list[str]]:
        """Return the lines of a repetition, and the values from outside in the order of use."""
        order = _FirstUse({name: f"%{i}" for i, name in enumerate(nodes)})
        lines: list[object] = [tuple(self.marks.get(block) for block in blocks)]
        for name in nodes:
            node = self.graph.node[name]
            used = tuple(show(order(Ref(other))) for other in self.feeds.get(name, ()))
            # Blocks that grow: compare ranks instead of sizes, which arguments contain, too.
            if growing:
                refs = [len(self.graph.param[leaf].shape) for leaf in node.leaves()]
                lines.append((node.op, used, refs, [len(kind.shape) for kind in node.types]))
            else:
                args = tuple((k, show(replace(v, order))) for k, v in node.args)
                lines.append((node.op, used, args, node.types))
        if growing:
            weights = dict.fromkeys(k for n in nodes for k in self.graph.node[n].leaves())
            lines.append([self.marks.get(leaf) for leaf in weights])
        for leaf in order.leaves:  # empty for blocks that grow
            param = self.graph.param[leaf]
            lines.append((param.type, param.role, param.trainable, self.marks.get(leaf)))
        return lines, list(order.outside)


@dataclass
class _FirstUse:
    """Replaces names by the order of their first use, so that equal blocks have equal lines.

    Attributes:
        inside: Replacements of the operators of a block.
        outside: Replacements of the operators that it takes values from.
        leaves: Replacements of its parameters and buffers.
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
    """Relate the values that a repetition takes from outside to its predecessor.

    Args:
        outside: Operators outside that it takes values from.
        before: Operators outside that its predecessor takes values from.
        nodes: Operators of its predecessor.

    Returns:
        For each value ``same`` and the operator, or ``made before`` and the index in ``nodes``.
    """
    position = {name: i for i, name in enumerate(nodes)}
    return [
        ("same", name) if name == other else ("made before", position.get(name))
        for name, other in zip(outside, before, strict=False)
    ]
