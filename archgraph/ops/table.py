"""The operator table. A row says all that the rest of archgraph ever asks about an operator."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from archgraph.errors import GraphError
from archgraph.graph.ir import (
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
from archgraph.ops import contractions, rules, shapes, zeros
from archgraph.ops.equations import Dims, Equations
from archgraph.ops.rules import Rule
from archgraph.ops.schema import schema
from archgraph.ops.zeros import Zeros

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
        rule: Equation between the layouts of its arguments and results.
        zero: At which masked positions its results are zero.
        macs: Multiply–accumulates for one example.
        init: Initialiser by argument name, for leaves given as that argument.
        training_flag: Argument that is true in training and false in evaluation.
        statistics: Arguments that are running statistics, which forward updates in training.
        sides: What the dimensions of a leaf are called, by the argument that it is given as.
        weighted: Does heavy work with a weight: starts a block of a plain chain, takes a scaler.
        normalises: Divides by statistics of its input.
        pointwise: Position by position: belongs to the block that feeds it.
        merges: Joins branches by adding them: ends a residual region.
        rates: Numbers that may differ between two networks of one form: they follow from training
            or widths, or guard against division by zero.
    """

    rule: Rule = rules.unknown
    zero: Zeros = zeros.never
    macs: Cost | None = None
    init: Mapping[str, Init] = field(default_factory=dict)
    training_flag: str | None = None
    statistics: tuple[str, ...] = ()
    sides: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    weighted: bool = False
    normalises: bool = False
    pointwise: bool = False
    merges: bool = False
    rates: tuple[str, ...] = ()

    def axes(self, eq: Equations) -> list[Dims]:
        """Layouts of the current operator's results, after stating its equations."""
        try:
            results = self.rule(eq)
            eq.settle(results, self.zero(eq, results))
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError):
            # Of a rank or with arguments that the rule does not know: to pin is always right.
            return rules.unknown(eq)
        if self.pointwise:
            eq.follow()
        return results


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


def _any_conv_macs(graph: ArchGraph, node: Node) -> int:
    return (_transposed_macs if node.arg("transposed") is True else _conv_macs)(graph, node)


def _linear_macs(graph: ArchGraph, node: Node) -> int:
    return _numel(node.shape) * _shape(graph, node, "weight")[-1]


def _matmul_macs(graph: ArchGraph, node: Node) -> int:
    operands = [type_of(graph, v) for _, v in node.args]
    left = [o for o in operands if o is not None and len(o.shape) > 0][-2]
    return _numel(node.shape) * size_at(left.shape[-1], 1)


def _bilinear_macs(graph: ArchGraph, node: Node) -> int:
    _, left, right = _shape(graph, node, "weight")
    return _numel(node.shape) * (left * right + right)


def _summed_macs(graph: ArchGraph, node: Node) -> int:
    return math.prod(_shape(graph, node, "batch1")) * _shape(graph, node, "batch2")[-1]


def _einsum_macs(graph: ArchGraph, node: Node) -> int:
    """Operands are multiplied from left to right, each sum taken as soon as it can be."""
    text, operands = node.arg("equation"), node.arg("tensors")
    if not isinstance(text, str) or not isinstance(operands, tuple):
        return 0
    sizes: dict[str, int] = {}
    rest = 1
    left, _, right = text.replace(" ", "").partition("->")
    parts = left.split(",")
    for part, operand in zip(parts, operands, strict=True):
        found = type_of(graph, operand)
        shape = tuple(size_at(s, 1) for s in found.shape) if found is not None else ()
        head, dots, tail = part.partition("...")
        sizes |= dict(zip(head, shape, strict=False))
        if tail:
            sizes |= dict(zip(tail, shape[len(shape) - len(tail) :], strict=True))
        if dots:
            rest = max(rest, math.prod(shape[len(head) : len(shape) - len(tail)]))
    if "->" not in text:
        right = "".join(c for c in sizes if left.count(c) == 1)
    macs, held = 0, set(parts[0])
    for index, part in enumerate(parts[1:], 1):
        held |= set(part)
        kept = held & (set("".join(parts[index + 1 :])) | set(right))
        if held - kept:  # without a sum it is a product position by position
            macs += math.prod(sizes[c] for c in held if c in sizes) * rest
        held = kept
    return macs


