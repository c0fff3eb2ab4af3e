"""Recurrent operators: a layer over a sequence in one direction, and cells that take one step.

The rows of an input or recurrent weight are gates, each with one row per unit of the cell; a cut
keeps the same units in every gate. With a projection the hidden state has an axis of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from archgraph.graph.ir import ArchGraph, Node, TensorType, Value, size_at
from archgraph.layout.layouts import Fixed, plain, product
from archgraph.ops.equations import ORDER, PROJECT, Dims, Dirt, Equations
from archgraph.ops.layers import LayerRule, TorchLayer
from archgraph.ops.operands import leaf_shape, type_of
from archgraph.ops.operator import (
    FixedShape,
    Growth,
    Init,
    Initialiser,
    Operator,
    Rows,
    Shapes,
    alike,
)
from archgraph.ops.types import Args, SymbolicShape, certain, number, positive, real
from archgraph.ops.zeros import Zeros

# A cell's weights, by the name that its layer has for them; a sequence has them in `params`.
_CELL = {"weight_ih": "w_ih", "weight_hh": "w_hh", "bias_ih": "b_ih", "bias_hh": "b_hh"}


def _weights(node: Node) -> tuple[Value, ...]:
    """Input weight, recurrent weight, biases and projection, those that there are."""
    params = node.arg("params")
    return params if isinstance(params, tuple) else tuple(map(node.arg, _CELL.values()))


def first_states(node: Node) -> tuple[Value, ...]:
    """Return the initial hidden state, and that of the cell where they differ."""
    states = node.arg("hx")
    return states if isinstance(states, tuple) else (states,)


# -- both -----------------------------------------------------------------------------------------


def _recurrent_axes(eq: Equations) -> list[Dims]:
    """w_ih = Prod(gates, units) × x[-1], w_hh = Prod(gates, units) × h[-1]; h[-1] = c[-1] = units.

    With a projection, w_hr = h[-1] × units instead.
    """
    node, time = eq.node, 0 if eq.node.arg("batch_first") is not True else 1
    sequence = node.arg("params") is not None
    if node.arg("num_layers", 1) != 1 or node.arg("bidirectional") is True:
        return eq.opaque("several layers or directions in one operator, which trace writes apart")
    weights = [w for w in _weights(node) if eq.of(w)]
    inside, again, *projection = (w for w in weights if len(eq.of(w)) == 2)
    states = [eq.of(value) for value in first_states(node)]
    hidden, units = states[0][-1], states[-1][-1]
    if not projection:
        eq.unify(hidden, units)
    gates = product((Fixed(plain(eq.of(inside)[0]) // plain(units)), units))
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


def _carried(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Gates of nothing are half open, so a unit keeps a part of its first state, and adds none."""
    return [dirt + eq.dirt_of(first_states(eq.node)[-1]) for dirt in _renewed(eq, results)]


