"""Methods for low-rank adapters: laws of their means, weights and bytes worked out by hand."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import archgraph as ag
from archgraph import federation as fl
from archgraph.federation import LocalOptions, Outcome, freeze, low_rank
from archgraph.record.client import ClientState
from archgraph.record.traffic import back, sent
from archgraph.strategies.fedit import FedIT
from archgraph.strategies.ffa_lora import FFALoRA
from archgraph.strategies.flexlora import FlexLoRA
from archgraph.strategies.flora import FLoRA
from archgraph.strategies.hetlora import HetLoRA, Tail
from archgraph.strategies.rank_mean import RankMean
from archgraph.strategies.rolora import RoLoRA
from tests.examples import at_most

ALL = (FedIT, RankMean, HetLoRA, FLoRA, FlexLoRA, FFALoRA, RoLoRA)
SCALINGS = ("alpha_over_r", "rsqrt")


class Mixed(nn.Module):
    """A linear layer, a convolution, and a linear layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.twice = nn.Linear(4, 4)
        self.fc = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x).relu().mean((2, 3))
        return self.fc(self.twice(self.twice(y).relu()).relu())


@pytest.fixture(scope="module")
def build(lab):
    """A world of clients of ranks 2 and 4 in double precision, whose bases are frozen."""

    @functools.cache
    def traced(dtype):
        torch.manual_seed(0)
        return ag.trace(Mixed().to(dtype), torch.zeros(2, 1, 8, 8, dtype=dtype))

    def world(
        *clients,
        alpha=6.0,
        scaling="alpha_over_r",
        low_alpha=None,
        dtype=torch.float64,
        **options,
    ):
        graph, state = traced(dtype)
        adapted = ag.add_lora(graph, 4, alpha=alpha, scaling=scaling)
        full = ag.train_only(adapted.graph, "*.lora.*").graph
        low = ag.rank(full, 2)
        if low_alpha is not None:
            low = ag.rank(full, 2, alpha=low_alpha, scaling=scaling)
        tiers = {"low": low, "full": ag.Rewritten.identity(full)}
        used = {name: tiers[name] for name in tiers if name in clients}
        return lab.make_world(full, adapted.transfer.pull(state), used, clients, **options)

    return world


def trained(task: fl.Task, seed: int) -> dict[str, torch.Tensor]:
    """What the client has after training: other numbers where its program may change them."""
    draw = fl.seeded(seed, "trained", task.client)
    still = ag.frozen(task.graph)
    return {
        name: value + torch.randn(value.shape, generator=draw, dtype=value.dtype)
        if ".lora." in name and name not in still
        else value
        for name, value in task.state.items()
    }


def one(strategy, world, seed=0, *, state=None, round=1, clients=None):
    """The server's state after a round, and what clients returned."""
    state = strategy.init(world) if state is None else state
    tasks = [
        strategy.send(world, state, c, round)
        for c in (range(len(world.clients)) if clients is None else clients)
    ]
    results = [
        task.result(Outcome(trained(task, seed)), world.clients[task.client].examples)
        for task in tasks
    ]
    return strategy.receive(world, state, iter(results), round), results, tasks


def change(world, state, adapter, *, tier=None):
    """``s B A`` of an adapter."""
    graph = world.graph if tier is None else world.tier(tier).graph
    (scale,) = [a.scale for a in low_rank(graph) if a.up == adapter.up]
    return scale * adapter.product(state)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    assert float((a - b).norm()) <= 1e-12 * max(1.0, float(b.norm()))


@pytest.mark.sample(2)
@at_most(2)
@given(
    seed=st.integers(0, 2**31),
    examples=st.lists(st.integers(1, 500), min_size=3, max_size=3),
    alpha=st.floats(0.5, 40),
    low_alpha=st.floats(0.5, 40),
)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_flora_is_exact_with_unequal_weights_ranks_and_alphas(
    build, scaling, seed, examples, alpha, low_alpha
):
    world = build(
        "low", "full", "low", alpha=alpha, low_alpha=low_alpha, scaling=scaling, examples=examples
    )
    after, results, _ = one(FLoRA(), world, seed)
    for a in low_rank(world.graph):
        expected = sum(
            r.examples / sum(examples) * change(world, r.state, a, tier=r.tier) for r in results
        )
        moved = after.group("global")[a.weight] - world.state[a.weight]
        close(moved.flatten(1), expected)
        stack = after.group("stack 1")
        assert stack[a.up].shape[1] == stack[a.down].shape[0] == 2 + 4 + 2
        assert not after.group("global")[a.up].any()  # new adapters begin at zero


