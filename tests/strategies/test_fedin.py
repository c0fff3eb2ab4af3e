"""FedIN: gradients in closed form, a bounded store, and strangers that share nothing but ends."""

from __future__ import annotations

import dataclasses
import itertools
import math
import pickle
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import archgraph as ag
from archgraph.data import Dataset, Split
from archgraph.engine.experiment import Experiment
from archgraph.engine.local import execute
from archgraph.engine.rounds import Loop
from archgraph.federation import (
    Client,
    Evaluated,
    LocalOptions,
    Result,
    ServerState,
    Task,
    Tier,
    Train,
    World,
    configure,
    reservoir,
    seeded,
)
from archgraph.language.experiment import EvaluateSpec
from archgraph.strategies.fedin import (
    FedIN,
    InTraining,
    Pairs,
    inner,
    model_parts,
    projected,
    summed,
)

CLASSES = 5
SHAPE = (1, 8, 8)
NOTHING = ag.ArchGraph(inputs=(), params=(), nodes=(), outputs=())


class Plain(nn.Module):
    """A net whose ends are those of all, between them what it likes; names of its own."""

    def __init__(self, stem: str, middle: nn.Module, head: str, width: int = 6) -> None:
        super().__init__()
        self.names = stem, head
        setattr(self, stem, nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6)))
        self.middle = middle
        setattr(self, head, nn.Linear(width, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        stem, head = self.names
        y = self.middle(getattr(self, stem)(x).relu())
        return getattr(self, head)(y.mean((2, 3)))


def convs(depth: int, *, norm: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Conv2d(6, 6, 3, padding=1)]
        layers += [nn.BatchNorm2d(6)] if norm else []
        layers += [nn.ReLU()]
    return nn.Sequential(*layers)


class Residual(nn.Module):
    """Another way from six channels to six."""

    def __init__(self) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(6, 3, 1)
        self.expand = nn.Conv2d(3, 6, 5, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.expand(self.squeeze(x).tanh())


def traced(module: nn.Module, seed: int = 0) -> tuple[ag.ArchGraph, dict[str, Tensor]]:
    torch.manual_seed(seed)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    made = ag.trace(module, torch.randn(2, *SHAPE))
    return made.graph, dict(made.state)


@pytest.fixture(scope="module")
def nets() -> dict[str, tuple[ag.ArchGraph, dict[str, Tensor]]]:
    return {
        "two": traced(Plain("stem", convs(2), "fc"), 1),
        "four": traced(Plain("entry", convs(4, norm=False), "classifier"), 2),
        "other": traced(Plain("begin", Residual(), "end"), 3),
    }


def world_of(
    nets: Mapping[str, tuple[ag.ArchGraph, Mapping[str, Tensor]]],
    clients: Sequence[str],
    *,
    examples: Sequence[int] = (),
    seed: int = 0,
    rounds: int = 3,
) -> World:
    """A family without a global model."""
    tiers = tuple(
        Tier(name, graph, ag.Transfer.identity(graph), source=state, own=True)
        for name, (graph, state) in nets.items()
    )
    return World(
        graph=NOTHING,
        state={},
        clients=tuple(
            Client(
                id=i,
                name=name,
                examples=examples[i] if examples else 10,
                histogram=(2,) * CLASSES,
            )
            for i, name in enumerate(clients)
        ),
        tiers=tiers,
        classes=CLASSES,
        rounds=rounds,
        seed=seed,
    )


def images(count: int, seed: int) -> Split:
    draw = seeded(seed, "images")
    targets = torch.randint(CLASSES, (count,), generator=draw)
    inputs = torch.randn(count, *SHAPE, generator=draw)
    inputs[torch.arange(count), 0, targets] += 3.0  # a bright row tells the class
    return Split(inputs, targets)


def experiment(world: World, strategy: FedIN, **local: object) -> Experiment:
    count = len(world.clients)
    train = images(12 * count, 1)
    options = {"epochs": 1, "batch": 4, "optimiser": {"Adam": {"lr": 0.01}}, **local}
    return Experiment(
        world=world,
        strategy=strategy,
        data=Dataset("toy", "image", CLASSES, SHAPE, train, images(40, 2), tuple("abcde")),
        shares=tuple(np.arange(12 * c, 12 * c + 12) for c in range(count)),
        local=LocalOptions(**options),  # type: ignore[arg-type]  # by name
        evaluate=EvaluateSpec(batch=20),
        text="name: test\n",
        facts={"seed": world.seed},
    )


def own_of(task: Task) -> frozenset[str]:
    program = task.program
    assert isinstance(program, InTraining)
    return model_parts(task.graph, program.after, program.before).middle


# ---------------------------------------------------------------- both gradients


values = st.one_of(
    st.just(0.0),
    st.floats(-10, 10, width=32),
    st.sampled_from([1e-20, -1e-20, 1e-30, -1e-170, 1e-170, 1e15, -1e15]),
)


@st.composite
def gradients(draw):
    sizes = draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))

    def one() -> list[Tensor]:
        if draw(st.integers(0, 4)) == 0:
            return [torch.zeros(n, dtype=dtype) for n in sizes]
        found = (draw(st.lists(values, min_size=n, max_size=n)) for n in sizes)
        return [torch.tensor(given_, dtype=dtype) for given_ in found]

    return one(), one()


def unit(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same direction, of a size whose squares are numbers."""
    largest = max((float(t.abs().max()) for t in tensors if t.numel()), default=0.0) or 1.0
    return [t.double() / largest for t in tensors]


@settings(max_examples=100)
@given(pair=gradients())
def test_a_projected_step_never_goes_against_the_local_gradient(pair):
    g_in, g_local = pair
    z = projected(g_in, g_local)
    assert [t.dtype for t in z] == [t.dtype for t in g_in]
    # Relative to what was subtracted: a step that all but vanishes is rounding.
    size = max(inner(g_in, g_in), 1e-300) ** 0.5
    assert inner(z, unit(g_local)) >= -1e-6 * size * 15**0.5
    if inner(g_in, unit(g_local)) >= 0:  # then nothing is changed at all
        assert all(a is b for a, b in zip(z, g_in, strict=True))


@settings(max_examples=100)
@given(seed=st.integers(0, 10**6), tries=st.integers(1, 5))
def test_no_step_that_is_allowed_is_nearer_than_the_projected_one(seed, tries):
    """Eq. 12: the minimum of ‖G_IN − Z‖ where ⟨Z, G_local⟩ ≥ 0."""
    draw = torch.Generator().manual_seed(seed)
    g_in, g_local = (torch.randn(6, generator=draw, dtype=torch.float64) for _ in range(2))
    (z,) = projected([g_in], [g_local])
    best = float((g_in - z).norm())
    for scale in (0.1, 1.0, 10.0):
        for _ in range(tries):
            other = g_in + scale * torch.randn(6, generator=draw, dtype=torch.float64)
            if float(other @ g_local) >= 0:
                assert float((g_in - other).norm()) >= best - 1e-9
    if float(g_in @ g_local) < 0:
        assert abs(float(z @ g_local)) < 1e-9 * max(1.0, float(g_local @ g_local))


def test_projection_runs_over_all_tensors_as_one_matrix():
    """Alone the first tensors conflict; together they do not."""
    g_in = [torch.tensor([-1.0]), torch.tensor([5.0])]
    g_local = [torch.tensor([1.0]), torch.tensor([1.0])]
    assert projected(g_in, g_local) == [torch.tensor([-1.0]), torch.tensor([5.0])]
    assert projected([-g for g in g_in], g_local) == [torch.tensor([3.0]), torch.tensor([-3.0])]


@settings(max_examples=100)
@given(pair=gradients())
def test_lambda_two_is_the_sum_bit_for_bit(pair):
    g_in, g_local = pair
    for z, a, b in zip(summed(g_in, g_local), g_in, g_local, strict=True):
        assert torch.equal(z, a + b)
    assert summed([torch.tensor([1.0])], [torch.tensor([4.0])], 1.0) == [torch.tensor([3.0])]


@pytest.fixture(scope="module")
def pairs(nets):
    """Features of another client's net for the first one's intermediate layers."""
    split = model_parts(nets["two"][0])
    draw = seeded(0, "pairs")
    return {k: torch.randn(6, *shape, generator=draw) for k, (shape, _) in split.features.items()}


@pytest.mark.parametrize("step", ["sum", "projection"])
@pytest.mark.parametrize("multiplier", [2.0, 0.5])
def test_one_step_is_equation_16_or_15_and_the_ends_follow_the_local_loss(
    lab, nets, pairs, step, multiplier
):
    graph, state = nets["four"]  # no batch statistics between the cuts: closed form by hand
    split = model_parts(graph)
    program = InTraining(split.after, split.before, step=step, multiplier=multiplier)
    task = Task(0, graph, state, program, extras=pairs)
    data = lab.toy(1, examples=6)
    after = program(lab.work_of(task, data, LocalOptions(lr=0.1, batch=6))).state

    module = ag.build(graph, state).train()
    extractor, middle, _ = (ag.build(p, {k: state[k] for k in p.state_names}) for p in split.parts)
    module(data.inputs)
    named = dict(module.named_parameters())
    loss = nn.functional.cross_entropy(module(data.inputs), data.targets)
    g_local = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
    inside = {k: p for k, p in middle.named_parameters() if k in split.middle}
    error = nn.functional.mse_loss(middle(pairs["in/0"]), pairs["out/0"])
    g_in = dict(zip(inside, torch.autograd.grad(error, list(inside.values())), strict=True))
    a = sum(float((g_local[k] ** 2).sum()) for k in inside)
    b = sum(float((g_local[k] * g_in[k]).sum()) for k in inside)
    for name, value in named.items():
        z = g_local[name]
        if name in inside and step == "sum":
            z = g_in[name] + multiplier / 2 * g_local[name]
        elif name in inside:
            z = g_in[name] if b >= 0 else g_in[name] - b / a * g_local[name]
        torch.testing.assert_close(after[name], value.detach() - 0.1 * z, rtol=1e-4, atol=1e-6)
    assert extractor is not None and len(inside) == 8 and len(named) > 8


def test_a_step_against_the_local_gradient_is_projected_away(lab, nets):
    """Targets up the local loss: G_IN = -c · G_local, so Z = 0. Down it: Z = G_IN."""
    graph, state = nets["four"]
    split = model_parts(graph)
    data = lab.toy(4)
    extractor, middle, classifier = (
        ag.build(p, {k: state[k] for k in p.state_names}).train() for p in split.parts
    )
    entered = extractor(data.inputs).detach()
    left = middle(entered).detach().requires_grad_()
    nn.functional.cross_entropy(classifier(left), data.targets).backward()
    assert left.grad is not None
    program = InTraining(split.after, split.before, step="projection")
    local = LocalOptions(lr=10.0, batch=12)
    for sign, conflicts in ((50.0, 1.0), (-50.0, 0.0)):
        extras = {"in/0": entered, "out/0": left.detach() + sign * left.grad}
        outcome = program(lab.work_of(Task(0, graph, state, program, extras=extras), data, local))
        assert outcome.metrics["conflicts"] == conflicts
        moved = max(float((outcome.state[k] - state[k]).abs().max()) for k in split.middle)
        assert (moved < 1e-5) == (sign > 0)


@pytest.mark.parametrize("step", ["sum", "projection", "sequential"])
def test_a_single_pair_of_features_is_trained_on(lab, nets, step):
    graph, state = nets["four"]
    middle = model_parts(graph).parts[1]
    entered = torch.randn(1, 6, 8, 8, generator=seeded(0, "single"))
    left = ag.build(middle, {k: state[k] for k in middle.state_names})(entered).detach()
    program = InTraining(step=step)
    task = Task(0, graph, state, program, extras={"in/0": entered, "out/0": left + 1.0})
    assert program(lab.work_of(task, lab.toy(1, 4))).metrics["in_loss"] > 0


def test_projection_stays_in_range():
    huge = [torch.tensor([1e200, -2e200], dtype=torch.float64)]
    local = [torch.tensor([0.0, 1e200], dtype=torch.float64)]
    assert projected(huge, local)[0].tolist() == [1e200, 0.0]


def test_a_step_takes_a_minibatch_of_the_features(lab, nets):
    """One of 40 pairs is wrong: a minibatch of 4 meets it as a quarter, or not at all."""
    graph, state = nets["four"]
    split = model_parts(graph)
    middle = ag.build(split.parts[1], {k: state[k] for k in split.parts[1].state_names})
    entered = torch.randn(40, 6, 8, 8, generator=seeded(0, "minibatch"))
    extras = {"in/0": entered, "out/0": middle(entered).detach()}
    extras["out/0"][7] += 1.0
    found = []
    for seed in range(25):
        work = lab.work_of(Task(0, graph, state, InTraining(), extras=extras), lab.toy(1, 4))
        work = dataclasses.replace(
            work, local=LocalOptions(batch=4), generator=seeded(seed, "minibatch")
        )
        found.append(InTraining()(work).metrics["in_loss"])
    assert {round(value, 3) for value in found} == {0.0, 0.25}


def test_sequential_is_local_training_then_in_training(lab, nets, pairs):
    graph, state = nets["four"]
    split = model_parts(graph)
    local = LocalOptions(lr=0.05, batch=3, epochs=2)
    data = lab.toy(3, examples=9)

    def run(step: str, extras: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        program = InTraining(split.after, split.before, step=step)  # type: ignore[arg-type]
        return program(
            lab.work_of(Task(0, graph, state, program, extras=extras), data, local)
        ).state

    alone, both = run("sequential", {}), run("sequential", pairs)
    for name, value in both.items():
        assert torch.equal(value, alone[name]) == (name not in split.middle)
    middle = split.parts[1]

    def error(state: Mapping[str, Tensor]) -> float:
        module = ag.build(middle, {k: state[k] for k in middle.state_names})
        return float(nn.functional.mse_loss(module(pairs["in/0"]), pairs["out/0"]).detach())

    assert error(both) < error(alone)
    assert not all(torch.equal(v, run("sum", pairs)[k]) for k, v in both.items())


def test_a_share_of_the_local_data_is_no_share_of_the_features(lab, nets, pairs, monkeypatch):
    graph, state = nets["four"]
    program = InTraining(step="sequential")
    task = Task(0, graph, state, program, extras=pairs)
    seen: list[object] = []
    step = torch.optim.SGD.step

    def counted(one: torch.optim.SGD) -> None:
        seen.append(one)
        step(one)

    monkeypatch.setattr(torch.optim.SGD, "step", counted)
    steps = {}
    for fraction in (1.0, 0.1):
        before = len(seen)
        program(lab.work_of(task, lab.toy(3, 30), LocalOptions(batch=3, fraction=fraction)))
        steps[fraction] = len(seen) - before
    both = math.ceil(len(pairs["in/0"]) / 3)
    assert steps == {1.0: 10 + both, 0.1: 1 + both}


def test_without_features_it_is_plain_local_training_bit_for_bit(lab, nets):
    """The initial round (Algorithm 1, line 11), dropout and running statistics included."""
    for module in (Plain("a", nn.Sequential(convs(1), nn.Dropout(0.5), convs(1)), "b"), None):
        graph, state = nets["two"] if module is None else traced(module)
        program = InTraining()
        local = LocalOptions(lr=0.05, batch=4, epochs=2, momentum=0.9, clip=0.5)
        outcomes = []
        for one in (program, Train()):
            torch.manual_seed(7)
            work = lab.work_of(Task(0, graph, state, one), lab.toy(5, examples=11), local)
            outcomes.append(one(work))
        torch.testing.assert_close(outcomes[0].state, outcomes[1].state, rtol=0, atol=0)
        assert outcomes[0].metrics == outcomes[1].metrics


def test_in_training_moves_the_running_statistics_between_the_cuts_only(lab, nets, pairs):
    graph, state = nets["two"]
    split = model_parts(graph)
    program = InTraining(split.after, split.before)
    local = LocalOptions(lr=1e-12, batch=12)
    alone, both = (
        program(lab.work_of(Task(0, graph, state, program, extras=extras), lab.toy(1), local)).state
        for extras in (dict[str, Tensor](), pairs)
    )
    counters = [k for k in state if k.endswith("num_batches_tracked")]
    assert {int(alone[k]) for k in counters} == {1}
    assert {k: int(both[k]) for k in counters} == {k: 1 + (k in split.middle) for k in counters}
    assert not torch.equal(both["middle.1.running_mean"], alone["middle.1.running_mean"])
    assert torch.equal(both["stem.1.running_mean"], alone["stem.1.running_mean"])


# ---------------------------------------------------------------- features


def test_the_latest_features_are_uploaded_and_they_are_the_models(lab, nets):
    graph, state = nets["four"]
    split = model_parts(graph)
    data = lab.toy(2, examples=10)
    frozen = LocalOptions(lr=1e-30, batch=4)
    x, y = [], []
    extractor, middle, _ = (
        ag.build(p, {k: state[k] for k in p.state_names}).train() for p in split.parts
    )
    draw = seeded(0, "work", 0)
    with torch.no_grad():
        for batch in data.batches(draw, 4):
            x.append(extractor(batch.inputs[0]))
            y.append(middle(x[-1]))
    for upload in (1, 2, 3, 6, 10, 99, None):
        program = InTraining(split.after, split.before, upload=upload)
        extras = program(lab.work_of(Task(0, graph, state, program), data, frozen)).extras
        count = min(4 if upload is None else upload, 10)
        assert {k: len(v) for k, v in extras.items()} == {"in/0": count, "out/0": count}
        torch.testing.assert_close(extras["in/0"], torch.cat(x)[-count:])
        torch.testing.assert_close(extras["out/0"], torch.cat(y)[-count:])
        assert not any(v.requires_grad for v in extras.values())
    none = InTraining(split.after, split.before, upload=0)
    assert none(lab.work_of(Task(0, graph, state, none), data, frozen)).extras == {}


@settings(max_examples=60)
@given(
    capacity=st.integers(1, 7),
    arrivals=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    seed=st.integers(0, 10**6),
)
def test_the_store_never_exceeds_its_capacity_and_rows_stay_together(capacity, arrivals, seed):
    held: dict[str, Tensor] = {}
    seen = 0
    for round, count in enumerate(arrivals):
        ids = torch.arange(seen, seen + count)
        before = {k: v.clone() for k, v in held.items()}
        new = {"in/0": ids.float().view(-1, 1), "out/0": ids * 2}
        result = reservoir(held, new, seen, capacity, seeded(seed, round))
        assert all(torch.equal(held[k], v) for k, v in before.items())  # a new value
        held, seen = result, seen + count
        found = held["in/0"].flatten().tolist()
        assert len(found) == min(seen, capacity) == len(set(found))
        assert [int(v) // 2 for v in held["out/0"]] == found
        assert set(found) <= set(range(seen))
        if seen <= capacity:
            assert found == list(range(seen))


def test_every_pair_that_ever_came_is_as_likely_to_be_held():
    capacity, rounds, count, tries = 5, 6, 4, 1500
    hits = torch.zeros(rounds * count)
    for t in range(tries):
        held: dict[str, Tensor] = {}
        for round in range(rounds):
            new = {"x": torch.arange(round * count, (round + 1) * count)}
            held = reservoir(held, new, round * count, capacity, seeded(t, round))
        hits[held["x"]] += 1
    share = capacity / (rounds * count)
    # Five standard deviations of a share.
    assert float((hits / tries - share).abs().max()) < 5 * (share * (1 - share) / tries) ** 0.5


# ---------------------------------------------------------------- the server


def answer(task: Task, scale: float, rows: int = 3) -> Result:
    """A client that returns c everywhere and features of c."""
    program = task.program
    assert isinstance(program, InTraining)
    split = model_parts(task.graph, program.after, program.before)
    state = {
        k: torch.full(split.graph.param[k].shape, scale).to(
            getattr(torch, split.graph.param[k].dtype)
        )
        for k in task.graph.state_names
        if k not in task.private
    }
    extras = {
        k: torch.full((rows, *shape), scale, dtype=dtype)
        for k, (shape, dtype) in split.features.items()
    }
    return Result(task.client, state, 10 * (task.client + 1), extras=extras)


def play(
    strategy: FedIN, world: World, rounds: int, order: Sequence[int] | None = None
) -> tuple[ServerState, list[dict[int, Task]]]:
    state, tasks = strategy.init(world), []
    sampled = list(order if order is not None else range(len(world.clients)))
    for round in range(1, rounds + 1):
        state = strategy.begin(world, state, round, sampled)
        sent = {c: strategy.send(world, state, c, round) for c in sampled}
        results = [answer(sent[c], float(c + 1)) for c in sampled]
        state = strategy.receive(world, state, iter(results), round)
        tasks.append(sent)
    return state, tasks


def test_the_ends_are_averaged_uniformly_under_every_name(nets):
    world = world_of(nets, ["two", "four", "other", "four"])
    after, _ = play(FedIN(), world, 1)
    shared = after.group("shared")
    assert set(shared) == {
        *(f"stem.0.{k}" for k in ("weight", "bias")),
        *(f"stem.1.{k}" for k in ("weight", "bias", "running_mean", "running_var")),
        "stem.1.num_batches_tracked",
        "fc.weight",
        "fc.bias",
    }
    for name, value in shared.items():
        expected = 4 if "tracked" in name else 2.5  # counters take the largest
        assert torch.equal(value, torch.full_like(value, expected)), name
    weighed, _ = play(FedIN(weights="examples"), world, 1)
    assert float(weighed.group("shared")["fc.bias"][0]) == (1 + 4 + 9 + 16) / 10


def test_the_first_round_is_fedavg_of_the_ends_from_one_start(nets):
    world = world_of(nets, ["four", "two"])
    strategy = FedIN()
    state = strategy.init(world)
    first = nets["two"][1]
    assert all(torch.equal(v, first[k]) for k, v in state.group("shared").items())
    begun = strategy.begin(world, state, 1, [0, 1])
    assert begun is state  # nothing to sample from
    for client, name in enumerate(["four", "two"]):
        task = strategy.send(world, begun, client, 1)
        assert set(task.state) == set(nets[name][0].state_names) and not task.extras
        for key, value in task.state.items():
            if key in own_of(task):
                assert torch.equal(value, nets[name][1][key])
        mapped = dict(
            zip(model_parts(nets["two"][0]).ends, model_parts(task.graph).ends, strict=True)
        )
        assert all(torch.equal(task.state[own], first[k]) for k, own in mapped.items())


def test_intermediate_layers_never_leave_and_are_sent_only_once(nets):
    world = world_of(nets, ["two", "four"])
    _, (first, second) = play(FedIN(), world, 2)
    for client in (0, 1):
        own = own_of(first[client])
        assert first[client].private == own == second[client].private and own
        assert own <= set(first[client].state)
        assert not own & set(second[client].state)
        assert set(second[client].state) == set(model_parts(first[client].graph).ends)


def test_s_is_drawn_anew_from_all_clients_and_is_the_same_for_all(nets):
    world = world_of(nets, ["two", "four", "other"])
    strategy = FedIN(sample=5, capacity=4)
    state, (_, second, third) = play(strategy, world, 3)
    for tasks in (second, third):
        rows = tasks[0].extras
        assert {len(v) for v in rows.values()} == {5}
        for task in tasks.values():
            assert all(task.extras[k] is v for k, v in rows.items())
        assert torch.equal(rows["in/0"][:, 0, 0, 0], rows["out/0"][:, 0, 0, 0])  # pairs
    drawn = set()
    for round in range(20):
        begun = strategy.begin(world, state, round, [0])
        drawn.add(tuple(begun.group("sample")["in/0"][:, 0, 0, 0].tolist()))
        owners = begun.group("sample")["in/0"][:, 0, 0, 0]
        assert all(owners.eq(c).sum() <= 4 for c in (1, 2, 3))
    assert len(drawn) > 5 and {c for row in drawn for c in row} == {1.0, 2.0, 3.0}
    assert not state.group("sample")  # not part of what stays
    everything = FedIN(sample=999, capacity=4).begin(world, state, 1, [0]).group("sample")
    assert {len(v) for v in everything.values()} == {12}


def test_unequal_stores_are_drawn_from_row_by_row(nets):
    world, strategy = world_of(nets, ["two", "four", "other"]), FedIN(capacity=6, sample=999)
    state = strategy.init(world)
    results, number = [], 0
    for client, rows in enumerate((2, 5, 3)):
        result = answer(strategy.send(world, state, client, 1), 1.0, rows)
        mark = torch.arange(number, number + rows).float().view(-1, 1, 1, 1)
        extras = {k: torch.ones_like(v) * mark for k, v in result.extras.items()}
        results.append(dataclasses.replace(result, extras=extras))
        number += rows
    state = strategy.receive(world, state, iter(results), 1)
    sample = strategy.begin(world, state, 2, [0]).group("sample")
    for value in sample.values():
        assert value[:, 0, 0, 0].tolist() == list(range(10))
    some = dataclasses.replace(strategy, sample=4).begin(world, state, 2, [0]).group("sample")
    drawn = some["in/0"][:, 0, 0, 0]
    assert len(drawn.unique()) == 4 and torch.equal(drawn, some["out/0"][:, 0, 0, 0])


def test_the_latest_pairs_push_out_the_first(nets):
    """Three rounds of four pairs each, of which six are held: those numbered 6 to 11."""
    world, strategy = world_of(nets, ["two"]), FedIN(capacity=6, sample=999, store="latest")
    state = strategy.init(world)
    for round in (1, 2, 3):
        result = answer(strategy.send(world, state, 0, round), 1.0, 4)
        mark = torch.arange(4.0 * (round - 1), 4.0 * round).view(-1, 1, 1, 1)
        extras = {k: torch.ones_like(v) * mark for k, v in result.extras.items()}
        results = iter([dataclasses.replace(result, extras=extras)])
        state = strategy.receive(world, state, results, round)
    for value in strategy.begin(world, state, 4, [0]).group("sample").values():
        assert value[:, 0, 0, 0].tolist() == [6.0, 7.0, 8.0, 9.0, 10.0, 11.0]


def test_the_order_of_clients_does_not_matter(nets):
    world = world_of(nets, ["two", "four", "other"])
    runs = [play(FedIN(capacity=4), world, 3, order=o)[0] for o in ((0, 1, 2), (2, 0, 1))]
    assert runs[0].values == runs[1].values
    torch.testing.assert_close(runs[1].tensors, runs[0].tensors, rtol=1e-6, atol=1e-6)


def test_results_are_taken_one_at_a_time(nets):
    """What a result held may be overwritten when the next one is asked for."""
    world, strategy = world_of(nets, ["two", "four", "two"]), FedIN()
    state = strategy.init(world)

    def stream():
        for client in range(3):
            result = answer(strategy.send(world, state, client, 1), 1.0)
            yield result
            for value in (*result.state.values(), *result.extras.values()):
                if value.is_floating_point():
                    value.fill_(float("nan"))

    after = strategy.receive(world, state, stream(), 1)
    assert any(k.startswith("store/2/") for k in after.tensors)
    assert all(v.isfinite().all() for v in after.tensors.values())


@pytest.mark.parametrize("fault", ["missing", "shape", "dtype", "rows", "none"])
def test_features_that_were_not_requested_are_refused(nets, fault):
    world, strategy = world_of(nets, ["two", "four"]), FedIN()
    state = strategy.init(world)
    result = answer(strategy.send(world, state, 1, 1), 1.0)
    extras = dict(result.extras)
    match fault:
        case "missing":
            del extras["out/0"]
        case "shape":
            extras["out/0"] = extras["out/0"][:, :2]
        case "dtype":
            extras["out/0"] = extras["out/0"].double()
        case "rows":
            extras["out/0"] = extras["out/0"][:1]
        case "none":
            extras = {k: v[:0] for k, v in extras.items()}
    bad = dataclasses.replace(result, extras=extras)
    with pytest.raises(
        ag.RejectedUpdate, match=r"client 1: (in|out)/0: features do not fit the cut"
    ):
        strategy.examine(world, bad)
    strategy.examine(world, result)


def test_local_statistics_of_the_ends_stay_with_the_client(nets):
    world, strategy = world_of(nets, ["two", "four"]), FedIN(norm="local")
    state = strategy.init(world)
    assert not [k for k in state.group("shared") if "running" in k or "tracked" in k]
    task = strategy.send(world, state, 1, 1)
    held = {k for k in task.graph.state_names if "running" in k or "tracked" in k}
    assert task.private == own_of(task) | held and held


# ---------------------------------------------------------------- ablations


def test_ablations_differ_as_they_should(nets):
    world = world_of(nets, ["two", "four"])
    for options, extras, shared in (
        ({}, True, True),
        ({"step": "sequential"}, True, True),
        ({"in_training": False}, False, True),
        ({"aggregate": False}, True, False),
    ):
        strategy = configure("fedin", options)
        assert isinstance(strategy, FedIN)
        state, (_, second) = play(strategy, world, 2)
        assert bool(second[0].extras) == extras
        assert bool(state.group("shared")) == shared
        assert bool(state.group("store/0")) == extras
        assert (second[0].private == frozenset(nets["two"][0].state_names)) == (not shared)
        assert bool(second[0].state) == shared
        program = second[0].program
        assert isinstance(program, InTraining)
        assert program.step == options.get("step", "sum")
        assert program.upload == (None if extras else 0)
        assert pickle.loads(pickle.dumps(program)) == program


def test_each_client_is_tested_with_its_own_intermediate_layers(nets):
    world = world_of(nets, ["two", "two"], rounds=2)
    setup = experiment(world, FedIN())
    loop = Loop(setup)
    loop.start(setup.strategy.init(world))
    loop.round()
    line = loop.round()
    (model,) = (m for m in setup.strategy.evaluated(world, loop.server) if m.clients)
    assert isinstance(model, Evaluated) and model.private and model.clients == (0, 1)
    split = setup.data.test
    losses, accuracies = [], []
    for client in model.clients:
        mine = loop.private[client].over(model.state)
        logits = ag.build(model.graph, mine).eval()(split.inputs).detach()
        losses.append(float(nn.functional.cross_entropy(logits, split.targets)))
        accuracies.append(float((logits.argmax(1) == split.targets).float().mean()))
    assert losses[0] != losses[1]
    found = line["evaluation"]["models"]["two"]
    assert found["loss"] == pytest.approx(sum(losses) / 2)
    assert found["accuracy"] == pytest.approx(sum(accuracies) / 2)


def test_a_client_that_joins_late_gets_intermediate_layers_and_features(nets):
    world, strategy = world_of(nets, ["two", "four"]), FedIN()
    state, _ = play(strategy, world, 2, order=[0])
    begun = strategy.begin(world, state, 3, [1])
    task = strategy.send(world, begun, 1, 3)
    assert set(task.state) == set(task.graph.state_names) and task.extras


# ---------------------------------------------------------------- cuts


def test_default_cuts_are_the_first_section_and_the_last_block_with_parameters(nets):
    split = model_parts(nets["four"][0])
    assert (split.after, split.before) == ("stem", "classifier")
    assert split.features == {
        "in/0": ((6, 8, 8), torch.float32),
        "out/0": ((6, 8, 8), torch.float32),  # pooling belongs to the classifier
    }
    assert split.middle == {f"middle.{i}.{k}" for i in (0, 2, 4, 6) for k in ("weight", "bias")}


def test_cuts_can_be_named_for_all_tiers_or_by_tier(nets):
    world = world_of({"two": nets["two"], "four": nets["four"]}, ["two", "four"])
    strategy = configure(
        "fedin",
        {"after": {"two": "stem", "four": "entry"}, "before": {"four": "classifier"}},
    )
    assert strategy.init(world).group("shared").keys() == FedIN().init(world).group("shared").keys()
    same = world_of({"two": nets["two"]}, ["two"])
    wide = FedIN(after="middle.0").init(same).group("shared")
    assert wide.keys() == FedIN().init(same).group("shared").keys() | {
        k for k in nets["two"][0].state_names if k.startswith(("middle.0", "middle.1."))
    }


class Wide(nn.Module):
    """Another extractor (kernel), or another classifier (bias)."""

    def __init__(self, kernel: int = 3, bias: bool = True, pool: bool = False) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 6, kernel, padding=kernel // 2), nn.BatchNorm2d(6))
        self.middle = nn.Sequential(*[nn.MaxPool2d(2)] * pool, *convs(2))
        self.fc = nn.Linear(6, CLASSES, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.middle(self.stem(x).relu()).mean((2, 3)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"kernel": 5},
            r"tier odd: the extractor differs from that of tier two; found .*\(2, 2\).*expected",
        ),
        ({"bias": False}, r"tier odd: the classifier differs from that of tier two; .*bias=#1"),
        ({"pool": True}, r"tier odd: the classifier differs .*4, 4.*8, 8"),
    ],
)
def test_other_ends_are_refused_by_tier_and_first_difference(nets, options, message):
    odd = traced(Wide(**options))
    with pytest.raises(ag.RunError, match=message):
        FedIN().init(world_of({"two": nets["two"], "odd": odd}, ["two", "odd"]))


class Flat(nn.Module):
    """Convolutions in a row, without modules that group them."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        for i in range(depth):
            setattr(self, f"conv{i}", nn.Conv2d(6 if i else 1, 6, 3, padding=1))
        self.depth = depth
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for i in range(self.depth):
            x = getattr(self, f"conv{i}")(x).relu()
        return self.fc(x.mean((2, 3)))


def test_a_single_section_is_cut_behind_its_first_block():
    nets = {str(d): traced(Flat(d)) for d in (2, 4)}
    for depth, (graph, _) in nets.items():
        assert len(ag.structure(graph).sections) == 2
        assert model_parts(graph, "conv0", "fc").parts == model_parts(graph).parts
        assert model_parts(graph).ends == ("conv0.weight", "conv0.bias", "fc.weight", "fc.bias")
        assert len(model_parts(graph).middle) == 2 * (int(depth) - 1)
    assert FedIN().init(world_of(nets, ["2", "4"])).group("shared")


def test_what_the_classifier_takes_beside_features_is_not_one():
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.middle = nn.Linear(3, 6), nn.Linear(6, 6)
            self.fc = nn.Linear(6, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.middle(self.stem(x).relu()).relu()) * x.mean(1, keepdim=True)

    split = model_parts(ag.trace(Gated(), torch.zeros(2, 3)).graph, "stem", "fc")
    assert [name for name, _ in split.parts[2].inputs] == ["relu_1", "x"]
    assert list(split.features) == ["in/0", "out/0"]


def test_intermediate_layers_that_look_past_the_extractor_are_refused():
    class Text(nn.Module):
        def __init__(self, peek: bool) -> None:
            super().__init__()
            self.embed = nn.Embedding(CLASSES, 6)
            self.mix = nn.Linear(6, 6)
            self.head = nn.Linear(6, CLASSES)
            self.peek = peek

        def forward(self, tokens: Tensor) -> Tensor:
            y = self.mix(self.embed(tokens)).tanh()
            if self.peek:
                y = y * tokens.unsqueeze(-1).float()
            return self.head(y.sum(1))

    tiers = {}
    for name, peek in (("blind", False), ("peeks", True)):
        made = ag.trace(Text(peek), torch.zeros(2, 4, dtype=torch.long))
        tiers[name] = made.graph, dict(made.state)
    with pytest.raises(ag.RunError, match=r"intermediate layers have other inputs .*in/1"):
        FedIN(after="embed", before="head").init(world_of(tiers, ["blind", "peeks"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"after": "stem", "before": "middle.0"},
            "tier two: no layers between the cuts after stem and before",
        ),
        ({"after": "stm"}, "tier two.*no such section or block.*stm.*stem"),
        ({"after": {"tow": "stem"}}, "unknown tier; found 'tow'"),
        ({"after": "fc"}, "tier two"),
    ],
)
def test_cuts_that_cannot_be_are_refused_by_tier(nets, options, message):
    strategy = configure("fedin", options)
    with pytest.raises(ag.RunError, match=message):
        strategy.init(world_of({"two": nets["two"]}, ["two"]))


def test_nothing_to_train_between_the_cuts_is_refused():
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.middle = nn.Conv1d(1, 1, 1)
            for p in self.middle.parameters():
                p.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x).relu()
            return self.b(self.middle(y.unsqueeze(1)).squeeze(1))

    graph = ag.trace(Bare(), torch.randn(2, 4)).graph
    with pytest.raises(ag.RewriteError, match="nothing between the cuts can be trained"):
        model_parts(graph, "a", "b")


