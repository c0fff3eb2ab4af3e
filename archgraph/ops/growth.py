"""What operators do with repeated positions, and how they become the identity (Net2Net).

Facts that widening and deepening go by, one row per operator; an operator without a row promises
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from archgraph.graph.ir import ArchGraph, Leaf, Node, Value, size_at
from archgraph.ops.table import base, type_of

Scales: TypeAlias = Literal["", "all", "one", "first"]
Repeats: TypeAlias = Literal["never", "uniform", "any"]
# How a leaf starts: the name and arguments of an initialiser.
Start: TypeAlias = "tuple[str, Mapping[str, float | int]]"


@dataclass(frozen=True, slots=True)
class Growth:
    """What is known of an operator whose axes grow.

    Attributes:
        scales: When its result is multiplied by what its operands are: ``all`` of them, exactly
            ``one`` of them (a product), the ``first`` (a quotient), or never.
        pointwise: Its operands' dimensions are its result's, counted from the last.
        moves: It only moves positions of its one operand about (or leaves some out).
        affine: Leaves, by argument, that multiply its result position by position, with the
            dimension that has the result's channels; the weight first.
        bilinear: It multiplies and sums operands: whatever one of them is multiplied by, its result
            is too.
        repeats: Whether it gives the same over an axis whose positions are repeated: ``any`` how,
            ``uniform``: all equally often, or ``never``; by node where its arguments decide.
        identity: Leaves, by argument, for which it returns its input; a text says why it cannot.
        idempotent: Twice is the same as once.
        keeps_zero: It is zero at zero.
        picks: Every number of its result is one of its operand's.
        finite: Its result is a number wherever its operands are: nothing is divided by them.
    """

    scales: Scales = ""
    pointwise: bool = False
    moves: bool = False
    affine: Mapping[str, int] = field(default_factory=dict)
    bilinear: bool = False
    repeats: Repeats | Callable[[Node], Repeats] = "never"
    identity: Callable[[ArchGraph, Node], Mapping[str, Start] | str] | None = None
    idempotent: bool = False
    keeps_zero: bool = False
    picks: bool = False
    finite: bool = True

    def weight(self, node: Node) -> Value:
        """The argument of a node that is its weight."""
        return node.arg(next(iter(self.affine), "weight"))

    def repeated(self, node: Node) -> Repeats:
        """Whether a node gives the same over an axis whose positions are repeated."""
        return self.repeats if isinstance(self.repeats, str) else self.repeats(node)


def growth(op: str) -> Growth:
    """What is known of an operator by its graph name.

    >>> growth("aten.relu").idempotent, growth("aten.softmax.int").repeats
    (True, 'never')
    """
    return _GROWTH.get(base(op), _NOTHING)


def offset(node: Node) -> bool:
    """Whether an operator adds or pads with numbers, which a factor would not reach."""
    numbers = (v for k, v in node.args if k in ("other", "value") and isinstance(v, (int, float)))
    return any(number != 0 for number in numbers)


def multiplied(node: Node, value: Value) -> bool:
    """Whether an operator multiplies an operand by a number before it adds it."""
    return node.arg("alpha", 1) != 1 and node.arg("other") == value


# -- repeats ----------------------------------------------------------------------------------


def _spread(node: Node) -> Repeats:
    """Variances by N - 1 know how many positions there are."""
    by_count = node.arg("correction", 1) == 0 or node.arg("unbiased", True) is False
    return "uniform" if by_count else "never"


# -- identities -------------------------------------------------------------------------------


def _convolution(graph: ArchGraph, node: Node) -> Mapping[str, Start] | str:
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
    found = tuple(v for v in value if isinstance(v, int)) if isinstance(value, tuple) else ()
    if isinstance(value, int):
        return (value,) * count
    return found * count if len(found) == 1 else found


def _linear(graph: ArchGraph, node: Node) -> Mapping[str, Start] | str:
    weight = type_of(graph, node.arg("weight"))
    if weight is None or not isinstance(node.arg("weight"), Leaf):
        return "its weight is computed"
    out, inside = (size_at(s, 1) for s in weight.shape)
    if out != inside:
        return f"has {out} channels from {inside}"
    return {"weight": ("eye", {}), "bias": ("zeros", {})}


def _batch_norm(_graph: ArchGraph, node: Node) -> Mapping[str, Start] | str:
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


def _plain(_graph: ArchGraph, _node: Node) -> Mapping[str, Start] | str:
    return {}


# -- rows -------------------------------------------------------------------------------------

_NOTHING = Growth(finite=False)
_ALL = Growth(scales="all", repeats="any", picks=True)
_ALIGNED = Growth(scales="all", pointwise=True, repeats="any", picks=True)
_MOVES = Growth(scales="all", moves=True, repeats="any", picks=True)
_OUT = {"weight": 0, "bias": 0}
_MEANS = ("avg", "adaptive_avg")

_GROWTH: dict[str, Growth] = {
    **dict.fromkeys(("add", "sub", "neg"), Growth("all", pointwise=True, repeats="any")),
    **dict.fromkeys(("stack", "repeat_interleave"), _ALL),
    **dict.fromkeys(("cat", "expand", "expand_as", "repeat", "detach"), _ALIGNED),
    **dict.fromkeys(("pad", "constant_pad_nd"), Growth("all", pointwise=True, repeats="any")),
    **dict.fromkeys(
        (
            "reshape",
            "view",
            "flatten",
            "unflatten",
            "permute",
            "transpose",
            "mT",
            "numpy_T",
            "t",
            "matrix_H",
            "movedim",
            "unsqueeze",
            "squeeze",
            "slice",
            "select",
            "split",
            "split_with_sizes",
            "chunk",
            "unbind",
            "getitem",
            "roll",
            "pixel_shuffle",
            "pixel_unshuffle",
        ),
        _MOVES,
    ),
    **dict.fromkeys(
        ("clone", "contiguous", "to", "_to_copy", "dropout", "feature_dropout", "alpha_dropout"),
        Growth(scales="all", pointwise=True, repeats="any", identity=_plain, picks=True),
    ),
    "mul": Growth(scales="one", pointwise=True),
    "div": Growth(scales="first", pointwise=True, finite=False),
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d", "convolution"),
        Growth(affine=_OUT, identity=_convolution),
    ),
    **dict.fromkeys(
        ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        Growth(affine={"weight": 1, "bias": 0}),
    ),
    "linear": Growth(affine=_OUT, identity=_linear),
    "addmm": Growth(affine={"mat2": 1, "self": 0}),
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "einsum"), Growth(bilinear=True)),
    "embedding": Growth(affine={"weight": 1}),
    "batch_norm": Growth(affine=_OUT, repeats="any", identity=_batch_norm),
    "instance_norm": Growth(affine=_OUT, repeats="any"),
    **dict.fromkeys(
        ("layer_norm", "rms_norm", "group_norm"), Growth(affine=_OUT, repeats="uniform")
    ),
    "mean": Growth(repeats="uniform"),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), Growth(repeats=_spread)),
    **dict.fromkeys(("amax", "amin", "max", "min", "any", "all"), Growth(repeats="any")),
    **dict.fromkeys(("relu", "relu6", "abs"), Growth(idempotent=True, keeps_zero=True)),
    **dict.fromkeys(("hardtanh", "clamp", "clamp_min", "clamp_max"), Growth(idempotent=True)),
    **dict.fromkeys(
        ("gelu", "silu", "tanh", "elu", "selu", "leaky_relu", "hardswish", "mish", "sin"),
        Growth(keeps_zero=True),
    ),
    **dict.fromkeys(("sigmoid", "hardsigmoid", "softmax", "softplus", "sum"), Growth()),
    # Of these nothing is known but that they make no 0/0.
    **dict.fromkeys(
        ("index", "index_select", "gather", "where", "masked_fill", "cos", "exp", "cumsum"),
        Growth(),
    ),
    **dict.fromkeys(("tril", "triu", "sort", "topk", "scaled_dot_product_attention"), Growth()),
    **dict.fromkeys((f"{kind}_pool{d}d" for kind in _MEANS for d in (1, 2, 3)), Growth()),
    **dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool3d"), Growth(picks=True)),
}
