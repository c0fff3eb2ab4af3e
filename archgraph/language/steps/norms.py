"""Steps that normalise."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from archgraph.fields import Count, Mistake
from archgraph.graph.ir import TRAINING, Mode, Ref
from archgraph.language.steps.base import Site, StepOptions, step

Epsilon = Annotated[float, Field(gt=0, description="added to the variance")]


class BatchNormOptions(StepOptions):
    """Batch norm over axis 1, with running statistics."""

    eps: Epsilon = 1e-5
    momentum: Annotated[
        float, Field(gt=0, le=1, description="share of a new batch in the running statistics")
    ] = 0.1
    affine: bool = Field(default=True, description="a learned factor and summand per channel")


@step("batch_norm", BatchNormOptions, "bn", batch_norm=True, example="batch_norm: {momentum: 0.2}")
def _batch_norm(site: Site, o: BatchNormOptions, xs: tuple[Ref, ...]) -> Ref:
    """Each channel (axis 1) gets mean 0 and variance 1 over the batch; running ones in eval."""
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


class GroupNormOptions(StepOptions):
    """Group norm of axis 1."""

    groups: Count = Field(description="number of groups that the channels form")
    eps: Epsilon = 1e-5


@step("group_norm", GroupNormOptions, "norm", main="groups", example="group_norm: 4")
def _group_norm(site: Site, o: GroupNormOptions, xs: tuple[Ref, ...]) -> Ref:
    """Groups of channels (axis 1) of each example get mean 0 and variance 1."""
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


class LayerNormOptions(StepOptions):
    """Layer norm over the last axes."""

    axes: Count = Field(default=1, description="how many of the last axes")
    eps: Epsilon = 1e-5


@step("layer_norm", LayerNormOptions, "norm", example="layer_norm")
def _layer_norm(site: Site, o: LayerNormOptions, xs: tuple[Ref, ...]) -> Ref:
    """The numbers along the last axes get mean 0 and variance 1."""
    shape = tuple(site.size(xs[0], -i) for i in range(o.axes, 0, -1))
    return site.call(
        "aten.layer_norm",
        input=xs[0],
        normalized_shape=shape,
        weight=site.parameter("weight", shape),
        bias=site.parameter("bias", shape),
        eps=o.eps,
    )


class RmsNormOptions(StepOptions):
    """Root-mean-square norm over the last axis."""

    eps: Epsilon = 1e-6


@step("rms_norm", RmsNormOptions, "norm", example="rms_norm")
def _rms_norm(site: Site, o: RmsNormOptions, xs: tuple[Ref, ...]) -> Ref:
    """The numbers along the last axis are divided by their root mean square."""
    shape = (site.size(xs[0], -1),)
    return site.call(
        "aten.rms_norm",
        input=xs[0],
        normalized_shape=shape,
        weight=site.parameter("weight", shape),
        eps=o.eps,
    )
