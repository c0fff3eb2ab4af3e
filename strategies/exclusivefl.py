"""ExclusiveFL: FedAvg among those who run the same architecture, and nothing between them.

A baseline of RecipFL (*How Few Davids Improve One Goliath: Federated Learning in Resource-Skew Edge
Computing Environments*, 2023, §5.1): what the strong reach alone. A group of one is that client's
own training.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from archgraph.federation import (
    Contribution,
    Evaluated,
    Model,
    Result,
    ServerState,
    Serves,
    Strategy,
    Task,
    Tier,
    Weights,
    World,
    by_tier,
    group_means,
    part,
)


@dataclass(frozen=True)
class ExclusiveFL(Strategy):
    """Options of ExclusiveFL.

    Attributes:
        weights: Weight of a client: its number of examples, or 1.
        norm: What becomes of running statistics.
        mask_absent: Set the logits of classes that the client lacks to 0 in training.

    Example:
        >>> ExclusiveFL().needs_global
        False
    """

    paper: ClassVar[str] = "How Few Davids Improve One Goliath"
    year: ClassVar[int | None] = 2024
    serves: ClassVar[Serves] = ("any",)
    averages: ClassVar[bool] = True
    weights: Weights = "examples"
    norm: Literal["averaged", "local", "static"] = "averaged"
    mask_absent: bool = False

    needs_global: ClassVar[bool] = False

    def init(self, world: World) -> ServerState:
        """First weights of each architecture: those of the first tier that has it."""
        state = ServerState()
        for tier in reversed(world.tiers):
            if world.clients_of(tier.name):
                state = state.with_group(tier.graph.digest, tier.state)
        return state

    def send(self, world: World, state: ServerState, client: int, round: int) -> Task:
        """The model of the client's group."""
        tier = world.tier_of(client)
        return part(
            world,
            state,
            client,
            tier=tier.alone,
            mask_absent=self.mask_absent,
            norm=self.norm,
            weights=state.group(tier.graph.digest),
        )

    def receive(
        self, world: World, state: ServerState, results: Iterable[Result], round: int
    ) -> ServerState:
        """In each group the mean over its clients; a group without results stays as it is."""
        contributions = (
            Contribution.of(result, graph, self.weights, group=graph.digest)
            for result in results
            for graph in [world.tier(result.tier).graph]
        )
        return group_means(world, state, contributions)

    def evaluated(self, world: World, state: ServerState) -> Iterable[Evaluated]:
        """Each tier's model: that of its group."""

        def model(tier: Tier) -> Model:
            return Model(tier.graph, state.group(tier.graph.digest))

        return by_tier(world, state, norm=self.norm, model=model, whole=False)
