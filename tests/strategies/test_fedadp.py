"""FedADP in closed form: growing keeps functions, narrowing as printed, complete coverage."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from torch import Tensor, nn

import archgraph as ag
from archgraph.federation import Result, ServerState, Tier, World, configure, seeded
from archgraph.rewrites import laws
from archgraph.states import signature
from archgraph.strategies.fedadp import FedADP, Mode, growth_fit, unit_copies
from archgraph.studies import load_study
from archgraph.studies.spec import cells

SPECS = Path(__file__).parents[2] / "specs"
MODES: tuple[Mode, ...] = ("paper", "net2net")
KINDS = ("weight", "bias")


def weakened(graph: ag.ArchGraph) -> dict[str, ag.Rewritten]:
    """Tiers of the lab's net: narrower by a half and by a third, shallower, both."""
    narrow, slim = ag.take(graph, 0.5), ag.take(graph, 0.7)
    return {
        "weak": narrow >> ag.shorten(narrow.graph, {"layer1": 2, "layer2": 2}),
        "flat": ag.shorten(graph, {"layer1": 2, "layer2": 2}),
        "least": slim >> ag.shorten(slim.graph, {"layer1": 1, "layer2": 1}),
        "slim": slim,
        "full": ag.Rewritten.identity(graph),
    }


@pytest.fixture(scope="module")
def tiers(lab):
    return weakened(lab.graph)


def compute(graph: ag.ArchGraph, state: Mapping[str, Tensor]) -> list[Tensor]:
    return laws.outputs(ag.build(graph, state).eval(), laws.random_inputs(graph))


def gap(graph: ag.ArchGraph, tier, mode: Mode = "paper", *, seed=1, approximate=False) -> float:
    """Relative difference of a client's function and its grown model's, in float64."""
    whole, own = laws.in_float64(graph), laws.in_float64(tier.graph)
    down = ag.Transfer(signature(whole), signature(own), tier.transfer.entries)
    found = growth_fit(whole, own, down, mode, seed, approximate)
    state = laws.random_state(own, seed)
    grown = found.grown(state, laws.random_state(whole, seed + 1))
    assert grown.keys() == set(whole.state_names)
    assert all(grown[name].shape == whole.param[name].shape for name in grown)
    return laws.relative_difference(compute(whole, grown), compute(own, state))


# ---------------------------------------------------------------- growing (Algorithm 2, to-deeper)


@pytest.mark.sample(4)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["weak", "flat", "least", "slim", "full"])
def test_a_grown_model_computes_the_clients_function(lab, name, mode):
    assert gap(lab.graph, weakened(lab.graph)[name], mode) < 1e-10


class Chain(nn.Module):
    """Plain layers, one behind the other, so that any may be left out."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        sizes = [3, *[width] * depth]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU())
            for a, b in itertools.pairwise(sizes)
        )
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@pytest.mark.sample(2)
@pytest.mark.parametrize("depth", [1, 2])
def test_a_narrow_client_may_lack_several_layers_in_a_row(depth):
    whole = ag.trace(Chain(8, 5), torch.randn(2, 3)).graph
    own = ag.trace(Chain(4, depth), torch.randn(2, 3)).graph
    assert gap(whole, ag.Rewritten(own, ag.align(own, whole).transfer)) < 1e-10


class Attention(nn.Module):
    """Pre-norm attention and feed-forward: packed projections, norms over the stream."""

    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 16)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 4, 24, norm_first=True, batch_first=True)
            for _ in range(blocks)
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x)
        for block in self.blocks:
            y = block(y)
        return self.head(y.mean(1))


class PostNorm(nn.Module):
    """Blocks that end in a norm: they have no form of the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(3))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            y = norm(y + layer(y))
        return self.head(y)


@pytest.fixture(scope="module")
def attention() -> ag.ArchGraph:
    torch.manual_seed(0)
    return ag.trace(Attention(), torch.randn(2, 6, 3)).graph


