"""ExclusiveFL: FedAvg within each architecture; groups do not hear of one another."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
import torch

import archgraph as ag
from archgraph.federation import (
    LocalOptions,
    Outcome,
    ServerState,
    Strategy,
    World,
)
from archgraph.strategies.exclusivefl import ExclusiveFL
from archgraph.strategies.fedavg import FedAvg

NORMS = ("averaged", "static", "local")
EXAMPLES = [3, 50, 7, 20]


@pytest.fixture(scope="module")
def tiers(lab):
    """Two kinds of the same architecture among three."""
    return {
        "full": ag.Rewritten.identity(lab.graph),
        "slim": ag.take(lab.graph, 0.5),
        "thin": ag.take(lab.graph, 0.5),
    }


def after_round(
    strategy: Strategy,
    world: World,
    update,
    order: Sequence[int] | None = None,
    state: ServerState | None = None,
) -> ServerState:
    state = strategy.init(world) if state is None else state
    sampled = list(range(len(world.clients)) if order is None else order)
    results = []
    for client in sampled:
        task = strategy.send(world, state, client, 1)
        results.append(task.result(Outcome(update(task)), world.clients[client].examples))
    return strategy.receive(world, state, iter(results), 1)


def models(strategy: Strategy, world: World, state: ServerState):
    return {model.name: model for model in strategy.evaluated(world, state)}


def same(one, two) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[k], v) for k, v in two.items())


@pytest.mark.parametrize("norm", NORMS)
def test_each_group_is_fedavg_of_its_own_world(lab, tiers, norm):
    names = ["slim", "full", "thin", "full"]
    world = lab.make_world(lab.graph, lab.state, tiers, names, examples=EXAMPLES)
    found = after_round(
        ExclusiveFL(norm=norm), world, lambda t: lab.random_state(t.state, t.client)
    )
    for members in ([0, 2], [1, 3]):
        graph, first = tiers[names[members[0]]]
        alone = lab.make_world(
            graph,
            first.pull(lab.state),
            {"all": ag.Rewritten.identity(graph)},
            ["all"] * 2,
            examples=[EXAMPLES[m] for m in members],
        )
        expected, _ = lab.one_round(
            FedAvg(norm=norm),
            alone,
            lambda t, members=members: lab.random_state(t.state, members[t.client]),
        )
        assert same(found.group(graph.digest), expected)


def test_what_one_group_does_changes_no_bit_of_another(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["slim", "full", "slim", "full"])
    runs = [
        after_round(
            ExclusiveFL(),
            world,
            lambda t, other=other: lab.random_state(
                t.state, t.client + (other if t.tier == "full" else 0)
            ),
        )
        for other in (0, 100)
    ]
    slim, full = tiers["slim"].graph.digest, tiers["full"].graph.digest
    assert same(runs[0].group(slim), runs[1].group(slim))
    assert not same(runs[0].group(full), runs[1].group(full))
    empty = after_round(
        ExclusiveFL(), world, lambda t: lab.random_state(t.state, t.client), order=[0, 2]
    )
    assert same(empty.group(slim), runs[0].group(slim))
    assert same(empty.group(full), ExclusiveFL().init(world).group(full))


def test_a_group_of_one_trains_by_itself(lab, tiers):
    """§5.1: with one strong client its group learns centrally."""
    world = lab.make_world(lab.graph, lab.state, tiers, ["full", "slim", "slim"])
    strategy, data, local = ExclusiveFL(weights="uniform"), lab.toy(4), LocalOptions(lr=0.05)

    def trained(task, state, seed):
        given = lab.work_of(dataclasses.replace(task, state=state), data, local, seed)
        return task.program(given).state

    state, alone = strategy.init(world), dict(lab.state)
    for round in range(3):
        task = strategy.send(world, state, 0, round)
        alone = trained(task, alone, round)
        state = after_round(
            strategy,
            world,
            lambda t, seed=round: trained(t, t.state, seed),
            state=state,
        )
    assert same(state.group(lab.graph.digest), alone)
    assert not same(alone, dict(lab.state))


def test_tasks_name_their_tier_and_groups_are_architectures(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["thin", "full", "slim"])
    state = ExclusiveFL().init(world)
    tasks = [ExclusiveFL().send(world, state, c, 1) for c in range(3)]
    assert [t.tier for t in tasks] == ["thin", "full", "slim"]
    assert tasks[0].graph == tasks[2].graph != tasks[1].graph
    assert same(tasks[0].state, tasks[2].state)
    assert {k.partition("/")[0] for k in state.tensors} == {t.graph.digest for t in tasks}


def test_a_group_starts_as_its_first_tier_does(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["thin", "slim"])
    drawn = {t.name: lab.random_state(t.state, i) for i, t in enumerate(world.tiers)}
    own = tuple(dataclasses.replace(t, source=drawn[t.name], own=True) for t in world.tiers)
    state = ExclusiveFL().init(dataclasses.replace(world, tiers=own))
    assert same(state.group(tiers["slim"].graph.digest), drawn["slim"])


@pytest.mark.parametrize("norm", NORMS)
def test_every_client_is_tested_on_its_groups_model(lab, tiers, norm):
    world = lab.make_world(lab.graph, lab.state, tiers, ["slim", "full", "slim"])
    strategy = ExclusiveFL(norm=norm)
    state = after_round(strategy, world, lambda t: lab.random_state(t.state, t.client))
    found = models(strategy, world, state)
    assert {name: model.clients for name, model in found.items()} == {"full": (1,), "slim": (0, 2)}
    for name, model in found.items():
        assert model.graph == tiers[name].graph
        assert same(model.state, state.group(model.graph.digest))
        assert model.private == (norm == "local")
        assert model.statistics == ("recompute" if norm == "static" else "stored")
        assert model.program is None
    held = {k for k in lab.state if "running" in k or "tracked" in k}
    assert strategy.send(world, state, 1, 2).private == (held if norm == "local" else set())
