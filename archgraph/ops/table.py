"""The operator table. A row says all that the rest of archgraph ever asks about an operator."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from archgraph.errors import GraphError
from archgraph.ir import (
    ArchGraph,
    Leaf,
    Node,
    Param,
    Ref,
    Size,
    TensorType,
    Value,
    in_mode,
    size_at,
    walk,
)
from archgraph.ops import rules
from archgraph.ops.rules import Rule
from archgraph.ops.schema import schema

InitialiserKind = Literal["zeros", "ones", "uniform", "normal"]


@dataclass(frozen=True, slots=True)
class Initialiser:
    """How a leaf starts: ``uniform`` in ±``scale``, ``normal`` with deviation ``scale``."""

    kind: InitialiserKind
    scale: float = 1.0


Cost = Callable[[ArchGraph, Node], int]
Init = Callable[[tuple[int, ...], Mapping[str, tuple[int, ...]]], Initialiser]


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of an operator.

    Attributes:
        axes: Equation between the layouts of its arguments and results.
        macs: Multiply–accumulates for one example.
        init: Initialiser by argument name, for leaves given as that argument.
        training_flag: Argument that is true in training and false in evaluation.
        statistics: Arguments that are running statistics, which forward updates in training.
        sides: What the dimensions of a leaf are called, by the argument that it is given as.
        weighted: Does heavy work with a weight: starts a block of a plain chain, takes a scaler.
        normalises: Divides by statistics of its input.
        pointwise: Position by position: belongs to the block that feeds it.
        merges: Joins branches by adding them: ends a residual region.
    """

    axes: Rule = rules.unknown
    macs: Cost | None = None
    init: Mapping[str, Init] = field(default_factory=dict)
    training_flag: str | None = None
    statistics: tuple[str, ...] = ()
    sides: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    weighted: bool = False
    normalises: bool = False
    pointwise: bool = False
    merges: bool = False


# -- costs ----------------------------------------------------------------------------------


def type_of(graph: ArchGraph, value: Value) -> TensorType | None:
    """Type of a tensor argument (its first result), or None."""
    value = in_mode(value, True)
    if isinstance(value, Ref):
        return graph.node[value.name].types[0]
    if isinstance(value, Leaf):
        return graph.param[value.name].type
    return None


def _numel(shape: Sequence[Size]) -> int:
    return math.prod(size_at(s, 1) for s in shape)


def _shape(graph: ArchGraph, node: Node, name: str) -> tuple[int, ...]:
    found = type_of(graph, node.arg(name))
    return tuple(size_at(s, 1) for s in found.shape) if found is not None else ()


def _conv_macs(graph: ArchGraph, node: Node) -> int:
    weight = _shape(graph, node, "weight")
    return _numel(node.shape) * math.prod(weight[1:])


def _transposed_macs(graph: ArchGraph, node: Node) -> int:
    weight = _shape(graph, node, "weight")
    return math.prod(_shape(graph, node, "input")) * math.prod(weight[1:])


def _linear_macs(graph: ArchGraph, node: Node) -> int:
    return _numel(node.shape) * _shape(graph, node, "weight")[-1]


def _matmul_macs(graph: ArchGraph, node: Node) -> int:
    operands = [type_of(graph, v) for _, v in node.args]
    left = [o for o in operands if o is not None and len(o.shape) > 0][-2]
    return _numel(node.shape) * size_at(left.shape[-1], 1)


def _einsum_macs(graph: ArchGraph, node: Node) -> int:
    text, operands = node.arg("equation"), node.arg("tensors")
    sizes: dict[str, int] = {}
    rest = 1
    if not isinstance(text, str) or not isinstance(operands, tuple):
        return 0
    for part, operand in zip(
        text.replace(" ", "").partition("->")[0].split(","), operands, strict=True
    ):
        found = type_of(graph, operand)
        shape = tuple(size_at(s, 1) for s in found.shape) if found is not None else ()
        head, dots, tail = part.partition("...")
        sizes |= dict(zip(head, shape, strict=False))
        if tail:
            sizes |= dict(zip(tail, shape[len(shape) - len(tail) :], strict=True))
        if dots:
            rest = max(rest, math.prod(shape[len(head) : len(shape) - len(tail)]))
    return math.prod(sizes.values()) * rest if len(operands) > 1 else 0


