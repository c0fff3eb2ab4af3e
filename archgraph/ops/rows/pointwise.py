"""Operators that work position by position: activations, sums, products, casts, dropout, noise."""

from dataclasses import replace

from torch import nn

from archgraph.ops import layers, rules, spelling, starts, types, views, zeros
from archgraph.ops.layers import LayerRule, plain
from archgraph.ops.operator import Growth, Init, Operator, Rows, alike

_ONES: dict[str, Init] = {"self": starts.ones, "other": starts.ones}
_KNOWN = Growth()  # nothing but that it does not make 0/0
_SUM = Growth("all", pointwise=True, repeats="any")
_COPY = Growth("all", pointwise=True, repeats="any", picks=True)
_SAME = replace(_COPY, identity=starts.identity_plain)

PLAIN = Operator(rules.elementwise, zeros.value, pointwise=True)
# A curve over one operand; further operands do not broadcast with it.
_curve = replace(PLAIN, rule=rules.same)
_real = replace(PLAIN, type=types.elementwise)
_integer = replace(PLAIN, type=types.arithmetic)
_both = replace(PLAIN, zero=zeros.some)
_copy = replace(_curve, zero=zeros.first)
_noise = Operator(rules.same, pointwise=True)
_softmax = Operator(rules.softmax, pointwise=True)
_dropout = replace(_copy, training_flag="train", rates=("p",))


def _activation(operator: Operator, layer: LayerRule | None = None, **growth: bool) -> Operator:
    known = Growth(**growth)  # type: ignore[arg-type]  # fields of Growth, by name
    return replace(operator, growth=known, type=types.elementwise, layer=layer)


