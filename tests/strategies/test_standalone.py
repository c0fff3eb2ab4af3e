"""Standalone: nothing is sent, nothing comes back, no client depends on another."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.data import load_dataset
from archgraph.data.partition import allot, class_histogram
from archgraph.engine.experiment import Experiment
from archgraph.engine.rounds import Loop
from archgraph.engine.testing import answers
from archgraph.federation import Client, LocalOptions, Result, Tier, World
from archgraph.language.experiment import EvaluateSpec
from archgraph.strategies.standalone import Standalone

NOTHING = ag.ArchGraph(inputs=(), params=(), nodes=(), outputs=())


@pytest.fixture(scope="module")
def tiers():
    """Two architectures that have nothing in common."""
    torch.manual_seed(0)
    nets = {
        "conv": nn.Sequential(
            nn.Conv2d(1, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10)
        ),
        "flat": nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
    }
    found = {}
    for name, net in nets.items():
        graph, state, *_ = ag.trace(net, torch.zeros(2, 1, 8, 8))
        found[name] = Tier(name, graph, ag.Transfer.identity(graph), state, own=True)
    return found


@pytest.fixture(scope="module")
def data():
    return load_dataset("digits", limit=200)


def experiment(tiers, data, shares) -> Experiment:
    clients = tuple(
        Client(
            i,
            name,
            len(shares[i]),
            tuple(class_histogram(data.train.targets[torch.from_numpy(shares[i])], 10).tolist()),
        )
        for i, name in enumerate(("conv", "flat", "conv"))
    )
    world = World(NOTHING, {}, clients, tuple(tiers.values()), 10, rounds=3, seed=0)
    local, evaluate = LocalOptions(lr=0.05, batch=16), EvaluateSpec(batch=200)
    return Experiment(world, Standalone(), data, tuple(shares), local, evaluate)


def finished(setup: Experiment) -> Loop:
    loop = Loop(setup)
    loop.start(setup.strategy.init(setup.world))
    for _ in range(3):
        loop.round()
    return loop


def test_the_server_neither_holds_nor_gets_anything(tiers, data):
    shares = allot(data.train.targets, tiers=["all"] * 3, scheme="iid", seed=0)
    world = experiment(tiers, data, shares).world
    strategy = Standalone()
    state = strategy.init(world)
    assert not state.tensors
    task = strategy.send(world, state, 0, 1)
    assert task.private == set(tiers["conv"].graph.state_names) == set(task.state)
    worked = []

    def stream():
        for client in range(3):
            worked.append(client)
            yield Result(client, {}, 10)

    assert strategy.receive(world, state, stream(), 1) is state
    assert worked == [0, 1, 2]


def test_what_others_have_changes_no_bit_of_a_clients_model(tiers, data):
    shares = list(allot(data.train.targets, tiers=["all"] * 3, scheme="iid", seed=0))
    one = finished(experiment(tiers, data, shares))
    other = finished(experiment(tiers, data, [shares[0], shares[2][:-5], shares[1]]))
    mine, same = one.private[0].state, other.private[0].state
    assert mine.keys() == set(tiers["conv"].graph.state_names)
    assert all(torch.equal(same[k], v) for k, v in mine.items())
    assert not torch.equal(other.private[2].state["0.weight"], one.private[2].state["0.weight"])
    assert int(mine["1.num_batches_tracked"]) == sum(
        line["clients"][0]["steps"] for line in one.lines
    ), "every round goes on where the one before ended"


def test_tiers_are_the_mean_of_their_clients_own_models(tiers, data):
    shares = allot(data.train.targets, tiers=["all"] * 3, scheme="iid", seed=0)
    loop = finished(experiment(tiers, data, shares))
    accuracy = []
    for client, name in enumerate(("conv", "flat", "conv")):
        module = ag.build(tiers[name].graph, loop.private[client].state)
        accuracy.append(answers(module, data.test)[0].summary()["accuracy"])
    found = loop.lines[-1]["evaluation"]["models"]
    assert set(found) == {"conv", "flat"}
    assert found["conv"]["accuracy"] == pytest.approx((accuracy[0] + accuracy[2]) / 2)
    assert found["flat"]["accuracy"] == pytest.approx(accuracy[1])
    assert accuracy[0] != accuracy[2]


def test_architectures_without_clients_are_not_tested(tiers, data):
    shares = allot(data.train.targets, tiers=["all"] * 3, scheme="iid", seed=0)
    world = experiment(tiers, data, shares).world
    few = dataclasses.replace(world, clients=world.clients[1:2])
    (model,) = Standalone().evaluated(few, Standalone().init(few))
    assert (model.name, model.clients, model.private) == ("flat", (1,), True)
