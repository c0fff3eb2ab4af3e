"""NeFL: who shares what, in closed form; step sizes, draws, and submodels without a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import archgraph as ag
from archgraph.federation import (
    LocalOptions,
    Outcome,
    ServerState,
    Task,
    World,
    configure,
)
from archgraph.strategies.fedavg import FedAvg
from archgraph.strategies.nefl import (
    Inconsistent,
    NeFL,
    left_out_after,
    own_norms,
    submodel,
)

FAMILIES = Path(__file__).parents[2] / "specs" / "families"
STAGES = ("layer1", "layer2")
BLOCKS = tuple(f"{stage}.{i}" for stage in STAGES for i in range(3))


class Chain(nn.Module):
    """Residual layers of one width, all in one section."""

    def __init__(self, blocks: int, width: int = 4) -> None:
        super().__init__()
        self.stem = nn.Linear(3, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.fc = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = x + layer(x).relu()
        return self.fc(x)


class Mixed(nn.Module):
    """One residual layer in four rounds, a plain layer, two more residual ones."""

    def __init__(self) -> None:
        super().__init__()
        self.tied, self.plain = nn.Linear(3, 3), nn.Linear(3, 3)
        self.last = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(4):
            x = x + self.tied(x).relu()
        x = self.plain(x).relu()
        for layer in self.last:
            x = x + layer(x).relu()
        return x


class Layer(nn.Module):
    """A transformer layer over the pixels: two residual regions, layer norms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.Linear(8, 8)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(self.ln1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mlp(self.ln2(x))


class Mixer(nn.Module):
    def __init__(self, layers: int = 3, width: int = 6) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.norm = nn.BatchNorm1d(8)
        self.layers = nn.Sequential(*(Layer(width) for _ in range(layers)))
        self.fc = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layers(self.norm(self.embed(x[:, 0]))).mean(1))


def chain(blocks: int) -> tuple[ag.ArchGraph, dict[str, Tensor]]:
    torch.manual_seed(blocks)
    graph, state = ag.trace(Chain(blocks), torch.randn(2, 3))
    return graph, state


@pytest.fixture(scope="module")
def mixer():
    torch.manual_seed(1)
    return ag.trace(Mixer(), torch.randn(2, 1, 8, 8))


def scaled(graph: ag.ArchGraph, dropped: Sequence[str], width: float = 1.0) -> ag.Rewritten:
    """A submodel: blocks left out (their projections stay), then the first channels."""
    made = ag.skip(graph, dropped, keep_projection=True) if dropped else None
    made = made or ag.Rewritten.identity(graph)
    return made >> ag.take(made.graph, width) if width < 1 else made


@pytest.fixture(scope="module")
def family(lab):
    """Three submodels of the residual net, the largest the whole; not in the order of size."""
    return {
        "full": scaled(lab.graph, []),
        "small": scaled(lab.graph, ["layer1.2", "layer2.0", "layer2.2"], 0.5),
        "middle": scaled(lab.graph, ["layer2.1", "layer2.2"]),
    }


def finish(strategy: NeFL, world: World, state: ServerState, updates, round: int = 1):
    """The server's state after clients have returned these states."""
    results = (
        strategy.send(world, state, c, round).result(Outcome(s), world.clients[c].examples)
        for c, s in updates
    )
    return strategy.receive(world, state, results, round)


def returned(task: Task, value: float) -> dict[str, Tensor]:
    return {k: torch.full_like(v, value) for k, v in task.state.items()}


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# ---------------------------------------------------------------- what a round changes