ROWS: Rows = {
    # -- sums, products, quotients
    "add": replace(
        _integer,
        init={"self": starts.small, "other": starts.small},
        merges=True,
        growth=_SUM,
    ),
    "sub": replace(_integer, growth=_SUM),
    "neg": replace(_real, growth=_SUM),
    "rsub": _real,
    "mul": replace(_integer, zero=zeros.some, init=_ONES, growth=Growth("one", pointwise=True)),
    "div": replace(
        PLAIN,
        zero=zeros.quotient,
        init=_ONES,
        growth=Growth("first", pointwise=True, finite=False),
        type=types.elementwise,
    ),
    # -- activations
    "relu": _activation(PLAIN, plain(nn.ReLU), idempotent=True, keeps_zero=True),
    "abs": _activation(PLAIN, idempotent=True, keeps_zero=True),
    "relu6": _activation(_curve, plain(nn.ReLU6), idempotent=True, keeps_zero=True),
    "hardtanh": _activation(PLAIN, layers.hardtanh, idempotent=True),
    **alike(("clamp_min", "clamp_max"), _activation(PLAIN, idempotent=True)),
    "clamp": replace(PLAIN, growth=Growth(idempotent=True)),
    "gelu": _activation(PLAIN, plain(nn.GELU), keeps_zero=True),
    "silu": _activation(PLAIN, plain(nn.SiLU), keeps_zero=True),
    "tanh": _activation(PLAIN, plain(nn.Tanh), keeps_zero=True),
    "elu": _activation(PLAIN, plain(nn.ELU), keeps_zero=True),
    "leaky_relu": _activation(PLAIN, plain(nn.LeakyReLU), keeps_zero=True),
    "sin": _activation(PLAIN, keeps_zero=True),
    "selu": _activation(_curve, plain(nn.SELU), keeps_zero=True),
    "hardswish": _activation(_curve, plain(nn.Hardswish), keeps_zero=True),
    "mish": _activation(_curve, plain(nn.Mish), keeps_zero=True),
    "sigmoid": _activation(PLAIN, plain(nn.Sigmoid)),
    **alike(("exp", "cos"), _activation(PLAIN)),
    "hardsigmoid": _activation(_curve, plain(nn.Hardsigmoid)),
    "softplus": _activation(_curve, plain(nn.Softplus)),
    "celu": replace(_curve, layer=plain(nn.CELU)),
    "log_sigmoid": replace(_curve, layer=plain(nn.LogSigmoid)),
    "hardshrink": replace(_curve, layer=plain(nn.Hardshrink)),
    "softshrink": replace(_curve, layer=plain(nn.Softshrink)),
    **alike(("sqrt", "rsqrt"), _real),
    "pow.Tensor_Scalar": _real,
    **alike(
        (
            "nan_to_num",
            "threshold",
            "logit",
            "isreal",
            "conj",
            "resolve_conj",
            "resolve_neg",
            "bucketize",
            "isin",
        ),
        _curve,
    ),
    "softmax": replace(_softmax, growth=_KNOWN, layer=plain(nn.Softmax)),
    "log_softmax": replace(_softmax, layer=plain(nn.LogSoftmax)),
    **alike(("_softmax", "_log_softmax", "_safe_softmax"), _softmax),
    "real": replace(_curve, overwritten=views.component(0)),
    "imag": replace(_curve, overwritten=views.component(1)),
    **alike(("_conj", "_neg_view"), replace(_curve, overwritten=views.itself)),
    "glu": Operator(rules.glu, zeros.first, layer=plain(nn.GLU)),
    "prelu": Operator(
        rules.prelu,
        zeros.first,
        init={"weight": starts.quarter},
        pointwise=True,
        layer=layers.weighted(nn.PReLU, ("num_parameters",), "self"),
    ),
    # -- copies and casts
    "detach": replace(_copy, growth=_COPY),
    **alike(("clone", "contiguous"), replace(_copy, growth=_SAME, unchanged=spelling.always)),
    "alias": replace(_copy, unchanged=spelling.always),
    "type_as": replace(_copy, unchanged=spelling.always, casts=True),
    **alike(("lift_fresh", "lift_fresh_copy"), Operator(unchanged=spelling.always)),
    **alike(
        ("to", "_to_copy"),
        replace(
            _curve, growth=_SAME, unchanged=spelling.always, spelling=spelling.cast, casts=True
        ),
    ),
    "copy": Operator(rules.overwrite, zeros.second, spelling=spelling.copy),
    # -- dropout and noise
    "dropout": replace(
        _dropout, growth=_SAME, type=types.dropout, layer=layers.dropout(nn.Dropout)
    ),
    "feature_dropout": replace(_dropout, growth=_SAME, layer=layers.dropout(None)),
    "alpha_dropout": replace(_dropout, growth=_SAME, layer=layers.dropout(nn.AlphaDropout)),
    "feature_alpha_dropout": replace(_dropout, layer=layers.dropout(nn.FeatureAlphaDropout)),
    "native_dropout": _dropout,
    **alike(("bernoulli", "poisson", "rrelu"), _copy),
    "bernoulli.float": replace(_copy, functional="aten.bernoulli.p"),
    "normal": replace(_noise, functional="aten.normal_functional"),
    **alike(("bernoulli.p", "normal_functional", "uniform", "fill"), _noise),
    **alike(("exponential", "geometric", "log_normal", "cauchy"), _noise),
    # -- comparisons, bits and choices
    **alike(("max.other", "min.other"), replace(PLAIN, growth=Growth(repeats="any"))),
    **alike(("lerp", "floor_divide", "isclose", "complex", "polar"), PLAIN),
    **alike(("__or__", "__xor__", "__lshift__", "__rshift__"), PLAIN),
    **alike(("logical_or", "logical_not", "logical_xor"), PLAIN),
    **alike(("__and__", "logical_and", "bitwise_and"), _both),
    "where": replace(PLAIN, zero=zeros.chosen, growth=_KNOWN),
    "masked_fill": replace(PLAIN, zero=zeros.filled, growth=_KNOWN),
    "broadcast_tensors": Operator(rules.elementwise, zeros.each),
}
