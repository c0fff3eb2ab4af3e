"""ExclusiveFL: FedAvg among those who run the same architecture, and nothing between them.

A baseline of RecipFL (*How Few Davids Improve One Goliath: Federated Learning in Resource-Skew Edge
Computing Environments*, 2023, §5.1): what the strong reach alone. A group of one is that client's
own training.
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
    Train,
    World,
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

    weights: Literal["examples", "uniform"] = "examples"
    norm: Literal["averaged", "local", "static"] = "averaged"
    mask_absent: bool = False

    needs_global: ClassVar[bool] = False

    def init(self, world: World) -> ServerState:
        """First weights of each architecture: those of the first tier that has it."""
        state = ServerState()
        run_by = {client.name for client in world.clients}
        found: set[str] = set()
        for tier in world.tiers:
            group = tier.graph.digest
            if tier.name in run_by and group not in found:
                found.add(group)
                state = state.with_group(group, tier.state)
        return state

    def send(self, world: World, state: ServerState, client: int, round: int) -> Task:
        """The model of the client's group."""
        tier = world.tier(world.clients[client].name)
        return Task(
            client=client,
            graph=tier.graph,
            state=state.group(tier.graph.digest),
            program=self._train(),
            kept=NormPolicy(self.norm).kept(tier.graph),
            tier=tier.name,
        )

    def receive(
        self, world: World, state: ServerState, results: Iterable[Result], round: int
    ) -> ServerState:
        """In each group the mean over its clients; a group that nobody returned to stays."""
        policy = NormPolicy(self.norm)
        mergers: dict[str, tuple[ag.Merger, ag.Transfer]] = {}
        for result in results:
            graph = world.tier(world.clients[result.client].name).graph
            group = graph.digest
            if group not in mergers:
                merger = ag.Merger(graph, state.group(group))
                mergers[group] = merger, ag.Transfer.identity(graph)
            merger, same = mergers[group]
            merger.add(
                same,
                policy.filled(graph, result.state),
                weight=result.examples if self.weights == "examples" else 1,
                skip=policy.left_out(graph),
                trusted=True,
            )
        for group, (merger, _) in mergers.items():
            state = state.with_group(group, merger.result()[0])
        return state

    def evaluated(self, world: World, state: ServerState) -> Iterable[Evaluated]:
        """Each tier's model: that of its group."""
        policy = NormPolicy(self.norm)
        for tier in world.tiers:
            clients = tuple(c.id for c in world.clients if c.name == tier.name)
            if clients:
                yield Evaluated(
                    name=tier.name,
                    graph=tier.graph,
                    state=state.group(tier.graph.digest),
                    clients=clients,
                    statistics=policy.evaluation,
                    kept=policy.name == "local",
                )

    def _train(self) -> Train:
        return Train(CrossEntropy(mask_absent=self.mask_absent))
