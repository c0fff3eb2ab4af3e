"""Rows of operators that walk along sequences, or write into them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from archgraph.errors import SpecError
from archgraph.limits import LIMITS
from archgraph.onnx.operators.row import Attributes, OnnxRow, OnnxTable

_ACTIVATIONS = {"none": lambda x: x, "silu": F.silu, "swish": F.silu}
# Update rules of linear attention: does the state decay, is what it knows subtracted?
_RULES = {
    "linear": (False, False),
    "gated": (True, False),
    "delta": (False, True),
    "gated_delta": (True, True),
}


def walked(steps: int) -> range:
    """Return the range of steps that become nodes of their own.

    Raises:
        SpecError: If there are too many.
    """
    if steps > LIMITS.unrolled_steps:
        expected = f"at most {LIMITS.unrolled_steps}"
        raise SpecError("is computed step by step", found=f"{steps} steps", expected=expected)
    return range(steps)


def _linear_attention(
    at: Attributes, q: Any, k: Any, v: Any, state: Any = None, decay: Any = None, beta: Any = None
) -> Any:
    heads = at.need("kv_num_heads")
    rule = at.get("update_rule", "gated_delta")
    if rule not in _RULES:
        raise SpecError("has an update rule of another name", found=rule, expected=[*_RULES])
    decays, subtracts = _RULES[rule]
    if (decays and decay is None) or (subtracts and beta is None):
        raise SpecError("lacks an input", found=rule, expected="decay, beta as the rule needs them")
    size = k.shape[2] // heads
    kinds = q.dtype, (q if state is None else state).dtype
    q, k, v, state, decay, beta = (  # sums of many terms: not in half precision
        x.float() if x is not None and x.dtype.itemsize < 4 else x
        for x in (q, k, v, state, decay, beta)
    )
    q = q.unflatten(2, (heads, at.need("q_num_heads") // heads, size))
    k, v = (x.unflatten(2, (heads, -1)) for x in (k, v))
    kept = decay.unflatten(2, (heads, -1)).exp().unsqueeze(-1) if decays else None
    if state is None:
        state = k.new_zeros(k.shape[0], heads, size, v.shape[-1])
    made = []
    for t in walked(k.shape[1]):
        if kept is not None:
            state = state * kept[:, t]
        change = v[:, t]
        if subtracts:
            change = (change - (k[:, t].unsqueeze(-2) @ state).squeeze(-2)) * beta[:, t, :, None]
        state = state + k[:, t].unsqueeze(-1) * change.unsqueeze(-2)
        made.append(q[:, t] @ state)
    y = torch.stack(made, 1).flatten(2) * (at.get("scale", 0.0) or size**-0.5)
    y, state = y.to(kinds[0]), state.to(kinds[1])
    return (y, state)[: at.outputs] if at.outputs > 1 else y


def _causal_conv(at: Attributes, x: Any, weight: Any, bias: Any = None, past: Any = None) -> Any:
    before = weight.shape[2] - 1
    x = F.pad(x, (before, 0)) if past is None else torch.cat([past, x], 2)
    y = F.conv1d(x, weight, bias, groups=weight.shape[0])
    name = at.get("activation", "none")
    if name not in _ACTIVATIONS:
        raise SpecError("has other activations", found=name, expected=[*_ACTIVATIONS])
    y = _ACTIVATIONS[name](y)
    return (y, x.narrow(2, x.shape[2] - before, before)) if at.outputs > 1 else y


def _reverse(at: Attributes, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    time = at.get("time_axis", 0)
    at.refuse("batch_axis", 1 - time)
    places = torch.arange(x.shape[time]).unsqueeze(1)
    index = torch.where(places < lengths, lengths - 1 - places, places)
    index = index if time == 0 else index.t()
    return x.gather(time, index.reshape([*index.shape] + [1] * (x.dim() - 2)).expand(x.shape))


def _scatter(at: Attributes, cache: Any, update: Any, first: Any = None) -> torch.Tensor:
    axis = at.get("axis", -2) % cache.dim()
    places = torch.arange(update.shape[axis]).unsqueeze(0)
    places = places if first is None else places + first.unsqueeze(1)
    if at.get("mode", "linear") == "circular":
        places = places % cache.shape[axis]
    shape = [1] * cache.dim()
    shape[0], shape[axis] = places.shape
    return cache.scatter(axis, places.reshape(shape).expand(update.shape), update)


SEQUENCES: OnnxTable = {
    "LinearAttention": OnnxRow(_linear_attention),
    "CausalConvWithState": OnnxRow(_causal_conv),
    "ReverseSequence": OnnxRow(_reverse),
    "TensorScatter": OnnxRow(_scatter),
}
