"""The loss of training where it is not that of tests: weights of classes, label smoothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archgraph.federation.learning import LearningTask
from archgraph.federation.metrics import IGNORED, class_counts
from archgraph.language.local import LocalOptions
from archgraph.states.copies import to_device


@dataclass(frozen=True)
class TrainingCrossEntropy:
    """Cross-entropy with weights of classes and label smoothing, as PyTorch has them.

    Attributes:
        weights: Weight of each class. Default: 1.
        smoothing: Share of a target that is spread evenly over all classes.

    Example:
        >>> loss = TrainingCrossEntropy((1.0, 3.0), 0.0)
        >>> logits = torch.tensor([[0.0, 0.0], [0.0, 100.0]])
        >>> round(loss(logits, torch.tensor([0, 1])).item(), 4)  # (1 · 0.6931 + 3 · 0) / 4
        0.1733
    """

    weights: tuple[float, ...] | None
    smoothing: float

    def __call__(self, predictions: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """Return the loss of logits ``[batch, ..., classes]``; 0 if all targets are ignored."""
        logits, flat = predictions.reshape(-1, predictions.shape[-1]), targets.reshape(-1)
        weights = None
        if self.weights is not None:
            weights = to_device(torch.tensor(self.weights, dtype=logits.dtype), logits.device)
        values = nn.functional.cross_entropy(
            logits,
            flat,
            weight=weights,
            reduction="sum" if reduction == "mean" else reduction,
            ignore_index=IGNORED,
            label_smoothing=self.smoothing,
        )
        if reduction != "mean":
            return values
        total = class_counts(flat, weights).sum()
        # A minibatch may have examples of weight 0 alone.
        return values / torch.where(total > 0, total, 1)


def trained_task(
    learning: LearningTask,
    local: LocalOptions,
    histogram: Sequence[int],
    classes: Sequence[int] = (),
) -> LearningTask:
    """Return a client's task, with the loss that it trains on and what counts in it.

    Args:
        learning: The task.
        local: How the client trains.
        histogram: Its examples by class.
        classes: The classes that its network answers with; empty: all.
    """
    if local.class_weights is None and local.label_smoothing is None:
        return learning
    weights = local.class_weights
    if weights == "balanced":
        weights = balanced(histogram)
    elif weights is not None and classes:
        weights = tuple(weights[number] for number in classes)
    loss = TrainingCrossEntropy(weights, local.label_smoothing or 0.0)
    return dataclasses.replace(learning, loss=loss, class_weights=weights)


def balanced(histogram: Sequence[int]) -> tuple[float, ...]:
    """Return weights that are inverse to how often classes occur, with a mean of 1 over examples.

    A class that does not occur has the weight 0.

    >>> balanced((6, 2, 0))
    (0.6666666666666666, 2.0, 0.0)
    """
    present = sum(count > 0 for count in histogram)
    total = sum(histogram)
    return tuple(total / (present * count) if count else 0.0 for count in histogram)