@pytest.mark.full
@settings(max_examples=15)
@given(
    dropped=st.lists(st.sets(st.sampled_from(BLOCKS), max_size=5), min_size=2, max_size=3),
    widths=st.lists(st.sampled_from([0.25, 0.5, 0.8, 1.0]), min_size=3, max_size=3),
    trained=st.integers(0, 1),
    clients=st.integers(1, 3),
    options=st.fixed_dictionaries(
        {
            "steps": st.sampled_from(["learnable", "constant", "off"]),
            "initial": st.just("ones"),
            "inconsistent": st.sampled_from(["auto", "norms", "none"]),
            "norm": st.sampled_from(["per_submodel", "averaged", "static"]),
        }
    ),
)
def test_what_the_trained_submodel_does_not_have_is_untouched_bit_for_bit(
    lab, dropped, widths, trained, clients, options
):
    tiers = {
        f"s{i}": scaled(lab.graph, sorted(out), width)
        for i, (out, width) in enumerate(zip(dropped, widths, strict=False))
    }
    world = lab.make_world(lab.graph, lab.state, tiers, [f"s{trained}"] * clients)
    strategy = NeFL(spread=0, **options)
    before = strategy.init(world)
    copy = {k: v.clone() for k, v in before.tensors.items()}
    tasks = [strategy.send(world, before, c, 1) for c in range(clients)]
    after = finish(
        strategy,
        world,
        before,
        [(t.client, lab.random_state(t.state, 7 + t.client)) for t in tasks],
    )
    assert same(before.tensors, copy)
    assert after.tensors.keys() == before.tensors.keys()
    # Other submodels' own parameters.
    for name in tiers.keys() - {f"s{trained}"}:
        assert same(after.group(f"submodel/{name}"), before.group(f"submodel/{name}"))
    # Positions of the global state that the submodel does not reach.
    transfer, own = tiers[f"s{trained}"].transfer, before.group(f"submodel/s{trained}")
    covered = transfer.coverage
    for name, value in after.group("global").items():
        free = covered[name] == 0
        if name in own:
            free = torch.ones_like(free)
        old = before.tensors[f"global/{name}"]
        assert torch.equal(value[free], old[free])
        if name.endswith("conv1.weight") and not free.all():
            assert not (value[~free] == old[~free]).any()
    changed = after.group(f"submodel/s{trained}")
    assert all(not torch.equal(changed[k], own[k]) for k in own if own[k].is_floating_point())


def test_consistent_parameters_are_averaged_in_nested_regions(lab):
    """The paper's example (§IV-B2): block 1 is in submodels 1, 3, 5 of 2, 3 and 2 clients."""
    graph, state = chain(3)
    first, other = "layers.1", "layers.2"
    tiers = {
        "1": scaled(graph, [other], 0.25),
        "2": scaled(graph, [first], 0.25),
        "3": scaled(graph, [], 0.5),
        "4": scaled(graph, [first], 0.75),
        "5": scaled(graph, []),
    }
    names = ["1"] * 2 + ["2"] + ["3"] * 3 + ["4"] + ["5"] * 2
    world = lab.make_world(graph, state, tiers, names)
    assert [t.name for t in world.by_size] == ["1", "2", "3", "4", "5"]
    strategy = NeFL(spread=0)
    start = strategy.init(world)
    tasks = [strategy.send(world, start, c, 1) for c in range(len(names))]
    after = finish(strategy, world, start, [(t.client, returned(t, t.client)) for t in tasks])
    weight = after.group("global")["layers.1.weight"]
    ids = {k: [c for c, name in enumerate(names) if name == k] for k in tiers}

    def mean(*submodels: str) -> float:
        chosen = [c for k in submodels for c in ids[k]]
        return sum(chosen) / len(chosen)

    expected = torch.full((4, 4), mean("5"))
    expected[:2, :2] = mean("3", "5")
    expected[:1, :1] = mean("1", "3", "5")
    torch.testing.assert_close(weight, expected, rtol=1e-6, atol=0)
    bias = after.group("global")["fc.bias"]
    torch.testing.assert_close(bias, torch.full((5,), sum(range(9)) / 9), rtol=1e-6, atol=0)
    # Step sizes: only within a submodel.
    for k in tiers:
        for value in after.group(f"submodel/{k}").values():
            assert value.item() == pytest.approx(mean(k))
    assert after.group("submodel/1").keys() == {"layers.0.step_size", "layers.1.step_size"}


