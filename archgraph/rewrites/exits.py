"""Add exits: additional classifiers on intermediate results (DepthFL, ScaleFL)."""

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
    """Add early exits to an architecture: classifiers after sections or blocks.

    The new ``forward`` returns a dict. The key ``main`` contains the original output; the key of an
    exit is the name of its section or block. Existing exits are kept. Parameters and buffers of an
    exit are named ``exits.<name>.…``, with underscores for dots.

    Args:
        graph: The architecture.
        heads: Dict from section or block to the classifier of its exit. A classifier is an
            architecture with one input and one output, or a number of classes. For a number of
            classes, the classifier is a mean over all dimensions except batch and channels,
            followed by a linear layer.
        verify: Check that the main output is the same (three forward passes in float64).

    Raises:
        GraphError: If a section or block does not exist. The message suggests the nearest name.
        RewriteError: If a classifier's input does not match the section's result.

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
        # Two names may have the same stem ("a.b" and "a_b").
        if name == "main" or any(p.name.startswith(f"{stem}.") for p in graph.params):
            raise RewriteError("an exit of this name already exists", where=name)
        new, answers[name] = with_head(new, graph, head, stem, name)

    def joined(value: Value) -> Value:
        previous = value.fields if again and isinstance(value, Record) else (("main", value),)
        return Record((*previous, *answers.items()))

    # Further values that training returns remain in `main`.
    new = new.replace(outputs=in_both_modes(graph.outputs, joined))
    check(new)
    rewritten = initialised(graph, new)
    if verify:
        outputs = in_both_modes(rewritten.graph.outputs, lambda v: _without(v, heads, again))
        before = rewritten.graph.replace(outputs=outputs)
        same_function(graph, Rewritten(before, rewritten.transfer))
    return rewritten


def _without(value: Value, exits: Container[str], again: bool) -> Value:
    """Return the outputs without the new exits; ``again`` is True if there were exits before."""
    assert isinstance(value, Record)
    rest = tuple((k, v) for k, v in value.fields if k not in exits)
    return Record(rest, value.name) if again else rest[0][1]
