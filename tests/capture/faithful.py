"""The law of capture: the built module is the original, in both modes, for every batch size."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import archgraph as ag
from archgraph.capture.trace import Traced
from archgraph.ops.infer import infer
from tests.nets import captured


def tensors(outputs: Any) -> list[torch.Tensor]:
    """All tensors of a model's outputs, in order."""
    if dataclasses.is_dataclass(outputs):
        outputs = [getattr(outputs, f.name) for f in dataclasses.fields(outputs)]
    return [t for t in pytree.tree_leaves(outputs) if isinstance(t, torch.Tensor)]


def resized(inputs: Any, batch: int) -> Any:
    """The inputs with a batch of another size; equal calls give equal values."""
    generator = torch.Generator().manual_seed(batch)

    def resize(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not x.dim():
            return x
        shape = (batch, *x.shape[1:])
        if not x.is_floating_point():
            return x[:1].expand(shape).contiguous()
        return torch.randn(shape, generator=generator).to(x.dtype)

    return pytree.tree_map(resize, inputs)


def _run(module: nn.Module, args: Any, kwargs: Any) -> tuple[list[torch.Tensor], dict[str, Any]]:
    module.zero_grad()
    torch.manual_seed(0)
    outputs = tensors(module(*copy.deepcopy(args), **copy.deepcopy(kwargs)))
    smooth = [t for t in outputs if t.requires_grad]
    if smooth:
        torch.stack([t.abs().double().square().sum() for t in smooth]).sum().backward()
    return outputs, {n: p.grad for n, p in module.named_parameters()}


def assert_faithful(
    net: nn.Module,
    *args: Any,
    batches: tuple[int, ...] = (1, 2, 5),
    tolerance: float = 1e-6,
    **kwargs: Any,
) -> Traced:
    """Outputs, gradients, buffers and state keys agree; text, types and a second trace too."""
    traced = ag.trace(net, *copy.deepcopy(args), **copy.deepcopy(kwargs))
    graph, state = traced
    ag.check(graph)
    assert infer(graph) == graph
    assert ag.parse(str(graph)) == graph
    start = {k: v.detach().clone() for k, v in net.state_dict().items()}
    for batch in batches:
        given, named = resized(args, batch), resized(kwargs, batch)
        for training in (False, True):
            net.load_state_dict(start)
            built = ag.build(graph, state).train(training)
            built.load_state_dict(start, strict=True)
            expected, gradients = _run(net.train(training), given, named)
            found, others = _run(built, given, named)
            assert len(found) == len(expected)
            for a, b in zip(found, expected, strict=True):
                assert a.dtype == b.dtype and a.requires_grad == b.requires_grad
                torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
            for name, gradient in gradients.items():
                other = others[name]
                assert (gradient is None) == (other is None), name
                if gradient is not None and other is not None:
                    scale = float(gradient.abs().max()) or 1.0
                    torch.testing.assert_close(
                        other / scale, gradient / scale, rtol=0, atol=tolerance
                    )
            for name, tensor in net.state_dict().items():
                torch.testing.assert_close(
                    built.state_dict()[name], tensor, rtol=tolerance, atol=tolerance
                )
    net.load_state_dict(start)
    again = captured(ag.build(graph, state), *copy.deepcopy(args), **copy.deepcopy(kwargs))
    assert again.graph == graph
    return traced
