"""Rows of operators on sequences of tensors whose length is known while a file is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from archgraph.errors import SpecError
from archgraph.onnx.operators.row import Attributes, Known, OnnxRow, OnnxTable, whole


def _place(at: Known | None, count: int, last: int) -> int:
    """Resolve a position from ``-count`` to ``last``; a negative one counts from the end.

    Raises:
        SpecError: If there is no such position.
    """
    place = whole(at)[0] if at is not None else last
    if not -count <= place <= last:
        raise SpecError("is beyond a sequence", found=place, expected=f"from {-count} to {last}")
    return int(place + count if place < 0 else place)


def _split(at: Attributes, x: torch.Tensor, sizes: Any = None) -> list[torch.Tensor]:
    axis = at.get("axis", 0)
    if sizes is None:
        return list(x.split(1, axis)) if at.get("keepdims", 1) else list(x.unbind(axis))
    given = whole(sizes)
    return list(x.split(given if np.ndim(sizes) else given[0], axis))


def _joined(at: Attributes, items: list[torch.Tensor]) -> torch.Tensor:
    join = torch.stack if at.get("new_axis", 0) else torch.cat
    return join(items, at.need("axis"))


def _with(at: Attributes, items: list[Any], item: torch.Tensor, place: Any = None) -> list[Any]:
    where = _place(place, len(items), len(items))
    return [*items[:where], item, *items[where:]]


def _without(at: Attributes, items: list[Any], place: Any = None) -> list[Any]:
    where = _place(place, len(items), len(items) - 1)
    return items[:where] + items[where + 1 :]


LISTS: OnnxTable = {
    "SplitToSequence": OnnxRow(_split, known=(1,)),
    "ConcatFromSequence": OnnxRow(_joined),
    "SequenceAt": OnnxRow(lambda at, s, i: s[_place(i, len(s), len(s) - 1)], known=(1,)),
    "SequenceConstruct": OnnxRow(lambda at, *items: list(items)),
    "SequenceEmpty": OnnxRow(lambda at: []),
    "SequenceErase": OnnxRow(_without, known=(1,)),
    "SequenceInsert": OnnxRow(_with, known=(2,)),
    "SequenceLength": OnnxRow(lambda at, s: np.array(len(s), dtype=object)),
}
