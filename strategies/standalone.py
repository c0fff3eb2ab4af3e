"""Standalone: every client trains alone, the baseline without communication."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from archgraph import federation as fl


@dataclass(frozen=True)
class Standalone(fl.Masking):
    """Options of Standalone.

    Example:
        >>> Standalone().needs_global
        False
    """

    serves = ("any",)
    needs_global = False

    def init(self, world: fl.World) -> fl.ServerState:
        """Start with an empty server state."""
        return fl.ServerState()

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send the initial weights of the client's architecture. They stay with the client."""
        return fl.private_network(world, client, fl.Train(fl.TaskLoss(self.mask_absent)))

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Read and discard all results. Reading a result trains the client."""
        for _ in results:  # results are computed only when they are read
            pass
        return state

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate each client's own model."""
        return fl.private_networks(world, state)
