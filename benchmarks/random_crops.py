"""CIFAR-10 with random crops and mirror images, drawn once or anew in every pass.

``archgraph study --python specs/ablations/random_crops.yaml`` compares the two.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from archgraph.data import Dataset, dataset_of, load_dataset


class Cropped(TensorDataset):
    """Images ``[channel, height, width]`` shifted by 4 pixels at most and mirrored at each read."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        """Return an image and its class."""
        image, target = super().__getitem__(index)
        top, left = torch.randint(9, (2,)).tolist()
        image = nn.functional.pad(image, (4,) * 4)[
            :, top : top + image.shape[1], left : left + image.shape[2]
        ]
        return image.flip(-1) if torch.rand(()) < 0.5 else image, target


def cifar(limit: int = 5000, cache: bool = False) -> Dataset:
    """Return the first images of CIFAR-10, with random crops for training."""
    data = load_dataset("cifar10")
    train = Cropped(data.train.inputs[:limit], data.train.targets[:limit])
    return dataset_of(
        (train, (data.test.inputs, data.test.targets)),
        "cifar10",
        cache=cache,
    )
