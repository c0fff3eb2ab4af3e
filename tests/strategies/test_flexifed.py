"""FlexiFed against its definition by pairs, against FedAvg and Standalone, and on strangers."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import archgraph as ag
from archgraph.data import load_dataset
from archgraph.data.partition import allot
from archgraph.engine.experiment import Experiment
from archgraph.engine.rounds import Loop
from archgraph.federation import (
    Client,
    LocalOptions,
    Outcome,
    ServerState,
    Task,
    TaskLoss,
    Tier,
    Train,
    World,
    configure,
)
from archgraph.language.experiment import EvaluateSpec
from archgraph.strategies.fedavg import FedAvg
from archgraph.strategies.flexifed import FlexiFed, Sharing, common_layers
from archgraph.strategies.standalone import Standalone

SHARING: tuple[Sharing, ...] = ("basic", "clustered", "max")
NOTHING = ag.ArchGraph(inputs=(), params=(), nodes=(), outputs=())


def chain_net(kinds: str) -> nn.ModuleDict:
    """A chain over four layers of an alphabet, with parameter names that no other chain has."""
    make = {
        "a": lambda: nn.Linear(4, 4),
        "b": lambda: nn.Linear(4, 4, bias=False),
        "n": lambda: nn.BatchNorm1d(4),
        "l": lambda: nn.LayerNorm(4),
    }
    return nn.ModuleDict({f"{kinds}{i}": make[kind]() for i, kind in enumerate(kinds)})


class Chain(nn.Module):
    def __init__(self, kinds: str) -> None:
        super().__init__()
        self.parts = chain_net(kinds)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts.values():
            x = part(x).tanh()
        return x


@functools.cache
def traced(kinds: str) -> tuple[ag.ArchGraph, Mapping[str, Tensor]]:
    torch.manual_seed(len(kinds))
    made = ag.trace(Chain(kinds), torch.zeros(2, 4))
    return made.graph, made.state


def world_of(
    models: Mapping[str, tuple[ag.ArchGraph, Mapping[str, Tensor]]],
    clients: Sequence[str],
    examples: Sequence[int] = (),
) -> World:
    """Clients by model name; there is no global model."""
    tiers = {
        name: Tier(name, graph, ag.Transfer.identity(graph), state, own=True)
        for name, (graph, state) in models.items()
    }
    return World(
        graph=NOTHING,
        state={},
        clients=tuple(
            Client(
                i,
                name,
                examples[i] if examples else 10,
                (1,) * 10,
            )
            for i, name in enumerate(clients)
        ),
        tiers=tuple(tiers.values()),
        classes=10,
        rounds=5,
        seed=0,
    )


def play(
    strategy: FlexiFed,
    world: World,
    update: Any,
    order: Sequence[int] | None = None,
) -> tuple[ServerState, dict[int, Task], dict[int, Mapping[str, Tensor]]]:
    """One round: the state after it, the tasks, and what each client has trained."""
    state = strategy.init(world)
    sampled = list(order if order is not None else range(len(world.clients)))
    tasks = {c: strategy.send(world, state, c, 1) for c in sampled}
    trained = {c: update(tasks[c]) for c in sampled}
    results = (tasks[c].result(Outcome(trained[c]), world.clients[c].examples) for c in sampled)
    # States travel: plain values survive JSON.
    state = ServerState(state.tensors, json.loads(json.dumps(state.values)))
    return strategy.receive(world, state, results, 1), tasks, trained


def constant(task: Task) -> dict[str, Tensor]:
    """Client c returns c + 1 everywhere."""
    return {k: torch.full_like(v, task.client + 1) for k, v in task.state.items()}


def doubling(task: Task) -> dict[str, Tensor]:
    """Client c returns 2 to the power of c everywhere."""
    return {k: torch.full_like(v, 2**task.client) for k, v in task.state.items()}


# ---------------------------------------------------------------- who shares what

chains = st.lists(st.text("ab", max_size=5), min_size=1, max_size=7)


def agreement(a: str, b: str) -> int:
    """Length of the common prefix."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(map(len, (a, b)))
    )


def by_pairs(words: Sequence[str], sharing: str) -> dict[tuple[int, int], frozenset[int]]:
    """The paper's definition, pair by pair: with whom each layer of each client is averaged."""
    base = min(agreement(a, b) for a in words for b in words)
    all_clients = frozenset(range(len(words)))
    found = {}
    for i, word in enumerate(words):
        alike = frozenset(j for j, other in enumerate(words) if other == word)
        for layer in range(len(word)):
            if sharing == "max":
                who = frozenset(j for j, o in enumerate(words) if agreement(word, o) > layer)
            elif layer < base:
                who = all_clients
            else:
                who = alike if sharing == "clustered" else frozenset()
            if who:
                found[i, layer] = who
    return found


