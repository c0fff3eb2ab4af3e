"""Data with which a page shows submodels: cost polynomials, and the submodels of clients."""

from __future__ import annotations

from archgraph.analysis.axes import axes
from archgraph.analysis.cost import cost
from archgraph.federation.family import Family
from archgraph.graph.ir import ArchGraph
from archgraph.plain import Json
from archgraph.states.transfer import Transfer
from archgraph.states.widths import widths
from archgraph.viewer.anatomy import Anatomy
from archgraph.viewer.distinct import numbered


def cost_terms(graph: ArchGraph) -> dict[str, Json]:
    """Return the numbers of parameters and MACs as polynomials in the sizes of axes.

    Each term is a list of a factor and the indices of its axes. ``cut`` lists the axes that the
    page cuts if the user selects a fraction of every width.
    """
    costs, number = cost(graph).polynomial, numbered(axis.name for axis in axes(graph).all)

    def terms(measure: str) -> list[list[int]]:
        polynomial = costs.polynomial(measure).terms
        return [[factor, *(number[name] for name in names)] for names, factor in polynomial.items()]

    return {
        "parameters": terms("parameters"),
        "macs": terms("macs"),
        "cut": [number[axis.name] for axis in axes(graph).independent()],
    }


def client_shapes(family: Family, parts: Anatomy) -> list[Json]:
    """Return name, parameters, MACs, narrower axes and missing blocks of each kind of client."""
    return [[one.name, *_shape(parts, one.graph, one.transfer)] for one in family.clients]


def _shape(parts: Anatomy, small: ArchGraph, transfer: Transfer) -> list[Json]:
    """Return parameters, MACs, sizes of narrower axes, and indices of missing blocks."""
    spent, solved = cost(small), axes(parts.graph)
    number, sizes = numbered(axis.name for axis in solved.all), widths(parts.graph, transfer)
    narrower = [
        [number[axis.name], sizes[axis.name]]
        for axis in solved.free
        if sizes.get(axis.name, axis.size) < axis.size
    ]
    sources = {entry.source for entry in transfer.entries.values()}
    leaves = [
        {leaf for name in nodes for leaf in parts.graph.node[name].leaves()}
        for _, nodes in parts.blocks
    ]
    gone = [i for i, some in enumerate(leaves) if some and some.isdisjoint(sources)]
    return [spent.parameters, spent.macs, narrower, gone]
