"""Train only some parameters, chosen by patterns; all others are frozen."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph, Param
from archgraph.ops.check import check
from archgraph.ops.schema import torch_dtype
from archgraph.rewrites.insert import matching
from archgraph.states import Rewritten, Transfer


@takes_graph
def train_only(graph: ArchGraph, patterns: str | Iterable[str]) -> Rewritten:
    """Freeze all parameters of an architecture except the chosen ones.

    The network's function and state do not change. In the built module, ``requires_grad`` is True
    only for the chosen parameters. Buffers are not frozen: in training mode, the running statistics
    of norm layers are still updated.

    Args:
        graph: The architecture.
        patterns: Names of the parameters to train, or patterns (``*.adapter*``, ``classifier.*``).
            A tied parameter is chosen if any of its names matches.

    Raises:
        GraphError: If a pattern matches no trainable parameter. The message suggests the nearest
            names.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
        >>> head = train_only(trace(net, torch.zeros(1, 3)).graph, "1.*")
        >>> [p.name for p in head.graph.params if p.trainable]
        ['1.weight', '1.bias']

    Source: RecipFL, §5.1: "only the adapters and classification heads are updated […] while the
    other layers are fixed at local".
    """
    owners = {name: p.name for p in graph.params if _real(p) for name in (p.name, *p.aliases)}
    chosen = matching(patterns, owners, "matches no trainable parameter")
    params = tuple(
        dataclasses.replace(p, trainable=p.name in chosen) if p.role == "parameter" else p
        for p in graph.params
    )
    new = graph.replace(params=params)
    check(new)
    return Rewritten(new, Transfer.identity(graph))


def _real(param: Param) -> bool:
    """Return whether a leaf can have a gradient."""
    dtype = torch_dtype(param.dtype)
    return param.role == "parameter" and (dtype.is_floating_point or dtype.is_complex)
