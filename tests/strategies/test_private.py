"""`private`: what stays with clients, in every strategy that averages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import archgraph as ag
from archgraph.engine.clients import read_clients
from archgraph.engine.clientwork import private_part
from archgraph.engine.local import Run
from archgraph.engine.run_models import trained
from archgraph.federation import (
    Outcome,
    State,
    Strategy,
    Task,
    World,
    classifier,
    find_strategy,
    low_rank,
    named_entries,
    private_models,
    private_task,
)
from archgraph.federation.options import Weighted
from archgraph.record.client import ClientState
from archgraph.strategies.fedavg import FedAvg
from archgraph.strategies.fedbn import FedBN
from archgraph.strategies.fedfa import FedFA
from archgraph.strategies.fedper import FedPer
from archgraph.strategies.heterofl import HeteroFL
from tests.engine.families import STRATEGIES, experiment_of
from tests.examples import at_most
from tests.nets import image, networks

# Windows and members of pools move from round to round; FedBABU's head is the same for all.
MOVING = ("adaptivefl_pool", "fedrolex")
KEEPING = [
    name
    for name in STRATEGIES
    if issubclass(find_strategy(name), Weighted) and name not in (*MOVING, "fedbabu")
]
Updates = Callable[[Task, int], State]


def rounds_of(
    strategy: Strategy, world: World, update: Updates, rounds: int = 2
) -> tuple[list[Any], dict[int, ClientState], list[dict[int, State]]]:
    """The states after each round, what clients keep, and what they begin with, round by round."""
    state, kept = strategy.init(world), dict[int, ClientState]()
    states, begun = [state], list[dict[int, State]]()
    ids = [client.id for client in world.clients]
    for number in range(1, rounds + 1):
        before = strategy.begin(world, state, number, ids)
        tasks = [
            private_task(strategy, world, strategy.send(world, before, c, number)) for c in ids
        ]
        begun.append({})
        results = []
        for task in tasks:
            mine = kept.get(task.client, ClientState())
            begun[-1][task.client] = mine.over(task.state, task.private)
            outcome = Outcome(update(task, number))
            kept[task.client] = private_part(task, outcome, mine)
            results.append(strategy.examined(world, task.result(outcome, 10)))
        state = strategy.receive(world, before, iter(results), number)
        states.append(state)
    return states, kept, begun


def random_updates(lab: Any, seed: int, other: int = 0) -> Updates:
    """Random weights; those of every client but the first depend on ``other``, too."""

    def update(task: Task, number: int) -> State:
        more = 1000 * other if task.client else 0
        return lab.random_state(task.state, seed + 31 * number + 7 * task.client + more)

    return update


@given(net=networks(stages=2), data=st.data())
@at_most(3)
def test_a_private_leaf_is_its_clients_alone_in_random_networks(lab, net, data):
    """No other client's update reaches it, the server never changes its own, all else is FedAvg."""
    graph, state, *_ = ag.trace(net, image())
    chosen = tuple(data.draw(st.sets(st.sampled_from(graph.state_names), min_size=1)))
    make = data.draw(st.sampled_from([FedAvg, HeteroFL, FedFA]))
    same = ag.Rewritten.identity(graph)
    world = lab.make_world(graph, state, {"all": same}, ["all"] * 3)
    strategy, plain = make(private=chosen), make()
    one = rounds_of(strategy, world, random_updates(lab, 3))
    two = rounds_of(strategy, world, random_updates(lab, 3, other=1))
    without = rounds_of(plain, world, random_updates(lab, 3))
    assert set(one[1][0].state) == set(chosen) - ag.frozen(graph)
    for name in chosen:
        # The first client's leaf goes on from where it was, whatever the others return.
        assert torch.equal(one[1][0].state[name], two[1][0].state[name])
        assert torch.equal(one[2][1][0][name], random_updates(lab, 3)(_task(state, 0), 1)[name])
        assert all(torch.equal(s.group("global")[name], state[name]) for s in one[0])
    for name in set(graph.state_names) - set(chosen):
        assert torch.equal(one[0][-1].group("global")[name], without[0][-1].group("global")[name])


def _task(state: State, client: int) -> Any:
    return type("T", (), {"state": state, "client": client})


