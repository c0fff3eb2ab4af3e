"""All pictures of a family: the global graph with its weak points, and every client's graph."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from archgraph.analysis.structure import structure
from archgraph.display.cover import Cover, coverage
from archgraph.display.dot import Direction
from archgraph.display.labels import count_parameters
from archgraph.display.multiples import multiples
from archgraph.display.picture import draw, save
from archgraph.display.pieces import Detail
from archgraph.federation.family import Family, sizes
from archgraph.tables import plural


def draw_family(
    family: Family,
    folder: str | os.PathLike[str],
    *,
    detail: Detail = "block",
    direction: Direction = "TB",
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
        direction: The same.
        fold: The same.
        form: `svg`, `png`, `pdf` or `dot`.

    Returns:
        Paths of the pictures: the global one and all clients, if there is a global model, then
        each client.

    Raises:
        RunError: If a file cannot be written, or the format is unknown.
    """
    target = Path(folder)
    name = family.name or family.graph.name or "model"
    paths = []
    if family.graph.nodes:  # else clients have nothing but models of their own
        cover = coverage(family)
        paths += [target / f"global.{form}", target / f"clients.{form}"]
        draw(
            family.graph,
            paths[0],
            cover=cover,
            detail=detail,
            direction=direction,
            fold=fold,
            title=f"{name}: {plural(sum(cover.counts), 'client')}",
            notes=family_legend(family),
        )
        save(multiples(name, family_legend(family), block_shares(family, cover)), paths[1])
    for member in family.clients:
        paths.append(target / f"{file_name(member.name)}.{form}")
        draw(
            member.graph,
            paths[-1],
            detail=detail,
            direction=direction,
            fold=fold,
            title=f"{name}: {member.name} ({plural(member.count, 'client')})",
        )
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
