"""Rebuild the family of a run from its folder, without running user code unless allowed."""

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

    A graph does not record the positions of a client's model. They come from repeating the rewrites
    that made it; if these cannot be repeated (a separate model, choices, a missing file) or result
    in another graph, from alignment.

    Raises:
        RunError: If the folder has no global model, or a model is damaged.
        ArchGraphError: If a client's model is not a part of the global one.
    """
    joint = _graph(log, GLOBAL)
    file = log.folder / "run.yaml"
    try:
        # Not parsed as an experiment: the folder may be from another version.
        members = read_document(file).data["family"]["clients"]
        kinds = [(str(one["name"]), int(one.get("count", 1)), dict(one)) for one in members]
    except (KeyError, TypeError, ValueError) as error:
        raise RunError("cannot read its clients", where=str(file), found=error) from error
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
            pass  # use alignment
        else:
            if again.graph == graph:
                return again.transfer
    return align(graph, joint).transfer


def _graph(log: Log, name: str) -> ArchGraph:
    graph = log.graphs.get(name)
    if isinstance(graph, ArchGraph):
        return graph
    reason = graph or f"no models/{name}.yaml"  # a string is the file's error message
    raise RunError(f"has no model {name}", where=str(log.folder), found=reason)
