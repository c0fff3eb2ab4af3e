"""The result of an alignment: the corresponding parts of two graphs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from archgraph.analysis.axes import axes
from archgraph.analysis.positions import positions
from archgraph.analysis.structure import structure
from archgraph.analysis.widths import Pairs, Widths
from archgraph.errors import RewriteError
from archgraph.graph.ir import ArchGraph, Leaf, walk
from archgraph.graph.passes import specialise
from archgraph.states import DimMap, Entry, Transfer, signature
from archgraph.tables import Table, plural

Side: TypeAlias = Literal["client", "whole"]


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A part of one graph without a counterpart in the other.

    Attributes:
        part: Name of a section, block, parameter, buffer or constant.
        side: The graph that contains the part.
        reason: Reason why the part has no counterpart.
    """

    part: str
    side: Side
    reason: str

    def __str__(self) -> str:
        return f"{self.side} {self.part}: {self.reason}"


@dataclass(frozen=True)
class Alignment:
    """The corresponding parts of two graphs, and the reasons why other parts are unmatched.

    Attributes:
        client: The first graph.
        whole: The second graph.
        sections: Pairs of a section name of the client and a section name of the other graph, in
            order. A section may occur in several pairs.
        blocks: Pairs of block names, in order.
        nodes: Pairs of operators. Operators that act only in training (such as dropout) are not
            compared.
        leaves: Pairs of names of parameters, buffers or constants.
        unmatched: Parts of the client without a counterpart, followed by parts of the other graph
            without a counterpart.
    """

    client: ArchGraph
    whole: ArchGraph
    sections: Pairs
    blocks: Pairs
    nodes: Pairs
    leaves: Pairs
    unmatched: tuple[Unmatched, ...]

    @property
    def score(self) -> float:
        """Fraction of parameters and buffers that are matched, from 0 to 1: 2·m / (a + b).

        ``a`` and ``b`` are the numbers of parameters and buffers that the two graphs use in
        evaluation, and ``m`` is the number of matched pairs. For graphs without parameters and
        buffers, operators are counted instead. Widths are ignored, so a model and its narrow
        version have score 1.
        """
        mine, theirs = _read(self.client), _read(self.whole)
        if not mine and not theirs:
            total = len(self.client.nodes) + len(self.whole.nodes)
            return 2 * len(self.nodes) / max(total, 1)
        pairs = sum(a in mine and b in theirs for a, b in self.leaves)
        return 2 * pairs / (len(mine) + len(theirs))

    @functools.cached_property
    def widths(self) -> Widths:
        """The sizes that the axes of ``whole`` have in ``client``.

        The attribute ``claims`` is a dict from axis to sizes.
        """
        return Widths(self.client, self.whole, self.leaves, self.blocks, self.nodes)

    @functools.cached_property
    def transfer(self) -> Transfer:
        """Transfer from states of ``whole`` to states of ``client``.

        Raises:
            RewriteError: If ``whole`` does not contain ``client``. The message names the first
                block, operator or tensor of ``client`` without a counterpart, or the first
                tensor that cannot be cut from its counterpart.
        """
        where = self.client.name or "client graph"
        for item in self.unmatched:
            if item.side == "client":
                raise RewriteError(
                    "has no counterpart in the larger graph",
                    where=f"{where}: {item.part}",
                    hint=item.reason,
                )
        chosen = self.widths.selection(where)
        solved, pairs = axes(self.whole), dict(self.leaves)
        entries = {}
        for slot in signature(self.client):
            name = pairs[slot.name]
            dims = zip(solved.of(name), self.whole.param[name].shape, strict=True)
            maps = tuple(DimMap.of(positions(layout, chosen), size) for layout, size in dims)
            entries[slot.name] = Entry(name, maps)
        return Transfer(signature(self.whole), signature(self.client), entries)

    def tables(self) -> Iterator[Table]:
        """Yield a table of the matched blocks, and a table of the unmatched parts with reasons.

        Example:
            >>> import torch
            >>> from archgraph.relate.align import align
            >>> from archgraph.capture.trace import trace
            >>> net = trace(torch.nn.Linear(3, 2), torch.zeros(1, 3)).graph
            >>> [table.rows for table in align(net, net).tables()]
            [(('weight', 'weight', 'weight', '2'),)]
        """
        mine = {b.name: b for b in structure(self.client).blocks}
        leaves = {name for name, _ in self.leaves}
        rows = []
        before = ("", "")
        for a, b in self.blocks:
            used = {leaf for n in mine[a].nodes for leaf in self.client.node[n].leaves()}
            sections = mine[a].section, structure(self.whole).block(b).section
            title = "" if sections == before else " = ".join(dict.fromkeys(sections))
            rows.append((title, a, b, str(len(used & leaves))))
            before = sections
        yield Table(
            title=f"{self.client.name or 'A'} in {self.whole.name or 'B'}: score {self.score:.2f}",
            columns=("section", "block of A", "block of B", "leaves"),
            rows=tuple(rows),
            right=frozenset({3}),
            note=f"score: share of leaves matched; {self._verdict()}",
        )
        apart = tuple(
            ("A" if side == "client" else "B", ", ".join(parts), reason)
            for side, parts, reason in self._reasons()
        )
        if apart:
            yield Table("without a counterpart", ("in", "part", "why"), apart)

    def _verdict(self) -> str:
        lacking = [item.part for item in self.unmatched if item.side == "client"]
        if lacking:
            return f"B does not contain A: it lacks {lacking[0]}"
        try:
            return f"B contains A: {len(self.transfer.target)} entries of A's state come from B's"
        except RewriteError as error:
            return f"B does not contain A: {error}"

    def _reasons(self) -> Iterator[tuple[Side, list[str], str]]:
        """Group consecutive parts that have no counterpart for the same reason."""
        groups = itertools.groupby(self.unmatched, lambda item: (item.side, item.reason))
        for (side, reason), items in groups:
            yield side, [item.part for item in items], reason

    def __repr__(self) -> str:
        names = f"{self.client.name or 'client'} in {self.whole.name or 'whole'}"
        return (
            f"<Alignment {names}: score {self.score:.2f}, "
            f"{plural(len(self.leaves), 'leaf', 'leaves')} in {plural(len(self.blocks), 'block')}, "
            f"{plural(len(self.unmatched), 'part')} without a counterpart>"
        )

    def _repr_html_(self) -> str:
        return "".join(table._repr_html_() for table in self.tables())

    def __str__(self) -> str:
        leaves = plural(len(self.leaves), "leaf", "leaves")
        lines = [f"score {self.score:.2f}: {leaves} in {plural(len(self.blocks), 'block')}"]
        lines += [f"{a} = {b}" for a, b in self.blocks]
        lines += [f"{side} {', '.join(parts)}: {reason}" for side, parts, reason in self._reasons()]
        return "\n".join(lines)


def _read(graph: ArchGraph) -> set[str]:
    """Return the entries of a graph's state that evaluation reads."""
    evaluated = specialise(graph, training=False)
    leaves = {leaf for n in evaluated.nodes for leaf in n.leaves()}
    leaves |= {i.name for i in walk(evaluated.outputs) if isinstance(i, Leaf)}
    return leaves & set(graph.state_names)
