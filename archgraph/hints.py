"""Did you mean …? The valid names that are most like an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

# Names that an error lists; of more it says how many there are.
LISTED = 20


def similar(name: str, names: Iterable[str], *, cutoff: float = 0.6, count: int = 1) -> list[str]:
    """The most similar valid names, best first.

    Args:
        name: What was written.
        names: The valid names.
        cutoff: How similar a name has to be, from 0 (anything) to 1 (equal).
        count: At most so many.

    >>> similar("kernal", ["kernel", "stride"])
    ['kernel']
    """
    return difflib.get_close_matches(name, list(names), n=count, cutoff=cutoff)


def nearest(name: str, names: Iterable[str], *, cutoff: float = 0.6, count: int = 1) -> str | None:
    """The hint of an error: the most similar valid names, or None where none is similar enough.

    >>> nearest("kernal", ["kernel", "stride"]), nearest("x", ["kernel"])
    ("did you mean 'kernel'?", None)
    >>> nearest("conv", ["conv1", "conv2"], count=3)
    "did you mean 'conv2' or 'conv1'?"
    """
    found = [repr(near) for near in similar(name, names, cutoff=cutoff, count=count)]
    several = ", ".join(found[:-1]) + " or " if len(found) > 1 else ""
    return f"did you mean {several}{found[-1]}?" if found else None


def unknown(
    name: str, names: Iterable[str], *, cutoff: float = 0.6, count: int = 1
) -> dict[str, Any]:
    """The facts of an error about an unknown name: what was found, what there is, the nearest.

    >>> unknown("kernal", ["kernel", "stride"])["expected"]
    'one of kernel, stride'
    >>> unknown("x", map(str, range(99)))["expected"][-20:]
    '18, 19 and 79 others'
    >>> unknown("x", [])
    {'found': "'x'", 'expected': None, 'hint': 'there are none'}
    """
    known = list(dict.fromkeys(names))
    more = len(known) - LISTED
    text = ", ".join(known[:LISTED]) + (f" and {more} others" if more > 0 else "")
    return {
        "found": repr(name),
        "expected": f"one of {text}" if known else None,
        "hint": nearest(name, known, cutoff=cutoff, count=count) if known else "there are none",
    }
