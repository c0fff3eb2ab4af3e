"""Add step sizes: learnable factors on residual branches (NeFL)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch

from archgraph.errors import RewriteError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph, Leaf, Node, Param, TensorType
from archgraph.ops.constants import constant
from archgraph.ops.schema import torch_dtype
from archgraph.rewrites.branches import STEP_SIZE, Branch, Inserted, on_branches, residuals
from archgraph.rewrites.insert import fresh
from archgraph.rewrites.laws import same_function
from archgraph.states import Rewritten


@takes_graph
def add_step_sizes(
    graph: ArchGraph,
    blocks: str | Iterable[str] | None = None,
    *,
    initial: float | Mapping[str, float] = 1.0,
    learnable: bool = True,
    allow_nothing: bool = False,
    verify: bool = False,
) -> Rewritten:
    """Multiply each residual branch by its own scalar, before the shortcut is added.

    The network computes the same function while all step sizes are 1. A Transformer layer gets two
    step sizes, one for attention and one for feed-forward.

    Args:
        graph: The architecture.
        blocks: Names or patterns of residual blocks. Default: all residual blocks.
        initial: Initial step size of all blocks, or a dict from block to initial step size. Blocks
            that are not in the dict start with 1.
        learnable: If True, the step sizes are trained.
        allow_nothing: If True, return a model without residual blocks unchanged.
        verify: Check that the function is the same if all step sizes are 1 (three forward passes in
            float64).

    Raises:
        GraphError: If a block does not exist. The message suggests the nearest name.
        RewriteError: If a block is not residual; if it already has a step size; if the model has no
            residual block and ``allow_nothing`` is False.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> stepped = add_step_sizes(trace(net, torch.zeros(1, 5, 8)).graph)
        >>> [p.name for p in stepped.graph.params if not p.shape]
        ['linear1.step_size', 'self_attn.step_size']

    Source: Kang et al., *NeFL: Nested Model Scaling for Federated Learning*, Eq. 3.
    """
    chosen = residuals(graph, blocks)
    starts = dict(initial) if isinstance(initial, Mapping) else {b.name: initial for b in chosen}
    if unknown := sorted(set(starts) - {b.name for b in chosen}):
        known = ", ".join(b.name for b in chosen)
        raise RewriteError("step size for another block", found=unknown[0], expected=known)
    for name, start in starts.items():
        if not isinstance(start, (int, float)) or not math.isfinite(start):
            raise RewriteError("step size is not a finite number", where=name, found=start)
    names = set(graph.node)

    def step(branch: Branch) -> Inserted:
        type_ = TensorType((), branch.node.dtype)
        first = torch.tensor(starts.get(branch.block.name, 1.0), dtype=torch_dtype(type_.dtype))
        param = Param(branch.path, type_, trainable=learnable, value=constant(first))
        node = Node(
            fresh(names, f"{branch.node.name}_step"),
            "aten.mul.Tensor",
            (("self", branch.value), ("other", Leaf(param.name))),
            branch.node.type,
            branch.merge.scope,
            branch.merge.source,
        )
        return (node,), (param,)

    rewritten = on_branches(graph, chosen, STEP_SIZE, step, allow_nothing=allow_nothing)
    if verify and chosen:  # the law holds at 1, independent of the initial step size
        same_function(graph, add_step_sizes(graph, [b.name for b in chosen]))
    return rewritten
