"""Metrics of predictions, such as the accuracy.

A metric maps each example to a few numbers. Its value is computed from the numbers of all examples,
not as a mean over batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

TargetForm = Literal["classes", "labels", "values", "any"]
"""Meaning of targets: ``classes``, ``labels`` (0 or 1 each), ``values`` (numbers), or unknown."""

IGNORED = -100
"""Targets of this class are ignored."""

_LARGEST_EXPONENT = 700.0  # exp overflows a float at 709.8


@dataclass(frozen=True)
class Metric:
    """A metric of predictions, such as the accuracy.

    Attributes:
        name: Name of the metric in the records of a run.
        higher_is_better: Whether higher values are better. None if neither is better.
        rows: Function that computes one or several numbers per example, ``[example]`` or
            ``[example, number]``, from the predictions and targets of a batch.
        value: Function that returns the value of the metric. Its arguments are the results of
            ``rows`` for all examples, and the number of targets that are not ignored (at least 1).
        forms: Kinds of targets (``classes``, ``labels``, ``values``) for which the metric is
            defined.
    """

    name: str
    higher_is_better: bool | None
    rows: Callable[[Tensor, Tensor], Tensor]
    value: Callable[[Tensor, int], float]
    forms: frozenset[TargetForm] = frozenset({"classes", "labels", "values"})


@dataclass(frozen=True)
class DerivedMetric:
    """A metric that is computed from another metric, such as the perplexity from the loss.

    Attributes:
        name: Name of the metric in the records of a run.
        higher_is_better: Whether higher is better.
        source: Name of the metric from which this metric is computed.
        convert: Function that maps the value of ``source`` to the value of this metric.
        forms: Kinds of targets (values of :attr:`LearningTask.form`) for which the metric is
            defined.
    """

    name: str
    higher_is_better: bool
    source: str
    convert: Callable[[float], float]
    forms: frozenset[TargetForm]


AnyMetric = Metric | DerivedMetric


def derived(figures: Mapping[str, float], metrics: tuple[AnyMetric, ...]) -> dict[str, float]:
    """Return a dict of metric values, with the values of derived metrics added.

    >>> derived({"loss": 0.0}, (METRICS["perplexity", "classes"],))
    {'loss': 0.0, 'perplexity': 1.0}
    """
    more = {
        metric.name: metric.convert(figures[metric.source])
        for metric in metrics
        if isinstance(metric, DerivedMetric) and metric.source in figures
    }
    return {**figures, **more}


def _per_example(numbers: Tensor) -> Tensor:
    return numbers.reshape(len(numbers), -1).sum(1)


def mean(rows: Tensor, count: int) -> float:
    """Return the sum of the rows, divided by the number of targets."""
    # Counts of hits stay integers: float32 is exact up to 2**24 only.
    total = rows.sum()
    return (float(total) if rows.is_floating_point() else int(total)) / count


def _hits(predictions: Tensor, targets: Tensor) -> Tensor:
    return _per_example(predictions.argmax(-1) == targets)


def _label_hits(predictions: Tensor, targets: Tensor) -> Tensor:
    return _per_example((predictions > 0) == (targets > 0.5))


def _overlaps(predictions: Tensor, targets: Tensor) -> Tensor:
    """Count per example: hits of each class, then the union of predicted and true."""
    classes, examples = predictions.shape[-1], len(targets)
    said, true = (x.reshape(examples, -1) for x in (predictions.argmax(-1), targets))
    valid = true != IGNORED
    # One bincount for all examples: class c of example i is counted in bin i · classes + c.
    offset = torch.arange(examples, device=true.device)[:, None] * classes

    def counted(values: Tensor, where: Tensor) -> Tensor:
        at = (values + offset)[where]
        return torch.bincount(at, minlength=examples * classes).view(examples, classes)

    hit = counted(true, valid & (said == true))
    either = counted(true, valid) + counted(said, valid) - hit
    return torch.cat([hit, either], 1)


def _mean_iou(rows: Tensor, count: int) -> float:
    """Return the mean IoU over the classes that occur in predictions or targets."""
    hit, either = rows.double().sum(0).chunk(2)
    occurring = either > 0
    return float((hit[occurring] / either[occurring]).mean())


def _decisions(predictions: Tensor, targets: Tensor) -> Tensor:
    """Count per example: true positives, false positives, false negatives."""
    # A logit above 0 is a probability above one half.
    said, true = predictions > 0, targets > 0.5
    parts = (said & true, said & ~true, ~said & true)
    return torch.stack([_per_example(part) for part in parts], 1)


def _f1(rows: Tensor, count: int) -> float:
    """Return the micro-averaged F1 score: 2·tp / (2·tp + fp + fn)."""
    hits, wrong, missed = rows.double().sum(0).tolist()
    return 2 * hits / max(2 * hits + wrong + missed, 1.0)


def aligned(predictions: Tensor, targets: Tensor) -> Tensor:
    """Return predictions in the shape of their targets: ``[batch, 1]`` becomes ``[batch]``."""
    if predictions.dim() == targets.dim() + 1 and predictions.shape[-1] == 1:
        return predictions.squeeze(-1)
    return predictions


def _squares(predictions: Tensor, targets: Tensor) -> Tensor:
    return _per_example((aligned(predictions, targets).double() - targets).square())


def _distances(predictions: Tensor, targets: Tensor) -> Tensor:
    return _per_example((aligned(predictions, targets).double() - targets).abs())


def _pairs(predictions: Tensor, targets: Tensor) -> Tensor:
    """Concatenate each example's predictions and targets."""
    rows = [x.double().reshape(len(x), -1) for x in (aligned(predictions, targets), targets)]
    return torch.cat(rows, 1)


