"""AllSmall: all clients train the smallest architecture with FedAvg.

A baseline of RecipFL (*How Few Davids Improve One Goliath: Federated Learning in Resource-Skew Edge
Computing Environments*, 2023, §5.1). Strong clients also run the model of the weak clients.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from archgraph import federation as fl


@dataclass(frozen=True)
class AllSmall(fl.Averaging, fl.Masking):
    """Options of AllSmall.

    Attributes:
        tier: The tier whose architecture all clients run. Default: the one with the fewest
            parameters (the first if tied).

    Example:
        >>> AllSmall().needs_global
        False
    """

    paper = "How Few Davids Improve One Goliath"
    year = 2024
    serves = ("any",)
    needs_global = False

    tier: str | None = None

    def init(self, world: fl.World) -> fl.ServerState:
        """Start from the small architecture's initial weights.

        Raises:
            RunError: If ``tier`` names an unknown tier.
        """
        return fl.ServerState().with_group("global", self.small(world).state)

    def small(self, world: fl.World) -> fl.Tier:
        """Return the architecture that all clients run.

        Raises:
            RunError: If ``tier`` names an unknown tier.
        """
        return world.by_size[0] if self.tier is None else world.tier(self.tier)

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send the small model to every client, also to clients that could run a larger one."""
        return fl.part(
            world,
            state,
            client,
            tier=self.small(world).alone,  # the global state is the small model, not a larger one
            mask_absent=self.mask_absent,
            norm=self.norm,
        )

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Average over all clients."""
        graph = self.small(world).graph
        return fl.group_means(
            world, state, (fl.Contribution.of(r, graph, self.weights) for r in results)
        )

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate the small model separately on the data of each tier's clients."""
        small = fl.Model(self.small(world).graph, state.group("global"))
        return fl.by_tier(world, state, norm=self.norm, model=lambda _: small, whole=False)
