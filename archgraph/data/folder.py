"""Images in a folder for each class, as `data: {folder: …}` names them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from archgraph.data.files import MOST_BYTES
from archgraph.data.rows import SHARE, Records, dataset_of_rows, number_classes, parted
from archgraph.data.values import Dataset
from archgraph.errors import DataError
from archgraph.language.data import FolderData

WHERE = "data.folder"
TRAIN, TEST = "train", "test"
# What Pillow may open; other formats can name further files, or have many pages.
FORMATS = {
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".bmp": "BMP",
    ".webp": "WEBP",
    ".pgm": "PPM",
    ".ppm": "PPM",
}
GREY = ("1", "L", "LA")
COLOUR = ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr")
# What Pillow raises for a file that is damaged, or made to fill the memory.
UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
# Of one image, before it is scaled.
MOST_PIXELS = 2**26


def read_folder(spec: FolderData) -> Dataset:
    """Read a folder of images: the folder of each is its class, classes in order of their names.

    Raises:
        DataError: If a folder is empty, a file is not an image, or images differ in size and no
            size is asked for.
    """
    root = Path(spec.folder)
    split = (root / TRAIN).is_dir() or (root / TEST).is_dir()
    if not split:
        rows, labels = _read({"": _listed(root)}, spec)
        train, test = parted(rows[""], spec.test or SHARE, "data.test")
        return dataset_of_rows(root.name, "image", train, test, labels=labels)
    if spec.test is not None:
        raise DataError(
            "conflicts with the folder of test images",
            where="data.test",
            found=f"test: {spec.test:g} and {root / TEST}",
            expected="one of them",
        )
    for part in (TRAIN, TEST):
        if not (root / part).is_dir():
            raise DataError(
                "has only one of the two splits",
                where=WHERE,
                found=f"no folder {root / part}",
                expected=f"{TRAIN}/ and {TEST}/, or a folder for each class",
            )
    files = {part: _listed(root / part) for part in (TRAIN, TEST)}
    unknown = sorted({name for name, _ in files[TEST]} - {name for name, _ in files[TRAIN]})
    if unknown:
        raise DataError(
            "a class has test images only",
            where=str(root / TEST / unknown[0]),
            found=unknown[0],
            expected=", ".join(sorted({name for name, _ in files[TRAIN]})[:5]),
        )
    rows, labels = _read(files, spec)
    return dataset_of_rows(root.name, "image", rows[TRAIN], rows[TEST], labels=labels)


def _listed(folder: Path) -> list[tuple[str, Path]]:
    """Return class and file of each image, in order; hidden files are skipped."""
    pairs = []
    classes = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    if not classes:
        raise DataError("holds no classes", where=str(folder), expected="a folder for each class")
    for directory in classes:
        if not directory.is_dir():
            raise DataError(
                "is not a folder of a class",
                where=str(directory),
                found="a file",
                expected="a folder for each class, with its images",
            )
        files = sorted(p for p in directory.iterdir() if not p.name.startswith("."))
        if not files:
            raise DataError("a class has no images", where=str(directory), expected="at least one")
        for file in files:
            if file.suffix.lower() not in FORMATS or not file.is_file():
                raise DataError(
                    "is not an image",
                    where=str(file),
                    found=file.suffix or "no ending",
                    expected=", ".join(FORMATS),
                    hint="move it elsewhere",
                )
            pairs.append((directory.name, file))
    return pairs


def _read(
    parts: dict[str, list[tuple[str, Path]]], spec: FolderData
) -> tuple[dict[str, Records], tuple[str, ...]]:
    """Read the images of each part, all of one size and number of channels; and the classes."""
    listed = [pair for files in parts.values() for pair in files]
    heads = [_head(file) for _, file in listed]
    colour = spec.colour
    if colour is None:
        colour = any(mode in COLOUR for _, mode in heads)
    size = spec.size or heads[0][0]
    if spec.size is None:
        for (_, file), (other, _) in zip(listed, heads, strict=True):
            if other != size:
                raise DataError(
                    "images differ in size",
                    where=str(file),
                    found=f"{other[0]} × {other[1]}",
                    expected=f"{size[0]} × {size[1]}, as {listed[0][1].name} has it",
                    hint="write size: [HEIGHT, WIDTH], to which all are scaled",
                )
    total = len(listed) * (3 if colour else 1) * size[0] * size[1]
    if total > MOST_BYTES:
        raise DataError(
            "images are too many or too large",
            where=WHERE,
            found=f"{len(listed)} of {size[0]} × {size[1]}: {total:,} bytes",
            expected=f"at most {MOST_BYTES:,} bytes",
            hint="write a smaller size",
        )
    targets, labels = number_classes([name for name, _ in listed])
    rows, start = {}, 0
    for part, files in parts.items():
        pictures = _pictures([file for _, file in files], size, colour)
        rows[part] = Records({"image": pictures}, targets[start : start + len(files)])
        start += len(files)
    return rows, labels


def _pictures(files: Sequence[Path], size: tuple[int, int], colour: bool) -> Tensor:
    """Read images as uint8 ``[image, channel, height, width]``."""
    pictures = torch.empty(len(files), 3 if colour else 1, *size, dtype=torch.uint8)
    for row, file in enumerate(files):
        try:
            with Image.open(file, formats=list(set(FORMATS.values()))) as opened:
                image = decode_image(opened, size, colour)
        except UNREADABLE as error:
            raise _damaged(file, error) from error
        pictures[row] = image
    return pictures


def decode_image(image: Image.Image, size: tuple[int, int] | None, colour: bool) -> Tensor:
    """Decode an image, upright, in one or three channels, scaled: ``[channel, height, width]``.

    >>> decode_image(Image.new("L", (3, 2), 7), None, colour=False).shape
    torch.Size([1, 2, 3])
    """
    image = ImageOps.exif_transpose(image).convert("RGB" if colour else "L")
    if size is not None and image.size != size[::-1]:
        image = image.resize(size[::-1], Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(image))
    return pixels.movedim(-1, 0) if colour else pixels[None]


def _head(file: Path) -> tuple[tuple[int, int], str]:
    """Return height and width of an upright image, and its pixel mode, without reading pixels."""
    try:
        with Image.open(file, formats=list(set(FORMATS.values()))) as image:
            width, height = image.size
            # EXIF's orientation: from 5 on the image is turned by 90°.
            turned = image.getexif().get(0x0112, 1) >= 5
            mode = image.mode
            check_head(image, str(file))
    except UNREADABLE as error:
        raise _damaged(file, error) from error
    return ((width, height) if turned else (height, width)), mode


def check_head(image: Image.Image, where: str) -> None:
    """Raise unless an image that was opened, but not read yet, is small enough and has 8 bits.

    Raises:
        DataError: If it has too many pixels, or more bits for a channel.

    Example:
        >>> check_head(Image.new("L", (3, 2)), "a.png")
    """
    if image.width * image.height > MOST_PIXELS:
        raise DataError(
            "image is too large",
            where=where,
            found=f"{image.height} × {image.width}",
            expected=f"at most {MOST_PIXELS:,} pixels",
        )
    if image.mode not in (*GREY, *COLOUR):
        raise DataError(
            "image has more than 8 bits for a channel",
            where=where,
            found=image.mode,
            expected="grey or colour with 8 bits",
            hint="convert it, or read the images with your own function: data: {python: …}",
        )


def _damaged(file: Path, error: Exception) -> DataError:
    return DataError(
        "image cannot be read",
        where=str(file),
        found=str(error) or type(error).__name__,
        expected=f"a complete {FORMATS[file.suffix.lower()]} file",
    )