@pytest.mark.parametrize("value", [{"capacity": 0}, {"upload": 0}, {"sample": 1}])
def test_ranges_of_options(value):
    (name,) = value
    with pytest.raises(ag.SpecError, match=rf"strategy\.fedin\.{name}: out of range"):
        configure("fedin", value)
    with pytest.raises(ag.SpecError, match="multiplier: out of range"):
        FedIN(multiplier=-1.0)


class Tied(nn.Module):
    """Extractor and classifier use one weight."""

    def __init__(self, depth: int, tie: bool = True) -> None:
        super().__init__()
        self.encode = nn.Linear(64, 64, bias=False)
        self.middle = nn.ModuleList(nn.Linear(64, 64) for _ in range(depth))
        self.decode = nn.Linear(64, 64, bias=False)
        if tie:
            self.decode.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        first = self.encode(x.flatten(1)).relu()
        y = first
        for layer in self.middle:
            y = layer(y).relu()
        return self.decode(y + first)[:, :CLASSES]


def test_a_weight_that_both_ends_use_stays_one_weight(lab):
    nets = {str(d): traced(Tied(d)) for d in (1, 2)}
    graph, state = nets["2"]
    split = model_parts(graph, "encode", "decode")
    assert split.ends == ("encode.weight",) and len(split.middle) == 4
    program = InTraining("encode", "decode")
    data, local = lab.toy(1), LocalOptions(lr=0.05, batch=4)
    mine = program(lab.work_of(Task(0, graph, state, program), data, local)).state
    theirs = Train()(lab.work_of(Task(0, graph, state, Train()), data, local)).state
    assert all(torch.equal(mine[k], v) for k, v in theirs.items())
    strategy = FedIN(after="encode", before="decode")
    assert strategy.init(world_of(nets, ["1", "2"])).group("shared").keys() == {"encode.weight"}
    untied = {**nets, "untied": traced(Tied(1, tie=False))}
    with pytest.raises(
        ag.RunError, match="tier untied: extractor and classifier do not share the same"
    ):
        strategy.init(world_of(untied, ["1"]))
    run = execute(experiment(world_of(nets, ["1", "2"], rounds=2), strategy), progress=False)
    assert not any(line["failed"] for line in run.rounds)
    assert all(c["in_loss"] > 0 for c in run.rounds[1]["clients"])


