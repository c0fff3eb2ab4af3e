"""Rows of operators that walk along a sequence of positions, or write into it; and on sequences.

A sequence of tensors has a length that is known while a file is read: it is a Python list.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from archgraph.errors import SpecError
from archgraph.limits import LIMITS
from archgraph.onnx.operators.row import Attributes, Known, OnnxRow, OnnxTable, integers

# -- positions of an axis -----------------------------------------------------------------------

_ACTIVATIONS = {"none": lambda x: x, "silu": F.silu, "swish": F.silu}
# Update rules of linear attention: does the state decay, is what it knows subtracted?
_RULES = {
    "linear": (False, False),
    "gated": (True, False),
    "delta": (False, True),
    "gated_delta": (True, True),
}


def unrolled(steps: int) -> range:
    """Return the range of steps that become nodes of their own.

    Raises:
        SpecError: If there are too many.
    """
    if steps > LIMITS.unrolled_steps:
        expected = f"at most {LIMITS.unrolled_steps}"
        raise SpecError("is computed step by step", found=f"{steps} steps", expected=expected)
    return range(steps)


def _linear_attention(
    at: Attributes, q: Tensor, k: Tensor, v: Tensor, state: Tensor | None = None,
    decay: Tensor | None = None, beta: Tensor | None = None,
) -> object:  # fmt: skip
    heads, rule = at.need("kv_num_heads"), at.get("update_rule", "gated_delta")
    if rule not in _RULES:
        raise SpecError("has an update rule of another name", found=rule, expected=[*_RULES])
    decays, subtracts = _RULES[rule]
    if (decays and decay is None) or (subtracts and beta is None):
        raise SpecError("lacks an input", found=rule, expected="decay, beta as the rule needs them")
    size = k.shape[2] // heads
    types = q.dtype, (q if state is None else state).dtype
    q, k, v = map(_wide, (q, k, v))
    q = q.unflatten(2, (heads, at.need("q_num_heads") // heads, size))
    k, v = (x.unflatten(2, (heads, -1)) for x in (k, v))
    state = k.new_zeros(k.shape[0], heads, size, v.shape[-1]) if state is None else _wide(state)
    factor = None
    if decays and decay is not None:
        factor = _wide(decay).unflatten(2, (heads, -1)).exp().unsqueeze(-1)
    share = _wide(beta) if subtracts and beta is not None else None
    results = []
    for t in unrolled(k.shape[1]):
        if factor is not None:
            state = state * factor[:, t]
        change = v[:, t]
        if share is not None:  # the delta rule: only what the state does not know yet
            change = (change - (k[:, t].unsqueeze(-2) @ state).squeeze(-2)) * share[:, t, :, None]
        state = state + k[:, t].unsqueeze(-1) * change.unsqueeze(-2)
        results.append(q[:, t] @ state)
    y = torch.stack(results, 1).flatten(2) * (at.get("scale", 0.0) or size**-0.5)
    return at.results(y.to(types[0]), state.to(types[1]))


def _wide(x: Tensor) -> Tensor:
    """Convert half precision to single: states are sums of many terms."""
    return x.float() if x.dtype.itemsize < 4 else x


def _causal_conv(
    at: Attributes, x: Tensor, weight: Tensor, bias: Tensor | None = None,
    past: Tensor | None = None,
) -> object:  # fmt: skip
    before, name = weight.shape[2] - 1, at.get("activation", "none")
    if name not in _ACTIVATIONS:
        raise SpecError("has other activations", found=name, expected=[*_ACTIVATIONS])
    x = F.pad(x, (before, 0)) if past is None else torch.cat([past, x], 2)
    y = _ACTIVATIONS[name](F.conv1d(x, weight, bias, groups=weight.shape[0]))
    return at.results(y, x.narrow(2, x.shape[2] - before, before))


def _reverse(at: Attributes, x: Tensor, lengths: Tensor) -> Tensor:
    time = at.get("time_axis", 0)
    at.refuse("batch_axis", 1 - time)
    positions = torch.arange(x.shape[time]).unsqueeze(1)
    index = torch.where(positions < lengths, lengths - 1 - positions, positions)
    index = index if time == 0 else index.t()
    return x.gather(time, index.reshape([*index.shape] + [1] * (x.dim() - 2)).expand(x.shape))


def _scatter(at: Attributes, cache: Tensor, update: Tensor, first: Tensor | None = None) -> Tensor:
    axis = at.get("axis", -2) % cache.dim()
    positions = torch.arange(update.shape[axis]).unsqueeze(0)
    positions = positions if first is None else positions + first.unsqueeze(1)
    if at.get("mode", "linear") == "circular":
        positions = positions % cache.shape[axis]
    shape = [1] * cache.dim()
    shape[0], shape[axis] = positions.shape
    return cache.scatter(axis, positions.reshape(shape).expand(update.shape), update)


# -- sequences of tensors -----------------------------------------------------------------------


def _position(index: Known | None, count: int, last: int) -> int:
    """Resolve a position from ``-count`` to ``last``; a negative one counts from the end.

    Raises:
        SpecError: If there is no such position.
    """
    position = last if index is None else integers(index)[0]
    if not -count <= position <= last:
        raise SpecError("is beyond a sequence", found=position, expected=f"from {-count} to {last}")
    return position + count if position < 0 else position


def _split(at: Attributes, x: Tensor, sizes: Known | None = None) -> list[Tensor]:
    axis = at.get("axis", 0)
    if sizes is None:
        return list(x.split(1, axis)) if at.get("keepdims", 1) else list(x.unbind(axis))
    # A scalar is the size of every part, a list has the size of each.
    return list(x.split(integers(sizes) if np.ndim(sizes) else integers(sizes)[0], axis))


def _concatenated(at: Attributes, items: list[Tensor]) -> Tensor:
    join = torch.stack if at.get("new_axis", 0) else torch.cat
    return join(items, at.need("axis"))


def _inserted(
    at: Attributes, items: list[Tensor], item: Tensor, index: Known | None = None
) -> list[Tensor]:
    position = _position(index, len(items), len(items))  # also behind the last one
    return [*items[:position], item, *items[position:]]


def _erased(at: Attributes, items: list[Tensor], index: Known | None = None) -> list[Tensor]:
    position = _position(index, len(items), len(items) - 1)
    return items[:position] + items[position + 1 :]


SEQUENCES: OnnxTable = {
    "LinearAttention": OnnxRow(_linear_attention),
    "CausalConvWithState": OnnxRow(_causal_conv),
    "ReverseSequence": OnnxRow(_reverse),
    "TensorScatter": OnnxRow(_scatter),
    "SplitToSequence": OnnxRow(_split, known=(1,)),
    "ConcatFromSequence": OnnxRow(_concatenated),
    "SequenceAt": OnnxRow(lambda at, s, i: s[_position(i, len(s), len(s) - 1)], known=(1,)),
    "SequenceConstruct": OnnxRow(lambda at, *items: list(items)),
    "SequenceEmpty": OnnxRow(lambda at: []),
    "SequenceErase": OnnxRow(_erased, known=(1,)),
    "SequenceInsert": OnnxRow(_inserted, known=(2,)),
    "SequenceLength": OnnxRow(lambda at, s: np.array(len(s), dtype=object)),
}
