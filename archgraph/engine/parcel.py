"""Plain values and tensors from a process to the one that started it, through memory of both."""

from __future__ import annotations

import io
import os
import pickle
import tempfile
from typing import Any, NoReturn

import torch
from torch import Tensor

# Each tensor begins at a multiple of so many bytes, which suits every type.
ALIGNED = 64


class Parcel:
    """Memory that a process and its children share, for one value.

    The value holds tensors, None, booleans, numbers, texts, tuples, lists and mappings of these: a
    process that a faulty program has run in can send nothing else. Tensors are copied once, by the
    process that packs; the other one maps them.

    Example:
        >>> parcel = Parcel()
        >>> parcel.pack({"weight": torch.ones(2), "loss": 0.5})
        >>> parcel.unpack()
        {'weight': tensor([1., 1.]), 'loss': 0.5}
        >>> parcel.close()
    """

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self._place = os.memfd_create("archgraph")
        else:  # a file without a name
            with tempfile.TemporaryFile() as file:
                self._place = os.dup(file.fileno())

    def pack(self, value: Any) -> None:
        """Write a value.

        Raises:
            PicklingError: If it holds something else.
        """
        text = io.BytesIO()
        with os.fdopen(self._place, "wb", closefd=False) as file:
            file.seek(ALIGNED)
            _Packer(text, file).dump(value)
            at = file.tell()
            file.write(text.getvalue())
            file.seek(0)
            file.write(at.to_bytes(8, "little") + len(text.getvalue()).to_bytes(8, "little"))

    def unpack(self) -> Any:
        """The value that was written, once the process that wrote it has ended.

        Raises:
            UnpicklingError: If it holds something else, or is not whole.
        """
        size = os.fstat(self._place).st_size
        # Private: what is written to a tensor stays here, and no file stays open for it.
        whole = torch.from_file(f"/dev/fd/{self._place}", False, size, dtype=torch.uint8)
        at, length = (int.from_bytes(bytes(whole[i : i + 8].tolist()), "little") for i in (0, 8))
        if not length:
            raise pickle.UnpicklingError("nothing was written")
        return _Unpacker(io.BytesIO(whole[at : at + length].numpy().data), whole).load()

    def close(self) -> None:
        """Give the memory back, once no tensor maps it any more."""
        os.close(self._place)


class _Packer(pickle.Pickler):
    def __init__(self, text: io.BytesIO, file: io.BufferedWriter) -> None:
        super().__init__(text, protocol=5)
        self._file = file

    def persistent_id(self, value: Any) -> tuple[str, tuple[int, ...], int] | None:
        if not isinstance(value, Tensor):
            return None
        at = -(-self._file.tell() // ALIGNED) * ALIGNED
        self._file.seek(at)
        self._file.write(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return str(value.dtype).removeprefix("torch."), tuple(value.shape), at

    def reducer_override(self, value: Any) -> NoReturn:
        raise pickle.PicklingError(f"neither a plain value nor a tensor: {type(value).__name__}")


class _Unpacker(pickle.Unpickler):
    def __init__(self, text: io.BytesIO, whole: Tensor) -> None:
        super().__init__(text)
        self._whole = whole

    def persistent_load(self, address: tuple[str, tuple[int, ...], int]) -> Tensor:
        name, shape, at = address
        dtype = getattr(torch, name)
        empty = torch.empty(shape, dtype=dtype, device="meta")
        if not empty.numel():
            return torch.empty(shape, dtype=dtype)
        flat = self._whole[at : at + empty.numel() * empty.element_size()]
        return flat.view(dtype).view(shape)

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"neither a plain value nor a tensor: {module}.{name}")
