"""Operators that create tensors of constants, counters or random numbers."""

from __future__ import annotations

import math
from dataclasses import replace

from archgraph.graph.polynomial import Polynomial, Size, divide
from archgraph.layout.layouts import Fixed, Layout, product
from archgraph.ops import zeros
from archgraph.ops.backward import STOPS
from archgraph.ops.equations import Dims, Equations
from archgraph.ops.operator import Operator
from archgraph.ops.pointwise import same_layout


# -- with an explicit shape -----------------------------------------------------------------------
def _factory_axes(eq: Equations) -> list[Dims]:
    """Create the axes of a new tensor with an explicit shape. These axes may become channels."""
    for name in ("size", "shape"):
        if eq.node.arg(name) is not None:
            dims: Dims = [_counted(eq, s) for s in eq.node.shape]
            eq.states(name, tuple(dims))
            return [dims]
    return [eq.fixed(eq.node.shape)]


def _counted(eq: Equations, size: Size) -> Layout:
    """Return a new axis, even if it is part of a dimension of open size."""
    if not isinstance(size, Polynomial):
        return eq.new(size)
    count = math.gcd(*size.terms.values())
    examples = divide(size, count)
    assert examples is not None
    return product((Fixed(examples), eq.new(count)))


_factory = Operator(_factory_axes, backward=STOPS)
_zeros = replace(_factory, zero=zeros.always)  # also `empty`: undefined values may be zero

# -- with an operand's shape ----------------------------------------------------------------------

_like = Operator(same_layout, pointwise=True, backward=STOPS)
_zeros_like = replace(_like, zero=zeros.always, fill=0)

ROWS = {
    "zeros empty": _zeros,
    "new_zeros new_empty": replace(_zeros, fill=0),
    "new_ones": replace(_factory, fill=1),
    "new_full": replace(_factory, fill="argument"),
    "ones full rand randn randint randperm": _factory,
    "arange range eye linspace logspace scalar_tensor": _factory,
    "hann_window hamming_window blackman_window bartlett_window kaiser_window": _factory,
    "zeros_like empty_like": _zeros_like,
    "ones_like": replace(_like, fill=1),
    "full_like": replace(_like, fill="argument"),
    "rand_like randn_like randint_like": _like,
    "fill": _like,
    "zero": Operator(functional="aten.zeros_like"),
}
