"""Step sizes: a learnable factor on the branch of every residual block (NeFL)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from archgraph.analysis.structure import Block, structure
from archgraph.check import check
from archgraph.errors import RewriteError
from archgraph.ir import ArchGraph, Leaf, Node, Param, Ref, TensorType
from archgraph.ops.schema import torch_dtype
from archgraph.rewrite.depth import matching
from archgraph.rewrite.insert import before, branch, fresh, initialised, with_leaves
from archgraph.trace import constant
from archgraph.transfer import Rewritten

NAME = "step_size"


def steps(
    graph: ArchGraph,
    blocks: str | Iterable[str] | None = None,
    *,
    initial: float | Mapping[str, float] = 1.0,
    learnable: bool = True,
    verify: bool = False,
) -> Rewritten:
    """Multiply the branch of residual blocks by a scalar of their own, right before the sum.

    The network computes the same while all step sizes are one.

    Args:
        graph: The architecture.
        blocks: Names or patterns of residual blocks; all of them by default.
        initial: Step size to start from, for all blocks or by block name (one where not named).
        learnable: Whether the step sizes are trained.
        verify: Check that step sizes of one change nothing (two forwards in float64).

    Raises:
        RewriteError: For a block that does not exist, that is no residual block, or that has its
            step size already.

    Example:
        >>> import torch
        >>> from archgraph.trace import trace
        >>> class Net(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.stem, self.body = torch.nn.Linear(3, 4), torch.nn.Linear(4, 4)
        ...         self.head = torch.nn.Linear(4, 2)
        ...
        ...     def forward(self, x):
        ...         x = self.stem(x)
        ...         return self.head(x + self.body(x).relu())
        >>> stepped = steps(trace(Net(), torch.zeros(1, 3)).graph)
        >>> [p.name for p in stepped.graph.params if not p.shape]
        ['body.step_size']

    Source: Kang et al., *NeFL: Nested Model Scaling for Federated Learning*, Eq. 3.
    """
    found = structure(graph)
    chosen: list[Block]
    if blocks is None:
        chosen = [b for b in found.blocks if b.kind == "residual"]
    else:
        chosen = matching(found, [blocks] if isinstance(blocks, str) else list(blocks))
    starts = dict(initial) if isinstance(initial, Mapping) else {b.name: initial for b in chosen}
    unknown = sorted(set(starts) - {b.name for b in chosen})
    if unknown:
        raise RewriteError(
            "no such block to give a step size",
            found=unknown[0],
            expected=", ".join(b.name for b in chosen),
        )
    taken = set(graph.node)
    leaves = {name for p in graph.params for name in (p.name, *p.aliases)}
    inserted: dict[tuple[str, str], list[Node]] = {}
    added: list[tuple[str, Param]] = []
    for block in chosen:
        source = branch(graph, block)
        name = f"{block.name}.{NAME}"
        if name in leaves:
            raise RewriteError("block has a step size already", where=block.name, found=name)
        type_ = TensorType((), graph.node[source].types[0].dtype)
        value = constant(torch.tensor(starts.get(block.name, 1.0), dtype=torch_dtype(type_.dtype)))
        behind = [leaf for n in block.nodes for leaf in graph.node[n].leaves()]
        params = [p.name for p in graph.params if p.name in behind]
        added.append(
            (params[-1] if params else "", Param(name, type_, trainable=learnable, value=value))
        )
        merge = graph.node[block.merge]
        node = Node(
            fresh(taken, f"{source}_step"),
            "aten.mul.Tensor",
            (("self", Ref(source)), ("other", Leaf(name))),
            graph.node[source].type,
            merge.scope,
            merge.source,
        )
        inserted[merge.name, source] = [node]
    if not chosen:
        return Rewritten.identity(graph)
    new = graph.replace(nodes=before(graph, inserted), params=with_leaves(graph, added))
    check(new)
    rewritten = initialised(graph, new)
    if verify:
        from archgraph.rewrite.laws import same_function

        same_function(graph, steps(graph, [b.name for b in chosen]))
    return rewritten
