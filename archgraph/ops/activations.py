"""Activations: curves over single numbers, softmax, gates."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from archgraph.graph.ir import ArchGraph, Node, Ref
from archgraph.layout.layouts import Fixed, plain
from archgraph.ops import zeros
from archgraph.ops.elementwise import CURVE, PLAIN, elementwise_type
from archgraph.ops.equations import PROJECT, Dims, Equations
from archgraph.ops.layers import LayerRule, TorchLayer, same_options, weighted
from archgraph.ops.operator import Growth, Initialiser, Operator, Rows, alike

ROWS: Rows = {}


# -- curves ---------------------------------------------------------------------------------------


def _activation(operator: Operator, layer: LayerRule | None = None, **growth: bool) -> Operator:
    known = Growth(**growth)  # type: ignore[arg-type]  # fields of Growth, by name
    return replace(operator, growth=known, type=elementwise_type, layer=layer)


_hardtanh = same_options(nn.Hardtanh)


def _hardtanh_layer(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """Return ``nn.ReLU6``, which is spelt as a clamp, or ``nn.Hardtanh``."""
    if (node.arg("min_val"), node.arg("max_val")) == (0, 6):
        return TorchLayer(nn.ReLU6, inputs=(node.arg("self"),))
    return _hardtanh(graph, node)


ROWS |= {
    # Deepening repeats an activation: it stays the same function where twice is once.
    "relu": _activation(PLAIN, same_options(nn.ReLU), idempotent=True, keeps_zero=True),
    "abs": _activation(PLAIN, idempotent=True, keeps_zero=True),
    "relu6": _activation(CURVE, same_options(nn.ReLU6), idempotent=True, keeps_zero=True),
    "hardtanh": _activation(PLAIN, _hardtanh_layer, idempotent=True),
    **alike(("clamp_min", "clamp_max"), _activation(PLAIN, idempotent=True)),
    # Its bounds may be tensors, of which no closed form of its type knows.
    "clamp": replace(PLAIN, growth=Growth(idempotent=True)),
    "clip": Operator(alias="clamp"),
    "clip.Tensor": Operator(alias="clamp.Tensor"),
    "gelu": _activation(PLAIN, same_options(nn.GELU), keeps_zero=True),
    "silu": _activation(PLAIN, same_options(nn.SiLU), keeps_zero=True),
    "tanh": _activation(PLAIN, same_options(nn.Tanh), keeps_zero=True),
    "elu": _activation(PLAIN, same_options(nn.ELU), keeps_zero=True),
    "leaky_relu": _activation(PLAIN, same_options(nn.LeakyReLU), keeps_zero=True),
    "sin": _activation(PLAIN, keeps_zero=True),
    "selu": _activation(CURVE, same_options(nn.SELU), keeps_zero=True),
    "hardswish": _activation(CURVE, same_options(nn.Hardswish), keeps_zero=True),
    "mish": _activation(CURVE, same_options(nn.Mish), keeps_zero=True),
    "sigmoid": _activation(PLAIN, same_options(nn.Sigmoid)),
    "special_expit": Operator(alias="sigmoid"),
    **alike(("exp", "cos"), _activation(PLAIN)),
    "hardsigmoid": _activation(CURVE, same_options(nn.Hardsigmoid)),
    "softplus": _activation(CURVE, same_options(nn.Softplus)),
    "celu": replace(CURVE, layer=same_options(nn.CELU)),
    "log_sigmoid": replace(CURVE, layer=same_options(nn.LogSigmoid)),
    "hardshrink": replace(CURVE, layer=same_options(nn.Hardshrink)),
    "softshrink": replace(CURVE, layer=same_options(nn.Softshrink)),
}


# -- softmax --------------------------------------------------------------------------------------


def _softmax_axes(eq: Equations) -> list[Dims]:
    """Spans the dimension it runs over."""
    source = eq.node.args[0][1]
    x = eq.of(source)
    eq.span(x[eq.dim("dim", len(x))], "softmax")
    if isinstance(source, Ref) and source.name in eq.scores:
        over, shared = eq.scores[source.name]
        heads = eq.axes_in(shared)
        if heads:  # q · kᵀ per head
            for layout in over:
                eq.role(layout, "head_dim")
            for var in heads:
                eq.role(var, "heads")
            eq.attends.add(eq.node.name)
    return [x]


# It is pointwise for blocks alone: it belongs to the one that feeds it.
_softmax = Operator(_softmax_axes, pointwise=True)

ROWS |= {
    "softmax": replace(_softmax, growth=Growth(), layer=same_options(nn.Softmax)),
    "log_softmax": replace(_softmax, layer=same_options(nn.LogSoftmax)),
    **alike(("_softmax", "_log_softmax", "_safe_softmax"), _softmax),
    "special_softmax": Operator(alias="softmax.int"),
    "special_log_softmax": Operator(alias="log_softmax.int"),
}


# -- gates and slopes -----------------------------------------------------------------------------


def _glu_axes(eq: Equations) -> list[Dims]:
    """The two halves of a dimension gate each other."""
    x = eq.arg("self")
    dim = eq.dim("dim", len(x), -1)
    half = plain(x[dim]) // 2
    parts = eq.solver.cut(x[dim], half)
    if parts is None:
        eq.pin([x[dim]], "cannot be halved", PROJECT)
        parts = (Fixed(half), Fixed(half))
    else:
        eq.unify(*parts)
    return [[*x[:dim], parts[0], *x[dim + 1 :]]]


def _prelu_axes(eq: Equations) -> list[Dims]:
    """One slope per channel, or one for all."""
    x, w = eq.arg("self"), eq.arg("weight")
    if w and w[0].size != 1 and len(x) > 1:
        eq.unify(w[0], x[1])
    return [x]


ROWS |= {
    # One half times a sigmoid of the other: zero where the first half is.
    "glu": Operator(_glu_axes, zeros.first, layer=same_options(nn.GLU)),
    "prelu": Operator(
        _prelu_axes,
        zeros.first,
        init={"weight": Initialiser("ones", 0.25)},
        pointwise=True,
        layer=weighted(nn.PReLU, ("num_parameters",), "self"),
    ),
}
