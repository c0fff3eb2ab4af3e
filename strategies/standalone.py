"""Standalone: every client trains alone, the baseline without communication."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from archgraph.federation import (
    Evaluated,
    Model,
    Result,
    ServerState,
    Serves,
    Strategy,
    Task,
    TaskLoss,
    Tier,
    Train,
    World,
    by_tier,
)


@dataclass(frozen=True)
class Standalone(Strategy):
    """Options of Standalone.

    Attributes:
        mask_absent: Set the logits of classes that the client lacks to 0 in training.

    Example:
        >>> Standalone().needs_global
        False
    """

    serves: ClassVar[Serves] = ("any",)
    mask_absent: bool = False

    needs_global: ClassVar[bool] = False

    def init(self, world: World) -> ServerState:
        """The server holds nothing."""
        return ServerState()

    def send(self, world: World, state: ServerState, client: int, round: int) -> Task:
        """The first weights of the client's architecture; all of them stay with it."""
        tier = world.tier_of(client)
        return Task(
            client=client,
            graph=tier.graph,
            state=tier.state,
            program=Train(TaskLoss(mask_absent=self.mask_absent)),
            kept=frozenset(tier.graph.state_names),
        )

    def receive(
        self, world: World, state: ServerState, results: Iterable[Result], round: int
    ) -> ServerState:
        """Results are discarded; clients train while the stream is read."""
        for _ in results:
            pass
        return state

    def evaluated(self, world: World, state: ServerState) -> Iterable[Evaluated]:
        """Each client's own model, by architecture."""

        def model(tier: Tier) -> Model:
            return Model(tier.graph, tier.state)

        return by_tier(world, state, model=model, kept=True, whole=False)
