"""What targets from Python are: classes, labels or numbers, in whatever form a user has them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from archgraph.data.arrays import Text, array_of, real_numbers, what
from archgraph.data.columns import INTEGER, NUMBER
from archgraph.data.rows import number_classes
from archgraph.data.values import row_form
from archgraph.errors import DataError
from archgraph.federation.metrics import IGNORED
from archgraph.language.task import OWN

FLAGS = ("False", "True")
"""Names of the classes of a target that is true or false."""
ONE_HOT = (
    "{where}: rows of 0 and 1 with a single 1 each were read as {classes} classes; `task: "
    "multilabel` reads them as labels, `task: regression` as numbers"
)
HOT_FLAGS = (
    "{where}: rows of true and false with a single true each were read as labels; `task: "
    "classification` reads them as classes"
)
_PLACED = ("next_token", "segmentation")


class Meaning(NamedTuple):
    """Targets as tasks learn them.

    Attributes:
        parts: int64, bool or float32 ``[example, ...]``, as in :class:`Split`, one for each part.
        convert: Converts further targets likewise: of items that are read again, or of a stream.
        labels: Names of the classes; empty: they are their numbers.
        notes: What was presumed, for the user of a run.
    """

    parts: list[Tensor]
    convert: Callable[[Any], Tensor]
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def raw_targets(value: object, where: str) -> Tensor | Text:
    """Convert targets without asking yet what they are: int64, bool, float32, or text.

    Raises:
        DataError: If they hold no numbers and no text, or one is missing or not finite.
    """
    rows = array_of(value, where, ignored=True)
    if isinstance(rows, np.ndarray):
        return rows
    rows = real_numbers(rows, where)
    return rows if rows.is_floating_point() or rows.dtype == torch.bool else rows.to(torch.int64)


def named_target(value: Mapping[object, object], where: str) -> dict[str, Tensor]:
    """Return an example's tensors: floating point as float32, integers as int64, bytes unchanged.

    Raises:
        DataError: If one is text, complex, missing or not finite.
    """
    target = {}
    for name, part in value.items():
        at = f"{where}: {name}"
        tensor = array_of(part, at)
        if not isinstance(tensor, Tensor):
            raise DataError(
                "is text, which no tensor holds",
                where=at,
                found=what(part),
                hint="leave it out, or write a number in its place",
            )
        tensor = real_numbers(tensor, at)
        same = tensor.is_floating_point() or tensor.dtype in (torch.bool, torch.uint8)
        target[str(name)] = tensor if same else tensor.to(torch.int64)
    return target


def form_of(rows: Tensor | Text) -> str:
    """Describe the type and shape of a row.

    >>> form_of(torch.zeros(3, 2)), form_of(np.array(["yes"]))
    ('float32 [2]', 'text []')
    """
    return row_form(rows) if isinstance(rows, Tensor) else f"text {list(rows.shape[1:])}"


def meaning(parts: Sequence[Tensor | Text], where: str, task: str | None = None) -> Meaning:
    """Find out what targets are: from their type and shape, their values, and the task.

    1. Text names classes.
    2. An axis of size 1 that stands for nothing is dropped.
    3. Two values that no number means (true and false, -1 and 1) are two classes.
    4. The task decides what may be read in several ways: 0 and 1 as floating point numbers, or on
       two axes.
    5. Without a task, rows with a single 1 are classes, and other rows of 0 and 1 are asked about:
       each reading trains another model.

    Args:
        parts: Of each client, and the test examples: all of one type and shape.
        where: Their name, for errors.
        task: The task's name; :data:`OWN`: an objective of the user's, which gets them as they are.

    Raises:
        DataError: If it is not clear.

    Example:
        >>> said = meaning([np.array(["no", "yes"]), np.array(["yes"])], "y")
        >>> said.parts, said.labels
        ([tensor([0, 1]), tensor([1])], ('no', 'yes'))
        >>> meaning([torch.tensor([[0, 1], [1, 0]])], "y", "classification").parts
        [tensor([1, 0])]
    """
    texts = [part for part in parts if isinstance(part, np.ndarray)]
    if texts:  # 1
        if task not in (None, OWN, "classification"):
            raise DataError(
                f"are text, which {task} does not learn",
                where=where,
                found=repr(texts[0].flat[0].item()),
                hint="text names classes: write task: classification",
            )
        return _named(texts, where)
    squeezed = functools.partial(_squeezed, task=task)
    rows = [squeezed(part) for part in parts if isinstance(part, Tensor)]  # 2
    first = rows[0]

    def read(convert: Callable[[Tensor], Tensor], *more: tuple[str, ...]) -> Meaning:
        return Meaning([convert(part) for part in rows], lambda r: convert(squeezed(r)), *more)

    if task == OWN:
        return read(lambda r: r.long() if r.dtype == torch.bool and r.dim() < 2 else r)
    if task == "regression":
        return read(lambda r: real_numbers(r.double(), where))
    if first.dtype == torch.bool and first.dim() != 2 and task != "multilabel":  # 3
        return read(Tensor.long, FLAGS)
    if first.dtype == torch.int64 and first.dim() == 1 and _only(rows, (-1, 1)):
        return read(lambda r: torch.where(r == IGNORED, r, (r + 1) // 2), ("-1", "1"))
    flags = _only(rows, (0, 1), ignored=False) and first.dim() in (1, 2)
    if task == "multilabel" and flags:  # 4
        return read(lambda r: r.bool().reshape(len(r), -1))
    hot = flags and first.dim() == 2 and _one_hot(rows)
    names = tuple(map(str, range(first.shape[1]))) if hot else ()
    if task == "classification" and hot:
        return read(_class_of, names)
    if task == "classification" and first.is_floating_point() and _integral(rows):
        return read(Tensor.long)
    hot = hot and first.shape[1] > 1
    if task is not None or not flags or first.dtype == torch.bool:
        notes = (HOT_FLAGS.format(where=where),) if hot and task is None else ()
        return read(_unchanged, (), notes)
    if hot:  # 5
        return read(_class_of, names, (ONE_HOT.format(where=where, classes=first.shape[1]),))
    single = first.dim() == 1 or first.shape[1] == 1
    if first.dtype == torch.int64 and single:
        return read(_unchanged)
    constant = len({float(value) for part in rows for value in part.unique()}) < 2
    if single and constant:  # zeros alone say nothing
        return read(_unchanged)
    number = first.is_floating_point()
    others = ["classification (a class each)"] if single else []
    others += ["multilabel (yes or no for each label)"]
    others += (
        ["regression (numbers)"] if number else [f"{t} (a class at each place)" for t in _PLACED]
    )
    raise DataError(
        f"are {'floating point numbers' if number else 'integers'}, all 0 or 1, which may mean "
        "several things",
        where=where,
        found=form_of(first),
        expected="a task that says which",
        hint=f"write task: {', or '.join(others)}"
        + ("" if single else "; for labels without a task: targets.bool()"),
    )


def _named(parts: Sequence[Text], where: str) -> Meaning:
    """Return classes by the order of their names in all parts together."""

    def names_of(part: Text) -> list[str]:
        part = part[:, 0] if part.ndim == 2 and part.shape[1] == 1 else part
        if part.ndim != 1:
            message, expected = "are text on several axes", "one name for each example"
            raise DataError(message, where=where, found=form_of(part), expected=expected)
        return [name.strip() for name in part.tolist()]

    def convert(part: Text) -> Tensor:
        classes = [numbers.get(name, name) for name in names_of(part)]
        for name in classes:
            if isinstance(name, str):
                raise DataError("is a class that was not there before", where=where, found=name)
        return torch.tensor(classes, dtype=torch.int64)

    names = [name for part in parts for name in names_of(part)]
    for position, name in enumerate(names):
        if not name:
            hint = "write a name in its place, 'none' say, or remove these examples"
            at = f"{where}[{position}]"
            raise DataError("the name of a class is empty", where=at, hint=hint)
    integral = all(map(INTEGER.fullmatch, names))
    if not integral and all(map(NUMBER.fullmatch, names)):
        raise DataError(
            "are numbers that are written as text",
            where=where,
            found=repr(names[0]),
            hint="to predict numbers: np.array(targets, float)",
        )
    labels = number_classes(names, int if integral else str)[1]
    numbers: dict[str, int | str] = {name: number for number, name in enumerate(labels)}
    return Meaning([convert(part) for part in parts], convert, labels)


def _squeezed(rows: Tensor, task: str | None) -> Tensor:
    """Return classes ``[example, 1]``, and maps ``[example, 1, height, width]``, without the 1."""
    if rows.is_floating_point() and task != "classification":
        return rows
    labels = rows.dtype == torch.bool and task != "classification"
    if rows.dim() == 2 and rows.shape[1] == 1 and not labels and task in (None, "classification"):
        return rows[:, 0]
    if rows.dim() == 4 and rows.shape[1] == 1 and task in (None, "segmentation"):
        return rows[:, 0]
    return rows


def _only(parts: Sequence[Tensor], values: Sequence[int], *, ignored: bool = True) -> bool:
    """Return whether all targets have one of these values, or are ignored; and there are some."""
    allowed = torch.tensor([*values, *([IGNORED] if ignored else [])])
    counted = [part if not ignored else part[part != IGNORED] for part in parts]
    return any(map(len, counted)) and all(
        bool(torch.isin(part, allowed.to(part.dtype)).all()) if part.dtype != torch.bool else True
        for part in counted
    )


def _one_hot(parts: Sequence[Tensor]) -> bool:
    return all(bool((part.sum(1) == 1).all()) for part in parts)


def _integral(parts: Sequence[Tensor]) -> bool:
    return all(bool((part == part.round()).all()) for part in parts)


def _class_of(rows: Tensor) -> Tensor:
    """Return the classes of one-hot rows."""
    classes = rows.to(torch.uint8).argmax(1)
    if not torch.equal(rows, torch.eye(rows.shape[1], dtype=rows.dtype)[classes]):
        raise DataError("has a row without a single 1", expected="one-hot rows, as the first ones")
    return classes


def _unchanged(rows: Tensor) -> Tensor:
    return rows
