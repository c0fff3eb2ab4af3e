"""Operators that mix positions in ways that no cut follows.

What they compute depends on which and how many positions there are, or on their order across
dimensions, so that no axis that they touch can be cut.
"""

from __future__ import annotations

from archgraph.ops.equations import Dims, Equations
from archgraph.ops.operator import Operator

_LINALG = """
    norm matrix_norm inv inv_ex det slogdet solve solve_ex cholesky cholesky_ex qr svd eigh pinv
    matrix_power
""".split()
_OTHERS = """
    stft istft view.dtype as_strided affine_grid_generator inverse det logdet slogdet matrix_power
    pinverse frobenius_norm nuclear_norm quantile nanquantile histc bincount searchsorted
    multinomial take put diagonal_scatter diag diagflat trace block_diag meshgrid
    cartesian_prod combinations cov corrcoef pdist dist vander trapezoid cumulative_trapezoid
    gradient addr conv_tbc fractional_max_pool2d fractional_max_pool3d native_group_norm
    native_batch_norm ctc_loss cosine_embedding_loss hinge_embedding_loss margin_ranking_loss
    triplet_margin_loss multi_margin_loss multilabel_margin_loss _native_multi_head_attention
    _transformer_encoder_layer_fwd
""".split()
OPAQUE = (*(f"linalg_{k}" for k in _LINALG), *_OTHERS)


def opaque_axes(eq: Equations) -> list[Dims]:
    """Forbid cuts of operands and results."""
    return eq.opaque("the operator is opaque")


ROWS = {" ".join(OPAQUE): Operator(opaque_axes)}
