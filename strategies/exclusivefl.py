"""ExclusiveFL: FedAvg among clients with the same architecture; others exchange nothing.

A baseline of RecipFL (*How Few Davids Improve One Goliath: Federated Learning in Resource-Skew Edge
Computing Environments*, 2023, §5.1). Strong clients learn nothing from weak ones. A client trains
alone if no other client has its architecture.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from archgraph import federation as fl


@dataclass(frozen=True)
class ExclusiveFL(fl.Averaging, fl.Masking):
    """Options of ExclusiveFL.

    Example:
        >>> ExclusiveFL().needs_global
        False
    """

    paper = "How Few Davids Improve One Goliath"
    year = 2024
    serves = ("any",)
    needs_global = False

    def init(self, world: fl.World) -> fl.ServerState:
        """Start each architecture from the initial weights of the first tier that has it."""
        state = fl.ServerState()
        # Reversed, so that of several tiers with one architecture the first is written last.
        for tier in reversed(world.tiers):
            if world.clients_of(tier.name):
                state = state.with_group(tier.graph.digest, tier.state)
        return state

    def send(self, world: fl.World, state: fl.ServerState, client: int, round: int) -> fl.Task:
        """Send the model of the client's architecture."""
        tier = world.tier_of(client)
        return fl.part(
            world,
            state,
            client,
            tier=tier.alone,
            mask_absent=self.mask_absent,
            norm=self.norm,
            weights=state.group(tier.graph.digest),
        )

    def receive(
        self, world: fl.World, state: fl.ServerState, results: Iterable[fl.Result], round: int
    ) -> fl.ServerState:
        """Average the clients' weights for each architecture.

        The weights of an architecture without results do not change.
        """
        contributions = (
            fl.Contribution.of(result, graph, self.weights, group=graph.digest)
            for result in results
            for graph in [world.tier(result.tier).graph]
        )
        return fl.group_means(world, state, contributions)

    def evaluated(self, world: fl.World, state: fl.ServerState) -> Iterable[fl.Evaluated]:
        """Evaluate the model of each tier's architecture."""

        def model(tier: fl.Tier) -> fl.Model:
            return fl.Model(tier.graph, state.group(tier.graph.digest))

        return fl.by_tier(world, state, norm=self.norm, model=model, whole=False)
