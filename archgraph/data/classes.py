"""Some of the classes of a data set: which they are, and the data as they alone make it up."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from archgraph.data.validation import subset
from archgraph.data.values import Dataset, ExampleReader, Split
from archgraph.errors import DataError
from archgraph.federation.metrics import IGNORED
from archgraph.hints import unknown


def class_numbers(names: Sequence[str | int], data: Dataset) -> tuple[int, ...]:
    """Return the numbers of classes, ascending; empty if these are all.

    Args:
        names: Names as the data has them. A number is a name where names are numbers (`7` of a
            column of 3, 5 and 7), else the position of the class.
        data: The data.

    Raises:
        DataError: If the data does not have a class, or one is named twice.

    Example:
        >>> from archgraph.data import load_dataset
        >>> class_numbers([3, "1"], load_dataset("digits"))
        (1, 3)
    """
    labels = data.labels or tuple(map(str, range(data.classes or 0)))
    known: dict[str, int] = {label: number for number, label in enumerate(labels)}
    if not any(map(_is_number, labels)):
        known |= {str(number): number for number in range(len(labels))}
    for name in names:
        if str(name) not in known:
            facts = unknown(str(name), known)
            raise DataError(f"the data ({data.name}) does not have the class", **facts)
    numbers = sorted({known[str(name)] for name in names})
    if len(numbers) < len(names):
        raise DataError("names a class twice", found=", ".join(map(str, names)))
    return tuple(numbers) if len(numbers) < len(labels) else ()


def _is_number(label: str) -> bool:
    with contextlib.suppress(ValueError):
        float(label)
        return True
    return False


def of_classes(data: Dataset, classes: tuple[int, ...]) -> Dataset:
    """Return the data with some of its classes, counted from 0 in their order.

    Test examples of other classes are left out. Training examples keep their positions, which
    shares name; those of other classes have no class any more.

    Args:
        data: Examples with one class each.
        classes: Numbers of the classes.
    """
    numbers = torch.full((data.classes or 0,), IGNORED)
    numbers[list(classes)] = torch.arange(len(classes))

    def renumbered(split: Split) -> Split:
        targets, again = _renumbered(split.targets, numbers), split.again
        if again is not None:
            again = functools.partial(_read_renumbered, again, numbers)
        return dataclasses.replace(split, targets=targets, again=again)

    test = renumbered(data.test)
    labels = tuple(data.labels[number] for number in classes) if data.labels else ()
    return dataclasses.replace(
        data,
        classes=len(classes),
        labels=labels,
        train=renumbered(data.train),
        test=subset(test, (test.targets != IGNORED).nonzero()[:, 0].numpy()),
    )


def _renumbered(targets: Tensor, numbers: Tensor) -> Tensor:
    return torch.where(targets < 0, targets, numbers[targets.clamp(min=0)])


def _read_renumbered(
    again: ExampleReader, numbers: Tensor, positions: Tensor, seed: int
) -> tuple[Mapping[str, Tensor], Tensor]:
    inputs, targets = again(positions, seed)
    return inputs, _renumbered(targets, numbers)
