"""Operators whose operands and results cannot be cut.

The results of these operators depend on the values or the number of indices along a dimension, or
on the order of positions across several dimensions.
"""

from __future__ import annotations

from archgraph.ops.equations import Dims, Equations
from archgraph.ops.operator import Operator

OPAQUE = """
    linalg_norm linalg_matrix_norm linalg_inv linalg_inv_ex linalg_det linalg_slogdet
    linalg_cholesky linalg_cholesky_ex linalg_qr linalg_svd linalg_eigh linalg_pinv
    linalg_matrix_power inverse det logdet slogdet matrix_power pinverse quantile nanquantile
    frobenius_norm nuclear_norm stft istft view.dtype as_strided histc bincount multinomial diag
    diagflat trace combinations cov corrcoef pdist vander gradient conv_tbc native_group_norm
    native_batch_norm ctc_loss _native_multi_head_attention _transformer_encoder_layer_fwd
""".split()


def opaque_axes(eq: Equations) -> list[Dims]:
    """Forbid cutting the axes of operands and results."""
    return eq.opaque("the operator is opaque")


ROWS = {" ".join(OPAQUE): Operator(opaque_axes)}
