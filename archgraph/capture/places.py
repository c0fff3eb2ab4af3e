"""Find locations in the user's code: lines of a stack, and definitions of functions."""

from __future__ import annotations

import functools
import re
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

import torch

_TORCH = str(Path(torch.__file__).parent) + "/"
_PYTHON = sysconfig.get_paths()["stdlib"] + "/"
# This package's own parts of a capture. Its modules that are captured count as the user's code.
_OURS = tuple(f"{Path(__file__).parents[1] / room}/" for room in ("capture", "ops"))

NO_GRAD = traceback.FrameSummary("<no_grad>", 0, "no_grad", lookup_line=False)


@functools.lru_cache(maxsize=1 << 12)
def users_line(stack: str | None) -> tuple[str, int] | None:
    """Return the innermost line of the user's code in a printed stack trace: file and line."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', stack or "")
    users = [(file, int(line)) for file, line in frames if is_users(file)]
    return users[-1] if users else None


def running() -> str:
    """Return the innermost line of the user's code that is running now."""
    stack = [f for f in traceback.extract_stack() if is_users(f.filename)]
    return f"{stack[-1].filename}:{stack[-1].lineno}" if stack else "forward"


def is_users(file: str) -> bool:
    """Return whether a source file is not part of torch, Python or the capture itself."""
    if file.startswith((_TORCH, *_OURS, "<")):
        return False
    return not file.startswith(_PYTHON) or "site-packages" in file


def is_own(kind: type) -> bool:
    """Return whether a class is the user's: not part of torch, Python or NumPy."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or "<unknown>"
    return is_users(file) and not kind.__module__.startswith("numpy")


def definition_of(function: Any) -> str:
    """Return the location of a function's definition, or its representation."""
    inner = getattr(function, "func", function)  # for a functools.partial
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(function)


def under_no_grad(stack: str | None) -> bool:
    """Return whether a printed stack trace was taken while gradients were off."""
    return NO_GRAD.filename in (stack or "")
