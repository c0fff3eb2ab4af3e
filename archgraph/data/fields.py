"""Targets of several tensors per example (boxes and their labels), as rows of bytes.

Everything that divides, shuffles, sends and records targets then works on one tensor; only the
objective sees the tensors again, by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

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
    """

    name: str
    dtype: torch.dtype
    axes: int

    def __str__(self) -> str:
        """Type and shape, as in `boxes float32 [·, ·]`."""
        axes = ", ".join("·" * self.axes)
        return f"{self.name} {str(self.dtype).removeprefix('torch.')} [{axes}]"


@dataclass(frozen=True)
class TargetFields:
    """How the tensors of a target stand in a row of bytes: all sizes, then the values of each.

    Attributes:
        fields: The tensors in order.
        bytes: Length of the rows of a data set. Rows that are read again may be longer: another
            crop has more boxes.

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
    bytes: int

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
                    hint="each target has the same names; an empty tensor stands for nothing",
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
        fields = tuple(TargetField(name, t.dtype, t.dim()) for name, t in first.items())
        form = cls(fields, max(sum(map(len, _pieces(target, fields))) for target in targets))
        check_size(len(targets) * form.bytes, MOST_BYTES, "set of targets", where)
        return form

    def pack(self, targets: Sequence[NamedTensors]) -> Tensor:
        """Return targets as rows, uint8 ``[example, byte]``, padded to the longest."""
        packed = [torch.cat(_pieces(target, self.fields)) for target in targets]
        rows = torch.zeros(len(targets), max([self.bytes, *map(len, packed)]), dtype=torch.uint8)
        for row, values in zip(rows, packed, strict=True):
            row[: len(values)] = values
        return rows

    def unpack(self, rows: Tensor) -> list[dict[str, Tensor]]:
        """Return the targets of rows, each by name, on the device of the rows."""
        start = _ALIGNED * sum(field.axes for field in self.fields)
        # Sizes at once, since each look at a device waits for it.
        sizes = rows[:, :start].contiguous().view(torch.int64).tolist()
        targets = []
        for row, of_row in zip(rows.contiguous(), sizes, strict=True):
            target, rest, begin = {}, iter(of_row), start
            for field in self.fields:
                shape = [next(rest) for _ in range(field.axes)]
                length = math.prod(shape) * field.dtype.itemsize
                target[field.name] = row[begin : begin + length].view(field.dtype).view(shape)
                begin += length + -length % _ALIGNED
            targets.append(target)
        return targets


def _pieces(target: NamedTensors, fields: Sequence[TargetField]) -> list[Tensor]:
    """Return a target as pieces of bytes: all sizes, then values that fill multiples of 8."""
    tensors = [target[field.name] for field in fields]
    sizes = [size for tensor in tensors for size in tensor.shape]
    pieces = [torch.tensor(sizes, dtype=torch.int64).view(torch.uint8)]
    for tensor in tensors:
        values = tensor.contiguous().reshape(-1).view(torch.uint8)
        pieces.append(nn.functional.pad(values, (0, -len(values) % _ALIGNED)))
    return pieces


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
