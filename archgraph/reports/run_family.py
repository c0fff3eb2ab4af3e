"""Rebuild the family of a run from its folder. User code runs only with consent."""

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

    The graph of a client's model does not contain its positions in the global model. Repeating the
    client's rewrites gives these positions. If the rewrites cannot be repeated (a separate model,
    choices, a missing file) or result in another graph, the positions are found by alignment.

    Raises:
        RunError: If the folder has no global model, or a model is damaged.
        ArchGraphError: If a client's model is not a part of the global model.
    """
    joint = _graph(log, GLOBAL)
    file = log.folder / "run.yaml"
    try:
        # Not parsed as an experiment, because the folder may be from another version.
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
