"""Inner products of each pair of clients' updates, with one update in memory at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from archgraph.states import State
from archgraph.states.spill import Spill, StoredState

PIECE = 1 << 16  # values of each update that are compared at a time


class PairwiseProducts:
    """Stores clients' updates on disk, and computes the matrix of their inner products.

    Example:
        >>> products = PairwiseProducts()
        >>> products.add(4, {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor(1.0)})
        >>> products.add(7, {"w": torch.tensor([3.0, -1.0]), "b": torch.tensor(0.0)})
        >>> products.of([4, 7]).tolist()
        [[6.0, 1.0], [1.0, 10.0]]
    """

    def __init__(self) -> None:
        self._spill = Spill()
        self._stored: dict[int, StoredState] = {}

    def add(self, client: int, update: State) -> None:
        """Write a client's update to disk.

        Raises:
            RunError: If the disk is full.
        """
        self._stored[client] = self._spill.put({k: v.reshape(-1) for k, v in update.items()})

    @property
    def clients(self) -> frozenset[int]:
        """Ids of the clients whose updates were added."""
        return frozenset(self._stored)

    def of(self, clients: Sequence[int]) -> Tensor:
        """Return the inner products ``⟨Δ_i, Δ_j⟩`` of clients' updates, float64.

        The updates must contain the same tensors.

        Shapes:
            ``[client, client]``
        """
        matrix = torch.zeros(len(clients), len(clients), dtype=torch.float64)
        # One slice of every update at a time, so that no update is completely in memory.
        for name, first in self._stored[clients[0]].items():
            for start in range(0, first.shape[0], PIECE):
                stop = min(start + PIECE, first.shape[0])
                rows = [self._spill.rows(self._stored[c][name], start, stop) for c in clients]
                # float64: differences of large sums decide which updates agree.
                piece = torch.stack(rows).double()
                matrix += piece @ piece.T
        return matrix
