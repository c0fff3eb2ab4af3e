"""Data sets of images with classes, and the IDX files of MNIST."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np
import torch
from torch import Tensor

from archgraph.data.files import AGAIN, File
from archgraph.data.source import Source
from archgraph.data.values import Dataset, Split, channel_statistics
from archgraph.errors import DataError


def image_dataset(
    source: Source, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], limit: int | None
) -> Dataset:
    """Build a data set from images and classes, with at most `limit` images in each split."""
    if not (len(train[0]) and len(test[0])):
        raise DataError("a split has no examples", where=source.name)
    images, _ = train = train[0][:limit], train[1][:limit]
    # Statistics of the training examples only, without those beyond the limit.
    mean, std = channel_statistics(images)
    return Dataset(
        source.name,
        "image",
        len(source.labels),
        tuple(images.shape[1:]),
        Split(*train, mean, std),
        Split(test[0][:limit], test[1][:limit], mean, std),
        source.labels,
        measure=channel_statistics,
    )


def read_images(source: Source, files: Mapping[str, File], limit: int | None) -> Dataset:
    """Read a data set in which each split is a file of images and a file of their classes."""

    def part(names: Collection[str]) -> tuple[Tensor, Tensor]:
        pictures, classes = (files[name] for name in names)
        images = read_idx(pictures.read(), 3, str(pictures.path))
        targets = read_idx(classes.read(), 1, str(classes.path)).astype(np.int64)
        if len(images) != len(targets):
            raise DataError(
                f"{len(targets)} labels for {len(images)} images", where=str(classes.path)
            )
        return torch.from_numpy(images).unsqueeze(1), torch.from_numpy(targets)

    return image_dataset(source, part(source.train), part(source.test), limit)


def read_idx(content: bytes, rank: int, where: str) -> np.ndarray:
    """Decode an IDX file of unsigned bytes.

    Args:
        content: The decompressed file: magic `0 0 8 rank`, `rank` big-endian sizes, then the bytes.
        rank: Expected number of dimensions: 3 for images, 1 for labels.
        where: Name of the file, for errors.

    Returns:
        uint8 array with `rank` dimensions.

    Raises:
        DataError: If the magic number is wrong, or the length does not fit the sizes.

    Example:
        >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), rank=1, where="labels")
        array([7, 9], dtype=uint8)
    """
    header = 4 * (1 + rank)
    magic = int.from_bytes(content[:4], "big")
    if len(content) < header or magic != 0x800 + rank:
        raise DataError(
            "not an IDX file of this kind",
            where=where,
            found=f"magic {magic}" if len(content) >= 4 else f"{len(content)} bytes",
            expected=f"magic {0x800 + rank} and {rank} sizes",
            hint="check that images and labels are not swapped",
        )
    shape = tuple(int.from_bytes(content[4 * i : 4 * i + 4], "big") for i in range(1, rank + 1))
    size = header + math.prod(shape)
    if len(content) != size:
        message = "data file truncated" if len(content) < size else "data file too long"
        actual, expected = f"{len(content)} bytes", f"{size} bytes for shape {shape}"
        raise DataError(message, where=where, found=actual, expected=expected, hint=AGAIN)
    # Copied, since torch warns about read-only arrays.
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()
