"""Collect the facts about a graph that explanations and pages show."""

from __future__ import annotations

import re
from collections.abc import Iterable

from archgraph.analysis.axes import Axis
from archgraph.analysis.positions import axis_refs
from archgraph.analysis.structure import Block, structure
from archgraph.display.facts import (
    AxisFact,
    BlockFact,
    Facts,
    GroupFact,
    LeafFact,
    Pin,
)
from archgraph.display.labels import operator_words
from archgraph.display.pricing import Pricing, halved
from archgraph.graph.ir import ArchGraph, Node, Param, per_graph
from archgraph.layout.layouts import Layout
from archgraph.ops.idioms import idioms


@per_graph
def graph_facts(graph: ArchGraph) -> Facts:
    """Return the facts about a graph's axes, blocks and parameters. The result is cached.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> about = graph_facts(trace(net, torch.zeros(1, 3)).graph)
        >>> about.parameters, about.halving.parameters, about.axes["2.out"].pin.place
        (50, 24, '2')
    """
    return _Collector(graph).facts()


class _Collector:
    """Collects the facts about one graph from its analyses."""

    def __init__(self, graph: ArchGraph) -> None:
        self.graph = graph
        self.pricing = Pricing(graph)
        self.solved = self.pricing.solved
        self.structured = structure(graph)
        self.idioms = idioms(graph)
        # A span is named after its operator, or after the idiom that contains the operator.
        self.spans = {
            _span(graph.node[name].op, graph.node[name]): _span(one.idiom.name, graph.node[name])
            for name, one in self.idioms.items()
        }
        self.home = {name: block for block in self.structured.blocks for name in block.nodes}
        # The first operator with an axis makes it; the last one returns it, if any does.
        uses = [
            (a, n.name) for n in graph.nodes if n.op != "input" for a in self.pricing.met[n.name]
        ]
        self.first, self.last = dict(reversed(uses)), dict(uses)

    def facts(self) -> Facts:
        pricing, graph = self.pricing, self.graph
        every = {a.name: self._axis(a) for a in self.solved.all}
        members: dict[str, list[str]] = {}
        for axis in every.values():
            members.setdefault(axis.block, []).append(axis.name)
        wide = {leaf for axis in self.solved.free for leaf in pricing.leaves_of[axis.name]}
        reached = sum(map(pricing.numel, wide))
        order = {a.name: i for i, a in enumerate(self.solved.all)}
        return Facts(
            pricing.cost.parameters,
            pricing.cost.macs,
            reached / pricing.cost.parameters if pricing.cost.parameters else 0.0,
            pricing.halving(axis.name for axis in self.solved.independent()),
            every,
            self._groups((a, a.role) for a in self.solved.free),
            self._groups(
                [(a, every[a.name].section) for a in self.solved.free],
                # Sections without a free axis are included.
                [s.name for s in self.structured.sections],
            ),
            {
                b.name: self._block(b, tuple(members.get(b.name, ())))
                for b in self.structured.blocks
            },
            {p.name: self._leaf(p) for p in graph.params},
            {
                node.name: tuple(sorted(pricing.met[node.name], key=order.__getitem__))
                for node in graph.nodes
            },
            pricing,
        )

    def _axis(self, axis: Axis) -> AxisFact:
        home = self.home.get(self.first.get(axis.name, ""))
        members = tuple(
            (leaf, i)
            for leaf in self.pricing.leaves_of[axis.name]
            for i, layout in enumerate(self.solved.leaf[leaf])
            if axis.name in self.pricing.names(layout)
        )
        return AxisFact(
            axis.name,
            axis.size,
            axis.role,
            axis.free,
            home.section if home else "",
            home.name if home else "",
            tuple(dict.fromkeys(self.spans.get(span, span) for span in axis.spans)),
            members,
            halved(axis.size),
            self.pricing.halving([axis.name]) if axis.free else None,
            None if axis.free else self._pin(axis),
        )

    def _groups(
        self, pairs: Iterable[tuple[Axis, str]], names: Iterable[str] = ()
    ) -> dict[str, GroupFact]:
        groups: dict[str, list[str]] = {name: [] for name in names}
        for axis, name in pairs:
            groups.setdefault(name, []).append(axis.name)
        return {
            name: GroupFact(name, tuple(members), self.pricing.halving(members))
            for name, members in groups.items()
        }

    def _block(self, block: Block, axes: tuple[str, ...]) -> BlockFact:
        return BlockFact(
            block.name,
            block.section,
            block.kind,
            block.removable,
            block.reason,
            tuple(dict.fromkeys(leaf for n in block.nodes for leaf in self.graph.node[n].leaves())),
            axes,
            self.pricing.skipping(block) if block.removable else None,
        )

    def _leaf(self, param: Param) -> LeafFact:
        layouts = self.solved.leaf[param.name]
        return LeafFact(
            param.name,
            param.role,
            param.shape,
            tuple(map(layout_text, layouts)),
            tuple(a.name for layout in layouts for a in axis_refs(layout)),
        )

    def _pin(self, axis: Axis) -> Pin:
        """Split a reason into cause, operator, module, source line and remedy."""
        # The solver stores each reason as a sentence, which errors also print.
        why, remedy, name = axis.reason, None, self.last.get(axis.name)
        match = _PLACE.fullmatch(axis.reason)
        if match is not None and match["node"] in self.graph.node:
            why, remedy, name = match["why"], match["remedy"], match["node"]
        if name is None:
            leaf = self.pricing.leaves_of[axis.name][0]
            return Pin(why, None, None, leaf, None, _remedy(why, remedy, False))
        node = self.graph.node[name]
        first = next(iter(node.leaves()), "").rpartition(".")[0]
        outside = any(self.graph.node[used].op == "input" for used in node.uses())
        return Pin(
            why,
            node.op,
            node.name,
            node.scope or first or "the model itself",
            node.source or None,
            _remedy(why, remedy, outside),
        )