def run_of(name: str, folder: Path, private: str, **more: Any) -> Run:
    """A small run of a strategy with one more option."""
    file = experiment_of(name, folder)
    old = f"{{{name}: {STRATEGIES[name][1]}}}"
    assert old in file.read_text()
    options = ", ".join(filter(None, (STRATEGIES[name][1].strip("{}"), private)))
    file.write_text(file.read_text().replace(old, f"{{{name}: {{{options}}}}}"))
    return ag.run(file, progress=False, **more)


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", KEEPING)
def test_every_strategy_that_averages_leaves_private_parts_with_clients(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if name == "hetlora":  # whose pruning cuts the ranks of all adapters, private ones included
        monkeypatch.setitem(STRATEGIES, name, (STRATEGIES[name][0], "{}"))
    run = run_of(name, tmp_path, "private: ['head.linear.*']", out=tmp_path / "run")
    assert not run.troubles
    first = run.experiment.strategy.init(run.experiment.world)
    for path, value in run.server.tensors.items():
        # FedDyn's correction of what never changed is zero.
        if ".linear." in path and not path.startswith("h/"):
            assert torch.equal(value, first.tensors[path]), path
    heads = {
        name: model.state["head.linear.bias"]
        for name, model in trained(tmp_path / "run").items()
        if "/" in name
    }
    assert heads
    assert not any(torch.equal(a, b) for a in heads.values() for b in heads.values() if a is not b)


PAIRS = ("flexlora", "flora", "hetlora")


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", PAIRS)
def test_adapters_stay_with_clients_where_products_are_merged(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Ended in a KeyError: the server wanted to multiply what had not come back."""
    monkeypatch.setitem(STRATEGIES, name, (STRATEGIES[name][0], "{}"))
    run = run_of(name, tmp_path, "private: ['head.linear.lora.*']", out=tmp_path / "run")
    world, before = run.experiment.world, run.experiment.world.state
    assert not run.troubles
    models = trained(tmp_path / "run")
    assert set(models) == {"global", "low/0", "low/1", "whole/2"}
    server = models.pop("global").state
    for leaf in world.graph.state_names:
        same = torch.equal(server[leaf], before[leaf])
        if leaf.startswith("head.linear.lora."):
            assert same and not torch.equal(models["whole/2"].state[leaf], before[leaf])
            assert not torch.equal(models["low/0"].state[leaf], models["low/1"].state[leaf])
        elif "stage2.0.conv1.lora" in leaf and name != "flora":
            assert not same


def test_clients_of_flora_are_tested_with_the_last_stack(tmp_path: Path):
    """What stays with a client was laid over the model together with its base weights, which lack
    the stack of the last round, and those of the rounds that it missed."""
    run = run_of("flora", tmp_path, "private: [head.linear.bias]", out=tmp_path / "run")
    models = trained(tmp_path / "run")
    server = models.pop("global").state
    base = [a.weight for a in low_rank(run.experiment.world.graph)]
    assert base and len(models) == 3
    for model in models.values():
        assert all(torch.equal(model.state[name], server[name]) for name in base)
    assert len({str(model.state["head.linear.bias"].tolist()) for model in models.values()}) == 3


@pytest.mark.parametrize("name", PAIRS)
def test_one_factor_alone_cannot_stay_where_products_are_merged(name: str, tmp_path: Path):
    with pytest.raises(ag.RunError, match=r"but one factor is private; found .*lora.down.weight"):
        run_of(name, tmp_path, "private: ['*.lora.down.weight']")
    if name == "flora":
        with pytest.raises(ag.RunError, match=r"to a layer that is private; found head.linear.w"):
            run_of(name, tmp_path, "private: [head.linear.weight]")
    if name == "hetlora":  # with prune, which its small run has
        with pytest.raises(ag.RunError, match="prune: cuts the rank of all of a client's adapters"):
            run_of(name, tmp_path, "private: ['head.linear.lora.*']")


def test_windows_that_move_cannot_be_kept(tmp_path: Path):
    for name in MOVING:
        with pytest.raises(ag.RunError, match="other parts of the global model in each round"):
            run_of(name, tmp_path, "private: ['head.linear.*']")
    with pytest.raises(ag.RunError, match="running statistics are averaged per width"):
        run_of("fjord", tmp_path, "private: ['head.bn.*']")


def test_a_pattern_that_matches_nothing_is_a_mistake(tmp_path: Path):
    with pytest.raises(ag.RunError, match=r"private: matches no parameter or buffer") as caught:
        run_of("fedavg", tmp_path, "private: [haed.linear.weight]")
    assert "'head.linear.weight'" in str(caught.value)


def test_bytes_are_counted_without_it_after_it_was_sent_once(tmp_path: Path):
    run = run_of("exclusivefl", tmp_path, "private: ['head.linear.*']")
    first, second = ([row["bytes_down"] for row in line["clients"]] for line in run.rounds)
    head = 4 * (10 * 16 + 10)
    assert [a - b for a, b in zip(first, second, strict=True)] == [head] * 3
    assert [row["bytes_up"] for line in run.rounds for row in line["clients"]] == second * 2


def test_runs_from_before_the_option_are_the_same_experiment(tmp_path: Path):
    settings = [
        ag.engine.prepare(experiment_of("fedavg", tmp_path)).facts["strategy"],
        FedAvg().private,
    ]
    assert settings == [
        {"fedavg": {"weights": "examples", "norm": "local", "mask_absent": False}},
        (),
    ]


@pytest.mark.parametrize("added", ["add_adapters: 2", "add_step_sizes: true", "add_lora: 2"])
def test_what_a_client_has_beyond_the_global_model_stays_with_it(tmp_path: Path, added: str):
    """It was thrown away in silence, then refused."""
    (tmp_path / "m.yaml").write_text(MODEL)
    file = tmp_path / "e.yaml"
    file.write_text(
        "archgraph: 1\nname: e\nfamily:\n  model: m.yaml\n"
        f"  clients: [{{name: plain}}, {{name: more, count: 2, {added}}}]\n"
        "data: {dataset: digits, limit: 60}\nstrategy: {heterofl: {}}\nrounds: 2\n"
        "local: {lr: 0.05}\nevaluate: {every: 2}\n"
    )
    run = ag.run(file, out=tmp_path / "run", progress=False)
    plain, *more = read_clients(tmp_path / "run")
    assert not plain.added and more[0].added == more[1].added
    model = run.experiment.world.tier("more")
    assert set(more[0].added) == set(model.graph.state_names) - set(
        run.experiment.world.graph.state_names
    )
    assert any("the global model lacks" in note and "stays with" in note for note in run.notes)
    models = trained(tmp_path / "run")
    assert set(models) == {"global", "plain", "more/1", "more/2"}
    start = model.state
    for name in more[0].added:
        one, two = (models[f"more/{client}"].state[name] for client in (1, 2))
        assert not torch.equal(one, start[name]) or not torch.equal(two, start[name])
        assert not torch.equal(one, two)


MODEL = """archgraph: 1
inputs: {image: [1, 8, 8]}
blocks:
  residual: {shortcut: auto, steps: [linear: 16, relu]}
sections:
  - {name: stem, steps: [flatten, linear: 16]}
  - {name: body, block: residual, depth: 2}
  - {name: head, steps: [linear: 10]}
"""


def test_a_tier_that_comes_again_finds_what_it_left(lab):
    """Adapters of one tier outlive a round in which the client ran another one."""
    more = ag.add_adapters(lab.graph, 2)
    world = lab.make_world(
        lab.graph, lab.state, {"more": more, "plain": ag.Rewritten.identity(lab.graph)}, ["more"]
    )
    strategy = HeteroFL()
    state = strategy.init(world)
    task = private_task(strategy, world, strategy.send(world, state, 0, 1))
    assert task.private == set(more.graph.state_names) - set(lab.graph.state_names)
    kept = private_part(task, Outcome(lab.random_state(task.state, 1)), ClientState())
    # In the order of the state: files of equal runs are equal, whatever the seed of hashes.
    assert [*kept.state] == [name for name in task.state if name in kept.state]
    other = FedAvg()
    plain = lab.replace(task, graph=lab.graph, state=lab.state, private=frozenset({"fc.bias"}))
    again = private_part(plain, Outcome(lab.random_state(lab.state, 2)), kept)
    assert other.private == () and again.state.keys() == {*kept.state, "fc.bias"}
    assert all(again.state[name] is value for name, value in kept.state.items())


def test_models_of_no_client_are_not_tested_where_a_part_is_private(lab):
    world = lab.uniform(2)
    names = {}
    for make in (HeteroFL, FedPer):
        strategy = make()
        models = strategy.evaluated(world, strategy.init(world))
        names[make] = [(m.name, m.private) for m in private_models(strategy, world, models)]
    assert names == {HeteroFL: [("global", False), ("all", False)], FedPer: [("all", True)]}


def test_heads_and_norms_are_found_without_names(lab):
    head = {"fc.weight", "fc.bias"}
    assert classifier(lab.graph, 5) == classifier(lab.graph) == head
    world = lab.uniform(1)
    assert FedPer(private=("stem.*",)).private_entries(world, lab.graph) == head | {
        "stem.weight",
        "stem.bias",
    }
    norms = FedBN().private_entries(world, lab.graph)
    assert norms == {name for name in lab.graph.state_names if ".bn" in name}


def test_a_tied_parameter_has_each_of_its_names():
    embedding = torch.nn.Embedding(7, 4)
    head = torch.nn.Linear(4, 7, bias=False)
    head.weight = embedding.weight
    graph = ag.trace(
        torch.nn.Sequential(embedding, head), torch.zeros(2, 3, dtype=torch.int64)
    ).graph
    assert named_entries(graph, ("1.*",)) == named_entries(graph, ("0.weight",)) == {"0.weight"}
