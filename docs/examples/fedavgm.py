"""FedAvgM: the server follows the clients with momentum (Hsu et al., 2019)."""

from dataclasses import dataclass

from archgraph.federation import ServerState, Strategy, by_tier, covered_mean, part


@dataclass(frozen=True)
class FedAvgM(Strategy):
    """Options of FedAvgM: ``beta`` is the server's momentum, ``lr`` its learning rate."""

    beta: float = 0.9
    lr: float = 1.0

    def init(self, world):
        return ServerState().with_group("global", world.state)

    def send(self, world, state, client, round):
        return part(world, state, client)

    def receive(self, world, state, results, round):
        old = state.group("global")
        new = covered_mean(world, state, results).group("global")
        velocity = state.group("velocity")
        # Running statistics and counters are no weights: they take the mean as it is.
        for name in (p.name for p in world.graph.params if p.trainable):
            v = self.beta * velocity.get(name, 0.0) + (new[name] - old[name])
            new[name], velocity[name] = old[name] + self.lr * v, v
        return state.with_group("global", new).with_group("velocity", velocity)

    def evaluated(self, world, state):
        return by_tier(world, state)
