"""Targets of several tensors per example (boxes and their labels), as rows of bytes.

Everything that divides, shuffles, sends and records targets then works on one tensor; only the
objective sees the tensors again, by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from archgraph.data.files import MOST_BYTES, check_size
from archgraph.errors import DataError

_ALIGNED = 8
"""Bytes of the largest number: each tensor begins at a multiple."""
NamedTensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class TargetField:
    """A tensor of each example's target.

    Attributes:
        name: Its name.
        dtype: Its type.
        axes: How many axes it has; their sizes may differ from one example to the next.
        most: The largest number of its values.
    """

    name: str
    dtype: torch.dtype
    axes: int
    most: int

    @property
    def bytes(self) -> int:
        """What it takes in a row: its sizes, then its values, both in whole numbers of 8 bytes."""
        return _ALIGNED * (self.axes + math.ceil(self.most * self.dtype.itemsize / _ALIGNED))

    def __str__(self) -> str:
        """Type and shape, as in `boxes float32 [·, ·]`."""
        axes = ", ".join("·" * self.axes)
        return f"{self.name} {str(self.dtype).removeprefix('torch.')} [{axes}]"


@dataclass(frozen=True)
class TargetFields:
    """How the tensors of a target stand in a row of bytes.

    Attributes:
        fields: The tensors in order.

    Example:
        >>> one, two = {"boxes": torch.ones(2, 4)}, {"boxes": torch.zeros(0, 4)}
        >>> form = TargetFields.of([one, two], "targets")
        >>> rows = form.pack([one, two])
        >>> rows.dtype, rows.shape
        (torch.uint8, torch.Size([2, 48]))
        >>> [target["boxes"].shape for target in form.unpack(rows)]
        [torch.Size([2, 4]), torch.Size([0, 4])]
    """

    fields: tuple[TargetField, ...]

    def __str__(self) -> str:
        """All tensors by name."""
        return ", ".join(map(str, self.fields))

    @classmethod
    def of(cls, targets: Sequence[NamedTensors], where: str) -> TargetFields:
        """Return the form of all targets.

        Raises:
            DataError: If they differ in names, types or numbers of axes, or need too much memory.
        """
        first = targets[0]
        for position, target in enumerate(targets):
            at = f"{where}[{position}]"
            if target.keys() != first.keys():
                raise DataError(
                    "targets differ in the names of their tensors",
                    where=at,
                    found=", ".join(target) or "none",
                    expected=f"{', '.join(first) or 'none'}, as the first one",
                )
            for name, tensor in target.items():
                like = first[name]
                if (tensor.dtype, tensor.dim()) != (like.dtype, like.dim()):
                    empty = [0, *like.shape[1:]]
                    raise DataError(
                        "targets differ in type or number of axes",
                        where=f"{at}: {name}",
                        found=_form(tensor),
                        expected=f"{_form(like)}, as the first one",
                        hint=f"without {name}, write torch.zeros({empty}, dtype={like.dtype})"
                        if not tensor.numel() or not like.numel()
                        else None,
                    )
        most = {name: max(target[name].numel() for target in targets) for name in first}
        form = cls(tuple(TargetField(k, t.dtype, t.dim(), most[k]) for k, t in first.items()))
        check_size(len(targets) * form.bytes, MOST_BYTES, "set of targets", where)
        return form

    @property
    def bytes(self) -> int:
        """Length of a row."""
        return sum(field.bytes for field in self.fields)

    def pack(self, targets: Sequence[NamedTensors]) -> Tensor:
        """Return targets as rows, uint8 ``[example, byte]``, padded to the largest."""
        rows = torch.zeros(len(targets), self.bytes, dtype=torch.uint8)
        for row, target in zip(rows, targets, strict=True):
            start = 0
            for field in self.fields:
                tensor = target[field.name]
                values = tensor.contiguous().reshape(-1).view(torch.uint8)
                begin = start + field.axes * _ALIGNED
                row[start:begin] = torch.tensor(tensor.shape, dtype=torch.int64).view(torch.uint8)
                row[begin : begin + len(values)] = values
                start += field.bytes
        return rows

    def unpack(self, rows: Tensor) -> list[dict[str, Tensor]]:
        """Return the targets of rows, each by name, on the device of the rows."""
        starts = [sum(field.bytes for field in self.fields[:i]) for i in range(len(self.fields))]
        pairs = list(zip(self.fields, starts, strict=True))
        # Sizes at once, since each look at a device waits for it.
        heads = [rows[:, at : at + _ALIGNED * field.axes] for field, at in pairs]
        sizes = torch.cat(heads, 1).contiguous().view(torch.int64).tolist()
        targets = []
        for row, of_row in zip(rows.contiguous(), sizes, strict=True):
            target, rest = {}, iter(of_row)
            for field, at in pairs:
                shape = [next(rest) for _ in range(field.axes)]
                begin = at + _ALIGNED * field.axes
                end = begin + math.prod(shape) * field.dtype.itemsize
                target[field.name] = row[begin:end].view(field.dtype).view(shape)
            targets.append(target)
        return targets


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
