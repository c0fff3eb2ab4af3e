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
    """A tensor in the file: where it begins, and what it is."""

    at: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


StoredState: TypeAlias = Mapping[str, Stored]


class Spill:
    """A file that holds tensors and vanishes with this object.

    It has no name, so that nothing is left behind, whatever ends the process. Pieces are read, not
    mapped: memory holds what was asked for and no more.

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
        weakref.finalize(self, self._file.close)  # one that is collected while open warns

    def put(self, state: State) -> StoredState:
        """Write tensors of any devices.

        Raises:
            RunError: If there is no room.
        """
        return {name: self._write(value.detach()) for name, value in state.items()}

    def get(self, stored: StoredState) -> dict[str, Tensor]:
        """Read tensors, onto the devices that they came from."""
        return {
            name: self.rows(one, 0, one.shape[0] if one.shape else 1).to(one.device)
            for name, one in stored.items()
        }

    def rows(self, stored: Stored, start: int, stop: int) -> Tensor:
        """Read some slices along the first dimension, on the CPU; of a scalar all of it."""
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
                hint="free some space, or name another folder in TMPDIR",
            ) from error
        return stored
