"""A quicker export: the same program, lines of code included, and nothing stays changed."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx import GraphModule, proxy
from torch.fx.experimental.sym_node import SymNode

from archgraph.capture.places import users_line
from archgraph.capture.quick import quicker
from tests.nets import with_parts


@with_parts(
    lambda: {
        "embed": nn.Conv2d(3, 8, 2, 2),
        "norm": nn.LayerNorm(8),
        "qkv": nn.Linear(8, 24),
    }
)
def Patches(self, x):
    """Patches of an image as tokens, in attention: views, norms, sizes that follow the batch."""
    x = self.norm(self.embed(x).flatten(2).transpose(1, 2))
    q, k, v = self.qkv(x).reshape(x.shape[0], -1, 3, 2, 4).permute(2, 0, 3, 1, 4)
    x = nn.functional.scaled_dot_product_attention(q, k, v)
    return x.transpose(1, 2).reshape(-1, 8) + x.shape[0]


@with_parts()
def Either(self, x):
    """A branch by value: its two graphs are called while they are captured."""
    return torch.cond(x.sum() > 0, lambda x: x.view(-1) * 2, lambda x: x.view(-1) - 1, (x,))


def exported(model, x):
    sizes = {"x": {0: torch.export.Dim("batch", min=2)}}
    return torch.export.export(model, (x,), dynamic_shapes=sizes, strict=False)


def shown(program):
    """The calls of a program with their results, the ranges of its sizes, the user's lines."""
    nodes = program.graph.nodes
    lines = [users_line(n.meta.get("stack_trace")) for n in nodes]
    outlines = [
        (str(v.shape), str(v.stride()), v.dtype) if isinstance(v, torch.Tensor) else str(v)
        for v in (n.meta.get("val") for n in nodes)
    ]
    return str(program.graph), outlines, str(program.range_constraints), lines


@pytest.mark.parametrize("model", [Patches(), Either()], ids=lambda m: type(m).__name__)
def test_the_program_is_the_same(model):
    x = torch.ones(2, 3, 4, 4)
    expected = exported(model, x)
    before = dict(vars(SymNode)), vars(proxy)["CapturedTraceback"], GraphModule.recompile
    with quicker(open_sizes=True):
        program = exported(model, x)
        assert GraphModule.recompile is not before[2]
    assert (dict(vars(SymNode)), vars(proxy)["CapturedTraceback"], GraphModule.recompile) == before
    assert shown(program) == shown(expected)
    assert any(shown(program)[-1])
    assert torch.equal(program.module()(x), model(x))  # compiled when it is called
