"""Values from one process to another, through memory that both map."""

from __future__ import annotations

import contextlib
import io
import math
import os
import pickle
import tempfile
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor

# Each tensor begins at a multiple of so many bytes, which suits every type.
ALIGNED = 64
# Values that a process keeps because they may be sent again: new ones come in every round.
MOST = 256


class SentOnce:
    """Frozen values that a process has been sent already: by number from then on.

    The process that sends and the one that receives have one each, in step with each other.

    Args:
        kinds: Types of such values.
    """

    def __init__(self, kinds: tuple[type, ...] = ()) -> None:
        self.kinds = kinds
        self._values: list[object] = []
        self._numbers: dict[int, int] = {}

    def number(self, value: object) -> tuple[int, bytes | None]:
        """The number of a value to send, and the value itself if it is new."""
        number = self._numbers.get(id(value))
        if number is not None:
            return number, None
        text = pickle.dumps(value, protocol=5)
        return self._add(value), text

    def value(self, number: int, text: bytes | None) -> object:
        """The value of a number that was received."""
        if text is not None:
            # From the process that this one was forked from.
            self._add(pickle.loads(text))
        return self._values[number]

    def _add(self, value: object) -> int:
        if len(self._values) >= MOST:  # both sides come to it with the same value
            self._values.clear()
            self._numbers.clear()
        number = self._numbers[id(value)] = len(self._values)
        self._values.append(value)  # alive as long as its number: no other value has its id
        return number


class Parcel:
    """Memory that processes share, for one value.

    What a process gives back holds tensors, None, booleans, numbers, texts, tuples, lists and
    mappings of these: a process that a faulty program has run in can send nothing else. What a
    process is given, by the one that it was forked from, may be anything that can be pickled.
    Tensors are copied once, by the process that packs; the other one maps them.

    Args:
        place: Descriptor of memory that another process has packed; None: new memory.

    Example:
        >>> parcel = Parcel()
        >>> parcel.pack({"weight": torch.ones(2), "loss": 0.5})
        >>> parcel.unpack()
        {'weight': tensor([1., 1.]), 'loss': 0.5}
        >>> parcel.close()
    """

    def __init__(self, place: int | None = None) -> None:
        if place is not None:
            self.place = place
        elif hasattr(os, "memfd_create"):
            self.place = os.memfd_create("archgraph")
        else:  # a file without a name
            with tempfile.TemporaryFile() as file:
                self.place = os.dup(file.fileno())

    def pack(self, value: Any, known: SentOnce | None = None) -> None:
        """Write a value.

        Args:
            value: The value.
            known: What the receiver has; None: the value is plain, for a receiver that does not
                trust this process.

        Raises:
            PicklingError: If it is to be plain and holds something else.
        """
        text = io.BytesIO()
        with os.fdopen(self.place, "wb", closefd=False) as file:
            file.seek(ALIGNED)
            packer = _Packer(text, file) if known is None else _AnyPacker(text, file, known)
            packer.dump(value)
            at = file.tell()
            file.write(text.getvalue())
            file.seek(0)
            file.write(at.to_bytes(8, "little") + len(text.getvalue()).to_bytes(8, "little"))

    def unpack(self, known: SentOnce | None = None) -> Any:
        """The value that was written.

        Args:
            known: What this process was sent before, by one that it trusts; None: only a plain
                value is read.

        Raises:
            UnpicklingError: If it holds something else, or is not whole.
        """
        size = os.fstat(self.place).st_size
        # Private: what is written to a tensor stays here, and no file stays open for it.
        whole = torch.from_file(f"/dev/fd/{self.place}", False, size, dtype=torch.uint8)
        at, length = (int.from_bytes(bytes(whole[i : i + 8].tolist()), "little") for i in (0, 8))
        if not length:
            raise pickle.UnpicklingError("nothing was written")
        text = io.BytesIO(whole[at : at + length].numpy().data)
        unpacker = _Unpacker(text, whole) if known is None else _AnyUnpacker(text, whole, known)
        return unpacker.load()

    def close(self) -> None:
        """Give the memory back, once no tensor maps it any more."""
        os.close(self.place)


