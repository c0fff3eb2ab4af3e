"""A node's current parameters as one vector (RecipFL §3.2: a Transformer over pieces of them)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from archgraph.errors import GraphError
from archgraph.states.copies import to_device


def bin_means(tensors: Sequence[Tensor], bins: int = 128) -> tuple[Tensor, Tensor]:
    """Reduce every tensor to at most ``bins`` means over equally long runs of its values.

    Args:
        tensors: Tensors of any shapes, of one device.
        bins: Greatest number of runs; a tensor with fewer values keeps them as they are.

    Returns:
        Means [tensors, bins], 0 beyond a tensor's own runs, and the number of runs [tensors].

    Example:
        >>> means, counts = bin_means([torch.tensor([1.0, 3, 5, 7, 9]), torch.ones(1)], bins=4)
        >>> means.tolist(), counts.tolist()
        ([[2.0, 6.0, 9.0, 0.0], [1.0, 0.0, 0.0, 0.0]], [3, 1])
    """
    rows = []
    for tensor in tensors:
        flat = tensor.detach().reshape(-1)
        step = max(math.ceil(flat.numel() / bins), 1)
        full_runs = flat.numel() // step
        means = flat[: full_runs * step].view(full_runs, step).mean(1) if step > 1 else flat
        if full_runs * step < flat.numel():
            means = torch.cat([means, flat[full_runs * step :].mean(0, keepdim=True)])
        rows.append(means)
    counts = torch.tensor([len(means) for means in rows])
    padded = torch.zeros(len(rows), bins, dtype=rows[0].dtype, device=rows[0].device)
    for line, means in zip(padded, rows, strict=True):
        line[: len(means)] = means
    return padded, counts


class ParameterEncoder(nn.Module):
    """Transformer over a tensor's :func:`bin_means`, cut into pieces; the mean of its pieces.

    Args:
        slots: Number of places that tensors fill; each has a vector of its own, by which a weight
            and a bias of equal values differ.
        width: Size of the result.
        bins: Numbers that a tensor is summarised by.
        piece: Numbers in a piece. 8 is 14 times cheaper than 1.
        heads: Heads of attention.
        hidden: Size of the Transformer's hidden layer.

    Raises:
        GraphError: If the numbers are not whole pieces.
    """

    def __init__(
        self,
        slots: int,
        width: int = 128,
        *,
        bins: int = 128,
        piece: int = 8,
        heads: int = 4,
        hidden: int = 64,
    ) -> None:
        super().__init__()
        if piece < 1 or bins < 1 or bins % piece:
            raise GraphError(f"{bins} bins are not whole pieces of {piece}")
        self.bins, self.piece = bins, piece
        self.embed = nn.Linear(piece, width)
        self.position = nn.Parameter(torch.randn(bins // piece, width) * 0.02)
        self.slot = nn.Embedding(slots, width)
        # Without dropout: the server generates twice, and must get the same weights.
        self.layer = nn.TransformerEncoderLayer(width, heads, hidden, dropout=0.0, batch_first=True)

    def forward(self, tensors: Sequence[Tensor], slots: Tensor) -> Tensor:
        """Return the codes of tensors.

        Args:
            tensors: Tensors of any shapes.
            slots: Number of each one's slot, [tensors].

        Returns:
            [tensors, width]. No gradient reaches the tensors.
        """
        weight = self.embed.weight
        if weight.is_meta:  # a check needs shapes alone
            return weight.new_empty(len(tensors), len(weight))
        means, counts = bin_means([t.to(weight.dtype) for t in tensors], self.bins)
        # The first piece is always there, even of a tensor without values.
        lengths = (-(-counts // self.piece)).clamp(min=1)
        codes, order = [], []
        for length in lengths.unique().tolist():  # equally many pieces at a time: none is padding
            rows = torch.nonzero(lengths == length).flatten()
            values = to_device(means[rows, : length * self.piece], weight.device)
            rows = to_device(rows, weight.device)
            pieces = self.embed(values.unflatten(1, (length, self.piece)))
            pieces = pieces + self.position[:length] + self.slot(slots[rows])[:, None]
            codes.append(self.layer(pieces).mean(1))
            order.append(rows)
        return torch.cat(codes)[torch.argsort(torch.cat(order))]
