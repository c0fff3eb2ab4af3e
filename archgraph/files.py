"""Atomic writing of files: a reader sees either the old content or the new."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from archgraph.errors import RunError, os_reason


def write(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write a file atomically, create missing folders, and return its path.

    The file and its folder are flushed to disk, so the content survives a crash. A crash during
    writing may leave a file `.draft-*` in the same folder.

    Raises:
        RunError: If the file cannot be written; an existing file is then unchanged.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write(f"{folder}/a/b.txt", "text").read_text()
        'text'
    """
    target = Path(path)
    data = content.encode() if isinstance(content, str) else content
    draft: str | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=target.parent, prefix=f".draft-{target.name}-")
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            # Before renaming: otherwise a crash may leave the name without the content.
            os.fsync(stream.fileno())
        # mkstemp creates private files; set the usual permissions of a new file.
        mask = os.umask(0)
        os.umask(mask)
        Path(draft).chmod(0o666 & ~mask)
        Path(draft).replace(target)
        sync(target.parent)
    except OSError as error:
        if draft is not None:
            with contextlib.suppress(OSError):  # the first error is more informative
                Path(draft).unlink()
        raise RunError(
            "cannot write the file", where=str(target), found=os_reason(error)
        ) from error
    return target


def sync(path: Path) -> None:
    """Flush a file, or a folder's directory entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
