"""CIFAR's pickled batches, read without executing anything in them."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from archgraph.data.files import AGAIN, File
from archgraph.data.images import image_dataset
from archgraph.data.source import Source
from archgraph.data.values import Dataset
from archgraph.errors import DataError


def read_cifar(source: Source, files: Mapping[str, File], limit: int | None) -> Dataset:
    """Read a CIFAR data set; batches after the limit of examples are not read."""

    def part(names: Iterable[str]) -> tuple[Tensor, Tensor]:
        images: list[np.ndarray] = []
        targets: list[np.ndarray] = []
        for name in names:
            where = str(files[name].path)
            pixels, labels = read_cifar_batch(files[name].read(), where, source.key)
            images.append(pixels)
            targets.append(labels)
            # The remaining batches are neither unpacked nor verified.
            if limit is not None and sum(map(len, targets)) >= limit:
                break
        return torch.from_numpy(np.concatenate(images)), torch.from_numpy(np.concatenate(targets))

    return image_dataset(source, part(source.train), part(source.test), limit)


# All that unpickling CIFAR batches needs. NumPy 1 and 2 have `_reconstruct` in different modules;
# the function itself is taken from an array's `__reduce__`.
_RECONSTRUCT = np.empty(0).__reduce__()[0]
_SAFE_GLOBALS: Mapping[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _Refused(Exception):
    """A pickle refers to something that data files do not need."""


class _RestrictedUnpickler(pickle.Unpickler):
    """Unpickler that rebuilds arrays and standard containers, and refuses all other classes."""

    def find_class(self, module: str, name: str) -> object:
        try:
            return _SAFE_GLOBALS[module, name]
        except KeyError:
            raise _Refused(f"{module}.{name}") from None


def read_cifar_batch(
    content: bytes, where: str, classes: str = "labels"
) -> tuple[np.ndarray, np.ndarray]:
    """Decode one CIFAR batch: a pickled dict with `data` and `labels`.

    Args:
        content: The decompressed pickle. Nothing in it is executed: names other than numpy's array
            constructors raise an error.
        where: Name of the file, for errors.
        classes: Key of the labels.

    Returns:
        Images, uint8 `[example, channel, height, width]` = `[n, 3, 32, 32]`, and labels, int64
        `[example]`.

    Raises:
        DataError: If the pickle is unsafe or damaged, or if it does not contain a batch.
    """
    try:
        batch = _RestrictedUnpickler(io.BytesIO(content), encoding="bytes").load()
    except _Refused as refused:
        raise DataError(
            "unsafe pickle refused, nothing was executed",
            where=where,
            found=str(refused),
            hint="do not trust this file; fetch the original",
        ) from refused
    except Exception as error:  # a damaged pickle may fail with any exception
        problem = f"{type(error).__name__}: {error}"
        raise DataError("not a CIFAR batch", where=where, found=problem, hint=AGAIN) from error
    entries = batch if isinstance(batch, dict) else {}
    # Python 2 pickled the published batches: their keys are read as bytes.
    data = entries.get(b"data", entries.get("data"))
    labels = entries.get(classes.encode(), entries.get(classes))
    if not isinstance(data, np.ndarray) or (data.dtype, data.shape[1:]) != (np.uint8, (3072,)):
        raise DataError("CIFAR batch without images, uint8 data [image, 3072]", where=where)
    if not isinstance(labels, list) or [type(label) for label in labels] != [int] * len(data):
        message = f"CIFAR batch without labels, {len(data)} integers under {classes}"
        raise DataError(message, where=where)
    # A row is three planes of 32 × 32 pixels: red, green, blue.
    return data.reshape(-1, 3, 32, 32), np.array(labels, np.int64)