def test_a_client_that_missed_rounds_has_the_base_weights_of_the_server_bit_for_bit(build, lab):
    world = build("low", "full", "low")
    strategy, kept = FLoRA(), dict[int, dict[str, torch.Tensor]]()
    state = strategy.init(world)
    base = {a.weight for a in low_rank(world.graph)}
    local = LocalOptions(batch=4, lr=0.05)
    for round, clients in enumerate(([0, 1, 2], [1], [1], [0, 1], [2], [0, 1, 2]), 1):
        results = []
        for client in clients:
            task = strategy.send(world, state, client, round)
            full = {**task.state, **kept.get(client, {})}
            work = lab.work_of(dataclasses.replace(task, state=full), lab.toy(client), local)
            data = dataclasses.replace(work.data, inputs=work.data.inputs.double())
            outcome = task.program(dataclasses.replace(work, data=data, round=round))
            for name in base:
                assert torch.equal(outcome.state[name], state.group("global")[name])
            kept[client] = {name: outcome.state[name] for name in base}
            results.append(task.result(outcome, 10))
        state = strategy.receive(world, state, results, round)
    # Stacks that every client has are gone.
    assert not state.group("stack 5") and state.group("stack 6")


def test_bytes_of_flora_are_those_of_the_stacks_of_the_rounds_that_were_missed(build):
    world = build("low", "full")
    adapters, strategy = low_rank(world.graph), FLoRA()
    per_rank = 8 * sum(
        world.state[a.down][:1].numel() + world.state[a.up][:, :1].numel() for a in adapters
    )
    assert per_rank == 8 * ((9 + 4) + (4 + 4) + (4 + 5))
    everything = 8 * sum(v.numel() for k, v in world.state.items() if ".lora." not in k)
    state, results, tasks = one(strategy, world)
    assert [sent(t, ClientState()) for t in tasks] == [
        everything + 2 * per_rank,
        everything + 4 * per_rank,
    ]
    assert [back(r) for r in results] == [2 * per_rank, 4 * per_rank]
    for round in (2, 3):
        state, _, (task,) = one(strategy, world, state=state, round=round, clients=[1])
        held = ClientState({a.weight: world.state[a.weight] for a in adapters})
        assert sent(task, held) == (4 + (6 if round == 2 else 4)) * per_rank
    late = strategy.send(world, state, 0, 4)
    assert sent(late, held) == (2 + 6 + 4 + 4) * per_rank


def test_bytes_of_the_others(build):
    """What is frozen travels once and never back; a factor that rests does not come back."""
    world = build("full")
    down = 8 * sum(world.state[a.down].numel() for a in low_rank(world.graph))
    up = 8 * sum(world.state[a.up].numel() for a in low_rank(world.graph))
    base = 8 * sum(v.numel() for k, v in world.state.items() if ".lora." not in k)
    expected = {FedIT: (down + up, down + up), FFALoRA: (up, up), RoLoRA: (down + up, up)}
    for method, (later, returned) in expected.items():
        state, (result,), (task,) = one(method(), world)
        assert sent(task, ClientState()) == base + down + up
        assert back(result) == returned
        assert sent(method().send(world, state, 0, 2), ClientState()) == later


@at_most(2)
@given(seed=st.integers(0, 2**31), examples=st.tuples(st.integers(1, 90), st.integers(1, 90)))
@pytest.mark.parametrize("method", [FFALoRA, RoLoRA])
def test_the_mean_of_products_is_the_product_of_means(build, method, seed, examples):
    world = build("full", "full", examples=examples)
    state = method().init(world)
    for round in (1, 2, 3):
        before = state.group("global")
        state, results, _ = one(method(), world, seed + round, state=state, round=round)
        after = state.group("global")
        for a in low_rank(world.graph):
            products = [a.product({**before, **r.state}) * r.examples for r in results]
            close(a.product(after), sum(products) / sum(examples))
            rests = a.down if method is FFALoRA or round % 2 else a.up
            assert torch.equal(after[rests], before[rests])


@at_most(2)
@given(seed=st.integers(0, 2**31), clients=st.integers(1, 4))
def test_with_equal_ranks_the_covered_mean_is_fedit_bit_for_bit(build, seed, clients):
    world = build(*["full"] * clients)
    fedit, mean = (one(m(), world, seed)[0].group("global") for m in (FedIT, RankMean))
    assert all(torch.equal(fedit[name], mean[name]) for name in world.state)


def test_the_covered_mean_by_hand(build):
    world = build("low", "full", examples=[1, 3])
    after, (low, full), _ = one(RankMean(), world)
    for a in low_rank(world.graph):
        new, x, y = after.group("global"), low.state, full.state
        close(new[a.down][:2], (x[a.down] + 3 * y[a.down][:2]) / 4)
        close(new[a.up][:, :2], (x[a.up] + 3 * y[a.up][:, :2]) / 4)
        close(new[a.down][2:], y[a.down][2:])


