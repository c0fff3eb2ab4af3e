"""A quicker export: the same program, lines of code included, and nothing stays changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import GraphModule, proxy
from torch.fx.experimental.sym_node import SymNode

import archgraph as ag
from archgraph.capture.examples import at_size
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


@with_parts(lambda: {"one": nn.Linear(4, 5), "other": nn.Linear(3, 5)})
def Branching(self, x, y):
    """Two inputs, and branches on the size of the batch of which one alone makes a difference."""
    x = self.one(x) + self.other(y)
    if x.shape[0] > 10:
        x = x.contiguous()
    if x.shape[0] > 20:
        x = x * 2
    return x.sin() if x.shape[0] > 30 else x


def test_a_range_takes_an_export_on_each_side_of_a_branch_and_none_behind_its_end(monkeypatch):
    """No export fails on the way, none copies numbers, and the range is that of the guards."""
    sizes, export = [], torch.export.export

    def counted(model, args, *rest, **options):
        sizes.append(len(args[0]))
        return export(model, args, *rest, **options)

    monkeypatch.setattr(torch.export, "export", counted)
    graph, _ = ag.trace(Branching(), torch.ones(2, 4), torch.ones(2, 3), verify=False, train=False)
    assert sizes == [2, 11, 21]
    assert graph.notes[0].startswith("the graph is valid for batch < 21;")


def test_sizes_of_millions_of_examples_take_no_memory():
    inputs: Any = (torch.ones(2, 4, requires_grad=True), torch.ones(3, dtype=torch.int64)), {}
    wide, other = at_size(inputs, [{0: "batch"}, {}], "batch", 1 << 27, numbers=False)[0]
    assert (wide.shape, wide.dtype, wide.requires_grad) == ((1 << 27, 4), torch.float32, True)
    assert other is inputs[0][1]
