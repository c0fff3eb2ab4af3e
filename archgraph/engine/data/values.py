"""Data sets as values: two splits in compact types, normalised when they are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from archgraph.errors import DataError

Indices: TypeAlias = Tensor | np.ndarray | Sequence[int] | slice


@dataclass(frozen=True, eq=False)
class Split:
    """One split of a data set, in the most compact types that lose nothing.

    Attributes:
        inputs: Images, uint8 `[example, channel, height, width]`, or tokens, of any integer type
            `[example, position]`.
        targets: Classes, int64 `[example]`, or the next tokens, int64 `[example, position]`.
        mean: Mean of each channel over the *train* split, in units of `inputs`; None for text.
        std: Standard deviation of each channel likewise.
        beside: Further inputs by name, `[example, ...]`: an attention mask, say.

    Example:
        >>> images = torch.tensor([[[[0, 2]]], [[[4, 6]]]], dtype=torch.uint8)
        >>> split = Split(images, torch.tensor([7, 8]), *channel_statistics(images))
        >>> split.batch([1])
        (tensor([[[[0.4472, 1.3416]]]]), tensor([8]))
    """

    inputs: Tensor
    targets: Tensor
    mean: Tensor | None = None
    std: Tensor | None = None
    beside: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that every input has a target."""
        for name, inputs in (("inputs", self.inputs), *self.beside.items()):
            if len(inputs) != len(self.targets):
                raise DataError(
                    "inputs and targets differ in number",
                    found=f"{len(inputs)} {name}, {len(self.targets)} targets",
                    expected="as many targets as inputs",
                )

    def __len__(self) -> int:
        """Number of examples."""
        return len(self.inputs)

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """The chosen examples as a model takes them: images float32 and normalised, tokens int64.

        Args:
            indices: Positions in this split, in the wanted order; a slice copies least.

        Returns:
            Inputs `[batch, channel, height, width]` or `[batch, position]`, and their targets.
        """
        chosen = _as_index(indices)
        inputs, targets = self.inputs[chosen], self.targets[chosen]
        if self.mean is None or self.std is None:
            return _whole(inputs), targets
        mean, std = self.mean[:, None, None], self.std[:, None, None]
        return inputs.to(torch.float32).sub_(mean).div_(std), targets

    def examples(self, indices: Indices) -> tuple[tuple[Tensor, ...], Tensor]:
        """As :meth:`batch`, with all inputs in their order.

        Example:
            >>> ids = torch.tensor([[2, 7, 0]], dtype=torch.int16)
            >>> split = Split(ids, torch.tensor([1]), beside={"attention_mask": ids.bool()})
            >>> split.examples([0])
            ((tensor([[2, 7, 0]]), tensor([[1, 1, 0]])), tensor([1]))
        """
        chosen = _as_index(indices)
        inputs, targets = self.batch(chosen)
        return (inputs, *(_whole(more[chosen]) for more in self.beside.values())), targets

    def with_only(self, names: Collection[str]) -> Split:
        """The split with these of the further inputs."""
        beside = {name: more for name, more in self.beside.items() if name in names}
        return Split(self.inputs, self.targets, self.mean, self.std, beside)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A classification or next-token data set.

    Attributes:
        name: Its name in `DATASETS`.
        kind: `image` or `text`.
        classes: Number of classes, or of words where the targets are the next ones.
        shape: Shape of one input: `(channel, height, width)` or `(position,)`.
        train: Examples to train on.
        test: Examples to test on.
        labels: Name of each class, or each word of the vocabulary.
        inputs: Name of each input in order, where there are several: that of `Split.inputs`, then
            those of `Split.beside`.
    """

    name: str
    kind: Literal["image", "text"]
    classes: int
    shape: tuple[int, ...]
    train: Split
    test: Split
    labels: tuple[str, ...]
    inputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that both splits offer the inputs that are named."""
        for split in (self.train, self.test):
            if self.inputs[1:] != tuple(split.beside):
                raise DataError(
                    "inputs have other names",
                    where=self.name,
                    found=", ".join(split.beside) or "none",
                    expected=", ".join(self.inputs[1:]) or "none beside the first",
                )

    @property
    def classified(self) -> bool:
        """Whether every example has one class; else it has a target at each position."""
        return self.train.targets.dim() == 1

    @property
    def integral(self) -> bool:
        """Whether inputs are integers, as models take them."""
        return self.train.mean is None and not self.train.inputs.is_floating_point()

    def with_only(self, names: Collection[str]) -> Dataset:
        """The data set with its first input, and those of the others that are named.

        Example:
            >>> ids = torch.zeros(1, 3, dtype=torch.int16)
            >>> split = Split(ids, torch.tensor([0]), beside={"mask": ids, "types": ids})
            >>> names = ("ids", "mask", "types")
            >>> data = Dataset("pairs", "text", 2, (3,), split, split, ("no", "yes"), names)
            >>> data.with_only({"types"}).inputs
            ('ids', 'types')
        """
        kept = tuple(n for i, n in enumerate(self.inputs) if i == 0 or n in names)
        return dataclasses.replace(
            self,
            train=self.train.with_only(kept),
            test=self.test.with_only(kept),
            inputs=kept,
        )

    def __repr__(self) -> str:
        """One line: what it is and how much of it there is."""
        return (
            f"Dataset({self.name}: {self.kind} {self.shape}, {self.classes} classes, "
            f"{len(self.train)} train, {len(self.test)} test)"
        )


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel of uint8 images `[example, channel, …]`.

    A constant channel gets the deviation 1, so that normalising it gives zeros.

    Example:
        >>> channel_statistics(torch.tensor([[[[1, 3]], [[5, 5]]]], dtype=torch.uint8))
        (tensor([2., 5.]), tensor([1., 1.]))
    """
    values = torch.arange(256, dtype=torch.float64)
    means, deviations = [], []
    for channel in images.unbind(1):
        # Counting the 256 values is exact and needs no float copy of the images.
        share = torch.bincount(channel.flatten(), minlength=256).double() / channel.numel()
        mean = (share * values).sum()
        variance = (share * (values - mean) ** 2).sum()
        means.append(mean)
        deviations.append(variance.sqrt() if variance > 0 else torch.ones_like(variance))
    return torch.stack(means).float(), torch.stack(deviations).float()


def _whole(inputs: Tensor) -> Tensor:
    """Integers of any size, and flags, as int64."""
    return inputs if inputs.is_floating_point() else inputs.to(torch.int64)


def _as_index(indices: Indices) -> Tensor | slice:
    """What a tensor can be indexed with."""
    if isinstance(indices, slice | Tensor):
        return indices
    return torch.as_tensor(np.asarray(indices, dtype=np.int64))
