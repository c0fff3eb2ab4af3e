"""Pictures for print: at a width, in letters that can be read, no taller than a page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from archgraph.display.markup import LETTER
from archgraph.errors import RunError

# Points of a unit of length.
UNITS = {"in": 72.0, "cm": 72 / 2.54, "mm": 7.2 / 2.54, "pt": 1.0}
# Height of a page's text in points, the smallest letters of a picture, and what they may shrink to.
TALL, SMALLEST, READABLE = 9 * 72.0, 8.0, 6.0


def width_in_points(width: str) -> float:
    """Return a width in points.

    Raises:
        RunError: If it is not a number and a unit.

    >>> width_in_points("3.3in"), round(width_in_points("84 mm"), 1)
    (237.6, 238.1)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(in|cm|mm|pt)\s*", width)
    if match is None or not float(match[1]):
        raise RunError(
            "not a width", found=width, expected="a number and in, cm, mm or pt, as in 3.3in"
        )
    return float(match[1]) * UNITS[match[2]]


def letters_across(width: str) -> int:
    """Return how many letters a line of a box may have at a width of print.

    >>> letters_across("3.3in")
    40
    """
    # Of 10 points before it is scaled, with room for frames and margins.
    return max(12, int(width_in_points(width) * SMALLEST / READABLE / (10 * LETTER)) - 11)


def fitting_page(
    width: str, candidates: Iterable[str], measured: Callable[[str], tuple[float, float]]
) -> str:
    """Return the first of several pictures that fits a page at a width, scaled to it.

    1. A picture is scaled down to the width, and to the height of a page.
    2. It fits if its smallest letters have 6 points or more then; it is never scaled up.

    Args:
        width: As ``3.3in``, ``84mm`` or ``240pt``.
        candidates: DOT texts, those with most detail first.
        measured: Returns width and height of a DOT text in points.

    Raises:
        RunError: If none fits; it says how small the letters would be at best.
    """
    wide, best = width_in_points(width), 0.0
    for text in candidates:
        across, down = measured(text)
        scale = min(1.0, wide / across, TALL / down)
        best = max(best, SMALLEST * scale)
        if SMALLEST * scale >= READABLE:
            head, brace, rest = text.partition("{\n")
            size = f"{across * scale / 72:.3f},{down * scale / 72:.3f}"
            return f'{head}{brace}\tgraph [size="{size}"]\n{rest}'
    raise RunError(
        "the picture does not fit a page",
        found=f"letters of {best:.1f} points at {width} at best",
        expected=f"{READABLE:g} or more",
        hint="give it more width, or leave out the legend",
    )
