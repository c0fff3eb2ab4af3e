"""Select the predictions among a model's outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from archgraph.errors import RunError


class Predict(Protocol):
    """Maps a model's outputs to its predictions, e.g. logits ``[batch, ..., classes]``."""

    # Any, not object: a selector for one model may declare that model's output type.
    def __call__(self, outputs: Any) -> Tensor:
        """Select or compute the predictions."""


@dataclass(frozen=True)
class Logits:
    """Selects the predictions among a model's outputs.

    Attributes:
        output: Key or index of the output. Default: the output called ``logits``, or the only
            output.

    Example:
        >>> import torch
        >>> Logits()({"logits": torch.zeros(2, 3), "features": torch.zeros(2, 8)}).shape
        torch.Size([2, 3])
        >>> Logits("main")({"main": {"logits": torch.zeros(2, 3)}, "exit": torch.ones(2, 3)}).shape
        torch.Size([2, 3])
    """

    output: str | int | None = None

    def __call__(self, outputs: object) -> Tensor:
        """Select the predictions.

        Raises:
            RunError: If the output does not exist or is ambiguous.
        """
        key: object = self.output
        if isinstance(outputs, Tensor):
            return outputs
        by_name: dict[object, object] = {}
        if isinstance(outputs, Mapping):
            by_name = dict(outputs)
        elif isinstance(outputs, Sequence):
            fields = getattr(outputs, "_fields", range(len(outputs)))  # a NamedTuple has names
            by_name = dict(zip(fields, outputs, strict=True))
        if key is None and len(by_name) == 1:
            key = next(iter(by_name))
        elif key is None and "logits" in by_name:
            key = "logits"
        # A position also selects a named output, unless the number is itself a key.
        if isinstance(key, int) and key not in by_name:
            key = dict(enumerate(by_name)).get(key, key)
        value = by_name.get(key)
        if isinstance(value, Tensor):
            return value
        if isinstance(value, Mapping):  # a network with exits returns a mapping per exit
            return Logits()(value)
        raise RunError(
            "the model's outputs contain no logits",
            found=", ".join(map(str, by_name)) or type(outputs).__name__,
            expected="one tensor, one called logits" if self.output is None else self.output,
            hint="name the output with `output:` in the task, or with Logits(output=...)",
        )


@dataclass(frozen=True)
class Outputs:
    """Passes all outputs of a model to a user's objective, unchanged."""

    def __call__(self, outputs: Any) -> Any:
        """Return the outputs of the model unchanged."""
        return outputs


def auxiliary(outputs: object, main: Tensor) -> list[Tensor]:
    """Return the auxiliary predictions among a model's outputs, in order.

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
    if isinstance(outputs, Mapping):
        outputs = list(outputs.values())
    if not isinstance(outputs, Sequence):  # a tensor is the only output
        return []
    # By identity: an exit may have the same values as the main output.
    return [value for item in outputs for value in _predictions(item) if value is not main]


def _predictions(value: object) -> Iterator[Tensor]:
    """Yield the predictions in one output: a tensor, a list of tensors, or named logits."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield Logits()(value)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _predictions(item)
