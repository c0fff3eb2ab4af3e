"""Which output of a model is meant: its logits, or the values that it predicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
        output: Key or position of the output; None: the only one, or the one called ``logits``. A
            model that gives one tensor means that one, so models may give more in training.

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
        if isinstance(outputs, Tensor):
            return outputs
        named: dict[Any, Any] = {}
        if isinstance(outputs, Mapping):
            named = dict(outputs)
        elif isinstance(outputs, Sequence):
            fields = getattr(outputs, "_fields", range(len(outputs)))
            named = dict(zip(fields, outputs, strict=True))
        if key is None:
            key = "logits" if "logits" in named else next(iter(named)) if len(named) == 1 else None
        if isinstance(key, int) and key not in named:
            key = dict(enumerate(named)).get(key, key)
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


def auxiliary(outputs: Any, main: Tensor) -> list[Tensor]:
    """The predictions among a model's outputs beside its main ones, in their order.

    Example:
        >>> import torch
        >>> main, other = torch.zeros(2, 3), torch.ones(2, 3)
        >>> auxiliary({"main": {"logits": main}, "exit": other, "none": None}, main)[0] is other
        True
        >>> len(auxiliary((main, [other, other]), main))
        2
        >>> auxiliary(main, main)
        []
    """
    if isinstance(outputs, Tensor):
        return []
    values = outputs.values() if isinstance(outputs, Mapping) else outputs
    return [value for item in values for value in _predictions(item) if value is not main]


def _predictions(value: Any) -> Iterator[Tensor]:
    """The predictions in one output: itself, those of a list, the logits among named ones."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield Logits()(value)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _predictions(item)
