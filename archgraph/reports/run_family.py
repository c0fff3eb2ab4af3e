"""The family of a run, read from its folder; no code of the user's runs without consent."""

from __future__ import annotations

from collections.abc import Mapping

from archgraph.errors import ArchGraphError, RunError
from archgraph.federation.family import Family, resolve
from archgraph.federation.world import Tier
from archgraph.fields import GLOBAL
from archgraph.graph.ir import ArchGraph
from archgraph.language import load_family
from archgraph.language.yaml import read_document
from archgraph.plain import Json
from archgraph.relate.align import align
from archgraph.reports.runs import Log
from archgraph.states import Transfer


def run_family(log: Log) -> Family:
    """Return the global model of a run and its clients.

    Which positions a client has stands in no graph: its transfer is that of the rewrites that made
    it. Where they cannot be repeated (a model of its own, choices, a file that is gone), and where
    they make another graph, it is found by alignment.

    Raises:
        RunError: If the folder holds no global model, or a model of it is damaged.
        ArchGraphError: If a client's model is not a part of the global one.
    """
    joint = _graph(log, GLOBAL)
    file = log.folder / "run.yaml"
    try:
        # Not as an experiment: a folder of another version still tells its clients.
        members = read_document(file).data["family"]["clients"]
        kinds = [(str(one["name"]), int(one.get("count", 1)), dict(one)) for one in members]
    except (KeyError, TypeError, ValueError) as error:
        raise RunError("does not tell its clients", where=str(file), found=error) from error
    tiers = []
    for name, count, member in kinds:
        graph = _graph(log, name)
        tiers.append(Tier(name, graph, _transfer(member, graph, joint), count=count))
    return Family(joint, None, tuple(tiers), log.name)


def _transfer(member: Mapping[str, Json], graph: ArchGraph, joint: ArchGraph) -> Transfer:
    if "model" not in member and "choose" not in member:
        try:
            (again,) = resolve(load_family({"model": joint, "clients": [member]})).clients
        except ArchGraphError:
            pass  # as for a graph that somebody else made
        else:
            if again.graph == graph:
                return again.transfer
    return align(graph, joint).transfer


def _graph(log: Log, name: str) -> ArchGraph:
    graph = log.graphs.get(name)
    if isinstance(graph, ArchGraph):
        return graph
    reason = graph or f"no models/{name}.yaml"  # a text says why its file cannot be read
    raise RunError("has no such model", where=str(log.folder), found=reason)
