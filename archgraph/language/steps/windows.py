"""Steps that slide a window over all spatial axes: convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from archgraph.fields import Count, Mistake, Natural
from archgraph.graph.ir import Ref
from archgraph.language.steps.base import CountOrPair, Emit, Padding, Site, StepOptions, shown, step

Kernel = Annotated[
    CountOrPair, Field(description="size of the window: one number, or one for each spatial axis")
]
Stride = Annotated[CountOrPair, Field(description="distance between windows")]
Dilation = Annotated[CountOrPair, Field(description="distance between the positions of a window")]
Bias = Annotated[
    bool | Literal["auto"],
    Field(description="auto: unless a batch norm stands in the same list of steps"),
]
_PADDING = "zeros around the input; same: size / stride, rounded up; valid: 0; or sizes"


class ConvOptions(StepOptions):
    """A convolution over all spatial axes."""

    out: Count = Field(description="output channels")
    kernel: Kernel = 3
    stride: Stride = 1
    padding: Padding = Field(default="same", description=_PADDING)
    dilation: Dilation = 1
    groups: Count = Field(default=1, description="groups of channels that do not mix")
    bias: Bias = "auto"


class DepthwiseOptions(StepOptions):
    """A convolution of each channel by itself."""

    multiplier: Count = Field(default=1, description="output channels for each input channel")
    kernel: Kernel = 3
    stride: Stride = 1
    padding: Padding = Field(default="same", description=_PADDING)
    dilation: Dilation = 1
    bias: Bias = "auto"


def _each(value: CountOrPair | tuple[Natural, ...], count: int, what: str) -> tuple[int, ...]:
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
    for size, distance, spread in zip(kernel, stride, dilation, strict=True):
        reach = spread * (size - 1) + 1
        # Windows that do not overlap tile the input: nothing to pad.
        missing = 0 if distance >= reach else reach - 1 if reach % 2 else reach - distance
        if missing % 2:
            raise Mistake(
                "cannot be padded evenly",
                place=("padding",),
                found=f"kernel {size}, stride {distance}",
                hint="choose an odd kernel, or write the padding",
            )
        result.append(missing // 2)
    return tuple(result)


def _spatial(site: Site, x: Ref, ranks: Sequence[int]) -> int:
    """Number of spatial axes of a value of shape [batch, channel, …]."""
    rank = len(site.shape(x))
    if rank - 2 not in ranks:
        shapes = " or ".join(f"[batch, channel{', size' * n}]" for n in ranks)
        raise Mistake("takes another shape", found=shown(site.shape(x)), expected=shapes)
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


@step("conv", ConvOptions, main="out", example="conv: {out: 64, kernel: 3, stride: 2}")
def _conv(site: Site, o: ConvOptions, xs: tuple[Ref, ...]) -> Ref:
    """A convolution of images or volumes: [batch, channel, size, size] or one size more."""
    return _convolve(site, xs[0], o.out, o.groups, o, (2, 3))


@step("conv1d", ConvOptions, "conv", main="out", example="conv1d: {out: 64, kernel: 3}")
def _conv1d(site: Site, o: ConvOptions, xs: tuple[Ref, ...]) -> Ref:
    """A convolution of signals: [batch, channel, size]."""
    return _convolve(site, xs[0], o.out, o.groups, o, (1,))


@step("depthwise", DepthwiseOptions, "conv", main="kernel", example="depthwise: {kernel: 3}")
def _depthwise(site: Site, o: DepthwiseOptions, xs: tuple[Ref, ...]) -> Ref:
    """A convolution of each channel by itself."""
    channels = site.size(xs[0], 1)
    return _convolve(site, xs[0], channels * o.multiplier, channels, o, (1, 2, 3))


class PoolOptions(StepOptions):
    """Pooling over all spatial axes."""

    kernel: Kernel = 2
    stride: Stride | None = Field(
        default=None, description="distance between windows; default: the kernel"
    )
    padding: Padding = Field(default="valid", description=_PADDING)


def _pool(kind: str, sentence: str) -> Emit:
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

    emit.__doc__ = sentence
    return step(
        f"{kind}_pool", PoolOptions, "pool", "kernel", example=f"{kind}_pool: {{kernel: 2}}"
    )(emit)


_pool("max", "The largest number of each window.")
_pool("avg", "The mean of each window.")


@step("global_avg_pool", StepOptions, "pool", example="global_avg_pool")
def _global_avg_pool(site: Site, o: StepOptions, xs: tuple[Ref, ...]) -> Ref:
    """The mean over all positions of each channel; every spatial axis gets size 1."""
    axes = _spatial(site, xs[0], (1, 2, 3))
    return site.call(f"aten.adaptive_avg_pool{axes}d", self=xs[0], output_size=(1,) * axes)