def _span(what: str, node: Node) -> str:
    """Return the text of a span: an operator and its module."""
    return f"{operator_words(what)} in {node.scope or f'%{node.name}'}"


# Maximum number of terms of a concatenation to show; a DenseNet has hundreds.
TERMS = 8


def layout_text(layout: Layout) -> str:
    """Return a layout as text; for a long concatenation, only its first and last term.

    >>> from archgraph.layout.layouts import AxisRef, Sum
    >>> layout_text(Sum(tuple(AxisRef(name, 2) for name in "abcdefghi")))
    'a[2] + … + i[2]'
    """
    terms = str(layout).split(" + ")
    return " + ".join(terms if len(terms) <= TERMS else (terms[0], "…", terms[-1]))


# The reason why an operator pins an axis, as `ops.equations` writes it, for example `indexed by
# values (aten.index.Tensor %index in net at net.py:12)`. A remedy may follow.
_PLACE = re.compile(
    r"(?P<why>.*?) \((?P<op>\S+) %(?P<node>\S+?)(?: in (?P<scope>.*?))?(?: at (?P<source>.*?))?\)"
    r"(?:; (?P<remedy>.*))?",
    re.DOTALL,
)


# Remedies for reasons that do not contain a remedy, by the first words of the reason.
_REMEDIES = (
    ("kernel size", "nothing: it is a kernel size, not a width"),
    ("dimension ", "a layer after it, since the size of an output cannot change"),
    ("no operator uses it", "an operator that uses it"),
    ("a single position", "nothing: one position cannot be cut"),
    (
        "meets a dimension that is not a channel axis",
        "nothing if it counts pixels or tokens; otherwise a layer with weights in between",
    ),
)


def _remedy(why: str, spoken: str | None, outside: bool) -> str:
    if spoken:
        return spoken.removesuffix(" would free it")
    # The caller chooses the size of an input, so no change of the model would free it.
    if outside and why.startswith("meets a dimension"):
        return "another input, since the caller chooses its size"
    known = (remedy for beginning, remedy in _REMEDIES if why.startswith(beginning))
    return next(known, "nothing: its positions are not channels")
