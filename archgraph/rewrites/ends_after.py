"""Cut a network off after a section, with a new classifier (DepthFL, ScaleFL, InclusiveFL)."""

from __future__ import annotations

from archgraph.analysis.structure import structure
from archgraph.errors import RewriteError
from archgraph.graph.argument import GraphLike, takes_graph
from archgraph.graph.ir import ArchGraph, Record, Value
from archgraph.graph.passes import prune
from archgraph.ops.check import check
from archgraph.rewrites.heads import with_head
from archgraph.rewrites.insert import fresh, in_both_modes, initialised, tidied
from archgraph.rewrites.laws import same_function
from archgraph.states import Rewritten


@takes_graph
def ends_after(
    graph: ArchGraph, section: str, head: GraphLike | int | None = None, *, verify: bool = False
) -> Rewritten:
    """End the network after a section or block, with a new classifier or an existing early exit.

    The remaining layers keep their weights. A new classifier has new weights, and the names of its
    parameters and buffers start with ``end.`` (``end_1.`` if ``end`` is in use).

    Args:
        graph: The architecture.
        section: The last section or block to keep.
        head: The classifier: an architecture with one input and one output, or a number of classes.
            For a number of classes, the classifier is a mean over all dimensions except batch and
            channels, followed by a linear layer. Default: the exit that :func:`add_exits` added
            after this section. If ``head`` is None, earlier exits also remain, and ``forward``
            returns a dict of all remaining exits.
        verify: Compute the section's result with the original network, apply the classifier, and
            check that the new network returns the same (three forward passes in float64).

    Raises:
        GraphError: If the section or block does not exist. The message suggests the nearest name.
        RewriteError: If the classifier's input does not match the section's result; if ``head`` is
            None and the section has no exit.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> short = ends_after(trace(net, torch.zeros(1, 3)).graph, "0", 5, verify=True)
        >>> {p.name: p.shape for p in short.graph.params}
        {'0.weight': (8, 3), '0.bias': (8,), 'end.weight': (5, 8), 'end.bias': (5,)}

    Source: Kim et al., *DepthFL*, ICLR 2023, §3; Liu et al., *InclusiveFL*, KDD 2022, §3.
    """
    if head is None:
        exits = in_both_modes(graph.outputs, lambda value: _exits_up_to(graph, value, section))
        original = graph.replace(outputs=exits)
    else:
        stem = fresh({p.name.partition(".")[0] for p in graph.params}, "end")
        headed, answer = with_head(graph, graph, head, stem, section)
        original = headed.replace(outputs=answer)
    # Also drop blocks after the end from the user's sections: structure() refuses missing ones.
    short = tidied(graph, prune(original.replace(sections=_up_to(graph, section))))
    check(short)
    rewritten = initialised(graph, short)
    if verify:
        # Compare with the original before pruning, with the same head at the same place.
        same_function(original, Rewritten(rewritten.graph, initialised(original, short).transfer))
    return rewritten


def _up_to(graph: ArchGraph, section: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the user's sections with the blocks that remain."""
    parts = structure(graph)
    order = {n.name: i for i, n in enumerate(graph.nodes)}
    last = order[parts.end(section)]
    stay = {b.name for b in parts.blocks if all(order[n] <= last for n in b.nodes)}
    listed = (
        (name, tuple(b for b in blocks if b in stay), blocks) for name, blocks in graph.sections
    )
    return tuple((name, left) for name, left, blocks in listed if left or not blocks)


def _exits_up_to(graph: ArchGraph, outputs: Value, section: str) -> Value:
    """Return the named exits of the section and of the sections before it."""
    parts, order = structure(graph), {n.name: i for i, n in enumerate(graph.nodes)}
    last = order[parts.end(section)]
    places = {name for s in parts.sections for name in (s.name, *(b.name for b in s.blocks))}
    fields = outputs.fields if isinstance(outputs, Record) else ()
    if section not in dict(fields):
        names = ", ".join(name for name, _ in fields) or "a single unnamed output"
        hint = "pass a head, or add an exit there with add_exits"
        raise RewriteError("no exit at this section", where=section, found=names, hint=hint)
    stay = [(k, v) for k, v in fields if k in places and order[parts.end(k)] <= last]
    return Record(tuple(stay))
