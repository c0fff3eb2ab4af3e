"""SCAFFOLD: control variates correct the drift of clients (Algorithm 1, option II).

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: *SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning*, ICML 2020.

x    group "global" of the server's state      c    group "control", zero at first
y_i  weights of client i after K steps         c_i  what client i keeps, zero at first
η_l  the local optimiser's learning rate       η_g  `server_lr`
"""

from dataclasses import dataclass, replace

import torch

import archgraph as ag
from archgraph import federation as fl


@dataclass(frozen=True)
class Controlled:
    """A client's round (lines 7-13)."""

    def __call__(self, work):
        module = fl.module_of(work, training=True)
        old = {name: work.keep.get(name, torch.zeros_like(c)) for name, c in work.extras.items()}
        sums = {name: torch.zeros_like(value) for name, value in module.named_parameters()}

        def loss(batch):
            return fl.TaskLoss()(module(*batch.inputs), batch, work)

        def correct(parameters):
            for name, value in parameters.items():
                if value.grad is not None:
                    sums[name] += value.grad
                    value.grad += work.extras[name] - old[name]  # line 10

        metrics = fl.descend(work, dict(module.named_parameters()), loss, revise=correct)
        # Line 12 is the mean gradient: c_i - c + (x - y_i) / (K η_l), for SGD of any rate. It is
        # not with momentum, weight decay or clipping, which change the step but not the gradient.
        new = old | {name: total / metrics["steps"] for name, total in sums.items()}
        sent = {name: c + new[name] - old[name] for name, c in work.extras.items()}  # c + Δc_i
        return fl.Outcome(ag.state_of(module), keep=new, extras=sent, metrics=metrics)


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
