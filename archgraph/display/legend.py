"""Heading of a picture: its title, what its marks mean, and a table of clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archgraph.display import colours
from archgraph.display.cover import Cover
from archgraph.display.markup import bar, text
from archgraph.display.scene import Scene
from archgraph.tables import count


def heading(
    picture: Scene,
    title: str,
    total: int,
    cover: Mapping[str, float] | None,
    notes: Sequence[Sequence[str]],
) -> str:
    """Write title, size and legend as Graphviz's HTML.

    Args:
        picture: What is drawn: only marks that occur are explained.
        title: First line.
        total: Number of parameters.
        cover: How clients feed the parts, if that is shown.
        notes: Rows of a table, the first one its titles.
    """
    lines = [text(title or "architecture", size=16, bold=True)]
    marks = [
        f"{count(total)} parameters (grey: of a part)",
        "arrows: shapes without the batch axis",
    ]
    if any(group.times > 1 for group in picture.clusters()):
        marks.append("×n: repeated n times, drawn once")
    if any(b.training for b in picture.boxes) or any(k.training for k in picture.links):
        marks.append("dashed: training only")
    if any(link.mask for link in picture.links):
        marks.append("dotted: masks attention")
    lines += [_quiet(" · ".join(marks[i : i + 2])) for i in range(0, len(marks), 2)]
    if notes:
        lines.append(_table(notes))
    if cover is not None:
        lines.append(_scale())
    if isinstance(cover, Cover):
        lines.append(_row([bar(0.4), _quiet("share of its weights that such a client has: width")]))
    rows = "".join(f"<TR><TD>{line}</TD></TR>" for line in lines)
    return f'<<TABLE BORDER="0" CELLSPACING="2">{rows}</TABLE>>'


def _quiet(words: str) -> str:
    return text(words, size=9, colour=colours.QUIET)


def _row(cells: Sequence[str]) -> str:
    inner = "".join(f"<TD>{cell}</TD>" for cell in cells)
    table = '<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="2">'
    return f"{table}<TR>{inner}</TR></TABLE>"


def _scale() -> str:
    """Return the colours of shares of the clients."""
    steps = [i / 10 for i in range(11)]
    cells = "".join(
        f'<TD BGCOLOR="{colours.blend(colours.SCALE, s)}" WIDTH="22" HEIGHT="14">'
        f"{text(f'{100 * s:.0f}', size=8)}</TD>"
        for s in steps
    )
    table = '<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="2">'
    caption = _quiet("share of clients that have it, %")
    return f"{table}<TR><TD>{caption} </TD>{cells}</TR></TABLE>"


def _table(notes: Sequence[Sequence[str]]) -> str:
    """Write a small table; numbers are right-aligned."""
    rows = []
    for number, row in enumerate(notes):
        cells = "".join(
            f'<TD ALIGN="{"RIGHT" if column else "LEFT"}">'
            f"{text(cell, size=9, bold=number == 0)}</TD>"
            for column, cell in enumerate(row)
        )
        rows.append(f"<TR>{cells}</TR>")
    table = '<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="8" CELLPADDING="0">'
    return f"{table}{''.join(rows)}</TABLE>"