@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_inconsistent_parameters_are_means_within_their_submodel(lab, family, weights):
    names = ["small", "small", "full", "middle"]
    world = lab.make_world(lab.graph, lab.state, family, names, examples=[30, 10, 5, 5])
    strategy = NeFL(spread=0, weights=weights)
    start = strategy.init(world)
    tasks = [strategy.send(world, start, c, 1) for c in range(4)]
    after = finish(strategy, world, start, [(t.client, returned(t, t.client + 1)) for t in tasks])
    share = 1.5 if weights == "uniform" else (30 * 1 + 10 * 2) / 40
    small = after.group("submodel/small")
    assert {k for k in small if "bn" in k} == {
        k for k in family["small"].graph.state_names if "bn" in k
    }
    for name, value in small.items():
        expected = 2 if name.endswith("tracked") else share  # counters: the largest
        assert torch.equal(value, torch.full_like(value, expected)), name
    assert all((v == 3).all() for v in after.group("submodel/full").values())
    # The global state's norms belong to no submodel: each submodel has its own.
    assert torch.equal(
        after.group("global")["layer1.0.bn1.weight"], lab.state["layer1.0.bn1.weight"]
    )


@pytest.mark.parametrize("steps", ["learnable", "off"])
def test_one_full_submodel_is_uniform_fedavg(lab, steps):
    """With step sizes and norms of its own, too: there is no other submodel to differ from."""
    world = lab.uniform(3, examples=[5, 50, 500])
    strategy = NeFL(steps=steps)
    start = strategy.init(world)
    tasks = [strategy.send(world, start, c, 1) for c in range(3)]
    updates = [lab.random_state(t.state, t.client) for t in tasks]
    after = finish(strategy, world, start, list(enumerate(updates)))
    plain, _ = lab.one_round(
        FedAvg(weights="uniform"),
        world,
        lambda t: {k: updates[t.client][k] for k in lab.graph.state_names},
    )
    found = next(iter(strategy.evaluated(world, after))).state
    assert same({k: found[k] for k in plain}, plain)
    steps_ = found.keys() - plain.keys()
    assert len(steps_) == (6 if steps == "learnable" else 0)
    for name in steps_:
        torch.testing.assert_close(found[name], sum(u[name] for u in updates) / 3)


# ---------------------------------------------------------------- submodels


def test_dropped_blocks_are_really_gone(lab, family):
    world = lab.make_world(lab.graph, lab.state, family, list(family))
    strategy = NeFL(spread=0)
    task = strategy.send(world, strategy.init(world), 1, 1)
    shapes = {k: tuple(v.shape) for k, v in task.state.items() if v.is_floating_point()}
    assert not any(k.startswith(("layer1.2.", "layer2.2.", "layer2.0.conv")) for k in shapes)
    # By hand: stem 1→2, layer1 2→4 and 4→4, projection 4→6, layer2 6→6, head 6→5.
    blocks = (2 * 9 * 4 + 9 * 4 * 4 + (2 + 1) * 4) + 2 * 9 * 4 * 4 + (4 * 6 + 6) + 2 * 9 * 6 * 6
    norms = 2 * (2 * 4 + 2 * 4 + 2 * 6)
    counted = {k: v.numel() for k, v in task.state.items() if "running" not in k}
    counted = {k: n for k, n in counted.items() if "tracked" not in k and "step" not in k}
    assert sum(counted.values()) == (9 * 2 + 2) + blocks + norms + (6 * 5 + 5)
    assert [k for k in shapes if "step" in k] == [
        "layer1.0.step_size",
        "layer1.1.step_size",
        "layer2.1.step_size",
    ]
    module = ag.build(task.graph, task.state)
    assert module(torch.randn(2, 1, 8, 8)).shape == (2, 5)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ["full", "small", "middle"])
