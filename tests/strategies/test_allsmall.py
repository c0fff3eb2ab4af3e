"""AllSmall: FedAvg on the smallest architecture, whatever clients could run."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import archgraph as ag
from archgraph.federation import LocalOptions, Train
from archgraph.strategies.allsmall import AllSmall
from archgraph.strategies.fedavg import FedAvg

NORMS = ("averaged", "static", "local")


@pytest.fixture(scope="module")
def tiers(lab):
    return {
        "full": ag.Rewritten.identity(lab.graph),
        "slim": ag.take(lab.graph, 0.5),
        "flat": ag.shorten(lab.graph, {"layer1": 2, "layer2": 2}),
    }


@pytest.mark.parametrize("norm", NORMS)
def test_of_many_architectures_it_is_fedavg_in_a_world_of_the_smallest(lab, tiers, norm):
    mixed = lab.make_world(
        lab.graph, lab.state, tiers, ["full", "slim", "flat"], examples=[3, 50, 7]
    )
    slim = tiers["slim"]
    small = lab.make_world(
        slim.graph,
        slim.transfer.pull(lab.state),
        {"slim": ag.Rewritten.identity(slim.graph)},
        ["slim"] * 3,
        examples=[3, 50, 7],
    )
    one, _ = lab.one_round(
        AllSmall(norm=norm), mixed, lambda t: lab.random_state(t.state, t.client)
    )
    two, _ = lab.one_round(FedAvg(norm=norm), small, lambda t: lab.random_state(t.state, t.client))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[k], v) for k, v in two.items())


def test_all_clients_run_the_one_with_the_fewest_parameters(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["full", "flat", "slim", "full"])
    strategy = AllSmall()
    sizes = {name: ag.cost(t.graph).parameters for name, t in tiers.items()}
    assert min(sizes, key=lambda name: sizes[name]) == "slim"
    state = strategy.init(world)
    first = tiers["slim"].transfer.pull(lab.state)
    for client in range(4):
        task = strategy.send(world, state, client, 1)
        assert (task.graph, task.tier, task.client) == (tiers["slim"].graph, "slim", client)
        assert all(torch.equal(task.state[k], v) for k, v in first.items())


def test_which_one_is_small_can_be_told(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["full", "flat"])
    assert AllSmall(tier="flat").small(world).name == "flat"
    assert AllSmall(tier="flat").send(world, AllSmall(tier="flat").init(world), 0, 1).tier == "flat"
    with pytest.raises(ag.RunError, match=r"unknown tier; found 'flta'; expected one of full"):
        AllSmall(tier="flta").init(world)


def test_of_equally_small_ones_it_is_the_first(lab, tiers):
    same = {"b": tiers["slim"], "a": tiers["slim"]}
    world = lab.make_world(lab.graph, lab.state, same, ["a", "b"])
    assert AllSmall().small(world).name == "b"


@pytest.mark.parametrize("norm", NORMS)
def test_strong_and_weak_are_tested_apart_on_the_same_model(lab, tiers, norm):
    world = lab.make_world(lab.graph, lab.state, tiers, ["full", "slim", "full"])
    strategy = AllSmall(norm=norm)
    models = list(strategy.evaluated(world, strategy.init(world)))
    assert [(m.name, m.clients) for m in models] == [("full", (0, 2)), ("slim", (1,))]
    for model in models:
        assert model.graph == tiers["slim"].graph
        assert model.private == (norm == "local")
        assert model.statistics == ("recompute" if norm == "static" else "stored")
        assert model.program is None
        ag.build(model.graph, model.state)(torch.zeros(2, 1, 8, 8))


def test_passes_of_its_own_are_local_training_of_so_many(lab):
    world = lab.uniform(1)
    strategy = AllSmall()
    task, data = strategy.send(world, strategy.init(world), 0, 1), lab.toy(1)
    given = lab.work_of(task, data, LocalOptions(epochs=5, lr=0.05, batch=4))
    assert isinstance(task.program, Train)
    tuned = dataclasses.replace(task.program, epochs=2)(given)
    plain = task.program(lab.work_of(task, data, LocalOptions(epochs=2, lr=0.05, batch=4)))
    assert tuned.metrics["seen"] == 2 * data.examples
    assert all(torch.equal(tuned.state[k], v) for k, v in plain.state.items())
