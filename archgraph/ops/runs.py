"""Operators that run along a dimension, in which the order of positions matters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from archgraph.layout.layouts import Fixed
from archgraph.ops import zeros
from archgraph.ops.equations import ORDER, PROJECT, Dims, Equations
from archgraph.ops.operator import Call, Growth, Operator, Rows, Spelling, alike
from archgraph.ops.schema import schema

ROWS: Rows = {}


# -- in order -------------------------------------------------------------------------------------


def _along_axes(eq: Equations) -> list[Dims]:
    """Runs along a dimension in order (cumsum, flip, roll, sort): that dimension stays whole."""
    x = eq.of(eq.node.args[0][1])
    dims = eq.ints("dims") or eq.ints("dim", (-1,))
    if "dims" in schema(eq.node.op).by_name and not eq.ints("dims"):  # the flattened tensor
        dims = tuple(range(len(x)))
    for d in dims:
        eq.pin([x[d % len(x)]], ORDER, PROJECT)
    return [eq.conform(x, i) for i in range(len(eq.node.types))]


def _first_axes(eq: Equations) -> list[Dims]:
    """Runs along the first dimension."""
    x = eq.of(eq.node.args[0][1])
    eq.pin(x[:1], ORDER, PROJECT)
    return [x]


def _reduced_axes(eq: Equations) -> list[Dims]:
    """Runs along a dimension in order and keeps one position of it (kthvalue, mode, trapezoid)."""
    x = eq.of(eq.node.args[0][1])
    d = eq.dim("dim", len(x), -1)
    eq.pin([x[d]], ORDER, PROJECT)
    keep = len(eq.node.shape) == len(x)
    return [[*x[:d], *([Fixed(1)] if keep else []), *x[d + 1 :]]] * len(eq.node.types)


def _flip_spelling(*dims: int) -> Callable[[Spelling], Call]:
    """A flip of given dimensions."""
    return lambda call: ("aten.flip", {"self": call.args["self"], "dims": dims})


_along = Operator(_along_axes, zeros.first)
_moved = replace(_along, growth=Growth(scales="all", moves=True, repeats="any", picks=True))

ROWS |= {
    **alike(("cumsum", "sort", "topk"), replace(_along, growth=Growth())),
    **alike(("roll", "flip"), _moved),
    "fliplr": Operator(spelling=_flip_spelling(1)),
    "flipud": Operator(spelling=_flip_spelling(0)),
    **alike(("cumprod", "cummax", "cummin", "rot90", "diff"), _along),
    # Of zeros: positions, logarithms of counts.
    **alike(("argsort", "logcumsumexp"), Operator(_along_axes)),
    "msort": Operator(_first_axes, zeros.first),
    **alike(("kthvalue", "mode"), Operator(_reduced_axes, zeros.first)),
}


# -- Fourier transforms ---------------------------------------------------------------------------


def _transform_axes(eq: Equations) -> list[Dims]:
    """A Fourier transform along some dimensions, which stay whole; each of the others passes."""
    x = eq.of(eq.node.args[0][1])
    dims, sizes = eq.ints("dim"), eq.ints("s")
    if not dims:  # the last ones, as many as there are sizes; without sizes all
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

ROWS |= {
    **alike(_FFT, Operator(_transform_axes, zeros.first, growth=Growth(scales="all"))),
    **alike(
        ("fft_fftshift", "fft_ifftshift"),
        Operator(_transform_axes, zeros.first, growth=Growth(scales="all", picks=True)),
    ),
}


# -- scaled by norms ------------------------------------------------------------------------------


def _renorm_axes(eq: Equations) -> list[Dims]:
    """Every position of one dimension is scaled by its own norm over the others."""
    x = eq.arg("self")
    for index, layout in enumerate(x):
        if index != eq.dim("dim", len(x)):
            eq.total(layout, [eq.node.arg("self")], "renorm")
    return [x]


ROWS |= {"renorm": Operator(_renorm_axes, zeros.first)}
