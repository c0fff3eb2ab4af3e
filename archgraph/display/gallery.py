"""All pictures of a family: the global graph with its weak points, and every client's graph."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from archgraph.analysis.structure import structure
from archgraph.display import colours
from archgraph.display.cover import Cover, coverage, percent
from archgraph.display.labels import count_parameters
from archgraph.display.markup import FONT, coloured_row, plain_table, text
from archgraph.display.picture import draw, write_picture
from archgraph.display.pieces import Detail
from archgraph.federation.family import Family, sizes
from archgraph.tables import plural

# Points of a bar of all weights.
WHOLE = 76


def draw_family(
    family: Family,
    folder: str | os.PathLike[str],
    *,
    detail: Detail = "block",
    fold: bool = True,
    form: str = "svg",
) -> tuple[Path, ...]:
    """Draw a family: the global model, all clients side by side, then each client.

    `global` shows how many clients feed each part and with how much of its weights; `clients` has
    a column for each kind of client and a bar for each block, as wide as its share of the weights.

    Args:
        family: Global graph and kinds of clients.
        folder: Where to write; made if missing.
        detail: As for :func:`archgraph.display.picture.draw`.
        fold: The same.
        form: `svg`, `png`, `pdf` or `dot`.

    Returns:
        Paths of the pictures: the global one and all clients, if there is a global model, then
        each client.

    Raises:
        RunError: If a file cannot be written, or the format is unknown.
    """
    target = Path(folder)
    drawn = functools.partial(draw, detail=detail, fold=fold)
    name = family.name or family.graph.name or "model"
    paths = []
    # Without a global model clients have models of their own only, and nothing to be fed.
    if family.graph.nodes:
        cover = coverage(family)
        paths += [target / f"global.{form}", target / f"clients.{form}"]
        legend = family_legend(family)
        title = f"{name}: {plural(sum(cover.counts), 'client')}"
        drawn(family.graph, paths[0], cover=cover, title=title, notes=legend)
        write_picture(multiples(name, legend, block_shares(family, cover)), paths[1])
    for member in family.clients:
        paths.append(target / f"{file_name(member.name)}.{form}")
        title = f"{name}: {member.name} ({plural(member.count, 'client')})"
        drawn(member.graph, paths[-1], title=title)
    return tuple(paths)


def family_legend(family: Family) -> list[tuple[str, ...]]:
    """Return each kind of client in a row: its name, how many there are, parameters, MACs, blocks.

    The first row has the titles; the last one is the global model's.
    """
    kinds = [(k.name, str(k.count), k.graph) for k in family.clients]
    rows = [
        (name, many, *sizes(graph), str(len(structure(graph).blocks)))
        for name, many, graph in [*kinds, ("global model", "", family.graph)]
    ]
    return [("clients", "number", "parameters", "MACs", "blocks"), *rows]


def block_shares(family: Family, cover: Cover) -> Iterator[tuple[str, str, tuple[float, ...]]]:
    """Yield section, block, and the share of its weights that each kind of client has.

    Blocks without parameters are left out.
    """
    graph = family.graph
    for block in structure(graph).blocks:
        leaves = dict.fromkeys(k for n in block.nodes for k in graph.node[n].leaves())
        counts = {k: count_parameters(graph, (k,)) for k in leaves if k in cover}
        share = cover.shares(counts)
        if share is not None:
            yield block.section, block.name, share


def file_name(name: str) -> str:
    """Return a name as a file's; `client-` separates it from the global picture and odd names.

    >>> file_name("weak"), file_name("a/b c")
    ('client-weak', 'client-a-b-c')
    """
    return "client-" + re.sub(r"[^\w.+-]+", "-", name)


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
    title = text(f"{name}: its clients", size=16, bold=True)
    note = text("a bar: share of the block's weights that a client has; –: no such block", size=9)
    top = [f'<TD COLSPAN="{len(kinds) + 1}">{line}</TD>' for line in (title, note)]
    body = [
        "".join(f'<TD ALIGN="{"CENTER" if i else "LEFT"}">{c}</TD>' for i, c in enumerate(row))
        for row in rows
    ]
    table = plain_table([*top, *body], spacing=6)
    return (
        f'digraph clients {{\n\tgraph [bgcolor="{colours.PAPER}" margin=0 fontname="{FONT}"]\n'
        f'\tnode [shape=plain fontname="{FONT}"]\n\ttable [label=<{table}>]\n}}\n'
    )


def _bar(share: float) -> str:
    """Draw a centred bar, as wide as the share, with the share in it or beside it."""
    if not share:
        return text("–", size=9, colour=colours.QUIET)
    full = max(round(share * WHOLE), 3)  # a share of a per cent is still seen
    side = (WHOLE - full) // 2
    tone = colours.blend(colours.SCALE, share)
    cells = [(side, colours.SECTION), (full, tone), (WHOLE - full - side, colours.SECTION)]
    lines = plain_table([coloured_row(cells, 9)]), text(percent(share), size=8)
    return plain_table(f"<TD>{line}</TD>" for line in lines)
