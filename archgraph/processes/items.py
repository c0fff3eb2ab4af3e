"""Items for workers: pickled, since they come from the run itself; tensors use the wire format.

Results are plain values (:mod:`archgraph.states.wire`): nothing that a worker sends is executed.
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
    """Serialise any picklable value as one message; tensors keep their strides.

    Raises:
        Exception: Any error of a user's class on pickling.

    Example:
        >>> deserialise(serialise({"weight": torch.ones(2, 3).T}))["weight"].stride()
        (1, 3)
    """
    return wire.encode(_parts(value))


def deserialise(message: bytes) -> object:
    """Read a message of :func:`serialise`."""
    return _joined(wire.decode(message))


def save_shared(path: str | os.PathLike[str], value: object) -> None:
    """Serialise like :func:`serialise`, into a file that several processes may map."""
    wire.save_tensors(path, {str(number): part for number, part in enumerate(_parts(value))})


def load_shared(path: str | os.PathLike[str]) -> object:
    """Read a file of :func:`save_shared`."""
    return _joined(list(wire.load_tensors(path).values()))


def _parts(value: object) -> list[Tensor]:
    """Return the bytes of the pickle, and after them the tensors that it refers to."""
    text = io.BytesIO()
    pickler = _Pickler(text, protocol=5)
    pickler.tensors, pickler.seen = [], {}
    pickler.dump(value)
    return [torch.frombuffer(text.getbuffer(), dtype=torch.uint8), *pickler.tensors]


def _joined(parts: list[Tensor]) -> object:
    unpickler = _Unpickler(io.BytesIO(parts[0].numpy().data))
    unpickler.tensors, unpickler.seen = parts[1:], {}
    return unpickler.load()


# Number of a tensor among those of a message, and the order of its axes in memory.
_Address: TypeAlias = tuple[int, tuple[int, ...]]


class _Pickler(pickle.Pickler):
    tensors: list[Tensor]
    # Each tensor is kept alive, so that its id is not reused.
    seen: dict[int, tuple[Tensor, _Address]]

    def persistent_id(self, value: object) -> _Address | None:
        if type(value) is object:  # a sentinel, compared with `is`: no copy is the same
            raise pickle.PicklingError("an object() that is compared with `is` has no copy")
        if type(value) is not Tensor or value.requires_grad or not _ordinary(value):
            return None
        if id(value) not in self.seen:
            # The order of the axes in memory is kept: the bits of a sum may depend on it.
            order = sorted(range(value.dim()), key=lambda axis: -value.stride()[axis])
            self.seen[id(value)] = value, (len(self.tensors), tuple(order))
            self.tensors.append(value.permute(order))
        return self.seen[id(value)][1]

    def reducer_override(self, value: object) -> Any:
        # Many items share these: each is pickled, and read, once.
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
    """Return whether the wire format can hold a tensor as it is in memory."""
    dense = value.layout == torch.strided and not value.is_quantized and not value.is_nested
    return dense and value.device.type == "cpu" and not value.is_complex() and not value.is_neg()
