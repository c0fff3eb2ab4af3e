"""CIFAR-10 with random crops and mirror images, drawn once or anew in every pass.

``archgraph study --python specs/ablations/random_crops.yaml`` compares the two.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from archgraph.data import Dataset, dataset_of, load_dataset
from archgraph.data.validation import subset

MARGIN = 4  # pixels around an image


def cropped(image: Tensor) -> Tensor:
    """Shift and mirror an image ``[channel, height, width]`` at random."""
    top, left = torch.randint(2 * MARGIN + 1, (2,)).tolist()
    height, width = image.shape[-2:]
    image = nn.functional.pad(image, (MARGIN,) * 4)[:, top : top + height, left : left + width]
    return image.flip(-1) if torch.rand(()) < 0.5 else image


class Cropped(TensorDataset):
    """Images that are shifted and mirrored whenever they are read."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        """Return an image and its class."""
        image, target = super().__getitem__(index)
        return cropped(image), target


def cifar(limit: int = 5000, cache: bool = False) -> Dataset:
    """Return the first images of CIFAR-10, with random crops for training."""
    data = load_dataset("cifar10")
    train = subset(data.train, torch.arange(limit).numpy())
    return dataset_of(
        (Cropped(train.inputs, train.targets), (data.test.inputs, data.test.targets)),
        "cifar10",
        cache=cache,
    )
