"""Tensors and plain values as bytes: safetensors, with the plain values as JSON in its header.

This is the only such format: results of worker processes, Flower's messages, spilled updates and
checkpoints are written by it. Reading one executes nothing of it.
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

from archgraph.errors import RejectedUpdate
from archgraph.states.state import State

K = TypeVar("K", bound=type)

# Where a header holds the plain values, and the names of a file's tensors in their order.
VALUES, ORDER = "values", "order"
_KINDS: dict[str, type] = {}
# What JSON, NumPy and the constructors of values raise where a message is damaged.
_DAMAGED = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)


def carried(kind: K) -> K:
    """Let messages hold a frozen dataclass or named tuple, as a decorator of it.

    A reader makes values of these types and of no others, whatever a message says.
    """
    _KINDS[kind.__name__] = kind
    return kind


def dense(tensor: Tensor) -> Tensor:
    """Return a tensor as it is written: computed, contiguous, in the memory of the processor."""
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()


def raw(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor, without a copy where it is dense."""
    return dense(tensor).reshape(-1).view(torch.uint8).numpy().data


def from_raw(buffer: bytes | memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor of bytes that :func:`raw` gave, in memory of its own.

    Raises:
        ValueError: If these are not as many bytes as it has.

    Example:
        >>> from_raw(raw(torch.ones(2, 1)), torch.float32, (2, 1))
        tensor([[1.],
                [1.]])
    """
    # In PyTorch's own memory, since the bits of a sum may depend on the alignment.
    flat = torch.empty(math.prod(shape), dtype=dtype)
    if flat.numel():
        flat.view(torch.uint8).numpy()[:] = np.frombuffer(buffer, np.uint8)
    return flat.view(shape)


def encode(value: Any) -> bytes:
    """Write plain values and tensors, at any depth, as one message.

    Args:
        value: None, booleans, numbers, text, tensors; lists, tuples and mappings by text of these;
            values of the types that are :func:`carried`, with such fields.

    Raises:
        TypeError: If it holds something else.

    Example:
        >>> decode(encode({"weight": torch.ones(2), "loss": 0.5}))
        {'weight': tensor([1., 1.]), 'loss': 0.5}
    """
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_written(value, tensors))
    return save_bytes(_apart(tensors), {VALUES: text})


def decode(message: bytes) -> Any:
    """Read what :func:`encode` wrote, with tensors in memory of their own; tuples become lists.

    Raises:
        RejectedUpdate: If it is not such a message.
    """
    try:
        start = 8 + int.from_bytes(message[:8], "little")
        header = json.loads(message[8:start])
        values = json.loads(header["__metadata__"][VALUES])
        return _read(values, header, memoryview(message)[start:])
    except _DAMAGED as error:
        raise RejectedUpdate("damaged message", found=f"{type(error).__name__}: {error}") from error


def save_tensors(path: str | os.PathLike[str], state: State) -> None:
    """Write tensors as a safetensors file, which keeps their order."""
    tensors = _apart(state)
    save_file(tensors, path, {ORDER: json.dumps(list(tensors))})


def load_tensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read a file of :func:`save_tensors`: its tensors in their order.

    The file is mapped, so a tensor is read when it is used, and processes that read the same file
    share its memory until they write to it.

    Raises:
        SafetensorError: If it is not such a file.
        ValueError: If the order names other tensors than the file holds.
    """
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # no mapping
        order = json.loads((file.metadata() or {}).get(ORDER, "null"))
    if order is None:  # a file that another program has written
        return tensors
    if sorted(order) != sorted(tensors):
        raise ValueError(f"{Path(path).name}: the order of its tensors names others")
    return {name: tensors[name] for name in order}


def _apart(state: State) -> dict[str, Tensor]:
    """Return dense tensors none of which shares its memory with another: the format's rule."""
    result: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in state.items():
        flat = dense(tensor)
        if flat.untyped_storage().data_ptr() in storages:
            flat = flat.clone()
        storages.add(flat.untyped_storage().data_ptr())
        result[name] = flat
    return result


def _written(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return JSON for a value; every mapping in it has one key that says what it stands for."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        tensors[name := str(len(tensors))] = value
        return {"tensor": [name, str(value.dtype).removeprefix("torch.")]}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"map": {key: _written(item, tensors) for key, item in value.items()}}
    kind = type(value).__name__
    if _KINDS.get(kind) is type(value):
        return {kind: {k: _written(v, tensors) for k, v in _fields(value).items()}}
    if isinstance(value, list | tuple):
        return [_written(item, tensors) for item in value]
    raise TypeError(f"neither a plain value nor a tensor: {kind}")


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
        shape = tuple(header[name]["shape"])
        return from_raw(data[start:stop], getattr(torch, dtype), shape)
    inner = {name: _read(item, header, data) for name, item in content.items()}
    return inner if key == "map" else _KINDS[key](**inner)
