"""Forms: what a part of a graph computes, names and widths aside."""

from __future__ import annotations

import torch
from torch import nn

import archgraph as ag
from archgraph.analysis.forms import forms


class Table(nn.Module):
    """A table of numbers, some of which drop out in training, is added to the result."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table = nn.Linear(3, 4), nn.Parameter(torch.randn(4))

    def forward(self, x):
        return self.layer(x) + nn.functional.dropout(self.table, 0.5, self.training)


def test_dropout_of_a_leaf_has_a_form():
    graph = ag.trace(Table(), torch.zeros(2, 3)).graph
    assert set(forms(graph).whole.words) == {"linear", "dropout", "add"}
