"""Operators that a file decomposes into several nodes."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from archgraph.onnx.operators.known import known_tensor
from archgraph.onnx.operators.row import Attributes, Known, OnnxRow, OnnxTable


def _group_norm(at: Attributes, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Apply a group norm, whose weights have trailing axes of size 1 in the file."""
    groups, eps, trailing = at.need("num_groups"), at.need("epsilon"), at.need("trailing")
    if x.dim() == 2 + trailing and w.shape[0] == x.shape[1]:
        return F.group_norm(x, groups, w, b, eps)
    # If the number of trailing axes differs, the weights are broadcast; apply them after the norm.
    w, b = (v.reshape(-1, *[1] * trailing) for v in (w, b))
    return F.group_norm(x, groups, eps=eps) * w + b


def _attention(
    at: Attributes, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *factors: Known | None
) -> Tensor:
    """Compute attention for tensors of any rank.

    ``factors`` contains factors of queries, keys and scores, then divisors of queries and scores.
    """
    if order := at.get("perm"):
        k = k.permute(order)
    scale = at.need("scale")
    of_q, of_k, of_scores, over_q, over_scores = factors
    # A derived factor must have one element, since more axes would broadcast the scores.
    single = all(n is None or (n.size == 1 and n.ndim < 2) for n in factors)
    if single:
        numbers = [1.0 if n is None else float(n.item()) for n in factors]
        scale = math.prod(numbers[:3], start=scale) / math.prod(numbers[3:])
        if _is_native(at, q, k, v, mask):
            return F.scaled_dot_product_attention(q, k, v, mask, scale=scale)
    turned = k.transpose(-2, -1)
    if not single:
        q, turned = _scaled(q, of_q, over_q), _scaled(turned, of_k, None)
    scores = (q * scale) @ turned
    if not single:
        scores = _scaled(scores, of_scores, over_scores)
    shares = _shares(at, scores if mask is None else scores + mask)
    if at.get("or_zero"):  # for a position that may not attend to any position
        shares = torch.where(shares.isnan(), 0.0, shares)
    return shares @ v


def _is_native(at: Attributes, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> bool:
    """Return whether PyTorch's attention computes the same."""
    rank = max(x.dim() for x in (q, k, mask) if x is not None)  # rank of the scores
    last = at.need("axis") in (-1, rank - 1)
    alike = last and _alike(q, k) and _alike(q, v)
    return alike and (mask is None or _broadcasts(mask, q, k))


def _scaled(x: Tensor, times: Known | None, over: Known | None) -> Tensor:
    x = x if times is None else x * known_tensor(times)
    return x if over is None else x / known_tensor(over)


def _shares(at: Attributes, scores: Tensor) -> Tensor:
    """Apply a softmax. Before opset 13, it runs over its axis and all following axes."""
    axis = at.need("axis")
    if axis in (-1, scores.dim() - 1):
        return torch.softmax(scores, -1)
    if not at.need("flat"):
        return torch.softmax(scores, axis)
    return torch.softmax(scores.flatten(axis), -1).reshape(scores.shape)


def _alike(a: Tensor, b: Tensor) -> bool:
    """Return whether all axes except the last two and the batch have equal sizes.

    Comparing batch sizes would fix the batch size.
    """
    return a.dim() == b.dim() and all(
        type(m) is type(n) and (not isinstance(m, int) or m == n)
        for m, n in zip(a.shape[:-2], b.shape[:-2], strict=True)
    )


def _broadcasts(mask: Tensor, q: Tensor, k: Tensor) -> bool:
    """Return whether a mask broadcasts to the shape of the scores."""
    scores = (*q.shape[:-1], k.shape[-2])[max(q.dim() - mask.dim(), 0) :]
    return mask.dim() <= q.dim() and all(
        isinstance(m, int) and m in (1, n) if isinstance(n, int) else True
        for m, n in zip(mask.shape, scores, strict=True)
    )


SPELT: OnnxTable = {
    "spelt Linear": OnnxRow(lambda at, x, w, b: F.linear(x, w, b)),
    "spelt GroupNormalization": OnnxRow(_group_norm),
    "spelt Attention": OnnxRow(_attention, known=(4, 5, 6, 7, 8)),
}
