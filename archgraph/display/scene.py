"""The boxes, arrows and nested frames of a picture of a graph.

A :class:`Scene` does not depend on a file format; :mod:`archgraph.display.dot` converts it to DOT.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from archgraph.analysis.cost import cost
from archgraph.display.contents import Contents
from archgraph.display.hierarchy import Fold, NamedBlocks, Sections, between, folds, short
from archgraph.display.labels import (
    LabelLine,
    abbreviated,
    lines_of,
    main_family,
    mask_of,
    shape_label,
)
from archgraph.display.pieces import Detail, Pieces, pieces
from archgraph.graph.ir import ArchGraph, in_mode
from archgraph.graph.values import refs
from archgraph.module.inputs import tensors_in
from archgraph.tables import count

BoxKind = Literal["operator", "input", "output"]


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a picture: one or several operators, an input, or an output.

    Attributes:
        name: Unique name. The name of a box of operators is the name of its first operator.
        kind: ``operator``, ``input`` or ``output``.
        nodes: Names of its operators in the graph, in topological order.
        lines: Lines of its label.
        leaves: Names of the parameters, buffers and constants that its operators use.
        parameters: Number of its parameters; tied parameters count at their first use.
        size: Number of its parameters as text. In a fold whose widths differ, a range.
        training: Whether the box is used only in training.
        folded: Corresponding operators of the other repetitions of a fold.
        family: One of :data:`archgraph.ops.table.FAMILIES`, or empty.
    """

    name: str
    kind: BoxKind
    nodes: tuple[str, ...]
    lines: tuple[LabelLine, ...]
    leaves: tuple[str, ...] = ()
    parameters: int = 0
    size: str = ""
    training: bool = False
    folded: tuple[str, ...] = ()
    family: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """An arrow: a value that one box computes and another one uses.

    Attributes:
        tail: Box that computes the value.
        head: Box that uses it.
        label: Shape of the value, without the batch axis.
        training: Whether the arrow is used only in training.
        mask: Whether the value only masks attention.
    """

    tail: str
    head: str
    label: str
    training: bool = False
    mask: bool = False


@dataclass(frozen=True, slots=True)
class Cluster:
    """A frame of a picture: a section, a block, or a fold of repeated blocks.

    Attributes:
        name: Name of the section or block. For a fold, names of its first and last block.
        groups: Frames inside the frame.
        boxes: Names of the boxes inside the frame.
        leaves: Parameters, buffers and constants of all its operators, in all repetitions.
        note: Number of parameters as text; for a fold, of one repetition.
        times: Number of repetitions; 1 if the frame is not a fold.
    """

    name: str
    groups: tuple[Cluster, ...] = ()
    boxes: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    note: str = ""
    times: int = 1

    def walk(self) -> Iterator[Cluster]:
        """Yield the frame itself and all frames inside it."""
        yield self
        for group in self.groups:
            yield from group.walk()


@dataclass(frozen=True, slots=True)
class Scene:
    """The boxes of a picture in topological order, the arrows between them, and their frames."""

    name: str
    boxes: tuple[Box, ...]
    links: tuple[Link, ...]
    groups: tuple[Cluster, ...]

    @property
    def box(self) -> Mapping[str, Box]:
        """A dict from name to box."""
        return {b.name: b for b in self.boxes}

    def clusters(self) -> Iterator[Cluster]:
        """Yield all frames, each before the frames inside it."""
        for group in self.groups:
            yield from group.walk()


