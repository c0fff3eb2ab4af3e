"""What counts in a loss: one definition for the loss, its means, clients' weights and scores."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import sys
import types
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archgraph as ag
from archgraph.data.doors import data_from_python
from archgraph.engine.local import Run
from archgraph.engine.rows import ClientRows
from archgraph.engine.testing import Answers
from archgraph.federation import Examples
from archgraph.federation.learning import CLASSIFICATION, TASKS
from archgraph.federation.metrics import Metric
from archgraph.federation.objectives import counted_logits
from archgraph.federation.shard import Shard
from archgraph.federation.training_loss import trained_task
from archgraph.language.local import LocalOptions
from archgraph.strategies.depthfl import MutualDistillation
from archgraph.strategies.scalefl import EarlyExits

IGNORED = -100
Pair = tuple[Tensor, Tensor]


def _classes() -> tuple[nn.Module, Pair]:
    targets = torch.arange(48) % 3
    for part in (slice(0, 9), slice(16, 20), slice(30, 43)):
        targets[part] = IGNORED
    layers = nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)
    return nn.Sequential(*layers), (torch.randn(48, 6), targets)


def _text() -> tuple[nn.Module, Pair]:
    tokens = torch.randint(1, 20, (16, 8))
    targets = tokens.roll(-1, 1)
    for row, length in enumerate([8, 1, 0, 0, 3, 2, 8, 1, 0, 0, 0, 0, 8, 2, 5, 1]):
        targets[row, length:] = IGNORED
    return nn.Sequential(nn.Embedding(20, 8), nn.ReLU(), nn.Linear(8, 20)), (tokens, targets)


def _pixels() -> tuple[nn.Module, Pair]:
    targets = torch.randint(0, 3, (16, 4, 4))
    targets[:5] = targets[7, 2:] = IGNORED
    return nn.Sequential(nn.Conv2d(1, 3, 3, padding=1)), (torch.randn(16, 1, 4, 4), targets)


TASK = {"classification": _classes, "next_token": _text, "segmentation": _pixels}


def run(model: nn.Module, train: dict[str, Pair], test: Pair, **keys: Any) -> Run:
    traced = ag.trace(copy.deepcopy(model), test[0][:2])
    family = {"model": traced, "clients": [{"name": "all", "count": len(train)}]}
    spec = {
        "name": "counted",
        "family": family,
        "strategy": "fedavg",
        "rounds": 1,
        "local": {"lr": 0.1},
        **keys,
    }
    folder = spec.pop("out", None)
    return ag.run(spec, data=(train, test), progress=False, out=folder, python=True)


def assert_close(one: Run, other: Run) -> None:
    for name, value in other.server.tensors.items():
        if value.is_floating_point():
            torch.testing.assert_close(one.server.tensors[name], value, rtol=1e-4, atol=1e-5)


def weighted(weights: list[float]) -> dict[str, Any]:
    return {"loss": {"CrossEntropyLoss": {"weight": weights}}}


def weights_of(task: str, classes: int) -> list[dict[str, Any]]:
    return [
        {},
        weighted([float(1 + c % 3) for c in range(classes)]),
        weighted([0.0, *[float(1 + c % 3) for c in range(1, classes)]]),
        {"loss": {"CrossEntropyLoss": {"label_smoothing": 0.1}}, "proximal": 0.5},
    ]


LAWS = [(task, i) for task in TASK for i in range(4)]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("task", "index"), LAWS)
def test_minibatches_and_clients_together_are_one_batch_of_all(task, index):
    """Accumulated minibatches, or the mean of clients that each make one step, are one step."""
    torch.manual_seed(0)
    model, (inputs, targets) = TASK[task]()
    local = weights_of(task, 20 if task == "next_token" else 3)[index]
    everything, count = {"a": (inputs, targets)}, len(inputs)
    keys = {"task": task}
    one = run(
        model, everything, (inputs, targets), **keys, local={"lr": 1.0, "batch": count, **local}
    )
    small = {"lr": 1.0, "batch": 2, "accumulate": count, **local}
    accumulated = run(model, everything, (inputs, targets), **keys, local=small)
    assert_close(accumulated, one)
    losses = [each.rounds[0]["clients"][0]["loss"] for each in (accumulated, one)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    quarter = count // 4
    cuts = slice(0, quarter), slice(quarter, 2 * quarter), slice(2 * quarter, count)
    parts = {str(i): (inputs[cut], targets[cut]) for i, cut in enumerate(cuts)}
    pooled = run(
        model, parts, (inputs, targets), **keys, local={"lr": 1.0, "batch": count, **local}
    )
    assert_close(pooled, one)


def test_two_networks_that_teach_each_other_accumulate_likewise():
    torch.manual_seed(0)
    model, data = _classes()
    local = {"lr": 0.5, "batch": 48}
    one = run(model, {"a": data}, data, strategy="fml", local=local)
    small = {**local, "batch": 2, "accumulate": 48}
    assert_close(run(model, {"a": data}, data, strategy="fml", local=small), one)


@pytest.mark.parametrize("objective", [MutualDistillation, EarlyExits])
def test_exits_that_teach_each_other_are_a_mean_over_counted_targets(objective):
    torch.manual_seed(0)
    work: Any = types.SimpleNamespace(learning=TASKS["next_token"], round=5)
    teach = objective(("main", "exit"), 1.0)
    targets = _text()[1][1]
    outputs = {name: {"logits": torch.randn(16, 8, 20)} for name in ("main", "exit")}

    def loss(rows: slice) -> Tensor:
        some = {name: {"logits": one["logits"][rows]} for name, one in outputs.items()}
        return teach(some, Examples((), targets[rows], torch.arange(16)[rows]), work)

    parts = [slice(i, i + 2) for i in range(0, 16, 2)]
    counts = torch.stack([work.learning.counts(targets[rows]).sum() for rows in parts])
    mean = (torch.stack([loss(rows) for rows in parts]) * counts).sum() / counts.sum()
    torch.testing.assert_close(mean, loss(slice(16)))


OWN = """
from torch.nn import functional

