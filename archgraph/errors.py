"""Every error of archgraph: where, what was found, what was expected, what to do."""

from __future__ import annotations

import errno
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import TypedDict

# Code that is not the user's: of archgraph, of installed packages, of Python.
_FOLDERS = str(Path(__file__).parent), f"{sys.prefix}/bin", sysconfig.get_paths()["stdlib"]
_INSTALLED = (*(f"{folder}/" for folder in _FOLDERS), "<")


class ErrorFacts(TypedDict, total=False):
    """Facts of an error beside its message, as keywords of :class:`ArchGraphError`."""

    found: object
    expected: object
    hint: str | None


class ArchGraphError(Exception):
    """Base of all errors that archgraph raises on purpose.

    The parts stay accessible as attributes, so that a caller (the command line, a server that
    rejects one client) can add context without taking a sentence apart.

    Args:
        message: The mistake, as a short fact.
        where: A path, `file:line`, a node, a parameter, a client.
        found: The actual value.
        expected: The expected value.
        hint: How to fix it.

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
        """What was found, what was expected and what to do: for an error with another `where`.

        >>> ArchGraphError("wrong rank", where="conv1", found=3).facts
        {'found': 3, 'expected': None, 'hint': None}
        """
        return {"found": self.found, "expected": self.expected, "hint": self.hint}

    def __str__(self) -> str:
        """Render as `where: message; found …; expected …; hint`, leaving out what is unknown."""
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
        """Return the same error with a place put in front of its own.

        Args:
            prefix: A client, a tier, a part of a file.
            kind: Class of the new error. Default: the class of this one.
            hint: What to do about it. Default: the hint of this error.

        Example:
            >>> str(RewriteError("cannot be widened", where="fc").within("tier half"))
            'tier half: fc: cannot be widened'
        """
        where = ": ".join(filter(None, (prefix, self.where)))
        facts: ErrorFacts = {**self.facts, "hint": hint or self.hint}
        return (kind or type(self))(self.message, where=where, **facts)

    # Errors cross process borders with all parts: BaseException pickles `args` and `__dict__`, and
    # `args` is the message alone, which is all that a subclass may require.


class GraphError(ArchGraphError):
    """A graph breaks a law: order, names, shapes, arguments."""


class TraceError(ArchGraphError):
    """A module cannot be captured, or its capture cannot be expressed."""


class Inexpressible(TraceError):
    """A graph has no form for what forward does here; another way to compute it may have one.

    For example a branch on the values of a tensor, a size that depends on them, or an operator
    outside of ATen.
    """


class TraceWarning(UserWarning):
    """A captured graph differs from its model in results, gradients or training steps."""


class SpecError(ArchGraphError):
    """A YAML file says something that cannot be understood or built."""


class AxisError(ArchGraphError):
    """Layouts do not unify, or a named axis does not exist."""


class RewriteError(ArchGraphError):
    """A rewrite cannot be applied, or would break its promise.

    Attributes:
        tied: Axes that the class of a model would cut as well, by name.
    """

    tied: frozenset[str] = frozenset()


class RejectedUpdate(ArchGraphError):
    """A client's update is not fit for merging; nothing of it was added."""


class DataError(ArchGraphError):
    """A data file is missing, damaged or not what it claims, or a partition is impossible."""


class RunError(ArchGraphError):
    """A run cannot start, continue or be recorded."""


_OS_WORDS = {
    errno.ENOENT: "nothing of this name",
    errno.ENOTDIR: "a file where a folder has to be",
    errno.EISDIR: "a folder",
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
    errno.EROFS: "a disk that cannot be written",
    errno.ENOSPC: "a full disk",
    errno.ENAMETOOLONG: "a name that is too long",
    errno.ELOOP: "links that lead in a circle",
}


def os_reason(error: Exception) -> str:
    """Return what stands in the way of reading or writing a file, to go on after "found".

    >>> os_reason(FileNotFoundError(errno.ENOENT, "No such file or directory"))
    'nothing of this name'
    """
    code = getattr(error, "errno", None)
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return _OS_WORDS.get(code, text) if code is not None else text


def is_installed(file: str) -> bool:
    """Return whether a source file is part of archgraph, an installed package or Python.

    >>> is_installed("mine.py"), is_installed(__file__)
    (False, True)
    """
    return file.startswith(_INSTALLED) or "-packages/" in file


def raised_in(error: BaseException) -> str:
    """Return the innermost line of the user's code that led to an error; empty if there is none.

    >>> raised_in(ValueError("never raised"))
    ''
    """
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if not is_installed(frame.filename)]
    return f"{users[-1].filename}:{users[-1].lineno} in {users[-1].name}" if users else ""
