"""Laws that every strategy that merges into one global state obeys."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import archgraph as ag
from archgraph.federation import (
    NormPolicy,
    Outcome,
    ServerState,
    Strategy,
    Task,
    World,
    covered_mean,
    part,
)
from archgraph.states import Entry
from archgraph.strategies.adaptivefl_pool import AdaptiveFLPool
from archgraph.strategies.allsmall import AllSmall
from archgraph.strategies.exclusivefl import ExclusiveFL
from archgraph.strategies.fedadp import FedADP
from archgraph.strategies.fedavg import FedAvg
from archgraph.strategies.fedfa import FedFA
from archgraph.strategies.fedin import FedIN
from archgraph.strategies.fiarse import FIARSE
from archgraph.strategies.flexfl_pool import FlexFLPool
from archgraph.strategies.flexifed import FlexiFed
from archgraph.strategies.heterofl import HeteroFL
from archgraph.strategies.nefl import NeFL

NORMS = ("averaged", "static", "local")
# Clients keep to their own submodel: the laws say who trains what.
Fixed = functools.partial(NeFL, spread=0)
# They make submodels of their own from what tiers have.
OWN = (FIARSE, AdaptiveFLPool, functools.partial(FlexFLPool, apoz={"*": 0.5}))
Structured = functools.partial(FIARSE, structured=True)
# Their servers hold a state for each architecture, or for layers that architectures share.
APART = (AllSmall, ExclusiveFL, FlexiFed)


def plain(norm: str) -> list[Strategy]:
    """The methods where they should be one."""
    return [
        FedAvg(norm=norm),  # type: ignore[arg-type]  # names as in a spec
        HeteroFL(norm=norm),  # type: ignore[arg-type]
        FedADP(norm=norm),  # type: ignore[arg-type]
        FedFA(norm=norm, scale=False),  # type: ignore[arg-type]
        NeFL(norm=norm, steps="off", inconsistent="none", spread=0),  # type: ignore[arg-type]
    ]


@pytest.fixture(scope="module")
def mixed(lab):
    """Four architectures: shallower, narrower, both, all."""
    narrow = ag.take(lab.graph, 0.5)
    tiers = {
        "weak": ag.shorten(narrow.graph, {"layer1": 2, "layer2": 2}),
        "flat": ag.shorten(lab.graph, {"layer1": 2, "layer2": 2}),
        "slim": narrow,
        "full": ag.Rewritten.identity(lab.graph),
    }
    tiers["weak"] = narrow >> tiers["weak"]
    return tiers


@settings(max_examples=6)
@given(seed=st.integers(0, 2**31), clients=st.integers(1, 4), examples=st.integers(1, 500))
@pytest.mark.parametrize("norm", NORMS)
def test_equal_architectures_and_data_sizes_give_bit_equal_globals(
    lab, norm, seed, clients, examples
):
    world = lab.uniform(clients, seed=seed, examples=[examples] * clients)
    globals_ = [
        lab.one_round(s, world, lambda t: lab.random_state(t.state, seed + t.client))[0]
        for s in plain(norm)
    ]
    for other in globals_[1:]:
        assert other.keys() == globals_[0].keys() == set(lab.graph.state_names)
        assert all(torch.equal(other[k], v) for k, v in globals_[0].items())


def after(strategy: Strategy, world: World, update: Any, order: Sequence[int] = ()) -> ServerState:
    """The server's state after a first round."""
    clients = order or range(len(world.clients))
    state = strategy.begin(world, strategy.init(world), 1, clients)
    tasks = [strategy.send(world, state, client, 1) for client in clients]
    results = (t.result(Outcome(update(t)), world.clients[t.client].examples) for t in tasks)
    return strategy.receive(world, state, results, 1)


@pytest.mark.sample(3)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("weights", ["examples", "uniform"])
@pytest.mark.parametrize(
    "make", [AllSmall, ExclusiveFL, FedADP, functools.partial(FedADP, narrow="net2net")]
)
def test_one_architecture_is_fedavg_bit_for_bit(lab, make, weights, norm):
    world = lab.uniform(3, examples=[3, 50, 7])
    ours, expected = (
        after(
            method(norm=norm, weights=weights), world, lambda t: lab.random_state(t.state, t.client)
        )
        for method in (make, FedAvg)
    )
    (group,) = {name.rpartition("/")[0] for name in ours.tensors}
    for name, value in expected.group("global").items():
        assert torch.equal(ours.group(group)[name], value)


