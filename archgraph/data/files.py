"""Data files: found below a root folder, decompressed, compared with what was published."""

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
from typing import BinaryIO

from archgraph.data.source import SETS, Published, Source
from archgraph.errors import DataError

ROOT_VARIABLE = "ARCHGRAPH_DATA"

# Larger than any file of the known sets: a compressed file beyond it is a decompression bomb.
MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class File:
    """A data file on disk, and what it has to contain."""

    path: Path
    published: Published | None

    def read(self) -> bytes:
        """Return the decompressed content, complete and verified."""
        # One byte more than allowed is read, so that a bomb is noticed without unpacking it.
        most = MOST_BYTES if self.published is None else self.published.bytes
        try:
            with _open(self.path) as stream:
                content = stream.read(most + 1)
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            problem = str(error) or type(error).__name__
            expected = "a complete file" if self.published is None else f"{most} bytes"
            raise self._bad("data file cannot be read", problem, expected) from error
        if len(content) > most:
            expected = f"{most} bytes" if self.published else f"at most {most} bytes"
            raise self._bad("data file too long", f"more than {most} bytes", expected)
        if self.published is not None:
            self._verify(content, self.published)
        return content

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Open an archive as it is stored, verified and at its beginning."""
        try:
            with self.path.open("rb") as stream:
                if self.published is not None:
                    self._check_size(os.fstat(stream.fileno()).st_size, self.published)
                    self._check_sum(hashlib.file_digest(stream, _md5), self.published)
                    stream.seek(0)
                yield stream
        except OSError as error:
            raise self._bad("data file cannot be read", str(error), "a complete file") from error

    def _verify(self, content: bytes, published: Published) -> None:
        self._check_size(len(content), published)
        checked = self.path.read_bytes() if published.gz else content
        self._check_sum(_md5(checked), published)

    def _check_size(self, size: int, published: Published) -> None:
        if size != published.bytes:
            message = "data file truncated" if size < published.bytes else "data file too long"
            raise self._bad(message, f"{size} bytes", f"{published.bytes} bytes")

    def _check_sum(self, digest: hashlib._Hash, published: Published) -> None:
        if (md5 := digest.hexdigest()) != published.md5:
            stored = published.gz or published.archive
            actual = f"MD5 {md5} of the {'stored' if stored else 'decompressed'} content"
            more = ", or pass verify=False for a file of your own"
            raise self._bad("wrong checksum", actual, published.md5, more)

    def _bad(self, message: str, found: str, expected: str, more: str = "") -> DataError:
        hint = f"fetch the file again{more}"
        return DataError(message, where=str(self.path), found=found, expected=expected, hint=hint)


def _md5(content: bytes = b"") -> hashlib._Hash:
    # Against damage, not attackers: MD5 is what authors publish.
    return hashlib.md5(content, usedforsecurity=False)


def _open(path: Path) -> io.BufferedIOBase:
    """Open the decompressed stream of a plain, `.gz` or `.xz` file."""
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    return path.open("rb")


def located(source: Source, root: str | Path | None, *, verify: bool = True) -> dict[str, File]:
    """Locate the files of a data set in one folder; of several, the one that has most of them.

    Args:
        source: The data set.
        root: Folder below which to search. Default: what `ARCHGRAPH_DATA` names.
        verify: Whether to compare the files with the published ones.

    Raises:
        DataError: The folder or a file is missing.
    """
    root = _root(source, root)
    best: tuple[Path, dict[str, File]] = (root / source.folders[0], {})
    for folder in (*(root / name for name in source.folders), root):
        files = {
            name: File(path, published if verify else None)
            for name, published in source.files.items()
            if (path := _stored(folder / name, published)) is not None
        }
        if len(files) > len(best[1]):
            best = folder, files
    folder, files = best
    missing = [name for name in source.files if name not in files]
    if missing:
        archives = all(source.files[name].archive for name in missing)
        origin = f"; they are published at {source.published}" if source.published else ""
        raise DataError(
            "data file missing",
            where=str(folder),
            found=f"{len(files)} of {len(source.files)} files of {source.name}",
            expected=", ".join(missing) + ("" if archives else " (plain, .gz or .xz)"),
            hint=f"put the original files there; nothing is downloaded{origin} (searched below "
            f"{root})",
        )
    return files


def lacking(source: Source, root: str | Path | None) -> str | None:
    """Say which files of a data set to fetch; None if all are below the root folder.

    Example:
        >>> from archgraph.data.source import source
        >>> lacking(source("cinic10"), "/")
        'CINIC-10.tar.gz into cinic-10/, published at https://datashare.ed.ac.uk/handle/10283/3192'
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
    chosen = root if root is not None else os.environ.get(ROOT_VARIABLE)
    expected = "the folder that holds " + " or ".join(f"{f}/" for f in source.folders)
    if chosen is None:
        raise DataError(
            "the data folder is not set",
            where=source.name,
            expected=expected,
            hint=f"set data.root or the environment variable {ROOT_VARIABLE}; "
            "`digits` needs no files",
        )
    folder = Path(chosen).expanduser()
    if not folder.is_dir():
        raise DataError(
            "data folder missing",
            where=source.name,
            found=f"no folder {folder}",
            expected=expected,
            hint=f"correct data.root or {ROOT_VARIABLE}",
        )
    return folder


def _stored(path: Path, published: Published) -> Path | None:
    """Return the file as stored: plain, `.gz` or `.xz`; as published where that is compared."""
    endings = ("",) if published.archive else (".gz",) if published.gz else ("", ".gz", ".xz")
    candidates = (path.with_name(path.name + ending) for ending in endings)
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def decode_text(content: bytes, where: str, hint: str = "fetch the file again") -> str:
    """Decode UTF-8 text, without the byte-order mark that some programs write first."""
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        problem = f"byte 0x{content[error.start]:02x} at position {error.start}"
        raise DataError("is not UTF-8 text", where=where, found=problem, hint=hint) from error
