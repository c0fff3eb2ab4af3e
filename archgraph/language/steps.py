"""The steps of a block: one table, from which the reader, the errors and the schema come.

A row says what a step is called, which options it takes (a pydantic model with the defaults) and
how it becomes operators. Any further ATen operator is written by its own name (``aten.…``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pydantic
import torch
from pydantic import Field

from archgraph.errors import GraphError
from archgraph.graph.ir import TRAINING, Atom, Batch, Leaf, Mode, Ref, Size, Value
from archgraph.language.base import Base, Count, Name, Natural
from archgraph.language.document import Mistake
from archgraph.language.draft import Draft
from archgraph.ops.schema import schema
from archgraph.plain import Json

Pair = Count | tuple[Count, ...]
Padding = Literal["same", "valid"] | Natural | tuple[Natural, ...]
Axis = Annotated[int, Field(ge=-8, le=8)]


@dataclass(frozen=True)
class Site:
    """Where a step stands: what it appends to, its module path, and the names that it sees.

    Attributes:
        draft: The graph so far.
        scope: Module path of the step.
        lookup: The value of a name that ``as:`` gave.
        normalised: Whether a batch norm stands in the same list of steps.
    """

    draft: Draft
    scope: str
    lookup: Callable[[str], Ref]
    normalised: bool = False

    def call(self, op: str, /, **args: Value) -> Ref:
        """Append an operator."""
        return self.draft.call(op, args, self.scope)

    def parameter(self, name: str, shape: Sequence[int]) -> Leaf:
        """Append a parameter of this step."""
        return self.draft.leaf(f"{self.scope}.{name}", tuple(shape))

    def buffer(self, name: str, shape: Sequence[int], dtype: str = "float32") -> Leaf:
        """Append a buffer of this step."""
        return self.draft.leaf(f"{self.scope}.{name}", tuple(shape), role="buffer", dtype=dtype)

    def shape(self, value: Value) -> tuple[Size, ...]:
        """Shape of a value."""
        return self.draft.shape(value)

    def size(self, value: Value, dim: int) -> int:
        """One size of a value, which must not depend on the batch."""
        shape = self.shape(value)
        if not -len(shape) <= dim < len(shape):
            raise Mistake("has too few axes", found=_shown(shape), expected=f"an axis {dim}")
        size = shape[dim]
        if not isinstance(size, int):
            raise Mistake("needs another axis", found=f"axis {dim} of {_shown(shape)}, the batch")
        return size

    def within(self, name: str) -> Site:
        """The same place one module deeper."""
        return Site(self.draft, f"{self.scope}.{name}", self.lookup, self.normalised)


def _shown(shape: Sequence[Size]) -> str:
    return f"[{', '.join(map(str, shape))}]"


class Options(Base):
    """What every step takes."""

    source: Name | tuple[Name, ...] | None = Field(
        default=None, alias="from", description="name of the value that it takes; default: the last"
    )
    label: Name | None = Field(default=None, alias="as", description="name for its result")
    name: Name | None = Field(default=None, description="its place in the state's keys")


Emit = Callable[[Site, Any, tuple[Ref, ...]], Ref]


@dataclass(frozen=True)
class Row:
    """One kind of step.

    Attributes:
        options: Its options.
        emit: Appends its operators and returns its result.
        stem: Module name; the n-th of several in one list of steps gets n appended.
        main: Option that a bare value gives: ``linear: 10`` is ``linear: {out: 10}``.
        several: Whether ``from`` may name several values.
        batch_norm: Whether convolutions beside it need no bias.
    """

    options: type[Options]
    emit: Emit
    stem: str
    main: str = ""
    several: bool = False
    batch_norm: bool = False


STEPS: dict[str, Row] = {}


def _step(
    name: str, options: type[Options], stem: str = "", main: str = "", **facts: bool
) -> Callable[[Emit], Emit]:
    """Put a row into the table."""

    def add(emit: Emit) -> Emit:
        STEPS[name] = Row(options, emit, stem or name, main, **facts)
        return emit

    return add


# -- convolutions and linear layers -----------------------------------------------------------


class ConvOptions(Options):
    """A convolution over all spatial axes."""

    out: Count = Field(description="output channels")
    kernel: Pair = 3
    stride: Pair = 1
    padding: Padding = Field(
        default="same", description="same: size / stride, rounded up; valid: 0; or sizes"
    )
    dilation: Pair = 1
    groups: Count = 1
    bias: bool | Literal["auto"] = Field(
        default="auto", description="auto: unless a batch norm stands in the same list of steps"
    )


class DepthwiseOptions(Options):
    """A convolution of each channel by itself."""

    multiplier: Count = Field(default=1, description="output channels for each input channel")
    kernel: Pair = 3
    stride: Pair = 1
    padding: Padding = "same"
    dilation: Pair = 1
    bias: bool | Literal["auto"] = "auto"


def _each(value: Pair | tuple[Natural, ...], count: int, what: str) -> tuple[int, ...]:
    """One number per spatial axis."""
    if isinstance(value, int):
        return (value,) * count
    if len(value) != count:
        raise Mistake(
            "has sizes for another number of axes",
            place=(what,),
            found=list(value),
            expected=f"one number, or {count}",
        )
    return value


def _padding(
    padding: Padding, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[int, ...]:
    if padding == "valid":
        return (0,) * len(kernel)
    if padding != "same":
        return _each(padding, len(kernel), "padding")
    result = []
    for size, step, spread in zip(kernel, stride, dilation, strict=True):
        reach = spread * (size - 1) + 1
        # Windows that do not overlap tile the input: nothing to pad.
        missing = 0 if step >= reach else reach - 1 if reach % 2 else reach - step
        if missing % 2:
            raise Mistake(
                "cannot be padded evenly",
                place=("padding",),
                found=f"kernel {size}, stride {step}",
                hint="choose an odd kernel, or write the padding",
            )
        result.append(missing // 2)
    return tuple(result)


def _spatial(site: Site, x: Ref, ranks: Sequence[int]) -> int:
    """Number of spatial axes of a value of shape [batch, channel, …]."""
    rank = len(site.shape(x))
    if rank - 2 not in ranks:
        shapes = " or ".join(f"[batch, channel{', size' * n}]" for n in ranks)
        raise Mistake("takes another shape", found=_shown(site.shape(x)), expected=shapes)
    return rank - 2


def _convolve(
    site: Site,
    x: Ref,
    out: int,
    groups: int,
    o: ConvOptions | DepthwiseOptions,
    ranks: Sequence[int],
) -> Ref:
    axes = _spatial(site, x, ranks)
    channels = site.size(x, 1)
    for what, size in (("input", channels), ("output", out)):
        if size % groups:
            raise Mistake(
                f"does not divide its {what} channels",
                place=("groups",),
                found=f"{groups} groups, {size} channels",
            )
    kernel = _each(o.kernel, axes, "kernel")
    stride = _each(o.stride, axes, "stride")
    dilation = _each(o.dilation, axes, "dilation")
    bias = not site.normalised if o.bias == "auto" else o.bias
    return site.call(
        f"aten.conv{axes}d",
        input=x,
        weight=site.parameter("weight", (out, channels // groups, *kernel)),
        bias=site.parameter("bias", (out,)) if bias else None,
        stride=stride,
        padding=_padding(o.padding, kernel, stride, dilation),
        dilation=dilation,
        groups=groups,
    )


@_step("conv", ConvOptions, main="out")
def _conv(site: Site, o: ConvOptions, xs: tuple[Ref, ...]) -> Ref:
    return _convolve(site, xs[0], o.out, o.groups, o, (2, 3))


@_step("conv1d", ConvOptions, "conv", main="out")
def _conv1d(site: Site, o: ConvOptions, xs: tuple[Ref, ...]) -> Ref:
    return _convolve(site, xs[0], o.out, o.groups, o, (1,))


@_step("depthwise", DepthwiseOptions, "conv", main="kernel")
def _depthwise(site: Site, o: DepthwiseOptions, xs: tuple[Ref, ...]) -> Ref:
    channels = site.size(xs[0], 1)
    return _convolve(site, xs[0], channels * o.multiplier, channels, o, (1, 2, 3))


class LinearOptions(Options):
    """A linear map of the last axis."""

    out: Count = Field(description="output features")
    bias: bool = True


def _linear_map(site: Site, x: Ref, out: int, bias: bool) -> Ref:
    features = site.size(x, -1)
    return site.call(
        "aten.linear",
        input=x,
        weight=site.parameter("weight", (out, features)),
        bias=site.parameter("bias", (out,)) if bias else None,
    )


@_step("linear", LinearOptions, main="out")
def _linear(site: Site, o: LinearOptions, xs: tuple[Ref, ...]) -> Ref:
    return _linear_map(site, xs[0], o.out, o.bias)


# -- norms ------------------------------------------------------------------------------------


class BatchNormOptions(Options):
    """Batch norm over axis 1, with running statistics."""

    eps: Annotated[float, Field(gt=0)] = 1e-5
    momentum: Annotated[float, Field(gt=0, le=1)] = 0.1
    affine: bool = True


@_step("batch_norm", BatchNormOptions, "bn", batch_norm=True)
def _batch_norm(site: Site, o: BatchNormOptions, xs: tuple[Ref, ...]) -> Ref:
    channels = site.size(xs[0], 1)
    weight = site.parameter("weight", (channels,)) if o.affine else None
    bias = site.parameter("bias", (channels,)) if o.affine else None
    mean = site.buffer("running_mean", (channels,))
    variance = site.buffer("running_var", (channels,))
    counter = site.buffer("num_batches_tracked", (), "int64")
    counted = site.call("aten.add.Tensor", self=counter, other=1)
    site.draft.updates[counter.name] = Mode(counted, None)
    return site.call(
        "aten.batch_norm",
        input=xs[0],
        weight=weight,
        bias=bias,
        running_mean=mean,
        running_var=variance,
        training=TRAINING,
        momentum=o.momentum,
        eps=o.eps,
    )


class GroupNormOptions(Options):
    """Group norm of axis 1."""

    groups: Count
    eps: Annotated[float, Field(gt=0)] = 1e-5


@_step("group_norm", GroupNormOptions, "norm", main="groups")
def _group_norm(site: Site, o: GroupNormOptions, xs: tuple[Ref, ...]) -> Ref:
    channels = site.size(xs[0], 1)
    if channels % o.groups:
        raise Mistake(
            "does not divide its channels",
            place=("groups",),
            found=f"{o.groups} groups, {channels} channels",
        )
    return site.call(
        "aten.group_norm",
        input=xs[0],
        num_groups=o.groups,
        weight=site.parameter("weight", (channels,)),
        bias=site.parameter("bias", (channels,)),
        eps=o.eps,
    )


class LayerNormOptions(Options):
    """Layer norm over the last axes."""

    axes: Count = Field(default=1, description="how many of the last axes")
    eps: Annotated[float, Field(gt=0)] = 1e-5


@_step("layer_norm", LayerNormOptions, "norm")
def _layer_norm(site: Site, o: LayerNormOptions, xs: tuple[Ref, ...]) -> Ref:
    shape = tuple(site.size(xs[0], -i) for i in range(o.axes, 0, -1))
    return site.call(
        "aten.layer_norm",
        input=xs[0],
        normalized_shape=shape,
        weight=site.parameter("weight", shape),
        bias=site.parameter("bias", shape),
        eps=o.eps,
    )


class RmsNormOptions(Options):
    """Root-mean-square norm over the last axis."""

    eps: Annotated[float, Field(gt=0)] = 1e-6


@_step("rms_norm", RmsNormOptions, "norm")
def _rms_norm(site: Site, o: RmsNormOptions, xs: tuple[Ref, ...]) -> Ref:
    shape = (site.size(xs[0], -1),)
    return site.call(
        "aten.rms_norm",
        input=xs[0],
        normalized_shape=shape,
        weight=site.parameter("weight", shape),
        eps=o.eps,
    )


# -- activations ------------------------------------------------------------------------------


def _activation(op: str, options: type[Options], **fixed: Value) -> Row:
    """A row of an operator on one value; options other than the common ones are arguments."""

    def emit(site: Site, o: Any, xs: tuple[Ref, ...]) -> Ref:
        own = {k: getattr(o, k) for k in type(o).model_fields if k not in Options.model_fields}
        return site.call(op, **{"self": xs[0], **fixed, **own})

    return Row(options, emit, op.split(".")[1])


class GeluOptions(Options):
    """Gaussian error linear unit."""

    approximate: Literal["none", "tanh"] = "none"


class LeakyReluOptions(Options):
    """Leaky rectified linear unit."""

    negative_slope: float = 0.01


class EluOptions(Options):
    """Exponential linear unit."""

    alpha: float = 1.0


class SoftmaxOptions(Options):
    """Softmax along one axis."""

    dim: Axis = -1


STEPS |= {
    name: _activation(f"aten.{name}", Options)
    for name in ("relu", "silu", "hardswish", "hardsigmoid", "sigmoid", "tanh", "softplus", "mish")
}
STEPS |= {
    "relu6": _activation("aten.hardtanh", Options, min_val=0.0, max_val=6.0),
    "gelu": _activation("aten.gelu", GeluOptions),
    "leaky_relu": _activation("aten.leaky_relu", LeakyReluOptions),
    "elu": _activation("aten.elu", EluOptions),
    "softmax": _activation("aten.softmax.int", SoftmaxOptions),
    "log_softmax": _activation("aten.log_softmax.int", SoftmaxOptions),
}


class DropoutOptions(Options):
    """Dropout, active in training."""

    p: Annotated[float, Field(ge=0, lt=1)] = 0.5


@_step("dropout", DropoutOptions, main="p")
def _dropout(site: Site, o: DropoutOptions, xs: tuple[Ref, ...]) -> Ref:
    return site.call("aten.dropout", input=xs[0], p=o.p, train=TRAINING) if o.p else xs[0]


# -- pooling and shapes -----------------------------------------------------------------------


class PoolOptions(Options):
    """Pooling over all spatial axes."""

    kernel: Pair = 2
    stride: Pair | None = Field(default=None, description="default: the kernel")
    padding: Padding = "valid"


def _pool(kind: str) -> Emit:
    def emit(site: Site, o: PoolOptions, xs: tuple[Ref, ...]) -> Ref:
        axes = _spatial(site, xs[0], (1, 2, 3))
        kernel = _each(o.kernel, axes, "kernel")
        stride = kernel if o.stride is None else _each(o.stride, axes, "stride")
        return site.call(
            f"aten.{kind}_pool{axes}d",
            self=xs[0],
            kernel_size=kernel,
            stride=stride,
            padding=_padding(o.padding, kernel, stride, (1,) * axes),
        )

    return emit


STEPS["max_pool"] = Row(PoolOptions, _pool("max"), "pool", "kernel")
STEPS["avg_pool"] = Row(PoolOptions, _pool("avg"), "pool", "kernel")


@_step("global_avg_pool", Options, "pool")
def _global_avg_pool(site: Site, o: Options, xs: tuple[Ref, ...]) -> Ref:
    axes = _spatial(site, xs[0], (1, 2, 3))
    return site.call(f"aten.adaptive_avg_pool{axes}d", self=xs[0], output_size=(1,) * axes)


class FlattenOptions(Options):
    """Axes made one."""

    start: Axis = 1
    end: Axis = -1


@_step("flatten", FlattenOptions)
def _flatten(site: Site, o: FlattenOptions, xs: tuple[Ref, ...]) -> Ref:
    return site.call("aten.flatten.using_ints", self=xs[0], start_dim=o.start, end_dim=o.end)


class ReshapeOptions(Options):
    """Another shape; the batch axis stays."""

    shape: tuple[Annotated[int, Field(ge=-1)], ...] = Field(description="without the batch axis")


@_step("reshape", ReshapeOptions, main="shape")
def _reshape(site: Site, o: ReshapeOptions, xs: tuple[Ref, ...]) -> Ref:
    return site.call("aten.reshape", self=xs[0], shape=(Batch(), *o.shape))


class PermuteOptions(Options):
    """Axes in another order, the batch included."""

    dims: tuple[Axis, ...]


@_step("permute", PermuteOptions, main="dims")
def _permute(site: Site, o: PermuteOptions, xs: tuple[Ref, ...]) -> Ref:
    return site.call("aten.permute", self=xs[0], dims=o.dims)


class TransposeOptions(Options):
    """Two axes exchanged."""

    dims: tuple[Axis, Axis]


@_step("transpose", TransposeOptions, main="dims")
def _transpose(site: Site, o: TransposeOptions, xs: tuple[Ref, ...]) -> Ref:
    return site.call("aten.transpose.int", self=xs[0], dim0=o.dims[0], dim1=o.dims[1])


class MeanOptions(Options):
    """Mean over axes."""

    dim: Axis | tuple[Axis, ...]
    keep: bool = Field(default=False, description="keep the axes with size 1")


@_step("mean", MeanOptions, main="dim")
def _mean(site: Site, o: MeanOptions, xs: tuple[Ref, ...]) -> Ref:
    dims = (o.dim,) if isinstance(o.dim, int) else o.dim
    return site.call("aten.mean.dim", self=xs[0], dim=dims, keepdim=o.keep)


class SelectOptions(Options):
    """One position of an axis."""

    dim: Axis = 1
    index: int = 0


@_step("select", SelectOptions, main="index")
def _select(site: Site, o: SelectOptions, xs: tuple[Ref, ...]) -> Ref:
    return site.call("aten.select.int", self=xs[0], dim=o.dim, index=o.index)


class SplitOptions(Options):
    """Several values from one, to be drawn with ``get``."""

    sizes: tuple[Count, ...]
    dim: Axis = 1


@_step("split", SplitOptions, main="sizes")
def _split(site: Site, o: SplitOptions, xs: tuple[Ref, ...]) -> Ref:
    return site.call("aten.split_with_sizes", self=xs[0], split_sizes=o.sizes, dim=o.dim)


class GetOptions(Options):
    """One of several results."""

    index: Natural


@_step("get", GetOptions, main="index")
def _get(site: Site, o: GetOptions, xs: tuple[Ref, ...]) -> Ref:
    return site.call("getitem", source=xs[0], index=o.index)


@_step("identity", Options)
def _identity(site: Site, o: Options, xs: tuple[Ref, ...]) -> Ref:
    return xs[0]


# -- joins ------------------------------------------------------------------------------------


class AddOptions(Options):
    """A sum of values."""

    other: Name | tuple[Name, ...] = Field(default=(), description="names of what is added")


class MulOptions(Options):
    """A product of values."""

    other: Name | tuple[Name, ...] | float = Field(default=(), description="names, or a number")


class CatOptions(Options):
    """Values one after the other along an axis."""

    other: Name | tuple[Name, ...] = Field(default=(), description="names of what follows")
    dim: Axis = 1


def _operands(
    site: Site, o: AddOptions | MulOptions | CatOptions, xs: tuple[Ref, ...]
) -> list[Ref]:
    names = o.other
    others = (names,) if isinstance(names, str) else names if isinstance(names, tuple) else ()
    values = [*xs, *map(site.lookup, others)]
    if len(values) < 2:
        raise Mistake(
            "joins fewer than two values", found=len(values), hint="name the other: add: <name>"
        )
    return values


@_step("add", AddOptions, main="other", several=True)
def _add(site: Site, o: AddOptions, xs: tuple[Ref, ...]) -> Ref:
    return functools.reduce(
        lambda a, b: site.call("aten.add.Tensor", self=a, other=b), _operands(site, o, xs)
    )


@_step("mul", MulOptions, main="other", several=True)
def _mul(site: Site, o: MulOptions, xs: tuple[Ref, ...]) -> Ref:
    if isinstance(o.other, float | int):
        return site.call("aten.mul.Tensor", self=xs[0], other=float(o.other))
    return functools.reduce(
        lambda a, b: site.call("aten.mul.Tensor", self=a, other=b), _operands(site, o, xs)
    )


@_step("cat", CatOptions, main="other", several=True)
def _cat(site: Site, o: CatOptions, xs: tuple[Ref, ...]) -> Ref:
    return site.call("aten.cat", tensors=tuple(_operands(site, o, xs)), dim=o.dim)


# -- tokens and attention ---------------------------------------------------------------------


class EmbeddingOptions(Options):
    """A vector for each token."""

    count: Count = Field(description="size of the vocabulary")
    width: Count = Field(description="features of a vector")


@_step("embedding", EmbeddingOptions)
def _embedding(site: Site, o: EmbeddingOptions, xs: tuple[Ref, ...]) -> Ref:
    weight = site.parameter("weight", (o.count, o.width))
    return site.call("aten.embedding", weight=weight, indices=xs[0])


@_step("positional_embedding", Options, "position")
def _positional_embedding(site: Site, o: Options, xs: tuple[Ref, ...]) -> Ref:
    """A learned vector added at each position of [batch, position, feature]."""
    shape = [site.size(xs[0], i) for i in range(1, len(site.shape(xs[0])))]
    return site.call("aten.add.Tensor", self=xs[0], other=site.parameter("weight", shape))


@_step("class_token", Options)
def _class_token(site: Site, o: Options, xs: tuple[Ref, ...]) -> Ref:
    """A learned token before the first of [batch, position, feature]."""
    width = site.size(xs[0], 2)
    token = site.call(
        "aten.expand", self=site.parameter("weight", (1, 1, width)), size=(Batch(), -1, -1)
    )
    return site.call("aten.cat", tensors=(token, xs[0]), dim=1)


class LayerScaleOptions(Options):
    """A learned factor for each feature."""

    dim: Axis = Field(default=-1, description="the feature axis: -1 of tokens, 1 of images")


@_step("layer_scale", LayerScaleOptions, "scale", main="dim")
def _layer_scale(site: Site, o: LayerScaleOptions, xs: tuple[Ref, ...]) -> Ref:
    rank = len(site.shape(xs[0]))
    after = rank - 1 - o.dim % rank
    weight = site.parameter("weight", (site.size(xs[0], o.dim), *(1,) * after))
    return site.call("aten.mul.Tensor", self=xs[0], other=weight)


class AttentionOptions(Options):
    """Multi-head attention over [batch, position, feature]."""

    heads: Count
    head_width: Count | None = Field(default=None, description="default: features / heads")
    out: Count | None = Field(default=None, description="output features; default: as the input")
    context: Name | None = Field(default=None, description="keys and values come from this value")
    fused: bool = Field(default=False, description="one linear map for query, key and value")
    causal: bool = Field(default=False, description="no position sees a later one")
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    bias: bool = True


@_step("attention", AttentionOptions, "attention", main="heads")
def _attention(site: Site, o: AttentionOptions, xs: tuple[Ref, ...]) -> Ref:
    x = xs[0]
    if len(site.shape(x)) != 3:
        found = _shown(site.shape(x))
        raise Mistake("takes another shape", found=found, expected="[batch, position, feature]")
    features = site.size(x, 2)
    if o.head_width is None and features % o.heads:
        raise Mistake(
            "does not divide its features",
            place=("heads",),
            found=f"{o.heads} heads, {features} features",
            hint="give head_width",
        )
    width = o.head_width or features // o.heads
    inner = o.heads * width
    context = x if o.context is None else site.lookup(o.context)
    if o.fused:
        if o.context is not None:
            raise Mistake("cannot be fused with another context", place=("fused",))
        fused = _linear_map(site.within("qkv"), x, 3 * inner, o.bias)
        parts = site.call("aten.split_with_sizes", self=fused, split_sizes=(inner,) * 3, dim=-1)
        q, k, v = (site.call("getitem", source=parts, index=i) for i in range(3))
    else:
        q = _linear_map(site.within("query"), x, inner, o.bias)
        k, v = (_linear_map(site.within(n), context, inner, o.bias) for n in ("key", "value"))

    def by_heads(value: Ref) -> Ref:
        shape = (Batch(), site.size(value, 1), o.heads, width)
        return site.call(
            "aten.transpose.int",
            self=site.call("aten.reshape", self=value, shape=shape),
            dim0=1,
            dim1=2,
        )

    mixed = site.call(
        "aten.scaled_dot_product_attention",
        query=by_heads(q),
        key=by_heads(k),
        value=by_heads(v),
        dropout_p=Mode(o.dropout, 0.0) if o.dropout else 0.0,
        is_causal=o.causal,
        scale=1.0 / math.sqrt(width),
    )
    tokens = site.call("aten.transpose.int", self=mixed, dim0=1, dim1=2)
    joined = site.call("aten.reshape", self=tokens, shape=(Batch(), site.size(x, 1), inner))
    return _linear_map(site.within("out"), joined, o.out or features, o.bias)


# -- any other operator -----------------------------------------------------------------------


class RawOptions(Options):
    """Arguments of an ATen operator by name, beside what every step takes."""

    model_config = pydantic.ConfigDict(extra="allow")


class ParameterOptions(Base):
    """A learned tensor as an argument."""

    parameter: tuple[Count, ...] = Field(description="its shape")


def raw_row(op: str) -> Row:
    """The row of an ATen operator written by its own name.

    Its arguments are those of the schema; ``%name`` is a value that ``as:`` named, ``:float32`` a
    dtype, ``{parameter: [64]}`` a learned tensor. What is not given takes the step's values, in
    order, and then the defaults.

    Raises:
        GraphError: If there is no such functional operator.
    """
    known = schema(op)

    def emit(site: Site, o: RawOptions, xs: tuple[Ref, ...]) -> Ref:
        given = {k: _argument(site, k, v) for k, v in (o.model_extra or {}).items()}
        waiting: list[Value] = list(xs)
        for argument in known.args:
            if argument.name in given or not argument.type.removeprefix("Optional[").startswith(
                ("Tensor", "List[Tensor]")
            ):
                continue
            if argument.type.startswith("List[Tensor]"):
                given[argument.name], waiting = tuple(waiting), []
            elif waiting:
                given[argument.name] = waiting.pop(0)
            elif argument.required and argument.type.startswith("Optional"):
                given[argument.name] = None
        return site.call(op, **given)

    return Row(RawOptions, emit, op.split(".")[1], several=True)


def _argument(site: Site, name: str, value: Json) -> Value:
    """A YAML value as an argument of an operator."""
    match value:
        case str() if value.startswith("%"):
            return site.lookup(value[1:])
        case str() if value.startswith(":"):
            return Atom(value[1:])
        case tuple():
            return tuple(_argument(site, name, v) for v in value)
        case Mapping():
            try:
                return site.parameter(name, ParameterOptions.model_validate(value).parameter)
            except pydantic.ValidationError:
                raise Mistake(
                    "is no argument",
                    place=(name,),
                    found="a mapping",
                    expected="{parameter: [sizes]}, a value, or %name",
                ) from None
        case None | bool() | int() | float() | str():
            return value
    raise Mistake("is no argument", place=(name,), found=repr(value))


def aten_names() -> list[str]:
    """Names of the ATen operators that change nothing in place, for advice."""
    names = torch._C._dispatch_get_all_op_names()
    functional = (n for n in names if n.startswith("aten::") and not n.endswith("_"))
    return [n.replace("::", ".") for n in functional]


def find(name: str) -> Row | None:
    """The row of a step, ATen operators included; None where there is none."""
    if name in STEPS or not name.startswith("aten."):
        return STEPS.get(name)
    try:
        return raw_row(name)
    except GraphError:
        return None
