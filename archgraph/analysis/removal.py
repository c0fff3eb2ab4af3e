"""Decide which blocks are removable: those whose input can replace their output."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

from archgraph.analysis.axes import axes, products_of
from archgraph.analysis.blocks import Drafts
from archgraph.analysis.draft import BlockDraft, list_items
from archgraph.analysis.positions import axis_refs
from archgraph.analysis.precision import Casts
from archgraph.graph.ir import ArchGraph, Ref, refs
from archgraph.graph.passes import reachable
from archgraph.layout.layouts import AxisRef, Layout
from archgraph.ops.table import growth, multiplied, row


class Removal:
    """Finds which blocks of a graph are removable, and why the others are not."""

    def __init__(self, graph: ArchGraph, drafts: Drafts, casts: Casts) -> None:
        self.graph = graph
        self.drafts = drafts
        self.casts = casts
        self._listed: dict[str, frozenset[str]] = {}
        self.streamed = {n for chain in drafts.chains for d in chain for n in d.stream}
        self.outputs = set(refs(graph.outputs))

    def obstacle(self, draft: BlockDraft, nodes: Sequence[str], entry: str, end: str) -> str:
        """Return why a block is not removable; empty if it is."""
        if draft.kind == "head":
            return f"computes the output %{end}"
        if not draft.stream or entry == end:
            return "has no operators to remove"
        members, terms = set(nodes), draft.terms(self.graph)
        last, stays = self.casts.ends(draft), {entry, end}
        if terms and draft.last is last:  # the value that it passes on remains, even if prepared
            reason = self._kept_term(terms, members, last.entry, end)
            stays.add(last.entry)
        else:
            reason = self._other(entry, end)
            if terms and not reason:  # for example, a mean over a stack
                reason = f"reduces its input together with the results that it appends in %{end}"
        return (
            self._long_connection(draft, members, entry)
            or self._added(draft, members)
            or self._altered(draft)
            or reason
            or self._leak(nodes, set(draft.stream) - stays, end, terms)
        )

    def _long_connection(self, draft: BlockDraft, members: set[str], entry: str) -> str:
        """Return the reason if a block takes a value from further up the stream."""
        # Look through casts on both sides: the entry and its cast are one value.
        near = members | {entry, self.casts.of(entry)}
        for piece in draft.pieces:
            used = {self.casts.of(u) for n in piece.nodes for u in self.graph.node[n].uses()}
            if piece.joins and any(u in self.streamed and u not in near for u in used):
                return f"contains the end of a long skip connection (%{piece.exit})"
        return ""

    def _added(self, draft: BlockDraft, members: set[str]) -> str:
        """Return the reason if a sum between the working pieces adds a value used elsewhere."""
        graph, near = (
            self.graph,
            members | {self.casts.of(p.entry) for p in draft.pieces if p.entry},
        )
        for piece in draft.pieces:
            if len(piece.nodes) > 1 or not row(graph.node[piece.exit].op).merges:
                continue
            beside = [u for u in graph.node[piece.exit].uses() if u not in self.streamed]
            made_of = reachable(beside, lambda n: graph.node[n].uses(), members)
            results = [u for n in (piece.exit, *made_of) for u in graph.node[n].uses()]
            leaves = [leaf for n in (piece.exit, *made_of) for leaf in graph.node[n].leaves()]
            if not near.issuperset(map(self.casts.of, results)) or any(
                not members.issuperset(graph.leaf_users[leaf]) for leaf in leaves
            ):
                return f"contains %{piece.exit}, which adds a value that is used elsewhere"
        return ""

    def _altered(self, draft: BlockDraft) -> str:
        """Return the reason if a sum does not add to the block's input itself.

        Such a block is not the identity if its branch is zero.

        Operators that change values position by position (a norm, a factor of 0.5) are part of the
        block's work; a projection is judged by its type.
        """
        node = self.graph.node
        for piece in draft.heads:
            if piece.kind != "residual":
                continue
            if multiplied(node[piece.exit], Ref(piece.shortcut)):
                return f"multiplies its shortcut in %{piece.exit}"
            way = reachable([piece.shortcut], lambda n: node[n].uses(), set(piece.nodes))
            learned = any(any(node[n].leaves()) for n in way)  # a projection
            moves = any(growth(node[n].op).moves for n in way)
            if moves and not learned and node[piece.shortcut].type == node[piece.entry].type:
                return f"adds to %{piece.shortcut}, which moves positions of the input"
        return ""

    def _other(self, entry: str, end: str) -> str:
        """Return why a block's input cannot replace its output; empty if it can.

        Both must have one type. Neither may have a fixed dimension where the other has an axis that
        can be cut. Their axes need not be the same; otherwise, no block of a plain chain (VGG)
        would be removable.
        """
        a, b = self.graph.node[entry], self.graph.node[end]
        if a.type != b.type:
            before, after = (", ".join(map(str, node.types)) for node in (a, b))
            return f"changes {before} to {after}"
        solved = axes(self.graph).value
        for i, (x, y) in enumerate(zip(solved[entry][0], solved[end][0], strict=True)):
            # A later cut would make one of them narrower than the other.
            if self._frozen(x, y) or self._frozen(y, x):
                return f"dimension {i} is {x} before it and {y} after it"
        return ""

    def _leak(
        self, nodes: Sequence[str], going: Iterable[str], end: str, terms: Sequence[str]
    ) -> str:
        """Return the reason if a result inside a block is needed outside of it.

        Args:
            nodes: The block's operators.
            going: Operators of the stream that vanish with the block, except its last one.
            end: Its last operator.
            terms: Results that it appends.
        """
        graph, members = self.graph, set(nodes)
        starts = (n for n in going if graph.node[n].op != "input")
        # Outside the stream, operators that take one of these results lose their operand.
        leaking = reachable(starts, graph.users.__getitem__, members - {end})
        for name in filter(leaking.__contains__, nodes):
            if name in self.outputs:
                return f"%{name} inside it is an output"
            outside = [u for u in graph.users[name] if u not in members]
            if name in terms:  # every later list with this term drops it
                outside = [u for u in outside if name not in self._lists(u, graph.node[end].op)]
            if outside:
                return f"%{name} inside it is also used by %{outside[0]}"
        return ""

    def _frozen(self, data: Layout, other: Layout) -> bool:
        """Return whether a dimension without a channel axis would replace one that can be cut."""
        return not _axes_in(data) and not self._free.isdisjoint(_axes_in(other))

    @functools.cached_property
    def _free(self) -> frozenset[str]:
        return frozenset(a.name for a in axes(self.graph).free)

    def _lists(self, name: str, op: str) -> frozenset[str]:
        """Return the list items that an operator joins; empty if its kind is not ``op``."""
        if name not in self._listed:
            self._listed[name] = frozenset(list_items(self.graph.node[name]))
        return self._listed[name] if self.graph.node[name].op == op else frozenset()

    def _kept_term(self, terms: Sequence[str], members: set[str], passed: str, end: str) -> str:
        """Return why the width that a dense block appends cannot be removed; empty if it can."""
        solved = axes(self.graph)
        stream = _axes_in(*solved.value[passed][0])
        for name in terms:
            widths = _axes_in(*solved.value[name][0])
            if not widths:
                return f"appends %{name}, whose width is not an axis of a parameter"
            for axis, ref in widths.items():
                if axis not in self._free:
                    return f"appends {ref}, which is pinned: {solved[axis].reason}"
                if axis in stream:
                    return f"appends {ref}, which its input also has"
                for leaf in self._alone.get(axis, ()):
                    if not members.issuperset(self.graph.leaf_users[leaf]):
                        return f"appends {ref}, which {leaf} needs"
                for node in self._nothing_else.get(axis, ()):
                    if node not in members:
                        return f"appends {ref}, without which %{node} is empty"
        return ""

    @functools.cached_property
    def _alone(self) -> Mapping[str, list[str]]:
        """Leaves with a dimension that would be empty without an axis, by axis."""
        return _needing(axes(self.graph).leaf)

    @functools.cached_property
    def _nothing_else(self) -> Mapping[str, list[str]]:
        """Operators with a result that would be empty without an axis, by axis."""
        values = axes(self.graph).value
        return _needing({n: [d for dims in results for d in dims] for n, results in values.items()})


def _needing(layouts: Mapping[str, Sequence[Layout]]) -> dict[str, list[str]]:
    """Return, for each axis, the owners of dimensions that would be empty without it."""
    needing: dict[str, list[str]] = {}
    for owner, dims in layouts.items():
        # An axis that is a factor of every product that the size sums.
        always = (frozenset.intersection(*map(frozenset, products_of(d))) for d in dims)
        for name in frozenset[str]().union(*always):
            needing.setdefault(name, []).append(owner)
    return needing


def _axes_in(*layouts: Layout) -> dict[str, AxisRef]:
    """Return the axes of layouts by name, in order."""
    return {axis.name: axis for layout in layouts for axis in axis_refs(layout)}
