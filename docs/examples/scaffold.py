"""SCAFFOLD: control variates correct the drift of clients (Algorithm 1, option II).

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: *SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning*, ICML 2020.

x    group "global" of the server's state      c    group "control", zero at first
y_i  weights of client i after K steps         c_i  what client i keeps, zero at first
η_l  `local.lr`, without momentum or schedule  η_g  `server_lr`
"""

from dataclasses import dataclass, replace

import torch

from archgraph import federation as fl


@dataclass(frozen=True)
class Drift:
    """A term of the loss whose gradient is c - c_i (line 10)."""

    def __call__(self, parameters, work):
        shift = {name: work.extras[name] - work.keep.get(name, 0) for name in parameters}
        return sum((value * shift[name]).sum() for name, value in parameters.items())


@dataclass(frozen=True)
class Controlled:
    """A client's round (lines 7-13)."""

    def __call__(self, work):
        outcome = fl.Train(penalty=Drift())(work)
        travelled = outcome.metrics["steps"] * (work.local.lr or 0.1)  # K η_l
        old = {name: work.keep.get(name, torch.zeros_like(c)) for name, c in work.extras.items()}
        new = dict(old)
        for name in (p.name for p in work.graph.params if p.trainable):
            moved = work.state[name] - outcome.state[name]  # x - y_i
            new[name] = old[name] - work.extras[name] + moved / travelled
        sent = {name: c + new[name] - old[name] for name, c in work.extras.items()}  # c + Δc_i
        return replace(outcome, keep=new, extras=sent)


@dataclass(frozen=True)
class Scaffold(fl.Strategy):
    """Options of SCAFFOLD: `server_lr` is η_g."""

    server_lr: float = 1.0

    def init(self, world):
        zeros = {name: torch.zeros_like(value) for name, value in world.state.items()}
        return fl.ServerState().with_group("global", world.state).with_group("control", zeros)

    def send(self, world, state, client, round):
        task = fl.part(world, state, client, program=Controlled())
        return replace(task, extras=task.transfer.pull(state.group("control")))

    def receive(self, world, state, results, round):
        clients = set()

        def contributions():
            for result in results:
                clients.add(result.client)
                one = fl.Contribution.of(result, world.graph, "uniform")
                yield one
                yield one._replace(group="control", state=result.extras)

        means = fl.group_means(world, state, contributions())  # x + mean Δy_i, c + mean Δc_i
        share = len(clients) / len(world.clients)  # |S| / N
        for group, rate in (("global", self.server_lr), ("control", share)):  # lines 16 and 17
            old, mean = state.group(group), means.group(group)
            for name in (p.name for p in world.graph.params if p.trainable):
                mean[name] = old[name] + rate * (mean[name] - old[name])
            means = means.with_group(group, mean)
        return means

    def evaluated(self, world, state):
        return fl.by_tier(world, state)
