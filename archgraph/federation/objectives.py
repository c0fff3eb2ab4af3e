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
    """A loss that a client minimises in local training."""

    # Any, not object: an objective for one model may declare that model's output type.
    def __call__(self, outputs: Any, examples: Examples, work: Work) -> Tensor:
        """Return the mean loss over the minibatch, a scalar with gradient."""


@dataclass(frozen=True)
class TaskLoss:
    """The loss of the experiment's task, such as the cross-entropy or a user's function.

    Attributes:
        mask_absent: Set the logits of classes that do not occur in the client's data to 0 (HeteroFL
            §3.3, FedFA §5.1). Training then does not lower these logits. Tasks without classes
            ignore this option.
        predict: Selects the predictions among the model's outputs. Default: ``predict`` of the
            learning task.
    """

    mask_absent: bool = False
    predict: Predict | None = None

    def __call__(self, outputs: object, examples: Examples, work: Work) -> Tensor:
        """Return the mean loss over all targets (each position of a text, or each pixel).

        The losses of auxiliary outputs are multiplied by the task's ``auxiliary`` and added.
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
    """Set the logits to 0 for all classes that do not occur in a client's data.

    Args:
        logits: Logits, ``[..., classes]``.
        present: Mask of the classes that the data contains, bool ``[classes]``.

    Raises:
        RunError: If the number of logits differs from the number of classes.

    Example:
        >>> import torch
        >>> mask_absent(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([True, False, True]))
        tensor([[1., 0., 3.]])
    """
    if logits.shape[-1] != len(present):
        raise RunError(f"{logits.shape[-1]} logits for {len(present)} classes of the data")
    if bool(present.all()):
        return logits
    # 0 as in the papers, not -inf: an absent class still counts in the softmax, and its logit gets
    # no gradient.
    return logits.masked_fill(to_device(~present, logits.device), 0.0)


def counted_logits(logits: Tensor, examples: Examples) -> Tensor:
    """Return the logits ``[target, class]`` of all targets whose class is not -100.

    Distillation between models uses this function to ignore padding.

    Args:
        logits: Logits ``[example, ..., class]``.
        examples: The minibatch. If its targets are not classes, all logits are returned.

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
    """A term of the loss that depends on the parameters, such as a proximal term."""

    def __call__(self, parameters: Mapping[str, Tensor], work: Work) -> Tensor:
        """Return the value of the term, a scalar with gradient."""


@dataclass(frozen=True)
class Towards:
    """The penalty ``pull/2 ‖w - w_0‖²``, which pulls the trained parameters towards ``w_0``.

    By default, ``w_0`` are the weights that the server sent. This is the proximal term of FedProx
    (Li et al., MLSys 2020, Eq. 2). The experiment's ``local.proximal`` adds it in any strategy.

    Attributes:
        pull: Factor of the penalty.
        to: Dict from parameter to its value in ``w_0``. Default: the weights that the server sent.

    Example:
        >>> w = {"w": torch.tensor([3.0, 5.0], requires_grad=True)}
        >>> Towards(0.5, {"w": torch.tensor([1.0, 5.0])})(w, None).item()
        1.0
    """

    pull: float
    to: Mapping[str, Tensor] | None = None

    def __call__(self, parameters: Mapping[str, Tensor], work: Work) -> Tensor:
        """Return the penalty for these parameter values."""
        to = work.state if self.to is None else self.to
        moves = [w - to[name].to(w) for name, w in parameters.items() if w.requires_grad]
        return self.pull / 2 * torch.stack([move.square().sum() for move in moves]).sum()
