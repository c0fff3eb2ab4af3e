"""How leaves start: as in torch.nn by default, and so that an operator returns its input."""

from __future__ import annotations

import math
from collections.abc import Mapping

from archgraph.graph.ir import ArchGraph, Leaf, Node, Value, size_at
from archgraph.ops.costs import type_of
from archgraph.ops.operator import Init, Initialiser, Start

FixedShape = tuple[int, ...]
Shapes = Mapping[str, FixedShape]


# -- the defaults of torch.nn -------------------------------------------------------------------


def uniform(shape: FixedShape, shapes: Shapes) -> Initialiser:
    """Uniform in ±1/√(fan in) of the weight."""
    weight = shapes.get("weight", ())
    fan_in = math.prod(weight[1:]) if len(weight) > 1 else 1
    return Initialiser("uniform", 1 / math.sqrt(max(fan_in, 1)))


def bilinear(shape: FixedShape, shapes: Shapes) -> Initialiser:
    """Uniform in ±1/√(width of the first operand)."""
    weight = shapes.get("weight", (1, 1, 1))
    return Initialiser("uniform", 1 / math.sqrt(max(weight[1], 1)))


def _always(start: Initialiser) -> Init:
    return lambda shape, shapes: start


ones = _always(Initialiser("ones"))
zeros = _always(Initialiser("zeros"))
normal = _always(Initialiser("normal"))
small = _always(Initialiser("normal", 0.02))
quarter = _always(Initialiser("ones", 0.25))


# -- identities -----------------------------------------------------------------------------------


def identity_convolution(graph: ArchGraph, node: Node) -> Mapping[str, Start] | str:
    """A kernel with ones at its centre."""
    weight = type_of(graph, node.arg("weight"))
    if weight is None or not isinstance(node.arg("weight"), Leaf):
        return "its kernel is computed"
    out, inside, *kernel = (size_at(s, 1) for s in weight.shape)
    groups = node.arg("groups", 1)
    stride = _each(node.arg("stride", 1), len(kernel))
    dilation = _each(node.arg("dilation", 1), len(kernel))
    padding = node.arg("padding", 0)
    centred = tuple(d * (k // 2) for d, k in zip(dilation, kernel, strict=True))
    if not isinstance(groups, int) or out != inside * groups:
        return f"has {out} channels from {inside}"
    if any(s != 1 for s in stride):
        return "has a stride"
    if any(k % 2 == 0 for k in kernel):
        return "has an even kernel"
    if padding != "same" and _each(padding, len(kernel)) != centred:
        return "is not padded to its input's size"
    return {"weight": ("dirac", {"groups": groups}), "bias": ("zeros", {})}


def _each(value: Value, count: int) -> tuple[int, ...]:
    """An argument that is one number for all dimensions, or one for each."""
    numbers = tuple(v for v in value if isinstance(v, int)) if isinstance(value, tuple) else ()
    if isinstance(value, int):
        return (value,) * count
    return numbers * count if len(numbers) == 1 else numbers


def identity_linear(graph: ArchGraph, node: Node) -> Mapping[str, Start] | str:
    """The unit matrix."""
    weight = type_of(graph, node.arg("weight"))
    if weight is None or not isinstance(node.arg("weight"), Leaf):
        return "its weight is computed"
    out, inside = (size_at(s, 1) for s in weight.shape)
    if out != inside:
        return f"has {out} channels from {inside}"
    return {"weight": ("eye", {}), "bias": ("zeros", {})}


def identity_batch_norm(_graph: ArchGraph, node: Node) -> Mapping[str, Start] | str:
    """A weight of √(1 + ε) with statistics of mean 0 and variance 1."""
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


def identity_plain(_graph: ArchGraph, _node: Node) -> Mapping[str, Start] | str:
    """Without leaves it returns its input already."""
    return {}
