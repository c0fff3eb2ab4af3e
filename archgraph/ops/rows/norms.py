"""Normalisation of activations and of weights."""

from dataclasses import replace

from archgraph.ops import layers, rules, starts, types, zeros
from archgraph.ops.operator import Growth, Init, Operator, Rows, alike

_OUT = {"weight": 0, "bias": 0}
_AFFINE: dict[str, Init] = {"weight": starts.ones, "bias": starts.zeros}
_STATISTICS: dict[str, Init] = {"running_mean": starts.zeros, "running_var": starts.ones}

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
    layer=layers.batch_norm,
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
        layer=layers.instance_norm,
    ),
    "group_norm": replace(_layer_norm, rule=rules.group_norm, layer=layers.group_norm),
    "layer_norm": replace(_layer_norm, type=types.layer_norm, layer=layers.layer_norm),
    "rms_norm": replace(_layer_norm, layer=layers.rms_norm),
    "_fused_rms_norm": replace(_layer_norm, rule=rules.layer_norm_statistics),
    "native_layer_norm": replace(
        _layer_norm, rule=rules.layer_norm_statistics, growth=Growth(finite=False)
    ),
    **alike(
        ("_weight_norm", "_weight_norm_interface"), Operator(rules.weight_norm, zeros.scaled_rows)
    ),
}