@pytest.fixture(scope="module")
def post_norm() -> ag.ArchGraph:
    torch.manual_seed(0)
    return ag.trace(PostNorm(), torch.randn(2, 3)).graph


@pytest.mark.full
def test_a_transformer_of_half_the_width_and_depth_grows_exactly(attention):
    half = ag.take(attention, 0.5)
    assert gap(attention, half) < 1e-10
    last = [b.name for b in ag.structure(attention).blocks if b.removable][-1]
    assert gap(attention, ag.skip(attention, last)) < 1e-10


def vgg(folder: Path, *, width: int = 4, extra: int = 2) -> Path:
    """The family of the paper with narrow layers."""
    yaml = YAML(typ="safe")
    model = yaml.load(SPECS / "models" / "vgg.yaml")
    model["params"] |= {f"w{i}": width for i in (1, 2, 3, 4, 6)}
    model["params"] |= {"w5": width + extra, "hidden": 2 * width}
    model["choices"]["w5"] = [width, width + extra]
    family = yaml.load(SPECS / "families" / "fedadp_vgg.yaml")
    family["model"] = "vgg.yaml"
    for member in family["clients"]:
        member["choose"]["w5"] = width + extra * (member["choose"]["w5"] == 768)
    for name, content in (("vgg.yaml", model), ("family.yaml", family)):
        with (folder / name).open("w") as file:
            yaml.dump(content, file)
    return folder / "family.yaml"


@pytest.fixture(scope="module")
def narrow_vgg(tmp_path_factory) -> World:
    family = ag.resolve(ag.load_family(str(vgg(tmp_path_factory.mktemp("vgg")))))
    assert family.graph is not None
    state = ag.initial_state(family.graph, 0)
    return _world(family.graph, state, {m.name: m for m in family.clients}, _counts(family))


def _counts(family) -> list[str]:
    return [m.name for m in family.clients for _ in range(m.count)]


def _world(graph, state, tiers, clients) -> World:
    from archgraph.federation import Client

    offered = {name: Tier(name, t.graph, t.transfer, state) for name, t in tiers.items()}
    return World(
        graph=graph,
        state=state,
        clients=tuple(Client(i, name, 7 + i, (1,) * 10) for i, name in enumerate(clients)),
        tiers=tuple(offered.values()),
        classes=10,
        rounds=10,
        seed=0,
    )


def results(lab, world: World, seed: int = 0) -> list[Result]:
    """Random updates of all clients, with positive variances."""
    return [
        Result(
            c.id,
            {k: v.abs() for k, v in _update(lab, world.tier_of(c.id).graph, seed + c.id).items()},
            c.examples,
        )
        for c in world.clients
    ]


def _update(lab, graph: ag.ArchGraph, seed: int) -> dict[str, Tensor]:
    return lab.random_state(ag.build(graph).state_dict(), seed)


@pytest.mark.sample(2)
@pytest.mark.parametrize("redraw", [False, True])
def test_a_round_of_all_vggs_covers_everything_equally(lab, narrow_vgg, redraw):
    strategy = FedADP(redraw=redraw)
    old = strategy.init(narrow_vgg).group("global")
    merged, coverage = strategy.merged(narrow_vgg, old, results(lab, narrow_vgg), 1)
    total = sum(c.examples for c in narrow_vgg.clients)
    assert set(coverage) == set(merged) == set(narrow_vgg.graph.state_names)
    for name, value in merged.items():
        if value.is_floating_point():
            assert torch.allclose(coverage[name], torch.tensor(float(total), dtype=torch.float64))
            assert value.isfinite().all()


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["vgg13", "vgg16_wider", "vgg18", "vgg19"])
def test_vggs_grow_into_vgg_19_wider_exactly(narrow_vgg, name):
    assert gap(narrow_vgg.graph, narrow_vgg.tier(name)) < 1e-10


TRACED = """
import torch
from torch import nn

STAGES = {13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def make(layers, wider=0):
    found, last = [], 3
    for stage, count in enumerate(STAGES[layers]):
        for layer in range(count):
            width = (2, 3, 4, 5, 5)[stage] + wider * (stage == 4 and layer == 0)
            found += [nn.Conv2d(last, width, 3, padding=1), nn.ReLU()]
            last = width
        found += [nn.MaxPool2d(2)]
    return nn.Sequential(*found, nn.Flatten(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 10))
"""


