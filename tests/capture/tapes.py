"""Tapes of tiny functions, and what a tape computes when its calls are run one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from archgraph.capture.calls import region
from archgraph.capture.export import export_program
from archgraph.capture.inline import inline
from archgraph.capture.tape import FOLDED, Tape
from archgraph.capture.trace import Leaves
from archgraph.graph.ir import Polynomial
from archgraph.ops.constants import constant_tensor


class Tiny(nn.Module):
    """A weight, buffers in the state and outside it, and a forward to be written in one line."""

    row: torch.Tensor
    scratch: torch.Tensor

    def __init__(self, body: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3, 3, generator=generator))
        self.register_buffer("row", torch.arange(3.0))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)
        self.body = [body]

    def forward(self, x: torch.Tensor) -> Any:
        return self.body[0](self, x)


# Of few binary digits: sums of products with whole numbers are exact in whatever order.
X = (torch.randn(4, 3, generator=torch.Generator().manual_seed(1)) * 256).round() / 256


def inlined(body: Callable[[Any, torch.Tensor], Any]) -> tuple[Tape, Tiny]:
    """The flat tape of a function, and the module that it is the forward of."""
    net = Tiny(body)
    captured = export_program(net, (X,), {})
    return inline(captured.program, captured.names, Leaves.of(net).owner), net


def calls(tape: Tape) -> list[str]:
    """Operators of a tape that are not folded, in order."""
    live = [n for n in tape.graph.nodes if n.op == "call_function" and FOLDED not in n.meta]
    return [str(n.target) for n in live if isinstance(n.target, torch._ops.OpOverload)]


def run(tape: Tape, net: Tiny, x: torch.Tensor) -> list[Any]:
    """Results of a tape, each call under its own switches."""
    tensors = dict(net.named_parameters()) | {k: v.clone() for k, v in net.named_buffers()}
    values: dict[Any, Any] = {}

    def real(node: Any) -> Any:
        if isinstance(node, Polynomial):
            return node.value({"batch": len(x)})
        if not isinstance(node, torch.fx.Node):
            return node
        if node not in values:  # a size that the capture computed
            val = node.meta["val"]
            values[node] = val if isinstance(val, int) else int(val.node.expr.subs(_batch(x, val)))
        return values[node]

    for node in tape.graph.nodes:
        if node in tape.inputs:
            values[node] = x.clone()
        elif node in tape.leaves:
            values[node] = tensors[tape.leaves[node]]
        elif node in tape.constants:
            constant = tape.constants[node].value
            assert constant is not None
            values[node] = constant_tensor(constant)
        elif node in tape.tensors:
            values[node] = tape.tensors[node].clone()
        elif node.op == "call_function" and FOLDED not in node.meta:
            args, kwargs = pytree.tree_map(real, (tuple(node.args), dict(node.kwargs)))
            device, dtype = region(node).autocast or ("cpu", torch.bfloat16)
            on = region(node).autocast is not None
            with torch.set_grad_enabled(region(node).grad):
                with torch.autocast(device, dtype, enabled=on):
                    values[node] = node.target(*args, **kwargs)
    return [values[n] for n in tape.results]


def _batch(x: torch.Tensor, size: torch.SymInt) -> dict[Any, int]:
    return dict.fromkeys(size.node.expr.free_symbols, x.shape[0])
