"""Clustered-FL: when clusters split, along which line, and what both halves are."""

from __future__ import annotations

import pytest
import torch

import archgraph as ag
from archgraph.federation import Outcome, PairwiseProducts
from archgraph.strategies.clusteredfl import ClusteredFL, bipartition, cosines


def directions(world, strategy, state, moves, round=1):
    """Client c moves the first weight by its first number, the second by its second."""
    for client, (x, y) in moves.items():
        task = strategy.send(world, state, client, round)
        weight = task.state["1.weight"].clone()
        weight[0, 0] += x
        weight[0, 1] += y
        yield task.result(Outcome({**task.state, "1.weight": weight}), 10)


def after(world, strategy, state, moves, round=1):
    return strategy.receive(world, state, directions(world, strategy, state, moves, round), round)


def test_a_cluster_splits_where_updates_point_apart(tiny):
    world = tiny.uniform(4)
    strategy = ClusteredFL(after=0, mean_norm=0.5, largest_norm=1.5)
    state = strategy.init(world)
    assert state.values["clusters"] == [0] * 4
    split = after(world, strategy, state, {0: (2, 0), 1: (-2, 0.1), 2: (2, 0.1), 3: (-2, 0)})
    assert split.values["clusters"] == [0, 1, 0, 1]
    # Both go on from the mean: (2 - 2 + 2 - 2) / 4 and (0 + 0.1 + 0.1 + 0) / 4.
    for group in ("cluster/0", "cluster/1"):
        moved = (split.group(group)["1.weight"] - world.state["1.weight"])[0, :2]
        torch.testing.assert_close(moved, torch.tensor([0.0, 0.05]), rtol=1e-5, atol=1e-6)
    # From now on each has its own mean.
    later = after(world, strategy, split, {0: (1, 0), 1: (5, 0), 2: (3, 0), 3: (7, 0)}, 2)
    for group, mean in (("cluster/0", 2.0), ("cluster/1", 6.0)):
        moved = later.group(group)["1.weight"][0, 0] - split.group(group)["1.weight"][0, 0]
        assert moved.item() == pytest.approx(mean, abs=1e-5)
    (tested,) = strategy.evaluated(world, later)
    assert tested.states is not None and tested.personal
    assert torch.equal(tested.states(3)["1.weight"], later.group("cluster/1")["1.weight"])


@pytest.mark.parametrize(
    ("options", "moves"),
    [
        ({"mean_norm": 0.1}, {0: (2, 0), 1: (-1, 0)}),  # the mean still moves
        ({"largest_norm": 3}, {0: (2, 0), 1: (-2, 0)}),  # all have converged
        ({"after": 1}, {0: (2, 0), 1: (-2, 0)}),  # too early
        ({"split": False}, {0: (2, 0), 1: (-2, 0)}),
        ({}, {0: (2, 0)}),  # not all clients of the cluster are there
    ],
)
def test_it_does_not_split_otherwise(tiny, options, moves):
    world = tiny.uniform(2)
    usual = ClusteredFL(after=0, mean_norm=0.5, largest_norm=1.5, smallest=2)
    assert after(world, usual, usual.init(world), {0: (2, 0), 1: (-2, 0)}).values["clusters"] == [
        0,
        1,
    ]
    strategy = tiny.replace(usual, **options)
    assert after(world, strategy, strategy.init(world), moves).values["clusters"] == [0, 0]


def test_clusters_of_two_stay_together_as_in_the_published_code(tiny):
    strategy = ClusteredFL(after=0, mean_norm=1.0, largest_norm=1.5)
    for count, clusters in ((2, [0, 0]), (3, [0, 1, 0])):
        world = tiny.uniform(count)
        moves = dict(enumerate([(2, 0), (-2, 0), (2, 0)][:count]))
        state = after(world, strategy, strategy.init(world), moves)
        assert state.values["clusters"] == clusters


