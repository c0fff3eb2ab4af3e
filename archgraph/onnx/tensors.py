"""Reading of the tensors of an ONNX file, from the file or another file in its folder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from archgraph.errors import SpecError
from archgraph.limits import LIMITS
from archgraph.ops.schema import torch_dtype

if TYPE_CHECKING:
    import onnx

# Types of ONNX that PyTorch supports; others are text and 4-bit numbers.
DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64",
    14: "complex64", 15: "complex128", 16: "bfloat16",
}  # fmt: skip


def dtype_of(number: int) -> torch.dtype:
    """Return the PyTorch dtype for a number that denotes a type in ONNX.

    Raises:
        SpecError: If PyTorch does not have the type.
    """
    import onnx

    if number not in DTYPES:
        kinds = onnx.TensorProto.DataType
        raise SpecError(
            "has a type that PyTorch lacks",
            found=kinds.Name(number) if number in kinds.values() else f"type {number}",
        )
    return torch_dtype(DTYPES[number])


def stored_tensor(proto: onnx.TensorProto, folder: Path, where: str) -> torch.Tensor:
    """Read a tensor of a file.

    Args:
        proto: The tensor.
        folder: The file's folder, in which external data must be.
        where: The file, for errors.

    Raises:
        SpecError: If its type, size or location is not allowed.
    """
    import onnx

    where = f"{where}: {proto.name}"
    try:
        dtype = dtype_of(proto.data_type)
    except SpecError as error:
        raise error.within(where) from error
    shape, size = tuple(proto.dims), math.prod(proto.dims) * dtype.itemsize
    if (
        len(shape) > LIMITS.rank
        or min(shape, default=0) < 0
        or max(math.prod(shape), *shape, 0) > LIMITS.leaf_elements
    ):
        raise SpecError("is too large", where=where, found=shape, expected=LIMITS.leaf_elements)
    file = file_beside(proto, folder, where)
    if file is not None:
        raw = _beside(proto, file, where, size)
    elif proto.HasField("raw_data"):
        raw = proto.raw_data
    else:
        try:
            raw = onnx.numpy_helper.to_array(proto).tobytes()
        except (TypeError, ValueError) as error:
            raise SpecError("cannot be read", where=where, found=str(error)[:200]) from error
    if len(raw) != size:
        raise SpecError(f"has {len(raw)} bytes instead of {size}", where=where)
    # torch.frombuffer rejects empty buffers, and warns about read-only buffers.
    flat = torch.frombuffer(bytearray(raw), dtype=dtype) if size else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)


def file_beside(proto: onnx.TensorProto, folder: Path, where: str) -> Path | None:
    """Return the external file with the data of a tensor; None if the data are in the ONNX file.

    Raises:
        SpecError: If the external file is missing, or outside the folder of the ONNX file.
    """
    import onnx

    if proto.data_location != onnx.TensorProto.EXTERNAL:
        return None
    name = next((e.value for e in proto.external_data if e.key == "location"), "")
    root = folder.resolve()
    file = (root / name).resolve() if "\0" not in name else root
    # An untrusted file must not cause other files to be read.
    if not name or not file.is_relative_to(root) or file.is_dir():
        raise SpecError(
            "has its weights outside the file's folder", where=where, found=repr(name[:200])
        )
    if not file.is_file():
        raise SpecError(
            "lacks the file with its weights",
            where=where,
            expected=str(file)[:200],
            hint="copy that file into the same folder, under its original name",
        )
    return file


def _beside(proto: onnx.TensorProto, file: Path, where: str, size: int) -> bytes:
    """Read the bytes of a tensor from another file."""
    entries = {entry.key: entry.value for entry in proto.external_data}
    offset = entries.get("offset", "0")
    length = entries.get("length", str(size))
    if not (offset.isdecimal() and length == str(size) and len(offset) < 20):
        raise SpecError(f"has {length} bytes instead of {size}", where=where)
    if int(offset) + size > file.stat().st_size:
        raise SpecError("ends before its weights do", where=str(file), expected=where)
    return np.fromfile(file, np.uint8, size, offset=int(offset)).tobytes()
