"""RecipFL: what the server generates, what it learns from clients, what strong clients teach."""

from __future__ import annotations

import dataclasses
import gc
import math
import pickle
import tempfile
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import archgraph as ag
from archgraph.federation import (
    Client,
    LocalOptions,
    Result,
    ServerState,
    Task,
    Tier,
    Train,
    World,
    configure,
    seeded,
)
from archgraph.hypernet import GraphHypernetwork, entries, follow_gradients
from archgraph.rewrites.train_only import train_only
from archgraph.strategies import recipfl
from archgraph.strategies.recipfl import RecipFL, Server, Teach, guidance

CLASSES = 5
SIZES = {"width": 16, "hidden": 32, "tile": 8}
NOTHING = ag.ArchGraph(inputs=(), params=(), nodes=(), outputs=())
HISTOGRAMS = ((2, 2, 2, 2, 2), (10, 0, 0, 0, 0), (0, 5, 5, 0, 0))


class Strong(nn.Module):
    """Batch statistics, more channels, and as many hidden features as the weak model."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(8, 12, 3), nn.BatchNorm2d(12), nn.ReLU())
        self.hidden, self.head = nn.Linear(12, 7), nn.Linear(7, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(self.stem(x)).mean((2, 3))
        return self.head(self.hidden(y).relu())


class Weak(nn.Module):
    def __init__(self, features: int = 7) -> None:
        super().__init__()
        self.a = nn.Conv2d(1, 4, 5)
        self.norm = nn.BatchNorm2d(4)
        self.b, self.c = nn.Linear(4, features), nn.Linear(features, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.norm(self.a(x)).mean((2, 3))).tanh())


def tier(name: str, module: nn.Module) -> Tier:
    torch.manual_seed(len(name))
    graph = ag.trace(module, torch.randn(2, 1, 8, 8)).graph
    same = ag.Transfer.identity(graph)
    return Tier(name, graph, same, ag.initial_state(graph, len(name)), own=True)


@pytest.fixture(scope="module")
def world() -> World:
    """One strong client, two weak ones; no global model."""
    strong, weak = tier("strong", Strong()), tier("weak", Weak())
    owners = (strong, weak, weak)
    clients = tuple(
        Client(i, t.name, sum(h), h)
        for i, (t, h) in enumerate(zip(owners, HISTOGRAMS, strict=True))
    )
    return World(NOTHING, {}, clients, (strong, weak), CLASSES, rounds=4, seed=3)


def strategy(**options: object) -> RecipFL:
    return RecipFL(**{**SIZES, **options})  # type: ignore[arg-type]  # by name


def moved(state, by: float = 0.1) -> dict[str, Tensor]:
    return {k: v + by if v.is_floating_point() else v for k, v in state.items()}


def returned(task: Task, by: float = 0.1) -> Result:
    """Every entry moved by the same."""
    own = {k: v for k, v in moved(task.state, by).items() if k not in task.private}
    return Result(task.client, own, 10, {k: moved(m.state, by) for k, m in task.others.items()})


def rounds(method: RecipFL, world: World, count: int, sampled=(0, 1, 2)) -> ServerState:
    state = method.init(world)
    for number in range(1, count + 1):
        tasks = [method.send(world, state, c, number) for c in sampled]
        state = method.receive(world, state, (returned(t) for t in tasks), number)
    return state


# ---------------------------------------------------------------- what is sent


def test_clients_get_what_the_hypernetwork_makes_of_their_graph_and_classes(world):
    method = strategy(transfer=False)
    state = method.init(world)
    tiers = [world.tier(c.name) for c in world.clients]
    network = GraphHypernetwork.for_graphs(
        [t.graph for t in world.tiers], seed=world.seed, descriptor=CLASSES, **SIZES
    )
    shares = torch.tensor(HISTOGRAMS) / 10
    for client, t in enumerate(tiers):
        task = method.send(world, state, client, 1)
        made = network.generate([t.graph], [t.state], shares[client : client + 1])[0]
        assert task.others == {} and isinstance(task.program, Train)
        for name, tensor in task.state.items():
            expected = made[name].detach() if name in made else t.state[name]
            assert torch.equal(tensor, expected), name
        assert task.private == set(t.graph.state_names) - made.keys()
        assert {"buffer"} == set(network.unset(t.graph).values())
    weak = [method.send(world, state, c, 1).state for c in (1, 2)]
    assert not torch.equal(weak[0]["a.weight"], weak[1]["a.weight"])  # other classes


def test_one_network_reads_a_state_for_as_long_as_the_state_is_there(world):
    method = strategy()
    gc.collect()
    before = len(recipfl.READERS)
    state = method.init(world)
    networks = {id(Server.of(method, world, state).network) for _ in range(2)}
    assert len(networks) == 1 and len(recipfl.READERS) == before + 1
    first, *rest = state.group("hypernet").items()
    others = state.with_group("hypernet", dict([first, *((k, v + 0.1) for k, v in rest)]))
    for one in (others, state):  # the first tensor is the same
        sent = method.send(world, one, 1, 1).state
        recipfl.READERS.clear()
        assert all(torch.equal(v, sent[k]) for k, v in method.send(world, one, 1, 1).state.items())
    del state, others, one, first
    gc.collect()
    assert len(recipfl.READERS) == 0


def test_strong_clients_get_the_small_model_too(world):
    method = strategy()
    state = method.init(world)
    task = method.send(world, state, 0, 1)
    weak = world.tier("weak")
    assert set(task.others) == {"small"} and task.others["small"].graph == weak.graph
    # That of the weak with this client's classes, from the small model's own first weights.
    as_weak = dataclasses.replace(world.clients[1], id=0, histogram=HISTOGRAMS[0])
    alone = dataclasses.replace(world, clients=(as_weak, *world.clients[1:]))
    twin = method.send(alone, state, 0, 1)
    assert all(
        torch.allclose(task.others["small"].state[k], v, rtol=1e-5, atol=1e-6)
        for k, v in twin.state.items()
    )
    assert isinstance(task.program, Teach)
    assert set(task.program.local) == {k for k in weak.state if "running" in k or "num_" in k}
    assert not method.send(world, state, 1, 1).others
    # Whoever does not run the named tier is strong.
    named = strategy(small="strong")
    assert set(named.send(world, named.init(world), 1, 1).others) == {"small"}
    assert not named.send(world, named.init(world), 0, 1).others
    for strong, teaches in ((("strong",), True), (("weak",), False), ((), False)):
        chosen = strategy(strong=strong)
        assert bool(chosen.send(world, chosen.init(world), 0, 1).others) == teaches


def test_statistics_are_sent_once(world):
    method = strategy()
    before = method.init(world)
    values = {name: tensor.clone() for name, tensor in before.tensors.items()}
    first = method.send(world, before, 0, 1)
    assert first.private <= first.state.keys()
    after = method.receive(world, before, [returned(first)], 1)
    # The state is a value: the one before stays what it was.
    assert all(torch.equal(before.tensors[name], value) for name, value in values.items())
    assert (
        not method.send(world, after, 0, 2).private & method.send(world, after, 0, 2).state.keys()
    )
    other = method.send(world, after, 1, 2)
    assert other.private <= other.state.keys()


# ---------------------------------------------------------------- what the server learns


def test_two_rounds_are_two_steps_of_one_adam_on_all_pairs(world):
    method = strategy()
    state = rounds(method, world, 2)
    network = GraphHypernetwork.for_graphs(
        [t.graph for t in world.tiers], seed=world.seed, descriptor=CLASSES, **SIZES
    )
    adam = torch.optim.Adam(network.parameters(), lr=0.001)
    strong, weak = world.tiers
    models = [strong, weak, weak, weak]  # strong client: both
    shares = torch.tensor([HISTOGRAMS[i] for i in (0, 0, 1, 2)]) / 10
    last = [dict(t.state) for t in models]
    for _ in range(2):
        made = network.generate([t.graph for t in models], last, shares)
        new = [moved({k: v.detach() for k, v in m.items()}) for m in made]
        adam.zero_grad()
        network.pull_back([t.graph for t in models], last, new, shares)
        follow_gradients(network, adam)
        last = [{**old, **n} for old, n in zip(last, new, strict=True)]
    # The moments: φ itself has parameters whose gradient is nothing but rounding (a softmax does
    # not see what is added to all keys), which Adam's normalisation makes as large as any.
    parameters = dict(network.named_parameters())
    for name, tensor in state.group("optimiser/exp_avg").items():
        kept = adam.state[parameters[name]]
        size = float(kept["exp_avg"].norm())
        torch.testing.assert_close(tensor, kept["exp_avg"], rtol=0, atol=1e-3 * size + 1e-6)
        assert state.group("optimiser/step")[name] == kept["step"] == 2
    held = state.group("last-0/small")
    assert held.keys() == made[1].keys()
    torch.testing.assert_close(held["c.weight"], last[1]["c.weight"], rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_what_is_generated_comes_nearer_to_what_was_trained(world):
    method = strategy(lr=0.01)
    state = method.init(world)
    target = {c: moved(method.send(world, state, c, 1).state, 0.2) for c in (1, 2)}

    def distance(state: ServerState) -> float:
        made = [method.send(world, state, c, 1).state for c in (1, 2)]
        return sum(
            float((m[k] - target[c][k]).square().sum())
            for c, m in zip((1, 2), made, strict=True)
            for k in m.keys() - method.send(world, state, c, 1).private
        )

    gaps = [distance(state)]
    for number in range(1, 9):
        results = []
        for c in (1, 2):
            kept = method.send(world, state, c, number).private
            results.append(Result(c, {k: v for k, v in target[c].items() if k not in kept}, 10))
        state = method.receive(world, state, results, number)
        gaps.append(distance(state))
    assert gaps[-1] < 0.5 * gaps[0]


def test_a_round_without_results_changes_nothing(world):
    method = strategy()
    state = method.init(world)
    assert method.receive(world, state, [], 1) is state


def test_groups_of_results_do_not_matter(world, monkeypatch):
    method = strategy()
    whole = rounds(method, world, 1)
    monkeypatch.setattr(recipfl, "TOGETHER", 1)
    apart = rounds(method, world, 1)
    gradients = [s.group("optimiser/exp_avg") for s in (whole, apart)]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0.0001, atol=1e-6)


def test_what_the_encoder_keeps_counts_towards_a_group(monkeypatch):
    """Two tensors of 4 bytes a result, of 100 pieces each: three results are above the bound."""
    results = [Result(c, {"a": torch.zeros(1), "b": torch.zeros(1)}, 1) for c in range(4)]
    monkeypatch.setattr(recipfl, "TOGETHER", 5 * 100 * recipfl.PIECE)
    assert [len(batch) for batch in recipfl._batches(results, 100)] == [3, 1]
    assert [len(batch) for batch in recipfl._batches(results, 10)] == [4]


def test_weights_by_examples_are_in_proportion(world):
    clients = tuple(
        dataclasses.replace(c, examples=n) for c, n in zip(world.clients, (0, 30, 0), strict=True)
    )
    given = dataclasses.replace(world, clients=clients)
    # Client 1 counts thrice, the others not at all.
    weighted = rounds(strategy(weights="examples", clip=1e9), given, 1)
    alone = rounds(strategy(clip=1e9), given, 1, sampled=(1,))
    names = alone.group("optimiser/exp_avg")
    for name in names:
        three = weighted.group("optimiser/exp_avg")[name]
        torch.testing.assert_close(three, 3 * names[name], rtol=1e-4, atol=1e-6)


def test_learned_descriptions_begin_with_the_clients_that_took_part(world):
    method = strategy(descriptor="id", embedding=4)
    before, after = method.init(world), rounds(method, world, 1, sampled=(2,))
    change = after.group("hypernet")["client.weight"] - before.group("hypernet")["client.weight"]
    assert change.shape == (3, 4)
    assert not change[:2].any() and change[2].all()


def test_clients_that_are_not_described_get_the_same(world):
    method = strategy(descriptor="none")
    state = method.init(world)
    weak = [method.send(world, state, c, 1).state for c in (1, 2)]
    assert all(torch.equal(v, weak[1][k]) for k, v in weak[0].items())


def test_pieces_are_as_long_as_asked(world):
    phi = strategy(bins=32, piece=4).init(world).group("hypernet")
    assert phi["encoder.position"].shape == (8, 16) and phi["encoder.embed.weight"].shape[1] == 4


def test_phi_of_a_checkpoint_lies_as_torchs_own_does(world):
    """Products of matrices at odd addresses may round otherwise, and a resumed run differ."""
    method = strategy()
    state = method.init(world)
    odd = {
        k: torch.cat([v.flatten()[:1], v.flatten()])[1:].view_as(v)
        for k, v in state.group("hypernet").items()
    }
    assert any(v.data_ptr() % 64 for v in odd.values())
    moved = state.with_group("hypernet", odd)
    network = Server.of(method, world, moved).network
    assert not any(p.data_ptr() % 64 for p in network.parameters())
    ours, theirs = (method.send(world, s, 0, 1).state for s in (state, moved))
    assert all(torch.equal(v, theirs[k]) for k, v in ours.items())


def test_virtual_edges_are_part_of_phi(world):
    plain, far = (rounds(strategy(reach=reach), world, 1) for reach in (1, 50))
    added = far.group("hypernet").keys() - plain.group("hypernet").keys()
    assert added == {f"gnn.virtual.{i}.{name}" for i in (0, 2) for name in ("weight", "bias")}
    before = strategy(reach=50).init(world).group("hypernet")
    assert all(not torch.equal(far.group("hypernet")[name], before[name]) for name in added)


# ---------------------------------------------------------------- the authors' code


def test_official_describes_the_head_only_and_leaves_shifts_of_norms(world):
    method = configure("recipfl", {"preset": "official", **SIZES})
    assert isinstance(method, RecipFL)
    assert (method.mixing, method.described, method.shifts) == ("sum", "head", "local")
    state = method.init(world)
    phi = state.group("hypernet")
    assert len(phi["encoder.position"]) == 128 and "gnn.virtual.0.weight" in phi
    one, two = (method.send(world, state, c, 1) for c in (1, 2))
    differ = {k for k, v in one.state.items() if not torch.equal(v, two.state[k])}
    assert differ == {"c.weight", "c.bias"}
    assert "norm.bias" in one.private and "norm.weight" not in one.private
    server = Server.of(method, world, state)
    assert server.network.unset(world.tier("weak").graph)["norm.bias"] == "shift"
    given = configure("recipfl", {"preset": "official", "described": "all"})
    assert isinstance(given, RecipFL) and given.described == "all"  # what is said wins
    assert rounds(method, world, 1).group("optimiser")


# ---------------------------------------------------------------- knowledge transfer


def test_guidance_is_the_cross_entropy_and_the_divergence_of_equation_9():
    draw = seeded(0, "guidance")
    s, t = (torch.randn(6, CLASSES, generator=draw, dtype=torch.float64) for _ in range(2))
    f, g = (torch.randn(6, 4, generator=draw, dtype=torch.float64) for _ in range(2))
    p_s, p_l = f.softmax(1), g.softmax(1)
    cross = -(t.softmax(1) * s.log_softmax(1)).sum(1).mean()
    apart = (p_s * (p_s / p_l).log()).sum(1).mean()
    assert guidance((s, f), (t, g)).item() == pytest.approx((cross + apart).item(), abs=1e-12)
    other = torch.nn.functional.kl_div(
        f.flatten(1).log_softmax(1), g.flatten(1).softmax(1), reduction="batchmean"
    )
    turned = guidance((s, f), (t, g), divergence="large_small")
    assert turned.item() == pytest.approx((cross + other).item(), rel=1e-6)
    assert abs((other - apart).item()) > 1e-3
    # Features of other sizes, or none, say nothing.
    assert guidance((s, f), (t, g[:, :3])).item() == pytest.approx(cross.item(), abs=1e-12)
    assert guidance((s,), (t, g)).item() == pytest.approx(cross.item(), abs=1e-12)
    assert guidance((s, g), (t, g)).item() == pytest.approx(cross.item(), abs=1e-12)


def test_the_large_model_trains_as_alone_then_teaches_the_small_one(world, lab):
    method = strategy()
    task = method.send(world, method.init(world), 0, 1)
    data, local = lab.toy(1, examples=8), LocalOptions(epochs=1, batch=8, lr=0.05)
    assert isinstance(task.program, Teach)
    work = lab.work_of(task, data, local)
    outcome = task.program(work)
    alone = task.program.train(lab.work_of(task, data, local))
    assert all(torch.equal(v, alone.state[k]) for k, v in outcome.state.items())
    # One step of the small model by hand, in the modules that the graphs were traced from.
    (batch,) = data.batches(None, 8)
    teacher, student = Strong().eval(), Weak().train()
    teacher.load_state_dict(dict(outcome.state))
    student.load_state_dict(dict(task.others["small"].state))
    seen: dict[str, Tensor] = {}
    for key, layer in (("large", teacher.head), ("small", student.c)):
        layer.register_forward_pre_hook(lambda _, args, key=key: seen.update({key: args[0]}))
    with torch.no_grad():
        wanted = teacher(*batch.inputs)
    logits = student(*batch.inputs)
    loss = (
        functional.cross_entropy(logits, batch.targets)
        + functional.cross_entropy(logits, wanted.softmax(1))
        + functional.kl_div(
            seen["large"].log_softmax(1),
            seen["small"].log_softmax(1),
            reduction="batchmean",
            log_target=True,
        )
    )
    loss.backward()
    for name, parameter in student.named_parameters():
        assert parameter.grad is not None
        expected = parameter - 0.05 * parameter.grad
        found = outcome.others["small"][name]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    # The small model's statistics stay, and are there in the next round.
    assert set(outcome.keep) == {f"small/{name}" for name in task.program.local}
    later = dataclasses.replace(work, keep=outcome.keep, generator=seeded(0, "work", 0))
    again = task.program(later)
    assert not torch.equal(again.keep["small/norm.running_mean"], torch.zeros(4))
    assert int(again.keep["small/norm.num_batches_tracked"]) == 2
    assert pickle.loads(pickle.dumps(task.program)) == task.program


# ---------------------------------------------------------------- memory


def test_states_on_the_disk_are_the_same_and_leave_nothing_behind(world, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    held = rounds(strategy(), world, 2)
    spilled = rounds(strategy(memory=0), world, 2)
    torch.testing.assert_close(spilled.tensors, held.tensors, rtol=0, atol=0)
    assert not list(tmp_path.iterdir())
    mapped = Path("/proc/self/maps")
    if mapped.exists():
        assert str(tmp_path) in mapped.read_text()


def test_the_first_clients_stay_in_memory(world):
    method = strategy()
    state = method.init(world)
    strong, weak = (
        sum(e.dtype.itemsize * math.prod(e.shape) for e in entries(t.graph)) for t in world.tiers
    )
    for megabytes, expected in (
        (0, {0, 1, 2}),
        ((strong + weak) / 2**20, {1, 2}),
        ((strong + 2 * weak) / 2**20, {2}),
        (1, set()),
    ):
        server = Server.of(strategy(memory=megabytes), world, state)
        assert server.spilled() == expected


def test_a_folder_that_cannot_be_written_is_named(world, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ag.RunError, match="cannot be written"):
        rounds(strategy(memory=0), world, 1)


# ---------------------------------------------------------------- tests and options


def test_every_client_is_tested_with_its_own_version(world):
    method = strategy()
    state = rounds(method, world, 1)
    models = {m.name: m for m in method.evaluated(world, state)}
    assert set(models) == {"strong", "weak"} and models["weak"].clients == (1, 2)
    for client, model in ((0, models["strong"]), (1, models["weak"]), (2, models["weak"])):
        assert model.states is not None and model.personal and model.private
        version = model.states(client)
        sent = method.send(world, state, client, 2).state
        assert version.keys() == world.tier(model.name).state.keys()
        assert all(torch.allclose(version[k], sent[k], rtol=1e-4, atol=1e-6) for k in sent)


def test_what_is_too_large_to_learn_from_is_refused(world):
    method = strategy()
    task = method.send(world, method.init(world), 0, 1)
    method.examine(world, returned(task, 1e5))
    wide = {**task.others["small"].state, "norm.running_var": torch.full((4,), 1e9)}
    method.examine(world, dataclasses.replace(returned(task), others={"small": wide}))
    with pytest.raises(ag.RejectedUpdate, match=r"client 0: .*too large to learn from"):
        method.examine(world, returned(task, 1e7))
    large = {"small": moved(task.others["small"].state, 1e7)}
    with pytest.raises(ag.RejectedUpdate, match="client 0: small/"):
        method.examine(world, dataclasses.replace(returned(task), others=large))


def test_a_gradient_that_is_not_finite_leaves_the_hypernetwork_as_it_was(world):
    method = strategy()
    state = method.init(world)
    results = [returned(method.send(world, state, c, 1), 2e38) for c in (1, 2)]
    before = {k: v.clone() for k, v in state.tensors.items()}
    with pytest.raises(ag.RunError, match="not finite"):
        method.receive(world, state, results, 1)
    assert all(torch.equal(v, before[k]) for k, v in state.tensors.items())
    # Squares beyond float32's range do not erase the round.
    results = [returned(method.send(world, state, c, 1), 1e19) for c in (1, 2)]
    after = method.receive(world, state, results, 1)
    assert after.group("optimiser/exp_avg")["norm.weight"].any()


def test_frozen_tensors_come_with_every_task_and_are_never_stored(world):
    trained = {"strong": "head.*", "weak": "c.*"}

    def without(t: Tier) -> Tier:
        return dataclasses.replace(t, graph=train_only(t.graph, trained[t.name]).graph)

    given = dataclasses.replace(world, tiers=tuple(map(without, world.tiers)))
    method = strategy()
    state = rounds(method, given, 1)
    task = method.send(given, state, 0, 2)
    assert set(state.group("last-0/own")) == {"head.weight", "head.bias"}
    assert "hidden.weight" in task.private and "hidden.weight" in task.state
    assert not {n for n in task.private & task.state.keys() if "running" in n}
    assert isinstance(task.program, Teach) and all("norm." in n for n in task.program.local)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, "strategy.recipfl.lr: out of range"),
        ({"clip": math.nan}, "strategy.recipfl.clip: out of range"),
        ({"width": 0}, "strategy.recipfl.width: out of range"),
        ({"piece": 5}, "strategy.recipfl.bins: 128 is not a multiple of piece, 5"),
        ({"memory": -1.0}, "strategy.recipfl.memory: out of range"),
        ({"descriptor": "names"}, "strategy.recipfl.descriptor: wrong value"),
    ],
)
def test_options_out_of_range_are_named(options, message):
    with pytest.raises(ag.SpecError, match=message):
        configure("recipfl", options)


def test_a_small_tier_that_is_not_there_is_named(world):
    for options in ({"small": "weka"}, {"strong": ("weka",)}):
        with pytest.raises(ag.RunError, match="unknown tier"):
            strategy(**options).init(world)