def scene(
    graph: ArchGraph,
    sections: Sections,
    *,
    detail: Detail = "block",
    fold: bool = True,
    per_section: bool = False,
    marks: Mapping[str, object] | None = None,
) -> Scene:
    """Return the boxes, arrows and frames of a picture of a graph.

    Args:
        graph: The architecture.
        sections: Name and blocks of each section, in order. A block is a name and a list of
            operators. Operators without a block are outside all frames, and so are inputs, masks
            and heads that are used only in training.
        detail: As for :func:`archgraph.display.picture.draw`.
        fold: Whether equal neighbouring blocks are shown once, with a count.
        per_section: Whether the detail `section` shows a section as one box (with early exits, as
            one box up to each exit).
        marks: Dict from parameter or block to a value, such as coverage. Blocks are only folded if
            these values are equal.

    Example:
        >>> from archgraph.graph.ir import ArchGraph, BATCH, Node, Ref, TensorType
        >>> kind = TensorType((BATCH, 8), "float32")
        >>> x = Node("x", "input", type=kind)
        >>> y = Node("relu", "aten.relu", (("self", Ref("x")),), kind)
        >>> picture = scene(ArchGraph((("x", Ref("x")),), (), (x, y), Ref("relu")), [])
        >>> [box.name for box in picture.boxes], picture.links[0].label
        (['x', 'relu', 'output (output)'], '8')
    """
    parts = pieces(graph, sections, detail)
    inside: Sections = blocks_of(sections, parts)
    folded = folds(graph, inside, parts.feeds, marks) if fold else ()
    labels: Mapping[str, tuple[LabelLine, ...]] = {}
    if detail == "section":
        inside, labels = _overview(graph, parts, inside, folded, per_section)
        parts, folded = pieces(graph, inside, detail), ()
    making = _Making(graph, parts, folded)
    boxes = making.boxes(labels)
    groups = tuple(_groups(graph, inside, boxes, folded))
    if detail == "section":  # a frame around a single box would repeat its title
        framed = [(group, [b for block in group.groups for b in block.boxes]) for group in groups]
        groups = tuple(
            Cluster(g.name, boxes=tuple(b), note=g.note) for g, b in framed if len(b) > 1
        )
    links = making.links({name: box.name for box in boxes for name in box.nodes})
    ends, more = making.ends(boxes)
    return Scene(
        graph.name,
        (*boxes, *ends),
        (*links, *more),
        groups,
    )


def blocks_of(sections: Sections, parts: Pieces) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """Return the sections with the operators of their blocks, without empty blocks.

    A section that is named after its first block gets the names of its first and last block if
    they differ in a number: `inception4a–e`.
    """
    inside: dict[int, list[str]] = {}
    for name, host in parts.host.items():
        if host in parts.owner and name not in parts.masks:
            inside.setdefault(parts.owner[host], []).append(name)
    numbers = itertools.count()
    return [
        (
            section
            if section != blocks[0][0] or " – " in (run := between(section, blocks[-1][0]))
            else run,
            [(name, nodes) for name, _ in blocks if (nodes := inside.get(next(numbers)))],
        )
        for section, blocks in sections
    ]


def _overview(
    graph: ArchGraph, parts: Pieces, sections: Sections, folds: Sequence[Fold], per_section: bool
) -> tuple[Sections, Mapping[str, tuple[LabelLine, ...]]]:
    """Return sections whose blocks are the boxes to draw, and a dict from operator to box label."""
    contents = Contents(graph, parts.feeds)
    boxes: list[tuple[str, list[tuple[str, list[str]]]]] = []
    labels: dict[str, tuple[LabelLine, ...]] = {}
    for section, blocks in sections:
        runs = list(_exits(graph, blocks) if per_section else _runs(blocks, folds))
        boxes.append((section, []))
        for run in runs:
            title = section
            if len(runs) > 1:
                title = short(between(run[0][0], run[-1][0]), section)
            nodes = [name for _, members in run for name in members]
            boxes[-1][1].append((title, nodes))
            lines = contents.lines([members for _, members in run])
            labels |= dict.fromkeys(nodes, (LabelLine(title, strong=True), *lines))
    return boxes, labels


def _runs(blocks: NamedBlocks, folds: Sequence[Fold]) -> Iterator[NamedBlocks]:
    """Yield each block as a list of one block, and each fold as a list of all its blocks."""
    lengths = {one.blocks[0][0]: one.times * len(one.blocks[0]) for one in folds}
    while blocks:
        many = lengths.get(blocks[0][0], 1)
        yield blocks[:many]
        blocks = blocks[many:]


def _exits(graph: ArchGraph, blocks: NamedBlocks) -> Iterator[NamedBlocks]:
    """Yield lists of consecutive blocks; each list ends with a block that computes an output."""
    ends, start = set(refs(graph.outputs)), 0
    for stop, (_, nodes) in enumerate(blocks, 1):
        if stop == len(blocks) or not ends.isdisjoint(nodes):
            yield blocks[start:stop]
            start = stop


