"""Reordering the classes of a data set."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import torch
from torch import Tensor

from archgraph.data.values import Dataset, ExampleReader, Split


def reordered(data: Dataset, order: tuple[int, ...]) -> Dataset:
    """Return the data with its classes renumbered in another order.

    Args:
        data: A data set in which each example has one class.
        order: Current numbers of the classes in their new order: class ``order[i]`` becomes class
            i.
    """
    numbers = torch.tensor(order).argsort()

    def renumbered(split: Split) -> Split:
        targets, again = _renumbered(split.targets, numbers), split.again
        if again is not None:
            again = functools.partial(_read_renumbered, again, numbers)
        return dataclasses.replace(split, targets=targets, again=again)

    labels = tuple(data.labels[number] for number in order)
    train, test = renumbered(data.train), renumbered(data.test)
    return dataclasses.replace(data, labels=labels, train=train, test=test)


def _renumbered(targets: Tensor, numbers: Tensor) -> Tensor:
    return torch.where(targets < 0, targets, numbers[targets.clamp(min=0)])


def _read_renumbered(
    again: ExampleReader, numbers: Tensor, positions: Tensor, seed: int
) -> tuple[Mapping[str, Tensor], Tensor]:
    inputs, targets = again(positions, seed)
    return inputs, _renumbered(targets, numbers)
