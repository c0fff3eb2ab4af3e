"""Operators with random numbers for each element: dropout and noise."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from archgraph.graph.ir import ArchGraph, Node, TensorType
from archgraph.ops.backward import NOTHING, Backward, as_large_as_result, saves
from archgraph.ops.layers import LayerRule, TorchLayer
from archgraph.ops.operands import Amount, Counted, numel, shape_of
from archgraph.ops.operator import UNKNOWN_GROWTH, Operator
from archgraph.ops.pointwise import COPY, SAME, elementwise
from archgraph.ops.types import Args, certain, number, real


# -- dropout --------------------------------------------------------------------------------------
def _dropout_type(args: Args) -> TensorType:
    """Return the input's type."""
    certain(0 <= number(args, "p", None, float) <= 1)
    return real(args.get("input"))[0]


_FEATURES = {3: nn.Dropout1d, 4: nn.Dropout2d, 5: nn.Dropout3d}


def _dropout_layer(kind: type[nn.Module] | None) -> LayerRule:
    """Return the rule of a dropout layer; by default, the rank determines the class."""

    def rule(graph: ArchGraph, node: Node) -> TorchLayer | None:
        image = node.arg("input")
        layer = kind or _FEATURES.get(len(shape_of(graph, image)))
        if layer is None:
            return None
        return TorchLayer(layer, {"p": node.arg("p")}, inputs=(image,), flag=node.arg("train"))

    return rule


def _dropout_backward(node: Node) -> Backward:
    """Save the factors, with the input's dtype (on a GPU: booleans, one byte each)."""
    if node.arg("train") is False or node.arg("p") == 0:
        return Backward(same=True)
    return saves(extra=as_large_as_result())


def _factor_per_channel(of: Counted) -> list[tuple[Amount, str]]:
    return [(numel(of.result[:2]), "")]


# In evaluation it returns its input, and Net2Net's laws are about evaluation.
_rate = replace(COPY, training_flag="train", rates=("p",), backward=_dropout_backward)
_dropout = replace(_rate, growth=SAME)
_features = replace(_dropout, backward=saves(extra=_factor_per_channel))

# -- noise ----------------------------------------------------------------------------------------

# Noise replaces the values of its operand, including zeros.
_noise = Operator(elementwise, pointwise=True, backward=NOTHING)

ROWS = {
    "dropout": replace(_dropout, type=_dropout_type, layer=_dropout_layer(nn.Dropout)),
    "feature_dropout": replace(_features, layer=_dropout_layer(None)),
    "alpha_dropout": replace(_dropout, layer=_dropout_layer(nn.AlphaDropout)),
    "feature_alpha_dropout": replace(
        _features, growth=UNKNOWN_GROWTH, layer=_dropout_layer(nn.FeatureAlphaDropout)
    ),
    "native_dropout": replace(_rate, backward=saves(results=(1,))),
    # A probability, a rate or an input of zero gives zeros.
    "bernoulli poisson": replace(COPY, backward=NOTHING),
    "rrelu": replace(COPY, backward=saves("self", extra=as_large_as_result())),
    "bernoulli.float": replace(COPY, functional="aten.bernoulli.p", backward=NOTHING),
    "normal": replace(_noise, functional="aten.normal_functional"),
    "bernoulli.p bernoulli.Tensor normal_functional uniform": _noise,
    "exponential geometric log_normal cauchy": _noise,
}
