"""Scenes: the boxes, links and clusters of a picture of a graph.

A :class:`Scene` has neither DOT nor colours; :mod:`archgraph.display.dot` adds them.
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
    """One box of the picture.

    Attributes:
        name: Unique in the scene; the name of an operator box is that of its first node.
        kind: Operator, input or output.
        nodes: Names of its nodes in the graph, in topological order.
        lines: Its label.
        leaves: Names of the leaves that its nodes use.
        parameters: Number of elements of its parameters; tied ones count at their first use.
        size: The number in words; a range in a fold whose widths differ.
        training: Whether only training has it.
        folded: Nodes of the other repetitions of a fold.
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
        label: Its shape, without the batch axis.
        training: Whether only training has it.
        mask: Whether it only masks attention.
    """

    tail: str
    head: str
    label: str
    training: bool = False
    mask: bool = False


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster: a section with blocks, a block with boxes, or a fold of blocks.

    Attributes:
        name: Name of the section or block; for a fold, of its first and last block.
        groups: Clusters inside.
        boxes: Boxes inside.
        leaves: Leaves of all its operators, those of all repetitions included.
        note: Number of parameters; for a fold, of one repetition.
        times: Number of repetitions.
    """

    name: str
    groups: tuple[Cluster, ...] = ()
    boxes: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    note: str = ""
    times: int = 1

    def walk(self) -> Iterator[Cluster]:
        """Yield the cluster itself and all clusters inside."""
        yield self
        for group in self.groups:
            yield from group.walk()


