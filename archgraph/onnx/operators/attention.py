"""Rows of attention and of what stands around it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F

from archgraph.onnx.operators.row import Attributes, OnnxRow, OnnxTable
from archgraph.onnx.tensors import DTYPES
from archgraph.ops.schema import torch_dtype

_RAW, _BIASED, _SOFTMAX = (0, 1), 2, 3  # which scores are a result


def _attention(
    at: Attributes, q: Any, k: Any, v: Any, mask: Any = None, past_key: Any = None,
    past_value: Any = None, lengths: Any = None,
) -> Any:  # fmt: skip
    flat = q.dim() == 3
    if flat:
        q = _heads(q, at.need("q_num_heads"))
        k, v = (_heads(x, at.need("kv_num_heads")) for x in (k, v))
    past = 0
    if past_key is not None:
        past = past_key.shape[2]
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    present = k, v
    if (groups := q.shape[1] // k.shape[1]) > 1:
        k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    bias = _bias(at, q, k, mask, past, lengths)
    scale = at.get("scale") or 1 / math.sqrt(q.shape[-1])
    precision = at.get("softmax_precision")
    if at.outputs < 4 and not at.get("softcap") and precision is None:
        y, scores = F.scaled_dot_product_attention(q, k, v, bias, scale=scale), None
    else:
        y, scores = _spelt_out(at, q, k, v, bias, scale)
    y = y.transpose(1, 2).flatten(2) if flat else y
    return (y, *present, scores)[: at.outputs] if at.outputs > 1 else y


def _heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def _bias(at: Attributes, q: Any, k: Any, mask: Any, past: Any, lengths: Any) -> Any:
    """Return what is added to the scores: a mask, and -inf where a position may not look."""
    last = q.shape[2]
    if mask is not None:
        fill = 0.0 if mask.dtype == torch.bool else -math.inf
        if mask.shape[-1] < k.shape[2]:
            mask = F.pad(mask, (0, k.shape[2] - mask.shape[-1]), value=fill)
        if mask.dtype == torch.bool:
            mask = torch.where(mask, 0.0, -math.inf).to(q.dtype)
    right = 0 if at.get("is_causal", 0) else at.get("right_window_size", -1)
    left = at.get("left_window_size", -1)
    if right < 0 and left < 0 and lengths is None:
        return mask
    columns = torch.arange(k.shape[2])
    before = past if lengths is None else lengths.reshape(-1, 1, 1, 1) - last
    ahead = columns - (torch.arange(last).unsqueeze(1) + before)  # of the query's own position
    rules = [ahead <= right] * (right >= 0) + [-ahead <= left] * (left >= 0)
    if lengths is not None:
        rules.append(columns < lengths.reshape(-1, 1, 1, 1))
    for rule in rules:
        own = torch.zeros(1, dtype=q.dtype) if mask is None else mask
        mask = torch.where(rule, own, -math.inf)
    return mask


def _spelt_out(at: Attributes, q: Any, k: Any, v: Any, bias: Any, scale: float) -> Any:
    """Attention whose scores are capped or a result."""
    scores = (q * math.sqrt(scale)) @ (k * math.sqrt(scale)).transpose(2, 3)
    if cap := at.get("softcap", 0.0):
        scores = torch.tanh(scores / cap) * cap
    biased = scores if bias is None else scores + bias
    kind = torch_dtype(DTYPES[at.get("softmax_precision") or 1])
    shares = torch.softmax(biased.to(kind), -1)
    if bias is not None:  # a position that may look at nothing looks at nothing
        shares = torch.where((bias == -math.inf).all(-1, keepdim=True), 0.0, shares)
    shares = shares.to(q.dtype)
    mode = at.get("qk_matmul_output_mode", 0)
    shown = scores if mode in _RAW else biased if mode == _BIASED else shares
    return shares @ v, shown.expand(*scores.shape)


def _rotary(at: Attributes, x: Any, cos: Any, sin: Any, places: Any = None) -> torch.Tensor:
    flat = x.dim() == 3
    y = _heads(x, at.need("num_heads")) if flat else x
    size = at.get("rotary_embedding_dim", 0) or y.shape[-1]
    if places is not None:
        cos, sin = (F.embedding(places, table) for table in (cos, sin))
    cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)
    turned, rest = y[..., :size], y[..., size:]
    if at.get("interleaved", 0):
        a, b = turned[..., ::2], turned[..., 1::2]
        turned = torch.stack([cos * a - sin * b, sin * a + cos * b], -1).flatten(-2)
    else:
        a, b = turned.chunk(2, -1)
        turned = torch.cat([cos * a - sin * b, sin * a + cos * b], -1)
    y = torch.cat([turned, rest], -1) if size < y.shape[-1] else turned
    return y.transpose(1, 2).flatten(2) if flat else y


ATTENTION: OnnxTable = {"Attention": OnnxRow(_attention), "RotaryEmbedding": OnnxRow(_rotary)}