@pytest.mark.sample(2)
@pytest.mark.parametrize("norm", ["averaged", "static"])
@pytest.mark.parametrize("make", [*OWN, Structured])
def test_clients_that_train_everything_are_fedavg_bit_for_bit(lab, make, norm):
    world = lab.uniform(3, examples=[7] * 3)
    after, expected = (
        lab.one_round(strategy, world, lambda t: lab.random_state(t.state, t.client))[0]
        for strategy in (make(norm=norm), FedAvg(norm=norm))
    )
    assert all(torch.equal(after[name], value) for name, value in expected.items())


@pytest.mark.parametrize("norm", NORMS)
def test_one_client_that_runs_everything_is_the_global(lab, norm):
    """FedAvg of one client is that client, except what its norm policy holds back."""
    world = lab.uniform(1)
    update = lab.random_state(lab.state, 3)
    held = NormPolicy(norm).unmerged(lab.graph)
    for strategy in (*plain(norm), FedFA(norm=norm)):
        after, _ = lab.one_round(strategy, world, lambda _: update)
        for name, value in after.items():
            expected = lab.state[name] if name in held else update[name]
            # α = n/n is 1 up to two roundings.
            torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("make", [FedAvg, HeteroFL, FedFA, Fixed, *OWN])
def test_identical_round_trip_keeps_the_global(lab, mixed, make):
    """Clients that return what they were sent change nothing."""
    if make is FedAvg:
        world = lab.uniform(3)
    else:
        # Grafted copies would overwrite deeper blocks: compare at full depth.
        world = lab.make_world(lab.graph, lab.state, mixed, ["slim", "full", "full"])
    strategy = make(scale=False) if make is FedFA else make()
    after, _ = lab.one_round(strategy, world, lambda task: task.state)
    torch.testing.assert_close(lab.state, after, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("make", [HeteroFL, FedFA, Fixed])
@pytest.mark.parametrize("tiers", [["weak"], ["weak", "flat"], ["slim", "weak", "slim"]])
def test_uncovered_entries_keep_their_old_value_bit_for_bit(lab, mixed, make, tiers):
    world = lab.make_world(lab.graph, lab.state, mixed, tiers)
    strategy = make()
    after, _ = lab.one_round(strategy, world, lambda t: lab.random_state(t.state, t.client))
    covered = {name: torch.zeros(v.shape) for name, v in lab.state.items()}
    for name in tiers:
        graph, transfer = mixed[name].graph, mixed[name].transfer
        ones = {k: torch.ones_like(v) for k, v in transfer.pull(lab.state).items()}
        _, coverage = transfer.push(ones)
        for k in coverage:
            covered[k] += coverage[k]
        assert graph is not None
    untouched = 0
    for name, value in after.items():
        free = covered[name] == 0
        if make is FedFA and (".2." in name):
            continue  # grafting completes the last blocks
        untouched += int(free.sum())
        assert torch.equal(value[free], lab.state[name][free])
    assert untouched > 0 or "flat" in tiers


@pytest.mark.parametrize("make", [HeteroFL, FedADP, FedFA, NeFL, *OWN, *APART])
def test_the_order_of_clients_does_not_matter(lab, mixed, make):
    """For no part of the server's state."""
    world = lab.make_world(lab.graph, lab.state, mixed, list(mixed), examples=[3, 50, 7, 20])
    first, *others = (
        after(make(), world, lambda t: lab.random_state(t.state, t.client), order).tensors
        for order in itertools.islice(itertools.permutations(range(4)), 0, 24, 5)
    )
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-6, atol=1e-6)


