"""Rows of operators that a file spells out, with all that the spelling says."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from archgraph.errors import SpecError
from archgraph.onnx.operators.row import Attributes, Known, OnnxRow, OnnxTable


def _group_norm(at: Attributes, x: torch.Tensor, w: Any, b: Any) -> torch.Tensor:
    """Normalise groups; in the file, the weights have trailing axes of size 1."""
    groups, eps, trailing = at.need("num_groups"), at.need("epsilon"), at.need("trailing")
    if x.dim() == 2 + trailing and w.shape[0] == x.shape[1]:
        return F.group_norm(x, groups, w, b, eps)
    w, b = (v.reshape(-1, *[1] * trailing) for v in (w, b))
    return F.group_norm(x, groups, eps=eps) * w + b


def _attention(at: Attributes, q: Any, k: Any, v: Any, mask: Any, *numbers: Any) -> torch.Tensor:
    """Attention of any rank; its scores are multiplied by numbers, or divided by them."""
    if order := at.get("perm"):
        k = k.permute(order)
    first, second, over = (1.0 if n is None else _number(n) for n in numbers)
    scale = at.need("scale") * first * second / over
    rank = max(x.dim() for x in (q, k, mask) if x is not None)
    last = at.need("axis") in (-1, rank - 1)  # known only here: the scores' rank is the largest
    if last and _alike(q, k) and _alike(q, v) and (mask is None or _broadcast(mask, q, k)):
        return F.scaled_dot_product_attention(q, k, v, mask, scale=scale)
    scores = (q * scale) @ k.transpose(-2, -1)
    shares = _shares(at, scores if mask is None else scores + mask, -1 if last else at.need("axis"))
    if at.get("or_zero"):  # of a position that may look at nothing
        shares = torch.where(shares.isnan(), 0.0, shares)
    return shares @ v


def _shares(at: Attributes, scores: torch.Tensor, axis: int) -> torch.Tensor:
    """Apply a softmax, which before opset 13 runs over all axes from its own on."""
    if axis == -1 or not at.need("flat"):
        return torch.softmax(scores, axis)
    return torch.softmax(scores.flatten(axis), -1).reshape(scores.shape)


def _number(value: Known) -> float:
    """Return the only number of a value.

    Raises:
        SpecError: If it has another size: a place that its shape does not have.
    """
    if np.size(value) != 1:
        raise SpecError("is no number", found=f"{np.size(value)} numbers", expected="1")
    return float(np.ravel(value)[0])


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether all axes but the last two are equal; sizes of a batch are not compared."""
    return a.dim() == b.dim() and all(
        type(m) is type(n) and (not isinstance(m, int) or m == n)
        for m, n in zip(a.shape[:-2], b.shape[:-2], strict=True)
    )


def _broadcast(mask: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> bool:
    """Return whether a mask broadcasts to the scores without enlarging them."""
    scores = (*q.shape[:-1], k.shape[-2])[max(q.dim() - mask.dim(), 0) :]
    return mask.dim() <= q.dim() and all(
        isinstance(m, int) and m in (1, n) if isinstance(n, int) else True
        for m, n in zip(mask.shape, scores, strict=True)
    )


SPELT: OnnxTable = {
    "spelt Linear": OnnxRow(lambda at, x, w, b: F.linear(x, w, b)),
    "spelt GroupNormalization": OnnxRow(_group_norm),
    "spelt Attention": OnnxRow(_attention, known=(4, 5, 6)),
}
