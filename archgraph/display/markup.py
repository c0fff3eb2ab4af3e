"""Text, lines and tables in the HTML of Graphviz labels."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from archgraph.display import colours

FONT = "Helvetica,Arial,sans-serif"
# Mean width of a character of DejaVu Sans in labels, relative to the font size: 0.60, bold 0.66.
LETTER = 0.62


def text(words: str, *, size: int = 10, colour: str = colours.INK, bold: bool = False) -> str:
    """Return the words in a size and colour.

    >>> text("a < b", size=8, colour="#000000")
    '<FONT POINT-SIZE="8" COLOR="#000000">a &lt; b</FONT>'
    """
    if not words:
        return ""  # Graphviz rejects a font without text
    inner = html.escape(words, quote=False)
    if bold:
        inner = f"<B>{inner}</B>"
    return f'<FONT POINT-SIZE="{size}" COLOR="{colour}">{inner}</FONT>'


def stacked_lines(lines: Sequence[str]) -> str:
    """Return lines below one another, left-aligned."""
    rows = "".join(f'<TR><TD ALIGN="LEFT">{line}</TD></TR>' for line in lines)
    return f'<TABLE BORDER="0" CELLSPACING="0" CELLPADDING="0">{rows}</TABLE>'


def plain_table(rows: Iterable[str], *, spacing: int = 0, padding: int = 0) -> str:
    """Return a table without borders. A row is a list of the texts of its cells."""
    inner = "".join(f"<TR>{row}</TR>" for row in rows)
    gaps = f'CELLSPACING="{spacing}" CELLPADDING="{padding}"'
    return f'<TABLE BORDER="0" CELLBORDER="0" {gaps}>{inner}</TABLE>'


def width(lines: Sequence[str]) -> float:
    """Estimate the width of stacked lines, in inches.

    >>> width([text("encoder", size=10)]) < width([text("encoder.layers", size=10)])
    True
    """
    # Estimated from the HTML that `text` writes, since Graphviz has not run yet.
    widest = 0.0
    for line in lines:
        texts = re.findall(r'POINT-SIZE="(\d+)"[^>]*>(?:<B>)?([^<]*)', line)
        widest = max(widest, sum(int(size) * LETTER * len(html.unescape(w)) for size, w in texts))
    return (widest + 8) / 72  # points; 8 for the margins