def _recurrent_macs(graph: ArchGraph, node: Node) -> int:
    """Every step multiplies every weight matrix once."""
    matrices = {leaf for leaf in node.leaves() if len(graph.param[leaf].shape) > 1}
    steps = 1
    if node.arg("params") is not None:
        shape = _shape(graph, node, "input")
        steps = math.prod(shape[:-1])
    return steps * sum(math.prod(graph.param[leaf].shape) for leaf in matrices)


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


def _bilinear_weight(shape: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]) -> Initialiser:
    weight = shapes.get("weight", (1, 1, 1))
    return Initialiser("uniform", 1 / math.sqrt(max(weight[1], 1)))


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
_conv = Row(rules.convolution, zeros.weighted, _conv_macs, _WEIGHTS, sides=_OUT_IN, weighted=True)
_transposed = Row(
    rules.transposed_convolution,
    zeros.weighted,
    _transposed_macs,
    _WEIGHTS,
    sides=_IN_OUT,
    weighted=True,
)
_linear = Row(rules.linear, zeros.weighted, _linear_macs, _WEIGHTS, sides=_OUT_IN, weighted=True)
_batch_norm = Row(
    rules.batch_norm,
    zeros.normalised,
    init=_BATCH_NORM,
    training_flag="training",
    statistics=_STATISTICS,
    normalises=True,
    rates=("momentum", "eps"),
)
_layer_norm = Row(rules.layer_norm, zeros.normalised, init=_NORM, normalises=True, rates=("eps",))
_pointwise = Row(rules.elementwise, zeros.value, pointwise=True)
_add = Row(
    rules.elementwise,
    zeros.value,
    init={"self": _small, "other": _small},
    pointwise=True,
    merges=True,
)
_factor: dict[str, Init] = {"self": _ones, "other": _ones}
_mul = Row(rules.elementwise, zeros.some, init=_factor, pointwise=True)
_div = Row(rules.elementwise, zeros.quotient, init=_factor, pointwise=True)
_both = Row(rules.elementwise, zeros.some, pointwise=True)
_where = Row(rules.elementwise, zeros.chosen, pointwise=True)
_masked_fill = Row(rules.elementwise, zeros.filled, pointwise=True)
_dropout = Row(rules.same, zeros.first, training_flag="train", pointwise=True, rates=("p",))
_copy = Row(rules.same, zeros.first, pointwise=True)  # casts, and noise that scales its input
_curve = Row(rules.same, zeros.value, pointwise=True)
_noise = Row(rules.like, pointwise=True)
_matrix: dict[str, Init] = {"self": _small, "other": _small}
_matmul = Row(contractions.matmul, zeros.some, _matmul_macs, _matrix)
_sum = Row(rules.total, zeros.first)
_reduction = Row(rules.reduction, zeros.first)
_pool = Row(rules.pooling, zeros.first)
_along = Row(rules.along, zeros.first)
_softmax = Row(rules.softmax, pointwise=True)
_factory = Row(rules.factory)
_blank = Row(rules.factory, zeros.always)
_opaque = Row(rules.opaque)
_recurrent = Row(rules.opaque, macs=_recurrent_macs, weighted=True, init={"params": _uniform})
_loss = Row(rules.loss)
_class_loss = Row(rules.class_loss)


def _view(rule: Rule) -> Row:
    return Row(rule, zeros.first, pointwise=True)


def _places(rule: Rule) -> Row:
    return Row(rule, zeros.first)


