"""Normalisation of activations and weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from torch import nn

from archgraph.graph.ir import ArchGraph, Leaf, Node, TensorType
from archgraph.graph.polynomial import Polynomial
from archgraph.ops.backward import as_large_as_result, saves
from archgraph.ops.equations import Dims, Dirt, Equations
from archgraph.ops.layers import LayerRule, TorchLayer, arguments_of, weight_and_bias
from archgraph.ops.operands import Amount, Counted, numel, shape_of
from archgraph.ops.operator import Call, Growth, Operator, Spelling, rows
from archgraph.ops.schema import op_schema
from archgraph.ops.starts import Identity, Init, Initialiser
from archgraph.ops.types import Args, certain, listed, number, optional, plain_value, positive, real
from archgraph.ops.weighted import OUT
from archgraph.ops.zeros import open_dims

WITHOUT_MOMENTUM = math.nan  # momentum, in a capture, of a norm that averages over all batches
_AFFINE: dict[str, Init] = {"weight": Initialiser("ones"), "bias": Initialiser("zeros")}


def _normalised_zero(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Return where a norm ``(x − μ)/σ · w + b`` may be nonzero: w and b are zero if masked."""
    dims, x = results[0], eq.node.args[0][1]
    channels, mean = _normalised(eq, len(dims))
    affine = {n: eq.node.arg(n) for n in ("weight", "bias") if eq.has(n)}
    dirt: Dirt = tuple(d for v in affine.values() for d in eq.dirt_of(v))
    if "weight" not in affine:  # zero only where x is zero and no mean is subtracted
        dirt += eq.dirt_of(x) + eq.dirt_of(eq.node.arg("running_mean"))
        dirt += open_dims([dims[i] for i in sorted(mean)])
    rest = [d for i, d in enumerate(dims) if i not in channels]
    if "bias" in affine:  # constant along the dimensions that it lacks
        dirt += open_dims(rest)
    elif open_dims(rest):  # zero where x is, unless a mean over masked positions is subtracted
        over = eq.axes_in([dims[i] for i in sorted(mean.difference(channels))])
        across = eq.axes_in(rest)
        dirt += tuple(over) + tuple(v for v in eq.axes_in(eq.dirt_of(x)) if v in across)
    return [dirt, *(open_dims(d) for d in results[1:])]


def _normalised(eq: Equations, rank: int) -> tuple[range, set[int]]:
    """Return the dimensions of the affine parameters, and the dimensions of the mean."""
    names = op_schema(eq.node.op).by_name
    if "normalized_shape" in names:
        tail = range(rank - len(eq.ints("normalized_shape")), rank)
        return tail, set(tail)
    if "num_groups" in names:
        return range(1, 2), set(range(1, rank))
    return range(1, 2), set(range(rank)) - {1}


# -- with the statistics of a batch ---------------------------------------------------------------
def _batch_norm_axes(eq: Equations) -> list[Dims]:
    """Unify the layouts of weights and statistics with x[1]."""
    x = eq.arg("input")
    channel = x[1] if len(x) > 1 else x[0]
    eq.vectors(channel, "weight", "bias", "running_mean", "running_var")
    for layout in x[2:]:
        eq.span(layout, "batch norm")
    statistics = (t.shape for t in eq.node.types[1:])
    return [x, *([channel] if s == (channel.size,) else eq.fixed(s) for s in statistics)]


def _batch_norm_type(args: Args) -> TensorType:
    """Return the input's type; weights and statistics have one element per channel."""
    (x,) = real(args.get("input"))
    certain(len(x.shape) >= 2)
    positive(x.shape[1:])
    names = ("weight", "bias", "running_mean", "running_var")
    optional(args, names, x.shape[1:2], x.dtype)
    statistics = [isinstance(args.get(name), TensorType) for name in names[2:]]
    training = number(args, "training", None, bool)
    number(args, "eps", None, float)
    if plain_value(args.get("momentum")) is not None:
        number(args, "momentum", None, float)
    certain(all(statistics) or (training and not any(statistics)))
    # A single value has no statistics.
    certain(any(size != 1 for size in (x.shape[0], *x.shape[2:])))
    return x


def _batch_norm_spelling(call: Spelling) -> Call:
    """Replace the momentum NaN, which means that there is no momentum, by None."""
    momentum = call.args.get("momentum")
    without = isinstance(momentum, float) and math.isnan(momentum)
    return call.op, {**call.args, "momentum": None} if without else call.args


def _batch_norm_identity(_graph: ArchGraph, node: Node) -> Identity:
    """Return weights for the identity: √(1 + ε), with running mean 0 and variance 1."""
    epsilon = node.arg("eps")
    if not all(isinstance(node.arg(n), Leaf) for n in ("weight", "running_mean", "running_var")):
        return "has no weights or no running statistics"
    assert isinstance(epsilon, float)
    return {
        "weight": ("constant", {"val": math.sqrt(1 + epsilon)}),
        "bias": ("zeros", {}),
        "running_mean": ("zeros", {}),
        "running_var": ("ones", {}),
    }


