"""Reductions over all positions of a dimension, scans along a dimension, and losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from archgraph.graph.ir import Node, TensorType
from archgraph.layout.layouts import Fixed
from archgraph.ops import zeros
from archgraph.ops.backward import INPUT, NOTHING, PASSES, STOPS, saves
from archgraph.ops.equations import ORDER, PROJECT, Dims, Equations
from archgraph.ops.operator import MOVES, Call, Growth, Operator, Repeats, Spelling, rows
from archgraph.ops.schema import op_schema
from archgraph.ops.types import Args, certain, listed, number, plain_value, real


def _reduce(eq: Equations, exact: bool) -> list[Dims]:
    x = eq.of(eq.node.args[0][1])
    value = eq.node.arg("dim", eq.node.arg("axis"))
    stated = value if isinstance(value, tuple) else ((value,) if value is not None else ())
    dims = {d % len(x) for d in stated if isinstance(d, int)} or set(range(len(x)))
    what = eq.node.op.split(".")[1]
    for d in dims:
        if exact:
            eq.total(x[d], [eq.node.args[0][1]], what)
        else:
            eq.span(x[d], what)
    keep = len(eq.node.shape) == len(x)
    # All results (a maximum and its position) have the same shape.
    return [
        [Fixed(1) if d in dims else x[d] for d in range(len(x)) if keep or d not in dims]
    ] * len(eq.node.types)


# -- reductions that zeros do not change ----------------------------------------------------------
def _sum_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of a reduction that zeros do not change.

    Along axes whose masked positions are zero, the result equals that of the cut network.
    """
    order = eq.node.arg("p", eq.node.arg("ord", 2))  # of a norm
    return _reduce(eq, exact=isinstance(order, (int, float)) and order > 0)


def _count_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of operators that count values or test them.

    Masked positions do not change the result for booleans, but may for numbers close to zero.
    """
    floating = eq.operand_dtype(eq.node.args[0][1]).startswith(("float", "bfloat"))
    return _reduce(eq, exact=not floating)


# -- all others -----------------------------------------------------------------------------------
def _reduction_axes(eq: Equations) -> list[Dims]:
    """Remove the reduced dimensions, which the operator spans."""
    return _reduce(eq, exact=False)


def _extreme_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of minima and maxima; pin the reduced dimensions if indices are used."""
    results = _reduce(eq, exact=False)
    users = map(eq.graph.node.__getitem__, eq.graph.users[eq.node.name])
    if len(results) == 1 or any(user.arg("index") == 1 for user in users):
        x = eq.arg("self")
        dims = (eq.dim("dim", len(x)),) if eq.has("dim") else range(len(x))
        eq.pin([x[d] for d in dims], ORDER, PROJECT)
    return results


def _mean_type(args: Args) -> TensorType:
    """Return the type of a mean, whose reduced dimensions are removed or have size 1."""
    (x,) = real(args.get("self"))
    keep, numbers = number(args, "keepdim", False, bool), [*map(plain_value, listed(args, "dim"))]
    rank = len(x.shape)
    certain("dtype" not in args, numbers, *(type(d) is int and -rank <= d < rank for d in numbers))
    gone = {d % rank for d in numbers}
    certain(len(gone) == len(numbers))
    shape = [1 if i in gone else s for i, s in enumerate(x.shape) if keep or i not in gone]
    return TensorType(tuple(shape), x.dtype)


def _spread(node: Node) -> Repeats:
    """Return the allowed repetitions: division by N - 1 depends on the number of positions."""
    by_count = node.arg("correction", 1) == 0 or node.arg("unbiased", True) is False
    return "uniform" if by_count else "never"


