"""Images in a folder for each class, for `data: {folder: …}`."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from archgraph.data.files import MOST_BYTES, check_size, readable
from archgraph.data.rows import Records, dataset_of_rows, divided, number_classes
from archgraph.data.values import Dataset, check_alike
from archgraph.errors import DataError
from archgraph.language.data import FolderData

if TYPE_CHECKING:
    from PIL.Image import Image

WHERE = "data.folder"
TRAIN, TEST = "train", "test"
Files: TypeAlias = dict[str, list[tuple[str, Path]]]
"""Dict from split to the class and file of each example."""
# Formats that Pillow may open; others can refer to further files, or have many pages.
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
# Pixels of one image before it is scaled.
MOST_PIXELS = 2**26


def read_folder(spec: FolderData) -> Dataset:
    """Read images from a folder for each class; classes are numbered in the order of their names.

    Raises:
        DataError: If a folder is empty, a file is not an image, or images differ in size and the
            spec has no `size`.
    """
    root = Path(spec.folder)
    parts = _parts(root, spec)
    listed = [pair for files in parts.values() for pair in files]
    pictures = read_pictures([(str(file), file) for _, file in listed], spec.size, spec.colour)
    # Both splits together, so that a class has the same number in both.
    targets, labels = number_classes([name for name, _ in listed])
    count = len(parts[TRAIN]) if TRAIN in parts else None
    train, test = divided(Records({"image": pictures}, targets), None, count, spec.test)
    return dataset_of_rows(root.name, "image", train, test, labels=labels)


def images_of_classes(
    folder: Path, size: tuple[int, int], *, colour: bool
) -> tuple[list[str], Tensor]:
    """Read images from a folder for each class; return the class names and uint8 pixels.

    Args:
        folder: The folder that contains the folders of the classes.
        size: Height and width to which images are scaled.
        colour: Whether images have three channels instead of one.

    Raises:
        DataError: If the folder is empty or a file is not an image.

    Shapes:
        pixels: ``[image, channel, height, width]``
    """
    files = _listed(folder)
    pictures = read_pictures([(str(file), file) for _, file in files], size, colour)
    return [name for name, _ in files], pictures


def _parts(root: Path, spec: FolderData) -> Files:
    """Return a dict from each split to its classes and files; one empty name without splits."""
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
        raise DataError(
            f"conflicts with the folder {root / TEST}: remove one of the two", where="data.test"
        )
    files = {part: _listed(root / part) for part in (TRAIN, TEST)}
    # A class without training examples would get a number, and a logit that is never trained.
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
    """List a folder sorted by name, since file systems do not guarantee an order."""
    inside = folder.iterdir() if folder.is_dir() else ()
    paths = sorted(path for path in inside if not path.name.startswith("."))
    if not paths:
        raise DataError(
            "is empty or not a folder",
            where=str(folder),
            expected="a folder for each class, with its images",
        )
    return paths


def read_pictures(
    sources: Sequence[tuple[str, Path | io.BytesIO]],
    size: tuple[int, int] | None = None,
    colour: bool | None = None,
) -> Tensor:
    """Read images as uint8 ``[image, channel, height, width]``.

    Args:
        sources: For each image, the name that errors show, and its file.
        size: Height and width to which images are scaled. Default: images are not scaled, and must
            all have the same size.
        colour: Whether images have three channels instead of one. Default: True if any image has
            colours.

    Raises:
        DataError: If a file is not an image, or images differ in size.
    """
    # The headers of all files first, so that errors are found before any pixels are read.
    heads = [_head(*source) for source in sources]
    if colour is None:
        colour = any(mode in COLOUR for _, mode in heads)
    if size is None:
        size = heads[0][0]
        for (where, _), (other, _) in zip(sources, heads, strict=True):
            hint = "scale them to one size; for a folder, size: [HEIGHT, WIDTH] does this"
            actual, expected = (f"{height} × {width}" for height, width in (other, size))
            check_alike(actual, expected, where, "images differ in size", hint)
    shape = (len(sources), 3 if colour else 1, *size)
    check_size(math.prod(shape), MOST_BYTES, "set of images", sources[0][0], hint="scale them")
    pictures = torch.empty(shape, dtype=torch.uint8)
    for row, (where, file) in enumerate(sources):
        with _opened(where, file) as image:
            pictures[row] = decode_image(image, size, colour)
    return pictures


def decode_image(image: Image, size: tuple[int, int], colour: bool) -> Tensor:
    """Decode an image, rotate it upright and scale it; return ``[channel, height, width]``.

    >>> from PIL import Image
    >>> decode_image(Image.new("L", (3, 2), 7), (2, 3), colour=False).shape
    torch.Size([1, 2, 3])
    """
    from PIL import ImageOps
    from PIL.Image import Resampling

    # Rotated before the size is compared: cameras may store an image sideways and note it in EXIF.
    image = ImageOps.exif_transpose(image).convert("RGB" if colour else "L")
    if image.size != size[::-1]:
        image = image.resize(size[::-1], Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(image))
    return pixels.movedim(-1, 0) if colour else pixels[None]


def _head(where: str, file: Path | io.BytesIO) -> tuple[tuple[int, int], str]:
    """Return height and width of an upright image, and its pixel mode, without reading pixels."""
    with _opened(where, file) as image:
        width, height = image.size
        check_size(width * height, MOST_PIXELS, "image", where, "pixels")
        if image.mode not in (*GREY, *COLOUR):
            raise DataError(
                "image has more than 8 bits per channel",
                where=where,
                found=image.mode,
                hint="convert it, or read the images with your own function: data: {python: …}",
            )
        # EXIF's orientation: values from 5 on are rotated by 90°.
        turned = image.getexif().get(0x0112, 1) >= 5
        return ((width, height) if turned else (height, width)), image.mode


@contextlib.contextmanager
def _opened(where: str, file: Path | io.BytesIO) -> Iterator[Image]:
    """Open an image; raise `DataError` for a damaged file or a decompression bomb."""
    from PIL.Image import DecompressionBombError, open  # Pillow comes with matplotlib

    unreadable = (OSError, ValueError, SyntaxError, DecompressionBombError)
    expected = f"a complete image, one of {', '.join(PILLOW_FORMATS)}"
    with (
        readable("image", where, expected, unreadable, hint=None),
        open(file, formats=PILLOW_FORMATS) as image,
    ):
        yield image