def _statistics_layer(
    kinds: Mapping[int, type[nn.Module]], flag: str, *, counts: bool
) -> LayerRule:
    """Return the rule of a norm layer that may use running statistics in evaluation.

    Args:
        kinds: The module's class by the rank of the input.
        flag: Argument of the operator that selects the statistics of its input.
        counts: Whether the layer counts batches.
    """

    def rule(graph: ArchGraph, node: Node) -> TorchLayer | None:
        names = ("weight", "bias", "running_mean", "running_var")
        leaves = {name: node.arg(name) for name in names}
        affine, tracks = leaves["weight"] is not None, leaves["running_mean"] is not None
        image = node.arg("input")
        shape = shape_of(graph, image)
        kind = kinds.get(len(shape))
        if kind is None:
            return None
        options = {"num_features": shape[1], "affine": affine, "track_running_stats": tracks}
        options |= arguments_of(node, "eps", "momentum")
        if not tracks:  # it uses its input's statistics in both modes
            return TorchLayer(kind, options, leaves, (image,))
        counter = "num_batches_tracked"
        return TorchLayer(kind, options, leaves, (image,), counter, counts, node.arg(flag))

    return rule


def _batch_statistics(of: Counted) -> list[tuple[Amount, str]]:
    """Save the mean and deviation of each channel."""
    return [(2 * of.result[1], "")] if of.node.arg("training") is not False else []


def _instance_statistics(of: Counted) -> list[tuple[Amount, str]]:
    """Save the mean and deviation of each channel of each example, and the repeated weight."""
    count = 3 if of.node.arg("weight") is not None else 2
    return [(count * numel(of.result[:2]), "")]


# Layers by the rank of their input.
_BATCH_NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
_INSTANCE_NORMS = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}
_STATISTICS: dict[str, Init] = {
    "running_mean": Initialiser("zeros"),
    "running_var": Initialiser("ones"),
}
_batch_norm = Operator(
    _batch_norm_axes,
    _normalised_zero,
    init=_AFFINE | _STATISTICS,
    training_flag="training",
    statistics=tuple(_STATISTICS),
    variances=("running_var",),
    normalises=True,
    rates=("momentum", "eps"),
    spelling=_batch_norm_spelling,
    # Every channel has its own statistics, so copies of a channel do not change it.
    growth=Growth(affine=OUT, repeats="any", identity=_batch_norm_identity),
    type=_batch_norm_type,
    layer=_statistics_layer(_BATCH_NORMS, "training", counts=True),
    backward=saves("input", "weight", extra=_batch_statistics),
)

_OVER_BATCHES = {
    "batch_norm": _batch_norm,
    "_native_batch_norm_legit": replace(
        _batch_norm,
        growth=Growth(finite=False),
        spelling=None,
        type=None,
        layer=None,
        backward=saves("input", "weight", results=(1, 2)),
    ),
    # It usually normalises each example also in evaluation: no weights make it the identity.
    "instance_norm": replace(
        _batch_norm,
        training_flag="use_input_stats",
        spelling=None,
        growth=Growth(affine=OUT, repeats="any"),
        type=None,
        layer=_statistics_layer(_INSTANCE_NORMS, "use_input_stats", counts=False),
        backward=saves("input", extra=_instance_statistics),
    ),
}


# -- with the statistics of an example ------------------------------------------------------------
def _layer_norm_axes(eq: Equations) -> list[Dims]:
    """Unify the weights with the normalised dimensions, which the norm spans."""
    x = eq.arg("input")
    count = len(eq.ints("normalized_shape"))
    tail = x[len(x) - count :]
    for name in ("weight", "bias"):
        if eq.has(name):
            eq.agree(eq.arg(name), tail)
    for layout in tail:
        eq.span(layout, "layer norm")
    eq.states("normalized_shape", tuple(tail))
    return [x] * len(eq.node.types)


def _with_statistics_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of a layer norm that also returns its means and deviations."""
    (x, *_) = _layer_norm_axes(eq)
    return [eq.conform(x, i) for i in range(len(eq.node.types))]


def _layer_norm_type(args: Args) -> TensorType:
    """Return the input's type; weights have the shape of its last dimensions."""
    (x,) = real(args.get("input"))
    shape = tuple(map(plain_value, listed(args, "normalized_shape")))
    certain(shape, len(shape) <= len(x.shape), x.shape[len(x.shape) - len(shape) :] == shape)
    positive(shape)
    optional(args, ("weight", "bias"), shape, x.dtype)
    return x


