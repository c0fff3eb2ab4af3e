"""Compute the savings from cutting axes or skipping blocks, without rewriting the graph."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from archgraph.analysis.axes import Axes, axes
from archgraph.analysis.cost import cost
from archgraph.analysis.cost_polynomial import CostPart
from archgraph.analysis.positions import axis_refs
from archgraph.analysis.structure import Block
from archgraph.graph.ir import ArchGraph
from archgraph.graph.polynomial import Monomial
from archgraph.layout.layouts import Layout


@dataclass(frozen=True, slots=True)
class Saving:
    """The parameters and MACs that a change saves.

    Attributes:
        parameters: Number of saved parameters; tied parameters count once.
        macs: Number of saved multiply–accumulates for one example in evaluation.
        parameters_share: Saved fraction of the full model's parameters, from 0 to 1.
        macs_share: Saved fraction of the full model's MACs, from 0 to 1.
    """

    parameters: int
    macs: int
    parameters_share: float
    macs_share: float


class Pricing:
    """The cost of a graph, and the savings from narrower axes or from skipping a block.

    Savings are computed exactly from the cost polynomials. For an axis or a block, only the terms
    that depend on it are evaluated.
    """

    def __init__(self, graph: ArchGraph) -> None:
        self.graph = graph
        self.solved: Axes = axes(graph)
        self.cost = cost(graph)
        costs = self.cost.polynomial
        self._vanishing = costs.blocks
        self._terms = {m: _Terms(costs.parts[m], costs.axes) for m in ("parameters", "macs")}
        # Keys are ids, since hashing a layout is slow; `solved` keeps the layouts alive.
        self._names: dict[int, frozenset[str]] = {}
        self.leaves_of: dict[str, list[str]] = {a.name: [] for a in self.solved.all}
        leaf_names = {
            leaf: frozenset[str]().union(*map(self.names, dims))
            for leaf, dims in self.solved.leaf.items()
        }
        for leaf, names in leaf_names.items():
            for name in names:
                self.leaves_of[name].append(leaf)
        value_names = {
            node: frozenset[str]().union(*(self.names(d) for dims in results for d in dims))
            for node, results in self.solved.value.items()
        }
        # Axes in the results and arguments of each operator, on which alone its cost depends.
        self.met: dict[str, frozenset[str]] = {}
        for node in graph.nodes:
            names = value_names[node.name].union(*(value_names[used] for used in node.uses()))
            names = names.union(*(leaf_names[leaf] for leaf in node.leaves()))
            self.met[node.name] = names

    def names(self, layout: Layout) -> frozenset[str]:
        """Return the names of the axes that occur in the layout of a dimension."""
        key = id(layout)
        if key not in self._names:
            self._names[key] = frozenset(a.name for a in axis_refs(layout))
        return self._names[key]

    def numel(self, leaf: str) -> int:
        """Return the number of elements of a parameter; 0 for a buffer or constant."""
        param = self.graph.param[leaf]
        return math.prod(param.shape) if param.role == "parameter" else 0

    def halving(self, names: Iterable[str]) -> Saving:
        """Return the savings from halving free axes, as :func:`archgraph.take` cuts them."""
        asked = (self.solved[name] for name in names)
        sizes = {axis.name: halved(axis.size) for axis in self.solved.independent(asked)}
        return self._saving(terms.cutting(sizes) for terms in self._terms.values())

    def skipping(self, block: Block) -> Saving:
        """Return the savings from skipping a block and everything that only this block uses."""
        return self._saving(
            terms.skipping(block.name, self._vanishing[block.name])
            for terms in self._terms.values()
        )

    def _saving(self, amounts: Iterable[int]) -> Saving:
        parameters, macs = amounts
        return Saving(
            parameters,
            macs,
            parameters / self.cost.parameters if self.cost.parameters else 0.0,
            macs / self.cost.macs if self.cost.macs else 0.0,
        )


class _Terms:
    """The terms of a cost polynomial, indexed by their axes and blocks.

    Args:
        parts: The polynomial.
        sizes: Sizes of the axes.
    """

    def __init__(self, parts: Iterable[CostPart], sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.terms: list[tuple[int, Monomial]] = []
        self.of_axis: dict[str, list[int]] = {name: [] for name in sizes}
        self.of_block: dict[str, list[int]] = {}
        for part in parts:
            alone = [name for blocks in part.needs if len(blocks) == 1 for name in blocks]
            for monomial, factor in part.polynomial.terms.items():
                for name in set(monomial):
                    self.of_axis[name].append(len(self.terms))
                for name in alone:
                    self.of_block.setdefault(name, []).append(len(self.terms))
                self.terms.append((factor, monomial))

    def _value(self, term: int, cut: Mapping[str, int]) -> int:
        factor, monomial = self.terms[term]
        return factor * math.prod(cut.get(name, self.sizes[name]) for name in monomial)

    def cutting(self, cut: Mapping[str, int]) -> int:
        """Return the savings from new sizes of some axes."""
        touched = {term for name in cut for term in self.of_axis.get(name, ())}
        return sum(self._value(term, {}) - self._value(term, cut) for term in touched)

    def skipping(self, block: str, vanishing: Collection[str]) -> int:
        """Return the savings from skipping a block and the axes that vanish with the block."""
        touched = {term for name in vanishing for term in self.of_axis.get(name, ())}
        return sum(self._value(term, {}) for term in touched.union(self.of_block.get(block, ())))


def halved(size: int) -> int:
    """Return the size of an axis after halving, rounded as by :func:`archgraph.take`."""
    return -(-size // 2)
