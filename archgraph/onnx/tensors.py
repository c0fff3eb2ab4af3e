"""Tensors of ONNX files, inside the file or beside it in its own folder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from archgraph.errors import SpecError
from archgraph.graph.text import ITEM_SIZES
from archgraph.limits import LIMITS
from archgraph.ops.schema import torch_dtype

if TYPE_CHECKING:
    import onnx

# Types of ONNX that PyTorch has; the others (text, four bits) have no tensor.
DTYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    14: "complex64",
    15: "complex128",
    16: "bfloat16",
}


def tensor(proto: onnx.TensorProto, folder: Path, where: str) -> torch.Tensor:
    """Read a tensor of a file.

    Args:
        proto: The tensor.
        folder: The file's, which must hold what stands beside it.
        where: The file, for errors.

    Raises:
        SpecError: If its type, size or place is not one that a graph may have.
    """
    import onnx

    place = f"{where}: {proto.name}"
    dtype = DTYPES.get(proto.data_type)
    if dtype is None:
        kinds = onnx.TensorProto.DataType
        known = proto.data_type in kinds.values()
        found = kinds.Name(proto.data_type) if known else f"type {proto.data_type}"
        raise SpecError("has a type that PyTorch lacks", where=place, found=found)
    shape = tuple(proto.dims)
    elements = math.prod(shape)
    large = max(elements, *shape, 0) > LIMITS.leaf_elements
    if len(shape) > LIMITS.rank or min(shape, default=0) < 0 or large:
        raise SpecError("is too large", where=place, found=shape, expected=LIMITS.leaf_elements)
    size = elements * ITEM_SIZES[dtype]
    if proto.data_location == onnx.TensorProto.EXTERNAL:
        raw = _beside(proto, folder, place, size)
    elif proto.HasField("raw_data"):
        raw = proto.raw_data
    else:
        try:
            raw = onnx.numpy_helper.to_array(proto).tobytes()
        except (TypeError, ValueError) as error:
            raise SpecError("cannot be read", where=place, found=str(error)[:200]) from error
    if len(raw) != size:
        raise SpecError(
            "has another size", where=place, found=f"{len(raw)} bytes", expected=f"{size} bytes"
        )
    kind = torch_dtype(dtype)
    return (
        torch.frombuffer(bytearray(raw), dtype=kind).reshape(shape)
        if size
        else torch.empty(shape, dtype=kind)
    )


def _beside(proto: onnx.TensorProto, folder: Path, place: str, size: int) -> bytes:
    """Bytes of a tensor in another file of the same folder."""
    entries = {entry.key: entry.value for entry in proto.external_data}
    name = entries.get("location", "")
    offset = entries.get("offset", "0")
    root = folder.resolve()
    file = (root / name).resolve() if "\0" not in name else root
    if not name or not file.is_relative_to(root) or not file.is_file():
        raise SpecError(
            "has its weights outside of the file's folder",
            where=place,
            found=repr(name[:200]),
            expected="a file beside it",
        )
    length = entries.get("length", str(size))
    if not (offset.isdecimal() and length == str(size) and len(offset) < 20):
        raise SpecError(
            "has another size", where=place, found=f"{length} bytes", expected=f"{size} bytes"
        )
    if int(offset) + size > file.stat().st_size:
        raise SpecError("ends before its weights do", where=str(file), expected=place)
    return np.fromfile(file, np.uint8, size, offset=int(offset)).tobytes()
