"""Objectives (losses) of local training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from archgraph.errors import RunError
from archgraph.federation.metrics import IGNORED
from archgraph.federation.outputs import Predict
from archgraph.federation.tasks import Examples, Work
from archgraph.states.copies import to_device


class Objective(Protocol):
    """An objective of local training."""

    # Any, not object: an objective for one model may declare that model's output type.
    def __call__(self, outputs: Any, examples: Examples, work: Work) -> Tensor:
        """Return the mean loss over the minibatch, a scalar with gradient."""


@dataclass(frozen=True)
class TaskLoss:
    """The loss of the experiment's task: cross-entropy, squared error, ... or the user's own.

    Attributes:
        mask_absent: Set to 0 the logits of classes that do not occur in the client's data, before
            the loss (HeteroFL §3.3, FedFA §5.1), so that training does not push them down. Tasks
            without classes ignore it.
        predict: Selects the model's output. Default: the task's.
    """

    mask_absent: bool = False
    predict: Predict | None = None

    def __call__(self, outputs: object, examples: Examples, work: Work) -> Tensor:
        """Return the mean loss over all targets (each position of a text, or each pixel).

        The losses of auxiliary predictions are added with the task's weight.
        """
        learning = work.learning
        loss = self._of(learning.predictions(outputs, self.predict), examples, work)
        if learning.auxiliary:
            for predictions in learning.beside(outputs, self.predict):
                loss = loss + learning.auxiliary * self._of(predictions, examples, work)
        return loss

    def _of(self, predictions: Tensor, examples: Examples, work: Work) -> Tensor:
        if self.mask_absent and work.learning.classed:
            predictions = mask_absent(predictions, work.present)
        return work.learning.loss(predictions, examples.targets)


def mask_absent(logits: Tensor, present: Tensor) -> Tensor:
    """Set the logits ``[..., classes]`` of absent classes to 0.

    Args:
        logits: Logits, last axis classes.
        present: Mask of present classes, bool ``[classes]``.

    Raises:
        RunError: If the number of classes differs.

    Example:
        >>> import torch
        >>> mask_absent(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([True, False, True]))
        tensor([[1., 0., 3.]])
    """
    if logits.shape[-1] != len(present):
        raise RunError(f"{logits.shape[-1]} logits for {len(present)} classes of the data")
    if bool(present.all()):
        return logits
    # 0 and not -inf, as in the papers: an absent class keeps a share of the softmax, and its
    # logits get no gradient.
    return logits.masked_fill(to_device(~present, logits.device), 0.0)


def counted_logits(logits: Tensor, examples: Examples) -> Tensor:
    """Return the logits ``[target, class]`` of targets that count: all but those of class -100.

    Models that distil from each other ignore padding.

    Args:
        logits: Logits ``[example, ..., class]``.
        examples: The minibatch. Targets other than classes all count.

    Example:
        >>> text = Examples((), torch.tensor([[1, -100]]), torch.arange(1))
        >>> counted_logits(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), text)
        tensor([[1., 2.]])
    """
    flat = logits.flatten(0, -2)
    if examples.all_count or examples.targets.is_floating_point():
        return flat
    if examples.targets.dim() != logits.dim() - 1:  # a label for each logit
        return flat
    rows = flat[examples.targets.flatten() != IGNORED]
    return rows if len(rows) else flat[:1] * 0  # the mean over no rows would be NaN


class Penalty(Protocol):
    """A term of the loss that depends on the parameters (proximal terms, FedDyn)."""

    def __call__(self, parameters: Mapping[str, Tensor], work: Work) -> Tensor:
        """Return the value of the term, a scalar with gradient."""


@dataclass(frozen=True)
class Towards:
    """The penalty ``pull/2 ‖w - w_0‖²`` over the trained parameters, which pulls them to ``w_0``.

    With the default for ``w_0``, the weights that were sent, this is the term of FedProx (Li et
    al., MLSys 2020, Eq. 2), which ``local.proximal`` adds to the training of any strategy.

    Attributes:
        pull: Strength of the pull.
        to: ``w_0``. Default: the weights that were sent.

    Example:
        >>> w = {"w": torch.tensor([3.0, 5.0], requires_grad=True)}
        >>> Towards(0.5, {"w": torch.tensor([1.0, 5.0])})(w, None).item()
        1.0
    """

    pull: float
    to: Mapping[str, Tensor] | None = None

    def __call__(self, parameters: Mapping[str, Tensor], work: Work) -> Tensor:
        """Return the value at some parameters."""
        to = work.state if self.to is None else self.to
        moves = [w - to[name].to(w) for name, w in parameters.items() if w.requires_grad]
        return self.pull / 2 * torch.stack([move.square().sum() for move in moves]).sum()
