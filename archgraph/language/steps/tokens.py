"""Steps on the last axis and on tokens: linear maps, embeddings, attention."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from archgraph.fields import Count, Mistake, Name
from archgraph.graph.ir import BATCH, Mode, Ref, Value
from archgraph.graph.polynomial import Polynomial
from archgraph.language.steps.base import AxisNumber, Site, add_step, shape_text


def _linear_map(site: Site, x: Ref, out: int, bias: bool) -> Ref:
    features = site.size(x, -1)
    return site.call(
        "aten.linear",
        input=x,
        weight=site.parameter("weight", (out, features)),
        bias=site.parameter("bias", (out,)) if bias else None,
    )


@add_step("linear", main="out", example="linear: 10", axes="last")
def _linear(
    site: Site,
    x: Ref,
    out: Annotated[Count, "output features"],
    bias: Annotated[bool, "learn a bias for each output feature"] = True,
) -> Ref:
    """Apply a linear map to the last axis."""
    return _linear_map(site, x, out, bias)


@add_step("embedding", example="embedding: {count: 1000, width: 64}")
def _embedding(
    site: Site,
    x: Ref,
    count: Annotated[Count, "size of the vocabulary"],
    width: Annotated[Count, "features of a vector"],
) -> Ref:
    """Look up a learned vector for each token (an integer); adds an axis at the end."""
    weight = site.parameter("weight", (count, width))
    return site.call("aten.embedding", weight=weight, indices=x)


@add_step("positional_embedding", "position", example="positional_embedding")
def _positional_embedding(site: Site, x: Ref) -> Ref:
    """Add a learned vector at each position of [batch, position, feature].

    Where the number of positions is open, there are as many vectors as its largest value.
    """
    shape = site.shape(x)[1:]
    weight = site.parameter("weight", [site.largest(size) for size in shape])
    vectors: Value = weight
    for dim, size in enumerate(shape):
        if isinstance(size, Polynomial):
            vectors = site.call("aten.slice.Tensor", self=vectors, dim=dim, start=0, end=size)
    return site.call("aten.add.Tensor", self=x, other=vectors)


@add_step("class_token", example="class_token")
def _class_token(site: Site, x: Ref) -> Ref:
    """Put a learned token before the first of [batch, position, feature]."""
    width = site.size(x, 2)
    token = site.call(
        "aten.expand", self=site.parameter("weight", (1, 1, width)), size=(BATCH, -1, -1)
    )
    return site.call("aten.cat", tensors=(token, x), dim=1)


@add_step("layer_scale", "scale", main="dim", example="layer_scale: {dim: 1}", axes="same")
def _layer_scale(
    site: Site,
    x: Ref,
    dim: Annotated[AxisNumber, "the feature axis: -1 of tokens, 1 of images"] = -1,
) -> Ref:
    """Multiply each feature by a learned factor."""
    rank = len(site.shape(x))
    after = rank - 1 - dim % rank  # axes of size 1, so that the weight broadcasts
    weight = site.parameter("weight", (site.size(x, dim), *(1,) * after))
    return site.call("aten.mul.Tensor", self=x, other=weight)


@add_step("attention", main="heads", example="attention: {heads: 4}")
def _attention(
    site: Site,
    x: Ref,
    heads: Annotated[Count, "number of heads"],
    head_width: Annotated[Count | None, "default: features / heads"] = None,
    out: Annotated[Count | None, "output features; default: as the input"] = None,
    context: Annotated[
        Name | None, "name of the value from which keys and values are computed"
    ] = None,
    fused: Annotated[bool, "use one linear layer for query, key and value"] = False,
    causal: Annotated[bool, "each token attends only to itself and earlier tokens"] = False,
    dropout: Annotated[
        float,
        Field(ge=0, lt=1),
        "probability with which an attention weight is dropped in training",
    ] = 0.0,
    bias: Annotated[bool, "learn biases in the linear layers"] = True,
) -> Ref:
    """Apply multi-head attention over [batch, position, feature], with its four linear layers."""
    if len(site.shape(x)) != 3:
        actual = shape_text(site.shape(x))
        raise Mistake("has the wrong shape", found=actual, expected="[batch, position, feature]")
    features = site.size(x, 2)
    if head_width is None and features % heads:
        sizes = f"{heads} heads, {features} features"
        raise Mistake(
            "does not divide its features", place=("heads",), found=sizes, hint="give head_width"
        )
    width = head_width or features // heads
    inner = heads * width

    def by_heads(value: Ref) -> Ref:
        shape = (BATCH, site.shape(value)[1], heads, width)
        split = site.call("aten.reshape", self=value, shape=shape)
        return site.call("aten.transpose.int", self=split, dim0=1, dim1=2)

    query, key, value = _projections(site, x, inner, context, fused, bias)
    mixed = site.call(
        "aten.scaled_dot_product_attention",
        query=by_heads(query),
        key=by_heads(key),
        value=by_heads(value),
        # A number, not a flag: the operator itself has no eval mode.
        dropout_p=Mode(dropout, 0.0) if dropout else 0.0,
        is_causal=causal,
        # Written out, as a capture has it: the default, 1/√d, would change with a cut of d.
        scale=1.0 / math.sqrt(width),
    )
    tokens = site.call("aten.transpose.int", self=mixed, dim0=1, dim1=2)
    joined = site.call("aten.reshape", self=tokens, shape=(BATCH, site.shape(x)[1], inner))
    return _linear_map(site.within("out"), joined, out or features, bias)


def _projections(
    site: Site, x: Ref, inner: int, context: str | None, fused: bool, bias: bool
) -> tuple[Ref, Ref, Ref]:
    """Return query, key and value: three linear maps, or three parts of a fused one."""
    if not fused:
        other = x if context is None else site.lookup(context)
        query = _linear_map(site.within("query"), x, inner, bias)
        key, value = (_linear_map(site.within(n), other, inner, bias) for n in ("key", "value"))
        return query, key, value
    if context is not None:
        raise Mistake("cannot be fused with another context", place=("fused",))
    # One product instead of three; query, key and value in the order of `in_proj_weight`.
    joint = _linear_map(site.within("qkv"), x, 3 * inner, bias)
    parts = site.call("aten.split_with_sizes", self=joint, split_sizes=(inner,) * 3, dim=-1)
    query, key, value = (site.call("getitem", source=parts, index=i) for i in range(3))
    return query, key, value
