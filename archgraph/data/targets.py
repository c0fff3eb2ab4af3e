"""Targets from Python as tasks learn them: classes, labels or numbers."""

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
"""Names of the classes of a target that is true or false."""
_TASKS = {
    "text": "task: classification",
    "bool": "task: classification (two classes), task: multilabel (labels), or task: segmentation",
    "int64": "task: segmentation or task: next_token (a class at each place), or task: multilabel "
    "(0 or 1 for each label); of one-hot rows targets.argmax(1) are classes",
    "float32": "task: regression (numbers); of whole numbers task: classification; of 0 and 1 "
    "task: multilabel",
}
"""Type of targets → tasks that learn them."""


class Meaning(NamedTuple):
    """Targets as tasks learn them.

    Attributes:
        parts: int64, bool or float32 ``[example, ...]``, as in :class:`Split`, one for each part.
        convert: Converts further targets likewise: of items that are read again, or of a stream.
        labels: Names of the classes; empty: they are their numbers.
    """

    parts: list[Tensor]
    convert: Callable[[Any], Tensor]
    labels: tuple[str, ...] = ()


def raw_targets(value: object, where: str) -> Tensor | Text:
    """Convert targets without asking yet what they are: int64, bool, float32, or text.

    Raises:
        DataError: If they hold no numbers and no text, or one is missing or not finite.
    """
    rows = target_array(value, where)
    if isinstance(rows, np.ndarray):
        return rows
    rows = real_numbers(rows, where)
    return rows if rows.is_floating_point() or rows.dtype == torch.bool else rows.to(torch.int64)


def target_array(value: object, where: str) -> Tensor | Text:
    """Convert one target, or those of all examples.

    Raises:
        DataError: If it holds several tensors by name, or as :func:`array_of`.
    """
    first = value[0] if isinstance(value, list | tuple) and value else value
    if isinstance(first, Mapping):
        raise DataError(
            "is a dictionary",
            where=where,
            found=", ".join(map(str, first)) or "no tensors",
            expected="one tensor for each example",
            hint="pad its tensors to one, of the same shape for all examples, which an objective "
            'of yours takes apart: task: {objective: "python:losses:mine"}',
        )
    return array_of(value, where)


def form_of(rows: Tensor | Text) -> str:
    """Describe the type and shape of a row.

    >>> form_of(torch.zeros(3, 2)), form_of(np.array(["yes"]))
    ('float32 [2]', 'text []')
    """
    return row_form(rows) if isinstance(rows, Tensor) else f"text {list(rows.shape[1:])}"


def check_said(form: str, where: str) -> None:
    """Raise unless targets mean classes without a task: a whole number for each example.

    Args:
        form: Their type and shape, as :func:`form_of` describes them.
        where: Their name, for errors.

    Raises:
        DataError: With the tasks that learn such targets, as they are written.
    """
    if form not in ("int64 []", "int64 [1]"):
        raise DataError(
            "may mean several things",
            where=where,
            found=form,
            expected="whole numbers (the class of each example), or a task that says what they are",
            hint=f"write {_TASKS[form.partition(' ')[0]]}",
        )


def meaning(parts: Sequence[Tensor | Text], where: str, task: str | None = None) -> Meaning:
    """Read targets as the task learns them.

    1. Without a task they are whole numbers, the class of each example.
    2. Text names classes.
    3. An axis of size 1 that stands for nothing is dropped.
    4. Numbers and flags are what the task says: true and false are classes to `classification`,
       labels to `multilabel` and numbers to `regression`.

    Args:
        parts: Of each client, and the test examples: all of one type and shape.
        where: Their name, for errors.
        task: The task's name; :data:`OWN`: an objective of the user's, which gets them as they are.

    Raises:
        DataError: If no task says what they are, or it does not learn such targets.

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
                f"are text, which {task} does not learn",
                where=where,
                found=repr(texts[0].flat[0].item()),
                hint="text names classes: write task: classification",
            )
        return _named(texts, where)
    squeezed = functools.partial(_squeezed, task=task)
    rows = [squeezed(part) for part in parts if isinstance(part, Tensor)]  # 3
    convert, labels = _reading(rows, where, task)  # 4
    return Meaning([convert(part) for part in rows], lambda r: convert(squeezed(r)), labels)


def _reading(
    rows: Sequence[Tensor], where: str, task: str | None
) -> tuple[Callable[[Tensor], Tensor], tuple[str, ...]]:
    """Return what makes targets of a task of numbers and flags, and the names of its classes."""
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
    """Return classes by the order of their names in all parts together."""

    def names_of(part: Text) -> list[str]:
        if part.size != len(part):
            raise DataError(
                "are text on several axes",
                where=where,
                found=form_of(part),
                expected="one name for each example",
            )
        return [name.strip() for name in part.reshape(-1).tolist()]

    def convert(part: Text) -> Tensor:
        return numbered(names_of(part), labels, lambda row: f"{where}[{row}]")

    names = [name for part in parts for name in names_of(part)]
    if "" in names:
        hint = "write a name in its place, 'none' say, or remove these examples"
        at = f"{where}[{names.index('')}]"
        raise DataError("the name of a class is empty", where=at, hint=hint)
    integral = all(map(INTEGER.fullmatch, names))
    labels = number_classes(names, int if integral else str)[1]
    return Meaning([convert(part) for part in parts], convert, labels)


def _squeezed(rows: Tensor, task: str | None) -> Tensor:
    """Return classes ``[example, 1]``, and maps ``[example, 1, height, width]``, without the 1."""
    axes = {None: 2, "classification": 2, "segmentation": 4}.get(task)
    return rows[:, 0] if rows.dim() == axes and rows.shape[1] == 1 else rows


def _integral(parts: Sequence[Tensor]) -> bool:
    return all(bool((part == part.round()).all()) for part in parts)


def _unchanged(rows: Tensor) -> Tensor:
    return rows
