"""Choose the detail of a picture that is legible at a given width on paper."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from archgraph.display.markup import LETTER
from archgraph.errors import RunError

_Level = TypeVar("_Level")
# Number of points in each unit of length.
UNITS = {"in": 72.0, "cm": 72 / 2.54, "mm": 7.2 / 2.54, "pt": 1.0}
# In points: maximum height, smallest font size of a picture, smallest legible font size.
TALL, SMALLEST, READABLE = 9 * 72.0, 8.0, 7.0


# Number of columns, and maximum number of characters in a line.
SHAPES = ((1, 99), (1, 20), (1, 14), (2, 99), (2, 20), (3, 20))
# If the page is smaller than this fraction of a picture's area, more columns are not tried.
LARGE = 0.45


def width_in_points(width: str) -> float:
    """Convert a width with a unit to points.

    Raises:
        RunError: If the width is not a number and a unit.

    >>> width_in_points("3.3in"), round(width_in_points("84 mm"), 1)
    (237.6, 238.1)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(in|cm|mm|pt)\s*", width)
    if match is None or not float(match[1]):
        raise RunError(
            "not a width", found=width, expected="a number and in, cm, mm or pt, as in 3.3in"
        )
    return float(match[1]) * UNITS[match[2]]


def letters_across(width: str, columns: int = 1) -> int:
    """Return how many characters fit in a line of a box, at a width divided into columns.

    >>> letters_across("3.3in"), letters_across("7in", 3)
    (32, 19)
    """
    # Characters of 10 points before scaling, minus 11 for frames and margins.
    return max(12, int(width_in_points(width) * SMALLEST / READABLE / columns / (10 * LETTER)) - 11)


def fitting_page(
    width: str,
    levels: Iterable[_Level],
    drawn: Callable[[_Level, int, int], str],
    measured: Callable[[str], tuple[float, float]],
) -> str:
    """Return the DOT text of the most detailed picture that is legible at a width.

    1. Scale a picture down to the width and to the height of a page. Pictures are not enlarged.
    2. The picture fits if its smallest font size is then at least 7 points.
    3. If the picture is much too large, continue with the next level of detail. Other numbers of
       columns are not tried.

    Args:
        width: Width in print, such as ``3.3in``, ``84mm`` or ``240pt``.
        levels: Levels of detail, the most detailed first.
        drawn: Returns the DOT text for a level of detail, a number of columns, and a maximum number
            of characters in a line.
        measured: Returns width and height of a picture in points, from its DOT text.

    Raises:
        RunError: If no picture fits. The hint contains a width that is sufficient.
    """
    wide, best, least = width_in_points(width), 0.0, math.inf
    for level in levels:
        for columns, most in SHAPES:
            text = drawn(level, columns, min(most, letters_across(width, columns)))
            across, down = measured(text)
            scale = min(1.0, wide / across, TALL / down)  # 1
            best = max(best, SMALLEST * scale)
            if SMALLEST * scale >= READABLE:  # 2
                head, brace, rest = text.partition("{\n")
                size = f"{across * scale / 72:.3f},{down * scale / 72:.3f}"
                return f'{head}{brace}\tgraph [size="{size}"]\n{rest}'
            if down * READABLE <= TALL * SMALLEST:
                least = min(least, across * READABLE / SMALLEST)
            if wide * TALL < LARGE * across * down:  # 3
                break
    raise RunError(
        "the picture does not fit a page",
        found=f"a font size of {best:.1f} points at {width}",
        expected=f"{READABLE:g} or more",
        hint=f"{math.ceil(least / 7.2) / 10}in is wide enough"
        if math.isfinite(least)
        else "draw a part of the model, or omit the legend",
    )
