"""The exceptions that archgraph raises: message, location, value found, expected value, hint."""

from __future__ import annotations

import errno
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import TypedDict

# Folders with code that the user did not write: archgraph, installed packages, Python.
_FOLDERS = str(Path(__file__).parent), f"{sys.prefix}/bin", sysconfig.get_paths()["stdlib"]
_INSTALLED = (*(f"{folder}/" for folder in _FOLDERS), "<")


class ErrorFacts(TypedDict, total=False):
    """Optional keyword arguments of :class:`ArchGraphError` that describe the error."""

    found: object
    expected: object
    hint: str | None


class ArchGraphError(Exception):
    """Base class of all errors that archgraph raises deliberately.

    Each argument is also an attribute, so that a caller can add context (for example, which client
    failed) without parsing the message.

    Args:
        message: The mistake, as a short fact.
        where: Location of the mistake: a path, `file:line`, a node, a parameter or a client.
        found: The actual value.
        expected: The expected value.
        hint: How to fix the mistake.

    Example:
        >>> raise ArchGraphError("wrong rank", where="conv1", found=3, expected=4, hint="add a dim")
        Traceback (most recent call last):
        archgraph.errors.ArchGraphError: conv1: wrong rank; found 3; expected 4; add a dim
    """

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        found: object = None,
        expected: object = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.found = found
        self.expected = expected
        self.hint = hint

    @property
    def facts(self) -> ErrorFacts:
        """Dict with the keys ``found``, ``expected`` and ``hint``, to pass to a new error.

        >>> ArchGraphError("wrong rank", where="conv1", found=3).facts
        {'found': 3, 'expected': None, 'hint': None}
        """
        return {"found": self.found, "expected": self.expected, "hint": self.hint}

    def __str__(self) -> str:
        """Render as `where: message; found …; expected …; hint`, without parts that are None."""
        parts = [self.message if self.where is None else f"{self.where}: {self.message}"]
        if self.found is not None:
            parts.append(f"found {self.found}")
        if self.expected is not None:
            parts.append(f"expected {self.expected}")
        if self.hint is not None:
            parts.append(self.hint)
        return "; ".join(parts)

    def within(
        self, prefix: str, *, kind: type[ArchGraphError] | None = None, hint: str | None = None
    ) -> ArchGraphError:
        """Return a copy of this error with a prefix before its location.

        Args:
            prefix: The prefix, for example the name of a client or a key of a file.
            kind: Class of the new error. Default: the class of this error.
            hint: How to fix the mistake. Default: the hint of this error.

        Example:
            >>> str(RewriteError("cannot be widened", where="fc").within("tier half"))
            'tier half: fc: cannot be widened'
        """
        where = ": ".join(filter(None, (prefix, self.where)))
        facts: ErrorFacts = {**self.facts, "hint": hint or self.hint}
        return (kind or type(self))(self.message, where=where, **facts)

    # BaseException pickles `args` and `__dict__`. `args` only contains the message, which must
    # therefore be the only required argument of a subclass.


class GraphError(ArchGraphError):
    """A graph is invalid, or a state, an input or a file does not match the graph."""


class TraceError(ArchGraphError):
    """A module cannot be captured as a graph."""


class Inexpressible(TraceError):
    """A module's ``forward`` contains an operation that a graph cannot represent.

    Examples are an operator outside ATen, and a branch or a size that depends on the values of a
    tensor. Compute the same result with other operations, if possible.
    """


class TraceWarning(UserWarning):
    """The results, gradients or training steps of a captured graph differ from the model's."""


class SpecError(ArchGraphError):
    """A model, family or experiment file cannot be read, or its content is invalid."""


class AxisError(ArchGraphError):
    """An axis does not exist, or its size cannot be changed."""


class RewriteError(ArchGraphError):
    """A rewrite cannot be applied to a graph, or its result would be wrong.

    Attributes:
        tied: One number in the model's configuration can set the size of several axes. If only one
            of them was cut, these are the names of the others. Empty for other errors.
    """

    tied: frozenset[str] = frozenset()


class RejectedUpdate(ArchGraphError):
    """A client's update was rejected; no part of the update was merged."""


class DataError(ArchGraphError):
    """A data file is missing, damaged or in the wrong format, or a partition is impossible."""


class RunError(ArchGraphError):
    """A run cannot start, continue or be recorded."""


_OS_WORDS = {
    errno.ENOENT: "no such file or folder",
    errno.ENOTDIR: "a file instead of a folder",
    errno.EISDIR: "a folder",
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
    errno.EROFS: "a read-only disk",
    errno.ENOSPC: "a full disk",
    errno.ENAMETOOLONG: "a name that is too long",
    errno.ELOOP: "a loop of symbolic links",
}


def os_reason(error: Exception) -> str:
    """Return the reason why a file cannot be read or written, as text for an error.

    >>> os_reason(FileNotFoundError(errno.ENOENT, "No such file or directory"))
    'no such file or folder'
    """
    code = getattr(error, "errno", None)
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return _OS_WORDS.get(code, text) if code is not None else text


def is_installed(file: str) -> bool:
    """Return whether a source file belongs to archgraph, an installed package or Python.

    >>> is_installed("mine.py"), is_installed(__file__)
    (False, True)
    """
    return file.startswith(_INSTALLED) or "-packages/" in file


def raised_in(error: BaseException) -> str:
    """Return the last line of the user's code in an error's traceback; empty if there is none.

    >>> raised_in(ValueError("never raised"))
    ''
    """
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if not is_installed(frame.filename)]
    return f"{users[-1].filename}:{users[-1].lineno} in {users[-1].name}" if users else ""
