"""Layers with weights: convolutions, linear layers, embeddings, recurrent layers."""

from dataclasses import replace

from torch import nn

from archgraph.ops import contractions, costs, layers, recurrent, rules, starts, types, zeros
from archgraph.ops.operator import Growth, Init, Operator, Rows, alike
from archgraph.ops.zeros import Zeros

_WEIGHTS: dict[str, Init] = {"weight": starts.uniform, "bias": starts.uniform}
_OUT_IN = {"weight": ("out", "in", "kernel", "kernel", "kernel"), "bias": ("out",)}
_IN_OUT = {"weight": ("in", "out", "kernel", "kernel", "kernel"), "bias": ("out",)}
_OUT = {"weight": 0, "bias": 0}

_convolution = Operator(
    rules.convolution,
    zeros.weighted,
    costs.conv,
    _WEIGHTS,
    sides=_OUT_IN,
    weighted=True,
    growth=Growth(affine=_OUT, identity=starts.identity_convolution),
    type=types.convolution,
    layer=layers.convolution,
)
_transposed = Operator(
    rules.transposed_convolution,
    zeros.weighted,
    costs.transposed,
    _WEIGHTS,
    sides=_IN_OUT,
    weighted=True,
    growth=Growth(affine={"weight": 1, "bias": 0}),
    layer=layers.convolution,
)
_embedding = Operator(
    rules.embedding,
    zeros.looked_up,
    init={"weight": starts.normal},
    sides={"weight": ("index", "out")},
    weighted=True,
    growth=Growth(affine={"weight": 1}),
    type=types.embedding,
    layer=layers.embedding,
)


def _recurrent(gates: int, zero: Zeros = recurrent.carried) -> Operator:
    arguments = ("params", "w_ih", "w_hh", "b_ih", "b_hh")
    return Operator(
        recurrent.recurrent,
        zero,
        recurrent.macs,
        dict.fromkeys(arguments, recurrent.start(gates)),
        training_flag="train",
        sides=dict.fromkeys(arguments, ("out", "in")),
        weighted=True,
        growth=Growth(identity=recurrent.no_identity, nothing=("hx", *arguments)),
    )


ROWS: Rows = {
    **alike(("conv1d", "conv2d", "conv3d"), _convolution),
    "convolution": replace(
        _convolution, rule=rules.any_convolution, macs=costs.any_conv, type=None, layer=None
    ),
    **alike(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _transposed),
    "linear": Operator(
        rules.linear,
        zeros.weighted,
        costs.linear,
        _WEIGHTS,
        sides=_OUT_IN,
        weighted=True,
        growth=Growth(affine=_OUT, identity=starts.identity_linear),
        type=types.linear,
        layer=layers.weighted(nn.Linear, ("out_features", "in_features"), "input"),
    ),
    "bilinear": Operator(
        contractions.bilinear,
        macs=costs.bilinear,
        init={"weight": starts.bilinear, "bias": starts.bilinear},
        sides={"weight": ("out", "in1", "in2"), "bias": ("out",)},
        weighted=True,
        layer=layers.weighted(
            nn.Bilinear, ("out_features", "in1_features", "in2_features"), "input1", "input2"
        ),
    ),
    "embedding": _embedding,
    "embedding_bag": Operator(
        rules.embedding_bag,
        zeros.looked_up,
        init=_embedding.init,
        sides=_embedding.sides,
        weighted=True,
    ),
    "addmm": Operator(
        contractions.addmm,
        zeros.added,
        costs.matmul,
        {"self": starts.zeros, "mat1": starts.small, "mat2": starts.small},
        weighted=True,
        growth=Growth(affine={"mat2": 1, "self": 0}),
    ),
    "lstm": replace(_recurrent(4), type=types.recurrent(4), impossible=recurrent.projects_nothing),
    "gru": replace(_recurrent(3), type=types.recurrent(3)),
    **alike(
        ("rnn_tanh", "rnn_relu"),
        replace(_recurrent(1, recurrent.renewed), type=types.recurrent(1)),
    ),
    "lstm_cell": replace(_recurrent(4), layer=layers.cell(nn.LSTMCell, 4)),
    "gru_cell": replace(_recurrent(3), layer=layers.cell(nn.GRUCell, 3)),
    **{
        f"rnn_{curve}_cell": replace(
            _recurrent(1, recurrent.renewed), layer=layers.cell(nn.RNNCell, 1, nonlinearity=curve)
        )
        for curve in ("tanh", "relu")
    },
}
