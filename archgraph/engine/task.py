"""The learning task of an experiment, with the experiment's loss and metrics."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from archgraph.data import Dataset
from archgraph.engine.torchmetric import torch_metric
from archgraph.errors import RunError, SpecError
from archgraph.federation import TASKS, LearningTask, Logits, Strategy
from archgraph.federation.learning import DEFAULTS, Standardised, any_shape
from archgraph.federation.metrics import (
    METRICS,
    AnyMetric,
    Metric,
    TargetForm,
    aligned,
    class_counts,
)
from archgraph.language.python import import_named
from archgraph.language.task import TaskSpec


def learning_task(spec: TaskSpec | None, data: Dataset) -> LearningTask:
    """Return the learning task of an experiment.

    Args:
        spec: The experiment's key ``task``. Default: a task that fits the targets' dtype and shape.
        data: The data.

    Raises:
        RunError: If the task does not support the data's targets.
        SpecError: If the objective cannot be imported, or a metric is unknown or belongs to another
            task.
    """
    targets = data.train.targets
    if spec is None:
        task = next(TASKS[name] for name in DEFAULTS if _learns(TASKS[name], targets))
        return _of_two(task, data)
    task = _ANY if spec.kind is None else TASKS[spec.kind]
    if not _learns(task, targets):
        assert task.targets is not None
        others = [name for name in DEFAULTS if _learns(TASKS[name], targets)]
        raise RunError(
            f"{task.name} cannot learn these targets",
            where="task",
            found=f"targets {_named(targets)} ({data.name})",
            expected=f"{_named(task.targets.dtype)}, {task.targets.words}",
            hint=SOFT if _soft(targets) else f"write task: {' or '.join(others)}",
        )
    if spec.function is not None:
        function = _imported(spec.function, "task.objective")
        task = dataclasses.replace(task, loss=OwnLoss(function, task.form))
    if spec.output is not None:
        task = dataclasses.replace(task, predict=Logits(spec.output))
    task = dataclasses.replace(task, auxiliary=spec.auxiliary or 0.0)
    task = _measured(spec, task, tuple(_metrics(spec, task, data)))
    return _of_two(task, data)


def _imported(name: str, where: str) -> Callable[..., Any]:
    function = import_named(name, torch.nn.Module, where)
    if not callable(function):
        raise SpecError("is not callable", where=where, found=type(function).__name__)
    return function


def _of_two(task: LearningTask, data: Dataset) -> LearningTask:
    """Return the task, which allows single logits if the data has two classes."""
    if task.form != "classes" or data.classes != 2:
        return task
    return dataclasses.replace(task, one_logit=data.train.targets.dim())


def check_strategy(strategy: Strategy, name: str, task: LearningTask) -> None:
    """Check that a strategy supports a task.

    Raises:
        RunError: If the strategy does not support the task. The message states the reason.
    """
    reason = strategy.unlearnable.get(task.form)
    if reason is not None:
        raise RunError(
            f"cannot learn this task: {reason}",
            where=f"strategy.{name}",
            found=task.name,
            expected=" or ".join(
                [one.name for one in TASKS.values() if one.form not in strategy.unlearnable]
            ),
        )
    if task.auxiliary and "exits" in strategy.serves:
        raise RunError(
            f"the strategy ({name}) weighs the exits of a model itself",
            where="task.auxiliary",
            found=f"{task.auxiliary:g}",
        )


@dataclass(frozen=True)
class OwnLoss:
    """A loss function of the user.

    Attributes:
        function: Maps predictions and targets of a batch to the mean loss, or to a loss per example
            or per target. Targets of class -100 are ignored in averages. If targets are not
            classes, predictions ``[batch, 1]`` are passed as ``[batch]``, since they would be
            broadcast otherwise.
        form: Meaning of a target: a class, labels, numbers, or unknown.
    """

    function: Callable[[Any, Any], Tensor]
    form: TargetForm = "any"

    def __call__(self, predictions: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """Return the result of the user's function, or its mean if ``reduction`` is ``mean``.

        Raises:
            RunError: If the result does not have the shape of a loss of this batch.
        """
        # Other shapes are errors, such as accidentally broadcast predictions.
        sizes: tuple[tuple[int, ...], ...] = ((), (1,), targets.shape[:1], targets.shape)
        alike = self.form == "classes" or not isinstance(predictions, Tensor)
        predictions = predictions if alike else aligned(predictions, targets)
        value = self.function(predictions, targets)
        if not isinstance(value, Tensor) or value.shape not in map(torch.Size, sizes):
            name = getattr(self.function, "__name__", type(self.function).__name__)
            raise RunError(
                "does not return a loss",
                where=f"task.objective: {name}",
                found=tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__,
                expected=f"a tensor: one number, or one for each of {len(targets)} examples",
            )
        if self.form != "classes":
            return value.mean() if reduction == "mean" else value
        counts = class_counts(targets)
        if value.shape not in (targets.shape, targets.shape[:1]):
            # A mean over no targets is 0 / 0, whose gradient is NaN, too.
            nothing = not bool(counts.any()) and bool(value.isnan().any())
            return predictions.sum() * 0 if nothing else value.mean()
        # As torch's cross_entropy with ignore_index: ignored targets do not count in the mean. The
        # loss of an example is the mean over its targets.
        if value.shape != targets.shape:
            counts = counts.flatten(1).sum(1)
        value = torch.where(counts > 0, value, 0)
        return (value * counts).sum() / counts.sum().clamp(min=1) if reduction == "mean" else value


SOFT = (
    "for one-hot rows, pass targets.argmax(1); for soft labels, write "
    'task: {objective: "python:losses:soft"}, a function of outputs and targets such as '
    "torch.nn.functional.cross_entropy"
)
# For a user's objective without a kind: the meaning of targets is unknown.
_ANY = LearningTask(
    "own", None, "any", TASKS["regression"].loss, (), judge="loss", shapes=any_shape
)


def standardised(task: LearningTask, targets: Tensor) -> LearningTask:
    """Return the task with a loss on targets of mean 0 and standard deviation 1.

    Metrics are still computed in the targets' own units.
    """
    # In double precision, for sums over a whole data set.
    std, mean = torch.std_mean(targets.double(), 0, correction=0)
    std = torch.where(std > 0, std, 1.0)  # do not divide a constant target by 0
    loss = Standardised(task.loss, mean.float(), std.float())

    def restored(metric: AnyMetric) -> AnyMetric:
        if not isinstance(metric, Metric):
            return metric
        return dataclasses.replace(metric, rows=lambda p, t: metric.rows(loss.restored(p), t))

    return dataclasses.replace(task, loss=loss, metrics=tuple(map(restored, task.metrics)))


def _soft(targets: Tensor) -> bool:
    """Return whether targets look like one-hot or soft labels: rows that sum to 1."""
    if targets.dim() != 2:
        return False
    shares = targets.float()
    return bool((shares >= 0).all()) and torch.allclose(shares.sum(1), torch.ones(len(shares)))


def _learns(task: LearningTask, targets: Tensor) -> bool:
    return task.targets is None or task.targets.of(targets)


def _named(targets: Tensor | torch.dtype) -> str:
    if isinstance(targets, torch.dtype):
        return str(targets).removeprefix("torch.")
    axes = ["example", *map(str, targets.shape[1:])]
    return f"{_named(targets.dtype)} [{', '.join(axes)}]"


def _metrics(spec: TaskSpec, task: LearningTask, data: Dataset) -> Iterator[AnyMetric]:
    """Yield the requested metrics: the task's own, or those of torchmetrics."""
    for i, choice in enumerate(spec.metrics):
        where = f"task.metrics.{i}"
        if choice == "loss":  # always measured
            continue
        if task.form == "any":
            raise SpecError(
                "needs a `kind` of task",
                where=where,
                found=choice if isinstance(choice, str) else choice.title,
                hint="set the kind of task next to the objective, e.g. kind: regression",
            )
        if not isinstance(choice, str):
            numbers = math.prod(data.test.targets.shape[1:])
            facts = {"numbers": numbers, "examples": len(data.test)}
            yield torch_metric(choice, task, data.classes or 0, where, **facts)
        elif (choice, task.form) in METRICS:
            yield METRICS[choice, task.form]
        else:
            raise SpecError(
                f"is not a metric of {task.name}",
                where=where,
                found=choice,
                expected=", ".join(known for known, form in METRICS if form == task.form),
                hint="or use a class of torchmetrics",
            )


def _measured(spec: TaskSpec, task: LearningTask, asked: tuple[AnyMetric, ...]) -> LearningTask:
    """Return the task with the requested metrics, followed by its own metrics."""
    names = {metric.name for metric in asked}
    others = tuple(metric for metric in task.metrics if metric.name not in names)
    judge = task.judge
    if spec.metrics:
        judge = "loss" if spec.metrics[0] == "loss" else asked[0].name
    task = dataclasses.replace(task, metrics=(*asked, *others), judge=judge)
    if task.better[judge] is None:
        message = "cannot rank models: neither higher nor lower is better"
        raise SpecError(
            message, where="task.metrics.0", found=judge, hint="put another metric first"
        )
    return task
