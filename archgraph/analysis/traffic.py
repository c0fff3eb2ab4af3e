"""Bytes that travel between a server and a client in a round, as polynomials."""

from __future__ import annotations

from dataclasses import dataclass, field

from archgraph.analysis.axes import axes
from archgraph.analysis.cost_polynomial import CostPolynomial, sizes_of_layouts
from archgraph.analysis.presence import Needs, any_needs, presence
from archgraph.errors import GraphError
from archgraph.graph.ir import ArchGraph, per_graph
from archgraph.graph.polynomial import Polynomial
from archgraph.hints import unknown
from archgraph.ops.operands import numel
from archgraph.ops.schema import torch_dtype


@dataclass(frozen=True)
class Traffic:
    """Bytes of a round.

    Attributes:
        down: What the client receives.
        up: What it sends back.
        polynomial: Both for all submodels: the measures ``down`` and ``up``.
    """

    down: int
    up: int
    polynomial: CostPolynomial = field(repr=False, compare=False)


@per_graph
def round_traffic(graph: ArchGraph, private: frozenset[str], trained: bool) -> Traffic:
    """Return the bytes that a client receives and sends: of its state, without what is private."""
    if strange := sorted(private - set(graph.state_names)):
        known = unknown(strange[0], graph.state_names)
        raise GraphError("private entry is not in the state", **known)
    solved, there = axes(graph), presence(graph).there
    free = {axis.name for axis in solved.free}
    parts: dict[str, dict[Needs, Polynomial]] = {"down": {}, "up": {}}
    for param in graph.params:
        if param.role == "constant" or param.name in private:
            continue
        needs = any_needs(there[node] for node in graph.leaf_users[param.name])
        count = numel(sizes_of_layouts(solved.leaf[param.name], free, {}))
        size = Polynomial({}) + count * torch_dtype(param.dtype).itemsize
        frozen = param.role == "parameter" and not param.trainable
        for way in ("down",) if trained and frozen else ("down", "up"):
            parts[way][needs] = parts[way].get(needs, Polynomial({})) + size
    costs = CostPolynomial.of(graph, parts)
    down, up = (costs.polynomial(way).value(costs.axes) for way in ("down", "up"))
    return Traffic(down, up, costs)