def test_hetlora_weights_by_hand(build):
    """Padded with zeros and divided by all weights, not by those of the clients that have it."""
    world = build("low", "full", examples=[1, 300])
    after, (low, full), _ = one(HetLoRA(), world)
    for a in low_rank(world.graph):
        p, q = (
            float((a.matrices(s)[0] @ a.matrices(s)[1]).norm()) for s in (low.state, full.state)
        )
        for name, dim in ((a.down, 0), (a.up, 1)):
            padded = torch.zeros_like(full.state[name])
            padded.narrow(dim, 0, 2).copy_(low.state[name])
            new = after.group("global")[name]
            close(new, (p * padded + q * full.state[name]) / (p + q))
            tail = full.state[name].narrow(dim, 2, 2)
            close(new.narrow(dim, 2, 2), q / (p + q) * tail)


def test_hetlora_prunes_a_client_whose_last_positions_became_smaller(build, lab):
    world, strategy = build("low", "full"), HetLoRA(prune=0.5, penalty=0.1)
    state, _, _ = one(strategy, world)
    assert state.values["ranks"] == {}  # they grew from zero
    tasks = [strategy.send(world, state, client, 2) for client in (0, 1)]
    smaller = {k: v / 2 if ".lora." in k else v for k, v in tasks[1].state.items()}
    larger = {k: v * 2 if ".lora." in k else v for k, v in tasks[0].state.items()}
    results = [tasks[0].result(Outcome(larger), 1), tasks[1].result(Outcome(smaller), 1)]
    state = strategy.receive(world, state, results, 2)
    assert state.values["ranks"] == {"1": 2}
    low, full = (strategy.send(world, state, client, 3) for client in (0, 1))
    for a in low_rank(world.graph):
        assert len(low.state[a.down]) == len(full.state[a.down]) == 2
    assert HetLoRA().send(world, HetLoRA().init(world), 1, 1).program == fl.Train(fl.TaskLoss())
    # The penalty: of ranks 3 and 4 of each adapter the product of the norms.
    weights = tasks[1].state
    norms = [
        float(weights[a.down][2:].norm() * weights[a.up][:, 2:].norm())
        for a in low_rank(world.graph)
    ]
    assert float(Tail(low_rank(world.graph), 0.5, 0.1)(weights)) == pytest.approx(0.1 * sum(norms))
    ag.check(full.graph)


@at_most(2)
@given(seed=st.integers(0, 2**31), examples=st.tuples(st.integers(1, 90), st.integers(1, 90)))
def test_the_error_of_flexlora_is_that_of_the_singular_values_it_leaves_out(build, seed, examples):
    world = build("low", "full", examples=examples)
    after, results, _ = one(FlexLoRA(), world, seed)
    for a in low_rank(world.graph):
        mean = sum(a.product(r.state) * r.examples for r in results) / sum(examples)
        values = torch.linalg.svdvals(mean)
        new = after.group("global")
        error = float((a.product(new) - mean).norm())
        assert error == pytest.approx(float(values[4:].norm()), abs=1e-10)
        up, down = a.matrices(new)
        close(up.T @ up, down @ down.T)  # both have the root of the singular values
        close((up.T @ up).diagonal(), values[:4])


