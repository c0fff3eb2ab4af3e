"""What data sets of images have in common."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from archgraph.engine.data.source import Source
from archgraph.engine.data.values import Dataset, Split, channel_statistics
from archgraph.errors import DataError


def image_dataset(
    source: Source, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], limit: int | None
) -> Dataset:
    """A data set from the images and classes of both splits, at most `limit` of each."""
    images, _ = train = train[0][:limit], train[1][:limit]
    mean, std = channel_statistics(images)
    return Dataset(
        source.name,
        "image",
        len(source.labels),
        tuple(images.shape[1:]),
        Split(*train, mean, std),
        Split(test[0][:limit], test[1][:limit], mean, std),
        source.labels,
    )


def check_classes(targets: np.ndarray, classes: int, where: str) -> None:
    """Raise unless there are targets and each is one of the classes."""
    if len(targets) == 0 or targets.min() < 0 or targets.max() >= classes:
        raise DataError(
            "label out of range",
            where=where,
            found=f"{targets.min()}…{targets.max()}" if len(targets) else "no examples",
            expected=f"classes 0…{classes - 1}",
        )
