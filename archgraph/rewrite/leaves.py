"""Leaves that no operator uses: they go with their modules."""

from __future__ import annotations

from archgraph.graph.ir import ArchGraph


def silent(graph: ArchGraph) -> dict[str, set[str]]:
    """Leaves that no operator uses or updates, each with the used leaves of its module."""
    assigned = {buffer for buffer, _ in graph.updates}
    modules: dict[str, set[str]] = {}
    for param in graph.params:
        if graph.leaf_users[param.name]:
            modules.setdefault(param.name.rpartition(".")[0], set()).add(param.name)
    return {
        p.name: modules.get(p.name.rpartition(".")[0], set())
        for p in graph.params
        if not graph.leaf_users[p.name] and p.name not in assigned and p.role != "constant"
    }


def tidied(before: ArchGraph, after: ArchGraph) -> ArchGraph:
    """The graph without leaves that nothing uses whose module is gone."""
    gone = {
        name
        for name, module in silent(before).items()
        if module and not any(leaf in after.param for leaf in module)
    }
    return after.replace(params=tuple(p for p in after.params if p.name not in gone))
