"""Compute the axes at whose masked positions the results of operators are zero.

Masking sets the removed positions of all parameters to zero. A sum over an axis equals the sum in
the cut network only if the summed values are also zero at these positions. Each function returns
the *dirt* of every result of the current operator: the layouts at whose masked positions the result
may be nonzero. At the masked positions of all other layouts, the result is certainly zero. An axis
that occurs in two dimensions of a result is listed if the result may be nonzero at the masked
positions of one of the two. Zero means arbitrarily small, so functions that jump at zero (``sign``,
``!=``) do not preserve zeros.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from archgraph.graph.ir import Value
from archgraph.layout.layouts import Fixed, Layout, Var
from archgraph.ops.equations import Dims, Dirt, Equations
from archgraph.ops.schema import torch_dtype

Zeros = Callable[[Equations, list[Dims]], list[Dirt]]


def open_dims(dims: Sequence[Layout]) -> Dirt:
    """Return the layouts that have axes."""
    return tuple(d for d in dims if not isinstance(d, Fixed))


def stretched(eq: Equations, value: Value, dims: Dims) -> Dirt:
    """Return the layouts at whose masked positions a broadcast operand may be nonzero."""
    return eq.dirt_of(value) + _missing(eq, value, dims)


def _missing(eq: Equations, value: Value, dims: Dims) -> Dirt:
    """Return the dimensions of a result that a broadcast operand does not have."""
    dims_of = eq.of(value)
    lead = len(dims) - len(dims_of)
    return open_dims(
        [d for i, d in enumerate(dims) if i < lead or (dims_of[i - lead].size == 1 and d.size != 1)]
    )


def never(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Return all layouts of the results: they may be nonzero at all masked positions."""
    return [open_dims(dims) for dims in results]


def always(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Return no layouts: the results are zero at all masked positions."""
    return [() for _ in results]


def first(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Return the layouts at whose masked positions the first operand may be nonzero.

    If an operator also returns integers (indices), these may be nonzero at all masked positions.
    """
    operands = eq.operands()
    dirt = eq.dirt_of(operands[0]) if operands else ()
    floating = [torch_dtype(t.dtype).is_floating_point for t in eq.node.types]
    mixed = any(floating) and not all(floating)
    return [
        open_dims(dims) if mixed and not real else dirt
        for dims, real in zip(results, floating, strict=True)
    ]


def every(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Return the layouts at whose masked positions any of the operands may be nonzero."""
    dirt = tuple(d for v in eq.operands() for d in eq.dirt_of(v))
    return [dirt] * len(results)


def some(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Return the layouts at whose masked positions sums of products of operands may be nonzero.

    The sums are zero where one of the operands is zero.
    """
    return [product_dirt(eq, eq.operands(), dims) for dims in results]


def _occurrences(eq: Equations, dims: Dims) -> Counter[Var]:
    """Count the dimensions that contain each axis."""
    return Counter(v for d in dims for v in eq.axes_in([d]))


def product_dirt(eq: Equations, operands: Sequence[Value], dims: Dims) -> Dirt:
    """Return the axes at whose masked positions a sum of products may be nonzero.

    These are the axes for which none of the operands is zero.
    """
    count = _occurrences(eq, dims)
    if not count:
        return ()
    votes: Counter[Var] = Counter()
    twice = {v for v, n in count.items() if n > 1}
    for value in operands:
        axes = _occurrences(eq, eq.of(value))
        twice |= {v for v, n in axes.items() if n > 1}
        dirt = eq.axes_in(eq.dirt_of(value))
        votes.update(v for v in count if v not in axes or v in dirt)
    # an axis that occurs twice (outer product, square matrix) needs all operands
    return tuple(v for v in count if votes[v] == len(operands) or (v in twice and votes[v]))