@pytest.mark.full
def test_a_round_of_traced_vggs_covers_their_join(lab, tmp_path, monkeypatch):
    """Written in Python, leaves numbered through: all positions move with the depth."""
    (tmp_path / "traced_vggs.py").write_text(TRACED)
    monkeypatch.syspath_prepend(str(tmp_path))
    kinds = {
        "vgg13": (13, 0),
        "vgg16": (16, 0),
        "vgg16_wider": (16, 2),
        "vgg19": (19, 0),
        "vgg19_wider": (19, 2),
    }
    clients = [
        {
            "name": name,
            "count": 2,
            "model": {
                "python": "traced_vggs:make",
                "args": {"layers": layers, "wider": wider},
                "inputs": {"input": [3, 32, 32]},
            },
        }
        for name, (layers, wider) in kinds.items()
    ]
    with (tmp_path / "family.yaml").open("w") as file:
        YAML(typ="safe").dump({"archgraph": 1, "model": "join", "clients": clients}, file)
    family = ag.resolve(ag.load_family(str(tmp_path / "family.yaml")), python=True)
    members = {m.name: m for m in family.clients}
    assert family.graph == members["vgg19_wider"].graph  # §III-B
    state = ag.initial_state(family.graph, 0)
    world = _world(family.graph, state, members, _counts(family))
    merged, coverage = FedADP().merged(world, state, results(lab, world))
    total = sum(c.examples for c in world.clients)
    assert all(torch.allclose(coverage[k], torch.tensor(float(total)).double()) for k in merged)
    for name in kinds:
        assert gap(family.graph, members[name]) < 1e-10


