"""The ONNX operator ``Attention``, in the form that PyTorch's exporter writes."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from archgraph.errors import SpecError
from archgraph.onnx.operators.row import Attributes, OnnxRow, OnnxTable

# Attributes that change the scores, and their defaults.
_OPTIONS = {
    "softcap": 0.0,
    "softmax_precision": None,
    "left_window_size": -1,
    "right_window_size": -1,
}


def _attention(
    at: Attributes, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *rest: object
) -> Tensor:
    """Compute attention for tensors of shape ``[batch, head, position, feature]``.

    Raises:
        SpecError: If the node has a cache or sequence lengths, or also returns the scores.
    """
    for name, default in _OPTIONS.items():
        at.refuse(name, default)
    if at.outputs > 1 or any(one is not None for one in rest) or q.dim() != 4:
        raise SpecError(
            "is an unsupported form of attention",
            expected="queries with four axes, keys, values and a mask, and one result",
        )
    if (groups := q.shape[1] // k.shape[1]) > 1:
        k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    causal, scale = bool(at.get("is_causal", 0)), at.get("scale")
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
    if mask.shape[-1] != k.shape[2]:  # a shorter mask hides all later positions
        raise SpecError(
            "has a mask of another size", found=f"{mask.shape[-1]} positions", expected=k.shape[2]
        )
    if mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, -math.inf).to(q.dtype)
    if causal:
        ahead = torch.arange(k.shape[2]) > torch.arange(q.shape[2]).unsqueeze(1)
        mask = torch.where(ahead, -math.inf, mask)
    return F.scaled_dot_product_attention(q, k, v, mask, scale=scale)


ATTENTION: OnnxTable = {"Attention": OnnxRow(_attention)}
