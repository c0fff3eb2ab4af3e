"""InclusiveFL: what sizes share, and momentum distillation by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.federation import Outcome
from archgraph.federation.family import resolve
from archgraph.language import load_family
from archgraph.strategies.inclusivefl import InclusiveFL, prefix, teaching_layers

SPECS = Path(__file__).parents[2] / "specs"


class Tower(nn.Module):
    """Four equal layers, a pooler and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(3, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.pooler = nn.Linear(4, 6)
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = x + layer(x).relu()
        return self.head(self.pooler(x).tanh())


@pytest.fixture(scope="module")
def tower():
    torch.manual_seed(0)
    return ag.trace(Tower(), torch.randn(2, 3))


@pytest.fixture
def world(lab, tower):
    graph, state = tower
    section = ag.structure(graph).block("layers.0").section
    tiers = {
        "two": ag.shorten(graph, {section: 2}),
        "three": ag.shorten(graph, {section: 3}),
        "four": ag.Rewritten.identity(graph),
    }
    clients = ["two", "two", "three", "four"]
    return lab.make_world(graph, state, tiers, clients, examples=[10, 30, 10, 10])


def moved(world, strategy, state, steps, round=1):
    """Every client moves each value by its own number."""
    for client, step in steps.items():
        task = strategy.send(world, state, client, round)
        yield task.result(
            Outcome({k: v + step for k, v in task.state.items()}), world.clients[client].examples
        )


def test_last_layer_pooler_and_head_belong_to_a_size(world):
    own = {t.name: prefix(world.graph, world.tiers, t).private for t in world.tiers}
    head = {"pooler.weight", "pooler.bias", "head.weight", "head.bias"}
    assert own["two"] == head | {"layers.1.weight", "layers.1.bias"}
    assert own["three"] == head | {"layers.2.weight", "layers.2.bias"}
    assert own["four"] == set()
    two, three, four = world.by_size
    assert teaching_layers(world.graph, world.tiers, two, three)["layers.1.bias"] == [
        "layers.1.bias",
        "layers.2.bias",
    ]
    assert teaching_layers(world.graph, world.tiers, three, four)["layers.2.bias"] == [
        "layers.2.bias",
        "layers.3.bias",
    ]


@pytest.mark.parametrize("beta", [0.0, 0.2])
def test_a_round_by_hand(world, beta):
    strategy = InclusiveFL(beta=beta)
    before = strategy.init(world)
    after = strategy.receive(
        world, before, moved(world, strategy, before, {0: 1.0, 1: 2.0, 2: 4.0, 3: 8.0}), 1
    )

    def step(group, name):
        change = after.group(group)[name] - before.group(group)[name]
        assert torch.allclose(change, change.flatten()[0].expand_as(change), atol=1e-4)
        return change.flatten()[0].item()

    # Shared: 10·1 + 30·2 + 10·4 + 10·8 over 60; layer 1 without the size that has it for itself.
    assert step("global", "stem.weight") == pytest.approx(190 / 60, abs=1e-4)
    assert step("global", "layers.1.bias") == pytest.approx((40 + 80) / 20, abs=1e-4)
    assert step("global", "layers.2.bias") == pytest.approx(8.0, abs=1e-4)
    assert step("global", "head.bias") == pytest.approx(8.0, abs=1e-4)
    assert step("tier/two", "head.bias") == pytest.approx((10 + 60) / 40, abs=1e-4)
    assert step("tier/three", "head.bias") == pytest.approx(4.0, abs=1e-4)
    # Momentum: size three has moved its layers 1 and 2 by 6 and 4, size four its 2 and 3 by 8.
    two = (1 - beta) * 70 / 40 + beta * (6 + 4) / 2
    assert step("tier/two", "layers.1.weight") == pytest.approx(two, abs=1e-4)
    three = (1 - beta) * 4 + beta * 8
    assert step("tier/three", "layers.2.weight") == pytest.approx(three, abs=1e-4)


def test_distillation_goes_on_in_every_round(world):
    """Defect of the published code: it mixes only while the momentum is still 0."""
    strategy = InclusiveFL(beta=0.5)
    state = strategy.init(world)
    for round in (1, 2, 3):
        before = state
        steps = {0: 0.0, 1: 0.0, 2: 4.0, 3: 4.0}
        state = strategy.receive(world, before, moved(world, strategy, before, steps, round), round)
        change = (
            state.group("tier/two")["layers.1.bias"] - before.group("tier/two")["layers.1.bias"]
        )
        torch.testing.assert_close(change, torch.full_like(change, 2.0), rtol=1e-5, atol=1e-5)


def test_without_the_deeper_size_nothing_is_mixed_and_without_its_own_nothing_moves(world):
    strategy = InclusiveFL()
    state = strategy.init(world)
    after = strategy.receive(world, state, moved(world, strategy, state, {0: 1.0}), 1)
    change = after.group("tier/two")["layers.1.bias"] - state.group("tier/two")["layers.1.bias"]
    torch.testing.assert_close(change, torch.ones_like(change), rtol=1e-5, atol=1e-5)
    assert torch.equal(after.group("global")["head.bias"], world.state["head.bias"])
    after = strategy.receive(world, state, moved(world, strategy, state, {2: 1.0, 3: 1.0}), 1)
    for name, value in state.group("tier/two").items():
        assert torch.equal(after.group("tier/two")[name], value)


def test_every_size_is_tested_with_what_is_its_own(world):
    strategy = InclusiveFL()
    state = strategy.init(world)
    state = strategy.receive(world, state, moved(world, strategy, state, {0: 1.0, 3: 3.0}), 1)
    models = {m.name: m for m in strategy.evaluated(world, state)}
    assert set(models) == {"global", "two", "three", "four"}
    assert torch.equal(models["two"].state["head.bias"], state.group("tier/two")["head.bias"])
    assert torch.equal(models["two"].state["stem.bias"], state.group("global")["stem.bias"])
    assert torch.equal(models["global"].state["head.bias"], state.group("global")["head.bias"])


def test_statistics_of_a_sizes_own_layers_may_stay_with_clients(lab):
    tiers = {"one": ag.shorten(lab.graph, {"layer1": 1}), "all": ag.Rewritten.identity(lab.graph)}
    world = lab.make_world(lab.graph, lab.state, tiers, ["one", "all"])
    strategy = InclusiveFL(norm="local")
    before = strategy.init(world)
    after = strategy.receive(world, before, moved(world, strategy, before, {0: 1.0, 1: 1.0}), 1)
    own = before.group("tier/one")
    for name in ("layer1.0.bn1.running_mean", "layer1.0.bn1.num_batches_tracked"):
        assert torch.equal(after.group("tier/one")[name], own[name])
    change = after.group("tier/one")["layer1.0.bn1.bias"] - own["layer1.0.bn1.bias"]
    torch.testing.assert_close(change, torch.ones_like(change), rtol=1e-5, atol=1e-5)


def test_blocks_that_differ_learn_from_layers_of_their_kind(lab):
    """A first block with a projection has layers that the others lack: they keep their own step."""
    one = {"one": ag.shorten(lab.graph, {"layer1": 1}), "all": ag.Rewritten.identity(lab.graph)}
    world = lab.make_world(lab.graph, lab.state, one, ["one", "all"])
    small, large = world.by_size
    pairs = teaching_layers(lab.graph, world.tiers, small, large)
    assert pairs["layer1.0.conv2.weight"] != [] and "layer1.0.conv1.weight" in pairs
    for name, deeper in pairs.items():
        shapes = {lab.graph.param[entry].shape for entry in deeper}
        assert shapes == {lab.graph.param[name].shape}
    assert not any("running" in name for name in pairs)


class Tied(Tower):
    """A tower whose head is its stem, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(5, 4)
        self.pooler = nn.Linear(4, 4)
        del self.head

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = x + layer(x).relu()
        return self.pooler(x).tanh() @ self.stem.weight


def test_a_weight_that_the_first_layers_use_too_is_shared(lab):
    torch.manual_seed(0)
    graph, state = ag.trace(Tied(), torch.randn(2, 5))
    section = ag.structure(graph).block("layers.0").section
    tiers = {"two": ag.shorten(graph, {section: 2}), "four": ag.Rewritten.identity(graph)}
    world = lab.make_world(graph, state, tiers, ["two", "four"], examples=[10, 30])
    own = prefix(world.graph, world.tiers, world.tier("two")).private
    assert own == {"layers.1.weight", "layers.1.bias", "pooler.weight", "pooler.bias"}
    strategy = InclusiveFL(beta=0)
    before = strategy.init(world)
    after = strategy.receive(world, before, moved(world, strategy, before, {0: 1.0, 1: 2.0}), 1)
    for client in (0, 1):
        sent = strategy.send(world, after, client, 2).state
        torch.testing.assert_close(sent["stem.weight"], state["stem.weight"] + 1.75)
        step = (1.0, 2.0)[client]
        torch.testing.assert_close(sent["pooler.weight"], state["pooler.weight"] + step)


def test_what_is_narrower_belongs_to_a_size_and_so_does_all_behind_it(lab, tower):
    """RecipFL's use of it on MNIST: common first layers are averaged, the rest within a size."""
    graph, state = tower
    thin = ag.take(graph, sizes={"pooler.out": 3})
    tiers = {"thin": thin, "whole": ag.Rewritten.identity(graph)}
    world = lab.make_world(graph, state, tiers, ["thin", "whole"], examples=[30, 10])
    small, large = world.by_size
    own = prefix(graph, world.tiers, small).private
    assert own == {"pooler.weight", "pooler.bias", "head.weight", "head.bias"}
    assert teaching_layers(graph, world.tiers, small, large) == {}
    strategy = InclusiveFL()
    before = strategy.init(world)
    assert torch.equal(before.group("tier/thin")["pooler.bias"], state["pooler.bias"][:3])
    after = strategy.receive(world, before, moved(world, strategy, before, {0: 1.0, 1: 5.0}), 1)
    expected = {
        ("global", "stem.weight"): (30 * 1.0 + 10 * 5.0) / 40,
        ("global", "layers.3.bias"): 2.0,
        ("global", "pooler.bias"): 5.0,
        ("tier/thin", "pooler.bias"): 1.0,
        ("tier/thin", "head.bias"): 1.0,
    }
    for (group, name), step in expected.items():
        change = after.group(group)[name] - before.group(group)[name]
        torch.testing.assert_close(change, torch.full_like(change, step), rtol=1e-5, atol=1e-5)
    [model] = [m for m in strategy.evaluated(world, after) if m.name == "thin"]
    assert model.state["pooler.bias"].shape == (3,)


def test_recipfls_small_lenet_shares_its_first_block():
    family = resolve(load_family(SPECS / "families" / "recipfl_mnist.yaml"))
    weak = next(tier for tier in family.clients if tier.name == "weak")
    found = prefix(family.graph, tuple(family.clients), weak)
    assert set(weak.graph.state_names) - found.private == {
        name for name in weak.graph.state_names if name.startswith("block1.")
    }


def test_without_a_common_first_layer_there_is_nothing_to_share(lab, tower):
    graph, state = tower
    thin = ag.take(graph, sizes={"stem.out": 2})
    world = lab.make_world(graph, state, {"thin": thin}, ["thin"])
    with pytest.raises(ag.RunError, match=r"tier thin: .*found a narrower stem.*heterofl"):
        InclusiveFL().init(world)