def _attention_macs(graph: ArchGraph, node: Node) -> int:
    q, k, v = (_shape(graph, node, n) for n in ("query", "key", "value"))
    scores = math.prod(q[:-1]) * k[-2]
    return scores * (q[-1] + v[-1])


# -- initialisers (the defaults of torch.nn) ---------------------------------------------------


def _fan_in(shapes: Mapping[str, tuple[int, ...]], transposed: bool = False) -> int:
    weight = shapes.get("weight", ())
    if len(weight) < 2:
        return 1
    return math.prod(weight[1:]) if not transposed else weight[1] * math.prod(weight[2:])


def _uniform(shape: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]) -> Initialiser:
    return Initialiser("uniform", 1 / math.sqrt(max(_fan_in(shapes), 1)))


def _ones(shape: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]) -> Initialiser:
    return Initialiser("ones")


def _zeros(shape: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]) -> Initialiser:
    return Initialiser("zeros")


def _normal(shape: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]) -> Initialiser:
    return Initialiser("normal")


def _small(shape: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]) -> Initialiser:
    return Initialiser("normal", 0.02)


def _quarter(shape: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]) -> Initialiser:
    return Initialiser("ones", 0.25)


_WEIGHTS: dict[str, Init] = {"weight": _uniform, "bias": _uniform}
_NORM: dict[str, Init] = {"weight": _ones, "bias": _zeros}
_BATCH_NORM: dict[str, Init] = {**_NORM, "running_mean": _zeros, "running_var": _ones}
_STATISTICS = ("running_mean", "running_var")

_OUT_IN = {"weight": ("out", "in", "kernel", "kernel", "kernel"), "bias": ("out",)}
_IN_OUT = {"weight": ("in", "out", "kernel", "kernel", "kernel"), "bias": ("out",)}
_conv = Row(rules.convolution, _conv_macs, _WEIGHTS, sides=_OUT_IN, weighted=True)
_transposed = Row(
    rules.transposed_convolution, _transposed_macs, _WEIGHTS, sides=_IN_OUT, weighted=True
)
_linear = Row(rules.linear, _linear_macs, _WEIGHTS, sides=_OUT_IN, weighted=True)
_batch_norm = Row(
    rules.batch_norm,
    init=_BATCH_NORM,
    training_flag="training",
    statistics=_STATISTICS,
    normalises=True,
)
_layer_norm = Row(rules.layer_norm, init=_NORM, normalises=True)
_pointwise = Row(rules.elementwise, pointwise=True)
_add = Row(rules.elementwise, init={"self": _small, "other": _small}, pointwise=True, merges=True)
_mul = Row(rules.elementwise, init={"self": _ones, "other": _ones}, pointwise=True)
_dropout = Row(rules.same, training_flag="train", pointwise=True)
_like = Row(rules.like, pointwise=True)
_matmul = Row(rules.matmul, _matmul_macs, {"self": _small, "other": _small})
_reduction = Row(rules.reduction)
_pool = Row(rules.pooling)
_along = Row(rules.along)
_softmax = Row(rules.softmax, pointwise=True)
_factory = Row(rules.factory)
_opaque = Row(rules.opaque, weighted=True, init={"params": _uniform})

