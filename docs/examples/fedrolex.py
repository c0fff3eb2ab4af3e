"""FedRolex: a window rolls over the global model (Alam et al., NeurIPS 2022, Algorithm 1)."""

from dataclasses import dataclass, replace
from functools import lru_cache

import archgraph as ag
from archgraph.federation import ServerState, Strategy, by_tier, covered_mean, part


@lru_cache(maxsize=64)
def window(graph, transfer, start):
    """As many positions of every axis as the tier has, from ``start`` on and round the end."""
    count, free = ag.widths(graph, transfer), ag.axes(graph).free
    rolled = {a.name: sorted((start + i) % a.size for i in range(count[a.name])) for a in free}
    return ag.take(graph, positions=rolled)


@dataclass(frozen=True)
class FedRolex(Strategy):
    """Options of FedRolex: ``step`` is how far the window moves in a round."""

    step: int = 1
    averages = True  # by covered_mean alone

    def init(self, world):
        return ServerState().with_group("global", world.state)

    def send(self, world, state, client, round):
        tier = world.tier_of(client)
        graph, transfer = window(world.graph, tier.transfer, (round - 1) * self.step)
        tier = replace(tier, graph=graph, transfer=transfer)
        return part(world, state, client, tier=tier, norm="static")

    def receive(self, world, state, results, round):
        return covered_mean(world, state, results)

    def evaluated(self, world, state):
        return by_tier(world, state, norm="static")
