"""Exits: further classifiers on the way to the output (DepthFL, ScaleFL)."""

from __future__ import annotations

from collections.abc import Container, Mapping

from archgraph.errors import RewriteError
from archgraph.graph.argument import GraphLike, takes_graph
from archgraph.graph.ir import ArchGraph, Record, Value
from archgraph.ops.check import check
from archgraph.rewrites.heads import with_head
from archgraph.rewrites.insert import in_both_modes, initialised
from archgraph.rewrites.laws import same_function
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
        verify: Check that the main output is the same (three forwards in float64).

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
    if not heads:
        return Rewritten.identity(graph)
    # A second call adds to the named outputs of the first instead of nesting them in `main`.
    again = any(p.name.startswith(f"{PREFIX}.") for p in graph.params)
    new, answers = graph, dict[str, Value]()
    for name, head in heads.items():
        stem = f"{PREFIX}.{name.replace('.', '_')}"
        # Two names may give one stem ("a.b" and "a_b").
        if name == "main" or any(p.name.startswith(f"{stem}.") for p in graph.params):
            raise RewriteError("an exit of this name already exists", where=name)
        new, answers[name] = with_head(new, graph, head, stem, name)

    def joined(value: Value) -> Value:
        previous = value.fields if again and isinstance(value, Record) else (("main", value),)
        return Record((*previous, *answers.items()))

    # What training returns beside the main output stays in `main`.
    new = new.replace(outputs=in_both_modes(graph.outputs, joined))
    check(new)
    rewritten = initialised(graph, new)
    if verify:
        outputs = in_both_modes(rewritten.graph.outputs, lambda v: _without(v, heads, again))
        before = rewritten.graph.replace(outputs=outputs)
        same_function(graph, Rewritten(before, rewritten.transfer))
    return rewritten


def _without(value: Value, exits: Container[str], again: bool) -> Value:
    """Return what the architecture returned before its new exits; ``again``: it had others."""
    assert isinstance(value, Record)
    rest = tuple((k, v) for k, v in value.fields if k not in exits)
    return Record(rest, value.name) if again else rest[0][1]
