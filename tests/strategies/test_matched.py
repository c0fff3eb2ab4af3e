"""Matched: clients of different beginnings are averaged in one order."""

from __future__ import annotations

import pytest
import torch

import archgraph as ag
from archgraph.federation import Outcome
from archgraph.strategies.fedavg import FedAvg
from archgraph.strategies.matched import Matched


def without_symmetry(graph: ag.ArchGraph, seed: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        name: value + torch.randn(value.shape, generator=draw)
        if value.is_floating_point()
        else value
        for name, value in ag.initial_state(graph, seed).items()
    }


def shuffled(
    graph: ag.ArchGraph, state: dict[str, torch.Tensor], seed: int
) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    positions = {a: torch.randperm(a.size, generator=draw).tolist() for a in ag.axes(graph).free}
    return dict(ag.take(graph, positions=positions).transfer.pull(state))


def moved(strategy, world, update):
    """How many positions the record says moved in a first round."""
    state = strategy.init(world)
    tasks = [strategy.send(world, state, c, 1) for c in range(len(world.clients))]
    results = (task.result(Outcome(state=dict(update(task))), 10) for task in tasks)
    return strategy.receive(world, state, results, 1).values["moved"]


def test_copies_in_other_orders_have_the_mean_of_one(lab):
    """Every client is the same network, its positions in another order."""
    trained = without_symmetry(lab.graph, 0)
    world, update = lab.uniform(3), lambda t: shuffled(lab.graph, trained, t.client)
    after, _ = lab.one_round(Matched(), world, update)
    assert moved(Matched(), world, update) > 0
    match = ag.match(lab.graph, trained, after)
    assert match.after == pytest.approx(1, abs=1e-6)
    back = match.order.pull(after)
    torch.testing.assert_close(back, trained, rtol=1e-5, atol=1e-6)


def test_where_nothing_moves_it_is_fedavg(lab):
    """Clients that stay near one network keep its order."""
    trained = without_symmetry(lab.graph, 0)

    def update(task):
        near = without_symmetry(lab.graph, 1 + task.client)
        return {k: v + 0.01 * near[k] if v.is_floating_point() else v for k, v in trained.items()}

    world = lab.make_world(
        lab.graph, trained, {"full": ag.Rewritten.identity(lab.graph)}, ["full"] * 3
    )
    after, _ = lab.one_round(Matched(), world, update)
    assert moved(Matched(), world, update) == 0
    expected, _ = lab.one_round(FedAvg(), world, update)
    torch.testing.assert_close(after, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.full
def test_who_is_who_changes_the_order_of_positions_alone(lab):
    """Clients exchange their ids: the same network, in another order of positions at most."""
    states = [without_symmetry(lab.graph, seed) for seed in range(3)]

    def merged(order):
        return lab.one_round(Matched(), lab.uniform(3), lambda t: states[order[t.client]])[0]

    one, other = merged([0, 1, 2]), merged([2, 0, 1])
    match = ag.match(lab.graph, one, other)
    assert match.after == pytest.approx(1, abs=1e-6)


def test_narrow_clients_find_their_place_in_the_wide_one(lab):
    trained = without_symmetry(lab.graph, 0)
    inner = [axis for axis in ag.axes(lab.graph).free if "conv1" in axis.name]
    half = ag.take(lab.graph, positions={a: [*range(a.size)][::-2] for a in inner})
    first = ag.take(lab.graph, dict.fromkeys(inner, 0.5))
    tiers = {"half": first, "full": ag.Rewritten.identity(lab.graph)}
    world = lab.make_world(lab.graph, lab.state, tiers, ["half", "full"])
    part = half.transfer.pull(trained)
    after, _ = lab.one_round(Matched(), world, lambda t: part if t.tier == "half" else trained)
    assert moved(Matched(), world, lambda t: part if t.tier == "half" else trained) > 0
    torch.testing.assert_close(after, trained, rtol=1e-5, atol=1e-6)


def test_clients_begin_apart_once_alone(lab):
    world, method = lab.uniform(2), Matched()
    state = method.init(world)
    first = [method.send(world, state, client, 1).state for client in (0, 1)]
    again = method.send(world, state, 0, 1).state
    name = next(p.name for p in lab.graph.params if len(p.shape) > 1)
    assert torch.equal(first[0][name], again[name])
    assert not torch.equal(first[0][name], first[1][name])
    later = [method.send(world, state, client, 2).state for client in (0, 1)]
    assert torch.equal(later[0][name], later[1][name])
    assert torch.equal(later[0][name], world.state[name])
