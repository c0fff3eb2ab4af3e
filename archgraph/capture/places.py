"""Places in the user's code: which lines of a stack are the user's own, and which ran ungraded."""

from __future__ import annotations

import functools
import re
import sysconfig
import traceback
from pathlib import Path

import torch

_TORCH = str(Path(torch.__file__).parent) + "/"
_PYTHON = sysconfig.get_paths()["stdlib"] + "/"
_CAPTURE = str(Path(__file__).parent) + "/"

NO_GRAD = traceback.FrameSummary("<no_grad>", 0, "no_grad", lookup_line=False)


@functools.lru_cache(maxsize=1 << 12)
def users_line(stack: str | None) -> tuple[str, int] | None:
    """Innermost line of the user's own code in a printed stack trace: file and line."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', stack or "")
    own = [(file, int(line)) for file, line in frames if is_users(file)]
    return own[-1] if own else None


def is_users(file: str) -> bool:
    """Whether a source file is part of neither torch, Python nor the capture itself."""
    if file.startswith((_TORCH, _CAPTURE, "<")):
        return False
    return not file.startswith(_PYTHON) or "site-packages" in file


def under_no_grad(stack: str | None) -> bool:
    """Whether a printed stack trace was taken while gradients were off."""
    return NO_GRAD.filename in (stack or "")
