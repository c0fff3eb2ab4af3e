"""Recurrent steps: LSTM, GRU and plain layers over tokens, one operator per layer and direction.

Parameters have the names of ``torch.nn.LSTM``, ``GRU`` and ``RNN``, and the operators are the same
as in a trace of these modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from archgraph.fields import Count, Mistake
from archgraph.graph.ir import BATCH, TRAINING, Atom, Ref, Value
from archgraph.language.steps.base import Site, add_step, shape_text

Hidden = Annotated[Count, "units of each layer and direction"]
Layers = Annotated[Count, "stacked layers"]
Bidirectional = Annotated[
    bool, "add a second layer that runs from the end, and concatenate both results"
]
Dropout = Annotated[
    float,
    Field(ge=0, lt=1),
    "probability with which a number between layers is dropped in training",
]
GateBias = Annotated[bool, "learn a bias for each gate"]
Returns = Annotated[
    Literal["sequence", "last"],
    "sequence: the hidden state at every position; last: the last one of each direction",
]


@dataclass(frozen=True)
class _Layer:
    """One layer in one direction: its operator, gates and units, and whether a cell has a state."""

    op: str
    gates: int
    hidden: int
    bias: bool
    cell: bool = False
    projection: int | None = None


@add_step("lstm", main="hidden", example="lstm: {hidden: 16, layers: 2, dropout: 0.2}")
def _lstm(
    site: Site,
    x: Ref,
    hidden: Hidden,
    layers: Layers = 1,
    bidirectional: Bidirectional = False,
    projection: Annotated[
        Count | None, "number of outputs of a linear layer on the hidden state, less than hidden"
    ] = None,
    dropout: Dropout = 0.0,
    bias: GateBias = True,
    returns: Returns = "sequence",
) -> Ref:
    """Apply a long short-term memory over [batch, position, feature]."""
    if projection is not None and projection >= hidden:
        sizes = f"{projection} of {hidden} units"
        raise Mistake("is not smaller than what it projects", place=("projection",), found=sizes)
    layer = _Layer("aten.lstm.input", 4, hidden, bias, True, projection)
    return _stack(site, x, layer, layers, bidirectional, dropout, returns)


@add_step("gru", main="hidden", example="gru: {hidden: 16, bidirectional: true, returns: last}")
def _gru(
    site: Site,
    x: Ref,
    hidden: Hidden,
    layers: Layers = 1,
    bidirectional: Bidirectional = False,
    dropout: Dropout = 0.0,
    bias: GateBias = True,
    returns: Returns = "sequence",
) -> Ref:
    """Apply gated recurrent units over [batch, position, feature]."""
    layer = _Layer("aten.gru.input", 3, hidden, bias)
    return _stack(site, x, layer, layers, bidirectional, dropout, returns)


@add_step("rnn", main="hidden", example="rnn: {hidden: 16, activation: relu}")
def _rnn(
    site: Site,
    x: Ref,
    hidden: Hidden,
    layers: Layers = 1,
    bidirectional: Bidirectional = False,
    activation: Annotated[
        Literal["tanh", "relu"], "activation function of the hidden state"
    ] = "tanh",
    dropout: Dropout = 0.0,
    bias: GateBias = True,
    returns: Returns = "sequence",
) -> Ref:
    """Apply a plain recurrent layer over [batch, position, feature]: one activation, no gates."""
    layer = _Layer(f"aten.rnn_{activation}.input", 1, hidden, bias)
    return _stack(site, x, layer, layers, bidirectional, dropout, returns)


def _stack(
    site: Site,
    x: Ref,
    layer: _Layer,
    layers: int,
    bidirectional: bool,
    dropout: float,
    returns: str,
) -> Ref:
    """Stack recurrent layers."""
    if len(site.shape(x)) != 3:
        actual = shape_text(site.shape(x))
        raise Mistake("has the wrong shape", found=actual, expected="[batch, position, feature]")
    for number in range(layers):
        end = number + 1 == layers
        runs = [_run(site, x, layer, f"l{number}")]
        if bidirectional:
            runs.append(_run(site, _flipped(site, x), layer, f"l{number}_reverse"))
        # Before the second direction is reversed again: position -1 is the last that each direction
        # has processed, so it has seen everything.
        if end and returns == "last":
            last = [site.call("aten.select.int", self=run, dim=1, index=-1) for run in runs]
            return _joined(site, last)
        outs = [_flipped(site, run) if i else run for i, run in enumerate(runs)]
        x = _joined(site, outs) if end or not dropout else _dropped(site, outs, dropout)
    return x


def _flipped(site: Site, x: Ref) -> Ref:
    """Reverse the positions."""
    return site.call("aten.flip", self=x, dims=(1,))


def _joined(site: Site, parts: list[Ref]) -> Ref:
    """Concatenate the results of both directions."""
    return site.call("aten.cat", tensors=tuple(parts), dim=-1) if len(parts) > 1 else parts[0]


def _dropped(site: Site, outs: list[Ref], p: float) -> Ref:
    """Apply dropout between two layers, drawn with time first as PyTorch does."""

    def turned(value: Ref) -> Ref:
        return site.call("aten.transpose.int", self=value, dim0=0, dim1=1)

    x = _joined(site, [turned(out) for out in outs])
    return turned(site.call("aten.dropout", input=x, p=p, train=TRAINING))


def _run(site: Site, x: Ref, layer: _Layer, end: str) -> Ref:
    """Run one layer in one direction, from zeros."""
    out, rows = layer.projection or layer.hidden, layer.gates * layer.hidden
    # In torch.nn's order: the operator distinguishes its parameters by position.
    shapes: dict[str, tuple[int, ...]] = {
        "weight_ih": (rows, site.size(x, -1)),
        "weight_hh": (rows, out),
    }
    shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)} if layer.bias else {}
    shapes |= {"weight_hr": (out, layer.hidden)} if layer.projection else {}
    states: list[Value] = [
        site.call("aten.zeros", size=(1, BATCH, size), dtype=Atom("float32"))
        for size in ((out, layer.hidden) if layer.cell else (out,))
    ]
    results = site.call(
        layer.op,
        input=x,
        hx=tuple(states) if layer.cell else states[0],
        params=tuple(site.parameter(f"{name}_{end}", shape) for name, shape in shapes.items()),
        has_biases=layer.bias,
        num_layers=1,
        dropout=0.0,
        train=TRAINING,
        bidirectional=False,
        batch_first=True,
    )
    return site.call("getitem", source=results, index=0)
