"""Items of torch datasets and streams, read again in every pass under reproducible seeds."""

from __future__ import annotations

import bisect
import itertools
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from archgraph.data.values import row_form
from archgraph.errors import DataError
from archgraph.processes.isolation import isolated

IN_FILE = 2**28  # bytes; tensors of this size or larger are stored in a file
_MIXED = 0x9E3779B97F4A7C15  # the odd number next to 2⁶⁴ divided by the golden ratio

ItemTarget: TypeAlias = Tensor | np.ndarray  # numbers, or text
Item: TypeAlias = tuple[dict[str | None, Tensor], ItemTarget]  # inputs by name, and a target


class Items(Protocol):
    """A map-style torch dataset: it has a length, and its items can be indexed."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int) -> object: ...


@dataclass(frozen=True, eq=False)
class Reading:
    """Items of torch datasets, read again in each pass with a seed derived from their index.

    The generators of torch, NumPy and Python are seeded before each item. An item therefore does
    not depend on the process that reads it, or on the items that were read before.

    Attributes:
        parts: For each client, the index of its first item and its torch dataset.
        convert: Function from an item to a dict from input names to inputs, and a target.
    """

    parts: Sequence[tuple[int, Items]]
    convert: Callable[[object, str], Item]

    def of(self, positions: Sequence[int], seed: int, where: str = "train") -> list[Item]:
        """Return the items at some indices.

        Args:
            positions: Indices into the concatenated torch datasets.
            seed: Seed from which the seed of each item is derived.
            where: Name of the split, for errors.

        Raises:
            DataError: If an item cannot be read.
        """
        firsts, result = [first for first, _ in self.parts], []
        with isolated(torch.Generator().manual_seed(0)):
            for position in positions:
                first, items = self.parts[bisect.bisect_right(firsts, position) - 1]
                _seed_all(_mixed(seed, position))
                at = f"{where}[{position - first}]"
                try:
                    item = items[position - first]
                except Exception as error:  # whatever the user's dataset raises
                    problem = f"{type(error).__name__}: {error}"
                    raise DataError("an example cannot be read", where=at, found=problem) from error
                result.append(self.convert(item, at))
        return result


@dataclass(frozen=True, eq=False)
class Streaming:
    """Streaming data of clients; each pass creates a new iterator with its own seed.

    The generators of torch, NumPy and Python are seeded at the start of the pass and before each
    minibatch. If a stream has `set_epoch`, it is called with a number derived from the pass.

    Attributes:
        streams: Dict from the index of a client's first example to the client's stream: an
            iterable, or a function that returns an iterator.
        convert: Function from an item to a dict from input names to inputs, and a target.
        where: Name of the split, for errors.
    """

    streams: Mapping[int, object]
    convert: Callable[[object, str], Item]
    where: str

    def batches(self, first: int, seed: int, sizes: Sequence[int]) -> Iterator[list[Item]]:
        """Yield minibatches of a client's stream.

        Args:
            first: Index of the client's first example, a key of `streams`.
            seed: Seed from which the seeds of the pass are derived.
            sizes: Number of examples of each minibatch.

        Raises:
            DataError: If the stream fails or ends early.
        """
        stream, seed, count = self.streams[first], _mixed(seed, first), 0
        generator = torch.Generator().manual_seed(0)
        with isolated(generator):
            _seed_all(seed)
            if hasattr(stream, "set_epoch"):
                stream.set_epoch(seed % 2**31)
            source = iter(stream() if callable(stream) else stream)  # type: ignore[arg-type]
        iterator = _reading(source, self.where)
        for number, size in enumerate(sizes, 1):
            items: list[Item] = []
            with isolated(generator):
                _seed_all(_mixed(seed, number))
                for item in itertools.islice(iterator, size):
                    items.append(self.convert(item, f"{self.where}[{count}]"))
                    count += 1
            if len(items) < size:
                raise DataError(
                    "a stream ended before its pass",
                    where=self.where,
                    found=f"{count} examples",
                    expected=f"{sum(sizes)} examples in each pass",
                )
            yield items


def _reading(iterator: Iterator[object], where: str) -> Iterator[object]:
    """Yield the items of an iterator; errors name the split."""
    try:
        yield from iterator
    except Exception as error:  # whatever the user's stream raises
        problem = f"{type(error).__name__}: {error}"
        raise DataError("an example cannot be read", where=where, found=problem) from error


def _mixed(seed: int, position: int) -> int:
    """Return a seed of 63 bits for an item, which is the same in every process."""
    value = (seed ^ (position * _MIXED)) % 2**64
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    return (value ^ (value >> 31)) >> 1


def _seed_all(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  # transforms use it


class StoredRows:
    """A tensor that is filled row by row. It is stored in a temporary file if it is large.

    Args:
        count: Number of rows.
        where: Name of the split, for errors.
        parts: Number of clients. Each client may use an equal fraction of the memory limit.
    """

    def __init__(self, count: int, where: str, parts: int = 1) -> None:
        self.count, self.where, self.parts = count, where, parts
        self.tensor: Tensor | None = None
        self.form = ""

    def put(self, position: int, row: Tensor) -> None:
        """Store a row.

        Raises:
            DataError: If the row differs in shape or type from the first row.
        """
        if self.tensor is None:
            self.form = row_form(row[None])
            self.tensor = empty_rows(self.count, row, IN_FILE // self.parts)
        elif row.shape != self.tensor.shape[1:] or row.dtype != self.tensor.dtype:
            raise DataError(
                "examples differ in shape or type",
                where=f"{self.where}[{position}]",
                found=row_form(row[None]),
                expected=f"{self.form}, as the first one",
            )
        self.tensor[position] = row


def joined_rows(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate rows; a large result is stored in a temporary file."""
    like = parts[0].new_empty(parts[0].shape[1:])
    return torch.cat(list(parts), out=empty_rows(sum(map(len, parts)), like, IN_FILE))


def empty_rows(count: int, row: Tensor, most: int) -> Tensor:
    """Allocate a tensor of `count` rows like `row`.

    A tensor of `most` bytes or more is stored in a temporary file. The file is mapped into memory,
    and deleted with the last reference to the tensor.
    """
    elements = count * row.numel()
    if elements * row.element_size() < most:
        return torch.empty((count, *row.shape), dtype=row.dtype)
    with tempfile.NamedTemporaryFile(prefix="archgraph-") as file:
        file.truncate(elements * row.element_size())
        mapped = torch.from_file(file.name, shared=True, size=elements, dtype=row.dtype)
    return mapped.view(count, *row.shape)
