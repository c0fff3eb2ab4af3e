"""Locate data files below a root folder, decompress them, and compare their checksums."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

from archgraph.data.source import SETS, Published, Source
from archgraph.errors import DataError

ROOT_VARIABLE = "ARCHGRAPH_DATA"

# Larger than any file of the known sets: a larger compressed file is a decompression bomb.
MOST_BYTES = 1 << 30
# Errors that the standard library's decompressors raise for a damaged file.
DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError)
AGAIN = "fetch the file again"


@contextmanager
def readable(
    what: str,
    where: object,
    expected: object,
    errors: tuple[type[Exception], ...] = DAMAGED,
    hint: str | None = AGAIN,
) -> Iterator[None]:
    """Convert the errors that a library raises for a damaged file to `DataError`.

    Args:
        what: Name of the content, for the message.
        where: The file.
        expected: Description of an intact file.
        errors: Classes of errors to convert. Other errors are raised unchanged.
        hint: Hint of the error.

    Raises:
        DataError: Instead of an error of one of these classes.
    """
    try:
        yield
    except errors as error:
        problem = str(error).strip().partition("\n")[0] or type(error).__name__
        raise DataError(
            f"{what} cannot be read", where=str(where), found=problem, expected=expected, hint=hint
        ) from error


def check_size(
    size: int,
    most: int,
    what: str,
    where: object,
    unit: str = "bytes",
    hint: str | None = None,
) -> None:
    """Check a size against a limit; call this before unpacking a file.

    Raises:
        DataError: If `size` exceeds `most`.

    Example:
        >>> check_size(5000, 4096, "table", "rows.csv")
        Traceback (most recent call last):
        archgraph.errors.DataError: rows.csv: table is too large; found 5,000 bytes; expected at \
most 4,096 bytes
    """
    if size > most:
        raise DataError(
            f"{what} is too large",
            where=str(where),
            found=f"{size:,} {unit}",
            expected=f"at most {most:,} {unit}",
            hint=hint,
        )


@dataclass(frozen=True)
class File:
    """A data file on disk, with its expected size and checksum."""

    path: Path
    published: Published | None

    def read(self) -> bytes:
        """Return the decompressed and verified content."""
        # One byte more than allowed is read, so that a bomb is noticed without unpacking it.
        most = MOST_BYTES if self.published is None else self.published.bytes
        with readable("data file", self.path, "a complete file"), _open(self.path) as stream:
            content = stream.read(most + 1)
        if len(content) > most:
            self._refuse("data file too long", f"more than {most} bytes", f"at most {most} bytes")
        if self.published is not None:
            self._check_size(len(content), self.published)
            checked = self.path.read_bytes() if self.published.gz else content
            self._check_sum(_md5(checked), self.published)
        return content

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Verify the archive without decompressing it, and open it at its beginning."""
        with (
            readable("data file", self.path, "a complete file", (OSError,)),
            self.path.open("rb") as stream,
        ):
            if self.published is not None:
                self._check_size(os.fstat(stream.fileno()).st_size, self.published)
                self._check_sum(hashlib.file_digest(stream, _md5), self.published)
                stream.seek(0)
            yield stream

    def _check_size(self, size: int, published: Published) -> None:
        # Before the checksum: the size shows that a download was interrupted.
        if size != published.bytes:
            message = "data file truncated" if size < published.bytes else "data file too long"
            self._refuse(message, f"{size} bytes", f"{published.bytes} bytes")

    def _check_sum(self, digest: hashlib._Hash, published: Published) -> None:
        if (md5 := digest.hexdigest()) != published.md5:
            stored = published.gz or published.archive
            actual = f"MD5 {md5} of the {'stored' if stored else 'decompressed'} content"
            hint = f"{AGAIN}, or pass verify=False for a file of your own"
            self._refuse("wrong checksum", actual, published.md5, hint)

    def _refuse(self, message: str, actual: str, expected: str, hint: str = AGAIN) -> NoReturn:
        raise DataError(message, where=str(self.path), found=actual, expected=expected, hint=hint)


def _md5(content: bytes = b"") -> hashlib._Hash:
    # MD5 detects damage, not attacks; it is the checksum that authors publish.
    return hashlib.md5(content, usedforsecurity=False)


def _open(path: Path) -> io.BufferedIOBase:
    """Open the decompressed stream of an uncompressed, `.gz` or `.xz` file."""
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    return path.open("rb")


def located(source: Source, root: str | Path | None, *, verify: bool = True) -> dict[str, File]:
    """Locate the files of a data set, in the folder that contains most of the files.

    Args:
        source: The data set.
        root: Folder below which to search. Default: the folder in `ARCHGRAPH_DATA`.
        verify: Whether to compare the files with the sizes and checksums of the published files.

    Raises:
        DataError: If the folder or a file is missing.
    """
    root = _root(source, root)
    candidates = [
        (
            folder,
            {
                name: File(path, published if verify else None)
                for name, published in source.files.items()
                if (path := _stored(folder / name, published)) is not None
            },
        )
        for folder in (*(root / name for name in source.folders), root)
    ]
    # Files of one set are never mixed from several folders. If folders are equally complete, max
    # takes the first, which is also the folder that an error should name if no file was found.
    folder, files = max(candidates, key=lambda candidate: len(candidate[1]))
    missing = [name for name in source.files if name not in files]
    if missing:
        archives = all(source.files[name].archive for name in missing)
        origin = f"; they are published at {source.published}" if source.published else ""
        raise DataError(
            "data file missing",
            where=str(folder),
            found=f"{len(files)} of {len(source.files)} files of {source.name}",
            expected=", ".join(missing) + ("" if archives else " (plain, .gz or .xz)"),
            hint=f"put the original files there; nothing is downloaded{origin}",
        )
    return files


def lacking(source: Source, root: str | Path | None) -> str | None:
    """Describe the missing files of a data set; None if all files are below the root folder.

    Example:
        >>> from archgraph.data.source import source
        >>> lacking(source("multinli"), "/")
        'multinli_1.0.zip into multinli/, published at https://cims.nyu.edu/~sbowman/multinli'
    """
    try:
        located(source, root)
    except DataError:
        origin = f", published at {source.published}" if source.published else ""
        return f"{', '.join(source.files)} into {source.folders[0]}/{origin}"
    return None


def _root(source: Source, root: str | Path | None) -> Path:
    if source.shipped:
        return SETS
    root = root if root is not None else os.environ.get(ROOT_VARIABLE)
    folder = None if root is None else Path(root).expanduser()
    if folder is None or not folder.is_dir():
        raise DataError(
            "the data folder is not set" if folder is None else "data folder missing",
            where=source.name,
            found=None if folder is None else f"no folder {folder}",
            expected="the folder that holds " + " or ".join(f"{f}/" for f in source.folders),
            hint=f"set data.root or the environment variable {ROOT_VARIABLE}; "
            "`digits` needs no files",
        )
    return folder


def _stored(path: Path, published: Published) -> Path | None:
    """Find the stored file: uncompressed, `.gz` or `.xz`, or only in the published form."""
    endings = ("",) if published.archive else (".gz",) if published.gz else ("", ".gz", ".xz")
    candidates = (path.with_name(path.name + ending) for ending in endings)
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def decode_text(content: bytes, where: str, hint: str = AGAIN) -> str:
    """Decode UTF-8 text, and drop the byte-order mark that some programs write."""
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        problem = f"byte 0x{content[error.start]:02x} at position {error.start}"
        raise DataError("is not UTF-8 text", where=where, found=problem, hint=hint) from error