@pytest.mark.parametrize("steps", ["learnable", "constant"])
def test_step_sizes_of_one_change_nothing(lab, family, name, steps):
    world = lab.make_world(lab.graph, lab.state, family, [name])
    task = NeFL(steps=steps, spread=0).send(world, NeFL(steps=steps, spread=0).init(world), 0, 1)
    plain = family[name]
    without = ag.build(plain.graph, {k: task.state[k] for k in plain.graph.state_names})
    stepped = ag.build(task.graph, task.state)
    x = torch.randn(4, 1, 8, 8)
    for training in (False, True):
        assert torch.equal(stepped.train(training)(x), without.train(training)(x))
    stepped(x).square().sum().backward()
    sizes = [p for k, p in stepped.named_parameters() if "step_size" in k]
    assert len(sizes) == len([b for b in ag.structure(plain.graph).blocks if b.sums])
    for size in sizes:
        assert size.item() == 1 and size.requires_grad == (steps == "learnable")
        assert (size.grad is not None and size.grad != 0) == (steps == "learnable")


def test_a_layer_has_a_step_size_for_each_of_its_halves(lab, mixer):
    graph, state = mixer
    world = lab.make_world(graph, state, {"all": scaled(graph, [])}, ["all"])
    sent = NeFL().send(world, NeFL().init(world), 0, 1).state
    assert [k for k in sent if "step" in k] == [
        f"layers.{i}.step_size_{half}" for i in range(3) for half in (1, 2)
    ]


def test_without_steps_the_tiers_graph_is_sent(lab, family):
    world = lab.make_world(lab.graph, lab.state, family, ["small"])
    strategy = NeFL(steps="off", spread=0)
    assert strategy.send(world, strategy.init(world), 0, 1).graph == family["small"].graph


# Table XV (ResNet56): step sizes that NeFL-DO starts from, 0 for a block that is left out; and
# what METHODS' rule says of patterns in the middle (Table XIII), and of a missing beginning.
@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "starts",
    [
        [1, 8, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 7, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 6, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 4, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 1, 2, 0],
        [1, 1, 1, 1, 1, 1, 1, 1, 1],
        [1, 4, 0, 0, 0, 1, 2, 0, 1],
        [0, 0, 2, 0, 1, 1, 1, 1, 1],
    ],
)
def test_ode_step_sizes_start_as_published(lab, starts):
    graph, state = chain(9)
    tier = scaled(graph, [f"layers.{i}" for i, s in enumerate(starts) if not s], 0.5)
    world = lab.make_world(graph, state, {"one": tier, "full": scaled(graph, [])}, ["one", "full"])
    for steps in ("learnable", "constant"):
        strategy = NeFL(initial="ode", steps=steps, spread=0)
        sent = strategy.send(world, strategy.init(world), 0, 1).state
        found = [sent.get(f"layers.{i}.step_size", torch.tensor(0.0)).item() for i in range(9)]
        assert found == starts
    ones = NeFL(spread=0).send(world, NeFL(spread=0).init(world), 0, 1).state
    assert {v.item() for k, v in ones.items() if "step" in k} == {1.0}


def test_ode_step_sizes_of_resnet56_start_as_published():
    """Table XV, NeFL-DO, of the family that ships."""
    family = ag.resolve(ag.load_family(FAMILIES / "nefl_resnet56_d.yaml"))
    published = [
        "1,8,0,0,0,0,0,0,0 1,8,0,0,0,0,0,0,0 1,8,0,0,0,0,0,0,0",
        "1,1,7,0,0,0,0,0,0 1,1,7,0,0,0,0,0,0 1,1,1,6,0,0,0,0,0",
        "1,1,1,6,0,0,0,0,0 1,1,1,6,0,0,0,0,0 1,1,1,1,1,4,0,0,0",
        "1,1,1,1,1,1,1,1,1 1,1,1,1,1,1,1,2,0 1,1,1,1,1,1,3,0,0",
        "1,1,1,1,1,1,1,1,1 1,1,1,1,1,1,1,1,1 1,1,1,1,1,1,1,1,1",
    ]
    for member, starts in zip(family.clients, published, strict=True):
        made = submodel(family.graph, member.graph, member.transfer, initial="ode")
        wanted = [float(s) for row in starts.split() for s in row.split(",") if s != "0"]
        names = [k for k in made.graph.state_names if k in made.private and "step_size" in k]
        entries = (made.transfer.entries[k] for k in names)
        assert [entry.pull(None).item() for entry in entries] == wanted


