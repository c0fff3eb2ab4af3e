"""Tensors in one temporary file, read back in pieces."""

from __future__ import annotations

import math
import tempfile
import weakref
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from archgraph.errors import RunError, os_reason
from archgraph.states import wire
from archgraph.states.state import State


class Stored(NamedTuple):
    """A tensor in the file: its offset in bytes, shape, dtype and original device."""

    at: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


StoredState: TypeAlias = Mapping[str, Stored]


class Spill:
    """A temporary file of tensors that is deleted with this object.

    The file has no name, so it is deleted however the process ends. Pieces are read, not
    memory-mapped, so memory contains only the requested ones.

    Example:
        >>> spill = Spill()
        >>> stored = spill.put({"w": torch.arange(6.0).view(3, 2)})
        >>> spill.rows(stored["w"], 1, 2)
        tensor([[2., 3.]])
        >>> spill.get(stored)["w"].shape
        torch.Size([3, 2])
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="archgraph-")
        weakref.finalize(self, self._file.close)  # an open file that is collected would warn

    def put(self, state: State) -> StoredState:
        """Write tensors from any devices.

        Raises:
            RunError: If the disk is full.
        """
        return {name: self._write(value.detach()) for name, value in state.items()}

    def get(self, stored: StoredState) -> dict[str, Tensor]:
        """Read tensors back onto their original devices."""
        return {
            name: self.rows(one, 0, one.shape[0] if one.shape else 1).to(one.device)
            for name, one in stored.items()
        }

    def rows(self, stored: Stored, start: int, stop: int) -> Tensor:
        """Read rows ``start`` to ``stop`` of a tensor onto the CPU; a scalar has one row."""
        width = math.prod(stored.shape[1:])
        shape = (stop - start, *stored.shape[1:]) if stored.shape else ()
        count = math.prod(shape)
        if not count:
            return torch.empty(shape, dtype=stored.dtype)
        buffer = bytearray(count * stored.dtype.itemsize)
        self._file.seek(stored.at + start * width * stored.dtype.itemsize)
        self._file.readinto(buffer)
        return torch.frombuffer(buffer, dtype=stored.dtype).view(shape)

    def _write(self, value: Tensor) -> Stored:
        stored = Stored(self._file.seek(0, 2), tuple(value.shape), value.dtype, value.device)
        try:
            if value.numel():
                self._file.write(wire.raw(value))
                self._file.flush()
        except OSError as error:
            problem = f"clients' updates cannot be written to {tempfile.gettempdir()}"
            raise RunError(
                problem,
                found=os_reason(error),
                hint="free some space, or set TMPDIR to another folder",
            ) from error
        return stored
