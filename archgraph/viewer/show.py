"""Make a page of one or several architectures."""

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
# A graph with at least this number of operators takes seconds.
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
    """Write an interactive HTML page of one or several architectures.

    The page is a single file that works offline. A click opens a section, block or operator. Equal
    neighbouring blocks are shown once, with a count. The page shows shapes, parameters, MACs and
    axes of each part. It also shows why an axis cannot be cut, and what would change that. For a
    family, the page shows which channels each client has. For a run, the page shows how much each
    round changed the parameters. Up to four subjects are shown side by side. If more subjects are
    passed, the page opens with the first subject only. For a family, the page opens with the global
    graph, and the graphs of clients can be added.

    Args:
        subject: A graph, a family, a parsed family file, or a run
            (:func:`archgraph.reports.read_run`). Several subjects are passed as a list, or as a
            dict from name to graph. All graphs after the first one are compared with the first
            graph. The comparison is exact if one graph is a rewrite of the other, or if both are
            rewrites of a third graph. Otherwise, the graphs are aligned by structure (see
            :func:`archgraph.align`). If names repeat, numbers are appended.
        path: File to write. By default, no file is written.
        title: Heading. Default: the name of the first graph.
        importance: Scores that determine the colours in the graph: the result of
            :func:`archgraph.importance`, or a dict. Each key of the dict is the name of a
            parameter, buffer, axis or operator. Each value is one number, one number per element of
            a parameter or buffer, or one number per channel of an axis. The score of a part of the
            graph is the mean of the scores of its operators, and of the parameters, buffers and
            axes that these operators use.
        notify: Function that is called with a line of text for each graph that takes long to
            process.

    Returns:
        The page as HTML text.

    Raises:
        GraphError: If no graph is passed, or a name in ``importance`` does not match the graphs.
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
    """Return the numbers of the graphs that are shown when the page opens."""
    opened: list[int] = []
    at = 0
    for parts in several:
        opened += range(at, at + (1 if parts[0].family else len(parts)))
        at += len(parts)
    return opened if len(opened) <= SEVERAL else [0]


def _distinctly_named(graphs: list[dict[str, Json]]) -> list[dict[str, Json]]:
    """Append a number to each repeated name of a graph."""
    counts: dict[str, int] = {}
    for one in graphs:
        name = one["name"]
        counts[name] = counts.get(name, 0) + 1
        if counts[name] > 1:
            one["name"] = f"{name} ({counts[name]})"
    return graphs


def _overlays(graphs: list[dict[str, Json]], overlays: Mapping[str, Overlay]) -> dict[str, Json]:
    """Return names and ranges of the overlays, and add their values to the graphs."""
    for i, graph in enumerate(graphs):
        figures = {
            key: one.figures[i] for key, one in overlays.items() if one.figures[i] is not None
        }
        graph.update({"figures": figures} if figures else {})
    return {key: [one.name, one.low, one.high] for key, one in overlays.items()}


def _listed(subject: Any) -> list[tuple[str | None, Subject]]:
    """Return the subjects as a list, with names if the user passed a dict."""
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
        name: Name on the page. If empty, the name of the graph is used.
        anatomy: The parts of the graph.
        way: Transfer to this graph, if it is a rewrite of another graph.
        family: The family, if this is its global graph.
        rounds: Changes in each round, if this is the global model of a run.
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
    """Yield the graphs of a subject; for a family or run, the global graph first."""

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
    """Return the correspondence of each further graph with the first graph.

    The page composes these to compare two further graphs. Data for all pairs would grow with the
    square of the number of graphs.
    """
    first, *others = parts
    return {f"0 {i}": _paired(first, one) for i, one in enumerate(others, 1)}


def _paired(first: _Part, other: _Part) -> dict[str, Json]:
    """Return the corresponding operators and the differences of two graphs."""
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
    """Return the transfer between two graphs, or both transfers from a common graph, or None."""
    # Compare signatures, since another graph may have the same names.
    if other.way and other.way.source == signature(first.anatomy.graph):
        return other.way
    if first.way and other.way and other.way.source and first.way.source == other.way.source:
        return first.way, other.way
    return None
