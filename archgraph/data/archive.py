"""CINIC-10's archive: images in a folder for each part and class, read without unpacking."""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import BinaryIO

import torch
from PIL import Image
from torch import Tensor

from archgraph.data.files import MOST_BYTES, File
from archgraph.data.folder import UNREADABLE, check_head, decode_image
from archgraph.data.images import image_dataset
from archgraph.data.source import Source
from archgraph.data.values import Dataset
from archgraph.errors import DataError

PARTS = ("train", "test")
ENDING = ".png"
PIXELS = 3 * 32 * 32
"""Bytes of an image once it is decoded."""


def read_archive(source: Source, files: Mapping[str, File], limit: int | None) -> Dataset:
    """Read PNG images from one archive, `train/CLASS/NAME.png` and `test/CLASS/NAME.png`.

    Within a split classes take turns, so that its first examples are of all classes.

    Raises:
        DataError: The archive is damaged, an image is not one or has another size, a class is not
            known, or the images are too many.
    """
    (file,) = files.values()
    where = str(file.path)
    images: dict[str, dict[str, dict[str, bytes]]] = {
        part: {label: {} for label in source.labels} for part in PARTS
    }
    with file.opened() as stream:
        for (part, label, name), content in _images(stream, where):
            if label not in images[part]:
                raise DataError(
                    "class is not known",
                    where=f"{where}: {part}/{label}/{name}",
                    found=label,
                    expected=", ".join(source.labels),
                )
            images[part][label][name] = content
    train, test = (_split(source, images[part], f"{where}: {part}", limit) for part in PARTS)
    return image_dataset(source, train, test, limit)


def _images(stream: BinaryIO, where: str) -> Iterator[tuple[tuple[str, str, str], bytes]]:
    """Yield part, class and name of each image with its content, in the order of the archive."""
    total = 0
    try:
        # As a stream: one pass in the archive's order, nothing is unpacked to disk.
        with tarfile.open(fileobj=stream, mode="r|gz") as archive:
            for member in archive:
                part, label, name = ("", "", *PurePosixPath(member.name).parts)[-3:]
                image = name.endswith(ENDING) and not name.startswith(".")
                if part in PARTS and image and member.isfile():
                    # A small file may decode to more than it occupies.
                    total += max(member.size, PIXELS)
                    if total > MOST_BYTES:
                        raise DataError(
                            "images are too many or too large",
                            where=where,
                            found=f"{total:,} bytes up to {member.name}",
                            expected=f"at most {MOST_BYTES:,} bytes",
                        )
                    content = archive.extractfile(member)
                    assert content is not None  # a file
                    yield (part, label, name), content.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(
            "archive cannot be read",
            where=where,
            found=str(error) or type(error).__name__,
            expected="a complete tar archive, compressed by gzip",
            hint="fetch the file again",
        ) from error


def _split(
    source: Source, contents: Mapping[str, Mapping[str, bytes]], where: str, limit: int | None
) -> tuple[Tensor, Tensor]:
    """Decode images and classes of a part, `[example, channel, height, width]` and `[example]`."""
    turns = sorted(
        (turn, source.labels.index(label), name)
        for label, images in contents.items()
        for turn, name in enumerate(sorted(images))
    )[:limit]
    if not turns:
        raise DataError("holds no images", where=where, expected=f"CLASS/NAME{ENDING}")
    pictures = torch.empty(len(turns), *source.shape, dtype=torch.uint8)
    for row, (_, target, name) in enumerate(turns):
        label = source.labels[target]
        pictures[row] = _decoded(source, contents[label][name], f"{where}/{label}/{name}")
    return pictures, torch.tensor([target for _, target, _ in turns])


def _decoded(source: Source, content: bytes, where: str) -> Tensor:
    """Decode one image, `[channel, height, width]`; grey ones get three equal channels."""
    height, width = source.shape[1:]
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            check_head(image, where)
            if image.size != (width, height):
                raise DataError(
                    "image has another size",
                    where=where,
                    found=f"{image.height} × {image.width}",
                    expected=f"{height} × {width}",
                )
            return decode_image(image, None, colour=True)
    except UNREADABLE as error:
        raise DataError(
            "image cannot be read",
            where=where,
            found=str(error) or type(error).__name__,
            expected="a complete PNG file",
        ) from error
