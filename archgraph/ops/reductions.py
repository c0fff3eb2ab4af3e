"""Reductions: dimensions vanish, and with channels all of them are mixed."""

from __future__ import annotations

from dataclasses import replace

from archgraph.graph.ir import Node, TensorType
from archgraph.layout.layouts import Fixed
from archgraph.ops import zeros
from archgraph.ops.equations import Dims, Equations
from archgraph.ops.operator import Growth, Operator, Repeats, Rows, alike
from archgraph.ops.types import Args, certain, number, plain_value, real

ROWS: Rows = {}


def _reduce(eq: Equations, exact: bool) -> list[Dims]:
    x = eq.of(eq.node.args[0][1])
    value = eq.node.arg("dim", eq.node.arg("axis"))
    given = value if isinstance(value, tuple) else ((value,) if value is not None else ())
    dims = {d % len(x) for d in given if isinstance(d, int)} or set(range(len(x)))
    for d in dims:
        if exact:
            eq.total(x[d], [eq.node.args[0][1]], eq.node.op.split(".")[1])
        else:
            eq.span(x[d], eq.node.op.split(".")[1])
    out: Dims = []
    for d, layout in enumerate(x):
        if d not in dims:
            out.append(layout)
        elif len(eq.node.shape) == len(x):
            out.append(Fixed(1))
    return [out] * len(eq.node.types)


# -- reductions to which zeros add nothing --------------------------------------------------------


def _sum_axes(eq: Equations) -> list[Dims]:
    """A reduction to which zeros add nothing: exact along axes whose masked positions are zero."""
    order = eq.node.arg("p", eq.node.arg("ord", 2))  # of a norm
    return _reduce(eq, exact=isinstance(order, (int, float)) and order > 0)


def _count_axes(eq: Equations) -> list[Dims]:
    """How many, or whether any: exact for truth values, not for numbers next to zero."""
    floating = eq.operand_dtype(eq.node.args[0][1]).startswith(("float", "bfloat"))
    return _reduce(eq, exact=not floating)


ROWS |= {
    "sum": Operator(_sum_axes, zeros.first, growth=Growth()),
    **alike(("nansum", "linalg_vector_norm", "norm"), Operator(_sum_axes, zeros.first)),
    # Repeated positions change how many there are, not whether there are any.
    "any": Operator(_count_axes, zeros.first, growth=Growth(repeats="any")),
    "count_nonzero": Operator(_count_axes, zeros.first),
}


# -- all others -----------------------------------------------------------------------------------


def _reduction_axes(eq: Equations) -> list[Dims]:
    """Reduced dimensions vanish; where they are channels, all of them are mixed."""
    return _reduce(eq, exact=False)


def _mean_type(args: Args) -> TensorType:
    """Some dimensions vanish, or have the size one."""
    (x,) = real(args.get("self"))
    dims, keep = args.get("dim"), number(args, "keepdim", False, bool)
    certain(type(dims) is tuple, dims, "dtype" not in args)
    rank, places = len(x.shape), [plain_value(d) for d in dims or ()]
    certain(*(type(d) is int and -rank <= d < rank for d in places))
    gone = {d % rank for d in places}
    certain(len(gone) == len(places))
    shape = [1 if i in gone else s for i, s in enumerate(x.shape) if keep or i not in gone]
    return TensorType(tuple(shape), x.dtype)


def _spread(node: Node) -> Repeats:
    """Variances by N - 1 know how many positions there are."""
    by_count = node.arg("correction", 1) == 0 or node.arg("unbiased", True) is False
    return "uniform" if by_count else "never"


_reduction = Operator(_reduction_axes, zeros.first)

ROWS |= {
    "mean": replace(_reduction, growth=Growth(repeats="uniform"), type=_mean_type),
    **alike(("amax", "amin", "max", "min"), replace(_reduction, growth=Growth(repeats="any"))),
    **alike(
        ("var", "std", "var_mean", "std_mean"), replace(_reduction, growth=Growth(repeats=_spread))
    ),
    **alike(("nanmean", "aminmax", "prod", "median", "nanmedian"), _reduction),
    # Of zeros alone: log of their number, true, position 0.
    "logsumexp": Operator(_reduction_axes),
    "all": Operator(_reduction_axes, growth=Growth(repeats="any")),
    **alike(("argmax", "argmin"), Operator(_reduction_axes)),
}
