"""The family of a run, read from its folder alone: no other file and no code of the user's."""

from __future__ import annotations

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
    joint = _graph(log, GLOBAL)
    file = log.folder / "run.yaml"
    try:
        # Not as an experiment: a folder of another version still tells its clients.
        members = read_document(file).data["family"]["clients"]
        kinds = [(str(one["name"]), int(one.get("count", 1))) for one in members]
    except (KeyError, TypeError, ValueError) as error:
        raise RunError("does not tell its clients", where=str(file), found=error) from error
    graphs = [(name, _graph(log, name), count) for name, count in kinds]
    tiers = (Tier(name, g, align(g, joint).transfer, count=count) for name, g, count in graphs)
    return Family(joint, None, tuple(tiers), log.name)


def _graph(log: Log, name: str) -> ArchGraph:
    graph = log.graphs.get(name)
    if isinstance(graph, ArchGraph):
        return graph
    reason = graph or f"no models/{name}.yaml"  # a text says why its file cannot be read
    raise RunError("has no such model", where=str(log.folder), found=reason)
