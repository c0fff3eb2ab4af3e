"""Attention as one operator; spelt out, it is two products with a softmax between."""

from __future__ import annotations

import math

from archgraph.graph.ir import ArchGraph, Node, TensorType, size_at
from archgraph.layout.layouts import divide, product
from archgraph.ops.equations import Dims, Dirt, Equations
from archgraph.ops.operands import sizes_of
from archgraph.ops.operator import Call, Growth, Operator, Rows, Spelling
from archgraph.ops.types import Args, broadcast, certain, number, plain_value, real
from archgraph.ops.zeros import open_dims


def _attention_axes(eq: Equations) -> list[Dims]:
    """q[..., L, d] · k[..., S, d], softmax over S, · v[..., S, e] → [..., L, e]."""
    q, k, v = eq.arg("query"), eq.arg("key"), eq.arg("value")
    eq.unify(q[-1], k[-1])
    eq.contract(q[-1], [(eq.node.arg("query"), -1), (eq.node.arg("key"), -1)], "attention")
    eq.unify(k[-2], v[-2])
    for axis in range(-3, -min(len(q), len(k), len(v)) - 1, -1):
        if q[axis].size == k[axis].size:
            eq.unify(q[axis], k[axis])
        elif eq.node.arg("enable_gqa") is True:  # several query heads share a key head
            shared = divide(q[axis].size, k[axis].size)
            eq.unify(q[axis], product((k[axis], eq.new(shared or 1))))
        eq.broadcast([[k[axis]], [v[axis]]])
    if eq.has("attn_mask"):
        scores: Dims = [*q[:-2], q[-2], k[-2]]
        eq.broadcast([scores, eq.arg("attn_mask")])
    eq.span(k[-2], "softmax")
    if len(q) > 2:
        eq.role(q[-3], "heads")
        eq.role(k[-3], "heads")
    eq.role(q[-1], "head_dim")
    eq.role(v[-1], "value_dim" if eq.resolve(q[-1]) is not eq.resolve(v[-1]) else "head_dim")
    lead = q[:-2] if eq.node.arg("enable_gqa") is True else eq.broadcast([q[:-2], k[:-2], v[:-2]])
    return [[*lead, q[-2], v[-1]]]


def _attention_zero(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Attention: a mean of values, zero where all values are."""
    (dims,) = results
    values = eq.node.arg("value")
    own = eq.axes_in([d for i, d in enumerate(eq.of(values)) if i != len(eq.of(values)) - 2])
    others = tuple(v for v in eq.axes_in(dims) if v not in own)
    return [others + open_dims(dims[-2:-1]) + eq.dirt_of(values)]


def _attention_macs(graph: ArchGraph, node: Node) -> int:
    """Scores, and the values that they weigh."""
    q, k, v = (sizes_of(graph, node.arg(n)) for n in ("query", "key", "value"))
    scores = math.prod(q[:-1]) * k[-2]
    return scores * (q[-1] + v[-1])


def _attention_type(args: Args) -> TensorType:
    """[n, heads, a, d], [n, heads, b, d] and [n, heads, b, e] give [n, heads, a, e]."""
    q, k, v = real(*map(args.get, ("query", "key", "value")))
    certain(len(q.shape) == len(k.shape) == len(v.shape) == 4, "enable_gqa" not in args)
    certain(q.shape[:2] == k.shape[:2] == v.shape[:2])
    certain(q.shape[-1] == k.shape[-1], k.shape[-2] == v.shape[-2])
    certain(0 <= number(args, "dropout_p", 0.0, float) < 1)
    mask = args.get("attn_mask")
    if isinstance(mask, TensorType):
        scores = (*q.shape[:3], k.shape[-2])
        certain(mask.dtype in ("bool", q.dtype), len(mask.shape) <= 4, "is_causal" not in args)
        certain(broadcast([scores, mask.shape]) == scores)
    else:
        certain(mask is None or plain_value(mask) is None)
    return TensorType((*q.shape[:3], v.shape[-1]), q.dtype)


def _attention_spelling(call: Spelling) -> Call:
    """Attention with its scale, which is 1/√(width of a head) by default."""
    args = dict(call.args)
    if args.get("scale") is None:
        args["scale"] = 1.0 / math.sqrt(size_at(call.sizes["query"][-1], 1))
    return call.op, args


ROWS: Rows = {
    "scaled_dot_product_attention": Operator(
        _attention_axes,
        _attention_zero,
        _attention_macs,
        attends=("query", "attn_mask"),
        rates=("dropout_p", "scale"),
        # Bilinear in queries and keys, but a softmax stands behind: repeated tokens change it.
        growth=Growth(),
        type=_attention_type,
        spelling=_attention_spelling,
    )
}
