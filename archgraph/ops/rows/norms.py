"""Normalisation of activations and of weights."""

from dataclasses import replace

from torch import nn

from archgraph.ops import layers, rules, starts, types, zeros
from archgraph.ops.operator import Growth, Init, Operator, Rows, alike

_OUT = {"weight": 0, "bias": 0}
_AFFINE: dict[str, Init] = {"weight": starts.ones, "bias": starts.zeros}
_STATISTICS: dict[str, Init] = {"running_mean": starts.zeros, "running_var": starts.ones}
# Layers by the rank of their input.
_BATCH_NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
_INSTANCE_NORMS = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}

_batch_norm = Operator(
    rules.batch_norm,
    zeros.normalised,
    init=_AFFINE | _STATISTICS,
    training_flag="training",
    statistics=tuple(_STATISTICS),
    variances=("running_var",),
    normalises=True,
    rates=("momentum", "eps"),
    growth=Growth(affine=_OUT, repeats="any", identity=starts.identity_batch_norm),
    type=types.batch_norm,
    layer=layers.statistics(_BATCH_NORMS, "training", counts=True),
)
_layer_norm = Operator(
    rules.layer_norm,
    zeros.normalised,
    init=_AFFINE,
    normalises=True,
    rates=("eps",),
    growth=Growth(affine=_OUT, repeats="uniform"),
)

ROWS: Rows = {
    "batch_norm": _batch_norm,
    "_native_batch_norm_legit": replace(
        _batch_norm, growth=Growth(finite=False), type=None, layer=None
    ),
    "instance_norm": replace(
        _batch_norm,
        training_flag="use_input_stats",
        growth=Growth(affine=_OUT, repeats="any"),
        type=None,
        layer=layers.statistics(_INSTANCE_NORMS, "use_input_stats", counts=False),
    ),
    "group_norm": replace(_layer_norm, rule=rules.group_norm, layer=layers.group_norm),
    "layer_norm": replace(
        _layer_norm, type=types.layer_norm, layer=layers.normalised(nn.LayerNorm)
    ),
    "rms_norm": replace(_layer_norm, layer=layers.normalised(nn.RMSNorm)),
    "_fused_rms_norm": replace(_layer_norm, rule=rules.layer_norm_statistics),
    "native_layer_norm": replace(
        _layer_norm, rule=rules.layer_norm_statistics, growth=Growth(finite=False)
    ),
    **alike(
        ("_weight_norm", "_weight_norm_interface"), Operator(rules.weight_norm, zeros.scaled_rows)
    ),
}
