"""Recurrent operators: axis equations, zeros, initial values and cost of gates and states.

The rows of an input or recurrent weight are gates, each with one row per unit of the cell; a cut
keeps the same units in every gate. With a projection the hidden state has an axis of its own.
"""

from __future__ import annotations

import math

from archgraph.graph.ir import ArchGraph, Node, Value, size_at
from archgraph.layout.layouts import Fixed, fixed_size, product
from archgraph.ops.costs import type_of
from archgraph.ops.equations import Dims, Dirt, Equations
from archgraph.ops.operator import Init, Initialiser
from archgraph.ops.rules import ORDER, PROJECT, opaque
from archgraph.ops.starts import FixedShape, Shapes

_CELL = ("w_ih", "w_hh", "b_ih", "b_hh")  # a cell's weights; a sequence has them in `params`


def _weights(node: Node) -> tuple[Value, ...]:
    """Input weight, recurrent weight, biases and projection, those that there are."""
    given = node.arg("params")
    return given if isinstance(given, tuple) else tuple(node.arg(name) for name in _CELL)


def _states(node: Node) -> tuple[Value, ...]:
    """The initial hidden state, and that of the cell where they differ."""
    given = node.arg("hx")
    return given if isinstance(given, tuple) else (given,)


def recurrent(eq: Equations) -> list[Dims]:
    """w_ih = Prod(gates, units) × x[-1], w_hh = Prod(gates, units) × h[-1]; h[-1] = c[-1] = units.

    With a projection, w_hr = h[-1] × units instead.
    """
    node, time = eq.node, 0 if eq.node.arg("batch_first") is not True else 1
    sequence = node.arg("params") is not None
    if node.arg("num_layers", 1) != 1 or node.arg("bidirectional") is True:
        return opaque(eq, "several layers or directions in one operator, which trace writes apart")
    weights = [w for w in _weights(node) if eq.of(w)]
    inside, again, *projection = (w for w in weights if len(eq.of(w)) == 2)
    states = [eq.of(value) for value in _states(node)]
    hidden, units = states[0][-1], states[-1][-1]
    if not projection:
        eq.unify(hidden, units)
    gates = product((Fixed(fixed_size(eq.of(inside)[0]) // fixed_size(units)), units))
    for weight in weights:
        eq.unify(eq.of(weight)[0], hidden if weight in projection else gates)
    # Leaves are zero where masked, whatever the state is there: the sums are exact.
    pairs = [(inside, eq.arg("input")[-1]), (again, hidden), *((w, units) for w in projection)]
    for weight, layout in pairs:
        eq.unify(eq.of(weight)[1], layout)
        given = [(node.arg("input"), -1)] if weight is inside else []
        eq.contract(layout, [*given, (weight, 1)], node.op.split(".")[1])
    lead = eq.arg("input")[:-1]
    if sequence:
        eq.pin([lead.pop(time)], ORDER, PROJECT)
    for state in states:
        for a, b in zip(lead, state[int(sequence) : -1], strict=True):
            eq.unify(a, b)
    eq.role(hidden, "hidden")
    eq.role(units, "cell")
    return [[*eq.arg("input")[:-1], hidden], *states] if sequence else states


def carried(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Gates of nothing are half open, so a unit keeps a part of its first state, and adds none."""
    return [dirt + eq.dirt_of(_states(eq.node)[-1]) for dirt in renewed(eq, results)]


def renewed(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """A unit whose weights are zero is zero after each step, whatever it was before."""
    weights = tuple(d for w in _weights(eq.node) for d in eq.dirt_of(w))
    return [(*(d for d in dims[:-1] if not isinstance(d, Fixed)), *weights) for dims in results]


def start(gates: int) -> Init:
    """Uniform in ±1/√units, weights and biases alike."""

    def uniform(shape: FixedShape, shapes: Shapes) -> Initialiser:
        rows = shapes.get("params.0", shapes.get("w_ih", shape))[0]
        return Initialiser("uniform", 1 / math.sqrt(max(rows // gates, 1)))

    return uniform


def no_identity(_graph: ArchGraph, _node: Node) -> str:
    """Its state is squashed or mixed with the one before: no weights return the input."""
    return "is recurrent: no weights make it return its input"


def macs(graph: ArchGraph, node: Node) -> int:
    """Every step multiplies every weight matrix once."""
    shapes = [t.shape for w in _weights(node) if (t := type_of(graph, w)) is not None]
    entries = sum(math.prod(size_at(s, 1) for s in shape) for shape in shapes if len(shape) > 1)
    given = type_of(graph, node.arg("input"))
    steps = given.shape[:-1] if given is not None and node.arg("params") is not None else ()
    return math.prod(size_at(s, 1) for s in steps) * entries


def projects_nothing(node: Node) -> str:
    """PyTorch knows a projection by its size alone."""
    count = len(_weights(node))
    projected = count == 5 or (count == 3 and node.arg("has_biases") is not True)
    hidden, units = node.types[1].shape[-1], node.types[-1].shape[-1]
    same = projected and hidden == units
    return f"a projection of {units} units to as many is not one to PyTorch" if same else ""
