"""What a shell and a notebook show of a graph's analyses: one line, and a small table."""

from __future__ import annotations

import torch
from torch import nn

import archgraph as ag


def test_everything_fits_a_line_and_a_table():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    graph = ag.trace(net, torch.zeros(1, 3)).graph
    axes, structure, cost = ag.axes(graph), ag.structure(graph), ag.cost(graph)
    assert repr(graph) == f"<ArchGraph {graph.name!r}: 4 operators, 4 leaves>"
    assert repr(axes) == "<Axes: 1 free, 2 pinned>"
    assert repr(structure) == "<Structure: 2 sections, 2 blocks>"
    assert repr(structure.sections[0]) == "<Section 0 (stage): 1 block>"
    assert repr(cost) == "<Cost: 26 parameters, 20 macs, 104 bytes, 52 activations>"
    assert "free" in axes._repr_html_() and "0.out" in axes._repr_html_()
    assert structure.blocks[0].reason in structure._repr_html_()
    assert ">104<" in cost._repr_html_()
    for shown in (*axes.all, *structure.blocks):
        assert "\n" not in repr(shown)