class _Making:
    """Builds a scene.

    Attributes:
        twin: Dict from operators of later repetitions to those of the first repetition.
        turn: Dict from operators of a fold to the numbers of the fold and of the repetition.
        copies: Dict from operators of the first repetition to those of later repetitions.
    """

    def __init__(self, graph: ArchGraph, parts: Pieces, folds: Sequence[Fold]) -> None:
        self.graph, self.parts = graph, parts
        self.order = {node.name: i for i, node in enumerate(graph.nodes)}
        # Only the first repetition of a fold is drawn.
        self.twin: dict[str, str] = {}
        self.turn: dict[str, tuple[int, int]] = {}
        self.copies: dict[str, list[str]] = {}
        for number, one in enumerate(folds):
            for turn, nodes in enumerate(one.nodes):
                for first, name in zip(one.nodes[0], nodes, strict=True):
                    self.turn[name] = number, turn
                    if turn:
                        self.twin[name] = first
                        self.copies.setdefault(first, []).append(name)

    def boxes(self, labels: Mapping[str, tuple[LabelLine, ...]]) -> list[Box]:
        """Return the boxes of inputs and operators; of a fold, only the first repetition.

        Args:
            labels: Dict from operator to label, for boxes that contain complete blocks.
        """
        guests: dict[str, list[str]] = {}
        for name, host in self.parts.host.items():
            if name != host:
                guests.setdefault(host, []).append(name)
        return [
            self.box(names, [*names, *(g for n in names for g in guests.get(n, ()))], labels)
            for names in self.parts.boxes
            if names[0] not in self.twin
        ]

    def box(
        self,
        names: Sequence[str],
        nodes: Sequence[str],
        labels: Mapping[str, tuple[LabelLine, ...]],
    ) -> Box:
        """Build the box of some operators, including hidden ones such as counters."""
        graph = self.graph
        leaves = tuple(dict.fromkeys(leaf for n in names for leaf in graph.node[n].leaves()))
        last = [self.copies.get(n, [n])[-1] for n in names]
        entry = graph.node[names[0]].op == "input"
        lines = labels.get(names[0]) or self.lines(names, last)
        return Box(
            name=names[0],
            kind="input" if entry else "operator",
            nodes=tuple(sorted(nodes, key=self.order.__getitem__)),
            lines=(LabelLine(names[0], strong=True),) if entry else lines,
            leaves=leaves,
            parameters=cost(graph).of(names).parameters,
            # In a fold of different widths, show the sizes of the first and the last repetition.
            size="–".join(dict.fromkeys(_size(graph, one) for one in (names, last))),
            training=names[0] in self.parts.training,
            folded=tuple(copy for n in nodes for copy in self.copies.get(n, ())),
            # Masks do not have a family, although they may contain additions.
            family="" if names[0] in self.parts.masks else main_family(graph, names),
        )

    def lines(self, names: Sequence[str], last: Sequence[str]) -> tuple[LabelLine, ...]:
        """Return the label of a box. Numbers that differ in the last repetition become a range."""
        pairs = list(zip(lines_of(self.graph, names), lines_of(self.graph, last), strict=False))
        lines = tuple(replace(a, text=between(a.text, b.text)) for a, b in pairs)
        if names[0] not in self.parts.masks:
            return lines
        words = abbreviated([line.text for line in lines])
        return LabelLine("mask of attention", strong=True), LabelLine(words)

    def links(self, holder: Mapping[str, str]) -> Iterator[Link]:
        """Yield the arrows between operators, except between repetitions of a fold."""
        arrows: dict[tuple[str, str], Link] = {}
        labels: dict[tuple[str, str], str] = {}  # in the last repetition
        for name, before in self.parts.feeds.items():
            for used in before:
                a, b = self.turn.get(used, (-1, 0)), self.turn.get(name, (-2, 0))
                tail = holder[self.twin.get(used, used)]
                head = holder[self.twin.get(name, name)]
                # Skip arrows within a box, and arrows between repetitions of a fold.
                if tail == head or (a[0] == b[0] and a[1] != b[1]):
                    continue
                link = self.link(used, name, tail, head)
                previous = arrows.get((tail, head))
                if previous is not None and name in self.twin and a[0] == b[0]:
                    labels[tail, head] = link.label
                # Of two arrows, keep the one that evaluation also has.
                elif previous is None or (previous.training and not link.training):
                    arrows[tail, head] = link
        for ends, link in arrows.items():
            yield replace(link, label=between(link.label, labels.get(ends, link.label)))

    def link(self, used: str, name: str, tail: str, head: str) -> Link:
        """Build the arrow from a value to an operator that reads it."""
        node, source = self.graph.node[name], self.graph.node[used]
        steady = set(refs(tuple(in_mode(value, False) for _, value in node.args)))
        label = shape_label(source.types[0])
        if len(source.types) > 1:  # getitem selects one of several results
            label = shape_label(node.types[0]) if node.op == "getitem" else ""
        known = mask_of(node)
        masking = bool(known) and used not in [other for other in node.uses() if other != known]
        only = used in set(node.uses()) - steady or not self.parts.training.isdisjoint((name, used))
        return Link(tail, head, label, training=only, mask=masking)

    def ends(self, boxes: Sequence[Box]) -> tuple[list[Box], list[Link]]:
        """Return the boxes of the outputs, and the arrows to them."""
        holder = {name: box.name for box in boxes for name in (*box.nodes, *box.folded)}
        ends, links = [], []
        for label, source, aside in outputs_of(self.graph):
            # An output may be named like an operator, or like an output of the other mode.
            name = f"{label} ({'training' if aside else 'output'})"
            ends.append(Box(name, "output", (), (LabelLine(label, strong=True),), training=aside))
            kind = shape_label(self.graph.node[source].types[0])
            links.append(Link(holder[source], name, kind, aside))
        return ends, links


