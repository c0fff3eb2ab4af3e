"""The result of a rewrite: the new graph, and the transfer from old states to new states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from archgraph.errors import RewriteError
from archgraph.graph.ir import ArchGraph
from archgraph.notebook import framed, page_text
from archgraph.states.entry import Entry
from archgraph.states.state import first_difference, signature
from archgraph.states.transfer import Transfer


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The result of a rewrite: the new graph, and the transfer from old states to new states.

    The result can be unpacked: ``graph, transfer = …``. ``a >> b`` composes two rewrites. ``b`` is
    a rewrite of ``a.graph``, or a function that takes a graph and returns a ``Rewritten``.

    Raises:
        RewriteError: If the transfer does not end at the graph.
    """

    graph: ArchGraph
    transfer: Transfer

    def __post_init__(self) -> None:
        expected = signature(self.graph)
        if self.transfer.target != expected:
            raise RewriteError(
                "the transfer does not end at the graph",
                **first_difference(self.transfer.target, expected),
            )

    @staticmethod
    def identity(graph: ArchGraph) -> Rewritten:
        """Return the rewrite that changes nothing."""
        return Rewritten(graph, Transfer.identity(graph))

    @staticmethod
    def between(
        before: ArchGraph,
        after: ArchGraph,
        entries: Mapping[str, Entry],
        notes: tuple[str, ...] = (),
    ) -> Rewritten:
        """Return the rewrite from one graph to another.

        ``entries`` maps each name in the new state to its :class:`Entry`.
        """
        return Rewritten(after, Transfer(signature(before), signature(after), entries, notes))

    def __repr__(self) -> str:
        graph = self.graph
        size = f"{len(graph.nodes)} operators, {len(graph.params)} leaves"
        return f"<Rewritten {graph.name or 'graph'}: {size}; {self.transfer.summary()}>"

    def _repr_html_(self) -> str:
        return framed(page_text("page", self), self.transfer._repr_html_(), self.graph.name)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.graph, self.transfer))

    def __rshift__(self, other: Rewritten | Callable[[ArchGraph], Rewritten]) -> Rewritten:
        after = other if isinstance(other, Rewritten) else other(self.graph)
        return Rewritten(after.graph, self.transfer.then(after.transfer))