@pytest.mark.sample(2)
@pytest.mark.parametrize("make", [FedAvg, HeteroFL, FedADP, FedFA, Fixed, FedIN, *OWN, *APART])
def test_a_round_without_results_changes_nothing(lab, make):
    world = lab.uniform(2)
    strategy = make()
    state = strategy.init(world)
    after = strategy.receive(world, state, iter(()), 1)
    assert after.values == state.values
    assert all(torch.equal(after.tensors[k], v) for k, v in state.tensors.items())


@pytest.mark.sample(2)
@pytest.mark.parametrize("make", [FedAvg, HeteroFL, FedADP, FedFA, Fixed, *OWN, *APART])
def test_results_are_taken_one_at_a_time(lab, make):
    """The server holds one update at a time: a result is asked for when the last one is merged."""
    world, strategy = lab.uniform(3), make()
    state = strategy.init(world)
    alive = []

    def stream():
        for client in range(3):
            task = strategy.send(world, state, client, 1)
            update = lab.random_state(task.state, client)
            alive.append(client)
            yield task.result(Outcome(update), 10)
            for value in update.values():
                if value.is_floating_point():
                    value.fill_(float("nan"))

    after = strategy.receive(world, state, stream(), 1)
    assert alive == [0, 1, 2]
    assert all(v.isfinite().all() for v in after.tensors.values())


@pytest.mark.parametrize("make", [FedAvg, HeteroFL, FedADP, FedFA, Fixed])
def test_local_statistics_never_leave_the_client(lab, make):
    world, strategy = lab.uniform(2), make(norm="local")
    task = strategy.send(world, strategy.init(world), 0, 1)
    assert task.private == {k for k in lab.state if "running" in k or "tracked" in k}
    assert all(e.private for e in strategy.evaluated(world, strategy.init(world)) if e.clients)


@pytest.mark.sample(2)
@pytest.mark.parametrize("make", [FedAvg, HeteroFL, FedADP, FedFA, Fixed, *OWN])
def test_every_client_is_evaluated_in_exactly_one_model(lab, mixed, make):
    world = (
        lab.uniform(3)
        if make is FedAvg
        else lab.make_world(lab.graph, lab.state, mixed, ["weak", "full", "weak"])
    )
    strategy = make()
    models = list(strategy.evaluated(world, strategy.init(world)))
    assert models[0].name == "global"
    assert sorted(c for m in models for c in m.clients) == [0, 1, 2]
    for model in models:
        assert set(model.state) == set(model.graph.state_names)
        ag.build(model.graph, model.state)(torch.zeros(2, 1, 8, 8))


def test_the_mean_size_of_an_entry_is_that_of_the_clients_that_have_it(lab, mixed):
    """An entry of one client stays what it sent, however many others its other entries have."""
    world = lab.make_world(lab.graph, lab.state, mixed, ["flat", "flat", "full"])
    state = ServerState().with_group("global", world.state)
    sent = [part(world, state, client) for client in range(3)]
    results = [
        task.result(Outcome(state=lab.random_state(task.state, task.client)), 10) for task in sent
    ]
    means = covered_mean(
        world, state, results, sizes=lambda r: dict.fromkeys(r.state, 2.0 + r.client)
    ).group("global")
    alone = {name for name in results[2].state if name not in {e.source for e in sources(sent[0])}}
    assert "layer1.2.conv1.weight" in alone
    for name in alone:
        if means[name].is_floating_point():
            torch.testing.assert_close(means[name], results[2].state[name])
    weighed = sum(r.state["fc.bias"] / (2.0 + r.client) for r in results) / 3 * 3.0
    torch.testing.assert_close(means["fc.bias"], weighed)


def test_an_entry_without_size_is_averaged_as_it_is(lab):
    world = lab.uniform(2)
    state = ServerState().with_group("global", world.state)
    sent = [part(world, state, client) for client in range(2)]
    results = [t.result(Outcome(state=lab.random_state(t.state, t.client)), 10) for t in sent]
    means = covered_mean(world, state, results, sizes=lambda r: {"fc.bias": 4.0 * r.client})
    one, two = (result.state["fc.bias"] for result in results)
    expected = (one + two / 4) / 2 * 2
    torch.testing.assert_close(means.group("global")["fc.bias"], expected)


def sources(task: Task) -> Iterable[Entry]:
    assert task.transfer is not None
    return task.transfer.entries.values()
