"""Images in a folder for each class, as `data: {folder: …}` names them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from archgraph.data.files import MOST_BYTES, check_size, readable
from archgraph.data.rows import Records, dataset_of_rows, number_classes, parted
from archgraph.data.values import Dataset, check_alike
from archgraph.errors import DataError
from archgraph.language.data import FolderData

WHERE = "data.folder"
TRAIN, TEST = "train", "test"
Files: TypeAlias = dict[str, list[tuple[str, Path]]]
"""Class and file of each example, by split."""
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
PILLOW_FORMATS = sorted(set(FORMATS.values()))
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
    parts = _parts(root, spec)
    rows, labels = _read(parts, spec)
    train, test = (rows[TRAIN], rows[TEST]) if TEST in rows else parted(rows[""], spec.test)
    return dataset_of_rows(root.name, "image", train, test, labels=labels)


def images_of_classes(
    folder: Path, size: tuple[int, int], *, colour: bool
) -> tuple[list[str], Tensor]:
    """Read the images below a folder for each class: each one's class, and uint8 pixels.

    Args:
        folder: The folder of the classes.
        size: Height and width to which images are scaled.
        colour: Whether they get three channels, not one.

    Raises:
        DataError: If the folder is empty or a file is not an image.

    Shapes:
        pixels: ``[image, channel, height, width]``
    """
    files = _listed(folder)
    for _, file in files:
        _head(file)
    return [name for name, _ in files], _pictures([file for _, file in files], size, colour)


def _parts(root: Path, spec: FolderData) -> Files:
    """Return class and file of each example, by split; without splits under an empty name."""
    missing = [part for part in (TRAIN, TEST) if not (root / part).is_dir()]
    if len(missing) == 2:
        return {"": _listed(root)}
    if missing:
        raise DataError(
            "has only one of the two splits",
            where=WHERE,
            found=f"no folder {root / missing[0]}",
            expected=f"{TRAIN}/ and {TEST}/, or one folder per class",
        )
    if spec.test is not None:
        problem = f"conflicts with the folder {root / TEST}: remove one of the two"
        raise DataError(problem, where="data.test")
    files = {part: _listed(root / part) for part in (TRAIN, TEST)}
    # A class without training examples would get a number, and a logit that nothing trains.
    for name in sorted({name for name, _ in files[TEST]} - {name for name, _ in files[TRAIN]}):
        raise DataError(
            "a class has test images only: is the folder's name misspelt?",
            where=str(root / TEST / name),
        )
    return files


def _listed(folder: Path) -> list[tuple[str, Path]]:
    """Return class and file of each image, in order; hidden files are skipped."""
    pairs = [(inside.name, file) for inside in _visible(folder) for file in _visible(inside)]
    for _, file in pairs:
        if file.suffix.lower() not in FORMATS or not file.is_file():
            expected = ", ".join(FORMATS)
            hint = "move it elsewhere; texts are a column of a table"
            raise DataError("is not an image", where=str(file), expected=expected, hint=hint)
    return pairs


def _visible(folder: Path) -> list[Path]:
    """Return what is in a folder, in the order of names: no file system promises one."""
    inside = folder.iterdir() if folder.is_dir() else ()
    paths = sorted(path for path in inside if not path.name.startswith("."))
    if not paths:
        raise DataError(
            "is empty or not a folder",
            where=str(folder),
            expected="a folder for each class, with its images",
        )
    return paths


def _read(parts: Files, spec: FolderData) -> tuple[dict[str, Records], tuple[str, ...]]:
    """Read the images of each part, all of one size and number of channels; and the classes."""
    listed = [pair for files in parts.values() for pair in files]
    # Heads of all files first: what is wrong with the last one is known before pixels are read.
    heads = [_head(file) for _, file in listed]
    colour = spec.colour
    if colour is None:
        colour = any(mode in COLOUR for _, mode in heads)
    size = spec.size or heads[0][0]
    for (_, file), (other, _) in zip(listed, heads, strict=True):
        if spec.size is None:
            hint = "write size: [HEIGHT, WIDTH], to which all are scaled"
            actual, expected = (f"{height} × {width}" for height, width in (other, size))
            check_alike(actual, expected, str(file), "images differ in size", hint)
    total = len(listed) * (3 if colour else 1) * size[0] * size[1]
    check_size(total, MOST_BYTES, "set of images", WHERE, hint="write a smaller size")
    # Of both splits together, so that a class has one number in both.
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
        with _complete(file), Image.open(file, formats=PILLOW_FORMATS) as image:
            pictures[row] = decode_image(image, size, colour)
    return pictures


def decode_image(image: Image.Image, size: tuple[int, int] | None, colour: bool) -> Tensor:
    """Decode an image, upright, in one or three channels, scaled: ``[channel, height, width]``.

    >>> decode_image(Image.new("L", (3, 2), 7), None, colour=False).shape
    torch.Size([1, 2, 3])
    """
    # Turned before the size is compared: cameras store sideways what EXIF says is upright.
    image = ImageOps.exif_transpose(image).convert("RGB" if colour else "L")
    if size is not None and image.size != size[::-1]:
        image = image.resize(size[::-1], Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(image))
    return pixels.movedim(-1, 0) if colour else pixels[None]


def _head(file: Path) -> tuple[tuple[int, int], str]:
    """Return height and width of an upright image, and its pixel mode, without reading pixels."""
    with _complete(file), Image.open(file, formats=PILLOW_FORMATS) as image:
        check_head(image, str(file))
        width, height = image.size
        # EXIF's orientation: from 5 on the image is turned by 90°.
        turned = image.getexif().get(0x0112, 1) >= 5
        return ((width, height) if turned else (height, width)), image.mode


def check_head(image: Image.Image, where: str) -> None:
    """Raise unless an image that was opened, but not read yet, is small enough and has 8 bits.

    Raises:
        DataError: If it has too many pixels, or more bits for a channel.

    Example:
        >>> check_head(Image.new("L", (3, 2)), "a.png")
    """
    check_size(image.width * image.height, MOST_PIXELS, "image", where, "pixels")
    if image.mode not in (*GREY, *COLOUR):
        raise DataError(
            "image has more than 8 bits for a channel",
            where=where,
            found=image.mode,
            hint="convert it, or read the images with your own function: data: {python: …}",
        )


def _complete(file: Path) -> AbstractContextManager[None]:
    expected = f"a complete {FORMATS[file.suffix.lower()]} file"
    return readable("image", file, expected, UNREADABLE, hint=None)