def test_a_second_split_is_of_the_right_clients(tiny):
    """Defect of the published code: after the first split, places in a cluster pass for clients."""
    world = tiny.uniform(6)
    strategy = ClusteredFL(after=0, mean_norm=0.5, largest_norm=1.5)
    first = {0: (2, 0), 2: (2, 0), 1: (-2, 0), 3: (-2, 0), 4: (-2, 0), 5: (2, 0)}
    state = after(world, strategy, strategy.init(world), first)
    assert state.values["clusters"] == [0, 1, 0, 1, 1, 0]
    second = {0: (1, 0), 2: (1, 0), 5: (1, 0), 1: (0, 4), 3: (0, -2), 4: (0, -2)}
    state = after(world, strategy, state, second, 2)
    assert state.values["clusters"] == [0, 1, 0, 2, 2, 0]
    assert {name.split("/")[1] for name in state.tensors} == {"0", "1", "2"}


def test_each_architecture_is_a_cluster_at_first(lab):
    tiers = {"half": ag.take(lab.graph, 0.5), "full": ag.Rewritten.identity(lab.graph)}
    world = lab.make_world(lab.graph, lab.state, tiers, ["full", "half", "full"])
    strategy = ClusteredFL(split=False)
    state = strategy.init(world)
    assert state.values["clusters"] == [0, 1, 0]
    results = []
    for client in range(3):
        task = strategy.send(world, state, client, 1)
        update = {k: torch.full_like(v, client + 1) for k, v in task.state.items()}
        results.append(task.result(Outcome(update), 10))
    merged = strategy.receive(world, state, iter(results), 1)
    assert merged.group("cluster/0")["fc.bias"].tolist() == [2.0] * 5
    assert merged.group("cluster/1")["fc.bias"].tolist() == [2.0] * 5
    assert merged.group("cluster/1")["fc.weight"].shape == (5, 6)
    models = {m.name: m for m in strategy.evaluated(world, merged)}
    assert set(models) == {"half", "full"} and not any(m.personal for m in models.values())


def test_running_statistics_are_no_direction(lab):
    """Only what is trained is compared."""
    world = lab.uniform(2)
    strategy = ClusteredFL(after=0, mean_norm=1e9, largest_norm=1e-3)
    state = strategy.init(world)

    def moved():
        for client in (0, 1):
            task = strategy.send(world, state, client, 1)
            update = {
                k: v + (-1) ** client if "running_mean" in k else v for k, v in task.state.items()
            }
            yield task.result(Outcome(update), 10)

    assert strategy.receive(world, state, moved(), 1).values["clusters"] == [0, 0]


def test_products_are_those_of_all_entries_in_pieces(monkeypatch):
    monkeypatch.setattr("archgraph.federation.pairwise.PIECE", 3)
    draw = torch.Generator().manual_seed(0)
    updates = [
        {"a": torch.randn(4, 5, generator=draw), "b": torch.randn((), generator=draw)}
        for _ in range(3)
    ]
    products = PairwiseProducts()
    for client, update in enumerate(updates):
        products.add(client, update)
    flat = torch.stack([torch.cat([u["a"].flatten(), u["b"].view(1)]) for u in updates]).double()
    torch.testing.assert_close(products.of([0, 1, 2]), flat @ flat.T)
    torch.testing.assert_close(products.of([2, 0]), flat[[2, 0]] @ flat[[2, 0]].T)
    units = flat / flat.norm(dim=1, keepdim=True)
    torch.testing.assert_close(cosines(flat @ flat.T), units @ units.T)


def test_complete_linkage_looks_at_the_least_similar_pair():
    """0-1-2 is a chain: single linkage would put 2 with 0 and 1, complete linkage with 3."""
    s = torch.eye(4)
    for i, j, value in (
        (0, 1, 0.9),
        (1, 2, 0.8),
        (2, 3, 0.5),
        (0, 2, -0.5),
        (0, 3, -0.9),
        (1, 3, -0.9),
    ):
        s[i, j] = s[j, i] = value
    assert bipartition(s) == ([0, 1], [2, 3])
    assert bipartition(s[:2, :2]) == ([0], [1])
