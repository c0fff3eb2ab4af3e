"""Folds: runs of equal neighbouring blocks, which pictures and pages show once, with a count.

Blocks are compared operator by operator, without the names of operators and parameters. Consecutive
equal blocks form a fold if each block reads the same values from outside as the previous block, or
the corresponding results of the previous block. Only the next block may read the results of a block
inside the fold.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from archgraph.graph.ir import ArchGraph, Leaf, Ref, Value, replace, show
from archgraph.graph.values import refs

# Possible numbers of blocks per repetition: an encoder layer has two blocks, a decoder layer three.
PERIODS = (1, 2, 3, 4)
# Minimum number of blocks of different widths that form a fold (the layers of a DenseNet block).
GROWING = 3
# Longer names of blocks are shown without the name of their section.
LONG = 20
# Sections: names, with blocks; a block is a name and its operators in topological order.
NamedBlocks = Sequence[tuple[str, Sequence[str]]]
Sections = Sequence[tuple[str, NamedBlocks]]


@dataclass(frozen=True, slots=True)
class Fold:
    """A run of equal repetitions; each repetition is one block or several different blocks.

    Attributes:
        blocks: Names of the blocks of each repetition.
        nodes: Operators of each repetition; operators with the same index correspond.
        growing: Whether the repetitions have different widths.
    """

    blocks: tuple[tuple[str, ...], ...]
    nodes: tuple[tuple[str, ...], ...]
    growing: bool = False

    @property
    def times(self) -> int:
        """The number of repetitions."""
        return len(self.blocks)

    @property
    def name(self) -> str:
        """The names of the first and last block; merged if they differ only in a number.

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
    """Return the name of a block; if it is long, without the name of its section.

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
    """Find the runs of equal blocks in each section.

    Args:
        graph: The architecture.
        sections: Name and blocks of each section, in order. A block is a name and a list of
            operators, without inputs of the graph.
        feeds: Dict from each operator to the operators whose values it reads.
        marks: Dict from parameter or block to a value, such as coverage. Blocks are equal only if
            these values are equal.

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
    """Compares the blocks of a graph and finds folds."""

    def __init__(
        self, graph: ArchGraph, feeds: Mapping[str, Sequence[str]], marks: Mapping[str, object]
    ) -> None:
        self.graph, self.feeds, self.marks = graph, feeds, marks
        # A block that computes an output of the graph does not belong to a fold.
        self.users: dict[str, list[str]] = {name: [""] for name in refs(graph.outputs)}
        for name, before in feeds.items():
            for used in before:
                self.users.setdefault(used, []).append(name)

    def section(self, blocks: NamedBlocks) -> list[Fold]:
        """Find the folds of a section; at each block, prefer the longest fold of equal widths."""
        folded: list[Fold] = []
        start = 0
        while start < len(blocks):
            strict = [self.run(blocks[start:], period) for period in PERIODS]
            # A fold has at least two repetitions.
            best = max(strict, key=lambda fold: fold.times * len(fold.blocks[0]) * (fold.times > 1))
            # Use a fold of different widths (DenseNet) only if there is no fold of equal widths.
            if best.times < 2:
                best = self.run(blocks[start:], 1, growing=True)
            if best.times >= (GROWING if best.growing else 2):
                folded.append(best)
                start += best.times * len(best.blocks[0])
            else:
                start += 1
        return folded

    def run(self, blocks: NamedBlocks, period: int, growing: bool = False) -> Fold:
        """Return the fold of the first blocks and all following blocks that repeat them."""
        starts = range(0, len(blocks) - period + 1, period)
        units = [blocks[i : i + period] for i in starts] or [()]
        names = tuple(tuple(name for name, _ in unit) for unit in units)
        nodes = tuple(tuple(n for _, members in unit for n in members) for unit in units)
        many = 1
        lines, before = self.read(nodes[0], names[0], growing)
        relation: list[tuple[str, object]] | None = None
        # Each repetition has the same lines as the first one, and reads the same outside values as
        # the preceding repetition or the corresponding results of that repetition (`relation`).
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
        """Return whether only the next repetition reads the results of a repetition."""
        near = {*nodes, *after}
        return all(user in near for name in nodes for user in self.users.get(name, ()))

    def read(
        self, nodes: Sequence[str], blocks: Sequence[str], growing: bool
    ) -> tuple[list[object], list[str]]:
        """Return a repetition as lines, and the outside values that it reads, in order of use."""
        order = _FirstUse({name: f"%{i}" for i, name in enumerate(nodes)})
        lines: list[object] = [tuple(self.marks.get(block) for block in blocks)]
        for name in nodes:
            node = self.graph.node[name]
            used = tuple(show(order(Ref(other))) for other in self.feeds.get(name, ()))
            # If widths may differ, compare ranks instead of shapes. Arguments also contain sizes.
            if growing:
                refs = [len(self.graph.param[leaf].shape) for leaf in node.leaves()]
                lines.append((node.op, used, refs, [len(kind.shape) for kind in node.types]))
            else:
                args = tuple((k, show(replace(v, order))) for k, v in node.args)
                lines.append((node.op, used, args, node.types))
        if growing:
            weights = dict.fromkeys(k for n in nodes for k in self.graph.node[n].leaves())
            lines.append([self.marks.get(leaf) for leaf in weights])
        for leaf in order.leaves:  # empty if widths may differ
            param = self.graph.param[leaf]
            lines.append((param.type, param.role, param.trainable, self.marks.get(leaf)))
        return lines, list(order.outside)


@dataclass
class _FirstUse:
    """Replaces names by numbers in order of first use, so that equal blocks have equal lines.

    Attributes:
        inside: Dict from each operator of the block to its number.
        outside: Dict from each outside operator whose value the block reads to its number.
        leaves: Dict from each parameter or buffer of the block to its number.
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
    """Relate the outside values that a repetition reads to the preceding repetition.

    Args:
        outside: Outside operators whose values the repetition reads.
        before: Outside operators whose values the preceding repetition reads.
        nodes: Operators of the preceding repetition.

    Returns:
        For each value, ``same`` and the operator, or ``made before`` and an index in ``nodes``.
    """
    position = {name: i for i, name in enumerate(nodes)}
    return [
        ("same", name) if name == other else ("made before", position.get(name))
        for name, other in zip(outside, before, strict=False)
    ]
