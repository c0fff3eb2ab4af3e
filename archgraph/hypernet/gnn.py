"""Gated graph network that visits nodes one after the other (RecipFL, Eqs. 6–7)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import SimpleConv

from archgraph.hypernet.graphs import Sweep


class GatedGNN(nn.Module):
    """``h_v ← GRU(h_v, Σ MLP(h_u))`` over the nodes u before v, forward and then backward.

    Within a traversal a node sees its neighbours as this traversal left them. Nodes of one level
    do not see one another, so a level of all graphs together is one step.

    Args:
        width: Size of a node's features.
        steps: Number of times that both traversals are run (τ).

    Source:
        RecipFL, Eqs. 6–7: one MLP and one GRU cell for all nodes and both directions.
    """

    def __init__(self, width: int = 128, steps: int = 1) -> None:
        super().__init__()
        self.steps = steps
        self.message = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.cell = nn.GRUCell(width, width)
        self.sum = SimpleConv(aggr="sum")

    def forward(self, features: Tensor, there: Sweep, back: Sweep) -> Tensor:
        """Features after all traversals.

        Args:
            features: [nodes, width].
            there: Plan of the forward traversal.
            back: Plan of the backward traversal.

        Returns:
            [nodes, width], in the order of the features.
        """
        for _ in range(self.steps):
            features = self._traverse(self._traverse(features, there), back)
        return features

    def _traverse(self, features: Tensor, plan: Sweep) -> Tensor:
        sizes = [level.size for level in plan.levels]
        before = features[plan.order]
        # What the cell takes from a node's own features is known before the traversal begins.
        own = functional.linear(before, self.cell.weight_hh, self.cell.bias_hh).split(sizes)
        # Levels stay apart: a buffer of all nodes would be copied, and its gradient, per level.
        after: list[Tensor] = []
        sent: list[Tensor] = []
        for level, h, kept in zip(plan.levels, before.split(sizes), own, strict=True):
            if level.sources:
                parts = [sent[k] if rows is None else sent[k][rows] for k, rows in level.sources]
                senders = parts[0] if len(parts) == 1 else torch.cat(parts)
                size = (len(senders), level.size)
                received = self.sum((senders, None), level.edge_index, size=size)
                given = functional.linear(received, self.cell.weight_ih, self.cell.bias_ih)
            else:
                given = self.cell.bias_ih.expand(level.size, -1)
            after.append(_gates(h, given, kept))
            sent.append(self.message(after[-1]))
        return torch.cat(after)[plan.place]


def _gates(h: Tensor, given: Tensor, kept: Tensor) -> Tensor:
    """A GRU cell after its two products, gates in torch's order (reset, update, new)."""
    width = h.shape[1]
    reset, update = torch.sigmoid(given[:, : 2 * width] + kept[:, : 2 * width]).chunk(2, 1)
    new = torch.tanh(given[:, 2 * width :] + reset * kept[:, 2 * width :])
    return torch.lerp(new, h, update)
