"""Which operators keep zeros: what a sum over an axis may rely on when positions are masked.

Masking zeroes dropped positions of leaves. Whether a *result* is zero there too decides whether a
sum over the axis is the cut network's sum. Each function gives, for every result of the current
operator, the layouts at whose masked positions it need not be zero (its dirt); what it does not
list is certainly zero. An axis in two dimensions of one result is listed if either needs it.
Zero means arbitrarily small: what jumps at zero (``sign``, ``!=``) does not keep it.
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
    """Return those layouts that have axes."""
    return tuple(d for d in dims if not isinstance(d, Fixed))


def stretched(eq: Equations, value: Value, dims: Dims) -> Dirt:
    """Return the dirt of an operand as a part of a result that it broadcasts to."""
    return eq.dirt_of(value) + _missing(eq, value, dims)


def _missing(eq: Equations, value: Value, dims: Dims) -> Dirt:
    """Dimensions that a broadcast operand does not have: it is constant along them."""
    dims_of = eq.of(value)
    lead = len(dims) - len(dims_of)
    return open_dims(
        [d for i, d in enumerate(dims) if i < lead or (dims_of[i - lead].size == 1 and d.size != 1)]
    )


def never(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Nothing is known to be zero."""
    return [open_dims(dims) for dims in results]


def always(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Zeros everywhere."""
    return [() for _ in results]


def first(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Zero where the first operand is; positions in its result (integers) are not."""
    operands = eq.operands()
    dirt = eq.dirt_of(operands[0]) if operands else ()
    floating = [torch_dtype(t.dtype).is_floating_point for t in eq.node.types]
    mixed = any(floating) and not all(floating)
    return [
        open_dims(dims) if mixed and not real else dirt
        for dims, real in zip(results, floating, strict=True)
    ]


def every(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Zero where all operands are."""
    dirt = tuple(d for v in eq.operands() for d in eq.dirt_of(v))
    return [dirt] * len(results)


def some(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Zero where one of the operands is: a sum of products."""
    return [product_dirt(eq, eq.operands(), dims) for dims in results]


def _occurrences(eq: Equations, dims: Dims) -> Counter[Var]:
    """Count the dimensions that each axis is in."""
    return Counter(v for d in dims for v in eq.axes_in([d]))


def product_dirt(eq: Equations, operands: Sequence[Value], dims: Dims) -> Dirt:
    """Return the dirt of a result whose numbers are products, summed: no operand is zero there."""
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
