"""Rows of attention and of what stands around it."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from archgraph.onnx.operators.row import Attributes, OnnxRow, OnnxTable
from archgraph.onnx.tensors import dtype_of

_RAW, _BIASED = (0, 1), 2  # which scores are a result; else they are those after the softmax


def _attention(
    at: Attributes, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None,
    past_key: Tensor | None = None, past_value: Tensor | None = None,
    lengths: Tensor | None = None,
) -> object:  # fmt: skip
    flat = q.dim() == 3
    if flat:
        q = _heads(q, at.need("q_num_heads"))
        k, v = (_heads(x, at.need("kv_num_heads")) for x in (k, v))
    past = 0
    if past_key is not None and past_value is not None:
        past = past_key.shape[2]
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    present = k, v  # before the heads are repeated: the cache holds each once
    if (groups := q.shape[1] // k.shape[1]) > 1:
        k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    bias = _bias(at, q, k, mask, past, lengths)
    scale = at.get("scale") or 1 / math.sqrt(q.shape[-1])
    scores = None
    if at.outputs < 4 and not at.get("softcap") and at.get("softmax_precision") is None:
        y = F.scaled_dot_product_attention(q, k, v, bias, scale=scale)
    else:
        y, scores = _spelt_out(at, q, k, v, bias, scale)
    return at.results(_joined(y) if flat else y, *present, scores)


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def _joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def _bias(
    at: Attributes, q: Tensor, k: Tensor, mask: Tensor | None, past: int, lengths: Tensor | None
) -> Tensor | None:
    """Return what is added to the scores: a mask, and -inf where a position may not look."""
    length = q.shape[2]
    if mask is not None:
        fill = 0.0 if mask.dtype == torch.bool else -math.inf
        if mask.shape[-1] < k.shape[2]:  # ONNX lets a mask end early: nothing looks beyond it
            mask = F.pad(mask, (0, k.shape[2] - mask.shape[-1]), value=fill)
        if mask.dtype == torch.bool:
            mask = torch.where(mask, 0.0, -math.inf).to(q.dtype)
    right = 0 if at.get("is_causal", 0) else at.get("right_window_size", -1)
    left = at.get("left_window_size", -1)
    if right < 0 and left < 0 and lengths is None:
        return mask
    columns = torch.arange(k.shape[2])
    before = past if lengths is None else lengths.reshape(-1, 1, 1, 1) - length
    ahead = columns - (torch.arange(length).unsqueeze(1) + before)  # of the query's own position
    rules = [ahead <= right] * (right >= 0) + [-ahead <= left] * (left >= 0)
    if lengths is not None:
        rules.append(columns < lengths.reshape(-1, 1, 1, 1))
    for rule in rules:
        allowed = torch.zeros(1, dtype=q.dtype) if mask is None else mask
        mask = torch.where(rule, allowed, -math.inf)
    return mask


def _spelt_out(
    at: Attributes, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Compute attention whose scores are capped or a result, and those scores."""
    # As ONNX defines it, both sides are scaled by the root: raw scores are a result, too.
    scores = (q * math.sqrt(scale)) @ (k * math.sqrt(scale)).transpose(2, 3)
    if cap := at.get("softcap", 0.0):
        scores = torch.tanh(scores / cap) * cap
    biased = scores if bias is None else scores + bias
    shares = torch.softmax(biased.to(dtype_of(at.get("softmax_precision") or 1)), -1)
    if bias is not None:  # a position that may look at nothing looks at nothing
        shares = torch.where((bias == -math.inf).all(-1, keepdim=True), 0.0, shares)
    shares = shares.to(q.dtype)
    mode = at.get("qk_matmul_output_mode", 0)
    result = scores if mode in _RAW else biased if mode == _BIASED else shares
    return shares @ v, result.expand(*scores.shape)


def _rotary(
    at: Attributes, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None
) -> Tensor:
    flat = x.dim() == 3
    y = _heads(x, at.need("num_heads")) if flat else x
    size = at.get("rotary_embedding_dim", 0) or y.shape[-1]
    if positions is not None:
        cos, sin = (F.embedding(positions, table) for table in (cos, sin))
    cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)
    turned, rest = y[..., :size], y[..., size:]
    interleaved = at.get("interleaved", 0)
    a, b = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    pair = [cos * a - sin * b, sin * a + cos * b]
    turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    y = torch.cat([turned, rest], -1) if size < y.shape[-1] else turned
    return _joined(y) if flat else y


ATTENTION: OnnxTable = {"Attention": OnnxRow(_attention), "RotaryEmbedding": OnnxRow(_rotary)}
