"""Reductions, runs along a dimension, pooling and interpolation, losses."""

from dataclasses import replace

from torch import nn

from archgraph.graph.ir import Node
from archgraph.ops import layers, rules, types, zeros
from archgraph.ops.operator import Growth, Operator, Repeats, Rows, alike

_KNOWN = Growth()  # nothing but that it does not make 0/0


def _spread(node: Node) -> Repeats:
    """Variances by N - 1 know how many positions there are."""
    by_count = node.arg("correction", 1) == 0 or node.arg("unbiased", True) is False
    return "uniform" if by_count else "never"


_reduction = Operator(rules.reduction, zeros.first)
_along = Operator(rules.along, zeros.first)
_pool = Operator(rules.pooling, zeros.first)
_UPSAMPLED = {
    "nearest": ("1d", "2d", "3d"),
    "linear": ("1d",),
    "bilinear": ("2d",),
    "bicubic": ("2d",),
    "trilinear": ("3d",),
}

_FFT = tuple(
    f"fft_{inverse}{real}fft{rank}"
    for rank in ("", "2", "n")
    for inverse in ("", "i")
    for real in ("", "r", "h")
)

ROWS: Rows = {
    # -- reductions
    "sum": Operator(rules.total, zeros.first, growth=_KNOWN),
    **alike(("nansum", "linalg_vector_norm", "norm"), Operator(rules.total, zeros.first)),
    "any": Operator(rules.counted, zeros.first, growth=Growth(repeats="any")),
    "count_nonzero": Operator(rules.counted, zeros.first),
    "logsumexp": Operator(rules.reduction),
    "all": Operator(rules.reduction, growth=Growth(repeats="any")),
    **alike(("argmax", "argmin"), Operator(rules.reduction)),
    "mean": replace(_reduction, growth=Growth(repeats="uniform"), type=types.mean),
    **alike(("amax", "amin", "max", "min"), replace(_reduction, growth=Growth(repeats="any"))),
    **alike(
        ("var", "std", "var_mean", "std_mean"), replace(_reduction, growth=Growth(repeats=_spread))
    ),
    **alike(("nanmean", "aminmax", "prod", "median", "nanmedian"), _reduction),
    # -- along one dimension
    **alike(("cumsum", "sort", "topk"), replace(_along, growth=_KNOWN)),
    **alike(
        ("roll", "flip"),
        replace(_along, growth=Growth(scales="all", moves=True, repeats="any", picks=True)),
    ),
    **alike(("cumprod", "cummax", "cummin", "rot90", "diff"), _along),
    **alike(("argsort", "logcumsumexp"), Operator(rules.along)),
    "renorm": Operator(rules.renorm, zeros.first),
    **alike(_FFT, Operator(rules.transform, zeros.first, growth=Growth(scales="all"))),
    **alike(
        ("fft_fftshift", "fft_ifftshift"),
        Operator(rules.transform, zeros.first, growth=Growth(scales="all", picks=True)),
    ),
    "msort": Operator(rules.along_first, zeros.first),
    **alike(("kthvalue", "mode"), Operator(rules.along_reduced, zeros.first)),
    # -- pooling and interpolation
    **alike(tuple(rules.POOLED), _pool),
    **{
        f"{kind}_pool{rank}d": replace(
            _pool,
            growth=Growth(picks=kind == "max"),
            type=rule if rank == 2 else None,
            layer=layers.plain(getattr(nn, f"{name}Pool{rank}d")),
        )
        for rank in (1, 2, 3)
        for kind, name, rule in (
            ("max", "Max", types.pooling(rank)),
            ("avg", "Avg", types.pooling(rank)),
            ("adaptive_avg", "AdaptiveAvg", types.adaptive_pooling),
        )
    },
    **{
        f"upsample_{mode}{rank}": replace(_pool, layer=layers.upsampling(mode))
        for mode, ranks in _UPSAMPLED.items()
        for rank in ranks
    },
    **alike(("max_unpool2d", "max_unpool3d"), Operator(rules.unpooling, zeros.first)),
    **alike(
        ("grid_sampler", "grid_sampler_2d", "grid_sampler_3d"),
        Operator(rules.grid_sample, zeros.first),
    ),
    # -- losses that a model computes itself
    **alike(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"), Operator(rules.loss)),
    **alike(("binary_cross_entropy", "binary_cross_entropy_with_logits"), Operator(rules.loss)),
    **alike(("soft_margin_loss", "poisson_nll_loss", "kl_div"), Operator(rules.loss)),
    **alike(
        ("cross_entropy_loss", "nll_loss", "nll_loss2d", "nll_loss_nd", "nll_loss_forward"),
        Operator(rules.class_loss),
    ),
}
