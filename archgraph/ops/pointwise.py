"""Elementwise operators: arithmetic, choices, copies, casts, activations."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from archgraph.graph.ir import ArchGraph, Atom, Leaf, Node, Ref, TensorType, Value, in_mode
from archgraph.layout.layouts import Fixed, fixed_size
from archgraph.ops import zeros
from archgraph.ops.backward import (
    INPUT,
    NOTHING,
    PASSES,
    RESULT,
    STOPS,
    Backward,
    as_large_as_result,
    saves,
)
from archgraph.ops.equations import PROJECT, Dims, Dirt, Equations
from archgraph.ops.layers import LayerRule, TorchLayer, same_options, weighted
from archgraph.ops.operator import ALIGNED, Call, Growth, Operator, Spelling, rows
from archgraph.ops.schema import from_atom, op_schema, torch_dtype
from archgraph.ops.starts import SMALL, Init, Initialiser, leafless_identity
from archgraph.ops.types import Args, broadcast, certain, plain_value, real


def elementwise(eq: Equations) -> list[Dims]:
    """Unify the layouts of broadcast operands; several results have the same layout."""
    return [eq.broadcast(eq.layouts())] * len(eq.node.types)


def same_layout(eq: Equations) -> list[Dims]:
    """Return the layout of the first operand; other operands only provide a dtype or values."""
    return [eq.of(eq.node.args[0][1])] * len(eq.node.types)


_GELU_MODES = ("none", "tanh")  # the only strings that an elementwise operator takes


def elementwise_type(args: Args) -> TensorType:
    """Return the type of an elementwise result, for real tensors of one dtype and numbers."""
    tensors = real(*(v for v in args.values() if isinstance(v, TensorType)))
    for value in args.values():
        constant = plain_value(value)
        number = isinstance(constant, (bool, int, float)) or constant in _GELU_MODES
        certain(isinstance(value, TensorType) or number)
    return TensorType(broadcast(t.shape for t in tensors), tensors[0].dtype)


# -- the value at zero ----------------------------------------------------------------------------
def value_at_zero(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Return where an elementwise function f may be nonzero.

    If f(0) = 0, the result is zero where all operands are zero.
    """
    operands = eq.operands()
    at_zero = _at_zero(eq)
    if at_zero == 0:
        dirt = tuple(d for v in operands for d in zeros.stretched(eq, v, results[0]))
        return [dirt] * len(results)
    if not math.isfinite(at_zero):
        _pole(eq, operands, results[0])
    return zeros.never(eq, results)


def _pole(eq: Equations, operands: Sequence[Value], dims: Dims) -> None:
    """Record the axes at whose masked positions the operator is undefined, since operands are 0."""
    dirty = eq.axes_in([d for operand in operands for d in zeros.stretched(eq, operand, dims)])
    for var in eq.axes_in(dims) if operands else ():
        if var not in dirty:
            eq.span(var, f"{eq.node.op.split('.')[1]} of zero")


# Inputs next to zero: at a jump (`sign`) the result is not zero; a quotient is undefined.
_SMALL, _NEGLIGIBLE = 1e-100, 1e-20


def _at_zero(eq: Equations) -> float:
    """Return the current operator's result where all its tensor operands are zero."""
    constants: list[tuple[str, Value]] = []
    for name, value in eq.node.args:
        value = in_mode(value, False)
        if isinstance(value, (Ref, Leaf)):
            constants.append((name, Atom(eq.operand_dtype(value))))
        elif isinstance(value, (bool, int, float, str, Atom)) or value is None:
            constants.append((name, (value,)))
        else:
            return 1.0
    try:
        return _evaluate(eq.node.op, tuple(constants), str(constants))
    except (RuntimeError, TypeError, ValueError, IndexError):
        return 1.0  # not a function of single numbers, so unknown


