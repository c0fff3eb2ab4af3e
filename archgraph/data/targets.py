"""Convert targets from Python to the types that tasks learn: classes, labels or numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from archgraph.data.arrays import Text, array_of, real_numbers
from archgraph.data.columns import INTEGER
from archgraph.data.rows import number_classes, numbered
from archgraph.data.values import row_form
from archgraph.errors import DataError
from archgraph.language.task import OWN

FLAGS = ("False", "True")
"""Names of the classes of a boolean target."""
_TASKS = {
    "text": "task: classification",
    "bool": "task: classification (two classes), task: multilabel (labels), or task: segmentation",
    "int64": "task: segmentation or task: next_token (a class at each position), or task: "
    "multilabel (0 or 1 for each label); for one-hot rows, targets.argmax(1) gives the classes",
    "float32": "task: regression (numbers), task: classification (whole numbers) or task: "
    "multilabel (0 and 1)",
}
"""Type of targets → tasks that learn them."""


class Meaning(NamedTuple):
    """Targets, converted to the types that a task learns.

    Attributes:
        parts: Targets of each client and of the test examples, int64, bool or float32
            ``[example, ...]`` as in :class:`Split`.
        convert: Function that converts further targets in the same way, for items that are read
            again and for streams.
        labels: Names of the classes; empty if the classes do not have names.
    """

    parts: list[Tensor]
    convert: Callable[[Any], Tensor]
    labels: tuple[str, ...] = ()


def raw_targets(value: object, where: str) -> Tensor | Text:
    """Convert targets to int64, bool, float32 or text, without interpreting them yet.

    Raises:
        DataError: If targets are neither numbers nor text, or a target is missing or not finite.
    """
    rows = target_array(value, where)
    if isinstance(rows, np.ndarray):
        return rows
    rows = real_numbers(rows, where)
    return rows if rows.is_floating_point() or rows.dtype == torch.bool else rows.to(torch.int64)


def target_array(value: object, where: str) -> Tensor | Text:
    """Convert one target, or the targets of all examples.

    Raises:
        DataError: If a target is a mapping of tensors, or in the cases of :func:`array_of`.
    """
    first = value[0] if isinstance(value, list | tuple) and value else value
    if isinstance(first, Mapping):
        raise DataError(
            "is a dictionary",
            where=where,
            found=", ".join(map(str, first)) or "no tensors",
            expected="one tensor for each example",
            hint="combine its tensors into one tensor of the same shape for all examples, and "
            'split it in your own objective: task: {objective: "python:losses:mine"}',
        )
    return array_of(value, where)


def form_of(rows: Tensor | Text) -> str:
    """Describe the type and shape of a row.

    >>> form_of(torch.zeros(3, 2)), form_of(np.array(["yes"]))
    ('float32 [2]', 'text []')
    """
    return row_form(rows) if isinstance(rows, Tensor) else f"text {list(rows.shape[1:])}"


def check_said(form: str, where: str) -> None:
    """Check that each target is one integer, as required if no task is set.

    Args:
        form: Type and shape of the targets, as described by :func:`form_of`.
        where: Name of the targets, for errors.

    Raises:
        DataError: If targets have another type or shape. The error lists the tasks that learn them.
    """
    if form not in ("int64 []", "int64 [1]"):
        raise DataError(
            "could have several meanings",
            where=where,
            found=form,
            expected="whole numbers (the class of each example), or a task",
            hint=f"write {_TASKS[form.partition(' ')[0]]}",
        )


def meaning(parts: Sequence[Tensor | Text], where: str, task: str | None = None) -> Meaning:
    """Convert targets to the type that the task learns.

    1. Without a task, targets must be whole numbers, which are the classes of the examples.
    2. Texts are names of classes.
    3. A dimension of size 1 is dropped if the task does not use it.
    4. The task determines the meaning of numbers and booleans: true and false are classes for
       `classification`, labels for `multilabel` and numbers for `regression`.

    Args:
        parts: Targets of each client and of the test examples, all of one type and shape.
        where: Name of the targets, for errors.
        task: Name of the task. For :data:`OWN`, an objective of the user, targets stay unchanged.

    Raises:
        DataError: If targets are ambiguous without a task, or the task cannot learn these targets.

    Example:
        >>> said = meaning([np.array(["no", "yes"]), np.array(["yes"])], "y", "classification")
        >>> said.parts, said.labels
        ([tensor([0, 1]), tensor([1])], ('no', 'yes'))
        >>> meaning([torch.tensor([[0, 1], [1, 0]])], "y", "multilabel").parts[0].dtype
        torch.bool
    """
    if task is None and len(parts[0]):  # 1
        check_said(form_of(parts[0]), where)
    texts = [part for part in parts if isinstance(part, np.ndarray)]
    if texts:  # 2
        if task not in (OWN, "classification"):
            raise DataError(
                f"are text, which task: {task} does not learn",
                where=where,
                found=repr(texts[0].flat[0].item()),
                hint="texts are names of classes: write task: classification",
            )
        return _named(texts, where)
    squeezed = functools.partial(_squeezed, task=task)
    rows = [squeezed(part) for part in parts if isinstance(part, Tensor)]  # 3
    convert, labels = _reading(rows, where, task)  # 4
    return Meaning([convert(part) for part in rows], lambda r: convert(squeezed(r)), labels)


def _reading(
    rows: Sequence[Tensor], where: str, task: str | None
) -> tuple[Callable[[Tensor], Tensor], tuple[str, ...]]:
    """Return a function that converts numbers to targets of a task, and the names of classes."""
    first = rows[0]
    flags = all(bool(((part == 0) | (part == 1)).all()) for part in rows)
    match task:
        case "regression":
            return lambda r: real_numbers(r.double(), where), ()
        case "multilabel" if flags and first.dim() in (1, 2):
            return lambda r: r.bool().reshape(len(r), -1), ()
        case "classification" if first.is_floating_point() and _integral(rows):
            return Tensor.long, ()
    if first.dtype == torch.bool and first.dim() != 2 and task != "multilabel":
        return Tensor.long, () if task == OWN else FLAGS
    return _unchanged, ()


def _named(parts: Sequence[Text], where: str) -> Meaning:
    """Return classes, numbered in the order of the names of all parts."""

    def names_of(part: Text) -> list[str]:
        if part.size != len(part):
            raise DataError(
                "are text with several axes",
                where=where,
                found=form_of(part),
                expected="one name for each example",
            )
        return [name.strip() for name in part.reshape(-1).tolist()]

    def convert(part: Text) -> Tensor:
        return numbered(names_of(part), labels, lambda row: f"{where}[{row}]")

    names = [name for part in parts for name in names_of(part)]
    if "" in names:
        hint = "replace it by a name such as 'none', or remove these examples"
        at = f"{where}[{names.index('')}]"
        raise DataError("the name of a class is empty", where=at, hint=hint)
    integral = all(map(INTEGER.fullmatch, names))
    labels = number_classes(names, int if integral else str)[1]
    return Meaning([convert(part) for part in parts], convert, labels)


def _squeezed(rows: Tensor, task: str | None) -> Tensor:
    """Drop axis 1 of classes ``[example, 1]`` and of class maps ``[example, 1, height, width]``."""
    axes = {None: 2, "classification": 2, "segmentation": 4}.get(task)
    return rows[:, 0] if rows.dim() == axes and rows.shape[1] == 1 else rows


def _integral(parts: Sequence[Tensor]) -> bool:
    return all(bool((part == part.round()).all()) for part in parts)


def _unchanged(rows: Tensor) -> Tensor:
    return rows