@given(chains)
@pytest.mark.parametrize("sharing", SHARING)
def test_runs_are_the_definition_by_pairs(sharing, words):
    found: dict[tuple[int, int], frozenset[int]] = {}
    for members, start, stop in common_layers(words, sharing):
        for place in itertools.product(members, range(start, stop)):
            assert place not in found, "a layer is in two runs"
            found[place] = frozenset(members)
    assert found == by_pairs(words, sharing)


@given(chains)
def test_max_shares_what_clustered_shares_and_that_what_basic_shares(words):
    basic, clustered, most = (by_pairs(words, sharing) for sharing in SHARING)
    assert all(who <= clustered[place] for place, who in basic.items())
    assert all(who <= most[place] for place, who in clustered.items())


@pytest.mark.parametrize("sharing", SHARING)
def test_every_layer_is_looked_at_a_bounded_number_of_times(sharing):
    """Clients times layers, not pairs of clients: counted, for 10 and for 1000 clients."""
    looked = 0

    class Key(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal looked
            looked += 1
            return str.__eq__(self, str(other))

        __hash__ = str.__hash__

    for clients in (10, 1000):
        looked = 0
        # Each pair of clients parts somewhere.
        words = [[Key("s")] * (5 + i % 20) + [Key(f"{i}")] * 5 for i in range(clients)]
        common_layers(words, sharing)
        assert looked <= 3 * sum(map(len, words))


# ---------------------------------------------------------------- rounds

WORDS = ("anab", "anaa", "aal", "anab", "bn", "ana")


@pytest.mark.sample(3)
@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("chosen", [(0, 1, 2), (0, 1, 3), (0, 4), (0, 1, 2, 3, 4, 5), (5, 5, 5)])
def test_a_round_gives_each_layer_the_mean_over_those_that_share_it(sharing, chosen):
    """Through graphs, transfers and the next round's tasks, entry by entry."""
    words = [WORDS[i] for i in chosen]
    world = world_of({w: traced(w) for w in dict.fromkeys(words)}, words)
    strategy = FlexiFed(sharing=sharing)
    draw = torch.Generator().manual_seed(1)

    def update(task: Task) -> dict[str, Tensor]:
        return {
            k: torch.randn(v.shape, generator=draw) if v.is_floating_point() else v + task.client
            for k, v in task.state.items()
        }

    after, tasks, trained = play(strategy, world, update)
    shared = by_pairs([flat(w) for w in words], sharing)
    averaged = 0
    for i, word in enumerate(words):
        again = strategy.send(world, after, i, 2)
        names = [layer.entries for layer in ag.layers(traced(word)[0])]
        assert sum(map(len, names)) == len(again.state)
        for place, entries in enumerate(names):
            who = shared.get((i, place))
            assert (who is None) == (set(entries) <= tasks[i].private)
            for slot, name in enumerate(entries):
                if who is None:
                    assert torch.equal(again.state[name], traced(word)[1][name])
                    continue
                values = [
                    trained[j][ag.layers(traced(words[j])[0])[place].entries[slot]]
                    for j in sorted(who)
                ]
                if values[0].is_floating_point():
                    expected = torch.stack(values).double().mean(0).float()
                else:
                    expected = torch.stack(values).amax(0)
                torch.testing.assert_close(again.state[name], expected, rtol=1e-6, atol=1e-6)
                averaged += len(who) > 1
    assert averaged or 4 in chosen


def flat(word: str) -> str:
    """A norm counts its batches: two layers, first the counter."""
    return word.replace("n", "cn")


def test_three_chains_in_closed_form():
    words = ["anab", "anaa", "aal"]
    world = world_of({w: traced(w) for w in words}, words, examples=[10, 20, 30])

    def mean_of(strategy: FlexiFed, client: int, layer: str) -> float:
        after, _, _ = play(strategy, world, constant)
        sent = strategy.send(world, after, client, 2).state
        values = sent[f"parts.{words[client]}{layer}.weight"].flatten()
        assert torch.all(values == values[0])
        return float(values[0])

    assert [mean_of(FlexiFed(), c, "0") for c in range(3)] == [2.0] * 3
    assert [mean_of(FlexiFed(), c, "1") for c in range(3)] == [1.5, 1.5, 3.0]
    assert [mean_of(FlexiFed(), c, "2") for c in range(3)] == [1.5, 1.5, 3.0]
    assert [mean_of(FlexiFed(), c, "3") for c in range(2)] == [1.0, 2.0]
    clustered = FlexiFed(sharing="clustered")
    assert [mean_of(clustered, c, "1") for c in range(3)] == [1.0, 2.0, 3.0]
    weighted = mean_of(FlexiFed(weights="examples"), 0, "1")
    assert weighted == pytest.approx((10 * 1 + 20 * 2) / 30)


@pytest.mark.sample(3)
@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("norm", ["averaged", "local", "static"])
@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_equal_architectures_are_fedavg_bit_for_bit(lab, sharing, norm, weights):
    world = lab.uniform(3, examples=[7, 10, 3])

    def update(task: Task) -> dict[str, Tensor]:
        return lab.random_state(task.state, task.client)

    whole, tasks = lab.one_round(FedAvg(norm=norm, weights=weights), world, update)
    strategy = FlexiFed(sharing=sharing, norm=norm, weights=weights)
    after, own, _ = play(strategy, world, update)
    sent = strategy.send(world, after, 0, 2)
    assert sent.private == tasks[0].private == own[0].private
    assert set(sent.state) == set(whole)
    for name in whole.keys() - sent.private:
        assert torch.equal(sent.state[name], whole[name])
    *_, model = strategy.evaluated(world, after)
    assert model.statistics == ("recompute" if norm == "static" else "stored")
    assert model.private is (norm == "local")
    assert model.clients == (0, 1, 2)


@pytest.mark.parametrize("sharing", SHARING)
def test_without_a_common_first_layer_each_architecture_is_alone(sharing):
    words = ["anab", "bn", "l"]
    world = world_of({w: traced(w) for w in words}, words)
    strategy = FlexiFed(sharing=sharing)
    after, tasks, _ = play(strategy, world, constant)
    alone = Standalone()
    for client in range(3):
        if sharing == "basic":
            assert tasks[client].private == alone.send(world, ServerState(), client, 1).private
            assert not after.tensors
        else:
            sent = strategy.send(world, after, client, 2).state
            assert all(bool((v == client + 1).all()) for v in sent.values())


def test_the_first_task_brings_each_clients_own_first_weights():
    words = ["anab", "bn", "ana"]
    world = world_of({w: traced(w) for w in words}, words)
    for sharing in SHARING:
        _, tasks, _ = play(FlexiFed(sharing=sharing), world, constant)
        for client, word in enumerate(words[:2]):
            assert all(torch.equal(tasks[client].state[k], v) for k, v in traced(word)[1].items())
    # A layer that is shared starts as in the first architecture that has it.
    first, last = traced("anab")[1], traced("ana")[1]
    assert not torch.equal(first["parts.anab0.weight"], last["parts.ana0.weight"])
    assert torch.equal(tasks[2].state["parts.ana0.weight"], first["parts.anab0.weight"])


def test_architectures_without_clients_make_nothing_uncommon():
    models = {w: traced(w) for w in ("l", "anab", "anaa")}
    world = world_of(models, ["anab", "anaa", "anab"])
    strategy = FlexiFed(sharing="basic")
    state = strategy.init(world)
    assert state.values["runs"] == {"anab": [[0, 0, 4]], "anaa": [[0, 0, 4]]}
    assert [model.name for model in strategy.evaluated(world, state)] == ["anab", "anaa"]


def test_who_is_not_sampled_changes_nothing_that_only_he_has():
    words = ["anab", "anaa", "aal"]
    world = world_of({w: traced(w) for w in words}, words)
    strategy = FlexiFed()
    before = strategy.init(world)
    after, _, _ = play(strategy, world, constant, [0])
    sent = strategy.send(world, after, 1, 2).state
    old = strategy.send(world, before, 1, 1).state
    assert torch.equal(sent["parts.anaa3.weight"], old["parts.anaa3.weight"])
    assert torch.equal(sent["parts.anaa2.weight"], torch.ones(4, 4))
    none = strategy.receive(world, before, iter(()), 1)
    assert none.values == before.values
    assert all(torch.equal(none.tensors[k], v) for k, v in before.tensors.items())


def test_matching_by_name_shares_what_is_called_alike():
    same = {w: traced(w) for w in ("anab", "anaa")}
    world = world_of(same, list(same))
    assert FlexiFed(match="name").init(world).values["runs"] == {
        "anab": [[0, 0, 5]],
        "anaa": [[1, 0, 5]],
    }

    class Fork(nn.Module):
        """Same names; the second layer is another operator with the same shapes."""

        def __init__(self, norm: nn.Module) -> None:
            super().__init__()
            self.one, self.two, self.three = nn.Linear(4, 4), norm, nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.three(self.two(self.one(x)))

    made = {}
    for norm in (nn.LayerNorm(4), nn.GroupNorm(2, 4)):
        found = ag.trace(Fork(norm), torch.zeros(2, 4))
        made[type(norm).__name__] = (found.graph, found.state)
    world = world_of(made, list(made))
    by_name = FlexiFed(match="name").init(world).values["runs"]
    by_operator = FlexiFed().init(world).values["runs"]
    assert by_name == {"LayerNorm": [[0, 0, 3]], "GroupNorm": [[0, 0, 3]]}
    assert by_operator == {"LayerNorm": [[0, 0, 1], [1, 1, 3]], "GroupNorm": [[0, 0, 1], [2, 1, 3]]}


def test_one_name_for_what_other_papers_compare_with():
    """FedADP calls Clustered-Common FlexiFed; FedFA gives every method static norms."""
    assert configure("flexifed", {"preset": "paper"}) == FlexiFed()
    assert configure("flexifed", {"preset": "as_in_FedADP"}) == FlexiFed(sharing="clustered")
    found = configure("flexifed", {"preset": "as_in_FedFA"})
    assert found == FlexiFed(norm="static", mask_absent=True)
    world = world_of({"ana": traced("ana")}, ["ana"])
    task = found.send(world, found.init(world), 0, 1)
    assert task.program == Train(TaskLoss(mask_absent=True))
    assert found.needs_global is False


@pytest.mark.parametrize(
    ("options", "has"), [({}, True), ({"sharing": "basic"}, False), ({"norm": "local"}, False)]
)
def test_the_deepest_architecture_is_the_global_model(options, has):
    """FedFA compares global models; where layers stay with clients, the server has none."""
    words = ["an", "anna", "an"]
    made = {word: traced(word) for word in words}
    world = dataclasses.replace(world_of(made, words), graph=made["anna"][0])
    strategy = FlexiFed(**options)
    after, _, _ = play(strategy, world, constant)
    first, *tiers = strategy.evaluated(world, after)
    assert (first.name == "global") is has
    if has:
        deepest = next(model for model in tiers if model.name == "anna")
        assert (first.graph, first.clients, first.private) == (deepest.graph, (), False)
        assert all(torch.equal(first.state[k], deepest.state[k]) for k in first.state)
    # A global architecture that no client runs is not answered for.
    nobody = dataclasses.replace(world, graph=traced("annab")[0])
    assert "global" not in [model.name for model in strategy.evaluated(nobody, after)]


# ---------------------------------------------------------------- models that were not prepared


def vgg(plan: str, prefix: str) -> nn.Module:
    """VGG with a sixteenth of the channels; every model calls its layers otherwise."""
    modules: dict[str, nn.Module] = {}
    width = 3
    for i, word in enumerate(plan.split()):
        if word == "M":
            modules[f"{prefix}_pool{i}"] = nn.MaxPool2d(2)
        else:
            modules[f"{prefix}_conv{i}"] = nn.Conv2d(width, int(word), 3, padding=1)
            modules[f"{prefix}_norm{i}"] = nn.BatchNorm2d(int(word))
            modules[f"{prefix}_relu{i}"] = nn.ReLU()
            width = int(word)
    modules |= {f"{prefix}_flat": nn.Flatten(), f"{prefix}_head": nn.Linear(width, 10)}
    net = nn.Sequential()
    for name, module in modules.items():
        net.add_module(name, module)
    return net


@pytest.mark.full
def test_vgg_chains_share_the_layers_before_their_depths_differ():
    """All agree in two convolutions of each of the first three widths, 16 and 19 in one more."""
    plans = {
        "13": "4 4 M 8 8 M 16 16 M 32 32 M 32 32 M",
        "16": "4 4 M 8 8 M 16 16 16 M 32 32 32 M 32 32 32 M",
        "19": "4 4 M 8 8 M 16 16 16 16 M 32 32 32 32 M 32 32 32 32 M",
    }
    models = {}
    for name, plan in plans.items():
        made = ag.trace(vgg(plan, f"net{name}"), torch.zeros(2, 3, 32, 32))
        models[name] = (made.graph, made.state)
    world = world_of(models, ["13", "16", "19", "16"])
    for sharing in SHARING:
        after, tasks, _ = play(FlexiFed(sharing=sharing), world, doubling)
        sent = FlexiFed(sharing=sharing).send(world, after, 1, 2)
        weights = [v.flatten()[0].item() for k, v in sent.state.items() if v.dim() == 4]
        all_clients, deep, alike = (1 + 2 + 4 + 8) / 4, (2 + 4 + 8) / 3, (2 + 8) / 2
        if sharing == "max":
            expected = [all_clients] * 6 + [deep] + [alike] * 6
        elif sharing == "clustered":
            expected = [all_clients] * 6 + [alike] * 7
        else:
            expected = [all_clients] * 6 + weights[6:]
            assert {k for k in sent.state if "head" in k} <= sent.private
        assert weights == pytest.approx(expected)
        assert len(weights) == 13
        own = sum(k in tasks[1].private for k, v in sent.state.items() if v.dim() == 4)
        assert own == (7 if sharing == "basic" else 0)


# ---------------------------------------------------------------- through the engine


def small(depth: int) -> nn.Module:
    parts: list[nn.Module] = [nn.Conv2d(1, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU()]
    for _ in range(depth):
        parts += [nn.Conv2d(4, 4, 3, 1, 1), nn.BatchNorm2d(4), nn.ReLU()]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(64, 10))


@pytest.mark.sample(3)
@pytest.mark.parametrize("sharing", SHARING)
def test_personal_layers_go_on_where_they_were_and_shared_ones_are_common(sharing):
    models = {}
    for depth in (0, 1):
        made = ag.trace(small(depth), torch.zeros(2, 1, 8, 8))
        models[str(depth)] = (made.graph, made.state)
    data = load_dataset("digits", limit=200)
    world = world_of(models, ["0", "1", "1"])
    setup = Experiment(
        world=world,
        strategy=FlexiFed(sharing=sharing),
        data=data,
        shares=allot(data.train.targets, tiers=["all"] * 3, scheme="dirichlet", seed=0),
        local=LocalOptions(lr=0.05, batch=16),
        evaluate=EvaluateSpec(batch=200),
    )
    loop = Loop(setup)
    loop.start(setup.strategy.init(world))
    losses = [loop.round()["evaluation"]["local"]["loss"] for _ in range(4)]
    assert losses[-1] < losses[0]
    assert loop.private.keys() == ({0, 1, 2} if sharing == "basic" else set())
    for client, kept in loop.private.items():
        graph = world.tier_of(client).graph
        base = {name for layer in ag.layers(graph)[:3] for name in layer.entries}
        assert kept.state.keys() == set(graph.state_names) - base
        first = world.tier(world.clients[client].name).state
        assert not any(torch.equal(v, first[k]) for k, v in kept.state.items() if v.dim() > 1)
    sent = [setup.strategy.send(world, loop.server, c, 9).state for c in range(3)]
    assert torch.equal(sent[0]["0.weight"], sent[1]["0.weight"])
    models_ = {e.name: e for e in setup.strategy.evaluated(world, loop.server)}
    assert {name: e.clients for name, e in models_.items()} == {"0": (0,), "1": (1, 2)}
    assert all(e.private is (sharing == "basic") for e in models_.values())


class Encoder(nn.Module):
    """A Transformer whose last norm and pooler look like the start of one more layer."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        make = functools.partial(nn.TransformerEncoderLayer, 8, 2, 8, batch_first=True)
        self.layers = nn.ModuleList(make(norm_first=True) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


def test_blocks_are_compared_as_wholes():
    """Layer by layer the short model's last norm is the first norm of the other's next layer."""
    models = {}
    for depth in (1, 2):
        made = ag.trace(Encoder(depth), torch.zeros(2, 5, 8), train=False)
        models[f"d{depth}"] = (made.graph, made.state)
    world = world_of(models, list(models))
    common = {}
    for unit in ("layer", "block"):
        strategy = FlexiFed(sharing="basic", unit=unit)
        common[unit] = (
            set(models["d1"][1]) - strategy.send(world, strategy.init(world), 0, 1).private
        )
    assert common["layer"] - common["block"] == {"norm.weight", "norm.bias"}
    assert common["block"] == {k for k in models["d1"][1] if k.startswith("layers.")}
