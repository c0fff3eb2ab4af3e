"""Clients side by side: a column for each kind of client, a bar for each block that it has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from archgraph.display import colours
from archgraph.display.cover import percent
from archgraph.display.markup import FONT, text

# Points of a bar of all weights.
WHOLE = 76


def multiples(
    name: str,
    legend: Sequence[Sequence[str]],
    blocks: Iterable[tuple[str, str, Sequence[float]]],
) -> str:
    """Write a table as DOT text: clients in columns, blocks of the global model in rows.

    Args:
        name: Of the family.
        legend: A row of titles, then a row for each kind of client: name, number, sizes.
        blocks: Section, block, and the share of its weights that each kind of client has.

    Example:
        >>> rows = [("clients", "number", "parameters"), ("small", "3", "2k")]
        >>> "small" in multiples("family", rows, [("stem", "conv", (0.5,))])
        True
    """
    kinds = legend[1:]
    rows = [["", *(text(kind[0], size=11, bold=True) for kind in kinds)]]
    for column, title in list(enumerate(legend[0]))[1:]:
        words = (text(kind[column], size=9, colour=colours.QUIET) for kind in kinds)
        rows.append([text(title, size=9, colour=colours.QUIET), *words])
    before = ""
    for section, block, shares in blocks:
        if section != before:
            rows.append([text(section, size=10, bold=True), *("" for _ in kinds)])
        before = section
        bars = [_bar(share) for share in shares]
        rows.append([text(block, size=9), *bars, *("" for _ in kinds[len(bars) :])])
    body = "".join(f"<TR>{''.join(_cell(c, i) for i, c in enumerate(row))}</TR>" for row in rows)
    many = len(kinds) + 1
    title = text(f"{name}: its clients", size=16, bold=True)
    note = text("a bar: share of the block's weights that a client has; –: no such block", size=9)
    top = f'<TR><TD COLSPAN="{many}">{title}</TD></TR><TR><TD COLSPAN="{many}">{note}</TD></TR>'
    table = f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="6" CELLPADDING="0">{top}{body}</TABLE>'
    return (
        f'digraph clients {{\n\tgraph [bgcolor="{colours.PAPER}" fontname="{FONT}"]\n'
        f'\tnode [shape=plain fontname="{FONT}"]\n\ttable [label=<{table}>]\n}}\n'
    )


def _cell(content: str, column: int) -> str:
    return f'<TD ALIGN="{"CENTER" if column else "LEFT"}">{content}</TD>'


def _bar(share: float) -> str:
    """Draw a centred bar, as wide as the share, with the share in it or beside it."""
    if not share:
        return text("–", size=9, colour=colours.QUIET)
    full = max(round(share * WHOLE), 3)
    side = (WHOLE - full) // 2
    tone = colours.blend(colours.SCALE, share)
    cells = [(side, colours.SECTION), (full, tone), (WHOLE - full - side, colours.SECTION)]
    row = "".join(
        f'<TD BGCOLOR="{colour}" WIDTH="{points}" HEIGHT="9" FIXEDSIZE="TRUE"></TD>'
        for points, colour in cells
        if points
    )
    inner = (
        f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="0"><TR>{row}</TR></TABLE>'
    )
    lines = f"<TR><TD>{inner}</TD></TR><TR><TD>{text(percent(share), size=8)}</TD></TR>"
    return f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="0">{lines}</TABLE>'