def test_directions_of_no_size_get_a_new_first_factor(build):
    world = build("low")  # rank 2 of 4
    after, _, _ = one(FlexLoRA(), world)
    other, _, _ = one(FlexLoRA(), dataclasses.replace(world, seed=1))
    for a in low_rank(world.graph):
        up, down = a.matrices(after.group("global"))
        assert not up[:, 2:].any() and (down[2:] != 0).all()
        assert not torch.equal(down[2:], a.matrices(other.group("global"))[1][2:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_direction_that_is_rounding_gets_a_new_first_factor(build, dtype):
    """In 32 bits it had both factors almost at zero, and was not trained any more."""
    world, strategy = build("full", dtype=dtype), FlexLoRA()
    state = strategy.init(world)
    task = strategy.send(world, state, 0, 1)
    update = trained(task, 0)
    for a in low_rank(world.graph):
        up = update[a.up]
        up[:, 3] = 0.3 * up[:, 0] + 0.7 * up[:, 1]
    after = strategy.receive(world, state, iter([task.result(Outcome(update), 1)]), 1)
    for a in low_rank(world.graph):
        up, down = a.matrices(after.group("global"))
        assert not up[:, 3].any() and float(down[3].abs().max()) > 0.1
        error = float((up @ down - a.product(update)).norm() / a.product(update).norm())
        assert error < (1e-6 if dtype == torch.float32 else 1e-12)


@pytest.mark.sample(4)
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("method", ALL)
def test_one_adapter_at_weight_one_is_itself(build, lab, method, scaling):
    world = build("full", alpha=10.0, scaling=scaling)
    after, (result,), (task,) = one(method(), world, 3)
    client = {**task.state, **result.state}
    x = torch.randn(3, 1, 8, 8, generator=fl.seeded(0, "x"), dtype=torch.float64)
    # Not only by its weights: what the network computes is the same.
    theirs = ag.build(world.graph, client).eval()(x)
    ours = ag.build(world.graph, after.group("global")).eval()(x)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(ag.build(world.graph, world.state).eval()(x), theirs)


@pytest.mark.sample(3)
@pytest.mark.parametrize("method", ALL)
def test_a_round_without_results_changes_nothing(build, method):
    world = build("full")
    state = method().init(world)
    after = method().receive(world, state, iter(()), 1).group("global")
    assert all(torch.equal(after[name], value) for name, value in world.state.items())


def test_what_is_no_difference_in_rank_is_refused(build, lab):
    with pytest.raises(ag.RunError, match="FedIT averages adapters of one rank"):
        FedIT().init(build("low", "full"))
    other = build("low", "full", low_alpha=5.0)
    assert FLoRA().init(other)
    for served in (RankMean, HetLoRA, FlexLoRA):
        with pytest.raises(ag.RunError, match="differ only in rank"):
            served().init(other)
    for method in ALL:
        with pytest.raises(ag.RunError, match="low-rank adapters"):
            method().init(lab.uniform(2))
    wide = ag.add_lora(lab.graph, 2)
    tiers = {"half": ag.take(wide.graph, 0.5), "whole": ag.Rewritten.identity(wide.graph)}
    world = lab.make_world(wide.graph, wide.transfer.pull(lab.state), tiers, ["half", "whole"])
    with pytest.raises(ag.RunError, match="differ only in rank"):
        RankMean().init(world)


def test_frozen_adapters_are_refused(lab):
    """FLoRA ended in a KeyError after its first round; the others trained all else, in silence."""
    wide = ag.add_lora(lab.graph, 2)
    state = wide.transfer.pull(lab.state)
    lora = [p.name for p in wide.graph.params if p.role == "parameter"]
    factors, others = ([n for n in lora if (".lora." in n) == one] for one in (True, False))
    for trained, methods in ((others, ALL), ([*others, factors[0]], (FLoRA, HetLoRA, FlexLoRA))):
        graph = ag.train_only(wide.graph, trained).graph
        world = lab.make_world(graph, state, {"all": ag.Rewritten.identity(graph)}, ["all"])
        for method in methods:
            with pytest.raises(ag.RunError, match=r"train_only: \w+ trains low-rank .* frozen"):
                method().init(world)


class Tied(nn.Module):
    """A head that is the embedding, with an adapter of its own, as PEFT adds one."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 5, bias=False)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        x = self.table(index).tanh()
        return nn.functional.linear(x, self.table.weight) + 2 * self.up(self.down(x))


def test_flora_does_not_add_the_heads_adapter_to_the_embedding(lab):
    """Both changed."""
    graph, state = ag.trace(Tied(), torch.tensor([[1, 2]]))
    world = lab.make_world(graph, state, {"all": ag.Rewritten.identity(graph)}, ["all"])
    with pytest.raises(ag.RunError, match="also used without its adapter"):
        FLoRA().init(world)
    for method in set(ALL) - {FLoRA}:
        assert method().init(world)


def test_what_is_not_trained_stays_and_what_else_is_trained_is_averaged(lab):
    """Without `train_only` the base is trained: FLoRA freezes layers that have an adapter."""
    adapted = ag.add_lora(lab.graph, 2, "fc")
    weights = adapted.transfer.pull(lab.state)
    same = {"all": ag.Rewritten.identity(adapted.graph)}
    world = lab.make_world(adapted.graph, weights, same, ["all", "all"])
    local = LocalOptions(batch=4, lr=0.1)
    for method in (FLoRA, functools.partial(HetLoRA, prune=0.5), FlexLoRA, FFALoRA):
        strategy = method()
        task = strategy.send(world, strategy.init(world), 0, 1)
        after = task.program(lab.work_of(task, lab.toy(0), local)).state
        assert not torch.equal(after["stem.weight"], weights["stem.weight"])
        assert torch.equal(after["fc.weight"], weights["fc.weight"]) is (method is FLoRA)
    assert freeze(adapted.graph, frozenset({"fc.weight"})) != adapted.graph