@dataclass(frozen=True, slots=True)
class Scene:
    """A picture's contents: boxes in topological order, links, and clusters over the boxes."""

    name: str
    boxes: tuple[Box, ...]
    links: tuple[Link, ...]
    groups: tuple[Cluster, ...]

    @property
    def box(self) -> Mapping[str, Box]:
        """Dict from name to box."""
        return {b.name: b for b in self.boxes}

    def clusters(self) -> Iterator[Cluster]:
        """Yield all clusters, each before those inside it."""
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
    """Return the boxes, links and clusters of a picture of a graph.

    Args:
        graph: The architecture.
        sections: Sections in order: name and blocks, a block being a name and its node names.
            Nodes without a block are outside all clusters, like inputs, masks and heads that only
            training has.
        detail: `node` shows every operator; `block` puts operators without a weight matrix or
            kernel into the box of the operator that feeds them; `section` shows a block as one box.
        fold: Whether equal neighbouring blocks are shown once, with their number.
        per_section: Whether `section` shows a section as one box, or one per exit.
        marks: Values by leaf or block; blocks fold only if theirs are equal.

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
    if detail == "section":  # a frame around one box would repeat its title
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
    """Return the sections with a part for each box, and the label of the box by operator."""
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
    """Yield blocks one by one, or together if they are a fold."""
    lengths = {one.blocks[0][0]: one.times * len(one.blocks[0]) for one in folds}
    while blocks:
        many = lengths.get(blocks[0][0], 1)
        yield blocks[:many]
        blocks = blocks[many:]


def _exits(graph: ArchGraph, blocks: NamedBlocks) -> Iterator[NamedBlocks]:
    """Yield runs of blocks, each up to one that computes an output."""
    ends, start = set(refs(graph.outputs)), 0
    for stop, (_, nodes) in enumerate(blocks, 1):
        if stop == len(blocks) or not ends.isdisjoint(nodes):
            yield blocks[start:stop]
            start = stop


class _Making:
    """Builds a scene.

    Attributes:
        twin: For operators of later repetitions, the operator of the first one.
        turn: Fold and number of the repetition of each operator in a fold.
        copies: For operators of the first repetition, the operators of later ones.
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
        """Return the boxes of inputs and operators; for a fold, those of its first repetition.

        Args:
            labels: Labels of boxes of whole blocks, by operator.
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
        """Build the box of operators, and of the counters that belong to them."""
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
            # Sizes of the first and the last repetition differ in a fold of blocks that grow.
            size="–".join(dict.fromkeys(_size(graph, one) for one in (names, last))),
            training=names[0] in self.parts.training,
            folded=tuple(copy for n in nodes for copy in self.copies.get(n, ())),
            # Masks have no kind, though they may contain additions.
            family="" if names[0] in self.parts.masks else main_family(graph, names),
        )

    def lines(self, names: Sequence[str], last: Sequence[str]) -> tuple[LabelLine, ...]:
        """Label an operator box; numbers that differ in the last repetition become a range."""
        pairs = list(zip(lines_of(self.graph, names), lines_of(self.graph, last), strict=False))
        lines = tuple(replace(a, text=between(a.text, b.text)) for a, b in pairs)
        if names[0] not in self.parts.masks:
            return lines
        words = abbreviated([line.text for line in lines])
        return LabelLine("mask of attention", strong=True), LabelLine(words)

    def links(self, holder: Mapping[str, str]) -> Iterator[Link]:
        """Yield the arrows between operators, except those between repetitions of a fold."""
        arrows: dict[tuple[str, str], Link] = {}
        labels: dict[tuple[str, str], str] = {}  # in the last repetition
        for name, before in self.parts.feeds.items():
            for used in before:
                a, b = self.turn.get(used, (-1, 0)), self.turn.get(name, (-2, 0))
                tail = holder[self.twin.get(used, used)]
                head = holder[self.twin.get(name, name)]
                # Not drawn: arrows within a box, or between repetitions of a fold.
                if tail == head or (a[0] == b[0] and a[1] != b[1]):
                    continue
                link = self.link(used, name, tail, head)
                previous = arrows.get((tail, head))
                if previous is not None and name in self.twin and a[0] == b[0]:
                    labels[tail, head] = link.label
                # Of two arrows, keep the one that evaluation has, too.
                elif previous is None or (previous.training and not link.training):
                    arrows[tail, head] = link
        for ends, link in arrows.items():
            yield replace(link, label=between(link.label, labels.get(ends, link.label)))

    def link(self, used: str, name: str, tail: str, head: str) -> Link:
        """Build the arrow of one value to one operator."""
        node, source = self.graph.node[name], self.graph.node[used]
        steady = set(refs(tuple(in_mode(value, False) for _, value in node.args)))
        label = shape_label(source.types[0])
        if len(source.types) > 1:  # getitem chooses one of several results
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
            # Outputs may have names of operators, or the same name in training and evaluation.
            name = f"{label} ({'training' if aside else 'output'})"
            ends.append(Box(name, "output", (), (LabelLine(label, strong=True),), training=aside))
            kind = shape_label(self.graph.node[source].types[0])
            links.append(Link(holder[source], name, kind, aside))
        return ends, links


def outputs_of(graph: ArchGraph) -> Iterator[tuple[str, str, bool]]:
    """Yield name, node, and whether only training has it, for every output."""
    both = [dict(tensors_in(in_mode(graph.outputs, mode), ())) for mode in (False, True)]
    for keys, name in both[0].items():
        yield ".".join(map(str, keys)) or "output", name, False
    for keys, name in both[1].items():
        if name not in both[0].values():
            yield ".".join(map(str, keys)) or "output", name, True


def _groups(
    graph: ArchGraph, sections: Sections, boxes: Sequence[Box], folds: Sequence[Fold]
) -> Iterator[Cluster]:
    """Yield a cluster for each section with its blocks and folds inside."""
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
    """Return the cluster of a block, with the boxes of its operators."""
    boxes = tuple(dict.fromkeys(holder[n] for n in nodes))
    return Cluster(name, (), boxes, _leaves(graph, nodes), _size(graph, nodes))


def _folded(graph: ArchGraph, one: Fold, units: Sequence[Cluster]) -> Cluster:
    """Return the cluster of a fold, with the first of its repetitions."""
    leaves = _leaves(graph, [n for nodes in one.nodes for n in nodes])
    note = "–".join(dict.fromkeys(_size(graph, n) for n in (one.nodes[0], one.nodes[-1])))
    inner = units[0] if len(units) == 1 else Cluster("", tuple(units))
    return replace(inner, name=one.name, leaves=leaves, note=note, times=one.times)


def _leaves(graph: ArchGraph, nodes: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(k for n in nodes for k in graph.node[n].leaves()))


def _size(graph: ArchGraph, nodes: Sequence[str]) -> str:
    """Write the number of parameters of operators; tied ones count at their first use."""
    return count(cost(graph).of(nodes).parameters)
