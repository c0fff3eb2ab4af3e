"""All pictures of a family: the global graph with its weak points, and every client's graph."""

from __future__ import annotations

import os
import re
from pathlib import Path

from archgraph.display.cover import coverage
from archgraph.display.picture import Direction, draw
from archgraph.display.scene import Detail
from archgraph.federation.family import Family
from archgraph.tables import plural


def draw_family(
    family: Family,
    folder: str | os.PathLike[str],
    *,
    detail: Detail = "block",
    direction: Direction = "TB",
    form: str = "svg",
) -> tuple[Path, ...]:
    """Draw a family: `global` with the share of clients that feed each part, then each client.

    Args:
        family: Global graph and kinds of clients.
        folder: Where to write; made if missing.
        detail: As for :func:`archgraph.display.picture.draw`.
        direction: The same.
        form: `svg`, `png`, `pdf` or `dot`.

    Returns:
        Paths of the pictures, the global one first, if there is one.

    Raises:
        RunError: If a file cannot be written, or the format is unknown.
    """
    place = Path(folder)
    total = sum(member.count for member in family.clients)
    name = family.graph.name or "model"
    paths = []
    if family.graph.nodes:  # else clients have nothing but models of their own
        paths.append(place / f"global.{form}")
        draw(
            family.graph,
            paths[0],
            cover=coverage(family),
            detail=detail,
            direction=direction,
            title=f"{name}: fed by {plural(total, 'client')}",
        )
    for member in family.clients:
        paths.append(place / f"{file_name(member.name)}.{form}")
        many = f"{member.count} client{'s' * (member.count != 1)}"
        draw(
            member.graph,
            paths[-1],
            detail=detail,
            direction=direction,
            title=f"{name}: {member.name} ({many})",
        )
    return tuple(paths)


def file_name(name: str) -> str:
    """A name as a file's; `client-` keeps it apart from the global picture and from odd names.

    >>> file_name("weak"), file_name("a/b c")
    ('client-weak', 'client-a-b-c')
    """
    return "client-" + re.sub(r"[^\w.+-]+", "-", name)
