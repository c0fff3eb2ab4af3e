"""The rows of the operator table, by family of operators.

Keys are operator names without namespace; without overload where all overloads are alike. ATen's
pointwise operators need no row: PyTorch's tag gives them the elementwise rule.
"""

from __future__ import annotations

from archgraph.ops.operator import Rows
from archgraph.ops.rows import (
    created,
    norms,
    opaque,
    pointwise,
    products,
    reductions,
    shapes,
    spellings,
    weights,
)

FAMILIES = (weights, products, norms, pointwise, created, reductions, shapes, opaque, spellings)
ROWS: Rows = {key: operator for family in FAMILIES for key, operator in family.ROWS.items()}
assert len(ROWS) == sum(len(family.ROWS) for family in FAMILIES), "an operator has two rows"
