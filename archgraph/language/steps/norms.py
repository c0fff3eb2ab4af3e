"""Steps that normalise."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from archgraph.fields import Count, Mistake
from archgraph.graph.ir import TRAINING, Mode, Ref
from archgraph.language.steps.base import Site, add_step

Epsilon = Annotated[float, Field(gt=0), "added to the variance"]


@add_step("batch_norm", "bn", batch_norm=True, example="batch_norm: {momentum: 0.2}", axes="maps")
def _batch_norm(
    site: Site,
    x: Ref,
    eps: Epsilon = 1e-5,
    momentum: Annotated[
        float, Field(gt=0, le=1), "share of a new batch in the running statistics"
    ] = 0.1,
    affine: Annotated[bool, "learn a factor and a bias for each channel"] = True,
) -> Ref:
    """Scale each channel (axis 1) to mean 0, variance 1; eval mode uses running statistics."""
    channels = site.size(x, 1)
    weight = site.parameter("weight", (channels,)) if affine else None
    bias = site.parameter("bias", (channels,)) if affine else None
    mean = site.buffer("running_mean", (channels,))
    variance = site.buffer("running_var", (channels,))
    # Counted in training only, as torch.nn does, so that checkpoints have the same keys and values.
    counter = site.buffer("num_batches_tracked", (), "int64")
    counted = site.call("aten.add.Tensor", self=counter, other=1)
    site.draft.updates[counter.name] = Mode(counted, None)
    return site.call(
        "aten.batch_norm",
        input=x,
        weight=weight,
        bias=bias,
        running_mean=mean,
        running_var=variance,
        training=TRAINING,
        momentum=momentum,
        eps=eps,
    )


@add_step("group_norm", "norm", main="groups", example="group_norm: 4", axes="maps")
def _group_norm(
    site: Site,
    x: Ref,
    groups: Annotated[Count, "number of groups that the channels form"],
    eps: Epsilon = 1e-5,
) -> Ref:
    """Scale groups of channels (axis 1) of each example to mean 0 and variance 1."""
    channels = site.size(x, 1)
    if channels % groups:
        sizes = f"{groups} groups, {channels} channels"
        raise Mistake("does not divide its channels", place=("groups",), found=sizes)
    return site.call(
        "aten.group_norm",
        input=x,
        num_groups=groups,
        weight=site.parameter("weight", (channels,)),
        bias=site.parameter("bias", (channels,)),
        eps=eps,
    )


@add_step("layer_norm", "norm", example="layer_norm", axes="last")
def _layer_norm(
    site: Site,
    x: Ref,
    axes: Annotated[Count, "number of last axes to normalise over"] = 1,
    eps: Epsilon = 1e-5,
) -> Ref:
    """Scale the numbers along the last axes to mean 0 and variance 1."""
    shape = tuple(site.size(x, -i) for i in range(axes, 0, -1))
    return site.call(
        "aten.layer_norm",
        input=x,
        normalized_shape=shape,
        weight=site.parameter("weight", shape),
        bias=site.parameter("bias", shape),
        eps=eps,
    )


@add_step("rms_norm", "norm", example="rms_norm", axes="last")
def _rms_norm(site: Site, x: Ref, eps: Epsilon = 1e-6) -> Ref:
    """Divide the numbers along the last axis by their root mean square."""
    shape = (site.size(x, -1),)
    return site.call(
        "aten.rms_norm",
        input=x,
        normalized_shape=shape,
        weight=site.parameter("weight", shape),
        eps=eps,
    )
