"""What local training minimises, and where a model's logits are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from archgraph.errors import RunError
from archgraph.federation.tasks import Examples, Work


class Predict(Protocol):
    """From a model's outputs to logits ``[batch, ..., classes]``."""

    def __call__(self, outputs: Any) -> Tensor:
        """Take or compute the logits."""


@dataclass(frozen=True)
class Logits:
    """The logits among a model's outputs.

    Attributes:
        output: Key or position of the output; None: the only one, or the one called ``logits``.

    Example:
        >>> import torch
        >>> Logits()({"logits": torch.zeros(2, 3), "features": torch.zeros(2, 8)}).shape
        torch.Size([2, 3])
    """

    output: str | int | None = None

    def __call__(self, outputs: Any) -> Tensor:
        """Take them.

        Raises:
            RunError: If it is not clear which output is meant.
        """
        key = self.output
        if isinstance(outputs, Tensor) and key is None:
            return outputs
        named: dict[Any, Any] = {}
        if isinstance(outputs, Mapping):
            named = dict(outputs)
        elif isinstance(outputs, Sequence):
            fields = getattr(outputs, "_fields", range(len(outputs)))
            named = dict(zip(fields, outputs, strict=True))
            if isinstance(key, int) and 0 <= key < len(outputs):
                named[key] = outputs[key]
        if key is None:
            key = "logits" if "logits" in named else next(iter(named)) if len(named) == 1 else None
        found = named.get(key)
        names = ", ".join(map(str, named)) or type(outputs).__name__
        if isinstance(found, Tensor):
            return found
        raise RunError(
            "no logits among the outputs of the model",
            found=names,
            expected="one tensor, one called logits" if self.output is None else self.output,
            hint="say which: Logits(output=...)",
        )


class Objective(Protocol):
    """What local training minimises."""

    def __call__(self, outputs: Any, examples: Examples, work: Work) -> Tensor:
        """Mean loss over the minibatch, a scalar with gradient."""


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy, with the logits of absent classes set to zero if so asked.

    Attributes:
        mask_absent: Set the logits of classes that the client has no example of to 0 before the
            loss (HeteroFL §3.3, FedFA §5.1), so that training does not push them down.
        label_smoothing: Of ``torch.nn.functional.cross_entropy``.
        predict: Where the logits are.
    """

    mask_absent: bool = False
    label_smoothing: float = 0.0
    predict: Predict = Logits()

    def __call__(self, outputs: Any, examples: Examples, work: Work) -> Tensor:
        """Mean over all targets (positions of a text count one by one)."""
        logits = self.predict(outputs)
        if self.mask_absent:
            logits = mask_absent(logits, work.present)
        return nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]),
            examples.targets.reshape(-1),
            label_smoothing=self.label_smoothing,
        )


def mask_absent(logits: Tensor, present: Tensor) -> Tensor:
    """Logits ``[..., classes]`` with those of absent classes set to 0.

    Args:
        logits: Logits, last axis classes.
        present: Which classes are present, bool ``[classes]``.

    Raises:
        RunError: If the number of classes differs.

    Example:
        >>> import torch
        >>> mask_absent(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([True, False, True]))
        tensor([[1., 0., 3.]])
    """
    if logits.shape[-1] != len(present):
        raise RunError(
            "model and data differ in the number of classes",
            found=f"{logits.shape[-1]} logits",
            expected=f"{len(present)}, the classes of the data",
        )
    if bool(present.all()):
        return logits
    return logits.masked_fill(~present.to(logits.device), 0.0)


class Penalty(Protocol):
    """A term of the loss that sees the parameters (proximal terms, FedDyn)."""

    def __call__(self, parameters: Mapping[str, Tensor], work: Work) -> Tensor:
        """Value of the term, a scalar with gradient."""
