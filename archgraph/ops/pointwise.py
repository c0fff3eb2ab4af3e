"""Operators that work position by position: sums, products, comparisons, choices, copies, casts."""

from __future__ import annotations

from dataclasses import replace

from archgraph.graph.ir import TensorType
from archgraph.ops import zeros
from archgraph.ops.elementwise import (
    COPY,
    CURVE,
    PLAIN,
    REAL,
    elementwise,
    elementwise_type,
)
from archgraph.ops.equations import Dims, Dirt, Equations
from archgraph.ops.operator import (
    SMALL,
    Call,
    Growth,
    Init,
    Initialiser,
    Operator,
    Rows,
    Spelling,
    alike,
    any_arguments,
    returns_input,
)
from archgraph.ops.types import Args, broadcast, plain_value

ROWS: Rows = {}


# -- sums -----------------------------------------------------------------------------------------


def _arithmetic_type(args: Args) -> TensorType:
    """Sums and products: as :func:`elementwise_type`; integers stay integers."""
    tensors = [v for v in args.values() if isinstance(v, TensorType)]
    plain = [plain_value(v) for v in args.values() if not isinstance(v, TensorType)]
    if all(t.dtype == "int64" for t in tensors) and all(type(v) is int for v in plain):
        return TensorType(broadcast(t.shape for t in tensors), "int64")
    return elementwise_type(args)


_integer = replace(PLAIN, type=_arithmetic_type)
# Linear in all operands together, wherever their positions stand.
_SUM = Growth("all", pointwise=True, repeats="any")

ROWS |= {
    "add": replace(_integer, init={"self": SMALL, "other": SMALL}, merges=True, growth=_SUM),
    "sub": replace(_integer, growth=_SUM),
    **{f"subtract.{k}": Operator(alias=f"sub.{k}") for k in ("Tensor", "Scalar")},
    "rsub": REAL,
    "neg": replace(REAL, growth=_SUM),
    "negative": Operator(alias="neg"),
}


# -- products and quotients -----------------------------------------------------------------------


def _quotient_zero(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Zero where the numerator is and the denominator is not; endless the other way round."""
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


# A factor of a layer's own starts as if it were not there.
_ONES: dict[str, Init] = {"self": Initialiser("ones"), "other": Initialiser("ones")}

ROWS |= {
    "mul": replace(_integer, zero=zeros.some, init=_ONES, growth=Growth("one", pointwise=True)),
    "div": replace(
        REAL,
        zero=_quotient_zero,
        init=_ONES,
        growth=Growth("first", pointwise=True, finite=False),
    ),
    **{
        f"{long}.{overload}": Operator(alias=f"{short}.{overload}")
        for long, short in (("multiply", "mul"), ("divide", "div"), ("true_divide", "div"))
        for overload in ("Tensor", "Scalar")
    },
    **{f"divide.{k}_mode": Operator(alias=f"div.{k}_mode") for k in ("Tensor", "Scalar")},
}


# -- comparisons, bits ----------------------------------------------------------------------------


_both = replace(PLAIN, zero=zeros.some)
_COMPARED = {
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "not_equal": "ne",
}

ROWS |= {
    # The larger of two copies is the copy.
    **alike(("max.other", "min.other"), replace(PLAIN, growth=Growth(repeats="any"))),
    **alike(("lerp", "floor_divide", "isclose", "complex", "polar"), PLAIN),
    **alike(("__or__", "__xor__", "__lshift__", "__rshift__"), PLAIN),
    **alike(("logical_or", "logical_not", "logical_xor"), PLAIN),
    # As products: false where one operand is.
    **alike(("__and__", "logical_and", "bitwise_and"), _both),
    **{
        f"{long}.{overload}": Operator(alias=f"{short}.{overload}")
        for long, short in _COMPARED.items()
        for overload in ("Tensor", "Scalar")
    },
}


# -- choices --------------------------------------------------------------------------------------


def _where_zero(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """``where``: zero where both branches are."""
    dirt: Dirt = ()
    for name in ("self", "other"):
        given = eq.node.arg(name)
        if eq.has(name):
            dirt += zeros.stretched(eq, given, results[0])
        elif given != 0:
            return zeros.never(eq, results)
    return [dirt]


def _masked_fill_zero(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """``masked_fill``: zero where its input is, if it fills with zero."""
    if eq.node.arg("value") != 0 or eq.has("value"):
        return zeros.never(eq, results)
    return [zeros.stretched(eq, eq.node.arg("self"), results[0])]


def _each_zero(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Operand by operand, zeros.stretched."""
    return [zeros.stretched(eq, v, dims) for v, dims in zip(eq.operands(), results, strict=True)]


ROWS |= {
    "where": replace(PLAIN, zero=_where_zero, growth=Growth()),
    "masked_fill": replace(PLAIN, zero=_masked_fill_zero, growth=Growth()),
    "broadcast_tensors": Operator(elementwise, _each_zero),
}


# -- functions of one operand, beside activations -------------------------------------------------


_CURVES = """
    nan_to_num threshold logit isreal bucketize isin
""".split()
_SPECIAL = ("expm1", "erf", "erfc", "exp2", "log1p", "sinc", "round")
_ARCS = ("cos", "cosh", "sin", "sinh", "tan", "tanh", "tan2")

ROWS |= {
    **alike(("sqrt", "rsqrt"), REAL),
    "pow.Tensor_Scalar": REAL,
    **alike(_CURVES, CURVE),
    "absolute": Operator(alias="abs"),
    "fix": Operator(alias="trunc"),
    **{f"special_{k}": Operator(alias=k) for k in _SPECIAL},
    **{f"arc{k}": Operator(alias=f"a{k}") for k in _ARCS},
}


# -- copies and casts -----------------------------------------------------------------------------


def _copy_axes(eq: Equations) -> list[Dims]:
    """The first operand with the second's values, zeros.stretched to its shape."""
    target = eq.of(eq.node.args[0][1])
    eq.broadcast([target, eq.arg("src")])
    return [target]


def _copy_zero(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Zero where the source of a copy is."""
    return [zeros.stretched(eq, eq.node.arg("src"), results[0])]


def _copy_spelling(call: Spelling) -> Call:
    """How a copy is scheduled is not part of an architecture."""
    return call.op, {k: v for k, v in call.args.items() if k != "non_blocking"}


def _cast_spelling(call: Spelling) -> Call:
    """A cast names the type alone."""
    if call.args.get("dtype") is None:
        return call.op, call.args
    return "aten.to.dtype", {"self": call.args["self"], "dtype": call.args["dtype"]}


_COPIED = Growth("all", pointwise=True, repeats="any", picks=True)
_SAME = replace(_COPIED, identity=returns_input)

ROWS |= {
    "detach": replace(COPY, growth=_COPIED),
    **alike(("clone", "contiguous"), replace(COPY, growth=_SAME, unchanged=any_arguments)),
    "alias": replace(COPY, unchanged=any_arguments),
    "type_as": replace(COPY, unchanged=any_arguments, casts=True),
    **alike(("lift_fresh", "lift_fresh_copy"), Operator(unchanged=any_arguments)),
    # The value at zero decides: a cast keeps it, one to another type of numbers too.
    **alike(
        ("to", "_to_copy"),
        replace(CURVE, growth=_SAME, unchanged=any_arguments, spelling=_cast_spelling, casts=True),
    ),
    "copy": Operator(_copy_axes, _copy_zero, spelling=_copy_spelling),
}