def _renorm_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of ``renorm``: each position of one dimension is scaled by its own norm."""
    x = eq.arg("self")
    for index, layout in enumerate(x):
        if index != eq.dim("dim", len(x)):
            eq.total(layout, [eq.node.arg("self")], "renorm")
    return [x]


_reduction = Operator(_reduction_axes, zeros.first)
_BOTH = saves("self", results=(0,))

_REDUCTIONS = {
    "sum": Operator(_sum_axes, zeros.first, growth=Growth(), backward=PASSES),
    "nansum": Operator(_sum_axes, zeros.first, backward=INPUT),
    "linalg_vector_norm norm": Operator(_sum_axes, zeros.first, backward=_BOTH),
    # Repeated positions change their number, but not whether there are any.
    "any": Operator(_count_axes, zeros.first, growth=Growth(repeats="any"), backward=STOPS),
    "count_nonzero": Operator(_count_axes, zeros.first, backward=STOPS),
    "mean": replace(
        _reduction, growth=Growth(repeats="uniform"), type=_mean_type, backward=NOTHING
    ),
    "amax amin": replace(_reduction, growth=Growth(repeats="any"), backward=_BOTH),
    "max min": replace(_reduction, growth=Growth(repeats="any"), backward=_BOTH),
    "max.dim min.dim": Operator(
        _extreme_axes, zeros.first, growth=Growth(repeats="any"), backward=saves(results=(1,))
    ),
    "var var_mean": replace(_reduction, growth=Growth(repeats=_spread), backward=INPUT),
    "std std_mean": replace(_reduction, growth=Growth(repeats=_spread), backward=_BOTH),
    "nanmean aminmax prod median nanmedian": _reduction,
    "median.dim nanmedian.dim": Operator(_extreme_axes, zeros.first),
    # For zeros these give the log of their number, true, and position 0.
    "logsumexp": Operator(_reduction_axes, backward=_BOTH),
    "all": Operator(_reduction_axes, growth=Growth(repeats="any"), backward=STOPS),
    "renorm": Operator(_renorm_axes, zeros.first),
    "argmax argmin": Operator(_extreme_axes, backward=STOPS),
}


# -- ordered operators ----------------------------------------------------------------------------
def _along_axes(eq: Equations) -> list[Dims]:
    """Pin a dimension along which order matters (cumsum, flip, roll, sort)."""
    x = eq.of(eq.node.args[0][1])
    dims = eq.ints("dims") or eq.ints("dim", (-1,))
    if "dims" in op_schema(eq.node.op).by_name and not eq.ints("dims"):  # the flattened tensor
        dims = tuple(range(len(x)))
    for d in dims:
        eq.pin([x[d % len(x)]], ORDER, PROJECT)
    return [eq.conform(x, i) for i in range(len(eq.node.types))]


def _difference_axes(eq: Equations) -> list[Dims]:
    """Pin a dimension along which neighbours are subtracted, and the parts added at its ends."""
    x, dim = eq.along()
    dim = eq.dim("dim", len(x), -1)
    eq.pin([x[dim]], ORDER, PROJECT)
    for end in (eq.arg(name) for name in ("prepend", "append") if eq.has(name)):
        eq.pin([end[dim]], ORDER, PROJECT)
        eq.agree([*x[:dim], *x[dim + 1 :]], [*end[:dim], *end[dim + 1 :]])
    return [eq.conform(x)]


def _sought_axes(eq: Equations) -> list[Dims]:
    """Pin the sorted sequence in which values are searched; unify the other dimensions."""
    x, row = eq.arg("self"), eq.arg("boundaries") or eq.arg("sorted_sequence")
    eq.pin(row[-1:], ORDER, PROJECT)
    if len(row) > 1:
        eq.agree(row[:-1], x[:-1])
    if eq.has("sorter"):
        eq.agree(row, eq.arg("sorter"))
    return [x]


def _first_axes(eq: Equations) -> list[Dims]:
    """Pin the first dimension, along which order matters."""
    x = eq.of(eq.node.args[0][1])
    eq.pin(x[:1], ORDER, PROJECT)
    return [x]


def _reduced_axes(eq: Equations) -> list[Dims]:
    """Pin a dimension that is reduced to one position that depends on order (kthvalue, mode)."""
    x = eq.of(eq.node.args[0][1])
    d = eq.dim("dim", len(x), -1)
    eq.pin([x[d]], ORDER, PROJECT)
    keep = len(eq.node.shape) == len(x)
    return [[*x[:d], *([Fixed(1)] if keep else []), *x[d + 1 :]]] * len(eq.node.types)


def _flip_spelling(*dims: int) -> Callable[[Spelling], Call]:
    """Write an operator as a flip of fixed dimensions."""
    return lambda call: ("aten.flip", {"self": call.args["self"], "dims": dims})


_along = Operator(_along_axes, zeros.first)
_moved = replace(_along, growth=MOVES, backward=NOTHING)


# -- Fourier transforms ---------------------------------------------------------------------------
def _transform_axes(eq: Equations) -> list[Dims]:
    """Pin the dimensions of a Fourier transform; pass the others."""
    x = eq.of(eq.node.args[0][1])
    dims, sizes = eq.ints("dim"), eq.ints("s")
    if not dims:  # the last ones, as many as there are sizes; all if there are none
        dims = tuple(range(len(x) - len(sizes) if sizes else 0, len(x)))
    out = list(x)
    for d in dims:
        eq.pin([x[d % len(x)]], "transformed as a whole", PROJECT)
        out[d % len(x)] = Fixed(eq.node.shape[d % len(x)])
    return [out]


_FFT = tuple(
    f"fft_{inverse}{real}fft{rank}"
    for rank in ("", "2", "n")
    for inverse in ("", "i")
    for real in ("", "r", "h")
)

_IN_ORDER = {
    "cumsum": replace(_along, growth=Growth(), backward=NOTHING),
    "sort topk": replace(_along, growth=Growth(), backward=saves(results=(1,))),
    "roll flip": _moved,
    "fliplr": Operator(spelling=_flip_spelling(1)),
    "flipud": Operator(spelling=_flip_spelling(0)),
    "cumprod cummax cummin rot90": _along,
    "diff": replace(_along, rule=_difference_axes),
    # Zero may lie anywhere between the boundaries.
    "bucketize searchsorted": Operator(_sought_axes, pointwise=True, backward=STOPS),
    # For zeros these give positions and logarithms of counts.
    "argsort logcumsumexp": Operator(_along_axes),
    "msort": Operator(_first_axes, zeros.first),
    "kthvalue mode": Operator(_reduced_axes, zeros.first, backward=saves(results=(1,))),
    " ".join(_FFT): Operator(_transform_axes, zeros.first, growth=Growth(scales="all")),
    "fft_fftshift fft_ifftshift": Operator(
        _transform_axes, zeros.first, growth=Growth(scales="all", picks=True)
    ),
}


# -- two operands ---------------------------------------------------------------------------------
def _distance_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of a distance, a single number; positions with equal values add 0."""
    both = eq.broadcast(eq.layouts())
    for layout in both:
        eq.total(layout, eq.operands(), "distance")
    return [[]]