# By operator name without namespace; without overload where all are alike. ATen's pointwise
# operators need no row.
ROWS: dict[str, Row] = {
    "input": Row(),
    "getitem": Row(rules.getitem, pointwise=True),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), _conv),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _transposed),
    "linear": _linear,
    "addmm": Row(
        rules.addmm, _matmul_macs, {"self": _zeros, "mat1": _small, "mat2": _small}, weighted=True
    ),
    "baddbmm": Row(rules.addmm, _matmul_macs),
    **dict.fromkeys(("matmul", "bmm", "mm", "mv", "dot"), _matmul),
    "einsum": Row(rules.einsum, _einsum_macs, {"tensors": _small}),
    "embedding": Row(
        rules.embedding, init={"weight": _normal}, sides={"weight": ("index", "out")}, weighted=True
    ),
    "scaled_dot_product_attention": Row(rules.attention, _attention_macs),
    "batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm,
    "instance_norm": Row(
        rules.instance_norm,
        init=_BATCH_NORM,
        training_flag="use_input_stats",
        statistics=_STATISTICS,
        normalises=True,
    ),
    "group_norm": Row(rules.group_norm, init=_NORM, normalises=True),
    "layer_norm": _layer_norm,
    "rms_norm": _layer_norm,
    **dict.fromkeys(
        ("softmax", "log_softmax", "_softmax", "_log_softmax", "_safe_softmax"), _softmax
    ),
    "glu": Row(rules.glu),
    "prelu": Row(rules.prelu, init={"weight": _quarter}, pointwise=True),
    **dict.fromkeys(
        ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"), _dropout
    ),
    "add": _add,
    **dict.fromkeys(("sub", "rsub"), _pointwise),
    **dict.fromkeys(("mul", "div"), _mul),
    **dict.fromkeys(
        (
            "detach",
            "clone",
            "contiguous",
            "to",
            "_to_copy",
            "type_as",
            "alias",
            "bernoulli",
            "zeros_like",
            "ones_like",
            "full_like",
            "empty_like",
            "rand_like",
            "randn_like",
            "celu",
            "selu",
            "hardswish",
            "hardsigmoid",
            "relu6",
            "mish",
            "softplus",
            "rrelu",
            "nan_to_num",
            "hardshrink",
            "softshrink",
            "threshold",
            "logit",
            "normal",
        ),
        _like,
    ),
    "copy": Row(rules.overwrite),
    **dict.fromkeys(("max.other", "min.other"), _pointwise),
    **dict.fromkeys(
        (
            "zeros",
            "ones",
            "full",
            "empty",
            "rand",
            "randn",
            "new_zeros",
            "new_ones",
            "new_full",
            "new_empty",
        ),
        _factory,
    ),
    **dict.fromkeys(
        (
            "mean",
            "sum",
            "amax",
            "amin",
            "var",
            "std",
            "norm",
            "linalg_vector_norm",
            "prod",
            "logsumexp",
            "any",
            "all",
            "max",
            "min",
            "argmax",
            "argmin",
            "var_mean",
            "std_mean",
        ),
        _reduction,
    ),
    **dict.fromkeys(rules.POOLED, _pool),
    **dict.fromkeys(("cumsum", "cumprod", "flip", "roll", "sort", "topk"), _along),
    "reshape": Row(rules.reshape, pointwise=True),
    "view": Row(rules.reshape, pointwise=True),
    "permute": Row(rules.permute, pointwise=True),
    "transpose": Row(rules.transpose, pointwise=True),
    **dict.fromkeys(
        ("t", "numpy_T", "mT", "adjoint", "matrix_H"), Row(rules.matrix_transpose, pointwise=True)
    ),
    "movedim": Row(rules.movedim, pointwise=True),
    "unsqueeze": Row(rules.unsqueeze, pointwise=True),
    "squeeze": Row(rules.squeeze, pointwise=True),
    "expand": Row(rules.expand, pointwise=True),
    "repeat": Row(rules.repeat),
    "repeat_interleave": Row(rules.repeat_interleave),
    "cat": Row(rules.cat),
    "stack": Row(rules.stack),
    "split_with_sizes": Row(rules.split),
    "slice": Row(rules.slice_),
    "select": Row(rules.select),
    "unbind": Row(rules.unbind),
    "index": Row(rules.index),
    "index_select": Row(rules.index_select),
    "gather": Row(rules.gather),
    **dict.fromkeys(("pad", "constant_pad_nd"), Row(rules.pad)),
    "pixel_shuffle": Row(rules.pixel_shuffle),
    "pixel_unshuffle": Row(rules.pixel_unshuffle),
    "channel_shuffle": Row(rules.channel_shuffle),
    **dict.fromkeys(("tril", "triu"), Row(rules.triangle)),
    "_weight_norm": Row(rules.weight_norm),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _opaque),
    **dict.fromkeys(
        (
            "__and__",
            "__or__",
            "__xor__",
            "__lshift__",
            "__rshift__",
            "logical_and",
            "logical_or",
            "logical_not",
            "logical_xor",
            "masked_fill",
        ),
        _pointwise,
    ),
    "where": _pointwise,
    "clamp": _pointwise,
    "lerp": _pointwise,
}