def _r2(rows: Tensor, count: int) -> float:
    """Return 1 - residual / total sum of squares, mean over outputs; 0 for constant targets."""
    said, true = rows.chunk(2, 1)
    residual = (said - true).square().sum(0)
    # The mean of all targets: means of batches would yield another R².
    total = (true - true.mean(0)).square().sum(0)
    varied = total > 0
    scores = torch.where(varied, 1 - residual / torch.where(varied, total, 1.0), 0.0)
    return float(scores.mean())


def _perplexity(loss: float) -> float:
    return math.exp(min(loss, _LARGEST_EXPONENT))


_CLASSES: frozenset[TargetForm] = frozenset({"classes"})
_LABELS: frozenset[TargetForm] = frozenset({"labels"})
_VALUES: frozenset[TargetForm] = frozenset({"values"})

_ROWS: tuple[AnyMetric, ...] = (
    Metric("accuracy", True, _hits, mean, _CLASSES),
    Metric("iou", True, _overlaps, _mean_iou, _CLASSES),
    DerivedMetric("perplexity", False, "loss", _perplexity, _CLASSES),
    Metric("accuracy", True, _label_hits, mean, _LABELS),
    Metric("f1", True, _decisions, _f1, _LABELS),
    Metric("mse", False, _squares, mean, _VALUES),
    DerivedMetric("rmse", False, "mse", math.sqrt, _VALUES),
    Metric("mae", False, _distances, mean, _VALUES),
    Metric("r2", True, _pairs, _r2, _VALUES),
)

METRICS: Mapping[tuple[str, TargetForm], AnyMetric] = {
    (metric.name, form): metric for metric in _ROWS for form in metric.forms
}
"""Dict from name and meaning of targets to a metric that needs no additional package."""


def class_counts(targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the weight of each target in a loss: its class's weight, or 0 for class -100.

    Args:
        targets: Classes.
        weights: Weight of each class, ``[class]``. Default: 1.

    Example:
        >>> class_counts(torch.tensor([1, -100]), torch.tensor([1.0, 3.0]))
        tensor([3., 0.])
    """
    counted = targets != IGNORED
    return counted if weights is None else weights[targets.clamp(min=0)] * counted


def cross_entropy(predictions: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Return the loss of logits ``[batch, ..., classes]``; 0 if all targets are ignored."""
    values = nn.functional.cross_entropy(
        predictions.reshape(-1, predictions.shape[-1]),
        targets.reshape(-1),
        reduction="sum" if reduction == "mean" else reduction,
        ignore_index=IGNORED,
    )
    if (
        reduction == "mean"
    ):  # for no targets torch computes 0 / 0; a check would wait for the device
        return values / class_counts(targets).sum().clamp(min=1)
    return values


def binary_cross_entropy(predictions: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Return the binary cross-entropy of logits and targets (0 or 1), both ``[batch, label]``."""
    return nn.functional.binary_cross_entropy_with_logits(
        predictions, targets.to(predictions.dtype), reduction=reduction
    )


def squared_error(predictions: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Return the squared error of numbers ``[batch, ...]``."""
    return nn.functional.mse_loss(
        aligned(predictions, targets), targets.to(predictions.dtype), reduction=reduction
    )
