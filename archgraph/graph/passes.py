"""Passes from graph to graph: select a mode, remove unneeded operators, make names canonical."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping

from archgraph.graph.ir import ArchGraph, Node, Param
from archgraph.graph.values import Leaf, Mode, Ref, Value, in_mode, refs, replace, walk


def reachable(
    names: Iterable[str],
    onward: Callable[[str], Iterable[str]],
    inside: Container[str] | None = None,
) -> set[str]:
    """Return all names that ``onward`` reaches from ``names`` without leaving ``inside``."""
    # Iterative: a path through a deep network is longer than Python's stack.
    visited: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in visited and (inside is None or name in inside):
            visited.add(name)
            pending.extend(onward(name))
    return visited


def specialise(graph: ArchGraph, *, training: bool) -> ArchGraph:
    """Return the graph of one mode, without operators that only the other mode needs.

    Raises:
        GraphError: If forward does not return a tensor in this mode.
    """
    nodes = tuple(
        dataclasses.replace(n, args=tuple((k, in_mode(v, training)) for k, v in n.args))
        if n.moded
        else n
        for n in graph.nodes
    )
    updates = tuple((k, in_mode(v, training)) for k, v in graph.updates)
    # From the graph of both modes: with flags resolved, these look like any dead operator.
    alone = {name for name, mode in _of_one_mode(graph) if mode is training}
    return prune(
        graph.replace(
            nodes=nodes,
            outputs=in_mode(graph.outputs, training),
            updates=tuple((k, v) for k, v in updates if v is not None),
        ),
        leaves=False,
        alone=alone,
    )


def _of_one_mode(graph: ArchGraph) -> Iterator[tuple[str, bool]]:
    """Yield operators whose first argument is None in one mode, and True if training runs them.

    These operators run only for a side effect: they draw random numbers.
    """
    for node in graph.nodes:
        value = node.args[0][1] if node.args else None
        if isinstance(value, Mode) and (value.train is None) != (value.eval is None):
            yield node.name, value.eval is None


def prune(
    graph: ArchGraph, *, leaves: bool = True, alone: Iterable[str] | None = None
) -> ArchGraph:
    """Remove the operators that no output needs.

    - Inputs are kept, because they are part of forward's signature.
    - Operators that only draw random numbers are kept, so that later random numbers are the same as
      in the model. ``alone`` lists these operators. Default: operators whose first argument is None
      in one mode.
    - An update, for example of a counter, is kept if an output needs an operator of its module.
    - If ``leaves`` is True, parameters and buffers that only removed operators use are removed.
      Parameters and buffers that no operator of ``graph`` uses are kept, because checkpoints
      contain them.
    """
    drawing = {name for name, _ in _of_one_mode(graph)} if alone is None else alone
    live = _needed(graph, [graph.outputs, *map(Ref, drawing)])
    updates = tuple(_lasting(graph, live))
    # After selecting updates: operators that only an update needs do not keep other updates.
    live |= _needed(graph, [value for _, value in updates])
    return graph.replace(
        nodes=tuple(n for n in graph.nodes if n.name in live or n.op == "input"),
        params=_remaining(graph, live, dict(updates)) if leaves else graph.params,
        updates=updates,
    )


def _needed(graph: ArchGraph, values: Iterable[Value]) -> set[str]:
    """Return the operators that some values need."""
    names = (name for value in values for name in refs(value))
    return reachable(names, lambda name: graph.node[name].uses())


def _lasting(graph: ArchGraph, live: Container[str]) -> Iterator[tuple[str, Value]]:
    """Yield updates outside of modules, and updates of modules with operators in ``live``."""
    busy = {n.scope for n in graph.nodes if n.name in live} | {""}
    for buffer, value in graph.updates:
        scopes = {graph.node[name].scope for name in refs(value)}
        if not scopes or not scopes.isdisjoint(busy):
            yield buffer, value


def _remaining(
    graph: ArchGraph, live: Container[str], updates: Collection[str]
) -> tuple[Param, ...]:
    """Return the leaves that live operators use, and those that no operator has used before."""
    used = {i.name for i in walk(graph.outputs) if isinstance(i, Leaf)}.union(updates)
    gone = {buffer for buffer, _ in graph.updates}
    for node in graph.nodes:
        users = used if node.name in live else gone
        users.update(node.leaves())
    return tuple(p for p in graph.params if p.name in used or p.name not in gone)


def notes_of(graphs: Iterable[ArchGraph]) -> tuple[str, ...]:
    """Return the notes of several graphs without duplicates."""
    return tuple(dict.fromkeys(note for graph in graphs for note in graph.notes))


def renaming(names: Mapping[str, str]) -> Callable[[Value], Value]:
    """Return a function that renames references to nodes, according to the dict ``names``.

    >>> rename = renaming({"a": "b"})
    >>> rename(Ref("a")), rename(Ref("c")), rename("a")
    (Ref(name='b'), Ref(name='c'), 'a')
    """

    def rename(value: Value) -> Value:
        return Ref(names.get(value.name, value.name)) if isinstance(value, Ref) else value

    return rename


def renumber(graph: ArchGraph) -> ArchGraph:
    """Rename nodes to canonical names: operator and number (``relu``, ``relu_1``, …).

    Inputs keep their names. Graphs of the same architecture become equal.
    """
    # Reserve these names first: an argument of forward may be called `relu`.
    used = {n.name for n in graph.nodes if n.op == "input"}
    names: dict[str, str] = {name: name for name in used}
    counters: dict[str, Iterator[int]] = {}
    for n in graph.nodes:
        if n.op == "input":
            continue
        stem = n.op.split(".")[1] if "." in n.op else n.op
        numbers = counters.setdefault(stem, itertools.count())
        numbered = (f"{stem}_{number}" if number else stem for number in numbers)
        name = next(name for name in numbered if name not in used)
        used.add(name)
        names[n.name] = name

    rename = renaming(names)
    new = graph.mapped(rename)
    return new.replace(
        nodes=tuple(
            Node(names[n.name], n.op, n.args, n.type, n.scope, n.source) for n in new.nodes
        ),
        inputs=tuple((k, replace(v, rename)) for k, v in graph.inputs),
    )
