"""Encode tensors, numbers and texts as bytes: safetensors, with all other values as JSON in it.

Results of worker processes, Flower's messages, updates on disk and checkpoints all use this format.
Reading a message never executes code from it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save as save_bytes
from safetensors.torch import save_file
from torch import Tensor

from archgraph.errors import RejectedUpdate, RunError
from archgraph.states.state import State

K = TypeVar("K", bound=type)

# Keys of a header: the plain values, and the names of a file's tensors in order.
VALUES, ORDER = "values", "order"
_KINDS: dict[str, type] = {}
# All dtypes that safetensors supports, except float4, which packs two values into a byte.
DTYPES = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e8m0fnu", "float16", "bfloat16", "float32", "float64", "complex64",
)  # fmt: skip
# Errors that JSON, NumPy and the constructors of values raise for a damaged message.
_DAMAGED = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)


def carried(kind: K) -> K:
    """Decorate a frozen dataclass or named tuple, so that messages can contain its instances.

    :func:`decode` creates only instances of decorated types, whatever a message contains.
    """
    _KINDS[kind.__name__] = kind
    return kind


def dense(tensor: Tensor) -> Tensor:
    """Return a tensor that is ready to be written: detached and contiguous, on the CPU."""
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()


def raw(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor, without a copy if it is dense."""
    return dense(tensor).reshape(-1).view(torch.uint8).numpy().data


def from_raw(buffer: bytes | memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Convert the bytes returned by :func:`raw` to a tensor with its own memory.

    Raises:
        ValueError: If the number of bytes does not match the shape and dtype.

    Example:
        >>> from_raw(raw(torch.ones(2, 1)), torch.float32, (2, 1))
        tensor([[1.],
                [1.]])
    """
    # In memory allocated by PyTorch, since the bits of a sum may depend on the alignment.
    flat = torch.empty(math.prod(shape), dtype=dtype)
    if flat.numel():
        flat.view(torch.uint8).numpy()[:] = np.frombuffer(buffer, np.uint8)
    return flat.view(shape)


def encode(value: Any) -> bytes:
    """Encode numbers, texts and tensors, nested to any depth, as one message.

    Args:
        value: None, a boolean, number, string or tensor; a list, tuple or dict with string keys of
            encodable values; or an instance of a :func:`carried` type with encodable fields.

    Raises:
        TypeError: If the value contains anything else.
        RunError: If a tensor is not dense, or has a dtype that the format lacks.

    Example:
        >>> decode(encode({"weight": torch.ones(2), "loss": 0.5}))
        {'weight': tensor([1., 1.]), 'loss': 0.5}
    """
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_written(value, tensors, ""))  # which fills `tensors`
    return save_bytes(_apart(tensors), {VALUES: text})


def decode(message: bytes) -> Any:
    """Decode a message of :func:`encode`; tuples become lists.

    Raises:
        RejectedUpdate: If the message was not written by :func:`encode`, or is damaged.
    """
    try:
        start = 8 + int.from_bytes(message[:8], "little")
        header = json.loads(message[8:start])
        values = json.loads(header["__metadata__"][VALUES])
        return _read(values, header, memoryview(message)[start:])
    except _DAMAGED as error:
        raise RejectedUpdate("damaged message", found=f"{type(error).__name__}: {error}") from error


def save_tensors(path: str | os.PathLike[str], state: State) -> None:
    """Write tensors to a safetensors file, with their order.

    Raises:
        RunError: If a tensor is not dense, or has a dtype that the format lacks.
    """
    check_tensors(state)
    tensors = _apart(state)
    save_file(tensors, path, {ORDER: json.dumps(list(tensors))})


def load_tensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read tensors written by :func:`save_tensors`, in their order.

    The file is memory-mapped: a tensor is read when it is used. Processes that read the same file
    share memory until they write to it.

    Raises:
        SafetensorError: If the file is not a safetensors file.
        ValueError: If the stored order has other names than the tensors in the file.
    """
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # no mapping
        order = json.loads((file.metadata() or {}).get(ORDER, "null"))
    if order is None:  # written by another program
        return tensors
    if sorted(order) != sorted(tensors):
        raise ValueError(f"{Path(path).name}: its stored order does not match its tensors")
    return {name: tensors[name] for name in order}


def _apart(state: State) -> dict[str, Tensor]:
    """Return dense tensors without shared memory, as the format requires."""
    result: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in state.items():
        flat = dense(tensor)
        if flat.untyped_storage().data_ptr() in storages:
            flat = flat.clone()
        storages.add(flat.untyped_storage().data_ptr())
        result[name] = flat
    return result


def check_tensors(state: State) -> None:
    """Check that tensors can be sent and stored.

    Raises:
        RunError: If a tensor is not dense, or has a dtype that the format lacks.

    Example:
        >>> check_tensors({"weight": torch.ones(2, dtype=torch.complex64)})
    """
    for name, tensor in state.items():
        _check(name, tensor)


def _check(name: str, tensor: Tensor) -> None:
    """Check that the format can store a tensor.

    Raises:
        RunError: If it is not dense, or has a dtype that the format lacks.
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    layout = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
    if tensor.is_meta or layout != "strided":
        kind = "meta" if tensor.is_meta else layout
        raise RunError(
            f"{kind} tensors cannot be sent or stored",
            where=name or None,
            expected="a dense tensor",
        )
    if dtype not in DTYPES:
        raise RunError(
            "values cannot be sent or stored",
            where=name or None,
            found=dtype,
            expected=f"one of {', '.join(DTYPES)}",
        )


def _written(value: Any, tensors: dict[str, Tensor], at: str) -> Any:
    """Convert a value to JSON; each mapping in it has one key, the kind of value it represents."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        _check(at, value)
        tensors[name := str(len(tensors))] = value
        return {"tensor": [name, str(value.dtype).removeprefix("torch.")]}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"map": {key: _written(v, tensors, _inside(at, key)) for key, v in value.items()}}
    kind = type(value).__name__
    if _KINDS.get(kind) is type(value):
        fields = _fields(value).items()
        return {kind: {key: _written(v, tensors, _inside(at, key)) for key, v in fields}}
    if isinstance(value, list | tuple):
        return [_written(v, tensors, _inside(at, number)) for number, v in enumerate(value)]
    raise TypeError(f"neither a plain value nor a tensor: {kind}")


def _inside(at: str, key: str | int) -> str:
    return f"{at}: {key}" if at else str(key)


def _fields(value: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return dict(value._asdict())  # a named tuple


def _read(plain: Any, header: Mapping[str, Any], data: memoryview) -> Any:
    if isinstance(plain, list):
        return [_read(item, header, data) for item in plain]
    if not isinstance(plain, dict):
        return plain
    ((key, content),) = plain.items()
    if key == "tensor":
        name, dtype = content
        start, stop = header[name]["data_offsets"]
        return from_raw(data[start:stop], getattr(torch, dtype), tuple(header[name]["shape"]))
    inner = {name: _read(item, header, data) for name, item in content.items()}
    return inner if key == "map" else _KINDS[key](**inner)
