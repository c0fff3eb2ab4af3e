"""Serialise items for workers with pickle; tensors use the format of :mod:`archgraph.states.wire`.

Items come from the run itself. Results of workers are not pickled, so that no code in them is
executed.
"""

from __future__ import annotations

import functools
import io
import os
import pickle
from typing import Any, TypeAlias

import torch
from torch import Tensor

from archgraph.graph.ir import ArchGraph
from archgraph.states import Transfer, wire


def serialise(value: object) -> bytes:
    """Serialise a picklable value as one message; tensors keep their strides.

    Raises:
        Exception: Any error that a user's class raises when it is pickled.

    Example:
        >>> deserialise(serialise({"weight": torch.ones(2, 3).T}))["weight"].stride()
        (1, 3)
    """
    return wire.encode(_parts(value))


def deserialise(message: bytes) -> object:
    """Return the value of a message from :func:`serialise`."""
    return _joined(wire.decode(message))


def save_shared(path: str | os.PathLike[str], value: object) -> None:
    """Serialise a value to a file that several processes can memory-map."""
    wire.save_tensors(path, {str(number): part for number, part in enumerate(_parts(value))})


def load_shared(path: str | os.PathLike[str]) -> object:
    """Return the value of a file from :func:`save_shared`."""
    return _joined(list(wire.load_tensors(path).values()))


def _parts(value: object) -> list[Tensor]:
    """Return the bytes of the pickle, followed by the tensors that it refers to."""
    text = io.BytesIO()
    pickler = _Pickler(text, protocol=5)
    pickler.tensors, pickler.seen = [], {}
    pickler.dump(value)
    return [torch.frombuffer(text.getbuffer(), dtype=torch.uint8), *pickler.tensors]


def _joined(parts: list[Tensor]) -> object:
    unpickler = _Unpickler(io.BytesIO(parts[0].numpy().data))
    unpickler.tensors, unpickler.seen = parts[1:], {}
    return unpickler.load()


# Index of a tensor in its message, and the order of its axes in memory.
_Address: TypeAlias = tuple[int, tuple[int, ...]]


class _Pickler(pickle.Pickler):
    tensors: list[Tensor]
    # References to the tensors, so that their ids are not reused.
    seen: dict[int, tuple[Tensor, _Address]]

    def persistent_id(self, value: object) -> _Address | None:
        if type(value) is object:  # a sentinel is compared with `is`, so a copy would not be equal
            raise pickle.PicklingError(
                "an object() cannot be sent: its copy would be another object"
            )
        if type(value) is not Tensor or value.requires_grad or not _ordinary(value):
            return None
        if id(value) not in self.seen:
            # The order of the axes in memory is kept, since the bits of a sum may depend on it.
            order = sorted(range(value.dim()), key=lambda axis: -value.stride()[axis])
            self.seen[id(value)] = value, (len(self.tensors), tuple(order))
            self.tensors.append(value.permute(order))
        return self.seen[id(value)][1]

    def reducer_override(self, value: object) -> Any:
        # Many items share these objects, so each is pickled and read once.
        return (_frozen, (_pickled(value),)) if isinstance(value, _FROZEN) else NotImplemented


class _Unpickler(pickle.Unpickler):
    tensors: list[Tensor]
    seen: dict[int, Tensor]

    def persistent_load(self, address: _Address) -> Tensor:
        number, order = address
        back = [order.index(axis) for axis in range(len(order))]
        return self.seen.setdefault(number, self.tensors[number].permute(back))


_FROZEN = (ArchGraph, Transfer)
_pickled = functools.lru_cache(maxsize=256)(functools.partial(pickle.dumps, protocol=5))


@functools.lru_cache(maxsize=256)
def _frozen(text: bytes) -> object:
    return pickle.loads(text)


def _ordinary(value: Tensor) -> bool:
    """Return whether the wire format preserves a tensor exactly."""
    dense = value.layout == torch.strided and not value.is_quantized and not value.is_nested
    return dense and value.device.type == "cpu" and not value.is_complex() and not value.is_neg()
