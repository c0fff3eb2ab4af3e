"""Add bottleneck adapters to residual branches, initialised to have no effect."""

from __future__ import annotations

from collections.abc import Iterable

from archgraph.errors import RewriteError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph, Leaf, Node, Param, Ref, TensorType, Value
from archgraph.rewrites.branches import Branch, Inserted, on_branches, residuals
from archgraph.rewrites.insert import channels, fresh
from archgraph.rewrites.laws import same_function
from archgraph.states import Rewritten


@takes_graph
def add_adapters(
    graph: ArchGraph,
    size: int,
    blocks: str | Iterable[str] | None = None,
    *,
    allow_nothing: bool = False,
    verify: bool = False,
) -> Rewritten:
    """Add ``up(gelu(down(h)))`` to the output ``h`` of each residual branch.

    The weights of ``up`` start at zero, so the network computes the same function until it is
    trained. If channels are the last dimension, ``down`` and ``up`` are linear layers. If channels
    are the first dimension after the batch, both are convolutions with kernel size 1.

    Args:
        graph: The architecture.
        size: Width of the bottleneck.
        blocks: Names or patterns of residual blocks. Default: all residual blocks.
        allow_nothing: If True, return a model without residual blocks unchanged.
        verify: Check that the function is the same (three forward passes in float64).

    Raises:
        GraphError: If a block does not exist. The message suggests the nearest name.
        RewriteError: If a block is not residual; if channels are neither the last dimension nor the
            first dimension after the batch; if the model has no residual block and
            ``allow_nothing`` is False.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> small = add_adapters(trace(net, torch.zeros(1, 5, 8)).graph, 2, verify=True)
        >>> [(p.name, p.shape) for p in small.graph.params if "down.weight" in p.name]
        [('linear1.adapter.down.weight', (2, 8)), ('self_attn.adapter.down.weight', (2, 8))]

    Source: Houlsby et al., *Parameter-Efficient Transfer Learning for NLP*, ICML 2019, §2.
    """
    if type(size) is not int or size < 1:
        raise RewriteError("adapter size out of range", found=size, expected="an integer from 1")
    names = set(graph.node)  # shared by all branches, so that new names are unique

    def bottleneck(branch: Branch) -> Inserted:
        source, stem = branch.node, branch.path
        shape, dtype = source.shape, source.dtype
        at, wide = channels(graph, source, stem)
        last = at == len(shape) - 1
        if not last and at != 1:
            raise RewriteError(
                "channels are neither the first nor the last dimension",
                where=stem,
                found=source.type,
            )
        # A convolution with kernel size 1 is a linear layer at every position.
        kernel = () if last else (1,) * (len(shape) - 2)
        op = "aten.linear" if last else f"aten.conv{len(kernel)}d"
        params: list[Param] = []

        def layer(name: str, value: Value, out: int, into: int) -> Node:
            weight = Param(f"{stem}.{name}.weight", TensorType((out, into, *kernel), dtype))
            bias = Param(f"{stem}.{name}.bias", TensorType((out,), dtype))
            params.extend((weight, bias))
            args = (("input", value), ("weight", Leaf(weight.name)), ("bias", Leaf(bias.name)))
            type_ = TensorType((*shape[:at], out, *shape[at + 1 :]), dtype)
            return Node(fresh(names, name), op, args, type_, f"{stem}.{name}")

        down = layer("down", branch.value, size, wide)
        into = (("self", Ref(down.name)),)
        act = Node(fresh(names, "gelu"), "aten.gelu", into, down.type, stem)
        up = layer("up", Ref(act.name), wide, size)
        total = (("self", branch.value), ("other", Ref(up.name)))
        adapted = Node(fresh(names, "adapted"), "aten.add.Tensor", total, source.type, stem)
        return (down, act, up, adapted), params

    # Only `up` starts at zero: if both did, neither weight would get a gradient.
    rewritten = on_branches(
        graph,
        residuals(graph, blocks),
        "adapter",
        bottleneck,
        lambda leaf: ".up." in leaf,
        allow_nothing=allow_nothing,
    )
    if verify:
        same_function(graph, rewritten)
    return rewritten
