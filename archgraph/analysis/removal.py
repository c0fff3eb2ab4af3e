"""Decide which blocks are removable. The input of a removable block can replace its output."""

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
    """Decides which blocks of a graph are removable, and states why other blocks are not."""

    def __init__(self, graph: ArchGraph, drafts: Drafts, casts: Casts) -> None:
        self.graph = graph
        self.drafts = drafts
        self.casts = casts
        self._listed: dict[str, frozenset[str]] = {}
        self.streamed = {n for chain in drafts.chains for d in chain for n in d.stream}
        self.outputs = set(refs(graph.outputs))

    def obstacle(self, draft: BlockDraft, nodes: Sequence[str], entry: str, end: str) -> str:
        """Return the reason why a block is not removable; empty if it is removable."""
        if draft.kind == "head":
            return f"computes the output %{end}"
        if not draft.stream or entry == end:
            return "has no operators to remove"
        members, terms = set(nodes), draft.terms(self.graph)
        last, stays = self.casts.ends(draft), {entry, end}
        if terms and draft.last is last:  # operators on the input of a dense block remain
            reason = self._kept_term(terms, members, last.entry, end)
            stays.add(last.entry)
        else:
            reason = self._other(entry, end)
            if terms and not reason:  # for example, a mean over a stack
                reason = f"reduces its input together with its new features in %{end}"
        return (
            self._long_connection(draft, members, entry)
            or self._added(draft, members)
            or self._altered(draft)
            or reason
            or self._leak(nodes, set(draft.stream) - stays, end, terms)
        )

    def _long_connection(self, draft: BlockDraft, members: set[str], entry: str) -> str:
        """Return the reason if a block adds a value from before its input."""
        # Look through casts: the block's input and a cast of it are one value.
        near = members | {entry, self.casts.of(entry)}
        for piece in draft.pieces:
            used = {self.casts.of(u) for n in piece.nodes for u in self.graph.node[n].uses()}
            if piece.joins and any(u in self.streamed and u not in near for u in used):
                return f"contains the end of a long skip connection (%{piece.exit})"
        return ""

    def _added(self, draft: BlockDraft, members: set[str]) -> str:
        """Return the reason if an addition outside branches adds a value that is used elsewhere."""
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
        """Return the reason if the shortcut scales or moves the block's input.

        Such a block is not the identity if its branch is zero. Elementwise operators and norms on
        the shortcut are allowed: they are removed with the block. For a projection, only the type
        of its result matters.
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
                return f"has a shortcut, %{piece.shortcut}, which moves positions of the input"
        return ""

    def _other(self, entry: str, end: str) -> str:
        """Return the reason why a block's input cannot replace its output; empty if it can.

        Both must have the same type. If a dimension of one of them is a free axis, the dimension of
        the other must not be fixed. The axes may differ; otherwise, no block without shortcut (VGG)
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
                return f"dimension {i} is {x} in its input and {y} in its output"
        return ""

    def _leak(
        self, nodes: Sequence[str], going: Iterable[str], end: str, terms: Sequence[str]
    ) -> str:
        """Return the reason if an operator outside a block uses a result inside it.

        Args:
            nodes: The block's operators.
            going: Operators of the main stream that are removed with the block, except ``end``.
            end: The operator that computes the block's output.
            terms: Results that a dense block appends.
        """
        graph, members = self.graph, set(nodes)
        starts = (n for n in going if graph.node[n].op != "input")
        # Operators outside the stream that use one of these results are removed as well.
        leaking = reachable(starts, graph.users.__getitem__, members - {end})
        for name in filter(leaking.__contains__, nodes):
            if name in self.outputs:
                return f"%{name} inside it is an output"
            outside = [u for u in graph.users[name] if u not in members]
            if name in terms:  # later concatenations drop this result
                outside = [u for u in outside if name not in self._lists(u, graph.node[end].op)]
            if outside:
                return f"%{name} inside it is also used by %{outside[0]}"
        return ""

    def _frozen(self, data: Layout, other: Layout) -> bool:
        """Return whether a fixed dimension would replace one that has a free axis."""
        return not _axes_in(data) and not self._free.isdisjoint(_axes_in(other))

    @functools.cached_property
    def _free(self) -> frozenset[str]:
        return frozenset(a.name for a in axes(self.graph).free)

    def _lists(self, name: str, op: str) -> frozenset[str]:
        """Return the list items of an operator; empty if it is not the operator ``op``."""
        if name not in self._listed:
            self._listed[name] = frozenset(list_items(self.graph.node[name]))
        return self._listed[name] if self.graph.node[name].op == op else frozenset()

    def _kept_term(self, terms: Sequence[str], members: set[str], passed: str, end: str) -> str:
        """Return the reason why a dense block's features cannot be removed; empty if they can."""
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
                    return f"appends features with the axis {ref}, which its input also has"
                for leaf in self._alone.get(axis, ()):
                    if not members.issuperset(self.graph.leaf_users[leaf]):
                        return f"appends {ref}, without which {leaf} is empty"
                for node in self._nothing_else.get(axis, ()):
                    if node not in members:
                        return f"appends {ref}, without which %{node} is empty"
        return ""

    @functools.cached_property
    def _alone(self) -> Mapping[str, list[str]]:
        """Dict from axis to the leaves with a dimension that would be empty without the axis."""
        return _needing(axes(self.graph).leaf)

    @functools.cached_property
    def _nothing_else(self) -> Mapping[str, list[str]]:
        """Dict from axis to the operators whose result would be empty without the axis."""
        values = axes(self.graph).value
        return _needing({n: [d for dims in results for d in dims] for n, results in values.items()})


def _needing(layouts: Mapping[str, Sequence[Layout]]) -> dict[str, list[str]]:
    """Return a dict from axis to the owners of dimensions that would be empty without the axis."""
    needing: dict[str, list[str]] = {}
    for owner, dims in layouts.items():
        # The size of a dimension is a sum of products. Select axes that are in all of them.
        always = (frozenset.intersection(*map(frozenset, products_of(d))) for d in dims)
        for name in frozenset[str]().union(*always):
            needing.setdefault(name, []).append(owner)
    return needing


def _axes_in(*layouts: Layout) -> dict[str, AxisRef]:
    """Return a dict from name to axis with the axes of layouts, in order."""
    return {axis.name: axis for layout in layouts for axis in axis_refs(layout)}
