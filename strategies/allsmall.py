"""AllSmall: everybody runs the smallest architecture, under FedAvg.

A baseline of RecipFL (*How Few Davids Improve One Goliath: Federated Learning in Resource-Skew Edge
Computing Environments*, 2023, §5.1): what the weak reach alone, at the price of the strong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import archgraph as ag
from archgraph.federation import (
    CrossEntropy,
    Evaluated,
    NormPolicy,
    Result,
    ServerState,
    Strategy,
    Task,
    Tier,
    Train,
    World,
)


@dataclass(frozen=True)
class AllSmall(Strategy):
    """Options of AllSmall.

    Attributes:
        tier: Whose architecture everybody runs; None: the one with the fewest parameters, the first
            of equals.
        weights: Weight of a client: its number of examples, or 1.
        norm: What becomes of running statistics.
        mask_absent: Set the logits of classes that the client lacks to 0 in training.

    Example:
        >>> AllSmall().needs_global
        False
    """

    tier: str | None = None
    weights: Literal["examples", "uniform"] = "examples"
    norm: Literal["averaged", "local", "static"] = "averaged"
    mask_absent: bool = False

    needs_global: ClassVar[bool] = False

    def init(self, world: World) -> ServerState:
        """The small architecture's first weights.

        Raises:
            RunError: If ``tier`` names one that is not there.
        """
        return ServerState().with_group("global", self.small(world).state)

    def small(self, world: World) -> Tier:
        """The architecture that everybody runs.

        Raises:
            RunError: If ``tier`` names one that is not there.
        """
        if self.tier is not None:
            return world.tier(self.tier)
        return min(world.tiers, key=lambda tier: ag.cost(tier.graph).parameters)

    def send(self, world: World, state: ServerState, client: int, round: int) -> Task:
        """The small model, whatever the client could run."""
        tier = self.small(world)
        return Task(
            client=client,
            graph=tier.graph,
            state=state.group("global"),
            program=self._train(),
            kept=NormPolicy(self.norm).kept(tier.graph),
            tier=tier.name,
        )

    def receive(
        self, world: World, state: ServerState, results: Iterable[Result], round: int
    ) -> ServerState:
        """The mean over all clients."""
        graph = self.small(world).graph
        policy = NormPolicy(self.norm)
        same = ag.Transfer.identity(graph)
        merger = ag.Merger(graph, state.group("global"))
        for result in results:
            merger.add(
                same,
                policy.filled(graph, result.state),
                weight=result.examples if self.weights == "examples" else 1,
                skip=policy.left_out(graph),
                trusted=True,
            )
        merged, _ = merger.result()
        return state.with_group("global", merged)

    def evaluated(self, world: World, state: ServerState) -> Iterable[Evaluated]:
        """The small model, once for each kind of client, so that strong and weak are told apart."""
        policy = NormPolicy(self.norm)
        graph, weights = self.small(world).graph, state.group("global")
        for tier in world.tiers:
            clients = tuple(c.id for c in world.clients if c.name == tier.name)
            if clients:
                yield Evaluated(
                    name=tier.name,
                    graph=graph,
                    state=weights,
                    clients=clients,
                    statistics=policy.evaluation,
                    kept=policy.name == "local",
                )

    def _train(self) -> Train:
        return Train(CrossEntropy(mask_absent=self.mask_absent))
