"""Gated graph network that visits nodes sequentially (RecipFL, Eqs. 6–7; GHN-2, Eq. 4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import SimpleConv

from archgraph.hypernet.graphs import Messages, Sweep


class GatedGNN(nn.Module):
    """A graph neural network that updates node features along the edges, then against them.

    A traversal visits the nodes level by level. Nodes of the same level are not connected. The
    update of a node v is ``h_v ← GRU(h_v, Σ MLP(h_u))``, where the sum is over the nodes u with an
    edge to v. In the backward traversal, the sum is over the nodes u with an edge from v. In both
    cases, the features of the nodes u are already updated.

    Args:
        width: Size of a node's features.
        steps: Number of times that both traversals are run (τ).
        virtual: If True, nodes also receive messages over virtual edges. A virtual edge connects
            two nodes whose shortest path has several edges. The messages over virtual edges are
            computed by a separate MLP and divided by the length of the path.

    Source:
        RecipFL, Eqs. 6–7: one MLP and one GRU cell for all nodes and both directions. Virtual
        edges: Knyazev et al., *Parameter Prediction for Unseen Deep Architectures*, 2021, Eq. 4.
    """

    def __init__(self, width: int = 128, steps: int = 1, *, virtual: bool = False) -> None:
        super().__init__()
        self.steps = steps
        self.message = _mlp(width)
        self.virtual = _mlp(width) if virtual else None
        self.cell = nn.GRUCell(width, width)
        self.sum = SimpleConv(aggr="sum")

    def forward(self, features: Tensor, there: Sweep, back: Sweep) -> Tensor:
        """Return the features after all traversals.

        Args:
            features: Node features [nodes, width].
            there: Plan of the forward traversal.
            back: Plan of the backward traversal.

        Returns:
            Features [nodes, width], with nodes in the same order as in ``features``.
        """
        for _ in range(self.steps):
            features = self._traverse(self._traverse(features, there), back)
        return features

    def _traverse(self, features: Tensor, plan: Sweep) -> Tensor:
        sizes = [level.size for level in plan.levels]
        before = features[plan.order]
        # The cell's product with a node's own features does not depend on the traversal.
        recurrents = functional.linear(before, self.cell.weight_hh, self.cell.bias_hh).split(sizes)
        # Keep levels separate: a buffer of all nodes would be copied, with its gradient, per level.
        after: list[Tensor] = []
        kinds = [mlp for mlp in (self.message, self.virtual) if mlp is not None]
        sent: list[list[Tensor]] = [[] for _ in kinds]
        for level, h, recurrent in zip(plan.levels, before.split(sizes), recurrents, strict=True):
            sums = [
                self._summed(messages, values, level.size)
                for messages, values in zip(level.messages, sent, strict=True)
                if messages.sources
            ]
            if sums:
                total = sum(sums[1:], sums[0])
                incoming = functional.linear(total, self.cell.weight_ih, self.cell.bias_ih)
            else:  # the first level: an empty sum is 0, and its product is the bias alone
                incoming = self.cell.bias_ih.expand(level.size, -1)
            after.append(_gates(h, incoming, recurrent))
            # Once per node, not per edge: it sends the same message to all receivers.
            for values, mlp in zip(sent, kinds, strict=True):
                values.append(mlp(after[-1]))
        return torch.cat(after)[plan.position]

    def _summed(self, messages: Messages, sent: list[Tensor], size: int) -> Tensor:
        """Sum the messages from earlier levels, [size, width]."""
        parts = [sent[k] if rows is None else sent[k][rows] for k, rows in messages.sources]
        senders = parts[0] if len(parts) == 1 else torch.cat(parts)
        # GHN-2, Eq. 4: a message over a path of s edges has the weight 1 / s.
        share = None if messages.distance is None else messages.distance.to(senders).reciprocal()
        sizes = (len(senders), size)
        total: Tensor = self.sum((senders, None), messages.edge_index, share, size=sizes)
        return total


def _mlp(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))


def _gates(h: Tensor, incoming: Tensor, recurrent: Tensor) -> Tensor:
    """Apply a GRU cell after its two products, with gates in torch's order (reset, update, new)."""
    width = h.shape[1]
    reset, update = torch.sigmoid(incoming[:, : 2 * width] + recurrent[:, : 2 * width]).chunk(2, 1)
    new = torch.tanh(incoming[:, 2 * width :] + reset * recurrent[:, 2 * width :])
    return torch.lerp(new, h, update)
