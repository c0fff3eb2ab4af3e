"""The family of a run, read from its folder alone: no other file and no code of the user's."""

from __future__ import annotations

from typing import Any

from archgraph.errors import RunError
from archgraph.federation.family import Family
from archgraph.federation.world import Tier
from archgraph.fields import GLOBAL
from archgraph.graph.ir import ArchGraph
from archgraph.language.yaml import read_document
from archgraph.relate.align import align
from archgraph.reports.runs import Log


def run_family(log: Log) -> Family:
    """Return the global model of a run and its clients, whose transfers are found by alignment.

    Raises:
        RunError: If the folder holds no global model, or a model of it is damaged.
        ArchGraphError: If a client's model is not a part of the global one.
    """
    whole = _graph(log, GLOBAL)
    try:
        members: list[dict[str, Any]] = read_document(log.folder / "run.yaml").data["family"][
            "clients"
        ]
        kinds = [(str(one["name"]), int(one.get("count", 1))) for one in members]
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(
            "does not tell its clients", where=str(log.folder / "run.yaml"), found=error
        ) from error
    clients = []
    for name, count in kinds:
        graph = _graph(log, name)
        clients.append(Tier(name, graph, align(graph, whole).transfer, count=count))
    return Family(whole, None, tuple(clients), log.name)


def _graph(log: Log, name: str) -> ArchGraph:
    graph = log.graphs.get(name)
    if isinstance(graph, ArchGraph):
        return graph
    found = graph or f"no models/{name}.yaml"
    raise RunError("has no such model", where=str(log.folder), found=found)
