"""Idioms in figures, tables and explanations: one box, one name, their own figures."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import archgraph as ag
from archgraph.analysis.structure import structure
from archgraph.display.pieces import Detail
from archgraph.display.scene import Scene, scene
from archgraph.display.summary import summary_table
from archgraph.graph.ir import ArchGraph
from tests.nets import captured


class Normed(nn.Module):
    """A residual block whose norm several operators spell out, with a rotary embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.linear, self.out = nn.Linear(8, 8), nn.Linear(8, 8)
        self.cos, self.sin = torch.rand(5, 4), torch.rand(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        heads = self.linear(normed).reshape(-1, 5, 2, 4).transpose(1, 2)
        turned = torch.cat((-heads[..., 2:], heads[..., :2]), dim=-1)
        rotated = heads * self.cos + turned * self.sin
        return x + self.out(rotated.transpose(1, 2).reshape(-1, 5, 8))


def drawn(graph: ArchGraph, detail: Detail = "block") -> Scene:
    sections = structure(graph).sections
    framing = [(s.name, [(b.name, b.nodes) for b in s.blocks]) for s in sections]
    return scene(graph, framing, detail=detail, fold=False)


def net() -> ArchGraph:
    return captured(
        nn.Sequential(nn.Linear(8, 8), Normed(), nn.Linear(8, 2)), torch.zeros(2, 5, 8)
    ).graph


def test_an_idiom_is_one_box_with_its_name_family_and_parameters() -> None:
    graph = net()
    boxes = {box.lines[0].text: box for box in drawn(graph).boxes}
    norm, rotary = boxes["RMSNorm"], boxes["rotary embedding"]
    assert (norm.parameters, norm.family, len(norm.lines), len(norm.nodes)) == (8, "norm", 1, 6)
    # What only moves values into it is in its box, without a name.
    operators = [graph.node[name].op for name in rotary.nodes]
    assert operators[:2] == ["aten.reshape", "aten.transpose.int"] and len(rotary.lines) == 1
    assert rotary.family == "attention"  # not a table of embeddings
    assert [line.text for line in boxes["linear → 8"].lines] == ["linear → 8"]


def test_operators_alone_are_not_the_idiom() -> None:
    words = [box.lines[0].text for box in drawn(net(), "node").boxes]
    assert "rsqrt" in words and "RMSNorm" not in words


def test_a_convolution_is_called_after_what_it_mixes() -> None:
    convs = nn.Sequential(
        nn.Conv2d(4, 8, 3, groups=4, stride=2), nn.Conv2d(8, 6, 1), nn.Conv2d(6, 2, 1, groups=2)
    )
    boxes = drawn(captured(convs, torch.zeros(2, 4, 9, 9)).graph).boxes
    assert [box.lines[0].text for box in boxes[1:-1]] == [
        "depthwise conv 3×3 → 8, stride 2",
        "pointwise conv → 6",
        "conv2d 1×1 → 2, groups 2",
    ]


def test_tables_and_explanations_name_them() -> None:
    graph = net()
    assert summary_table(graph).note.endswith("\nidioms: 1 rotary embedding, 1 RMSNorm")
    explained = ag.explain(graph, "0.out")
    assert explained.axes[0].spans == ("RMSNorm in 1",)
