"""Functions that layers with a weight and a bias share: sums, zeros, initial values."""

from __future__ import annotations

import math
from collections.abc import Mapping

from archgraph.graph.ir import Leaf
from archgraph.layout.layouts import Layout
from archgraph.ops.equations import Dims, Dirt, Equations
from archgraph.ops.starts import FixedShape, Init, Initialiser, Shapes
from archgraph.ops.zeros import open_dims, product_dirt

# A bias has one element per output; a weight's first dimension counts outputs.
OUT = {"weight": 0, "bias": 0}
OUT_IN = {"weight": ("out", "in", "kernel", "kernel", "kernel"), "bias": ("out",)}


def contract_weight(eq: Equations, layout: Layout, side: int, channel: int) -> None:
    """Record that products of input and weight are summed over the layout of the input's channels.

    A weight that is a parameter is zero at masked positions. A computed weight may be nonzero.
    """
    operands = [(eq.node.arg("input"), channel), (eq.node.arg("weight"), side)]
    eq.contract(layout, operands, eq.node.op.split(".")[1])


def masked_outputs(eq: Equations, dims: Dims, channel: int) -> list[Dirt]:
    """Return the layouts at whose masked positions a layer's result may be nonzero.

    Masked outputs are zero, because their weights and biases are zero.

    Args:
        eq: The equations, whose current operator is the layer.
        dims: Layouts of the layer's result.
        channel: Dimension of the result with the output channels; negative if there is none.
    """
    activation, weight = eq.node.arg("input"), eq.node.arg("weight")
    rest = [d for i, d in enumerate(dims) if i != channel]
    dirt: Dirt = ()
    if isinstance(weight, Leaf):
        across = eq.axes_in(rest)
        dirt = tuple(v for v in eq.axes_in(eq.dirt_of(activation)) if v in across)
    else:
        dirt = product_dirt(eq, [activation, weight], dims)
    if eq.has("bias"):  # one element per output, whatever the input
        dirt += open_dims(rest) + eq.dirt_of(eq.node.arg("bias"))
    return [dirt]


def _fan_in(shape: FixedShape, shapes: Shapes) -> Initialiser:
    """Return a uniform initialiser in ±1/√(fan in) of the weight."""
    weight = shapes.get("weight", ())
    fan_in = math.prod(weight[1:]) if len(weight) > 1 else 1
    return Initialiser("uniform", 1 / math.sqrt(max(fan_in, 1)))


# Like torch.nn.
FAN_IN: Mapping[str, Init] = {"weight": _fan_in, "bias": _fan_in}
