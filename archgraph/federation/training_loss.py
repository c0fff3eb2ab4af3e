"""A loss class of ``torch.nn``, which replaces the task's loss in training."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archgraph.federation.learning import LearningTask, Standardised
from archgraph.federation.metrics import IGNORED, aligned, class_counts
from archgraph.language.local import LocalOptions
from archgraph.language.named import LibraryClass


@dataclass(frozen=True)
class NamedLoss:
    """A loss class of ``torch.nn`` with its arguments.

    Attributes:
        choice: Class of the loss, with its arguments.
        classes: Whether targets are classes, where -100 is ignored.

    Example:
        >>> weighted = LibraryClass("loss", "torch.nn.CrossEntropyLoss", {"weight": (1.0, 3.0)})
        >>> logits = torch.tensor([[0.0, 0.0], [0.0, 100.0]])
        >>> loss = NamedLoss(weighted, classes=True)
        >>> round(loss(logits, torch.tensor([0, 1])).item(), 4)  # (1 · 0.6931 + 3 · 0) / 4
        0.1733
    """

    choice: LibraryClass
    classes: bool

    @property
    def scales(self) -> tuple[float, ...] | None:
        """The loss's argument ``weight``, the factor of each class in the loss. Default: 1."""
        return self.choice.args.get("weight") if self.classes else None

    @property
    def weights(self) -> tuple[float, ...] | None:
        """Weight of a target of each class in the denominator of the mean loss. Default: 1."""
        # PyTorch divides by the weights only in cross-entropy, and elsewhere by the number of
        # targets.
        return self.scales if self.choice.title == "CrossEntropyLoss" else None

    def __call__(self, predictions: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """Return the loss of logits ``[batch, ..., classes]``, or of numbers of any shape."""
        # In float32, as autocast computes losses: 16 bits would round the class weights and their
        # sum.
        predictions = predictions.to(torch.promote_types(predictions.dtype, torch.float32))
        loss_of = functools.partial(_made, self.choice, predictions.device, predictions.dtype)
        if not self.classes:
            said = aligned(predictions, targets)
            value: Tensor = loss_of(reduction)(said, targets.to(said.dtype))
            return value
        logits, flat = predictions.reshape(-1, predictions.shape[-1]), targets.reshape(-1)
        # Not every loss has `ignore_index`: losses of ignored targets are computed, then dropped.
        values: Tensor = loss_of("none")(logits, flat.clamp(min=0)) * (flat != IGNORED)
        if reduction != "mean":
            return values
        weights = None if self.weights is None else logits.new_tensor(self.weights)
        total = class_counts(flat, weights).sum()
        # All examples of a minibatch may have the weight 0.
        return values.sum() / torch.where(total > 0, total, 1)


@functools.lru_cache(maxsize=64)
def _made(
    choice: LibraryClass, device: torch.device, dtype: torch.dtype, reduction: str
) -> nn.Module:
    loss: nn.Module = choice.make({"reduction": reduction})
    return loss.to(device, dtype)


def trained_task(learning: LearningTask, local: LocalOptions) -> LearningTask:
    """Return the learning task with the training loss of ``local.loss``, if it is set.

    Args:
        learning: The task.
        local: The client's options of local training.
    """
    if local.loss is None:
        return learning
    loss = NamedLoss(local.loss, learning.form == "classes")
    if isinstance(learning.loss, Standardised):
        standardised = dataclasses.replace(learning.loss, loss=loss)
        return dataclasses.replace(learning, loss=standardised)
    return dataclasses.replace(learning, loss=loss, class_weights=loss.weights)
