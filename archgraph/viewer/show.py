"""Make a page from architectures: their order, names, overlays and correspondences."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from archgraph.display import colours
from archgraph.display.cover import Cover, coverage
from archgraph.errors import GraphError
from archgraph.federation.family import Family, resolve
from archgraph.files import write
from archgraph.graph.argument import GraphLike, graph_of
from archgraph.graph.ir import ArchGraph
from archgraph.language import FamilySpec
from archgraph.machine import uncollected
from archgraph.plain import Json
from archgraph.relate.correspond import Way, correspond
from archgraph.reports.run_family import run_family
from archgraph.reports.runs import Log
from archgraph.states import Rewritten, Transfer, signature
from archgraph.states.importance import Importance
from archgraph.viewer.anatomy import Anatomy, anatomy, described
from archgraph.viewer.distinct import numbered
from archgraph.viewer.document import document
from archgraph.viewer.feeding import feeding
from archgraph.viewer.overlays import Overlay, PartNumbers, block_overlay, importance_overlay
from archgraph.viewer.rounds import recorded_rounds
from archgraph.viewer.submodels import client_shapes, cost_terms

# Maximum number of graphs side by side when a page opens.
SEVERAL = 4
# From this number of operators on, a graph takes seconds.
LARGE = 5000
Subject: TypeAlias = GraphLike | Family | FamilySpec | Log


@uncollected()
def view(
    subject: Subject | Mapping[str, GraphLike] | Iterable[Subject],
    path: str | os.PathLike[str] | None = None,
    *,
    title: str | None = None,
    importance: Mapping[str, PartNumbers] | Importance | None = None,
    notify: Callable[[str], object] = lambda line: None,
) -> str:
    """Write one HTML file that shows architectures; it loads nothing and sends nothing.

    Sections, blocks and operators open on a click. Equal neighbouring blocks are shown once, with
    their number. The page shows shapes, parameters, MACs and axes of each part, and why an axis is
    pinned and what would free it. For a family, it also shows which clients have which positions;
    for a run, the changes of each round. Several subjects are shown side by side, up to four at
    first. A family starts with its global graph; the graphs of its clients can be added.

    Args:
        subject: A graph, a family or its parsed file, a run (:func:`archgraph.reports.read_run`),
            several of these, or graphs by name. Each further graph is compared with the first: by
            transfer if it is a rewrite of the first or both are rewrites of one graph, otherwise by
            alignment. Repeated names of graphs get a number.
        path: File to write. Default: none.
        title: Heading. Default: the name of the first graph.
        importance: Numbers that colour the parts, by the name of a leaf, axis or operator: one, or
            one for each position. Alternatively, the scores of :func:`archgraph.importance`, by
            axis and block. A part has the mean over all that it uses.
        notify: Called with a line of text for each graph that takes long.

    Returns:
        The page as HTML text.

    Raises:
        GraphError: If there is nothing to show, or the importance does not match the graphs.
        RunError: If the file cannot be written.

    Example:
        >>> from archgraph.graph.ir import ArchGraph, BATCH, Node, Ref, TensorType
        >>> kind = TensorType((BATCH, 8), "float32")
        >>> x = Node("x", "input", type=kind)
        >>> y = Node("relu", "aten.relu", (("self", Ref("x")),), kind)
        >>> text = view(ArchGraph((("x", Ref("x")),), (), (x, y), Ref("relu"), name="tiny"))
        >>> text.splitlines()[0], "<title>tiny</title>" in text
        ('<!doctype html>', True)
    """
    several = [list(_parts(*one, notify)) for one in _listed(subject)]
    parts = [part for one in several for part in one]
    if not parts:
        raise GraphError("nothing to show", expected="a graph or a family")
    graphs = _distinctly_named([part.data() for part in parts])
    heading = graphs[0]["name"] if title is None else title
    overlays: dict[str, Overlay] = {}
    anatomies = [part.anatomy for part in parts]
    if importance is not None:
        if isinstance(importance, Importance) and importance.blocks:
            overlays["blocks"] = block_overlay(anatomies, importance)
        by_name = importance.positions if isinstance(importance, Importance) else importance
        overlays["importance"] = importance_overlay(anatomies, by_name)
    page = {"title": heading, "scale": list(colours.SCALE), "families": colours.FAMILIES}
    page |= {"graphs": graphs, "pairs": _pairs(parts), "start": _start(several)}
    text = document(heading, page | {"overlays": _overlays(graphs, overlays)})
    if path is not None:
        write(path, text)
    return text


def _start(several: Sequence[Sequence[_Part]]) -> list[int]:
    """Return the numbers of the graphs to show first; for a family, the global graph."""
    opened: list[int] = []
    at = 0
    for parts in several:
        opened += range(at, at + (1 if parts[0].family else len(parts)))
        at += len(parts)
    return opened if len(opened) <= SEVERAL else [0]


def _distinctly_named(graphs: list[dict[str, Json]]) -> list[dict[str, Json]]:
    """Return the graphs with distinct names, by numbering repeated ones."""
    counts: dict[str, int] = {}
    for one in graphs:
        name = one["name"]
        counts[name] = counts.get(name, 0) + 1
        if counts[name] > 1:
            one["name"] = f"{name} ({counts[name]})"
    return graphs


def _overlays(graphs: list[dict[str, Json]], overlays: Mapping[str, Overlay]) -> dict[str, Json]:
    """Return names and ranges of the overlays, and add their figures to the graphs."""
    for i, graph in enumerate(graphs):
        figures = {
            key: one.figures[i] for key, one in overlays.items() if one.figures[i] is not None
        }
        graph.update({"figures": figures} if figures else {})
    return {key: [one.name, one.low, one.high] for key, one in overlays.items()}


def _listed(subject: Any) -> list[tuple[str | None, Subject]]:
    """List the subjects, with names if the user passed a mapping."""
    if isinstance(subject, Mapping):
        return list(subject.items())
    several = isinstance(subject, list | tuple) or not (
        hasattr(subject, "graph") or isinstance(subject, FamilySpec)
    )
    if several and isinstance(subject, Iterable):
        return [(None, one) for one in subject]
    return [(None, subject)]


@dataclass(frozen=True)
class _Part:
    """One graph of a page.

    Attributes:
        name: Name on the page. Empty for the name of the graph.
        anatomy: The parts of the graph.
        way: Transfer from the graph of which this one is a rewrite. Default: not a rewrite.
        family: The family, if this is its global graph. Default: none.
        rounds: Changes by round, if this is the global model of a run. Default: none.
    """

    name: str
    anatomy: Anatomy
    way: Transfer | None = None
    family: Family | None = None
    rounds: dict[str, Json] | None = None

    def data(self) -> dict[str, Json]:
        data = described(self.anatomy) | {"costs": cost_terms(self.anatomy.graph)}
        data["name"] = self.name or data["name"]
        if self.family:
            data["feeding"] = feeding(self.family, self.anatomy)
            data["clients"] = client_shapes(self.family, self.anatomy)
        if self.rounds is not None:
            data["rounds"] = self.rounds
        return data


def _parts(name: str | None, subject: Subject, notify: Callable[[str], object]) -> Iterator[_Part]:
    """Yield the graphs of a family or run, the global one first, or a single graph."""

    def dissected(graph: ArchGraph, clients: Cover | None = None) -> Anatomy:
        if len(graph.nodes) >= LARGE:
            notify(f"{graph.name}: {len(graph.nodes):,} operators")
        return anatomy(graph, clients)

    rounds = None
    if isinstance(subject, Log):
        rounds = recorded_rounds(subject)
        subject = run_family(subject)
    if isinstance(subject, FamilySpec):
        subject = resolve(subject)
    if not isinstance(subject, Family):
        way = subject.transfer if isinstance(subject, Rewritten) else None
        yield _Part(name or "", dissected(graph_of(subject)), way)
        return
    if subject.has_global:
        yield _Part(
            name or subject.name, dissected(subject.graph, coverage(subject)), None, subject, rounds
        )
    for one in subject.clients:
        yield _Part(one.name, dissected(one.graph), one.transfer)


def _pairs(parts: Sequence[_Part]) -> dict[str, Json]:
    """Return the correspondence of each further graph to the first.

    For two others, the page composes these, since data for all pairs would grow quadratically.
    """
    first, *others = parts
    return {f"0 {i}": _paired(first, one) for i, one in enumerate(others, 1)}


def _paired(first: _Part, other: _Part) -> dict[str, Json]:
    """Return the corresponding operators of two graphs and their differences, by number."""
    a, b = first.anatomy, other.anatomy
    matched = correspond(a.graph, b.graph, _way(first, other))
    of_a, of_b = numbered(a.operators), numbered(b.operators)
    partner = {y: of_a[x] for x, y in matched.nodes}
    return {
        "exact": int(matched.exact),
        "partner": [partner.get(name, -1) for name in b.operators],
        "differences": [
            [one.kind, one.level, one.a, one.b, one.before, one.after,
             [of_a[name] for name in one.nodes_a], [of_b[name] for name in one.nodes_b]]
            for one in matched.differences
        ],
    }  # fmt: skip


def _way(first: _Part, other: _Part) -> Way | None:
    """Return the transfer between two graphs, or both from their common graph; else None."""
    # Compared by signature, since another graph may have the same names.
    if other.way and other.way.source == signature(first.anatomy.graph):
        return other.way
    if first.way and other.way and other.way.source and first.way.source == other.way.source:
        return first.way, other.way
    return None
