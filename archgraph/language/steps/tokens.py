"""Steps on the last axis and on tokens: linear maps, embeddings, attention."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from archgraph.fields import Count, Mistake, Name
from archgraph.graph.ir import Batch, Mode, Ref
from archgraph.language.steps.base import AxisNumber, Site, StepOptions, shown, step


class LinearOptions(StepOptions):
    """A linear map of the last axis."""

    out: Count = Field(description="output features")
    bias: bool = Field(default=True, description="a learned summand for each output feature")


def _linear_map(site: Site, x: Ref, out: int, bias: bool) -> Ref:
    features = site.size(x, -1)
    return site.call(
        "aten.linear",
        input=x,
        weight=site.parameter("weight", (out, features)),
        bias=site.parameter("bias", (out,)) if bias else None,
    )


@step("linear", LinearOptions, main="out", example="linear: 10")
def _linear(site: Site, o: LinearOptions, xs: tuple[Ref, ...]) -> Ref:
    """A linear map of the last axis."""
    return _linear_map(site, xs[0], o.out, o.bias)


class EmbeddingOptions(StepOptions):
    """A vector for each token."""

    count: Count = Field(description="size of the vocabulary")
    width: Count = Field(description="features of a vector")


@step("embedding", EmbeddingOptions, example="embedding: {count: 1000, width: 64}")
def _embedding(site: Site, o: EmbeddingOptions, xs: tuple[Ref, ...]) -> Ref:
    """A learned vector for each token, an integer: one more axis at the end."""
    weight = site.parameter("weight", (o.count, o.width))
    return site.call("aten.embedding", weight=weight, indices=xs[0])


@step("positional_embedding", StepOptions, "position", example="positional_embedding")
def _positional_embedding(site: Site, o: StepOptions, xs: tuple[Ref, ...]) -> Ref:
    """A learned vector is added at each position of [batch, position, feature]."""
    shape = [site.size(xs[0], i) for i in range(1, len(site.shape(xs[0])))]
    return site.call("aten.add.Tensor", self=xs[0], other=site.parameter("weight", shape))


@step("class_token", StepOptions, example="class_token")
def _class_token(site: Site, o: StepOptions, xs: tuple[Ref, ...]) -> Ref:
    """A learned token before the first of [batch, position, feature]."""
    width = site.size(xs[0], 2)
    token = site.call(
        "aten.expand", self=site.parameter("weight", (1, 1, width)), size=(Batch(), -1, -1)
    )
    return site.call("aten.cat", tensors=(token, xs[0]), dim=1)


class LayerScaleOptions(StepOptions):
    """A learned factor for each feature."""

    dim: AxisNumber = Field(default=-1, description="the feature axis: -1 of tokens, 1 of images")


@step("layer_scale", LayerScaleOptions, "scale", main="dim", example="layer_scale: {dim: 1}")
def _layer_scale(site: Site, o: LayerScaleOptions, xs: tuple[Ref, ...]) -> Ref:
    """A learned factor for each feature."""
    rank = len(site.shape(xs[0]))
    after = rank - 1 - o.dim % rank
    weight = site.parameter("weight", (site.size(xs[0], o.dim), *(1,) * after))
    return site.call("aten.mul.Tensor", self=xs[0], other=weight)


class AttentionOptions(StepOptions):
    """Multi-head attention over [batch, position, feature]."""

    heads: Count = Field(description="number of heads")
    head_width: Count | None = Field(default=None, description="default: features / heads")
    out: Count | None = Field(default=None, description="output features; default: as the input")
    context: Name | None = Field(default=None, description="keys and values come from this value")
    fused: bool = Field(default=False, description="one linear map for query, key and value")
    causal: bool = Field(default=False, description="no position sees a later one")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="probability with which an attention weight is dropped in training"
    )
    bias: bool = Field(default=True, description="of the linear maps")


@step("attention", AttentionOptions, main="heads", example="attention: {heads: 4}")
def _attention(site: Site, o: AttentionOptions, xs: tuple[Ref, ...]) -> Ref:
    """Multi-head attention over [batch, position, feature], with its four linear maps."""
    x = xs[0]
    if len(site.shape(x)) != 3:
        found = shown(site.shape(x))
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

    def by_heads(value: Ref) -> Ref:
        shape = (Batch(), site.size(value, 1), o.heads, width)
        return site.call(
            "aten.transpose.int",
            self=site.call("aten.reshape", self=value, shape=shape),
            dim0=1,
            dim1=2,
        )

    query, key, value = _projections(site, o, x, inner)
    mixed = site.call(
        "aten.scaled_dot_product_attention",
        query=by_heads(query),
        key=by_heads(key),
        value=by_heads(value),
        dropout_p=Mode(o.dropout, 0.0) if o.dropout else 0.0,
        is_causal=o.causal,
        scale=1.0 / math.sqrt(width),
    )
    tokens = site.call("aten.transpose.int", self=mixed, dim0=1, dim1=2)
    joined = site.call("aten.reshape", self=tokens, shape=(Batch(), site.size(x, 1), inner))
    return _linear_map(site.within("out"), joined, o.out or features, o.bias)


def _projections(site: Site, o: AttentionOptions, x: Ref, inner: int) -> tuple[Ref, Ref, Ref]:
    """Query, key and value: three linear maps, or three parts of a fused one."""
    if not o.fused:
        context = x if o.context is None else site.lookup(o.context)
        query = _linear_map(site.within("query"), x, inner, o.bias)
        key, value = (_linear_map(site.within(n), context, inner, o.bias) for n in ("key", "value"))
        return query, key, value
    if o.context is not None:
        raise Mistake("cannot be fused with another context", place=("fused",))
    fused = _linear_map(site.within("qkv"), x, 3 * inner, o.bias)
    parts = site.call("aten.split_with_sizes", self=fused, split_sizes=(inner,) * 3, dim=-1)
    query, key, value = (site.call("getitem", source=parts, index=i) for i in range(3))
    return query, key, value
