"""Ignore adapters while blocks are found; then add each adapter to the block of its layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from archgraph.analysis.blocks import Drafts
from archgraph.analysis.side_branches import side_branches, without
from archgraph.graph.ir import ArchGraph


class Unadapted:
    """A graph without its adapters, and the adapters' operators.

    Attributes:
        plain: The graph without adapters; ``graph`` itself if it has none. Each adapted layer has
            the place and the name of the operator that added its adapter's result.
    """

    def __init__(self, graph: ArchGraph) -> None:
        self.graph = graph
        self.plain = graph
        self._gone: dict[str, list[str]] = {}  # dict from the sum of an adapter to its operators
        while branches := side_branches(self.plain):  # an adapter's layers may have adapters
            self.plain, gone = without(self.plain, branches)
            for total, names in gone.items():
                self._gone[total] = [*self._gone.get(total, ()), *names]

    def restore(self, drafts: Drafts) -> None:
        """Add each adapter to the block that contains the adapted layer."""
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