def base(op: str) -> str:
    """Operator name without namespace and overload.

    >>> base("aten.add.Tensor"), base("getitem")
    ('add', 'getitem')
    """
    return op.split(".")[1] if "." in op else op


@functools.cache
def row(op: str) -> Row:
    """The row of an operator; pointwise ATen operators share one, unknown ones pin and report.

    >>> row("aten.conv2d").weighted, row("aten.tanh").pointwise
    (True, True)
    """
    found = ROWS.get(op.removeprefix("aten.")) or ROWS.get(base(op))
    if found is not None:
        return found
    if op.startswith("aten.") and torch.Tag.pointwise in schema(op).overload.tags:
        return _pointwise
    return Row()


_FILLS: dict[str, int | None] = {
    "new_zeros": 0,
    "zeros_like": 0,
    "new_ones": 1,
    "ones_like": 1,
    "new_full": None,
    "full_like": None,
    "new_empty": 0,
    "empty_like": 0,
}


def is_filled(op: str) -> bool:
    """Whether the result has its first argument's shape or dtype, but none of its values."""
    return base(op) in _FILLS


def fill_value(op: str, given: object) -> object:
    """What such an operator fills with; ``given`` where its caller says so."""
    value = _FILLS[base(op)]
    return given if value is None else value


# -- canonical form ---------------------------------------------------------------------------

_RESHAPES = frozenset(
    {"view", "_unsafe_view", "reshape", "flatten", "unflatten", "view_as", "reshape_as"}
)
_SPLITS = frozenset(
    {"chunk", "unsafe_chunk", "split", "unsafe_split", "unsafe_split_with_sizes", "tensor_split"}
)
_COPIES = frozenset(
    {"contiguous", "clone", "alias", "lift_fresh", "lift_fresh_copy", "to", "_to_copy", "type_as"}
)
_TRIVIAL = _COPIES | {"reshape", "expand", "slice"}
# In-place operators whose functional form has another name.
FUNCTIONAL = {
    "aten.fill.Scalar": "aten.fill.Scalar",
    "aten.zero": "aten.zeros_like",
    "aten.bernoulli.float": "aten.bernoulli.p",
    "aten.uniform": "aten.uniform",
    "aten.normal": "aten.normal_functional",
}


def is_identity(op: str, given: Mapping[str, Value]) -> bool:
    """Whether a call whose result has its input's shape and dtype returns the input itself."""
    name = base(op)
    if name in ("pad", "constant_pad_nd"):
        amounts = given.get("pad")
        return isinstance(amounts, tuple) and all(a == 0 for a in amounts)
    return name in _TRIVIAL


