"""Steps that slide a window over all spatial axes: convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

from archgraph.errors import ErrorFacts
from archgraph.fields import Count, Mistake, Natural
from archgraph.graph.ir import Ref
from archgraph.language.steps.base import CountOrPair, Padding, Site, add_step, shape_text

Kernel = Annotated[CountOrPair, "size of the window: one number, or one for each spatial axis"]
Stride = Annotated[CountOrPair, "distance between windows"]
AroundInput = Annotated[
    Padding, "zeros around the input; same: size / stride, rounded up; valid: 0; or sizes"
]
Dilation = Annotated[CountOrPair, "distance between the elements of a window"]
Groups = Annotated[Count, "number of groups of channels; each group is convolved separately"]
Bias = Annotated[
    bool | Literal["auto"], "learn a bias; auto: only if no batch norm is in the same list of steps"
]


class Window(NamedTuple):
    """Window of a convolution or pooling, with one number per spatial dimension in each field."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


def _each(value: CountOrPair | tuple[Natural, ...], count: int, what: str) -> tuple[int, ...]:
    """Expand to one number per spatial axis."""
    if isinstance(value, int):
        return (value,) * count
    if len(value) != count:
        facts: ErrorFacts = {"found": list(value), "expected": f"one number, or {count}"}
        raise Mistake("has sizes for another number of axes", place=(what,), **facts)
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
        reach = spread * (size - 1) + 1  # positions that a window spans
        # Windows that do not overlap tile the input: nothing to pad.
        missing = 0 if distance >= reach else reach - 1 if reach % 2 else reach - distance
        # ATen's operators pad both ends equally.
        if missing % 2:
            hint = "choose an odd kernel, or write the padding"
            window = f"kernel {size}, stride {distance}"
            raise Mistake("cannot be padded evenly", place=("padding",), found=window, hint=hint)
        result.append(missing // 2)
    return tuple(result)


def _spatial(site: Site, x: Ref, ranks: Sequence[int]) -> int:
    """Return the number of spatial axes of a value of shape [batch, channel, …]."""
    rank = len(site.shape(x))
    if rank - 2 not in ranks:
        shapes = " or ".join(f"[batch, channel{', size' * n}]" for n in ranks)
        raise Mistake("has the wrong shape", found=shape_text(site.shape(x)), expected=shapes)
    return rank - 2


def _window(
    site: Site,
    x: Ref,
    ranks: Sequence[int],
    kernel: CountOrPair,
    stride: CountOrPair,
    padding: Padding,
    dilation: CountOrPair = 1,
) -> Window:
    axes = _spatial(site, x, ranks)
    sizes = _each(kernel, axes, "kernel")
    steps = _each(stride, axes, "stride")
    spread = _each(dilation, axes, "dilation")
    return Window(sizes, steps, _padding(padding, sizes, steps, spread), spread)


def _check_groups(groups: int, channels: int, out: int) -> None:
    for what, size in (("input", channels), ("output", out)):
        if size % groups:
            sizes = f"{groups} groups, {size} channels"
            raise Mistake(f"does not divide its {what} channels", place=("groups",), found=sizes)


def _convolve(
    site: Site, x: Ref, out: int, groups: int, window: Window, bias: bool | Literal["auto"]
) -> Ref:
    channels = site.size(x, 1)
    _check_groups(groups, channels, out)
    # A following batch norm subtracts any bias again.
    has_bias = not site.normalised if bias == "auto" else bias
    return site.call(
        f"aten.conv{len(window.kernel)}d",
        input=x,
        weight=site.parameter("weight", (out, channels // groups, *window.kernel)),
        bias=site.parameter("bias", (out,)) if has_bias else None,
        stride=window.stride,
        padding=window.padding,
        dilation=window.dilation,
        groups=groups,
    )


def _convolution(name: str, ranks: Sequence[int], sentence: str, example: str) -> None:
    def emit(
        site: Site,
        x: Ref,
        out: Annotated[Count, "output channels"],
        kernel: Kernel = 3,
        stride: Stride = 1,
        padding: AroundInput = "same",
        dilation: Dilation = 1,
        groups: Groups = 1,
        bias: Bias = "auto",
    ) -> Ref:
        window = _window(site, x, ranks, kernel, stride, padding, dilation)
        return _convolve(site, x, out, groups, window, bias)

    emit.__doc__ = sentence
    add_step(name, "conv", "out", example=example, axes="maps")(emit)


_convolution(
    "conv",
    (2, 3),
    "Convolve images [batch, channel, size, size], or volumes with one more size.",
    "conv: {out: 64, kernel: 3, stride: 2}",
)
_convolution(
    "conv1d",
    (1,),
    "Convolve signals [batch, channel, size].",
    "conv1d: {out: 64, kernel: 3}",
)


@add_step("depthwise", "conv", main="kernel", example="depthwise: {kernel: 3}", axes="maps")
def _depthwise(
    site: Site,
    x: Ref,
    multiplier: Annotated[Count, "output channels for each input channel"] = 1,
    kernel: Kernel = 3,
    stride: Stride = 1,
    padding: AroundInput = "same",
    dilation: Dilation = 1,
    bias: Bias = "auto",
) -> Ref:
    """Convolve each channel by itself."""
    window = _window(site, x, (1, 2, 3), kernel, stride, padding, dilation)
    channels = site.size(x, 1)
    return _convolve(site, x, channels * multiplier, channels, window, bias)


def _pool(kind: str, sentence: str) -> None:
    def emit(
        site: Site,
        x: Ref,
        kernel: Kernel = 2,
        stride: Annotated[
            CountOrPair | None, "distance between windows; default: the kernel"
        ] = None,
        padding: AroundInput = "valid",
    ) -> Ref:
        window = _window(site, x, (1, 2, 3), kernel, kernel if stride is None else stride, padding)
        return site.call(
            f"aten.{kind}_pool{len(window.kernel)}d",
            self=x,
            kernel_size=window.kernel,
            stride=window.stride,
            padding=window.padding,
        )

    emit.__doc__ = sentence
    example = f"{kind}_pool: {{kernel: 2}}"
    add_step(f"{kind}_pool", "pool", "kernel", example=example, axes="maps")(emit)


_pool("max", "Take the largest number of each window.")
_pool("avg", "Take the mean of each window.")


@add_step("global_avg_pool", "pool", example="global_avg_pool", axes="maps")
def _global_avg_pool(site: Site, x: Ref) -> Ref:
    """Take the mean over all spatial positions of each channel; every spatial axis gets size 1."""
    axes = _spatial(site, x, (1, 2, 3))
    return site.call(f"aten.adaptive_avg_pool{axes}d", self=x, output_size=(1,) * axes)


@add_step("upsample", main="factor", example="upsample: 2", axes="maps")
def _upsample(
    site: Site,
    x: Ref,
    factor: Annotated[CountOrPair, "factor of each spatial size"] = 2,
    mode: Annotated[
        Literal["nearest", "linear"], "the nearest number, or a mean (bilinear for images)"
    ] = "nearest",
) -> Ref:
    """Enlarge the spatial axes: repeat numbers, or interpolate between them."""
    axes = _spatial(site, x, (1, 2, 3))
    linear = {1: "linear", 2: "bilinear", 3: "trilinear"}[axes]
    options = {"align_corners": False} if mode == "linear" else {}
    return site.call(
        f"aten.upsample_{linear if mode == 'linear' else mode}{axes}d.vec",
        input=x,
        output_size=None,
        scale_factors=tuple(map(float, _each(factor, axes, "factor"))),
        **options,
    )


@add_step(
    "conv_transpose",
    main="out",
    example="conv_transpose: {out: 32, kernel: 2, stride: 2}",
    axes="maps",
)
def _conv_transpose(
    site: Site,
    x: Ref,
    out: Annotated[Count, "output channels"],
    kernel: Kernel = 2,
    stride: Annotated[CountOrPair, "factor of each spatial size"] = 2,
    padding: Annotated[
        Padding, "cropped from the border of the result; same: size · stride; valid: 0; or sizes"
    ] = "same",
    dilation: Dilation = 1,
    groups: Groups = 1,
    bias: Bias = "auto",
) -> Ref:
    """Apply a transposed convolution, which enlarges the spatial axes."""
    axes = _spatial(site, x, (1, 2, 3))
    sizes = _each(kernel, axes, "kernel")
    steps = _each(stride, axes, "stride")
    spread = _each(dilation, axes, "dilation")
    # size · stride + surplus - 2 · padding + extra: PyTorch's `output_padding` is the last.
    surplus = [d * (k - 1) + 1 - s for k, s, d in zip(sizes, steps, spread, strict=True)]
    cut, extra = [0] * axes, [0] * axes
    if padding == "same":
        cut = [max(-(-more // 2), 0) for more in surplus]
        extra = [2 * p - more for p, more in zip(cut, surplus, strict=True)]
        for size, distance, wide, more in zip(sizes, steps, spread, extra, strict=True):
            if more >= max(distance, wide):
                window = f"kernel {size}, stride {distance}"
                hint = "choose an odd kernel, or write the padding"
                raise Mistake("cannot be cut evenly", place=("padding",), found=window, hint=hint)
    elif padding != "valid":
        cut = list(_each(padding, axes, "padding"))
    channels = site.size(x, 1)
    _check_groups(groups, channels, out)
    has_bias = not site.normalised if bias == "auto" else bias
    return site.call(
        f"aten.conv_transpose{axes}d{'' if axes == 1 else '.input'}",
        input=x,
        weight=site.parameter("weight", (channels, out // groups, *sizes)),
        bias=site.parameter("bias", (out,)) if has_bias else None,
        stride=steps,
        padding=tuple(cut),
        output_padding=tuple(extra),
        groups=groups,
        dilation=spread,
    )