def outputs_of(graph: ArchGraph) -> Iterator[tuple[str, str, bool]]:
    """Yield the name of each output, its operator, and whether it exists only in training."""
    both = [dict(tensors_in(in_mode(graph.outputs, mode), ())) for mode in (False, True)]
    for keys, name in both[0].items():
        yield ".".join(map(str, keys)) or "output", name, False
    for keys, name in both[1].items():
        if name not in both[0].values():
            yield ".".join(map(str, keys)) or "output", name, True


def _groups(
    graph: ArchGraph, sections: Sections, boxes: Sequence[Box], folds: Sequence[Fold]
) -> Iterator[Cluster]:
    """Yield a frame for each section, with the frames of its blocks and folds."""
    holder = {name: box.name for box in boxes for name in box.nodes}
    first = {one.blocks[0][0]: one for one in folds}
    for section, blocks in sections:
        inner = []
        for run in _runs(blocks, folds):
            one = first.get(run[0][0])
            units = [
                _block(graph, holder, *block) for block in run[: len(one.blocks[0]) if one else 1]
            ]
            inner.append(_folded(graph, one, units) if one else units[0])
        nodes = [n for _, inside in blocks for n in inside]
        if len(inner) == 1:
            yield inner[0]  # a second frame around it would repeat its title
        elif inner:
            yield Cluster(section, tuple(inner), (), _leaves(graph, nodes), _size(graph, nodes))


def _block(graph: ArchGraph, holder: Mapping[str, str], name: str, nodes: Sequence[str]) -> Cluster:
    """Return the frame of a block, with the boxes of its operators."""
    boxes = tuple(dict.fromkeys(holder[n] for n in nodes))
    return Cluster(name, (), boxes, _leaves(graph, nodes), _size(graph, nodes))


def _folded(graph: ArchGraph, one: Fold, units: Sequence[Cluster]) -> Cluster:
    """Return the frame of a fold, with the boxes of its first repetition."""
    leaves = _leaves(graph, [n for nodes in one.nodes for n in nodes])
    note = "–".join(dict.fromkeys(_size(graph, n) for n in (one.nodes[0], one.nodes[-1])))
    inner = units[0] if len(units) == 1 else Cluster("", tuple(units))
    return replace(inner, name=one.name, leaves=leaves, note=note, times=one.times)


def _leaves(graph: ArchGraph, nodes: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(k for n in nodes for k in graph.node[n].leaves()))


def _size(graph: ArchGraph, nodes: Sequence[str]) -> str:
    """Return the number of parameters of some operators as text."""
    return count(cost(graph).of(nodes).parameters)
