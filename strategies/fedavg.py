"""FedAvg: the mean of one architecture, weighted by examples.

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
from typing import ClassVar, Literal

import archgraph as ag
from archgraph.federation import (
    Evaluated,
    NormPolicy,
    Result,
    ServerState,
    Serves,
    Strategy,
    Task,
    Weights,
    World,
    covered_mean,
    part,
)


@dataclass(frozen=True)
class FedAvg(Strategy):
    """Options of FedAvg.

    Attributes:
        weights: Weight of a client: its number of examples (paper), or 1.
        norm: What becomes of running statistics.
        mask_absent: Set the logits of classes that the client lacks to 0 in training.

    Example:
        >>> FedAvg(weights="uniform").norm
        'averaged'
    """

    paper: ClassVar[str] = (
        "Communication-Efficient Learning of Deep Networks from Decentralized Data"
    )
    year: ClassVar[int | None] = 2017
    serves: ClassVar[Serves] = ("one",)
    averages: ClassVar[bool] = True
    weights: Weights = "examples"
    norm: Literal["averaged", "local", "static"] = "averaged"
    mask_absent: bool = False

    def init(self, world: World) -> ServerState:
        """``w_0`` (Algorithm 1, *Server executes*: initialize).

        Raises:
            RunError: If a client's architecture is not the global one.
        """
        for client in world.clients:
            if world.tier(client.name).graph != world.graph:
                raise ag.RunError(
                    "FedAvg averages one architecture",
                    where=f"client {client.id} ({client.name})",
                    found="an architecture other than the global one",
                    hint="give all clients the global model, or use heterofl or fedfa",
                )
        return ServerState().with_group("global", world.state)

    def send(self, world: World, state: ServerState, client: int, round: int) -> Task:
        """``w_t`` to client ``k`` (*for each client … ClientUpdate*)."""
        return part(world, state, client, mask_absent=self.mask_absent, norm=self.norm)

    def receive(
        self, world: World, state: ServerState, results: Iterable[Result], round: int
    ) -> ServerState:
        """``w_{t+1} = Σ n_k w^k / Σ n_k`` (the last step of a round)."""
        return covered_mean(world, state, results, weights=self.weights)

    def evaluated(self, world: World, state: ServerState) -> Iterable[Evaluated]:
        """The global model, on every client's data too."""
        policy = NormPolicy(self.norm)
        yield Evaluated(
            name="global",
            graph=world.graph,
            state=state.group("global"),
            clients=tuple(client.id for client in world.clients),
            statistics=policy.evaluation,
            kept=policy.personal,
        )
