"""ONNX operators on sequences of tensors, which are Python lists of known length."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from archgraph.errors import SpecError
from archgraph.onnx.operators.row import Attributes, Known, OnnxRow, OnnxTable, integers


def _item(at: Attributes, items: list[Tensor], index: Known) -> Tensor:
    """Return the item at an index; negative indices count from the end."""
    position, count = integers(index)[0], len(items)
    if not -count <= position < count:
        raise SpecError(
            "is outside a sequence", found=position, expected=f"from {-count} to {count - 1}"
        )
    return items[position]


def _split(at: Attributes, x: Tensor, sizes: Known | None = None) -> list[Tensor]:
    axis = at.get("axis", 0)
    if sizes is None:
        return list(x.split(1, axis)) if at.get("keepdims", 1) else list(x.unbind(axis))
    # A scalar is the size of all parts; a list contains the size of each part.
    return list(x.split(integers(sizes) if np.ndim(sizes) else integers(sizes)[0], axis))


def _concatenated(at: Attributes, items: list[Tensor]) -> Tensor:
    join = torch.stack if at.get("new_axis", 0) else torch.cat
    return join(items, at.need("axis"))


SEQUENCES: OnnxTable = {
    "SplitToSequence": OnnxRow(_split, known=(1,)),
    "ConcatFromSequence": OnnxRow(_concatenated),
    "SequenceAt": OnnxRow(_item, known=(1,)),
    "SequenceConstruct": OnnxRow(lambda at, *items: list(items)),
}