def _area_axes(eq: Equations) -> list[Dims]:
    """Pin the dimension along which an integral is computed (``trapezoid``)."""
    y, x = eq.arg("y"), eq.arg("x")
    dim = eq.dim("dim", len(y), -1)
    if len(x) == 1:  # the same distances everywhere
        x = [Fixed(1)] * dim + x + [Fixed(1)] * (len(y) - 1 - dim)
    both = eq.broadcast([y, x])
    eq.pin([*y[dim : dim + 1], *x[dim : dim + 1]], ORDER, PROJECT)
    if len(eq.node.shape) < len(both):
        return [[*both[:dim], *both[dim + 1 :]]]
    return [eq.conform(both)]


_OF_TWO = {
    "dist": Operator(_distance_axes),
    "trapezoid cumulative_trapezoid": Operator(_area_axes),
}


# -- losses that a model computes itself -----------------------------------------------------------
def _loss_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of an elementwise loss, which returns all values, their mean or their sum."""
    return [_averaged(eq, eq.broadcast(eq.layouts()))]


def _averaged(eq: Equations, dims: Dims) -> Dims:
    """Return the layouts of a loss, which is one number for each position or a single number."""
    if eq.integer("reduction", 1) == 0:
        return dims
    for layout in dims:
        eq.span(layout, eq.node.op.split(".")[1])
    return []


def _class_loss_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of a loss with scores per class at x[1], which is pinned."""
    x, target = eq.arg("self"), eq.arg("target")
    classes = min(1, len(x) - 1)  # a single example has no batch
    rest = [*x[:classes], *x[classes + 1 :]]
    eq.agree(x if len(target) == len(x) else rest, target)
    eq.vectors(x[classes], "weight")
    eq.pin([x[classes]], "indexed by values")
    return [_averaged(eq, rest), *(eq.fixed(t.shape) for t in eq.node.types[1:])]


def _cosine_loss_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of a loss of cosines of rows; the target has one number per row."""
    (_, left), (_, right), *_ = eq.node.args
    *rows, width = eq.broadcast([eq.of(left), eq.of(right)])
    eq.total(width, [left, right], "cosine")
    return [_averaged(eq, eq.broadcast([rows, eq.arg("target")]))]


def _triplet_loss_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of a loss of distances; a small number is added to each difference."""
    *rows, width = eq.broadcast(eq.layouts())
    eq.span(width, "distance")
    return [_averaged(eq, rows)]


def _loss_repeats(node: Node) -> Repeats:
    """Return the allowed repetitions: equal repetitions change a sum, but not a mean."""
    return "uniform" if node.arg("reduction", 1) == 1 else "never"


_loss = Operator(_loss_axes, growth=Growth(repeats=_loss_repeats, finite=False))

_LOSSES = {
    "mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss poisson_nll_loss kl_div": _loss,
    "binary_cross_entropy binary_cross_entropy_with_logits": _loss,
    "hinge_embedding_loss margin_ranking_loss": _loss,
    "cross_entropy_loss nll_loss nll_loss2d nll_loss_nd nll_loss_forward": replace(
        _loss, rule=_class_loss_axes
    ),
    "multi_margin_loss multilabel_margin_loss": replace(_loss, rule=_class_loss_axes),
    "cosine_embedding_loss": replace(_loss, rule=_cosine_loss_axes),
    "triplet_margin_loss": replace(_loss, rule=_triplet_loss_axes),
}

ROWS = rows(_REDUCTIONS, _IN_ORDER, _OF_TWO, _LOSSES)