def test_a_block_may_be_gone_that_only_the_clients_width_allows_to_leave_out(lab):
    """In the global model it changes the width; where that is narrow it does not."""
    torch.manual_seed(0)
    sizes = (64, 4, 4, 6, 4, 4, 5)
    layers = [(nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise(sizes)]
    graph = ag.trace(nn.Sequential(*itertools.chain(*layers)), torch.randn(2, 64)).graph
    with pytest.raises(ag.RewriteError, match="cannot be removed"):
        ag.skip(graph, "6")
    narrow = ag.take(graph, sizes={"4.out": 4})
    tier = narrow >> ag.skip(narrow.graph, "6")
    assert gap(graph, tier) < 1e-10
    found = growth_fit(graph, tier.graph, tier.transfer, "net2net", 1)
    own = lab.random_state(ag.initial_state(tier.graph), 1)
    back = found.sent(found.grown(own, ag.initial_state(graph)))
    torch.testing.assert_close(back, own)


def test_missing_blocks_start_as_the_identity_and_new_units_share_their_weights(lab, tiers):
    """A stage that is left with its first block, which changes the shape, grows all the same."""
    least = tiers["least"]
    up = growth_fit(lab.graph, least.graph, least.transfer, "paper", 3).up
    own = lab.random_state(least.transfer.pull(lab.state), 2)
    grown = up.pull(own)
    for block in ("layer1.1", "layer1.2", "layer2.1", "layer2.2"):
        assert not grown[f"{block}.bn2.weight"].any()
        assert not grown[f"{block}.bn2.bias"].any()
    wide, narrow = grown["layer2.0.conv2.weight"], own["layer2.0.conv2.weight"]
    kept = narrow.shape[0]
    assert torch.equal(wide[:, :, 1, 1].sum(1)[:kept].sign(), narrow[:, :, 1, 1].sum(1).sign())
    torch.testing.assert_close(wide[:kept].sum(1), narrow.sum(1), rtol=1e-4, atol=1e-5)
    for unit in range(kept, len(wide)):
        assert any(torch.equal(wide[unit], wide[old]) for old in range(kept))


@given(size=st.integers(1, 40), more=st.integers(0, 60), seed=st.integers(0, 99))
def test_copies_name_every_unit_and_equally_often_where_they_can(size, more, seed):
    found = unit_copies(size, size + more, seeded(seed, "copies"))
    assert found[:size] == list(range(size))
    assert len(found) == size + more
    assert set(found) == set(range(size))
    if more % size == 0:
        assert torch.bincount(torch.tensor(found)).unique().numel() == 1


# ---------------------------------------------------------------- narrowing (Algorithm 3)


@pytest.fixture(scope="module")
def hidden(lab):
    """One hidden layer of three units, and a client with two."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.ReLU(), nn.Linear(3, 5))
    graph, state = ag.trace(net, torch.randn(2, 1, 8, 8))
    tiers = {"two": ag.take(graph, sizes={"1.out": 2}), "all": ag.Rewritten.identity(graph)}
    return graph, state, tiers


def test_narrowing_as_printed(lab, hidden):
    """The first two units stay; half of what reads the third is added to what reads each."""
    graph, state, tiers = hidden
    world = lab.make_world(graph, state, tiers, ["two", "all"])
    _, tasks = lab.one_round(FedADP(), world, lambda task: task.state)
    sent = tasks[0].state
    assert torch.equal(sent["1.weight"], state["1.weight"][:2])
    assert torch.equal(sent["1.bias"], state["1.bias"][:2])
    expected = state["3.weight"][:, :2] + state["3.weight"][:, 2:] / 2
    torch.testing.assert_close(sent["3.weight"], expected)
    assert torch.equal(sent["3.bias"], state["3.bias"])
    assert all(torch.equal(tasks[1].state[k], v) for k, v in state.items())


def test_the_mean_of_grown_models(lab, hidden):
    """Two of three units: the third copies one of them, which hands on half its weights."""
    graph, state, tiers = hidden
    world = lab.make_world(graph, state, tiers, ["two", "all"], examples=[30, 10])
    updates = [lab.random_state(tiers[n].transfer.pull(state), i) for i, n in enumerate(tiers)]
    after, _ = lab.one_round(FedADP(), world, lambda task: updates[task.client])
    two, full = updates
    unit = next(
        u
        for u in range(2)
        if torch.allclose(after["1.bias"][2], 0.75 * two["1.bias"][u] + 0.25 * full["1.bias"][2])
    )
    index = [0, 1, unit]
    share = torch.tensor([0.5 if u == unit else 1.0 for u in index])
    grown = {
        "1.weight": two["1.weight"][index],
        "1.bias": two["1.bias"][index],
        "3.weight": two["3.weight"][:, index] * share,
        "3.bias": two["3.bias"],
    }
    for name, value in grown.items():
        torch.testing.assert_close(after[name], 0.75 * value + 0.25 * full[name])
    uniform, _ = lab.one_round(FedADP(weights="uniform"), world, lambda task: updates[task.client])
    for name, value in grown.items():
        torch.testing.assert_close(uniform[name], 0.5 * value + 0.5 * full[name])


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["weak", "flat", "least", "slim", "full"])
def test_net2net_merges_what_was_copied(lab, tiers, name):
    tier = tiers[name]
    found = growth_fit(lab.graph, tier.graph, tier.transfer, "net2net", 5)
    own = lab.random_state(tier.transfer.pull(lab.state), 4)
    back = found.sent(found.grown(own, lab.state))
    assert back.keys() == own.keys()
    for key, value in own.items():
        assert back[key].dtype == value.dtype
        torch.testing.assert_close(back[key], value, rtol=1e-5, atol=1e-6)


def test_which_positions_a_family_keeps_does_not_matter_only_how_many(lab):
    tiers = {
        "first": ag.take(lab.graph, sizes={"layer2.*": 5}),
        "any": ag.take(lab.graph, positions={"layer2.*": [1, 3, 4, 7, 9]}),
    }
    world = lab.make_world(lab.graph, lab.state, tiers, list(tiers))
    _, tasks = lab.one_round(FedADP(), world, lambda task: task.state)
    assert all(torch.equal(tasks[1].state[k], v) for k, v in tasks[0].state.items())


def test_clients_may_name_their_leaves_otherwise(lab, hidden):
    graph, state, tiers = hidden

    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(64, 2), nn.Linear(2, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x.flatten(1)).relu())

    own = ag.trace(Other(), torch.randn(2, 1, 8, 8)).graph
    names = {
        f"{new}.{k}": f"{old}.{k}" for new, old in (("first", 1), ("second", 3)) for k in KINDS
    }
    two = tiers["two"].transfer
    same = ag.Transfer.identity(own)
    transfer = ag.Transfer(
        two.source, same.target, {n: two.entries[names[n]] for n in same.entries}
    )
    world = lab.make_world(
        graph, state, {"other": ag.Rewritten(own, transfer), "two": tiers["two"]}, ["other", "two"]
    )
    updates = lab.random_state(two.pull(state), 1)
    after, tasks = lab.one_round(
        FedADP(), world, lambda t: updates if t.client else {n: updates[names[n]] for n in names}
    )
    assert tasks[0].graph == own
    for new, old in names.items():
        assert torch.equal(tasks[0].state[new], tasks[1].state[old])
    alone, _ = lab.one_round(
        FedADP(), lab.make_world(graph, state, tiers, ["two"]), lambda _: updates
    )
    torch.testing.assert_close(after["3.bias"], alone["3.bias"])


# ---------------------------------------------------------------- rounds


@pytest.mark.parametrize("mode", MODES)
def test_the_mean_of_grown_models_is_the_grown_mean(lab, tiers, mode):
    """§III-B, line 12 as printed: every client is grown, then all are averaged."""
    clients = ["weak", "full", "slim", "weak", "flat", "least"]
    world = lab.make_world(lab.graph, lab.state, tiers, clients, examples=[3, 50, 7, 20, 9, 1])
    strategy = FedADP(narrow=mode)
    updates = [
        lab.random_state(tiers[c.name].transfer.pull(lab.state), c.id) for c in world.clients
    ]
    after, _ = lab.one_round(strategy, world, lambda t: updates[t.client])
    total = sum(c.examples for c in world.clients)
    sums = {k: torch.zeros_like(v, dtype=torch.float64) for k, v in lab.state.items()}
    for client, update in zip(world.clients, updates, strict=True):
        grown = strategy.fit(world, world.tier(client.name)).up.pull(update)
        for name, value in grown.items():
            sums[name] += client.examples / total * value
    for name, value in after.items():
        if value.is_floating_point():
            torch.testing.assert_close(value, sums[name].float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("redraw", [False, True])
def test_copies_are_kept_unless_they_are_redrawn(lab, tiers, redraw):
    world = lab.make_world(lab.graph, lab.state, tiers, ["slim", "full"])
    strategy = FedADP(redraw=redraw)
    state = strategy.init(world)
    ups = []
    for round in (1, 2):
        state = strategy.begin(world, state, round, [0, 1])
        sent = [Result(c, strategy.send(world, state, c, round).state, 10) for c in (0, 1)]
        state = strategy.receive(world, state, sent, round)
        ups.append(strategy.fit(world, world.tier("slim"), state.values["drawn"]).up)
        assert not state.group("sent")
    assert (ups[0] == ups[1]) is not redraw
    again = lab.replace(world, seed=1)
    assert strategy.fit(again, again.tier("slim")).up != ups[0]
    assert strategy.fit(world, world.tier("slim")).exact  # nothing is the old global's
    assert (
        strategy.fit(world, lab.replace(world.tier("slim"), name="twin")).up
        == strategy.fit(world, world.tier("slim")).up
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize("mode", MODES)
def test_a_run_goes_on_from_its_state_alone(lab, tiers, mode):
    """Through bytes and with nothing remembered, round for round the same."""
    world = lab.make_world(lab.graph, lab.state, tiers, list(tiers))
    strategy = FedADP(narrow=mode, redraw=True)

    def step(state: ServerState, round: int) -> ServerState:
        state = strategy.begin(world, state, round, range(len(tiers)))
        found = [
            Result(c, lab.random_state(strategy.send(world, state, c, round).state, c + round), 10)
            for c in range(len(tiers))
        ]
        return strategy.receive(world, state, found, round)

    through = strategy.init(world)
    stopped = strategy.init(world)
    for round in (1, 2, 3):
        through = step(through, round)
        growth_fit.cache_clear()
        copy = {k: v.clone() for k, v in stopped.tensors.items()}
        stopped = step(ServerState(copy, json.loads(json.dumps(dict(stopped.values)))), round)
    assert through.values == stopped.values == {"drawn": 3}
    assert all(torch.equal(stopped.tensors[k], v) for k, v in through.tensors.items())


def test_an_architecture_is_made_once_for_all_its_clients(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["slim", "slim", "flat"])
    strategy = FedADP()
    state = strategy.begin(world, strategy.init(world), 1, [0, 1, 2])
    tasks = [strategy.send(world, state, c, 1) for c in range(3)]
    assert all(tasks[0].state[k] is v for k, v in tasks[1].state.items())
    for client, task in enumerate(tasks):  # a task does not depend on who else was sampled
        alone = strategy.send(world, strategy.init(world), client, 1)
        assert all(torch.equal(task.state[k], v) for k, v in alone.state.items())


# ---------------------------------------------------------------- what cannot be grown exactly


def test_what_cannot_be_kept_is_refused_by_tier(lab, post_norm):
    state = ag.initial_state(post_norm, 0)
    narrow = ag.take(
        post_norm, sizes={"embed.out": 5}
    )  # 8 is no multiple of 5, and norms run over it
    short = ag.skip(post_norm, [ag.structure(post_norm).blocks[2].name])
    for tier, reason in (
        (narrow, "every position must be copied equally often"),
        (short, "no identity form"),
    ):
        world = lab.make_world(post_norm, state, {"odd": tier}, ["odd"])
        with pytest.raises(ag.RunError, match=rf"tier odd: .*{reason}.*approximate: true"):
            FedADP().init(world)
        assert FedADP(approximate=True).init(world).values == {"drawn": 0}


@pytest.mark.parametrize("mode", MODES)
def test_blocks_without_an_identity_are_the_old_globals(lab, post_norm, mode):
    state = ag.initial_state(post_norm, 0)
    gone = ag.structure(post_norm).blocks[2]
    short = ag.skip(post_norm, [gone.name])
    world = lab.make_world(post_norm, state, {"short": short}, ["short", "short"])
    strategy = FedADP(approximate=True, narrow=mode)
    updates = [lab.random_state(short.transfer.pull(state), c) for c in range(2)]
    after, coverage = strategy.merged(
        world, state, [Result(c, u, 10) for c, u in enumerate(updates)]
    )
    assert all((coverage[name] == 20).all() for name in state)
    for name, value in after.items():
        if name in updates[0]:
            torch.testing.assert_close(value, (updates[0][name] + updates[1][name]) / 2)
        else:
            assert torch.equal(value, state[name])
    assert set(state) - set(updates[0])


def test_positions_that_a_dense_block_appends_are_the_old_globals(lab):
    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4 + 2 * i, 2) for i in range(3))
            self.head = nn.Linear(10, 5)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = torch.cat([x, layer(x).relu()], 1)
            return self.head(x)

    torch.manual_seed(0)
    graph, state = ag.trace(Dense(), torch.randn(2, 4))
    dense = [b.name for b in ag.structure(graph).blocks if b.kind == "dense" and b.removable]
    short = ag.skip(graph, dense[-1])
    assert short.graph.param["head.weight"].shape == (5, 8)
    found = growth_fit(graph, short.graph, short.transfer, "paper", 0, True)
    own = lab.random_state(short.transfer.pull(state), 1)
    grown = found.grown(own, state)
    taken = short.transfer.pull(grown)
    assert all(torch.equal(taken[k], v) for k, v in own.items())
    assert torch.equal(grown["head.weight"][:, 8:], state["head.weight"][:, 8:])
    with pytest.raises(ag.RewriteError):
        growth_fit(graph, short.graph, short.transfer, "paper", 0)


def test_a_model_that_is_no_part_of_the_global_is_refused(lab):
    world = lab.make_world(lab.graph, lab.state, {"steps": ag.add_step_sizes(lab.graph)}, ["steps"])
    for strategy in (FedADP(), FedADP(approximate=True)):
        with pytest.raises(
            ag.RunError, match=r"tier steps: .*the global model has no such parameter"
        ):
            strategy.init(world)
    whole = ag.take(lab.graph, sizes={"layer1.1.*": 1})
    world = lab.make_world(lab.graph, lab.state, {"one": whole}, ["one"])
    with pytest.raises(ag.RunError, match=r"layer1\.1\.conv1\.out: an axis of size 1 cannot"):
        FedADP().init(world)


# ---------------------------------------------------------------- widths


@settings(max_examples=15)
@given(data=st.data())
def test_widths_are_read_off_a_transfer(attention, data):
    free = ag.axes(attention).free
    kept = {
        a.name: data.draw(st.lists(st.integers(0, a.size - 1), min_size=1, unique=True))
        for a in free
    }
    found = ag.widths(attention, ag.take(attention, positions=kept).transfer)
    assert {a.name: found[a.name] for a in free} == {k: len(v) for k, v in kept.items()}


def test_widths_leave_out_what_is_gone(lab):
    short = ag.shorten(lab.graph, {"layer1": 2})
    names = {a.name for a in ag.axes(lab.graph).free}
    assert names - set(ag.widths(lab.graph, short.transfer)) == {"layer1.2.conv1.out"}


# ---------------------------------------------------------------- the paper's facts

# Simonyan and Zisserman, Table 1: convolutions of each stage, 64 to 512 channels.
STAGES = {"vgg13": (2, 2, 2, 2, 2), "vgg16_wider": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}


def test_the_family_of_the_paper():
    """§IV-A: eight architectures, 6 clients on VGG-19 and 2 on each other; §III-B: their union."""
    for name in ("fedadp_vgg", "fedadp_vgg_mnist"):
        family = ag.resolve(ag.load_family(str(SPECS / "families" / f"{name}.yaml")))
        members = {m.name: m for m in family.clients}
        assert {n: m.count for n, m in members.items()} == {
            n: 6 if n == "vgg19" else 2 for n in members
        }
        assert len(members) == 8
        assert family.graph == members["vgg19_wider"].graph
        for member in family.clients:
            weights = [p.shape for p in member.graph.params if len(p.shape) > 1]
            # A name counts its layers with weights; the last three are fully connected.
            assert len(weights) == int(member.name.removeprefix("vgg")[:2])
            assert [s[0] for s in weights[-3:]] == [4096, 4096, 10]
            if member.name in STAGES:
                widths = [
                    w
                    for w, n in zip((64, 128, 256, 512, 512), STAGES[member.name], strict=True)
                    for _ in range(n)
                ]
                differ = [s[0] for s, w in zip(weights, widths, strict=False) if s[0] != w]
                assert differ == ([768] if "wider" in member.name else [])


def test_the_experiments_of_the_paper():
    """§IV-A 4."""
    study = load_study(SPECS / "studies" / "fedadp_table1.yaml")
    own = [cell.experiment for cell in cells(study, "paper") if cell.row == "FedADP"]
    assert len(own) == 3
    for spec in own:
        assert spec is not None
        local = spec.local
        assert (spec.rounds, spec.sample, local.epochs, local.batch) == (200, 1.0, 10, 64)
        assert (local.chosen.plain(), local.fraction) == ({"SGD": {"lr": 0.01}}, 0.2)
        assert configure(spec.strategy_name, spec.strategy_options) == FedADP()
    assert dataclasses.asdict(configure("fedadp", {"preset": "net2net"}))["narrow"] == "net2net"