def test_ode_step_sizes_stay_inside_their_section(lab, mixer):
    """A section whose blocks are all gone gives the section before it nothing."""
    tier = scaled(lab.graph, ["layer1.2", "layer2.0", "layer2.1", "layer2.2"])
    assert left_out_after(lab.graph, tier.graph, tier.transfer) == {"layer1.1": 1}
    graph, state = mixer
    tier = scaled(graph, ["layers.1", "layers.2"])
    assert left_out_after(graph, tier.graph, tier.transfer) == {"layers.0": 2}
    world = lab.make_world(graph, state, {"one": tier}, ["one"])
    sent = NeFL(initial="ode").send(world, NeFL(initial="ode").init(world), 0, 1).state
    assert [v.item() for k, v in sent.items() if "step" in k] == [3.0, 3.0]


@pytest.mark.parametrize(
    ("dropped", "after"),
    [
        (["tied~2"], {"tied~1": 1}),
        (["tied~3", "tied~4"], {"tied~2": 2}),
        (["tied~1", "last.0"], {}),  # what stands before them has no step size
        (["tied~4", "last.1"], {"tied~3": 1, "last.0": 1}),
    ],
)
def test_blocks_left_out_are_counted_among_tied_and_plain_ones(dropped, after):
    graph = ag.trace(Mixed(), torch.zeros(2, 3)).graph
    names = (*(f"tied~{i}" for i in range(1, 5)), "plain", "last.0", "last.1")
    graph = graph.replace(sections=(("body", names),))
    small = ag.skip(graph, dropped)
    assert left_out_after(graph, small.graph, small.transfer) == after


# ---------------------------------------------------------------- what is inconsistent


def test_norms_without_statistics_are_consistent_by_default(lab, mixer):
    graph, state = mixer
    batch = {f"norm.{k}" for k in ("weight", "bias", "running_mean", "running_var")}
    batch.add("norm.num_batches_tracked")
    layer = {k for k in graph.state_names if ".ln" in k}
    assert len(layer) == 12
    assert own_norms(graph, "auto") == batch
    assert own_norms(graph, "norms") == batch | layer
    assert own_norms(graph, "none") == set()
    tiers = {"small": scaled(graph, ["layers.1"]), "full": scaled(graph, [])}
    world = lab.make_world(graph, state, tiers, ["small", "full"])
    kinds: list[tuple[Inconsistent, float]] = [("auto", 1.5), ("none", 1.5), ("norms", 1.0)]
    for kind, expected in kinds:
        strategy = NeFL(spread=0, inconsistent=kind)
        start = strategy.init(world)
        tasks = [strategy.send(world, start, c, 1) for c in (0, 1)]
        after = finish(
            strategy, world, start, [(t.client, returned(t, t.client + 1)) for t in tasks]
        )
        ln, bn = after.tensors["global/layers.0.ln1.weight"], after.tensors["global/norm.weight"]
        assert torch.equal(ln, torch.full_like(ln, expected))
        assert torch.equal(bn, torch.full_like(bn, 1.5 if kind == "none" else 1.0))
        own = after.group("submodel/small")
        assert {k for k in own if "step" not in k} == {
            k for k in own_norms(tiers["small"].graph, kind) if "layers.1" not in k
        }
        assert [own[k].unique().tolist() for k in own if "step" in k] == [[1.0]] * 4


def test_own_parameters_start_as_the_global_ones(lab, family):
    weights = lab.random_state(lab.state, 5)
    world = lab.make_world(lab.graph, weights, family, list(family))
    start = NeFL().init(world)
    assert same(start.group("global"), weights)
    pulled = family["small"].transfer.pull(weights)
    own = start.group("submodel/small")
    assert len(own) > 20
    for name, value in own.items():
        assert torch.equal(value, pulled[name] if name in pulled else torch.tensor(1.0))