_FFT = tuple(
    f"{inverse}{real}fft{rank}"
    for rank in ("", "2", "n")
    for inverse, real in (("", ""), ("i", ""), ("", "r"), ("i", "r"), ("", "h"), ("i", "h"))
)

# Looked at: what they compute depends on which and how many positions there are, or on their order
# across dimensions, so that every axis that they touch stays whole.
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
    "_fused_rms_norm",
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

# By operator name without namespace; without overload where all are alike. ATen's pointwise
# operators need no row: torch's tag gives them the elementwise rule.
ROWS: dict[str, Row] = {
    "input": Row(),
    "getitem": Row(rules.getitem, zeros.passed, pointwise=True),
    # -- weights
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _conv),
    "convolution": replace(_conv, rule=rules.any_convolution, macs=_any_conv_macs),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _transposed),
    "linear": _linear,
    "bilinear": Row(
        contractions.bilinear,
        macs=_bilinear_macs,
        init={"weight": _bilinear_weight, "bias": _bilinear_weight},
        sides={"weight": ("out", "in1", "in2"), "bias": ("out",)},
        weighted=True,
    ),
    "embedding": Row(
        rules.embedding,
        zeros.looked_up,
        init={"weight": _normal},
        sides={"weight": ("index", "out")},
        weighted=True,
    ),
    "embedding_bag": Row(
        rules.embedding_bag,
        zeros.looked_up,
        init={"weight": _normal},
        sides={"weight": ("index", "out")},
        weighted=True,
    ),
    "addmm": Row(
        contractions.addmm,
        zeros.added,
        _matmul_macs,
        {"self": _zeros, "mat1": _small, "mat2": _small},
        weighted=True,
    ),
    # -- products of activations
    **dict.fromkeys(("baddbmm", "addmv"), Row(contractions.addmm, zeros.added, _matmul_macs)),
    "addbmm": Row(contractions.summed_products, zeros.added, _summed_macs),
    **dict.fromkeys(("matmul", "bmm", "mm", "mv", "dot", "vdot"), _matmul),
    **dict.fromkeys(("chain_matmul", "linalg_multi_dot"), Row(contractions.chained, zeros.some)),
    "inner": Row(contractions.inner, zeros.some),
    "linalg_vecdot": Row(contractions.vector_product, zeros.some),
    "tensordot": Row(contractions.tensordot, zeros.some),
    "outer": Row(contractions.outer, zeros.some),
    "kron": Row(contractions.kronecker, zeros.some),
    "einsum": Row(contractions.einsum, zeros.some, _einsum_macs, {"tensors": _small}),
    "scaled_dot_product_attention": Row(
        contractions.attention, zeros.attended, _attention_macs, rates=("dropout_p", "scale")
    ),
    "cdist": Row(contractions.distances),
    "pairwise_distance": Row(contractions.distance, rates=("eps",)),
    "cosine_similarity": Row(contractions.similarity, zeros.some, rates=("eps",)),
    **dict.fromkeys(("cross", "linalg_cross"), Row(rules.cross, zeros.some)),
    # -- norms
    "batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm,
    "instance_norm": Row(
        rules.instance_norm,
        zeros.normalised,
        init=_BATCH_NORM,
        training_flag="use_input_stats",
        statistics=_STATISTICS,
        normalises=True,
        rates=("momentum", "eps"),
    ),
    "group_norm": Row(
        rules.group_norm, zeros.normalised, init=_NORM, normalises=True, rates=("eps",)
    ),
    "layer_norm": _layer_norm,
    "rms_norm": _layer_norm,
    "native_layer_norm": Row(
        rules.layer_norm_statistics, zeros.normalised, init=_NORM, normalises=True, rates=("eps",)
    ),
    **dict.fromkeys(
        ("_weight_norm", "_weight_norm_interface"), Row(rules.weight_norm, zeros.scaled_rows)
    ),
    # -- position by position
    **dict.fromkeys(
        ("softmax", "log_softmax", "_softmax", "_log_softmax", "_safe_softmax"), _softmax
    ),
    "glu": Row(rules.glu, zeros.first),
    "prelu": Row(rules.prelu, zeros.first, init={"weight": _quarter}, pointwise=True),
    **dict.fromkeys(
        ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"), _dropout
    ),
    "native_dropout": _dropout,
    "add": _add,
    **dict.fromkeys(("sub", "rsub"), _pointwise),
    "mul": _mul,
    "div": _div,
    **dict.fromkeys(("detach", "clone", "contiguous", "type_as", "alias", "rrelu"), _copy),
    **dict.fromkeys(("to", "_to_copy"), _curve),
    **dict.fromkeys(("bernoulli", "poisson"), _copy),
    **dict.fromkeys(("bernoulli.p", "normal_functional", "normal"), _noise),
    **dict.fromkeys(("uniform", "exponential", "geometric", "log_normal", "cauchy"), _noise),
    **dict.fromkeys(
        ("ones_like", "full_like", "rand_like", "randn_like", "randint_like", "fill"), _noise
    ),
    **dict.fromkeys(("zeros_like", "empty_like"), Row(rules.like, zeros.always, pointwise=True)),
    **dict.fromkeys(
        (
            "celu",
            "selu",
            "hardswish",
            "hardsigmoid",
            "relu6",
            "mish",
            "softplus",
            "log_sigmoid",
            "nan_to_num",
            "hardshrink",
            "softshrink",
            "threshold",
            "logit",
            "isreal",
            "real",
            "imag",
            "conj",
            "resolve_conj",
            "resolve_neg",
        ),
        _curve,
    ),
    "copy": Row(rules.overwrite, zeros.second),
    **dict.fromkeys(
        ("max.other", "min.other", "clamp", "lerp", "floor_divide", "isclose"), _pointwise
    ),
    **dict.fromkeys(("bucketize", "isin"), _curve),
    **dict.fromkeys(("complex", "polar"), _pointwise),
    "broadcast_tensors": Row(rules.broadcast_tensors, zeros.each),
    **dict.fromkeys(
        (
            "__or__",
            "__xor__",
            "__lshift__",
            "__rshift__",
            "logical_or",
            "logical_not",
            "logical_xor",
        ),
        _pointwise,
    ),
    **dict.fromkeys(("__and__", "logical_and", "bitwise_and"), _both),
    "where": _where,
    "masked_fill": _masked_fill,
    # -- new tensors
    **dict.fromkeys(("zeros", "new_zeros", "empty", "new_empty"), _blank),
    **dict.fromkeys(("ones", "full", "rand", "randn", "new_ones", "new_full", "randint"), _factory),
    **dict.fromkeys(
        (
            "arange",
            "range",
            "eye",
            "linspace",
            "logspace",
            "scalar_tensor",
            "randperm",
            "hann_window",
            "hamming_window",
            "blackman_window",
            "bartlett_window",
            "kaiser_window",
        ),
        _factory,
    ),
    "one_hot": Row(rules.one_hot),
    # -- reductions
    **dict.fromkeys(("sum", "nansum", "linalg_vector_norm", "norm", "any", "count_nonzero"), _sum),
    **dict.fromkeys(("any", "count_nonzero"), Row(rules.counted, zeros.first)),
    "logsumexp": Row(rules.reduction),
    **dict.fromkeys(("all", "argmax", "argmin"), Row(rules.reduction)),
    **dict.fromkeys(
        (
            "mean",
            "nanmean",
            "amax",
            "amin",
            "aminmax",
            "var",
            "std",
            "prod",
            "max",
            "min",
            "var_mean",
            "std_mean",
            "median",
            "nanmedian",
        ),
        _reduction,
    ),
    # -- along one dimension
    **dict.fromkeys(
        (
            "cumsum",
            "cumprod",
            "cummax",
            "cummin",
            "flip",
            "roll",
            "rot90",
            "sort",
            "topk",
            "diff",
        ),
        _along,
    ),
    **dict.fromkeys(("argsort", "logcumsumexp", "renorm"), Row(rules.along)),
    "msort": Row(rules.along_first, zeros.first),
    **dict.fromkeys(("kthvalue", "mode"), Row(rules.along_reduced, zeros.first)),
    # -- pooling and interpolation
    **dict.fromkeys(rules.POOLED, _pool),
    **dict.fromkeys(("max_unpool2d", "max_unpool3d"), Row(rules.unpooling, zeros.first)),
    **dict.fromkeys(
        ("grid_sampler", "grid_sampler_2d", "grid_sampler_3d"),
        Row(rules.grid_sample, zeros.first),
    ),
    # -- shapes
    "reshape": _view(shapes.reshape),
    "view": _view(shapes.reshape),
    "permute": _view(shapes.permute),
    "transpose": _view(shapes.transpose),
    **dict.fromkeys(
        ("t", "numpy_T", "mT", "mH", "adjoint", "matrix_H"), _view(shapes.matrix_transpose)
    ),
    "movedim": _view(shapes.movedim),
    "unsqueeze": _view(shapes.unsqueeze),
    "squeeze": _view(shapes.squeeze),
    "expand": _view(shapes.expand),
    **dict.fromkeys(("view_as_complex", "view_as_real"), _places(shapes.complex_view)),
    "repeat": _places(shapes.repeat),
    "repeat_interleave": _places(shapes.repeat_interleave),
    "cat": Row(shapes.cat, zeros.every),
    "stack": Row(shapes.stack, zeros.every),
    **dict.fromkeys(
        ("hstack", "vstack", "dstack", "column_stack"), Row(shapes.stacked, zeros.every)
    ),
    "split_with_sizes": _places(shapes.split),
    "slice": _places(shapes.slice_),
    "select": _places(shapes.select),
    "unbind": _places(shapes.unbind),
    "index": _places(shapes.index),
    "index_select": _places(shapes.index_select),
    "gather": _places(shapes.gather),
    "take_along_dim": _places(shapes.take_along),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce"), Row(shapes.scatter, zeros.every)),
    **dict.fromkeys(("index_add", "index_copy"), Row(shapes.index_add, zeros.every)),
    "index_fill": Row(shapes.index_fill),
    "index_put": Row(shapes.index_put, zeros.every),
    "slice_scatter": Row(shapes.slice_scatter, zeros.every),
    "select_scatter": Row(shapes.select_scatter, zeros.every),
    **dict.fromkeys(("pad", "constant_pad_nd"), _places(shapes.pad)),
    "pixel_shuffle": _places(shapes.pixel_shuffle),
    "pixel_unshuffle": _places(shapes.pixel_unshuffle),
    **dict.fromkeys(("channel_shuffle", "native_channel_shuffle"), _places(shapes.channel_shuffle)),
    **dict.fromkeys(("tril", "triu"), _places(shapes.triangle)),
    **dict.fromkeys(("diagonal", "linalg_diagonal"), _places(shapes.diagonal)),
    "diag_embed": _places(shapes.diagonal_matrix),
    "unfold": _places(shapes.windows),
    "im2col": _places(shapes.patches),
    "col2im": _places(shapes.from_patches),
    # -- losses
    **dict.fromkeys(
        (
            "mse_loss",
            "l1_loss",
            "smooth_l1_loss",
            "huber_loss",
            "binary_cross_entropy",
            "binary_cross_entropy_with_logits",
            "soft_margin_loss",
            "poisson_nll_loss",
            "kl_div",
        ),
        _loss,
    ),
    **dict.fromkeys(
        ("cross_entropy_loss", "nll_loss", "nll_loss2d", "nll_loss_nd", "nll_loss_forward"),
        _class_loss,
    ),
    # -- recurrent layers mix gates and time inside
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _recurrent),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), _recurrent),
    # -- known to mix positions in ways that no cut follows
    **dict.fromkeys(OPAQUE, _opaque),
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
    {
        "view",
        "_unsafe_view",
        "reshape",
        "flatten",
        "unflatten",
        "view_as",
        "reshape_as",
        "ravel",
        "atleast_1d",
        "atleast_2d",
        "atleast_3d",
    }
)
_SPLITS = frozenset(
    {
        "chunk",
        "unsafe_chunk",
        "split",
        "unsafe_split",
        "unsafe_split_with_sizes",
        "tensor_split",
        "hsplit",
        "vsplit",
        "dsplit",
    }
)
_COPIES = frozenset(
    {"contiguous", "clone", "alias", "lift_fresh", "lift_fresh_copy", "to", "_to_copy", "type_as"}
)
# Other spellings of an operator, argument by argument in the same order.
_ALIASES = {
    "concat": "cat",
    "concatenate": "cat",
    "swapaxes": "transpose.int",
    "swapdims": "transpose.int",
    "moveaxis.intlist": "movedim.intlist",
    "moveaxis.int": "movedim.int",
    "broadcast_to": "expand",
    "linalg_matmul": "matmul",
    "ger": "outer",
    "absolute": "abs",
    "negative": "neg",
    "fix": "trunc",
    "row_stack": "vstack",
    "special_softmax": "softmax.int",
    "special_log_softmax": "log_softmax.int",
    "special_expit": "sigmoid",
    **{f"special_{k}": k for k in ("expm1", "erf", "erfc", "exp2", "log1p", "sinc", "round")},
    **{f"arc{k}": f"a{k}" for k in ("cos", "cosh", "sin", "sinh", "tan", "tanh", "tan2")},
    **{
        f"{long}.{overload}": f"{short}.{overload}"
        for long, short in (
            ("multiply", "mul"),
            ("divide", "div"),
            ("true_divide", "div"),
            ("subtract", "sub"),
            ("greater", "gt"),
            ("greater_equal", "ge"),
            ("less", "lt"),
            ("less_equal", "le"),
            ("not_equal", "ne"),
        )
        for overload in ("Tensor", "Scalar", "Tensor_mode", "Scalar_mode")
    },
    "clip": "clamp",
    "clip.Tensor": "clamp.Tensor",
}
_FLIPS = {"fliplr": (1,), "flipud": (0,)}
_SPLIT_DIMS = {"hsplit": 1, "vsplit": 0, "dsplit": 2}
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
    spelt = _ALIASES.get(op.removeprefix("aten."))
    if spelt is not None:
        names = dict(zip(schema(op).by_name, schema(f"aten.{spelt}").by_name, strict=False))
        op, given = f"aten.{spelt}", {names[k]: v for k, v in given.items()}
        sizes = {names[k]: v for k, v in sizes.items()}
    name, args = base(op), dict(given)
    if name in _FLIPS:
        return "aten.flip", {"self": args["self"], "dims": _FLIPS[name]}
    if name == "tile" and isinstance(args["dims"], tuple):
        ones = (1,) * (len(sizes["self"]) - len(args["dims"]))
        return "aten.repeat", {"self": args["self"], "repeats": ones + args["dims"]}
    if op == "aten.narrow":
        start, length, dim = args["start"], args["length"], args["dim"]
        assert isinstance(start, int) and isinstance(length, int) and isinstance(dim, int)
        whole = sizes["self"][dim]
        start += whole if start < 0 and isinstance(whole, int) else 0
        args = {"self": args["self"], "dim": dim, "start": start, "end": start + length}
        return "aten.slice.Tensor", args
    if name in _RESHAPES and op != "aten.view.dtype":
        return "aten.reshape", {"self": args["self"], "shape": shapes[0]}
    if name in _SPLITS or op == "aten.split.sizes":
        dim = args.get("dim", _SPLIT_DIMS.get(name, 0) if len(shapes[0]) > 1 else 0)
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