class Masked(nn.Module):
    """Text: what is padding is known to every layer, so it crosses both cuts."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, 6)
        self.mix = nn.ModuleList(nn.Linear(6, 6) for _ in range(depth))
        self.head = nn.Linear(6, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        real = (tokens != 0).unsqueeze(-1).float()
        y = self.embed(tokens) * real
        for layer in self.mix:
            y = y + layer(y).tanh() * real
        return self.head((y * real).sum(1))


def test_all_that_crosses_the_cuts_is_exchanged(lab):
    graphs = {}
    for depth in (1, 3):
        torch.manual_seed(depth)
        made = ag.trace(Masked(depth), torch.zeros(2, 4, dtype=torch.long))
        graphs[str(depth)] = made.graph, dict(made.state)
    world = world_of(graphs, ["1", "3"])
    strategy = FedIN()
    state = strategy.init(world)
    task = strategy.send(world, state, 1, 1)
    split = model_parts(task.graph)
    shapes = [shape for shape, _ in split.features.values()]
    assert list(split.features) == ["in/0", "in/1", "out/0"]
    assert sorted(shapes) == [(4, 1), (4, 6), (4, 6)]
    tokens = torch.randint(CLASSES, (8, 4), generator=seeded(0, "tokens"))
    data = type(lab.toy(0))(tokens, tokens[:, 0])
    outcome = task.program(lab.work_of(task, data, LocalOptions(lr=0.1, batch=4)))
    assert {k: len(v) for k, v in outcome.extras.items()} == dict.fromkeys(split.features, 4)
    result = dataclasses.replace(task.result(outcome, 8), client=1)
    state = strategy.receive(world, state, iter([result]), 1)
    again = strategy.send(world, strategy.begin(world, state, 2, [0]), 0, 2)
    metrics = again.program(lab.work_of(again, data, LocalOptions(lr=0.1, batch=4))).metrics
    assert metrics["in_loss"] > 0


def test_a_family_with_a_global_model_works_as_well(lab):
    """Depths of one model; the extractor starts as in the global state."""
    tiers = {
        "deep": ag.Rewritten.identity(lab.graph),
        "flat": ag.shorten(lab.graph, {"layer1": 1, "layer2": 2}),
    }
    world = lab.make_world(lab.graph, lab.state, tiers, ["flat", "deep"])
    world = dataclasses.replace(
        world, tiers=tuple(dataclasses.replace(t, source=lab.state) for t in world.tiers)
    )
    strategy = FedIN()
    state, tasks = play(strategy, world, 1)
    assert set(state.group("shared")) == {"stem.weight", "stem.bias", "fc.weight", "fc.bias"}
    for name, value in tasks[0][0].state.items():
        assert torch.equal(value, tiers["flat"].transfer.pull(lab.state)[name])
    assert [m.clients for m in strategy.evaluated(world, state)] == [(1,), (0,)]


@settings(max_examples=30)
@given(count=st.integers(1, 40), size=st.integers(1, 12))
def test_a_pass_over_pairs_sees_each_once_in_even_pieces(count, size):
    ids = [b.ids for b in Pairs(count).batches(seeded(0, "pass"), size)]
    assert sorted(itertools.chain(*(i.tolist() for i in ids))) == list(range(count))
    lengths = {len(i) for i in ids}
    assert max(lengths) - min(lengths) <= 1
    assert count < size or min(lengths) >= min(size, count)
