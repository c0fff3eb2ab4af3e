"""FedProx: clients stay near the model that they were sent (Li et al., MLSys 2020, Eq. 2)."""

from dataclasses import dataclass

from archgraph.federation import ServerState, Strategy, Towards, Train, by_tier, covered_mean, part


@dataclass(frozen=True)
class FedProx(Strategy):
    """Options of FedProx: ``mu`` is the weight of the proximal term."""

    mu: float = 0.01
    averages = True  # by covered_mean alone

    def init(self, world):
        return ServerState().with_group("global", world.state)

    def send(self, world, state, client, round):
        # A term of your own is a frozen dataclass, called with the parameters and the work.
        return part(world, state, client, program=Train(penalty=Towards(self.mu)))

    def receive(self, world, state, results, round):
        return covered_mean(world, state, results)

    def evaluated(self, world, state):
        return by_tier(world, state)
