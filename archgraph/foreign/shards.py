"""Reading and writing of folders of safetensors files, a few rows of a tensor at a time.

Only the rows that are being copied are in memory. A safetensors file consists of eight bytes with
the length of the header, the header as JSON (dtype, shape and byte range of each tensor), and the
data.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archgraph.errors import GraphError
from archgraph.files import sync
from archgraph.states.lazy import LazyState

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_SHARD = 5_000_000_000  # bytes, the default of transformers

_DTYPES = {
    "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
_WORDS = {dtype: word for word, dtype in _DTYPES.items()}


class Shards(LazyState):
    """The tensors in a folder of safetensors files, which are read on access.

    Attributes:
        files: Paths of the files, sorted.

    Raises:
        GraphError: If the folder does not contain safetensors files, or its index does not match
            them.
    """

    def __init__(self, folder: Path) -> None:
        index = None
        if not (folder / SINGLE).is_file():  # in the order of transformers
            index = _index(folder)
        self.files = sorted(
            {folder / name for name in index.values()} if index else {folder / SINGLE}
        )
        self._file: dict[str, Path] = {}
        types: dict[str, Tensor] = {}
        for file in self.files:
            for name, like in _types(file).items():
                if name in types:
                    raise GraphError(
                        "is in two files",
                        where=f"{folder}: {name}",
                        found=f"{self._file[name].name} and {file.name}",
                    )
                types[name], self._file[name] = like, file
        if index is not None:
            actual = {name: file.name for name, file in self._file.items()}
            wrong = sorted(name for name, _ in set(actual.items()) ^ set(index.items()))
            if wrong:
                raise GraphError(
                    "does not match the files",
                    where=str(folder / INDEX),
                    found=f"{wrong[0]} in {index.get(wrong[0], 'no file')}",
                    expected=actual.get(wrong[0], "no file"),
                    hint="rewrite the index",
                )
        super().__init__(types, self._read)

    @property
    def shard_size(self) -> int:
        """The maximum size of a saved shard in bytes: that of the largest shard, up to 5 GB."""
        sizes = [file.stat().st_size for file in self.files]
        return min(MAX_SHARD, max(sizes)) if len(sizes) > 1 else MAX_SHARD

    def _read(self, name: str, start: int, stop: int) -> Tensor:
        with opened(self._file[name]) as file:  # memory-mapped, so only these rows are read
            if not self.types[name].dim():
                return file.get_tensor(name)
            return file.get_slice(name)[start:stop]


def _index(folder: Path) -> dict[str, str]:
    """Return a dict from tensor to the name of its file."""
    path = folder / INDEX
    try:
        index = json.loads(path.read_text("utf-8"))["weight_map"]
        names = {str(k): str(v) for k, v in index.items()}
    except FileNotFoundError as error:
        raise GraphError(
            "has no weights in safetensors", where=str(folder), expected=f"{SINGLE} or {INDEX}"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise GraphError("is not an index", where=str(path), found=error) from error
    outside = sorted(v for v in names.values() if Path(v).name != v)
    if outside:
        raise GraphError("names a file outside its folder", where=str(path), found=outside[0])
    return names


def _types(file: Path) -> dict[str, Tensor]:
    """Return a dict from tensor to its type, without reading the data."""
    result = {}
    with opened(file) as tensors:  # checks the header, and that the file is complete
        for name in tensors.keys():
            part = tensors.get_slice(name)
            dtype = _DTYPES.get(part.get_dtype())
            if dtype is None:
                raise GraphError(
                    "unknown dtype",
                    where=f"{file}: {name}",
                    found=part.get_dtype(),
                    expected=", ".join(_DTYPES),
                )
            result[name] = torch.empty(part.get_shape(), dtype=dtype, device="meta")
    return result


@contextlib.contextmanager
def opened(file: Path) -> Iterator[Any]:
    """Open a file for reading.

    Raises:
        GraphError: If the file cannot be opened.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as tensors:
            yield tensors
    except (OSError, SafetensorError) as error:
        raise GraphError("is not a safetensors file", where=str(file), found=error) from error


def write_shards(folder: Path, state: LazyState, max_shard_size: int = MAX_SHARD) -> None:
    """Write a state, tensor by tensor, as ``model.safetensors`` or as shards with an index."""
    shards = [*_shards(state.types, max_shard_size)]
    count = len(shards)
    files = [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]
    files = [SINGLE] if count < 2 else files
    for file, names in zip(files, shards, strict=True):
        _write(folder / file, state, names)
    if count > 1:
        size = sum(like.nbytes for like in state.types.values())
        where = {n: file for file, names in zip(files, shards, strict=True) for n in names}
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(where.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", "utf-8")
    sync(folder)


def _shards(types: Mapping[str, Tensor], limit: int) -> Iterator[list[str]]:
    """Divide the tensors, in order, into shards of at most a number of bytes.

    A tensor that is larger than the limit has its own shard.
    """
    names: list[str] = []
    size = 0
    for name, like in types.items():
        if names and size + like.nbytes > limit:
            yield names
            names, size = [], 0
        names.append(name)
        size += like.nbytes
    yield names


def _write(file: Path, state: LazyState, names: list[str]) -> None:
    # Write wide dtypes first, so that each tensor is aligned to its element size.
    order = sorted(names, key=lambda name: -state.types[name].element_size())
    ends = [0, *itertools.accumulate(state.types[name].nbytes for name in order)]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for name, (start, end) in zip(order, itertools.pairwise(ends), strict=True):
        like = state.types[name]
        shape, offsets = list(like.shape), [start, end]
        header[name] = {"dtype": _WORDS[like.dtype], "shape": shape, "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            like, size = state.types[name], 0
            for band in state.bands(name):
                assert band.dtype == like.dtype
                data = band.detach().cpu().contiguous().view(-1).view(torch.uint8)
                stream.write(memoryview(data.numpy()))  # type: ignore[arg-type]  # it has the protocol
                size += len(data)
            assert size == like.nbytes, name
    sync(file)