def _renewed(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """A unit whose weights are zero is zero after each step, whatever it was before."""
    weights = tuple(d for w in _weights(eq.node) for d in eq.dirt_of(w))
    return [(*(d for d in dims[:-1] if not isinstance(d, Fixed)), *weights) for dims in results]


def _start(gates: int) -> Init:
    """Uniform in ±1/√units, weights and biases alike."""

    def uniform(shape: FixedShape, shapes: Shapes) -> Initialiser:
        rows = shapes.get("params.0", shapes.get("w_ih", shape))[0]
        return Initialiser("uniform", 1 / math.sqrt(max(rows // gates, 1)))

    return uniform


def _no_identity(_graph: ArchGraph, _node: Node) -> str:
    """Its state is squashed or mixed with the one before: no weights return the input."""
    return "is recurrent: no weights make it return its input"


def _recurrent_macs(graph: ArchGraph, node: Node) -> int:
    """Every step multiplies every weight matrix once."""
    shapes = [t.shape for w in _weights(node) if (t := type_of(graph, w)) is not None]
    entries = sum(math.prod(size_at(s, 1) for s in shape) for shape in shapes if len(shape) > 1)
    given = type_of(graph, node.arg("input"))
    steps = given.shape[:-1] if given is not None and node.arg("params") is not None else ()
    return math.prod(size_at(s, 1) for s in steps) * entries


def _recurrent(gates: int, zero: Zeros = _carried) -> Operator:
    arguments = ("params", *_CELL.values())
    return Operator(
        _recurrent_axes,
        zero,
        _recurrent_macs,
        dict.fromkeys(arguments, _start(gates)),
        training_flag="train",
        sides=dict.fromkeys(arguments, ("out", "in")),
        weighted=True,
        growth=Growth(identity=_no_identity, nothing=("hx", *arguments)),
    )


# -- sequences: their layers are put together again in `stacks`, from one operator per layer ------


def _sequence_type(gates: int) -> Callable[[Args], tuple[TensorType, ...]]:
    """One layer over a sequence in one direction: what it gives at each step, its last states."""

    def rule(args: Args) -> tuple[TensorType, ...]:
        states = args.get("hx")
        states = states if type(states) is tuple else (states,)
        (x, *states) = real(args.get("input"), *states)
        first, biased = (number(args, name, None, bool) for name in ("batch_first", "has_biases"))
        one_way = not number(args, "bidirectional", None, bool)
        certain(one_way, number(args, "num_layers", None, int) == 1, len(x.shape) == 3)
        batch, inside = x.shape[0 if first else 1], x.shape[2]
        hidden, units = positive((states[0].shape[-1], states[-1].shape[-1]))
        certain(*(s.shape[:-1] == (1, batch) for s in states), len(states) == 1 + (gates == 4))
        rows = gates * units
        shapes: list[SymbolicShape] = [(rows, inside), (rows, hidden), *[(rows,)] * (2 * biased)]
        shapes += [(hidden, units)] if hidden != units else []
        params = args.get("params")
        certain(type(params) is tuple)
        weights = real(x, *(params or ()))[1:]
        certain([w.shape for w in weights] == shapes)
        return (TensorType((*x.shape[:2], hidden), x.dtype), *states)

    return rule


def _projects_nothing(node: Node) -> str:
    """PyTorch knows a projection by its size alone."""
    count = len(_weights(node))
    projected = count == 5 or (count == 3 and node.arg("has_biases") is not True)
    hidden, units = node.types[1].shape[-1], node.types[-1].shape[-1]
    same = projected and hidden == units
    return f"a projection of {units} units to as many is not one to PyTorch" if same else ""


def _sequence(gates: int, zero: Zeros = _carried) -> Operator:
    return replace(_recurrent(gates, zero), type=_sequence_type(gates))


# -- cells ----------------------------------------------------------------------------------------


def _cell_layer(kind: type[nn.Module], gates: int, **more: Any) -> LayerRule:
    """Return the rule of a cell that takes one step."""

    def rule(graph: ArchGraph, node: Node) -> TorchLayer | None:
        leaves = {name: node.arg(argument) for name, argument in _CELL.items()}
        shape = leaf_shape(graph, leaves["weight_ih"])
        if len(shape) != 2:
            return None
        options = {"input_size": shape[1], "hidden_size": shape[0] // gates} | more
        options["bias"] = leaves["bias_ih"] is not None
        return TorchLayer(kind, options, leaves, (node.arg("input"), node.arg("hx")))

    return rule


ROWS: Rows = {
    "lstm": replace(_sequence(4), impossible=_projects_nothing),
    "gru": _sequence(3),
    **alike(("rnn_tanh", "rnn_relu"), _sequence(1, _renewed)),
    "lstm_cell": replace(_recurrent(4), layer=_cell_layer(nn.LSTMCell, 4)),
    "gru_cell": replace(_recurrent(3), layer=_cell_layer(nn.GRUCell, 3)),
    **{
        f"rnn_{curve}_cell": replace(
            _recurrent(1, _renewed), layer=_cell_layer(nn.RNNCell, 1, nonlinearity=curve)
        )
        for curve in ("tanh", "relu")
    },
}
