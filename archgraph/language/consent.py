"""Consent to run the Python code that a file names.

Only the caller who loads a file can give consent; the file itself cannot. A folder cannot be marked
as trusted, because anyone who can write to it could then run code.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar

from archgraph.errors import SpecError
from archgraph.plain import Json

_PACKAGE = "archgraph"
PYTHON = "python:"
"""Prefix of names of code in keys other than ``python``."""
# A context variable, so that consent ends with its block, also in threads and tasks.
_GIVEN: ContextVar[bool] = ContextVar("python", default=False)


@contextlib.contextmanager
def allowed(python: bool = True) -> Iterator[None]:
    """Allow importing and calling the Python code that files name, inside this context.

    Args:
        python: If False, this context changes nothing. Code that an outer context allows stays
            allowed.

    Example:
        >>> with allowed():
        ...     needs_consent("mine:Net", object)
        False
        >>> needs_consent("mine:Net", object)
        True
    """
    token = _GIVEN.set(python or _GIVEN.get())
    try:
        yield
    finally:
        _GIVEN.reset(token)


def consent_given() -> bool:
    """Return whether consent was given. Worker processes receive this value."""
    return _GIVEN.get()


def needs_consent(name: str, base: type) -> bool:
    """Return whether running a named object requires consent that was not given.

    Classes of archgraph do not need consent.

    Args:
        name: ``package.module:path``.
        base: Subclasses of this class that are part of archgraph do not need consent.

    Example:
        >>> import torch
        >>> needs_consent("archgraph.demo.network:Network", torch.nn.Module)
        False
        >>> needs_consent("archgraph.demo.network:torch.os.system", torch.nn.Module)
        True
    """
    module, _, path = name.partition(":")
    if _GIVEN.get():
        return False
    if module.partition(".")[0] != _PACKAGE:
        return True
    try:
        value: object = getattr(importlib.import_module(module), path, None)
    except ImportError:
        return True
    # Modules have more names than those they define: `archgraph.demo.network:torch` is not ours.
    if not isinstance(value, type) or value.__module__.partition(".")[0] != _PACKAGE:
        return True
    return not issubclass(value, base)


def consented(name: str, base: type, where: str) -> None:
    """Check that a named object may be imported and called.

    Raises:
        SpecError: If consent is required and missing.
    """
    if needs_consent(name, base):
        message = "names Python code, which is not run without your consent"
        raise SpecError(
            message,
            where=where,
            found=name,
            hint="if you trust it: --python at the command line, python=True in Python",
        )


def python_names(value: Json) -> Iterator[str]:
    """Yield the Python names in the content of a file, at any depth.

    A Python name is a value of the key ``python``, a key of a mapping below ``python``, or a text
    after ``python:``.

    >>> list(python_names({"python": "mine:Net", "args": {"config": {"python": "mine:Config"}}}))
    ['mine:Net', 'mine:Config']
    >>> list(python_names([{"objective": "python:mine:loss"}, {"python": {"mine:cut": True}}]))
    ['mine:loss', 'mine:cut']
    """
    if isinstance(value, Mapping):
        name = value.get("python")
        yield from [name] if isinstance(name, str) else name if isinstance(name, Mapping) else ()
        value = tuple(value.values())
    if isinstance(value, str) and value.startswith(PYTHON):
        yield value.removeprefix(PYTHON)
    if isinstance(value, tuple | list):
        for item in value:
            yield from python_names(item)
