"""Rows of operators that turn the positions of an axis around; and on sequences.

A sequence of tensors has a length that is known while a file is read: it is a Python list.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from archgraph.errors import SpecError
from archgraph.limits import LIMITS
from archgraph.onnx.operators.row import Attributes, Known, OnnxRow, OnnxTable, integers

# -- positions of an axis -----------------------------------------------------------------------


def unrolled(steps: int) -> range:
    """Return the range of steps that become nodes of their own.

    Raises:
        SpecError: If there are too many.
    """
    if steps > LIMITS.unrolled_steps:
        expected = f"at most {LIMITS.unrolled_steps}"
        raise SpecError("is computed step by step", found=f"{steps} steps", expected=expected)
    return range(steps)


def _reverse(at: Attributes, x: Tensor, lengths: Tensor) -> Tensor:
    time = at.get("time_axis", 0)
    at.refuse("batch_axis", 1 - time)
    positions = torch.arange(x.shape[time]).unsqueeze(1)
    index = torch.where(positions < lengths, lengths - 1 - positions, positions)
    index = index if time == 0 else index.t()
    return x.gather(time, index.reshape([*index.shape] + [1] * (x.dim() - 2)).expand(x.shape))


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
    "ReverseSequence": OnnxRow(_reverse),
    "SplitToSequence": OnnxRow(_split, known=(1,)),
    "ConcatFromSequence": OnnxRow(_concatenated),
    "SequenceAt": OnnxRow(lambda at, s, i: s[_position(i, len(s), len(s) - 1)], known=(1,)),
    "SequenceConstruct": OnnxRow(lambda at, *items: list(items)),
    "SequenceEmpty": OnnxRow(lambda at: []),
    "SequenceErase": OnnxRow(_erased, known=(1,)),
    "SequenceInsert": OnnxRow(_inserted, known=(2,)),
    "SequenceLength": OnnxRow(lambda at, s: np.array(len(s), dtype=object)),
}
