"""Writing files so that a reader sees the old content or the new, never a part."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from archgraph.errors import RunError, os_reason


def write(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write a file in one step, with the folders it needs, and return its path.

    File and folder are brought to the disk: what was written outlives a crash. A crash in between
    may leave a file `.draft-*` beside it.

    Raises:
        RunError: If the place cannot be written; what was there before stays.

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
            # Before the file takes its name: else a crash may leave the name without the content.
            os.fsync(stream.fileno())
        # mkstemp makes private files; give the result the permissions of any new file.
        mask = os.umask(0)
        os.umask(mask)
        Path(draft).chmod(0o666 & ~mask)
        Path(draft).replace(target)
        sync(target.parent)
    except OSError as error:
        if draft is not None:
            with contextlib.suppress(OSError):  # the first error says more
                Path(draft).unlink()
        raise RunError(
            "cannot write the file", where=str(target), found=os_reason(error)
        ) from error
    return target


def sync(path: Path) -> None:
    """Bring a file, or the list of a folder's files, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
