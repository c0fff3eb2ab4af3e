"""AllSmall: all clients run the smallest architecture, under FedAvg.

A baseline of RecipFL (*How Few Davids Improve One Goliath: Federated Learning in Resource-Skew Edge
Computing Environments*, 2023, §5.1): what the weak reach alone, at the price of the strong.
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
class AllSmall(Strategy):
    """Options of AllSmall.

    Attributes:
        tier: Whose architecture all clients run; None: the one with the fewest parameters, of
            equals the first.
        weights: Weight of a client: its number of examples, or 1.
        norm: What becomes of running statistics.
        mask_absent: Set the logits of classes that the client lacks to 0 in training.

    Example:
        >>> AllSmall().needs_global
        False
    """

    paper: ClassVar[str] = "How Few Davids Improve One Goliath"
    year: ClassVar[int | None] = 2024
    serves: ClassVar[Serves] = ("any",)
    averages: ClassVar[bool] = True
    tier: str | None = None
    weights: Weights = "examples"
    norm: Literal["averaged", "local", "static"] = "averaged"
    mask_absent: bool = False

    needs_global: ClassVar[bool] = False

    def init(self, world: World) -> ServerState:
        """The small architecture's first weights.

        Raises:
            RunError: If ``tier`` names an unknown tier.
        """
        return ServerState().with_group("global", self.small(world).state)

    def small(self, world: World) -> Tier:
        """The architecture that all clients run.

        Raises:
            RunError: If ``tier`` names an unknown tier.
        """
        return world.by_size[0] if self.tier is None else world.tier(self.tier)

    def send(self, world: World, state: ServerState, client: int, round: int) -> Task:
        """The small model, whatever the client could run."""
        return part(
            world,
            state,
            client,
            tier=self.small(world).alone,
            mask_absent=self.mask_absent,
            norm=self.norm,
        )

    def receive(
        self, world: World, state: ServerState, results: Iterable[Result], round: int
    ) -> ServerState:
        """The mean over all clients."""
        graph = self.small(world).graph
        return group_means(world, state, (Contribution.of(r, graph, self.weights) for r in results))

    def evaluated(self, world: World, state: ServerState) -> Iterable[Evaluated]:
        """The small model, once for each kind of client: strong and weak are compared."""
        small = Model(self.small(world).graph, state.group("global"))
        return by_tier(world, state, norm=self.norm, model=lambda _: small, whole=False)
