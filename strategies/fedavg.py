"""FedAvg: all clients train the same architecture, and the server averages their weights.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: *Communication-Efficient Learning of Deep Networks
from Decentralized Data*, AISTATS 2017, Algorithm 1.

===========  ========================================================
symbol       here
===========  ========================================================
``w_t``      group ``global`` of the server state
``S_t``      the sampled clients
``n_k``      ``Result.examples``
``w^k``      ``Result.state``
===========  ========================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import archgraph as ag
from archgraph import federation as fl


@dataclass(frozen=True)
class FedAvg(fl.Averaging, fl.Masking):
    """Options of FedAvg.

    Example:
        >>> FedAvg(weights="uniform").norm
        'averaged'
    """

    paper = "Communication-Efficient Learning of Deep Networks from Decentralized Data"
    year = 2017
    serves = ("one",)

    def init(self, world: fl.World) -> fl.ServerState:
        """Start from the global model ``w_0`` (Algorithm 1, *initialize*).

        Raises:
            RunError: If a client's architecture is not the global one.
        """
        for client in world.clients:
            if world.tier(client.name).graph != world.graph:
                hint = "give all clients the global model, or use heterofl or fedfa"
                where = f"client {client.id} ({client.name})"
                raise ag.RunError("FedAvg averages one architecture", where=where, hint=hint)
        return fl.ServerState().with_group("global", world.state)

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send the global model ``w_t`` to client ``k`` (*ClientUpdate*)."""
        return fl.part(world, state, client, mask_absent=self.mask_absent, norm=self.norm)

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Average the clients' models: ``w_{t+1} = Σ n_k w^k / Σ n_k``."""
        return fl.covered_mean(world, state, results, weights=self.weights)

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate the global model on the test set and on each client's data."""
        policy = fl.NormPolicy(self.norm)
        yield fl.Evaluated(
            name="global",
            graph=world.graph,
            state=state.group("global"),
            clients=tuple(client.id for client in world.clients),
            statistics=policy.evaluation,
            private=policy.personal,
        )
