"""Blocks are found without adapters, then get them back: a layer has its adapter's operators."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from archgraph.analysis.blocks import Drafts
from archgraph.analysis.side_branches import side_branches, without
from archgraph.graph.ir import ArchGraph


class Unadapted:
    """A graph without its adapters, and the way back for what was found in it.

    Attributes:
        plain: The graph without adapters: each sum is the operator beside which its branch stands,
            so that it keeps its name. The graph itself where there are none.
    """

    def __init__(self, graph: ArchGraph) -> None:
        self.graph = graph
        self.plain = graph
        self._gone: dict[str, list[str]] = {}  # by sum: the operators of its adapter
        while branches := side_branches(self.plain):  # the layers of an adapter may have some
            self.plain, gone = without(self.plain, branches)
            for total, names in gone.items():
                self._gone[total] = [*self._gone.get(total, ()), *names]

    def restore(self, drafts: Drafts) -> None:
        """Put the adapters into the blocks of the layers that they belong to."""
        if not self._gone:
            return

        def with_gone(name: str) -> Iterator[str]:
            yield name
            for other in self._gone.get(name, ()):
                yield from with_gone(other)

        def all_of(names: Iterable[str]) -> list[str]:
            every = {n for name in names for n in with_gone(name)}
            return sorted(every, key=drafts.order.__getitem__)

        drafts.lift(self.graph, lambda p: dataclasses.replace(p, nodes=tuple(all_of(p.nodes))))
        for draft in drafts.all:
            draft.extra = all_of(draft.extra)
