"""Metrics of torchmetrics, computed over all examples at once."""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from archgraph.errors import SpecError
from archgraph.federation import LearningTask, Metric
from archgraph.federation.metrics import IGNORED, TargetForm, aligned
from archgraph.language.named import LibraryClass
from archgraph.plain import Json


def torch_metric(
    choice: LibraryClass,
    task: LearningTask,
    classes: int,
    where: str,
    *,
    numbers: int = 1,
    examples: int = 4,
) -> Metric:
    """Create a metric from a class of torchmetrics.

    Args:
        choice: The class and its arguments.
        task: The learning task.
        classes: Number of classes or labels.
        where: Location in the experiment, for error messages.
        numbers: Number of values per target, if targets are numbers.
        examples: Number of test examples.

    Raises:
        SpecError: If the metric does not accept the task's targets, or does not return one number.
    """
    supplied: dict[str, Json] = {"num_classes": classes, "num_labels": classes}
    if task.form == "classes":
        supplied["ignore_index"] = IGNORED
    classed = task.form in ("classes", "labels")
    # A class without an argument for classes takes the probability of the second of two classes.
    binary = classes == 2 and not inspect.signature(
        choice.kind
    ).parameters.keys() & supplied.keys() - {"ignore_index"}
    # A partial of a module's function can be pickled, since workers test models, too.
    make = functools.partial(_created, choice, tuple(supplied.items()))
    try:
        metric = make()
        with _silent():
            shape = (classes,) if classed else (numbers,)[: numbers > 1]
            metric.update(*_trial(task.form, min(examples, 4), shape, binary=binary))
            value = metric.compute()
    except Exception as error:  # the constructor may raise any error
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SpecError(
            "cannot be computed",
            where=where,
            found=f"{choice.title}: {reason}",
            hint=f"a target has {numbers} numbers; use a metric for several numbers, e.g. mae or r2"
            if numbers > 1
            else f"use a metric for {task.name}",
        ) from error
    if not isinstance(value, Tensor) or value.numel() != 1:
        shape = tuple(value.shape) if isinstance(value, Tensor) else value
        raise SpecError(
            "does not return one number",
            where=where,
            found=f"{choice.title}, {shape}",
            hint="remove the option that returns one per output"
            if task.form == "values"
            else "choose an average, e.g. {average: macro}",
        )
    form: _Whole | _Counted
    if task.per_example or task.form in ("labels", "values"):
        form = _Whole(make, task.form, binary)
    elif _summed(metric):
        form = _Counted(make, binary)
    else:
        raise SpecError(
            "would need the predictions of all targets in memory",
            where=where,
            found=choice.title,
            hint="set thresholds, e.g. {thresholds: 100}",
        )
    label = "_".join([choice.title, *map(str, choice.args.values())])
    return Metric(label, metric.higher_is_better, form.rows, form.value, frozenset({task.form}))


@dataclass(frozen=True)
class _Whole:
    """A metric that is computed from all predictions and targets at once.

    Attributes:
        make: Creates the metric.
        form: Form of a target.
        binary: Whether it takes the probability of the second of two classes.
    """

    make: functools.partial[Any]
    form: TargetForm
    binary: bool = False

    def rows(self, predictions: Tensor, targets: Tensor) -> Tensor:
        outputs = aligned(predictions, targets) if self.form == "values" else predictions
        # One tensor per batch, predictions next to targets. Floats represent classes exactly up to
        # 2^24.
        return torch.cat([x.reshape(len(x), -1).float() for x in (outputs, targets)], 1)

    def value(self, rows: Tensor, count: int) -> float:
        if not len(rows):
            return 0.0
        metric = self.make()
        if self.form == "classes":
            outputs, true = rows[:, :-1].softmax(1), rows[:, -1].long()
            outputs = outputs[:, 1] if self.binary else outputs
        else:
            outputs, true = rows.chunk(2, 1)
            if self.form == "labels":
                outputs, true = outputs.sigmoid(), true.int()
            if self.form == "values" and outputs.shape[1] == 1:
                outputs, true = outputs[:, 0], true[:, 0]
        with _silent():
            metric.update(outputs.contiguous(), true.contiguous())
            return float(metric.compute())


@dataclass(frozen=True)
class _Counted:
    """A metric whose state is a sum over examples; rows are the states of batches.

    Attributes:
        make: Creates the metric.
        binary: Whether it takes the probability of the second of two classes.
    """

    make: functools.partial[Any]
    binary: bool = False

    def rows(self, predictions: Tensor, targets: Tensor) -> Tensor:
        metric = self.make().to(predictions.device)
        with _silent():
            # torchmetrics expects classes on the second axis.
            outputs = predictions.movedim(-1, 1).softmax(1)
            metric.update(outputs[:, 1] if self.binary else outputs, targets)
        states = [getattr(metric, name).double().flatten() for name in metric.metric_state]
        return torch.cat(states)[None]

    def value(self, rows: Tensor, count: int) -> float:
        metric, total, start = self.make(), rows.sum(0), 0
        for name, state in metric.metric_state.items():
            part = total[start : start + state.numel()]
            setattr(metric, name, part.view(state.shape).to(state.dtype))
            start += state.numel()
        with _silent():
            return float(metric.compute())


def _created(choice: LibraryClass, supplied: tuple[tuple[str, Json], ...]) -> Any:
    with _silent():
        return choice.make(dict(supplied))


def _summed(metric: Any) -> bool:
    """Return whether the state of a metric is a sum over batches."""
    reductions = [metric._reductions[name] for name in metric.metric_state]
    return all(getattr(one, "__name__", "") == "dim_zero_sum" for one in reductions)


def _trial(
    form: TargetForm, examples: int, shape: tuple[int, ...], *, binary: bool
) -> tuple[Tensor, Tensor]:
    """Return predictions and targets of a few examples, for a trial of a metric."""
    generator = torch.Generator().manual_seed(0)
    said = torch.randn(examples, *shape, generator=generator)
    if form == "classes":
        return said[:, 1] if binary else said, torch.arange(examples) % shape[0]
    if form == "labels":
        return said, torch.arange(said.numel()).view(said.shape) % 2
    return said, torch.randn(examples, *shape, generator=generator)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Silence warnings of torchmetrics, which would come in every round."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