@pytest.mark.parametrize("norm", ["per_submodel", "static"])
def test_what_the_global_state_lacks_belongs_to_the_submodel(lab, norm):
    tiers = {"more": ag.add_adapters(lab.graph, size=2), "full": scaled(lab.graph, [])}
    world = lab.make_world(lab.graph, lab.state, tiers, ["more", "full"])
    further = set(tiers["more"].graph.state_names) - lab.state.keys()
    assert further
    strategy = NeFL(spread=0, norm=norm)
    start = strategy.init(world)
    tasks = [strategy.send(world, start, c, 1) for c in (0, 1)]
    after = finish(strategy, world, start, [(t.client, returned(t, t.client + 1)) for t in tasks])
    again = strategy.send(world, after, 0, 2).state
    assert all((again[name] == 1).all() for name in further)
    assert after.group("global").keys() == lab.state.keys()
    assert (after.tensors["global/stem.weight"] == 1.5).all()


def test_every_submodel_is_evaluated_with_its_own_parameters(lab, family):
    world = lab.make_world(lab.graph, lab.state, family, ["small", "middle", "full", "small"])
    strategy = NeFL(spread=0)
    start = strategy.init(world)
    tasks = [strategy.send(world, start, c, 1) for c in range(3)]
    after = finish(strategy, world, start, [(t.client, returned(t, t.client + 1)) for t in tasks])
    models = {m.name: m for m in strategy.evaluated(world, after)}
    assert list(models) == ["global", "full", "small", "middle"]
    for value, name in enumerate(["small", "middle", "full"], 1):
        model = models[name]
        assert (model.state["layer1.0.bn1.running_mean"] == value).all()
        assert model.state["layer1.0.step_size"].item() == value
        assert (model.state["fc.bias"] == 2).all()
        assert model.statistics == "stored" and not model.private
        assert list(model.state) == list(model.graph.state_names)
    assert models["small"].clients == (0, 3)
    assert models["global"].graph == models["full"].graph
    assert same(models["global"].state, models["full"].state)
    assert models["global"].clients == ()


def test_running_statistics_can_be_shared_recomputed_or_kept(lab, family):
    world = lab.make_world(lab.graph, lab.state, family, ["small", "full"])
    running = {k for k in lab.state if "running" in k or "tracked" in k}
    for norm in ("averaged", "static", "local"):
        strategy = NeFL(spread=0, norm=norm)
        start = strategy.init(world)
        assert not any(k in running for k in start.group("submodel/full"))
        assert "layer1.0.bn1.weight" in start.group("submodel/full")
        tasks = [strategy.send(world, start, c, 1) for c in (0, 1)]
        assert tasks[1].private == (running if norm == "local" else set())
        updates = [
            (t.client, {k: v for k, v in returned(t, t.client + 1).items() if k not in t.private})
            for t in tasks
        ]
        after = finish(strategy, world, start, updates).group("global")
        for name in ("running_mean", "running_var"):
            value = after[f"layer1.0.bn1.{name}"]
            if norm == "averaged":
                assert value.tolist() == [1.5] * 4 + [2.0] * 4
            else:
                assert torch.equal(value, lab.state[f"layer1.0.bn1.{name}"])
        evaluated = list(strategy.evaluated(world, start))
        assert {m.statistics for m in evaluated} == {"recompute" if norm == "static" else "stored"}
        assert [m.private for m in evaluated] == [False] + [norm == "local"] * 3


# ---------------------------------------------------------------- who trains what


def five(graph: ag.ArchGraph) -> dict[str, ag.Rewritten]:
    """Five submodels; the family names them in no order."""
    order = [3, 0, 4, 1, 2]
    dropped = {i: [f"layers.{b}" for b in range(i + 1, 5)] for i in range(5)}
    return {str(i): scaled(graph, dropped[i]) for i in order}


