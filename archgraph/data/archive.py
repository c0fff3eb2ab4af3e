"""CINIC-10's archive: images in a folder for each part and class, read without unpacking."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import BinaryIO

import torch
from PIL import Image
from torch import Tensor

from archgraph.data.files import DAMAGED, MOST_BYTES, File, check_size, readable
from archgraph.data.folder import UNREADABLE, check_head, decode_image
from archgraph.data.images import image_dataset
from archgraph.data.source import Source
from archgraph.data.values import Dataset
from archgraph.errors import DataError
from archgraph.hints import unknown

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
                at = f"{where}: {part}/{label}/{name}"
                raise DataError("class is not known", where=at, **unknown(label, source.labels))
            images[part][label][name] = content
    train, test = (_split(source, images[part], f"{where}: {part}", limit) for part in PARTS)
    return image_dataset(source, train, test, limit)


def _images(stream: BinaryIO, where: str) -> Iterator[tuple[tuple[str, str, str], bytes]]:
    """Yield part, class and name of each image with its content, in the order of the archive."""
    total = 0
    complete = "a complete tar archive, compressed by gzip"
    with (
        readable("archive", where, complete, (tarfile.TarError, *DAMAGED)),
        # As a stream: one pass in the archive's order, nothing is unpacked to disk.
        tarfile.open(fileobj=stream, mode="r|gz") as archive,
    ):
        for member in archive:
            part, label, name = ("", "", *PurePosixPath(member.name).parts)[-3:]
            # macOS adds files of attributes, `._NAME.png`, which are not images.
            image = name.endswith(ENDING) and not name.startswith(".")
            if part in PARTS and image and member.isfile():
                # A small file may decode to more than it occupies.
                total += max(member.size, PIXELS)
                check_size(total, MOST_BYTES, "set of images", f"{where}: {member.name}")
                content = archive.extractfile(member)
                assert content is not None  # a file
                yield (part, label, name), content.read()


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
    with (
        readable("image", where, "a complete PNG file", UNREADABLE, hint=None),
        Image.open(io.BytesIO(content), formats=["PNG"]) as image,
    ):
        check_head(image, where)
        if image.size != (width, height):
            size = f"{image.height} × {image.width}"
            expected = f"{height} × {width}"
            raise DataError("image has another size", where=where, found=size, expected=expected)
        return decode_image(image, None, colour=True)
