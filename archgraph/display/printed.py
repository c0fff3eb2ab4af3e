"""Pictures for print: at a width, with legible letters, at most as tall as a page."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from archgraph.display.markup import LETTER
from archgraph.errors import RunError

_Level = TypeVar("_Level")
# Points of a unit of length.
UNITS = {"in": 72.0, "cm": 72 / 2.54, "mm": 7.2 / 2.54, "pt": 1.0}
# In points: height of a page's text, smallest letters of a picture, smallest legible letters.
TALL, SMALLEST, READABLE = 9 * 72.0, 8.0, 7.0


# Columns, and most letters in a line.
SHAPES = ((1, 99), (1, 20), (1, 14), (2, 99), (2, 20), (3, 20))
# If a page has less than this share of a picture's area, no arrangement makes it fit.
LARGE = 0.45


def width_in_points(width: str) -> float:
    """Return a width in points.

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
    """Return the most letters in a line of a box, for a width of print divided into columns.

    >>> letters_across("3.3in"), letters_across("7in", 3)
    (32, 19)
    """
    # Letters of 10 points before scaling, with room for frames and margins.
    return max(12, int(width_in_points(width) * SMALLEST / READABLE / columns / (10 * LETTER)) - 11)


def fitting_page(
    width: str,
    levels: Iterable[_Level],
    drawn: Callable[[_Level, int, int], str],
    measured: Callable[[str], tuple[float, float]],
) -> str:
    """Return the first of several pictures that fits a page at a width, scaled to it.

    1. A picture is scaled down to the width, and to the height of a page.
    2. It fits if its smallest letters then have 7 points or more; it is never scaled up.
    3. If a picture is much larger than a page, other numbers of columns are not tried.

    Args:
        width: Width in print, such as ``3.3in``, ``84mm`` or ``240pt``.
        levels: Levels of detail, the most detailed first.
        drawn: Returns the DOT text of a level, given the columns and the most letters in a line.
        measured: Returns width and height of a DOT text in points.

    Raises:
        RunError: If no picture fits; the hint is a width that is enough.
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
        found=f"letters of {best:.1f} points at {width} at best",
        expected=f"{READABLE:g} or more",
        hint=f"{math.ceil(least / 7.2) / 10}in is wide enough"
        if math.isfinite(least)
        else "draw a part of the model, or leave out the legend",
    )