@functools.lru_cache(maxsize=4096)
def _evaluate(op: str, constants: tuple[tuple[str, Value], ...], key: str) -> float:
    """Evaluate the operator at zero and at numbers close to zero.

    ``key`` distinguishes 1, 1.0 and True, which compare equal.
    """
    schema = op_schema(op)
    if torch.Tag.nondeterministic_seeded in schema.overload.tags:
        return 1.0
    worst = 0.0
    for at in (0.0, _SMALL, -_SMALL):
        arguments: dict[str, object] = {}
        for name, item in constants:
            if isinstance(item, Atom):
                arguments[name] = _near_zero(torch_dtype(item.name), at)
            else:
                assert isinstance(item, tuple)
                arguments[name] = from_atom(item[0]) if isinstance(item[0], Atom) else item[0]
        positional, keyword = schema.call_args(arguments)
        with torch.no_grad():
            result = schema.overload(*positional, **keyword)
        if not isinstance(result, torch.Tensor) or result.numel() != 1:
            return 1.0
        size = float(result.to(torch.complex128).abs())
        if not math.isnan(size):
            worst = max(worst, size)
        elif at == 0:  # next to zero, NaN only means that the function is not defined on that side
            return math.inf
    return 0.0 if worst <= _NEGLIGIBLE else worst


def _near_zero(dtype: torch.dtype, at: float) -> torch.Tensor:
    """Return one number in double precision, so that it does not underflow; integers are zero."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.zeros(1, dtype=dtype)
    return torch.full((1,), at, dtype=torch.complex128 if dtype.is_complex else torch.float64)


# ATen's pointwise operators need no row of their own: those with PyTorch's tag get this one.
PLAIN = Operator(elementwise, value_at_zero, pointwise=True)
REAL = replace(PLAIN, type=elementwise_type)
# A function of one operand; further operands do not broadcast with it.
CURVE = replace(PLAIN, rule=same_layout)
# The operand's values, or some of them.
COPY = replace(CURVE, zero=zeros.first)


# -- sums -----------------------------------------------------------------------------------------
def _arithmetic_type(args: Args) -> TensorType:
    """Return the type of a sum or product, also for integers; see :func:`elementwise_type`."""
    tensors = [v for v in args.values() if isinstance(v, TensorType)]
    numbers = [plain_value(v) for v in args.values() if not isinstance(v, TensorType)]
    if all(t.dtype == "int64" for t in tensors) and all(type(v) is int for v in numbers):
        return TensorType(broadcast(t.shape for t in tensors), "int64")
    return elementwise_type(args)


_integer = replace(PLAIN, type=_arithmetic_type)
# Linear in all operands together, whichever dimensions they have.
_SUM = Growth("all", pointwise=True, repeats="any")


# -- products and quotients -----------------------------------------------------------------------
def _quotient_zero(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Return where a quotient may be nonzero: it is 0 if only the numerator is 0."""
    if not eq.has(eq.node.args[0][0]) or len(eq.operands()) == 1:
        return zeros.some(eq, results) if eq.has(eq.node.args[0][0]) else zeros.never(eq, results)
    (dims,), (above, below) = results, eq.operands()
    vague = eq.axes_in(zeros.stretched(eq, below, dims))
    dirty = eq.axes_in(zeros.stretched(eq, above, dims))
    for var in eq.axes_in(dims):
        if var not in vague:
            if var in dirty:
                eq.span(var, "division by zero")
            dirty[var] = None
    return [tuple(dirty)]


# A layer's own factor starts at 1, so that it has no effect.
_ONES: dict[str, Init] = {"self": Initialiser("ones"), "other": Initialiser("ones")}


# -- comparisons, bits ----------------------------------------------------------------------------

_both = replace(PLAIN, zero=zeros.some)
_LONG_NAMES = {
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "true_divide": "div",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "not_equal": "ne",
}

