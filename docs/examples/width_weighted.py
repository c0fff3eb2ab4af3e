"""HeteroFL whose mean weighs clients by their width: a variant of a method of archgraph's."""

from dataclasses import dataclass

from archgraph.federation import covered_mean, rate_of
from archgraph.strategies.heterofl import HeteroFL


@dataclass(frozen=True)
class WidthWeighted(HeteroFL):
    """Options of HeteroFL; ``power``: by which power of its width rate a client is weighted."""

    power: float = 1.0

    def receive(self, world, state, results, round):
        def weight(result):
            return result.weight(self.weights) * rate_of(world.tier(result.tier)) ** self.power

        return covered_mean(world, state, results, weights=weight, rows=self.owned_rows(world))