def test_clients_draw_uniformly_around_their_own_size(lab):
    graph, state = chain(5)
    world = lab.make_world(graph, state, five(graph), [str(i) for i in range(5)])
    assert [t.name for t in world.by_size] == ["0", "1", "2", "3", "4"]
    strategy = NeFL()
    near = {0: "012", 1: "0123", 2: "01234", 3: "1234", 4: "234"}
    for client, names in near.items():
        drawn = [strategy.drawn(world, client, t).name for t in range(1, 401)]
        counts = {name: drawn.count(name) for name in set(drawn)}
        assert counts.keys() == set(names)
        share = 1 / len(names)
        for count in counts.values():
            assert abs(count / 400 - share) < 4 * (share * (1 - share) / 400) ** 0.5
        assert drawn == [NeFL().drawn(world, client, t).name for t in range(1, 401)]
    fixed = NeFL(spread=0)
    assert [fixed.drawn(world, c, 3).name for c in range(5)] == ["0", "1", "2", "3", "4"]
    assert {NeFL(spread=1).drawn(world, 2, t).name for t in range(60)} == {"1", "2", "3"}


def test_draws_depend_on_seed_round_and_client_alone(lab):
    graph, state = chain(5)
    names = ["2"] * 8
    world = lab.make_world(graph, state, five(graph), names)
    strategy, start = NeFL(), NeFL().init(world)

    def draws(world: World, round: int) -> list[str]:
        return [strategy.drawn(world, c, round).name for c in range(8)]

    assert len(set(draws(world, 1))) > 1
    assert draws(world, 1) != draws(world, 2)
    assert draws(world, 1) != draws(lab.replace(world, seed=1), 1)
    # What is sent is what is merged, whatever was asked in between.
    tasks = [strategy.send(world, start, c, 4) for c in (6, 1)]
    strategy.send(world, start, 0, 9)
    after = finish(strategy, world, start, [(t.client, returned(t, 3.0)) for t in tasks], round=4)
    trained = {strategy.drawn(world, c, 4).name for c in (6, 1)}
    for name in "01234":
        own = after.group(f"submodel/{name}")
        assert {v.item() for v in own.values()} == ({3.0} if name in trained else {1.0})


# ---------------------------------------------------------------- local training, options


@pytest.mark.parametrize("steps", ["learnable", "constant"])
def test_two_rounds_of_training(lab, family, steps):
    world = lab.make_world(lab.graph, lab.state, family, ["small", "middle", "full"])
    strategy = NeFL(steps=steps, initial="ode")
    start = state = strategy.init(world)
    for round in (1, 2):
        tasks = [strategy.send(world, state, c, round) for c in range(3)]
        local = LocalOptions(lr=0.05, batch=6)
        updates = [
            (t.client, t.program(lab.work_of(t, lab.toy(t.client), local)).state) for t in tasks
        ]
        state = finish(strategy, world, state, updates, round)
    assert not torch.equal(state.tensors["global/stem.weight"], start.tensors["global/stem.weight"])
    trained = {strategy.drawn(world, c, t).name for c in range(3) for t in (1, 2)}
    for name in trained:
        new, old = state.group(f"submodel/{name}"), start.group(f"submodel/{name}")
        sizes = [k for k in old if "step" in k]
        assert bool(sizes) == (steps == "learnable")
        assert all(new[k] != old[k] for k in sizes)
    # Constant ones are part of the architecture, whatever a client returns.
    model = next(m for m in strategy.evaluated(world, state) if m.name == "middle")
    if steps == "constant":
        assert model.state["layer2.0.step_size"].item() == 3


def test_options_that_contradict_one_another_are_refused():
    with pytest.raises(ag.SpecError, match="spread: out of range; found -1"):
        NeFL(spread=-1)
    with pytest.raises(ag.SpecError, match="initial: needs step sizes"):
        NeFL(steps="off", initial="ode")
    with pytest.raises(ag.SpecError, match="norm: kept statistics would have the size"):
        NeFL(norm="local")
    assert NeFL(norm="local", spread=0).norm == "local"


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("paper", NeFL()),
        ("paper_nl", NeFL(steps="constant")),
        ("paper_do", NeFL(initial="ode")),
        ("paper_do_nl", NeFL(steps="constant", initial="ode")),
        ("paper_fixed", NeFL(spread=0)),
        ("official_code", NeFL(inconsistent="norms")),
    ],
)
def test_presets(preset, expected):
    assert configure("nefl", {"preset": preset}) == expected


def test_every_preset_is_named_here():
    assert len(NeFL.presets) == 6
