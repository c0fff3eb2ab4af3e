"""Propagation of zeros: whether a sum over an axis is exact when positions are masked.

Masking sets dropped positions of leaves to zero. A sum over the axis equals the cut network's sum
only if the summed *result* is zero there, too. Each function returns, for every result of the
current operator, the layouts at whose masked positions it may be nonzero (its dirt); layouts that
are not listed are certainly zero. An axis in two dimensions of one result is listed if either needs
it. Zero means arbitrarily small: functions that jump at zero (``sign``, ``!=``) do not keep it.
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
    """Return the dirt of an operand when it is broadcast to a result."""
    return eq.dirt_of(value) + _missing(eq, value, dims)


def _missing(eq: Equations, value: Value, dims: Dims) -> Dirt:
    """Return the dimensions along which a broadcast operand is constant, since it lacks them."""
    dims_of = eq.of(value)
    lead = len(dims) - len(dims_of)
    return open_dims(
        [d for i, d in enumerate(dims) if i < lead or (dims_of[i - lead].size == 1 and d.size != 1)]
    )


def never(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Return dirt everywhere: nothing is known to be zero."""
    return [open_dims(dims) for dims in results]


def always(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Declare that every removed position of the results is zero."""
    return [() for _ in results]


def first(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Return the first operand's dirt; results that are positions (integers) are all dirt."""
    operands = eq.operands()
    dirt = eq.dirt_of(operands[0]) if operands else ()
    floating = [torch_dtype(t.dtype).is_floating_point for t in eq.node.types]
    mixed = any(floating) and not all(floating)
    return [
        open_dims(dims) if mixed and not real else dirt
        for dims, real in zip(results, floating, strict=True)
    ]


def every(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Return all operands' dirt: zero where all operands are."""
    dirt = tuple(d for v in eq.operands() for d in eq.dirt_of(v))
    return [dirt] * len(results)


def some(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Return the dirt of sums of products: zero where one of the operands is."""
    return [product_dirt(eq, eq.operands(), dims) for dims in results]


def _occurrences(eq: Equations, dims: Dims) -> Counter[Var]:
    """Count the dimensions that contain each axis."""
    return Counter(v for d in dims for v in eq.axes_in([d]))


def product_dirt(eq: Equations, operands: Sequence[Value], dims: Dims) -> Dirt:
    """Return the dirt of a result that sums products: axes at which no operand is zero."""
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
