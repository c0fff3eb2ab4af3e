"""The heading of a picture: title, legend of marks and colours, and a table of clients."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from archgraph.display import colours
from archgraph.display.cover import Cover
from archgraph.display.markup import plain_table, text
from archgraph.display.scene import Scene
from archgraph.ops.table import FAMILIES
from archgraph.tables import count

SIDES = (
    "thin border: no weights · a weight has two sides: at half width, a client has a quarter of a "
    "middle layer's weights and half of the stem's"
)
# Explanations per line of the legend; fewer in a narrow picture.
MARKS = 2


def heading(
    picture: Scene,
    title: str,
    total: int,
    cover: Cover | None,
    notes: Sequence[Sequence[str]],
    *,
    legend: bool = True,
    letters: int | None = None,
) -> str:
    """Return the heading of a picture in Graphviz's HTML.

    Args:
        picture: Boxes and arrows. The legend only explains marks that they have.
        title: First line. If empty, there is no such line.
        total: Number of parameters.
        cover: Coverage of the parts, if the picture shows it.
        notes: Rows of a table; the first row has the column titles.
        legend: Whether to explain marks and colours.
        letters: Maximum number of characters in a line, at 10 points. A longer title has a smaller
            font.

    Returns:
        A label for Graphviz. It is empty if there is nothing to show.
    """
    size = 16 if letters is None else max(10, min(16, 10 * letters // max(1, len(title))))
    lines = [text(title, size=size, bold=True)] if title else []
    most = 50 * MARKS if letters is None else letters + 11  # the font of the legend is smaller
    across = max(1, most // 36)  # explanations per line
    if legend:
        marks = [f"{count(total)} parameters (small: of a part)", *_marks(picture)]
        joined = (" · ".join(marks[i : i + across]) for i in range(0, len(marks), across))
        lines += [_quiet(line) for words in joined for line in textwrap.wrap(words, most)]
    if notes:
        lines.append(_table(notes))
    if legend:
        lines += _colours(picture, cover, across, most)
    if not lines:
        return ""
    rows = "".join(f"<TR><TD>{line}</TD></TR>" for line in lines)
    return f'<<TABLE BORDER="0" CELLSPACING="2">{rows}</TABLE>>'


def _colours(picture: Scene, cover: Cover | None, across: int, most: int) -> Iterator[str]:
    """Yield the lines that explain colours: families of operators, or fractions of weights."""
    if cover is None:
        families = [name for name in FAMILIES if any(box.family == name for box in picture.boxes)]
        yield from _families(families, 2 * across + 1)
        return
    yield _scale()
    yield from (_quiet(line) for line in textwrap.wrap(SIDES, most))


def _marks(picture: Scene) -> Iterator[str]:
    """Yield explanations of the marks in a picture."""
    yield "arrows: shapes without the batch axis"
    if any(group.times > 1 for group in picture.clusters()):
        yield "×n: repeated n times, drawn once"
    if any(" | " in line.text for box in picture.boxes for line in box.lines):
        yield "a | b: branches"
    if any(b.training for b in picture.boxes) or any(k.training for k in picture.links):
        yield "dashed: training only"
    if any(link.mask for link in picture.links):
        yield "dotted: masks attention"


def _quiet(words: str) -> str:
    return text(words, size=9, colour=colours.QUIET)


def _families(names: Sequence[str], across: int) -> Iterator[str]:
    """Yield lines with families of operators and their colours."""
    # Use text, not cells: Graphviz makes a table inside a table as wide as the picture.
    swatches = [f"{text('■', size=14, colour=colours.FAMILIES[n])} {_quiet(n)}" for n in names]
    for i in range(0, len(swatches), across):
        yield "   ".join(swatches[i : i + across])


def _scale() -> str:
    """Return the colour scale for fractions of weights, with its caption."""
    cells = "".join(
        f'<TD BGCOLOR="{colours.blend(colours.SCALE, share / 100)}" WIDTH="22" HEIGHT="14">'
        f"{text(str(share), size=8)}</TD>"
        for share in range(0, 101, 20)
    )
    caption = _quiet("share of the weights, mean over all clients, %")
    return plain_table([f'<TD COLSPAN="6">{caption}</TD>', cells], padding=2)


def _table(notes: Sequence[Sequence[str]]) -> str:
    """Return a small table with right-aligned numbers."""
    rows = (
        "".join(
            f'<TD ALIGN="{"RIGHT" if column else "LEFT"}">'
            f"{text(cell, size=9, bold=number == 0)}</TD>"
            for column, cell in enumerate(row)
        )
        for number, row in enumerate(notes)
    )
    return plain_table(rows, spacing=8)
