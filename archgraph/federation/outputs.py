"""Which output of a model is meant: its logits, or the values that it predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from archgraph.errors import RunError


class Predict(Protocol):
    """From a model's outputs to its predictions, e.g. logits ``[batch, ..., classes]``."""

    def __call__(self, outputs: Any) -> Tensor:
        """Take or compute the predictions."""


@dataclass(frozen=True)
class Logits:
    """The predictions among a model's outputs.

    Attributes:
        output: Key or position of the output; None: the only one, or the one called ``logits``.

    Example:
        >>> import torch
        >>> Logits()({"logits": torch.zeros(2, 3), "features": torch.zeros(2, 8)}).shape
        torch.Size([2, 3])
        >>> Logits("main")({"main": {"logits": torch.zeros(2, 3)}, "exit": torch.ones(2, 3)}).shape
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
        if isinstance(found, Mapping):  # the outputs of a network that has exits beside its own
            return Logits()(found)
        raise RunError(
            "no logits among the outputs of the model",
            found=names,
            expected="one tensor, one called logits" if self.output is None else self.output,
            hint="say which: `output:` of the task, or Logits(output=...)",
        )
