"""Operators that mix positions in ways that no cut follows.

What they compute depends on which and how many positions there are, or on their order across
dimensions, so that every axis that they touch stays whole.
"""

from archgraph.ops import rules
from archgraph.ops.operator import Operator, Rows, alike

_FFT = tuple(
    f"{inverse}{real}fft{rank}"
    for rank in ("", "2", "n")
    for inverse, real in (("", ""), ("i", ""), ("", "r"), ("i", "r"), ("", "h"), ("i", "h"))
)

OPAQUE = (
    *(f"fft_{kind}" for kind in _FFT),
    "stft",
    "istft",
    "view.dtype",
    "as_strided",
    "affine_grid_generator",
    "linalg_norm",
    "linalg_matrix_norm",
    "linalg_inv",
    "linalg_inv_ex",
    "linalg_det",
    "linalg_slogdet",
    "linalg_solve",
    "linalg_solve_ex",
    "linalg_cholesky",
    "linalg_cholesky_ex",
    "linalg_qr",
    "linalg_svd",
    "linalg_eigh",
    "linalg_pinv",
    "linalg_matrix_power",
    "inverse",
    "det",
    "logdet",
    "slogdet",
    "matrix_power",
    "pinverse",
    "frobenius_norm",
    "nuclear_norm",
    "quantile",
    "nanquantile",
    "histc",
    "bincount",
    "searchsorted",
    "multinomial",
    "take",
    "put",
    "masked_scatter",
    "diagonal_scatter",
    "diag",
    "diagflat",
    "trace",
    "block_diag",
    "meshgrid",
    "cartesian_prod",
    "combinations",
    "cov",
    "corrcoef",
    "pdist",
    "dist",
    "vander",
    "trapezoid",
    "cumulative_trapezoid",
    "gradient",
    "addr",
    "conv_tbc",
    "fractional_max_pool2d",
    "fractional_max_pool3d",
    "native_group_norm",
    "native_batch_norm",
    "ctc_loss",
    "cosine_embedding_loss",
    "hinge_embedding_loss",
    "margin_ranking_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "_native_multi_head_attention",
    "_transformer_encoder_layer_fwd",
)

ROWS: Rows = alike(OPAQUE, Operator(rules.opaque))
