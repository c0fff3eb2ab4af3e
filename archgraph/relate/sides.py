"""Analyses of two graphs for their alignment: forms, blocks, axes and resolutions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from typing import TypeAlias

from archgraph.analysis.axes import axes
from archgraph.analysis.forms import Form, forms
from archgraph.analysis.positions import axis_refs
from archgraph.graph.ir import ArchGraph

# Matching runs of blocks of both graphs, the client's first.
Match: TypeAlias = tuple[range, range]


class SideGraph:
    """One of the two graphs to align, with its analyses.

    Attributes:
        blocks: Blocks of the graph.
        runs: For each section, the range of the indices of its blocks.
        free: Names of axes that can be cut.
        inputs: Names of the graph's inputs, in order.
    """

    def __init__(self, graph: ArchGraph, by_widths: bool) -> None:
        self.graph, self.axes = graph, axes(graph)
        self.forms = forms(graph, by_widths)
        self.sections, self.blocks = self.forms.structure.sections, self.forms.structure.blocks
        bounds = itertools.accumulate((len(s.blocks) for s in self.sections), initial=0)
        self.runs = list(itertools.starmap(range, itertools.pairwise(bounds)))
        self.free = frozenset(a.name for a in self.axes.free)
        self.inputs = [n.name for n in graph.nodes if n.op == "input"]

    def form(self, run: range) -> Form:
        """Return the form (the computation without names and widths) of consecutive blocks."""
        return self.forms.part(self.blocks[run[0]].entry, self.blocks[run[-1]].exit)

    @functools.cached_property
    def sizes(self) -> list[int]:
        """Number of operators in each block's form."""
        return [len(self.form(range(i, i + 1)).nodes) for i in range(len(self.blocks))]

    def resolution(self, name: str) -> tuple[object, ...]:
        """Return the size of each dimension of a result, or None for a dimension with channels."""
        return tuple(None if axis_refs(d) else d.size for d in self.axes.value[name][0])

    def unmatched(self, matched: Iterable[range]) -> list[int]:
        """Return the blocks that compute something and are not matched."""
        numbers = {i for run in matched for i in run}
        return [i for i, size in enumerate(self.sizes) if size and i not in numbers]


Sides: TypeAlias = tuple[SideGraph, SideGraph]


def side_by_side(client: ArchGraph, other: ArchGraph) -> Sides:
    """Analyse the two graphs to align.

    If several operands of an operator (such as the terms of a sum) are computed in the same way,
    they are paired by name. If the graphs have no common names, they are paired by width.
    """
    shared = client.param.keys() & other.param.keys()
    strangers = 2 * len(shared) < min(len(client.params), len(other.params))
    return SideGraph(client, strangers), SideGraph(other, strangers)


def level(sides: Sides, names: tuple[str, str]) -> bool:
    """Return whether two results, one of each graph, have the same resolution."""
    a, b = (side.resolution(name) for side, name in zip(sides, names, strict=True))
    return len(a) == len(b) and all(
        x == y for x, y in zip(a, b, strict=True) if x is not None and y is not None
    )
