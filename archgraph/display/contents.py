"""Descriptions of blocks by their layers, such as `2 residual blocks of conv2d 3×3 · 3×3`.

Layers are listed in the order in which a value passes through them; `a | b` are parallel branches.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from archgraph.analysis.structure import structure
from archgraph.display.hierarchy import PERIODS
from archgraph.display.labels import (
    WORDS,
    LabelLine,
    attends,
    kernel_of,
    lines_of,
    node_family,
    operator_label,
)
from archgraph.graph.ir import ArchGraph
from archgraph.ops.idioms import idioms
from archgraph.tables import plural

# Names of consecutive layers, with parallel branches between them.
LayerPath = tuple["str | Branches", ...]


@dataclass(frozen=True, slots=True)
class Branches:
    """Parallel branches, which start from one value and end in one operator.

    Attributes:
        paths: The layers of each branch; empty for a branch without layers.
        kind: `residual block` or `dense layer` if the second branch is the shortcut; else empty.
    """

    paths: tuple[LayerPath, ...]
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Content:
    """The description of a block.

    Attributes:
        text: Its layers, as text.
        kind: `residual block` or `dense layer`; empty for other blocks.
        shortcut: Layers of its shortcut, if any.
    """

    text: str
    kind: str = ""
    shortcut: str = ""


class Contents:
    """Describes blocks of a graph by their layers.

    Args:
        graph: The architecture.
        feeds: Dict from each operator to the operators whose values it reads.
    """

    def __init__(self, graph: ArchGraph, feeds: Mapping[str, Sequence[str]]) -> None:
        self.graph, self.feeds, self.idioms = graph, feeds, idioms(graph)
        blocks = structure(graph).blocks
        self.entries = {block.entry for block in blocks}
        # Dict from an operator that adds a shortcut, or appends to it, to the shortcut.
        self.joins = {
            total: (operand, "residual block") for block in blocks for total, operand in block.sums
        } | {b.merge: (b.shortcut, "dense layer") for b in blocks if b.kind == "dense"}

    def lines(self, blocks: Sequence[Sequence[str]]) -> tuple[LabelLine, ...]:
        """Describe blocks with one line for each run of equal blocks; shorten a long list.

        Args:
            blocks: Operators of each block, in topological order.
        """
        contents = [self.content([n for n in nodes if n in self.feeds]) for nodes in blocks]
        runs = list(repeats([(content.text, content.kind) for content in contents]))
        lines = [_line(contents[start:stop], period) for start, stop, period in runs]
        if len(lines) > WORDS:
            lines[WORDS - 2 : -1] = [f"… {runs[-1][0] - runs[WORDS - 2][0]} more blocks …"]
        # Name the kind of consecutive layers of the same kind only once.
        alike = r"(\w+ )\d+×[\d×]+(?:(?: · | \| )\1\d+×[\d×]+)+"
        return tuple(
            LabelLine(re.sub(alike, lambda m: m[1] + m[0].replace(m[1], ""), line))
            for line in lines
        )

    def content(self, nodes: Sequence[str]) -> Content:
        """Describe one block.

        If the block's branches share layers, ignore operators that read only values from outside
        the block other than its input, such as the keys of another sequence.
        """
        inner = [
            name
            for name in nodes
            if not (used := self.feeds[name]) or not self.entries.union(nodes).isdisjoint(used)
        ]
        match self.path(nodes):
            case None if len(inner) < len(nodes):  # keys and values of another sequence
                return self.content(inner)
            case None:  # If branches share layers, list the layers without an order.
                counts = Counter(self.text((name,)) for name in nodes if self.is_layer(name))
                return Content(", ".join(f"{times} × {text}" for text, times in counts.items()))
            case ():
                return Content(" · ".join(line.text for line in lines_of(self.graph, nodes)))
            case (str(name),):
                return Content(operator_label(self.graph, self.graph.node[name]).text)
            case (Branches((body, shortcut), kind),) if kind and not self.purpose(body, shortcut):
                return Content(self.text(body), kind, self.text(shortcut))
            case (Branches(paths, ""),):
                return Content(self.text(paths, " | "))
            case path:
                return Content(self.text(path))

    def path(self, nodes: Sequence[str]) -> LayerPath | None:
        """Return the layers of a block in order; None if its branches share layers.

        1. The path of the block's input is empty. Other values from outside do not have a path.
        2. An operator continues the path of the operator whose value it reads. If it reads several
           values, their paths are joined.
        3. The paths of the block's outputs are joined.
        """
        used = [other for name in nodes for other in self.feeds[name]]
        outside = (name for name in used if name in self.entries and name not in nodes)
        paths: dict[str, LayerPath] = {next(outside, ""): ()}  # 1
        for name in nodes:  # 2
            before = {other: paths[other] for other in self.feeds[name] if other in paths}
            layer = (name,) if self.is_layer(name) else ()
            if before or layer:
                paths[name] = (*self.joined(name, before), *layer)
            layers = names_of(paths.get(name, ()))
            if len(layers) > len(set(layers)):
                return None
        ends = {name: paths[name] for name in nodes if name in paths.keys() - used}
        return self.joined("", ends)  # 3

    def joined(self, name: str, before: Mapping[str, LayerPath]) -> LayerPath:
        """Join paths into their common beginning, followed by branches. A shortcut comes last."""
        operand, kind = self.joins.get(name, ("", ""))
        paths = list(
            dict.fromkeys(before[n] for n in sorted(before, key=lambda used: used == operand))
        )
        if len(paths) < 2:
            return paths[0] if paths else ()
        steps = zip(*paths, strict=False)
        common = len(list(itertools.takewhile(lambda items: len(set(items)) == 1, steps)))
        rests = [path[common:] for path in paths]
        if operand not in before or len(rests) > 2 or not rests[0]:
            kind, rests = "", [branch for path in rests for branch in _branches(path)]
        return (*paths[0][:common], Branches(tuple(rests), kind))

    def is_layer(self, name: str) -> bool:
        """Return whether an operator is a layer: it has weights, or is attention or pooling."""
        node, idiom = self.graph.node[name], self.idioms.get(name)
        if idiom is not None and idiom.several and not attends(self.graph, node):
            return name == idiom.nodes[-1] and any(
                kernel_of(self.graph, self.graph.node[one]) for one in idiom.nodes
            )
        weighted = attends(self.graph, node) or kernel_of(self.graph, node)
        return bool(weighted) or node.arg("kernel_size") is not None

    def text(self, items: Sequence[str | Branches | LayerPath], joint: str = " · ") -> str:
        """Return a path or branches as text, with a separator."""
        return joint.join(map(self.item, items))

    def item(self, item: str | Branches | LayerPath) -> str:
        """Return a layer or branches as text."""
        match item:
            case str():
                node, idiom = self.graph.node[item], self.idioms.get(item)
                if idiom is not None and idiom.several and not attends(self.graph, node):
                    return idiom.idiom.name
                alone = kernel_of(self.graph, node)[1:2] == (1,) and node.arg("groups", 1) != 1
                label = operator_label(self.graph, node, brief=True).text
                return f"{label} depthwise" if alone else label
            case Branches():
                purpose = item.kind and self.purpose(*item.paths)
                return purpose or f"({self.text(item.paths, ' | ')})"
            case path:
                return self.text(path) or "identity"

    def purpose(self, body: LayerPath, shortcut: LayerPath) -> str:
        """Return a text for a residual block of attention, or of a feed-forward network."""
        layers = [self.graph.node[name] for name in names_of(body)]
        attending = [node for node in layers if attends(self.graph, node)]
        families = {node_family(self.graph, node) for node in layers} - {"attention"}
        if shortcut or families - {"linear", "embedding"} or len(attending) > 1:
            return ""
        if attending:
            return operator_label(self.graph, attending[0]).text
        return f"feed-forward of {layers[0].shape[-1]}" if len(layers) > 1 else ""


def names_of(path: LayerPath) -> list[str]:
    """Return the layers of a path, branch by branch."""
    return [
        name
        for item in path
        for name in (
            [item] if isinstance(item, str) else names_of((*itertools.chain(*item.paths),))
        )
    ]


def _branches(path: LayerPath) -> Sequence[LayerPath]:
    """Return the branches of a path that consists only of branches; otherwise the path itself."""
    match path:
        case (Branches(paths, ""),):
            return paths
    return [path]


def repeats(items: Sequence[object]) -> Iterator[tuple[int, int, int]]:
    """Divide a list into runs of repetitions; yield start, stop and length of one repetition.

    >>> list(repeats(["a", "b", "a", "b", "c", "c"]))
    [(0, 4, 2), (4, 6, 1)]
    """
    start = 0
    while start < len(items):
        covered = {1: 1}
        for period in PERIODS:
            unit, stop = items[start : start + period], start + period
            while items[stop : stop + period] == unit:
                stop += period
                covered[period] = stop - start
        period = max(covered, key=lambda one: covered[one])
        yield start, start + covered[period], period
        start += covered[period]


def _line(contents: Sequence[Content], period: int) -> str:
    """Describe a run of equal blocks, such as `2 residual blocks of …` or `3 × (…)`."""
    times, first = len(contents) // period, contents[0]
    if first.kind and period == 1:
        text = f"{plural(times, first.kind)} of {first.text}".removeprefix("1 ")
        return f"{text}, shortcut {first.shortcut}" if first.shortcut and times == 1 else text
    text = " · ".join(content.text for content in contents[:period])
    if times == 1:
        return text
    return f"{times} × ({text})" if re.search(r" [·|] ", text) else f"{times} × {text}"
