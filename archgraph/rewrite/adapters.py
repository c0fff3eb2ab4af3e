"""Adapters: a small bottleneck on the branch of every residual block, zero at the start."""

from __future__ import annotations

from collections.abc import Iterable

from archgraph.errors import RewriteError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph, Leaf, Node, Param, Ref, TensorType, Value
from archgraph.ops.check import check
from archgraph.rewrite.insert import (
    Branch,
    before,
    branches,
    channels,
    fresh,
    initialised,
    last_leaf,
    residuals,
    with_leaves,
)
from archgraph.states import Rewritten

NAME = "adapter"


@takes_graph
def add_adapters(
    graph: ArchGraph,
    size: int,
    blocks: str | Iterable[str] | None = None,
    *,
    verify: bool = False,
) -> Rewritten:
    """Add ``h + up(gelu(down(h)))`` to the branch ``h`` of residual blocks, right before the sum.

    ``up`` starts at zero, so that the network computes the same until it is trained. Where channels
    are the last dimension both layers are linear, where they are the first after the batch they
    are convolutions of kernel one.

    Args:
        graph: The architecture.
        size: Width of the bottleneck.
        blocks: Names or patterns of residual blocks; all of them by default.
        verify: Check that the function is the same (two forwards in float64).

    Raises:
        GraphError: For a block that does not exist; names the nearest.
        RewriteError: For a block that is not residual, or whose branch has no channel dimension at
            either end.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> class Net(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.stem, self.body = torch.nn.Linear(3, 8), torch.nn.Linear(8, 8)
        ...         self.head = torch.nn.Linear(8, 2)
        ...
        ...     def forward(self, x):
        ...         x = self.stem(x)
        ...         return self.head(x + self.body(x).relu())
        >>> small = add_adapters(trace(Net(), torch.zeros(1, 3)).graph, 2, verify=True)
        >>> [(p.name, p.shape) for p in small.graph.params if "down" in p.name]
        [('body.adapter.down.weight', (2, 8)), ('body.adapter.down.bias', (2,))]

    Source: Houlsby et al., *Parameter-Efficient Transfer Learning for NLP*, ICML 2019, §2.
    """
    if type(size) is not int or size < 1:
        raise RewriteError("width of the adapters", found=size, expected="a number from 1")
    chosen = residuals(graph, blocks)
    node_names = set(graph.node)
    leaves = {name for p in graph.params for name in (p.name, *p.aliases)}
    inserted: dict[tuple[str, Value], list[Node]] = {}
    added: list[tuple[str, Param]] = []
    for block in chosen:
        place = last_leaf(graph, block)
        for branch in branches(graph, block, NAME):
            if f"{branch.path}.down.weight" in leaves:
                raise RewriteError("block has an adapter already", where=block.name)
            nodes, params = _bottleneck(graph, branch, size, node_names)
            inserted[branch.merge.name, branch.value] = nodes
            added += [(place, p) for p in params]
    if not chosen:
        return Rewritten.identity(graph)
    new = graph.replace(nodes=before(graph, inserted), params=with_leaves(graph, added))
    check(new)
    rewritten = initialised(graph, new, {p.name for _, p in added if ".up." in p.name})
    if verify:
        from archgraph.rewrite.laws import same_function

        same_function(graph, rewritten)
    return rewritten


def _bottleneck(
    graph: ArchGraph, branch: Branch, size: int, node_names: set[str]
) -> tuple[list[Node], list[Param]]:
    source, stem = branch.node, branch.path
    shape, dtype = source.shape, source.dtype
    at, wide = channels(graph, source, stem)
    last = at == len(shape) - 1
    if not last and at != 1:
        raise RewriteError(
            "channels are neither the first nor the last dimension", where=stem, found=source.type
        )
    kernel = () if last else (1,) * (len(shape) - 2)
    op = "aten.linear" if last else f"aten.conv{len(kernel)}d"
    nodes: list[Node] = []
    params: list[Param] = []

    def layer(name: str, value: Value, out: int, into: int) -> Ref:
        weight = Param(f"{stem}.{name}.weight", TensorType((out, into, *kernel), dtype))
        bias = Param(f"{stem}.{name}.bias", TensorType((out,), dtype))
        params.extend((weight, bias))
        args: tuple[tuple[str, Value], ...] = (
            ("input", value),
            ("weight", Leaf(weight.name)),
            ("bias", Leaf(bias.name)),
        )
        result = (*shape[:at], out, *shape[at + 1 :])
        node = Node(fresh(node_names, name), op, args, TensorType(result, dtype), f"{stem}.{name}")
        nodes.append(node)
        return Ref(node.name)

    narrow = layer("down", branch.value, size, wide)
    bent = nodes[-1]
    act = Node(fresh(node_names, "gelu"), "aten.gelu", (("self", narrow),), bent.type, stem)
    nodes.append(act)
    back = layer("up", Ref(act.name), wide, size)
    total = (("self", branch.value), ("other", back))
    nodes.append(Node(fresh(node_names, "adapted"), "aten.add.Tensor", total, source.type, stem))
    return nodes, params
