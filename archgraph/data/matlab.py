"""SVHN's MATLAB files."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from archgraph.data.files import AGAIN, MOST_BYTES, File
from archgraph.data.images import image_dataset
from archgraph.data.source import Source
from archgraph.data.values import Dataset
from archgraph.errors import DataError

SIZE = (32, 32, 3)


def read_matlab(source: Source, files: Mapping[str, File], limit: int | None) -> Dataset:
    """Read a data set of which each split is one MATLAB file.

    Raises:
        DataError: If a file holds something else.
    """

    def part(names: Iterable[str]) -> tuple[Tensor, Tensor]:
        (file,) = (files[name] for name in names)
        images, targets = read_mat(file.read(), str(file.path))
        return torch.from_numpy(images), torch.from_numpy(targets)

    return image_dataset(source, part(source.train), part(source.test), limit)


def read_mat(content: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Decode images `X` and classes `y` of a MATLAB 5 file, where class 10 stands for the digit 0.

    Args:
        content: The file. Its announced shapes are checked before an array is made.
        where: Name of the file, for errors.

    Returns:
        Images, uint8 `[example, channel, height, width]` = `[n, 3, 32, 32]`, and classes, int64
        `[example]`.

    Raises:
        DataError: If the file is damaged or holds something else.
    """
    import scipy.io  # for this one data set

    try:
        # whosmat reads headers alone: a small file may announce more than memory holds.
        shapes = {name: shape for name, shape, _ in scipy.io.whosmat(io.BytesIO(content))}
        count = shapes.get("y", (0,))[0]
        fits = shapes == {**shapes, "X": (*SIZE, count), "y": (count, 1)}
        if not fits or count * np.prod(SIZE) > MOST_BYTES:
            variables = [f"{name} {list(shape)}" for name, shape in shapes.items()]
            raise _other(where, ", ".join(variables) or "no variables")
        arrays = scipy.io.loadmat(io.BytesIO(content), variable_names=["X", "y"])
    except DataError:
        raise
    except Exception as error:  # a damaged file may fail with any exception
        raise _other(where, f"{type(error).__name__}: {error}") from error
    images, targets = arrays["X"], arrays["y"]
    # MATLAB writes whole numbers as float64 unless told otherwise.
    if images.dtype != np.uint8 or not np.array_equal(targets, targets.astype(np.uint8)):
        raise _other(where, f"X of {images.dtype}, y of {targets.dtype}")
    classes = targets[:, 0].astype(np.int64)
    classes[classes == 10] = 0  # MATLAB counts from 1
    return np.ascontiguousarray(images.transpose(3, 2, 0, 1)), classes


def _other(where: str, content: str) -> DataError:
    return DataError(
        "not a MATLAB file of images and their classes",
        where=where,
        found=content,
        expected="uint8 X [32, 32, 3, n] and y [n, 1]",
        hint=AGAIN,
    )