@contextlib.contextmanager
def parcel(place: int | None = None) -> Iterator[Parcel]:
    """A parcel that is closed afterwards."""
    one = Parcel(place)
    try:
        yield one
    finally:
        one.close()


class _AnyPacker(pickle.Pickler):
    """Any value; tensors are written to the file beside."""

    def __init__(self, text: io.BytesIO, file: io.BufferedWriter, known: SentOnce) -> None:
        super().__init__(text, protocol=5)
        self._file, self._known = file, known
        # Each is kept alive, so that no other one has its id.
        self._written: dict[int, tuple[Tensor, tuple[Any, ...]]] = {}

    def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
        if type(value) is object:  # nothing but itself: a copy is not what it stands for
            raise pickle.PicklingError("an object() that is compared with `is` has no copy")
        if isinstance(value, self._known.kinds):
            return self._known.number(value)
        if type(value) is not Tensor or value.requires_grad or not _plain(value):
            return None
        if id(value) not in self._written:
            self._written[id(value)] = value, self._write(value)
        return self._written[id(value)][1]

    def _write(self, value: Tensor) -> tuple[Any, ...]:
        """Its address; with the strides of a copy of it, on which bits of sums may depend."""
        dense = value if value.is_contiguous() else value.clone()
        at = _written(self._file, dense.as_strided((dense.numel(),), (1,)))
        return _name(value.dtype), tuple(value.shape), dense.stride(), at


class _AnyUnpacker(pickle.Unpickler):
    def __init__(self, text: io.BytesIO, whole: Tensor, known: SentOnce) -> None:
        super().__init__(text)
        self._whole, self._known = whole, known
        self._found: dict[tuple[Any, ...], Tensor] = {}

    def persistent_load(self, address: tuple[Any, ...]) -> object:
        if len(address) == 2:
            return self._known.value(*address)
        if address not in self._found:
            name, shape, stride, at = address
            flat = _read(self._whole, name, math.prod(shape), at)
            self._found[address] = flat.as_strided(shape, stride)
        return self._found[address]


class _Packer(pickle.Pickler):
    """Plain values, and tensors."""

    def __init__(self, text: io.BytesIO, file: io.BufferedWriter) -> None:
        super().__init__(text, protocol=5)
        self._file = file

    def persistent_id(self, value: Any) -> tuple[str, tuple[int, ...], int] | None:
        if not isinstance(value, Tensor):
            return None
        dense = value.detach().cpu().contiguous()
        flat = dense.as_strided((dense.numel(),), (1,))  # a single value may have any stride
        return _name(value.dtype), tuple(value.shape), _written(self._file, flat)

    def reducer_override(self, value: Any) -> NoReturn:
        raise pickle.PicklingError(f"neither a plain value nor a tensor: {type(value).__name__}")


class _Unpacker(pickle.Unpickler):
    def __init__(self, text: io.BytesIO, whole: Tensor) -> None:
        super().__init__(text)
        self._whole = whole

    def persistent_load(self, address: tuple[str, tuple[int, ...], int]) -> Tensor:
        name, shape, at = address
        return _read(self._whole, name, math.prod(shape), at).view(shape)

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"neither a plain value nor a tensor: {module}.{name}")


def _plain(value: Tensor) -> bool:
    """Whether a tensor is an ordinary one in this machine's memory."""
    ordinary = value.layout == torch.strided and not value.is_quantized and not value.is_nested
    return ordinary and value.device.type == "cpu" and not (value.is_conj() or value.is_neg())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _written(file: io.BufferedWriter, flat: Tensor) -> int:
    """Where in a file the values of a tensor have been written."""
    at = -(-file.tell() // ALIGNED) * ALIGNED
    file.seek(at)
    file.write(flat.view(torch.uint8).numpy().data)
    return at


def _read(whole: Tensor, name: str, count: int, at: int) -> Tensor:
    """So many values of a type, in the memory of a parcel."""
    dtype: torch.dtype = getattr(torch, name)
    if not count:
        return torch.empty(0, dtype=dtype)
    return whole[at : at + count * dtype.itemsize].view(dtype)
