"""Learning tasks: their losses, metrics and the shapes of models' outputs."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from archgraph.federation.metrics import (
    METRICS,
    AnyMetric,
    Metric,
    TargetForm,
    binary_cross_entropy,
    class_counts,
    cross_entropy,
    mean,
    squared_error,
)
from archgraph.federation.outputs import Logits, Predict, auxiliary
from archgraph.states.copies import to_device

Shape = tuple[int, ...]


class Loss(Protocol):
    """A loss, computed from predictions and targets."""

    def __call__(self, predictions: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """Return the mean loss, or one value per target if ``reduction`` is ``none``."""


@dataclass(frozen=True)
class Standardised:
    """A loss of standardised targets; models predict standardised values.

    Attributes:
        loss: The loss that is computed on standardised values.
        mean: Mean of the targets, in the shape of one target.
        std: Standard deviation of the targets, in the shape of one target.

    Example:
        >>> loss = Standardised(squared_error, torch.tensor(10.0), torch.tensor(2.0))
        >>> loss(torch.tensor([1.0]), torch.tensor([14.0])), loss.restored(torch.tensor([[1.0]]))
        (tensor(1.), tensor([12.]))
    """

    loss: Loss
    mean: Tensor
    std: Tensor

    def __call__(self, predictions: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """Return the loss between predictions and standardised targets."""
        mean, std = (to_device(x, targets.device) for x in (self.mean, self.std))
        return self.loss(predictions, (targets - mean) / std, reduction)

    def restored(self, predictions: Tensor) -> Tensor:
        """Convert predictions to the targets' own units."""
        # Models predict numbers [batch] as [batch, 1].
        said = predictions.squeeze(-1) if predictions.dim() == self.mean.dim() + 2 else predictions
        return said * to_device(self.std, said.device) + to_device(self.mean, said.device)


class TargetType(NamedTuple):
    """The dtype and shape of a task's targets.

    Attributes:
        dtype: Dtype of the targets.
        least: Minimum number of axes, including the axis of examples.
        most: Maximum number of axes, including the axis of examples.
        words: A description for error messages.
    """

    dtype: torch.dtype
    least: int
    most: float
    words: str

    def of(self, targets: Tensor) -> bool:
        """Return whether targets are of this type."""
        return targets.dtype == self.dtype and self.least <= targets.dim() <= self.most


