"""FedPer, FedBN, FedRep, FedBABU and Ditto: what each trains, keeps, sends and tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import archgraph as ag
from archgraph.engine.local import Run
from archgraph.engine.run_models import trained
from archgraph.federation import VERSION, InTurn, State, Towards, private_task
from archgraph.strategies.ditto import Ditto
from archgraph.strategies.fedbabu import FedBABU
from archgraph.strategies.fedrep import FedRep
from tests.runs import checkpoint_of

HEAD = {"fc.weight", "fc.bias"}
TEXT = """archgraph: 1
name: personal
family:
  model: {model}
  clients: [{{name: all, count: 3, choose: {{w1: 8}}}}]
data: {{dataset: digits, limit: 90, partition: {{scheme: dirichlet, min_size: 5}}}}
strategy: {{{strategy}}}
rounds: 2
local: {{batch: 16, lr: 0.05, momentum: 0.9, epochs: 2}}
{more}
"""


def run(folder: Path, strategy: str, more: str = "", out: str = "") -> Run:
    file = folder / "e.yaml"
    model = Path("specs/models/digits_cnn.yaml").absolute()
    strategy = strategy if ":" in strategy else f"{strategy}: {{}}"
    file.write_text(TEXT.format(model=model, strategy=strategy, more=more))
    return ag.run(file, progress=False, out=folder / out if out else None)


def same(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def figures(rounds: Any) -> list[Any]:
    """What rounds say, without times and bytes."""
    timed = ("seconds", "bytes_down", "bytes_up", "own_loss", "seen", "steps", "macs")
    return [
        (
            line["evaluation"],
            [{k: v for k, v in c.items() if k not in timed} for c in line["clients"]],
        )
        for line in rounds
    ]


def test_with_everything_private_fedper_is_standalone(tmp_path: Path):
    runs = [
        run(tmp_path, strategy, out=strategy[:6])
        for strategy in ("standalone", "fedper: {private: ['*']}")
    ]
    assert figures(runs[0].rounds) == figures(runs[1].rounds)
    one, two = (checkpoint_of(tmp_path / name, 2).private for name in ("standa", "fedper"))
    assert one.keys() == two.keys() == {0, 1, 2}
    assert all(same(one[client], two[client]) for client in one)
    assert {row["bytes_up"] for row in runs[1].rounds[-1]["clients"]} == {0}


def test_ditto_trains_its_own_model_beside_fedavgs(tmp_path: Path):
    """With λ = 0 it is Standalone's, bit for bit; the global one is FedAvg's whatever λ is."""
    alone = run(tmp_path, "standalone", out="alone")
    average = run(tmp_path, "fedavg", out="average")
    free = run(tmp_path, "ditto: {pull: 0}", out="free")
    pulled = run(tmp_path, "ditto: {pull: 5.0}", out="pulled")
    for ditto in (free, pulled):
        assert same(ditto.server.tensors, average.server.tensors)
        assert ditto.evaluation["models"]["global"] == {
            k: v
            for k, v in average.evaluation["models"]["global"].items()
            if k not in ("local", "clients")
        }
        sent = [[row["bytes_down"], row["bytes_up"]] for row in ditto.rounds[1]["clients"]]
        assert sent == [[r["bytes_down"], r["bytes_up"]] for r in average.rounds[1]["clients"]]
    assert free.evaluation["models"]["all"] == alone.evaluation["models"]["all"]
    ours, theirs = (checkpoint_of(tmp_path / name, 2).private for name in ("free", "alone"))
    for client in (0, 1, 2):
        v = {k.removeprefix(f"keep/{VERSION}"): t for k, t in ours[client].items()}
        assert same(v, {k.removeprefix("state/"): t for k, t in theirs[client].items()})
    models = {name: trained(tmp_path / name)["all/1"].state for name in ("free", "pulled", "alone")}
    assert same(models["free"], models["alone"])
    # What pulls leaves it nearer to the global model.
    w = average.server.group("global")
    weights = [p.name for p in average.experiment.world.graph.params if p.trainable]
    far, near = (
        sum(float((models[name][k] - w[k]).square().sum()) for k in weights)
        for name in ("free", "pulled")
    )
    assert near < far


def test_dittos_pull_is_its_closed_form(lab):
    task = private_task(
        Ditto(), world := lab.uniform(1), Ditto().send(world, Ditto().init(world), 0, 1)
    )
    work = lab.work_of(task, lab.toy(1))
    v = {"a": torch.tensor([1.0, 2.0], requires_grad=True), "b": torch.tensor([9.0])}
    value = Towards(0.5, {"a": torch.tensor([0.0, 4.0]), "b": torch.tensor([0.0])})(v, work)
    assert value.item() == 0.25 * 5 and torch.autograd.grad(value, v["a"])[0].tolist() == [
        0.5,
        -1.0,
    ]
    outcome = task.program(work)
    assert outcome.keep.keys() == {VERSION + name for name in lab.graph.state_names}
    assert outcome.metrics["seen"] == 2 * len(lab.toy(1).targets)


def test_fedreps_phases_freeze_what_the_other_one_trains(lab):
    world, strategy = lab.uniform(1), FedRep(head_epochs=3)
    task = private_task(strategy, world, strategy.send(world, strategy.init(world), 0, 1))
    assert task.private == HEAD
    assert isinstance(task.program, InTurn)
    head, body = task.program.programs
    work = lab.work_of(task, lab.toy(1))
    first = head(work)
    changed = {k for k in lab.state if not torch.equal(first.state[k], lab.state[k])}
    assert HEAD == {name for name in changed if "running" not in name and "tracked" not in name}
    assert first.metrics["seen"] == 3 * work.data.examples
    second = body(lab.replace(work, state=first.state))
    moved = {k for k in lab.state if not torch.equal(second.state[k], first.state[k])}
    assert not moved & HEAD
    assert {p.name for p in lab.graph.params if p.trainable} - HEAD <= moved
    both = task.program(lab.work_of(task, lab.toy(1)))
    assert both.metrics["seen"] == 4 * work.data.examples
    assert both.metrics["steps"] == first.metrics["steps"] + second.metrics["steps"]


@pytest.mark.parametrize("tune", ["all", "head", "body", "none"])
def test_fedbabus_head_is_one_and_tuned_before_tests(lab, tune: str):
    world, strategy = lab.uniform(2), FedBABU(tune=tune, tune_epochs=2)  # type: ignore[arg-type]
    state = strategy.init(world)
    for number in (1, 2):
        results = []
        for client in (0, 1):
            task = private_task(strategy, world, strategy.send(world, state, client, number))
            assert task.private == HEAD
            outcome = task.program(lab.work_of(task, lab.toy(client), seed=number))
            assert all(torch.equal(outcome.state[name], lab.state[name]) for name in HEAD)
            assert not torch.equal(outcome.state["stem.weight"], task.state["stem.weight"])
            results.append(task.result(outcome, 10))
        state = strategy.receive(world, state, iter(results), number)
        assert all(torch.equal(state.group("global")[name], lab.state[name]) for name in HEAD)
    shared, personal = strategy.evaluated(world, state)
    assert shared.program is None and not shared.clients and personal.clients == (0, 1)
    if personal.program is None:
        assert tune == "none"
        return
    before = state.group("global")
    after = personal.program(lab.work_of(lab.replace(task, state=before), lab.toy(0))).state
    moved = {p.name for p in lab.graph.params if not torch.equal(after[p.name], before[p.name])}
    weights = {p.name for p in lab.graph.params if p.trainable}
    assert moved & weights == {"all": weights, "head": HEAD, "body": weights - HEAD}[tune]


def test_fedbabus_head_is_sent_once(tmp_path: Path):
    trip = run(tmp_path, "fedbabu", out="run").rounds
    first, second = ([row["bytes_down"] for row in line["clients"]] for line in trip)
    assert [a - b for a, b in zip(first, second, strict=True)] == [4 * 170] * 3
    kept = checkpoint_of(tmp_path / "run", 2).private
    start = trained(tmp_path / "run")["global"].state
    for client in (0, 1, 2):
        assert torch.equal(kept[client]["state/head.linear.weight"], start["head.linear.weight"])


def test_a_network_that_is_a_head_alone_has_no_body_to_train(tiny):
    world, strategy = tiny.uniform(1), FedRep(head_epochs=1)
    task = strategy.send(world, strategy.init(world), 0, 1)
    outcome = task.program(tiny.work_of(task, tiny.toy(1)))
    assert not torch.equal(outcome.state["1.weight"], tiny.state["1.weight"])
    assert outcome.metrics["seen"] == 12
