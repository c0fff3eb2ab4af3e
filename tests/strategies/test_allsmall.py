"""AllSmall: FedAvg on the smallest architecture, whatever clients could run."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import archgraph as ag
from archgraph.federation import LocalOptions, Train, configure
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


@settings(max_examples=6)
@given(seed=st.integers(0, 2**31), counts=st.lists(st.integers(1, 500), min_size=1, max_size=4))
@pytest.mark.parametrize("norm", NORMS)
def test_with_one_architecture_it_is_fedavg_bit_for_bit(lab, norm, seed, counts):
    world = lab.uniform(len(counts), seed=seed, examples=counts)
    for weights in ("examples", "uniform"):
        one, two = (
            lab.one_round(
                make(norm=norm, weights=weights),
                world,
                lambda t: lab.random_state(t.state, seed + t.client),
            )
            for make in (FedAvg, AllSmall)
        )
        assert one[0].keys() == two[0].keys()
        assert all(torch.equal(two[0][k], v) for k, v in one[0].items())
        for mine, theirs in zip(one[1].values(), two[1].values(), strict=True):
            assert (mine.graph, mine.private, mine.program) == (
                theirs.graph,
                theirs.private,
                theirs.program,
            )


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


def test_the_mean_is_weighted_by_examples_or_uniform(tiny):
    world = tiny.uniform(2, examples=[30, 10])
    for weights, mean in (("examples", 0.25), ("uniform", 0.5)):
        after, _ = tiny.one_round(
            configure("allsmall", {"weights": weights}),
            world,
            lambda t: {k: v * 0 + t.client for k, v in tiny.state.items()},
        )
        assert all(torch.equal(v, torch.full_like(v, mean)) for v in after.values())


def test_the_order_of_clients_does_not_matter(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["full", "slim", "flat"])
    runs = [
        lab.one_round(
            AllSmall(), world, lambda t: lab.random_state(t.state, t.client), order=order
        )[0]
        for order in itertools.permutations(range(3))
    ]
    for other in runs[1:]:
        for name, value in runs[0].items():
            torch.testing.assert_close(other[name], value, rtol=1e-6, atol=1e-6)


def test_a_round_without_results_changes_nothing(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["full", "slim"])
    strategy = AllSmall()
    state = strategy.init(world)
    after = strategy.receive(world, state, iter(()), 1)
    assert after.tensors.keys() == state.tensors.keys()
    assert all(torch.equal(after.tensors[k], v) for k, v in state.tensors.items())


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


def test_classes_that_a_client_lacks_can_be_masked(lab):
    world = lab.uniform(1)
    for masked in (False, True):
        strategy = AllSmall(mask_absent=masked)
        program = strategy.send(world, strategy.init(world), 0, 1).program
        assert dataclasses.asdict(program)["objective"]["mask_absent"] == masked  # type: ignore[call-overload]