@dataclass(frozen=True)
class LearningTask:
    """A learning task: targets, loss and metrics.

    Attributes:
        name: Name of the task in a file.
        targets: Dtype and shape of the targets. None if all dtypes and shapes are allowed.
        form: Meaning of a target: a class, labels, numbers, or unknown.
        loss: The loss that training minimises.
        metrics: Metrics that tests compute in addition to the loss.
        judge: Name of the metric by which models are ranked: the first metric in the experiment.
        shapes: Function that returns the allowed shapes of an example's prediction. Its arguments
            are the shape of the example's target and the number of classes.
        class_axis: Axis of the classes in a model's output. In predictions, the classes are moved
            to the last axis.
        per_example: Whether each example has exactly one class.
        predict: Function that selects the predictions among a model's outputs.
        auxiliary: Weight of the loss of each auxiliary output in training.
        one_logit: Number of axes of a batch of targets, if there are two classes and models may
            return a single logit per target. Otherwise 0.
        class_weights: Weight of each class in the loss. Default: 1 for all classes.
    """

    name: str
    targets: TargetType | None
    form: TargetForm
    loss: Loss
    metrics: tuple[AnyMetric, ...]
    judge: str
    shapes: Callable[[Shape, int], tuple[Shape, ...]]
    class_axis: int = -1
    per_example: bool = False
    predict: Predict = field(default_factory=Logits)
    auxiliary: float = 0.0
    one_logit: int = 0
    class_weights: tuple[float, ...] | None = None

    @property
    def classed(self) -> bool:
        """Whether targets are classes or labels.

        With such targets, a client may lack examples of some classes or labels.
        """
        return self.form in ("classes", "labels")

    @property
    def better(self) -> dict[str, bool | None]:
        """Dict from metric to True if higher is better. The metric ``judge`` comes first.

        >>> TASKS["regression"].better
        {'mse': False, 'rmse': False, 'mae': False, 'r2': True, 'loss': False}
        """
        directions = {metric.name: metric.higher_is_better for metric in self.measured}
        return {self.judge: directions[self.judge], **directions}

    @property
    def measured(self) -> tuple[AnyMetric, ...]:
        """The metrics that a test computes. The last one is the loss."""

        def rows(predictions: Tensor, targets: Tensor) -> Tensor:
            return self.losses(predictions, targets)

        return (*self.metrics, Metric("loss", False, rows, mean))

    def says(self, classes: int) -> str:
        """Return a description of the predictions that this task requires, for error messages."""
        one = " or one for both" if classes == 2 else ""
        words = {"classes": f"a logit for each of {classes} classes{one}", "values": "numbers"}
        return words.get(self.form, f"a logit for each of {classes} labels")

    def predictions(self, outputs: object, predict: Predict | None = None) -> Tensor:
        """Return the predictions, ``[batch, ..., classes]`` or in the shape of the targets."""
        return self._classes_last((predict or self.predict)(outputs))

    def beside(self, outputs: object, predict: Predict | None = None) -> list[Tensor]:
        """Return the predictions of auxiliary outputs, in the format of :meth:`predictions`."""
        # The unconverted output: `auxiliary` recognises it by identity.
        main = (predict or self.predict)(outputs)
        return [self._classes_last(said) for said in auxiliary(outputs, main)]

    def _classes_last(self, said: Tensor) -> Tensor:
        if self.form == "any":
            return said  # the input of a user's objective
        if self.one_logit == said.dim():
            said = said.unsqueeze(self.class_axis)
        if self.one_logit and said.shape[self.class_axis] == 1:
            # The softmax of these two is the sigmoid of z, so that their cross-entropy is the
            # binary one, and either class may be masked.
            said = torch.cat([-said / 2, said / 2], self.class_axis)
        return said if self.class_axis == -1 else said.movedim(self.class_axis, -1)

    def counts(self, targets: Tensor) -> Tensor:
        """Return the weight of each example in the loss, ``[example]``.

        The weight of a target is the weight of its class (by default 1), or 0 if the target is
        ignored. The weight of an example is the sum of the weights of its targets. If ``form`` is
        ``any``, every example has weight 1. Averages of gradients, losses and metrics use these
        weights.

        >>> TASKS["next_token"].counts(torch.tensor([[3, 4, -100]]))
        tensor([2])
        """
        if self.form == "any":
            return torch.ones(len(targets), dtype=torch.int64)
        flat = targets.reshape(len(targets), math.prod(targets.shape[1:]))
        # Only classes have an ignored value: for numbers -100 is an ordinary value.
        if self.form != "classes":
            return torch.ones_like(flat, dtype=torch.int64).sum(1)
        weights = None
        if self.class_weights is not None:
            weights = to_device(torch.tensor(self.class_weights, dtype=torch.float64), flat.device)
        return class_counts(flat, weights).sum(1)

    def counts_of(self, histogram: Sequence[int]) -> float | None:
        """Return the total weight of targets in the loss, or None if targets are not classes.

        ``histogram`` contains the number of targets of each class.

        >>> CLASSIFICATION.counts_of((3, 0, 2))
        5
        """
        if self.form != "classes" or not histogram:
            return None
        if self.class_weights is None:
            return sum(histogram)
        return math.fsum(map(operator.mul, histogram, self.class_weights))

    def losses(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each example, float64 ``[example]``.

        The loss of an example is the sum of the losses of its targets. If ``form`` is ``any``, the
        loss of an example is their mean.
        """
        values = self.loss(predictions, targets, "none").double()
        examples, counts = len(targets), self.counts(targets).to(values.device)
        if values.numel() == targets.numel() and values.dim():
            values = values.reshape(examples, -1)
            return values.mean(1) if self.form == "any" else values.sum(1)
        # One value for the batch, or for each example: a mean over its targets.
        return values.reshape(-1).expand(examples) * counts


def _classes_last(target: Shape, classes: int) -> tuple[Shape, ...]:
    one = ((*target, 1), target) if classes == 2 else ()
    return ((*target, classes), *one)


def _classes_first(target: Shape, classes: int) -> tuple[Shape, ...]:
    one = ((1, *target), target) if classes == 2 else ()
    return ((classes, *target), *one)


def _alike(target: Shape, classes: int) -> tuple[Shape, ...]:
    return (target,) if target else ((1,), ())


def any_shape(target: Shape, classes: int) -> tuple[Shape, ...]:
    """Accept predictions of any shape, for tasks without a rule about shapes."""
    return ()


def _metrics(form: TargetForm, *names: str) -> tuple[AnyMetric, ...]:
    return tuple(METRICS[name, form] for name in names)


_INTEGERS, _FLAGS, _NUMBERS = torch.int64, torch.bool, torch.float32

CLASSIFICATION = LearningTask(
    "classification",
    TargetType(_INTEGERS, 1, 1, "one class for each example"),
    "classes",
    cross_entropy,
    _metrics("classes", "accuracy"),
    judge="accuracy",
    shapes=_classes_last,
    per_example=True,
)

TASKS: Mapping[str, LearningTask] = {
    row.name: row
    for row in (
        CLASSIFICATION,
        LearningTask(
            "multilabel",
            TargetType(_FLAGS, 2, 2, "yes or no for each label of an example"),
            "labels",
            binary_cross_entropy,
            _metrics("labels", "f1", "accuracy"),
            judge="f1",
            shapes=_alike,
        ),
        LearningTask(
            "regression",
            TargetType(_NUMBERS, 1, math.inf, "numbers"),
            "values",
            squared_error,
            _metrics("values", "mse", "rmse", "mae", "r2"),
            judge="mse",
            shapes=_alike,
        ),
        LearningTask(
            "segmentation",
            TargetType(_INTEGERS, 2, math.inf, "a class for each pixel"),
            "classes",
            cross_entropy,
            _metrics("classes", "iou", "accuracy"),
            judge="iou",
            shapes=_classes_first,
            class_axis=1,
        ),
        LearningTask(
            "next_token",
            TargetType(_INTEGERS, 2, 2, "a token for each position"),
            "classes",
            cross_entropy,
            _metrics("classes", "accuracy", "perplexity"),
            judge="perplexity",
            shapes=_classes_last,
        ),
    )
}
"""The tasks by name."""

# Integers on two axes may be a text or a map of one axis: the text comes first.
DEFAULTS = ("classification", "next_token", "segmentation", "multilabel", "regression")
"""The tasks, in the order in which they are tried for the targets of the data."""
