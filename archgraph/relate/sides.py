"""Two graphs side by side while they are aligned: their forms, blocks, axes and resolutions."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from archgraph.analysis.axes import axes
from archgraph.analysis.forms import Form, forms, forms_by_widths
from archgraph.analysis.structure import Block
from archgraph.analysis.widths import axes_of
from archgraph.graph.ir import ArchGraph
from archgraph.layout.layouts import Layout

# 0 is the client, 1 the whole.
Index: TypeAlias = Literal[0, 1]
# Runs of blocks of both graphs that belong together.
Match: TypeAlias = tuple[range, range]
# The sizes of a result's dimensions without channels; None for those with channels.
Resolution: TypeAlias = tuple[object, ...]


class Sides:
    """Two graphs side by side; every pair holds the client's first.

    In graphs without common names operands of one form are told apart by width, not by name.
    """

    def __init__(self, client: ArchGraph, whole: ArchGraph) -> None:
        self.graphs = client, whole
        shared = client.param.keys() & whole.param.keys()
        strangers = 2 * len(shared) < min(len(client.params), len(whole.params))
        read = forms_by_widths if strangers else forms
        self.forms = read(client), read(whole)
        self.blocks = self.forms[0].structure.blocks, self.forms[1].structure.blocks
        self.axes = axes(client), axes(whole)
        self.free = (
            frozenset(a.name for a in self.axes[0].free),
            frozenset(a.name for a in self.axes[1].free),
        )

    def form(self, side: Index, run: range) -> Form:
        """Form of a run of blocks."""
        blocks = self.blocks[side]
        return self.forms[side].part(blocks[run[0]].entry, blocks[run[-1]].exit)

    def works(self, side: Index, block: Block) -> bool:
        """Whether a block computes anything."""
        return bool(self.forms[side].part(block.entry, block.exit).nodes)

    def sections(self, side: Index) -> list[range]:
        """Blocks of each section, by number."""
        runs, begin = [], 0
        for section in self.forms[side].structure.sections:
            runs.append(range(begin, begin + len(section.blocks)))
            begin += len(section.blocks)
        return runs

    @functools.cached_property
    def sizes(self) -> tuple[list[int], list[int]]:
        """Operators of each block's form."""
        return self._sizes(0), self._sizes(1)

    def _sizes(self, side: Index) -> list[int]:
        count = len(self.blocks[side])
        return [len(self.form(side, range(i, i + 1)).nodes) for i in range(count)]

    @functools.cached_property
    def resolutions(self) -> tuple[list[Resolution], list[Resolution]] | None:
        """Pixels or tokens of each block's result; None where the graphs' inputs differ."""
        inputs = [[n.types for n in g.nodes if n.op == "input"] for g in self.graphs]
        if inputs[0] != inputs[1]:
            return None
        return (
            [resolution(self.axes[0].value[b.exit][0]) for b in self.blocks[0]],
            [resolution(self.axes[1].value[b.exit][0]) for b in self.blocks[1]],
        )


def resolution(layouts: Sequence[Layout]) -> Resolution:
    """The resolution of a result."""
    return tuple(None if axes_of(d) else d.size for d in layouts)


def agree(a: Resolution, b: Resolution) -> bool:
    """Whether two results have the same resolution."""
    return len(a) == len(b) and all(
        x == y for x, y in zip(a, b, strict=True) if x is not None and y is not None
    )


def covered(matches: Iterable[Match], side: Index) -> set[int]:
    """Blocks of one graph that are matched."""
    return {i for match in matches for i in match[side]}


def inputs_of(graph: ArchGraph) -> list[str]:
    """Names of the inputs, in order."""
    return [n.name for n in graph.nodes if n.op == "input"]