def _last_dimensions_layer(kind: type[nn.Module]) -> LayerRule:
    """Return the rule of a norm over the last dimensions: ``nn.LayerNorm``, ``nn.RMSNorm``."""

    def rule(graph: ArchGraph, node: Node) -> TorchLayer | None:
        leaves = weight_and_bias(node)
        affine = leaves["weight"] is not None
        options = arguments_of(node, "normalized_shape", "eps") | {"elementwise_affine": affine}
        if affine and "bias" in leaves:
            options["bias"] = leaves["bias"] is not None
        return TorchLayer(kind, options, leaves, (node.arg("input"),))

    return rule


def _group_norm_axes(eq: Equations) -> list[Dims]:
    """x[1] = Prod(groups, c). The groups can be cut; the norm spans the channels of a group."""
    x = eq.arg("input")
    inside = x[1]
    if eq.value("num_groups") != 1:
        _, inside = eq.grouped(inside, eq.value("num_groups"), "num_groups")
    else:
        eq.states("num_groups", 1)
    eq.span(inside, "group norm")
    eq.vectors(x[1], "weight", "bias")
    return [x]


def _group_norm_layer(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """Return ``nn.GroupNorm``."""
    leaves, image = weight_and_bias(node), node.arg("input")
    shape = shape_of(graph, image)
    if len(shape) < 2:
        return None
    options = {"num_channels": shape[1], "affine": leaves["weight"] is not None}
    options |= arguments_of(node, "num_groups", "eps")
    return TorchLayer(nn.GroupNorm, options, leaves, (image,))


def _each_statistics(of: Counted) -> list[tuple[Amount, str]]:
    """Save the mean and deviation of each normalised group of values."""
    return [(2 * count, kind) for count, kind in _root_mean_square(of)]


def _root_mean_square(of: Counted) -> list[tuple[Amount, str]]:
    shape = of.node.arg("normalized_shape")
    together = len(shape) if isinstance(shape, tuple) else 1
    return [(numel(of.result[: len(of.result) - together]), "")]


def _group_statistics(of: Counted) -> list[tuple[Amount, str]]:
    groups = of.stated.get("num_groups", of.node.arg("num_groups"))
    assert isinstance(groups, (int, Polynomial))
    return [(2 * groups * of.result[0], "")]


_layer_norm = Operator(
    _layer_norm_axes,
    _normalised_zero,
    init=_AFFINE,
    normalises=True,
    rates=("eps",),
    # Mean and variance over channels do not change if each channel is repeated equally often.
    growth=Growth(affine=OUT, repeats="uniform"),
)

_OVER_EXAMPLES = {
    "layer_norm": replace(
        _layer_norm,
        type=_layer_norm_type,
        layer=_last_dimensions_layer(nn.LayerNorm),
        backward=saves("input", "weight", extra=_each_statistics),
    ),
    "rms_norm": replace(
        _layer_norm,
        layer=_last_dimensions_layer(nn.RMSNorm),
        backward=saves(
            "input",
            "weight",
            # Also the normalised values, before the weight.
            extra=lambda of: [*_root_mean_square(of), (numel(of.result), "")],
        ),
    ),
    "_fused_rms_norm": replace(
        _layer_norm,
        rule=_with_statistics_axes,
        backward=saves("input", "weight", results=(1,), extra=as_large_as_result()),
    ),
    "native_layer_norm": replace(
        _layer_norm,
        rule=_with_statistics_axes,
        growth=Growth(finite=False),
        backward=saves("input", "weight", results=(1, 2)),
    ),
    "group_norm": replace(
        _layer_norm,
        rule=_group_norm_axes,
        layer=_group_norm_layer,
        backward=saves("input", "weight", extra=_group_statistics),
    ),
}


# -- of weights -----------------------------------------------------------------------------------
def _weight_norm_axes(eq: Equations) -> list[Dims]:
    """Relate W = g · v/‖v‖ along one dimension; masked positions add 0 to ‖v‖."""
    v, g = eq.arg("v"), eq.arg("g")
    dim = eq.dim("dim", len(v))
    eq.unify(v[dim], g[dim])
    for d, layout in enumerate(v):
        if d != dim:
            eq.total(layout, [eq.node.arg("v")], "weight norm")
    return [v] + [g] * (len(eq.node.types) - 1)


def _weight_norm_zero(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Return where ``g · v/‖v‖`` may be nonzero: zero where g or v is, except for rows of zeros."""
    return [eq.dirt_of(eq.node.arg("v")), *(open_dims(d) for d in results[1:])]


_OF_WEIGHTS = {
    "_weight_norm _weight_norm_interface": Operator(_weight_norm_axes, _weight_norm_zero),
}

ROWS = rows(_OVER_BATCHES, _OVER_EXAMPLES, _OF_WEIGHTS)