_ARITHMETIC = {
    "add": replace(
        _integer, init={"self": SMALL, "other": SMALL}, merges=True, growth=_SUM, backward=PASSES
    ),
    "sub": replace(_integer, growth=_SUM, backward=NOTHING),
    "rsub": replace(REAL, backward=NOTHING),
    "neg": replace(REAL, growth=_SUM, backward=NOTHING),
    "negative": Operator(alias="neg"),
    "mul": replace(
        _integer,
        zero=zeros.some,
        init=_ONES,
        growth=Growth("one", pointwise=True),
        backward=saves(self="other", other="self"),
    ),
    "div": replace(
        REAL,
        zero=_quotient_zero,
        init=_ONES,
        growth=Growth("first", pointwise=True, finite=False),
        backward=saves("other", self="other"),
    ),
    **{f"divide.{k}_mode": Operator(alias=f"div.{k}_mode") for k in ("Tensor", "Scalar")},
    # The larger of two copies is the same value.
    "max.other min.other": replace(
        PLAIN, growth=Growth(repeats="any"), backward=saves("self", "other")
    ),
    "maximum minimum": replace(PLAIN, backward=saves("self", "other")),
    "lerp floor_divide isclose complex polar": PLAIN,
    "__or__ __xor__ __lshift__ __rshift__": PLAIN,
    "logical_or logical_not logical_xor": PLAIN,
    # Like products: false where one operand is.
    "__and__ logical_and bitwise_and": _both,
    # Functions of which only the tensors that autograd saves are known.
    "acos acosh asin asinh atan atanh cosh sinh erf erfc erfinv lgamma digamma": replace(
        PLAIN, backward=INPUT
    ),
    "log log10 log1p log2 sinc square": replace(PLAIN, backward=INPUT),
    "exp2 expm1 reciprocal tan": replace(PLAIN, backward=RESULT),
    "ceil floor trunc frac round sign": replace(PLAIN, backward=NOTHING),
    **{
        f"{long}.{overload}": Operator(alias=f"{short}.{overload}")
        for long, short in _LONG_NAMES.items()
        for overload in ("Tensor", "Scalar")
    },
}