def _each(said, targets):
    labels = targets.flatten().clamp(min=0)
    values = functional.cross_entropy(said.flatten(0, -2), labels, reduction="none")
    return values.view(targets.shape)

def mean(said, targets):
    return functional.cross_entropy(said.flatten(0, -2), targets.flatten())

def masked(said, targets):
    counted = targets != -100
    return (_each(said, targets) * counted).sum() / counted.sum()

def of_targets(said, targets):
    return _each(said, targets)

def of_examples(said, targets):
    counted = targets != -100
    if targets.dim() == 1:
        return _each(said, targets)
    return (_each(said, targets) * counted).sum(1) / counted.sum(1).clamp(min=1)
"""


@pytest.mark.sample(3)
@pytest.mark.parametrize("task", ["classification", "next_token"])
@pytest.mark.parametrize("name", ["mean", "masked", "of_targets", "of_examples"])
def test_objectives_of_ones_own_count_as_the_tasks_loss_does(task, name, tmp_path, monkeypatch):
    torch.manual_seed(0)
    (tmp_path / "losses_that_count.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("losses_that_count", None)
    model, data = TASK[task]()
    one = run(model, {"a": data}, data, task=task, local={"lr": 1.0, "batch": 48})
    own = {"kind": task, "objective": f"python:losses_that_count:{name}"}
    local = {"lr": 1.0, "batch": 2, "accumulate": 48}
    other = run(model, {"a": data}, data, task=own, local=local)
    assert_close(other, one)
    losses = [each.evaluation["global"]["loss"] for each in (other, one)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


RULES: list[dict[str, Any]] = [
    {},
    {"strategy": {"fedavg": {"weights": "uniform"}}},
    {"strategy": "fedfa"},
    {"strategy": "heterofl"},
    {"strategy": "fml"},
    {"aggregate": "median"},
    {"server": {"optimiser": "momentum"}},
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("rules", RULES, ids=str)
def test_a_client_without_a_counted_target_changes_nothing(rules):
    torch.manual_seed(0)
    inputs, targets, model = torch.randn(60, 6), torch.arange(60) % 3, _classes()[0]
    ignored = torch.full((40,), IGNORED)
    local = {"batch": 60, "lr": 0.1, "epochs": 2}
    two = {"a": (inputs[:40], ignored), "b": (inputs[40:], targets[40:])}
    one = {"b": two["b"]}
    alone, both = (run(model, part, (inputs, targets), local=local, **rules) for part in (one, two))
    assert_close(both, alone)
    assert both.rounds[0]["clients"][0]["loss"] is None  # a mean over nothing
    assert any("client 0 (all): no target counts" in note for note in both.notes)
    assert not any("counts" in note for note in alone.notes)
    of_weight_0 = {**two, "a": (inputs[:20], torch.zeros(20, dtype=torch.int64))}
    unlike = local | weighted([0.0, 1.0, 1.0])
    alone, both = (
        run(model, p, (inputs, targets), local=unlike, **rules) for p in (one, of_weight_0)
    )
    assert_close(both, alone)


def test_a_round_without_a_counted_target_keeps_the_global_model():
    torch.manual_seed(0)
    inputs, targets, model = torch.randn(60, 6), torch.arange(60) % 3, _classes()[0]
    ignored = torch.full((20,), IGNORED)
    train = {
        "a": (inputs[:20], ignored),
        "b": (inputs[20:40], ignored),
        "c": (inputs[40:], targets[40:]),
    }
    result = run(
        model, train, (inputs, targets), sample=1, rounds=6, local={"batch": 20, "lr": 0.1}
    )
    accuracies = [line["evaluation"]["global"]["loss"] for line in result.rounds]
    drawn = [line["clients"][0]["client"] for line in result.rounds]
    assert {2} < set(drawn)
    for i, client in list(enumerate(drawn))[1:]:
        assert (accuracies[i] == accuracies[i - 1]) == (client != 2)


def test_a_score_over_nothing_is_not_a_number(tmp_path):
    torch.manual_seed(0)
    inputs, targets, model = torch.randn(60, 6), torch.arange(60) % 3, _classes()[0]
    ignored = torch.full((30,), IGNORED)
    train = {"a": (inputs[:30], targets[:30]), "b": (inputs[30:], targets[30:])}
    result = run(model, train, (inputs[:30], ignored), out=tmp_path / "run")
    assert result.evaluation["global"] == {"accuracy": None, "loss": None} | {
        k: v for k, v in result.evaluation["global"].items() if k == "clients"
    }
    assert any("no target of the test examples counts" in note for note in result.notes)
    assert "worst" not in result.evaluation
    assert {row[4] for row in result.table().rows} == {"-"}
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)  # NaN is not JSON
    frame = result.to_frame()
    assert frame[(frame.part == "test") & (frame.metric == "accuracy")].value.isna().all()


def test_every_metric_of_nothing_is_not_a_number():
    for task in TASKS.values():
        metrics = [metric for metric in task.measured if isinstance(metric, Metric)]
        rows = {metric.name: torch.zeros(3, 2) for metric in metrics}
        figures = Answers(metrics, rows, torch.zeros(3)).summary()
        assert figures and all(math.isnan(value) for value in figures.values())


def test_counts_are_of_targets_and_classes():
    halves = trained_task(CLASSIFICATION, LocalOptions(**weighted([0.5, 2.0])))
    assert halves.counts(torch.tensor([0, 1, IGNORED])).tolist() == [0.5, 2.0, 0.0]
    assert halves.counts_of((4, 3)) == 8.0
    assert TASKS["regression"].counts(torch.tensor([[-100.0, 1.0]])).tolist() == [2]
    assert TASKS["regression"].counts_of((4, 3)) is None
    logits = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    examples = Examples((), torch.tensor([IGNORED, 1]), torch.arange(2))
    assert counted_logits(logits, examples).tolist() == [[3.0, 4.0]]
    numbers = Examples((), torch.tensor([-100.0, 1.0]), torch.arange(2))
    assert len(counted_logits(logits[:, :1], numbers)) == 2


def test_a_node_that_does_not_count_by_class_says_how_many_targets_count():
    targets = torch.tensor([0, 1, IGNORED, IGNORED, 1, 0])
    rows = ClientRows.of(data_from_python(((torch.randn(6, 4), targets),) * 2, None))
    unsaid = ClientRows.read(dataclasses.replace(rows, histogram=None).report())
    assert (unsaid.targets, unsaid.histogram) == (4, None)


def test_targets_that_are_read_anew_may_be_ignored_ones():
    """They were compared with padding: the first read had none."""
    inputs, targets = (torch.zeros(4, 2, 3),), torch.tensor([[0, 1]] * 4)
    fixed = Shard(inputs, targets, (4, 4))
    anew = replace(fixed, again=lambda rows, seed: (inputs, torch.tensor([[0, -100]] * 4)))
    rows = []
    for shard in (fixed, anew):
        (batch,) = shard.batches(torch.Generator(), 4)
        rows.append(len(counted_logits(torch.zeros(4, 2, 5), batch)))
    assert rows == [8, 4]
