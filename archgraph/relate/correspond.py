"""The correspondence of two graphs, derived from the transfer between them.

1. A parameter or buffer of B corresponds to the tensor of A from which its values come. If several
   tensors of B come from the same tensor of A, all but the first are copies. Without a transfer,
   :func:`archgraph.align` pairs the tensors.
2. Blocks correspond if their parameters and buffers do. Blocks without parameters and buffers are
   paired in order, between the blocks that correspond.
3. Operators correspond if they use corresponding parameters or buffers. The other operators of
   corresponding blocks are paired in order, between those that correspond.
4. All other parts are missing or new. Axes and arguments of corresponding parts are compared.
"""

from __future__ import annotations

from typing import TypeAlias

from archgraph.errors import RewriteError
from archgraph.graph.argument import GraphLike, graph_of
from archgraph.graph.ir import ArchGraph
from archgraph.relate.align import align
from archgraph.relate.correspondence import Correspondence
from archgraph.relate.disparities import disparities
from archgraph.relate.partners import Partners, partners
from archgraph.states import Transfer, signature
from archgraph.states.state import first_difference

# From A's states to B's, or from the states of a common graph to A's and to B's.
Way: TypeAlias = "Transfer | tuple[Transfer, Transfer]"


def correspond(a: GraphLike, b: GraphLike, way: Way | None = None) -> Correspondence:
    """Return the corresponding parts of two graphs, and every difference between them.

    Args:
        a: A graph, usually the larger one or the one before a rewrite.
        b: Another graph.
        way: The transfer from A's states to B's. Or, for two clients of a family, a pair of
            transfers from the global model's states to A's and to B's. Default: align the graphs by
            structure.

    Raises:
        RewriteError: If a transfer does not start or end at its graph.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> from archgraph.rewrites.take import take
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        >>> graph = trace(net, torch.zeros(1, 3)).graph
        >>> small = take(graph, 0.5)
        >>> found = correspond(graph, small, small.transfer)
        >>> [(d.kind, d.a, d.before, d.after) for d in found.differences]
        [('narrower', '0.out', 4, 2)]
    """
    a, b = graph_of(a), graph_of(b)
    pairs = _aligned(a, b) if way is None else _through(a, b, way)
    return Correspondence(
        a,
        b,
        way is not None,
        tuple(pairs.blocks),
        tuple((x, y) for y, x in pairs.nodes.items()),
        tuple((x, y) for y, x in pairs.leaves.items()),
        tuple(disparities(pairs)),
    )


def _aligned(a: ArchGraph, b: ArchGraph) -> Partners:
    """Pair parts by structure; an alignment omits operators that act only in training."""
    alignment = align(b, a)
    state = set(b.state_names)
    leaves = {y: x for y, x in alignment.leaves if y in state}
    blocks = [(x, y) for y, x in alignment.blocks]
    return partners(a, b, leaves, blocks=blocks, nodes=dict(alignment.nodes))


def _through(a: ArchGraph, b: ArchGraph, way: Way) -> Partners:
    """Pair parts by the source of each entry of B's state."""
    into_a, into_b = (Transfer.identity(a), way) if isinstance(way, Transfer) else way
    ends = (into_a.target, signature(a)), (into_b.target, signature(b))
    for actual, expected in (*ends, (into_b.source, into_a.source)):
        if actual != expected:
            raise RewriteError(
                "the transfer does not lead from one graph to the other",
                **first_difference(actual, expected),
            )
    known: dict[str | None, str] = {}
    for name, entry in into_a.entries.items():
        known.setdefault(entry.source, name)
    known.pop(None, None)
    leaves: dict[str, str] = {}
    copies: dict[str, str] = {}
    used: set[str] = set()
    # The first entry of B with a source is its counterpart; further ones are copies.
    for name, entry in into_b.entries.items():
        if (origin := known.get(entry.source)) is not None:
            (copies if origin in used else leaves)[name] = origin
            used.add(origin)
    return partners(a, b, leaves, copies)
