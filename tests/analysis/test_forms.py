"""Forms: what a part of a graph computes, names and widths aside."""

from __future__ import annotations

import torch
from torch import nn

from archgraph.analysis.forms import forms
from tests.nets import captured, with_parts


@with_parts(
    lambda: {
        "layer": nn.Linear(3, 4),
        "table": nn.Parameter(torch.randn(4)),
    }
)
def Table(self, x):
    """A table of numbers, some of which drop out in training, is added to the result."""
    return self.layer(x) + nn.functional.dropout(self.table, 0.5, self.training)


def test_dropout_of_a_leaf_has_a_form():
    graph = captured(Table(), torch.zeros(2, 3)).graph
    assert set(forms(graph).whole.words) == {"linear", "dropout", "add"}
