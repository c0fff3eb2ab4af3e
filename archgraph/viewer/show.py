"""Architectures on a page: what is shown, in which order, and how its parts correspond."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from archgraph.display import colours
from archgraph.display.cover import coverage
from archgraph.errors import GraphError
from archgraph.federation.family import Family
from archgraph.files import write
from archgraph.graph.argument import GraphLike, graph_of
from archgraph.viewer.anatomy import anatomy, described
from archgraph.viewer.document import document
from archgraph.viewer.feeding import feeding

# Colours of shares, and of amounts from a thousandth of the whole to all of it.
SCALES = {"scale": list(colours.SCALE), "amount": ["#f2f7fb", *colours.SCALE[3:], "#3a86bd"]}
Shown: TypeAlias = GraphLike | Family


def view(
    shown: Shown | Mapping[str, GraphLike] | Iterable[Shown],
    path: str | os.PathLike[str] | None = None,
    *,
    title: str | None = None,
) -> str:
    """One HTML file that shows architectures in a browser; it loads nothing and sends nothing.

    Sections, blocks and operators open on a click; equal neighbouring blocks are shown once with
    their number. Of each part the page tells shapes, parameters, MACs and axes, why an axis is
    pinned and what would free it; of a family also which clients have which positions of it.

    Args:
        shown: A graph, a family, several of them, or graphs by name.
        path: Where to write the page; None: nowhere.
        title: Heading; None: the first graph's name.

    Returns:
        The page as HTML text.

    Raises:
        GraphError: If there is nothing to show.
        RunError: If the file cannot be written.

    Example:
        >>> from archgraph.graph.ir import ArchGraph, Batch, Node, Ref, TensorType
        >>> kind = TensorType((Batch(), 8), "float32")
        >>> x = Node("x", "input", type=kind)
        >>> y = Node("relu", "aten.relu", (("self", Ref("x")),), kind)
        >>> text = view(ArchGraph((("x", Ref("x")),), (), (x, y), Ref("relu"), name="tiny"))
        >>> text.splitlines()[0], "<title>tiny</title>" in text
        ('<!doctype html>', True)
    """
    graphs = [data for one in _listed(shown) for data in _data(*one)]
    if not graphs:
        raise GraphError("nothing to show", expected="a graph or a family")
    heading = graphs[0]["name"] if title is None else title
    text = document(heading, {"title": heading, **SCALES, "graphs": graphs})
    if path is not None:
        write(path, text)
    return text


def _listed(shown: Any) -> list[tuple[str | None, Shown]]:
    """What is shown, with the names that were given to it."""
    if isinstance(shown, Mapping):
        return list(shown.items())
    several = isinstance(shown, list | tuple) or not hasattr(shown, "graph")
    if several and isinstance(shown, Iterable):
        return [(None, one) for one in shown]
    return [(None, shown)]


def _data(name: str | None, shown: Shown) -> list[dict[str, Any]]:
    """The graphs of a family, or one graph."""
    if not isinstance(shown, Family):
        data = described(anatomy(graph_of(shown)))
        return [data | {"name": name or data["name"]}]
    if not shown.has_global:
        return [described(anatomy(g)) | {"name": k} for k, g in shown.models.items()]
    found = anatomy(shown.graph, coverage(shown))
    whole = described(found) | {"feeding": feeding(shown, found)}
    clients = [described(anatomy(one.graph)) | {"name": one.name} for one in shown.clients]
    return [whole | {"name": shown.name or whole["name"]}, *clients]
