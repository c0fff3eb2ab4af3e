"""Layers with weights: convolutions, linear layers, embeddings, recurrent layers."""

from dataclasses import replace

from archgraph.ops import contractions, costs, rules, starts, types, zeros
from archgraph.ops.operator import Growth, Init, Operator, Rows, alike

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
)
_transposed = Operator(
    rules.transposed_convolution,
    zeros.weighted,
    costs.transposed,
    _WEIGHTS,
    sides=_IN_OUT,
    weighted=True,
    growth=Growth(affine={"weight": 1, "bias": 0}),
)
_embedding = Operator(
    rules.embedding,
    zeros.looked_up,
    init={"weight": starts.normal},
    sides={"weight": ("index", "out")},
    weighted=True,
    growth=Growth(affine={"weight": 1}),
    type=types.embedding,
)
# Gates and time are mixed inside.
_recurrent = Operator(
    rules.opaque, macs=costs.recurrent, init={"params": starts.uniform}, weighted=True
)

ROWS: Rows = {
    **alike(("conv1d", "conv2d", "conv3d"), _convolution),
    "convolution": replace(
        _convolution, rule=rules.any_convolution, macs=costs.any_conv, type=None
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
    ),
    "bilinear": Operator(
        contractions.bilinear,
        macs=costs.bilinear,
        init={"weight": starts.bilinear, "bias": starts.bilinear},
        sides={"weight": ("out", "in1", "in2"), "bias": ("out",)},
        weighted=True,
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
    **alike(("lstm", "gru", "rnn_tanh", "rnn_relu"), _recurrent),
    **alike(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), _recurrent),
}
