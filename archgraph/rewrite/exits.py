"""Exits: further classifiers on the way to the output (DepthFL, ScaleFL)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from archgraph.analysis.structure import structure
from archgraph.errors import RewriteError
from archgraph.graph.argument import GraphLike, takes_graph
from archgraph.graph.ir import (
    ArchGraph,
    Mode,
    Record,
    Value,
)
from archgraph.ops.check import check
from archgraph.rewrite.heads import Head, head_behind
from archgraph.rewrite.insert import initialised
from archgraph.states import Rewritten

PREFIX = "exits"


@takes_graph
def add_exits(
    graph: ArchGraph, heads: Mapping[str, GraphLike | int], *, verify: bool = False
) -> Rewritten:
    """Let an architecture answer early as well: classifiers behind sections or blocks.

    Forward then returns a dict: ``main`` is what it returned before, every exit has the name of
    its section or block; further exits join those that are there. Leaves of an exit are named
    ``exits.<name>.…``, dots as underscores.

    Args:
        graph: The architecture.
        heads: What each exit computes, by section or block: an architecture with one input and one
            output, or a number of classes for a mean over positions and a linear layer.
        verify: Check that the main output is the same (two forwards in float64).

    Raises:
        GraphError: For a section or block that does not exist; names the nearest.
        RewriteError: For a head that does not take what the section makes.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> early = add_exits(trace(net, torch.zeros(1, 3)).graph, {"0": 2}, verify=True)
        >>> print(early.graph.outputs)
        {'main': %linear_1, '0': %linear_2}

    Source: Kim et al., *DepthFL*, ICLR 2023, §3.
    """
    parts = structure(graph)
    order = {n.name: i for i, n in enumerate(graph.nodes)}
    node_names = set(order)
    added: list[Head] = []
    for name, head in heads.items():
        end = graph.node[parts.end(name)]
        stem = f"{PREFIX}.{name.replace('.', '_')}"
        if name == "main" or any(p.name.startswith(stem + ".") for p in graph.params):
            raise RewriteError("there is an exit of that name already", where=name)
        added.append(head_behind(graph, end, head, stem, name, node_names))
    if not added:
        return Rewritten.identity(graph)
    fields = tuple(zip(heads, (head.result for head in added), strict=True))
    new = graph.replace(
        nodes=(*graph.nodes, *(n for head in added for n in head.nodes)),
        params=(*graph.params, *(p for head in added for p in head.params)),
        updates=(*graph.updates, *(u for head in added for u in head.updates)),
        outputs=_with_exits(graph, fields),
    )
    check(new)
    rewritten = initialised(graph, new)
    if verify:
        _main_unchanged(graph, rewritten, heads)
    return rewritten


def _with_exits(graph: ArchGraph, fields: tuple[tuple[str, Value], ...]) -> Value:
    before = any(p.name.startswith(f"{PREFIX}.") for p in graph.params)

    def joined(value: Value) -> Value:
        own = value.fields if before and isinstance(value, Record) else (("main", value),)
        return Record((*own, *fields))

    if isinstance(graph.outputs, Mode):  # what training returns beside it stays in `main`
        return Mode(joined(graph.outputs.train), joined(graph.outputs.eval))
    return joined(graph.outputs)


def _main_unchanged(graph: ArchGraph, rewritten: Rewritten, added: Collection[str]) -> None:
    from archgraph.rewrite.laws import same_function

    before = any(p.name.startswith(f"{PREFIX}.") for p in graph.params)

    def main(value: Value) -> Value:
        """What the architecture returned before its new exits."""
        assert isinstance(value, Record)
        rest = tuple((k, v) for k, v in value.fields if k not in added)
        return Record(rest, value.name) if before else rest[0][1]

    outputs = rewritten.graph.outputs
    if isinstance(outputs, Mode):
        outputs = Mode(main(outputs.train), main(outputs.eval))
    else:
        outputs = main(outputs)
    only = Rewritten(rewritten.graph.replace(outputs=outputs), rewritten.transfer)
    same_function(graph, only)
