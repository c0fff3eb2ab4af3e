"""Items of a torch dataset that training reads anew in every pass, each under a seed of its own."""

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

IN_FILE = 2**28  # bytes of a tensor from which on it is in a file
_MIXED = 0x9E3779B97F4A7C15  # the odd number next to 2⁶⁴ divided by the golden ratio

ItemTarget: TypeAlias = Tensor | np.ndarray  # numbers, or text
Item: TypeAlias = tuple[dict[str | None, Tensor], ItemTarget]  # inputs by name, and a target


class Items(Protocol):
    """A torch dataset of the map style."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int) -> object: ...


@dataclass(frozen=True, eq=False)
class Reading:
    """Reads items again, each under a seed that follows from its position.

    torch's, NumPy's and Python's generators are seeded before each item: what an item is depends
    neither on the process that reads it nor on what was read before.

    Attributes:
        parts: First position and items of each client's part.
        convert: Makes inputs by name, and a target, of an item.
    """

    parts: Sequence[tuple[int, Items]]
    convert: Callable[[object, str], Item]

    def of(self, positions: Sequence[int], seed: int, where: str = "train") -> list[Item]:
        """Return the items at some positions.

        Args:
            positions: Positions over all parts.
            seed: From which the seed of each item follows.
            where: Name of the split, for errors.

        Raises:
            DataError: If one cannot be read.
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
    """Reads streams: in each pass a new iterator, under a seed.

    torch's, NumPy's and Python's generators are seeded at the start of the pass and before each
    minibatch. A stream with `set_epoch` is told a number of the pass.

    Attributes:
        streams: Streams by the first position of their client's examples: what has an iterator, or
            a function that returns one.
        convert: Makes inputs by name, and a target, of an item.
        where: Name of the split, for errors.
    """

    streams: Mapping[int, object]
    convert: Callable[[object, str], Item]
    where: str

    def batches(self, first: int, seed: int, sizes: Sequence[int]) -> Iterator[list[Item]]:
        """Yield minibatches of a client's stream.

        Args:
            first: First position of its examples.
            seed: From which the seeds of the pass follow.
            sizes: Numbers of examples.

        Raises:
            DataError: If the stream fails, or ends before.
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
    """Yield what an iterator gives; errors say where it stands."""
    try:
        yield from iterator
    except Exception as error:  # whatever the user's stream raises
        problem = f"{type(error).__name__}: {error}"
        raise DataError("an example cannot be read", where=where, found=problem) from error


def _mixed(seed: int, position: int) -> int:
    """Return a seed of 63 bits for an item: unlike for neighbours, alike in every process."""
    value = (seed ^ (position * _MIXED)) % 2**64
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    return (value ^ (value >> 31)) >> 1


def _seed_all(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  # transforms use it


class StoredRows:
    """Tensors of one form that become one, which is in a file where it is large.

    Args:
        count: Number of rows.
        where: Name of the split, for errors.
        parts: Number of clients, which share what may be in memory.
    """

    def __init__(self, count: int, where: str, parts: int = 1) -> None:
        self.count, self.where, self.parts = count, where, parts
        self.tensor: Tensor | None = None
        self.form = ""

    def put(self, position: int, row: Tensor) -> None:
        """Add a row.

        Raises:
            DataError: If it has another form than the first.
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
    """Concatenate rows; many of them are in a file."""
    like = parts[0].new_empty(parts[0].shape[1:])
    return torch.cat(list(parts), out=empty_rows(sum(map(len, parts)), like, IN_FILE))


def empty_rows(count: int, row: Tensor, most: int) -> Tensor:
    """Return memory for so many rows; more than so many bytes are a file, deleted with it."""
    elements = count * row.numel()
    if elements * row.element_size() < most:
        return torch.empty((count, *row.shape), dtype=row.dtype)
    with tempfile.NamedTemporaryFile(prefix="archgraph-") as file:
        file.truncate(elements * row.element_size())
        mapped = torch.from_file(file.name, shared=True, size=elements, dtype=row.dtype)
    return mapped.view(count, *row.shape)
