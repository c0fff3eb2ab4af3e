"""Pictures of a family: the global graph with what clients have of it, and each client's graph."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

from archgraph.analysis.structure import structure
from archgraph.display.cover import coverage
from archgraph.display.picture import draw
from archgraph.display.pieces import Detail
from archgraph.federation.family import Family, sizes
from archgraph.tables import plural


def draw_family(
    family: Family,
    folder: str | os.PathLike[str],
    *,
    detail: Detail = "block",
    fold: bool = True,
    form: str = "svg",
    title: str | None = None,
    legend: bool = True,
    width: str | None = None,
    font: str | None = None,
) -> tuple[Path, ...]:
    """Draw a family: the global model, then each client.

    `global` shows how many clients feed each part and with how much of its weights.

    Args:
        family: Global graph and kinds of clients.
        folder: Folder to write to; created if it does not exist.
        detail: As for :func:`archgraph.display.picture.draw`.
        fold: The same.
        form: `svg`, `png`, `pdf` or `dot`.
        title: First words of each heading; empty: no headings. Default: the family's name.
        legend: As for :func:`archgraph.display.picture.draw`.
        width: The same.
        font: The same.

    Returns:
        Paths of the pictures: the global one, if there is a global model, then each client.

    Raises:
        RunError: If a file cannot be written, or the format is unknown.
    """
    target = Path(folder)
    drawn = functools.partial(draw, detail=detail, fold=fold, legend=legend, width=width, font=font)
    name = (family.name or family.graph.name or "model") if title is None else title
    paths = []
    # Without a global model, clients feed no common state.
    if family.graph.nodes:
        cover = coverage(family)
        paths.append(target / f"global.{form}")
        heading = f"{name}: {plural(sum(cover.counts), 'client')}" if name else ""
        notes = family_legend(family) if legend else ()
        drawn(family.graph, paths[0], cover=cover, title=heading, notes=notes)
    for member in family.clients:
        paths.append(target / f"{file_name(member.name)}.{form}")
        heading = f"{name}: {member.name} ({plural(member.count, 'client')})" if name else ""
        drawn(member.graph, paths[-1], title=heading)
    return tuple(paths)


def family_legend(family: Family) -> list[tuple[str, ...]]:
    """Return a row per kind of client: name, number of clients, parameters, MACs, blocks.

    The first row has the titles, the last one the global model.
    """
    kinds = [(k.name, str(k.count), k.graph) for k in family.clients]
    rows = [
        (name, many, *sizes(graph), str(len(structure(graph).blocks)))
        for name, many, graph in [*kinds, ("global model", "", family.graph)]
    ]
    return [("clients", "number", "parameters", "MACs", "blocks"), *rows]


def file_name(name: str) -> str:
    """Convert the name of a client to a file name, distinct from that of the global picture.

    >>> file_name("weak"), file_name("a/b c")
    ('client-weak', 'client-a-b-c')
    """
    return "client-" + re.sub(r"[^\w.+-]+", "-", name)