# -- choices --------------------------------------------------------------------------------------
def _where_zero(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Return where ``where`` may be nonzero: it is zero where both branches are zero."""
    dirt: Dirt = ()
    for name in ("self", "other"):
        value = eq.node.arg(name)
        if eq.has(name):
            dirt += zeros.stretched(eq, value, results[0])
        elif value != 0:
            return zeros.never(eq, results)
    return [dirt]


def _masked_fill_zero(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Return where ``masked_fill`` may be nonzero: like its input if it fills with zeros."""
    if eq.node.arg("value") != 0 or eq.has("value"):
        return zeros.never(eq, results)
    return [zeros.stretched(eq, eq.node.arg("self"), results[0])]


def _each_zero(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Return where each result may be nonzero, from the operand that is broadcast to it."""
    return [zeros.stretched(eq, v, dims) for v, dims in zip(eq.operands(), results, strict=True)]


def _contained_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of a comparison of each element with all elements of another tensor."""
    for layout in eq.arg("test_elements"):
        eq.span(layout, "isin")
    return [eq.arg("elements")]


# -- functions of one operand that are not activations --------------------------------------------

_SPECIAL = ("expm1", "erf", "erfc", "exp2", "log1p", "sinc", "round")
_ARCS = ("cos", "cosh", "sin", "sinh", "tan", "tanh", "tan2")


# -- copies and casts -----------------------------------------------------------------------------
def _copy_axes(eq: Equations) -> list[Dims]:
    """Return the axes of the first operand; the second's values are stretched to its shape."""
    target = eq.of(eq.node.args[0][1])
    eq.broadcast([target, eq.arg("src")])
    return [target]


def _copy_zero(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Return where a copy may be nonzero: it is zero where its source is zero."""
    return [zeros.stretched(eq, eq.node.arg("src"), results[0])]


def _copy_spelling(call: Spelling) -> Call:
    """Drop arguments that only schedule a copy, because they do not change the result."""
    return call.op, {k: v for k, v in call.args.items() if k != "non_blocking"}


def _cast_spelling(call: Spelling) -> Call:
    """Write a cast with the dtype only."""
    if call.args.get("dtype") is None:
        return call.op, call.args
    return "aten.to.dtype", {"self": call.args["self"], "dtype": call.args["dtype"]}


# Operators that return their input, at least in evaluation.
SAME = replace(ALIGNED, identity=leafless_identity)

_CHOICES_AND_COPIES = {
    "where": replace(PLAIN, zero=_where_zero, growth=Growth(), backward=saves("condition")),
    "masked_fill": replace(PLAIN, zero=_masked_fill_zero, growth=Growth(), backward=saves("mask")),
    "broadcast_tensors": Operator(elementwise, _each_zero, backward=NOTHING),
    "sqrt rsqrt": replace(REAL, backward=RESULT),
    "pow.Tensor_Scalar": replace(REAL, backward=INPUT),
    "nan_to_num threshold logit": replace(CURVE, backward=INPUT),
    "isreal": replace(CURVE, backward=STOPS),
    "isin": replace(PLAIN, rule=_contained_axes, growth=Growth(repeats="any"), backward=STOPS),
    "absolute": Operator(alias="abs"),
    "fix": Operator(alias="trunc"),
    **{f"special_{k}": Operator(alias=k) for k in _SPECIAL},
    **{f"arc{k}": Operator(alias=f"a{k}") for k in _ARCS},
    "detach": replace(COPY, growth=ALIGNED, backward=STOPS),
    "clone contiguous": replace(COPY, growth=SAME, unchanged=True, backward=PASSES),
    "alias": replace(COPY, unchanged=True),
    "type_as": replace(COPY, unchanged=True, casts=True),
    "lift_fresh lift_fresh_copy": Operator(unchanged=True),
    # Zero is zero in every dtype; evaluation at zero shows this, also for integers.
    "to _to_copy": replace(
        CURVE, growth=SAME, unchanged=True, spelling=_cast_spelling, casts=True, backward=NOTHING
    ),
    "copy": Operator(_copy_axes, _copy_zero, spelling=_copy_spelling, backward=NOTHING),
}


# -- activations ----------------------------------------------------------------------------------
def _activation(
    operator: Operator,
    layer: LayerRule | None = None,
    *,
    backward: Backward = INPUT,
    **growth: bool,
) -> Operator:
    """Return the row of an activation. Most activations save their input for the gradient."""
    known = Growth(**growth)  # type: ignore[arg-type]  # fields of Growth, by name
    return replace(operator, growth=known, type=elementwise_type, layer=layer, backward=backward)


_hardtanh = same_options(nn.Hardtanh)


def _hardtanh_layer(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """Return ``nn.ReLU6`` if the clamp is to [0, 6], else ``nn.Hardtanh``."""
    if (node.arg("min_val"), node.arg("max_val")) == (0, 6):
        return TorchLayer(nn.ReLU6, inputs=(node.arg("self"),))
    return _hardtanh(graph, node)


# -- softmax --------------------------------------------------------------------------------------
def _softmax_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of a softmax, which spans the dimension that it normalises."""
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


# It counts as pointwise only for blocks: it belongs to the block before it.
_softmax = Operator(_softmax_axes, pointwise=True, backward=RESULT)


# -- gates and slopes -----------------------------------------------------------------------------
def _glu_axes(eq: Equations) -> list[Dims]:
    """Unify the axes of the two halves of a dimension, one of which gates the other."""
    x = eq.arg("self")
    dim = eq.dim("dim", len(x), -1)
    half = fixed_size(x[dim]) // 2
    parts = eq.solver.cut(x[dim], half)
    if parts is None:
        eq.pin([x[dim]], "cannot be halved", PROJECT)
        parts = (Fixed(half), Fixed(half))
    else:
        eq.unify(*parts)
    return [[*x[:dim], parts[0], *x[dim + 1 :]]]


def _prelu_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of PReLU: one slope per channel, or one for all."""
    x, w = eq.arg("self"), eq.arg("weight")
    if w and w[0].size != 1 and len(x) > 1:
        eq.unify(w[0], x[1])
    return [x]


CURVES_AND_GATES = {
    # Deepening repeats an activation, which is exact if applying it twice changes nothing.
    "relu": _activation(
        PLAIN, same_options(nn.ReLU), backward=RESULT, idempotent=True, keeps_zero=True
    ),
    "abs": _activation(PLAIN, idempotent=True, keeps_zero=True),
    "relu6": _activation(CURVE, same_options(nn.ReLU6), idempotent=True, keeps_zero=True),
    "hardtanh": _activation(PLAIN, _hardtanh_layer, idempotent=True),
    "clamp_min clamp_max": _activation(PLAIN, idempotent=True),
    # Its bounds may be tensors, which the closed form of its type does not cover.
    "clamp": replace(PLAIN, growth=Growth(idempotent=True), backward=INPUT),
    "clip": Operator(alias="clamp"),
    "clip.Tensor": Operator(alias="clamp.Tensor"),
    "gelu": _activation(PLAIN, same_options(nn.GELU), keeps_zero=True),
    "silu": _activation(PLAIN, same_options(nn.SiLU), keeps_zero=True),
    "tanh": _activation(PLAIN, same_options(nn.Tanh), backward=RESULT, keeps_zero=True),
    "elu": _activation(PLAIN, same_options(nn.ELU), keeps_zero=True),
    "leaky_relu": _activation(PLAIN, same_options(nn.LeakyReLU), keeps_zero=True),
    "sin": _activation(PLAIN, keeps_zero=True),
    "selu": _activation(CURVE, same_options(nn.SELU), keeps_zero=True),
    "hardswish": _activation(CURVE, same_options(nn.Hardswish), keeps_zero=True),
    "mish": _activation(CURVE, same_options(nn.Mish), keeps_zero=True),
    "sigmoid": _activation(PLAIN, same_options(nn.Sigmoid), backward=RESULT),
    "special_expit": Operator(alias="sigmoid"),
    "exp": _activation(PLAIN, backward=RESULT),
    "cos": _activation(PLAIN),
    "hardsigmoid": _activation(CURVE, same_options(nn.Hardsigmoid)),
    "softplus": _activation(CURVE, same_options(nn.Softplus)),
    "celu": replace(CURVE, layer=same_options(nn.CELU), backward=INPUT),
    "log_sigmoid": replace(
        CURVE,
        layer=same_options(nn.LogSigmoid),
        backward=saves("self", extra=as_large_as_result()),
    ),
    "hardshrink": replace(CURVE, layer=same_options(nn.Hardshrink), backward=INPUT),
    "softshrink": replace(CURVE, layer=same_options(nn.Softshrink), backward=INPUT),
    "softmax": replace(_softmax, growth=Growth(), layer=same_options(nn.Softmax)),
    "log_softmax": replace(_softmax, layer=same_options(nn.LogSoftmax)),
    "_softmax _log_softmax _safe_softmax": _softmax,
    "special_softmax": Operator(alias="softmax.int"),
    "special_log_softmax": Operator(alias="log_softmax.int"),
    # The first half times a sigmoid of the second: zero where the first half is.
    "glu": Operator(_glu_axes, zeros.first, layer=same_options(nn.GLU), backward=INPUT),
    "prelu": Operator(
        _prelu_axes,
        zeros.first,
        init={"weight": Initialiser("ones", 0.25)},
        pointwise=True,
        layer=weighted(nn.PReLU, ("num_parameters",), "self"),
        backward=saves("self", "weight"),
    ),
}

ROWS = rows(_ARITHMETIC, _CHOICES_AND_COPIES, CURVES_AND_GATES)