def canonical(
    op: str,
    given: Mapping[str, Value],
    sizes: Mapping[str, tuple[Size, ...]],
    shapes: tuple[tuple[Size, ...], ...],
) -> tuple[str, dict[str, Value]]:
    """One spelling for operators that say the same thing, with every silent size written out.

    Args:
        op: Operator.
        given: Arguments by name.
        sizes: Shapes of tensor arguments by name.
        shapes: Shapes of the results.
    """
    name, args = base(op), dict(given)
    if name in _RESHAPES and op != "aten.view.dtype":
        return "aten.reshape", {"self": args["self"], "shape": shapes[0]}
    if name in _SPLITS or op == "aten.split.sizes":
        dim = args.get("dim", 0)
        assert isinstance(dim, int)
        cuts = tuple(s[dim] for s in shapes)
        return "aten.split_with_sizes", {"self": args["self"], "split_sizes": cuts, "dim": dim}
    if name in ("expand", "expand_as"):
        return "aten.expand", {"self": args["self"], "size": shapes[0]}
    if name == "scaled_dot_product_attention" and args.get("scale") is None:
        width = sizes["query"][-1]
        args["scale"] = 1.0 / math.sqrt(size_at(width, 1))
    if name == "slice" and op == "aten.slice.Tensor":
        dim = args.get("dim", 0)
        assert isinstance(dim, int)
        size = sizes["self"][dim]
        start, end = args.get("start"), args.get("end")
        if isinstance(size, int):
            start = start if isinstance(start, int) else 0
            end = end if isinstance(end, int) else size
            args["start"] = min(start + size if start < 0 else start, size)
            args["end"] = min(end + size if end < 0 else end, size)
        elif start in (None, 0) and isinstance(end, int) and end >= 2**62:
            args["start"], args["end"] = 0, None
    if name in ("to", "_to_copy") and args.get("dtype") is not None:
        return "aten.to.dtype", {"self": args["self"], "dtype": args["dtype"]}
    if name == "copy" and "non_blocking" in args:
        args.pop("non_blocking")
    return op, args


# -- initialisers -----------------------------------------------------------------------------


def _arguments(node: Node, leaf: str) -> list[str]:
    return [k for k, v in node.args if any(isinstance(i, Leaf) and i.name == leaf for i in walk(v))]


def initialiser(graph: ArchGraph, param: Param) -> Initialiser | None:
    """How a leaf starts, by the operator that uses it; None where no operator says.

    A leaf that forward itself assigns (a counter) starts at zero.
    """
    for user in graph.leaf_users.get(param.name, ()):
        node = graph.node[user]
        found = row(node.op).init
        for argument in _arguments(node, param.name):
            if argument in found:
                shapes = {
                    k: graph.param[i.name].shape
                    for k, v in node.args
                    for i in walk(v)
                    if isinstance(i, Leaf)
                }
                if "mat2" in shapes or "other" in shapes:
                    shapes.setdefault("weight", shapes.get("mat2", shapes.get("other", ())))
                return found[argument](param.shape, shapes)
    if any(buffer == param.name for buffer, _ in graph.updates):
        return Initialiser("zeros")
    if param.role == "parameter":
        return Initialiser("normal", 0.02) if len(param.shape) > 1 else Initialiser("zeros")
    return None


def statistics(graph: ArchGraph) -> tuple[str, ...]:
    """Buffers that are running statistics of a norm, and the counters that forward advances."""
    found: dict[str, None] = {}
    for node in graph.nodes:
        for argument in row(node.op).statistics:
            value = node.arg(argument)
            if isinstance(value, Leaf):
                found[value.name] = None
    found |= {buffer: None for buffer, _ in graph.updates}
    return tuple(found)


def normalisation(graph: ArchGraph) -> tuple[str, ...]:
    """All leaves of norm operators: affine parameters, statistics and their counters."""
    found = dict.fromkeys(
        leaf for node in graph.nodes if row(node.op).normalises for leaf in node.leaves()
    )
    return tuple(found | dict.fromkeys(statistics(graph)))


def macs(graph: ArchGraph, node: Node) -> int:
    """Multiply–accumulates of one operator for one example (0 where it multiplies nothing)."""
    count = row(node.op).macs
    return count(graph, node) if count is not None else 0


def known(op: str) -> bool:
    """Whether a graph from a file may contain the operator."""
    if op in ("input", "getitem"):
        return True
    try:
        schema(op)
    except GraphError:
        return False
    return True
