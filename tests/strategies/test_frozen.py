"""Frozen parameters under methods that average everything: equal everywhere, bit for bit."""

from __future__ import annotations

import pytest
import torch

import archgraph as ag
from archgraph.federation import LocalOptions
from archgraph.rewrites.train_only import train_only
from archgraph.strategies.fedadp import FedADP
from archgraph.strategies.fedavg import FedAvg
from archgraph.strategies.fedfa import FedFA
from archgraph.strategies.fedin import FedIN
from archgraph.strategies.flexifed import FlexiFed
from archgraph.strategies.heterofl import HeteroFL
from archgraph.strategies.nefl import NeFL, own_norms

LOCAL = LocalOptions(batch=4, lr=0.05, momentum=0.9, weight_decay=0.1)
PATTERNS = ["layer2.*", "fc.*"]


def trained(lab):
    """What a client makes of its task: its program, really run."""
    return lambda task: (
        task.program(lab.work_of(task, lab.toy(task.client, 8 + 3 * task.client), LOCAL)).state
    )


def assert_frozen_stay(graph, before, after):
    for p in graph.params:
        if p.role == "parameter":
            assert torch.equal(before[p.name], after[p.name]) != p.trainable, p.name


def test_fedavg_returns_frozen_entries_bit_for_bit(lab):
    """Weights 30 : 10 : 7 of equal numbers do not add up to that number in float32."""
    frozen = lab.replace(lab, graph=train_only(lab.graph, PATTERNS).graph)
    world = frozen.uniform(3, examples=[30, 10, 7])
    after, tasks = frozen.one_round(FedAvg(), world, trained(frozen))
    assert_frozen_stay(frozen.graph, lab.state, after)
    again, _ = frozen.one_round(FedAvg(), lab.replace(world, state=after), trained(frozen), round=2)
    assert_frozen_stay(frozen.graph, lab.state, again)
    assert all(task.graph == frozen.graph for task in tasks.values())


@pytest.mark.parametrize(
    "strategy", [HeteroFL(), FedFA(), FedADP()], ids=["heterofl", "fedfa", "fedadp"]
)
def test_narrow_clients_leave_the_frozen_part_of_the_global_model(lab, strategy):
    frozen = train_only(lab.graph, PATTERNS).graph
    tiers = {"half": ag.take(frozen, 0.5), "full": ag.Rewritten.identity(frozen)}
    assert not tiers["half"].graph.param["stem.weight"].trainable
    world = lab.make_world(frozen, lab.state, tiers, ["half", "full", "half"], examples=[30, 10, 7])
    after, _ = lab.one_round(strategy, world, trained(lab))
    for p in frozen.params:
        if p.role == "parameter" and not p.trainable:
            assert torch.equal(after[p.name], lab.state[p.name]), p.name
    assert not torch.equal(after["fc.weight"], lab.state["fc.weight"])


@pytest.mark.parametrize(
    "strategy", [FlexiFed(weights="examples"), FedIN(weights="examples")], ids=["flexifed", "fedin"]
)
def test_methods_without_a_global_model_leave_frozen_entries(lab, strategy):
    """Three clients that share everything, or their ends; the stem is frozen."""
    graph = train_only(lab.graph, PATTERNS).graph
    world = lab.replace(lab, graph=graph).uniform(3, examples=[30, 10, 7])
    state = strategy.init(world)
    for number in (1, 2):
        state = strategy.begin(world, state, number, (0, 1, 2))
        tasks = [strategy.send(world, state, client, number) for client in range(3)]
        results = []
        for task in tasks:
            full = lab.replace(task, state={**lab.state, **task.state})
            outcome = task.program(lab.work_of(full, lab.toy(task.client, 12), LOCAL))
            results.append(task.result(outcome, world.clients[task.client].examples))
        state = strategy.receive(world, state, results, number)
    *_, model = strategy.evaluated(world, state)  # FlexiFed answers for a global one, too
    for name in ("stem.weight", "stem.bias"):
        assert torch.equal(model.state[name], lab.state[name]), name
    assert not torch.equal(model.state["fc.weight"], lab.state["fc.weight"])


def test_nefl_leaves_frozen_norms_that_a_submodel_has_for_itself(lab):
    graph = train_only(lab.graph, ["fc.*"]).graph
    norm = next(name for name in sorted(own_norms(graph, "auto")) if name.endswith(".weight"))
    start = {**lab.state, norm: torch.linspace(0.1, 0.9, len(lab.state[norm]))}
    world = lab.replace(lab, graph=graph, state=start).uniform(3, examples=[30, 10, 7])
    strategy = NeFL(weights="examples", steps="off", spread=0)
    state = strategy.init(world)
    for number in (1, 2):
        tasks = [strategy.send(world, state, client, number) for client in range(3)]
        results = [
            task.result(
                task.program(lab.work_of(task, lab.toy(task.client, 12), LOCAL)),
                world.clients[task.client].examples,
            )
            for task in tasks
        ]
        state = strategy.receive(world, state, results, number)
    model = list(strategy.evaluated(world, state))[1]
    assert torch.equal(model.state[norm], start[norm])
    assert not torch.equal(model.state["fc.weight"], start["fc.weight"])


def test_what_only_one_kind_of_client_freezes_is_averaged(lab):
    """FedADP sums a kind's updates first: a frozen entry counts as its clients have it."""
    tiers = {
        "heads": train_only(lab.graph, PATTERNS),
        "full": ag.Rewritten.identity(lab.graph),
    }
    world = lab.make_world(lab.graph, lab.state, tiers, ["heads", "full"], examples=[10, 10])

    def update(task):
        return {
            k: v + 1 if v.is_floating_point() and task.graph.param[k].trainable else v
            for k, v in task.state.items()
        }

    after, _ = lab.one_round(FedADP(), world, update)
    torch.testing.assert_close(after["stem.weight"], lab.state["stem.weight"] + 0.5)
    torch.testing.assert_close(after["fc.weight"], lab.state["fc.weight"] + 1)
