"""Pictures of a family: its global model and the model of each kind of client."""

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
    """Draw the global model of a family, and the model of each tier (kind of client).

    The picture of the global model shows for each block the number of clients that train it, and
    the fraction of its weights that clients have on average.

    Args:
        family: The family.
        folder: Folder for the pictures; created if it does not exist.
        detail: As for :func:`archgraph.display.picture.draw`.
        fold: As for :func:`archgraph.display.picture.draw`.
        form: File format: `svg`, `png`, `pdf` or `dot`.
        title: First part of each heading. The second part is the name of the model. If empty,
            pictures have no headings. Default: the family's name.
        legend: As for :func:`archgraph.display.picture.draw`.
        width: As for :func:`archgraph.display.picture.draw`.
        font: As for :func:`archgraph.display.picture.draw`.

    Returns:
        Paths of the files: first the global model, if there is one, then the clients' models.

    Raises:
        RunError: If a file cannot be written, or the format is unknown.
    """
    target = Path(folder)
    drawn = functools.partial(draw, detail=detail, fold=fold, legend=legend, width=width, font=font)
    name = (family.name or family.graph.name or "model") if title is None else title
    paths = []
    # Without a global model, there is no coverage to show.
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
    """Return the rows of a table with number, parameters, MACs and blocks of each kind of client.

    The first row has the titles of the columns; the last row is the global model.
    """
    kinds = [(k.name, str(k.count), k.graph) for k in family.clients]
    rows = [
        (name, many, *sizes(graph), str(len(structure(graph).blocks)))
        for name, many, graph in [*kinds, ("global model", "", family.graph)]
    ]
    return [("clients", "number", "parameters", "MACs", "blocks"), *rows]


def file_name(name: str) -> str:
    """Return a file name (without extension) for the picture of a client.

    >>> file_name("weak"), file_name("a/b c")
    ('client-weak', 'client-a-b-c')
    """
    return "client-" + re.sub(r"[^\w.+-]+", "-", name)
