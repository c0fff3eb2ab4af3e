"""Pages that a notebook displays for graphs, families and runs."""

from __future__ import annotations

from pathlib import Path

from archgraph.errors import ArchGraphError
from archgraph.federation.family import Family
from archgraph.graph.argument import GraphLike, graph_of
from archgraph.notebook import MOST
from archgraph.reports.run_page import page
from archgraph.reports.runs import Log, read_run
from archgraph.viewer.show import view


def notebook_page(subject: GraphLike | Family) -> str | None:
    """Return the page of a graph or family; None if it is empty or too large for a notebook."""
    graphs = [*subject.models.values()] if isinstance(subject, Family) else [graph_of(subject)]
    if not 0 < sum(len(graph.nodes) for graph in graphs) <= MOST:
        return None
    return view(subject)


def run_page(run: Log | Path) -> str | None:
    """Return the report of a run with the page of its models; None if the run cannot be read."""
    try:
        log = run if isinstance(run, Log) else read_run(run)
        return page(log, models_page(log))
    except ArchGraphError:
        return None


def models_page(log: Log) -> str:
    """Return the page of a run's models; empty if the models cannot be read."""
    try:
        return view(log)
    except ArchGraphError:  # the report works without the models
        return ""
