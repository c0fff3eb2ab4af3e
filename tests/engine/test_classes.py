"""`classes` of a kind of client: own labels, a head of these, and rows of the global head."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import archgraph as ag
from archgraph.data import Dataset, Split, load_dataset
from archgraph.data.classes import class_numbers, of_classes
from archgraph.engine import Run, execute, prepare
from archgraph.engine.classes import in_order_of_folder
from archgraph.engine.clients import read_clients
from archgraph.engine.clientwork import ClientWork
from archgraph.engine.run_models import trained
from archgraph.errors import ArchGraphError
from archgraph.federation import (
    Evaluated,
    Outcome,
    Result,
    ServerState,
    Task,
    Work,
    World,
    find_strategy,
)
from archgraph.federation.class_heads import class_cut, class_models
from archgraph.language.family import FamilySpec, MemberSpec
from archgraph.language.yaml import read_document
from archgraph.strategies.fedavg import FedAvg
from tests.engine.families import STRATEGIES, experiment_of, result

LOW, HIGH = (0, 1, 2), (1, 2, 3, 4)  # two sets that share 1 and 2
MODEL = {
    "archgraph": 1,
    "name": "net",
    "inputs": {"image": [1, 8, 8]},
    "sections": [
        {"name": "body", "steps": ["flatten", {"linear": {"out": 16}}, "relu"]},
        {"name": "head", "steps": [{"linear": {"out": 10}}]},
    ],
}
CLIENTS: list[dict[str, Any]] = [
    {"name": "low", "count": 2, "classes": [2, 0, 1]},
    {"name": "high", "count": 2, "classes": ["1", "2", "3", "4"]},
    {"name": "all"},
]


def experiment(clients: Any = CLIENTS, **changes: Any) -> dict[str, Any]:
    return {
        "archgraph": 1,
        "name": "classes",
        "family": {"model": MODEL, "clients": clients},
        "data": {"dataset": "digits", "limit": 400, "partition": {"scheme": "iid"}},
        "strategy": {"fedavg": {}},
        "rounds": 2,
        "local": {"lr": 0.1},
        "engine": {"workers": 1},
        **changes,
    }


def run_of(clients: Any = CLIENTS, *, out: Path | None = None, **changes: Any) -> Run:
    return ag.run(experiment(clients, **changes), progress=False, out=out)


@dataclass(frozen=True)
class Size:
    """Say how many outputs the model has, and which labels there are."""

    def __call__(self, work: Work) -> Outcome:
        (batch,) = work.data.batches(None, work.data.examples)
        outputs = ag.build(work.graph, work.state)(*batch.inputs).shape[1]
        assert outputs == int(batch.targets.max()) + 1
        return Outcome(work.state, metrics={"outputs": outputs})


@dataclass(frozen=True)
class Surveying(FedAvg):
    def survey(self, world: World, state: ServerState) -> Iterable[Task]:
        for client in world.clients:
            yield replace(self.send(world, state, client.id, 0), program=Size())

    def surveyed(self, world: World, state: ServerState, results: Iterable[Result]) -> ServerState:
        return state.with_values(heads=[int(one.metrics["outputs"]) for one in results])


# -- closed forms and laws -------------------------------------------------------------------------


def test_rows_of_the_head_are_merged_by_class():
    """One step of two clients with a linear head, and every row of the mean by hand."""
    torch.manual_seed(0)
    x, y = torch.randn(30, 3), torch.arange(30) % 5
    shares = {"ann": torch.arange(0, 12), "bob": torch.arange(12, 30)}
    rate, sets = 0.5, {"ann": LOW, "bob": HIGH}
    clients = [
        {"name": name, "owners": [name], "classes": list(reversed(classes))}
        for name, classes in sets.items()
    ]
    model = {
        "archgraph": 1,
        "name": "linear",
        "inputs": {"x": [3]},
        "sections": [{"name": "head", "steps": [{"linear": {"out": 5}}]}],
    }
    spec = experiment(clients, rounds=1, local={"batch": 100, "lr": rate})
    spec["family"]["model"], spec["data"] = model, {"partition": None}
    del spec["data"]
    data = ({name: (x[at], y[at]) for name, at in shares.items()}, (x, y))
    run = ag.run(spec, data=data, progress=False)
    old, new = run.experiment.world.state, run.server.group("global")
    (weight, bias) = (next(n for n in old if n.endswith(end)) for end in ("weight", "bias"))
    sums, total = {n: torch.zeros_like(old[n]) for n in (weight, bias)}, torch.zeros(5)
    for name, at in shares.items():
        rows = torch.tensor(sets[name])
        at = at[torch.isin(y[at], rows)]
        inputs, labels = x[at], torch.searchsorted(rows, y[at])
        # d CE / d logits = (softmax - one-hot) / examples
        logits = inputs @ old[weight][rows].T + old[bias][rows]
        slope = (logits.softmax(1) - functional.one_hot(labels, len(rows))) / len(at)
        sums[weight][rows] += len(at) * (old[weight][rows] - rate * slope.T @ inputs)
        sums[bias][rows] += len(at) * (old[bias][rows] - rate * slope.sum(0))
        total[rows] += len(at)
    assert total.tolist() == [8, 23, 23, 15, 15]  # examples of those who have the class
    torch.testing.assert_close(new[weight], sums[weight] / total[:, None])
    torch.testing.assert_close(new[bias], sums[bias] / total)


def digits_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 10, 3, stride=2),  # as many channels as classes: they stay
        nn.BatchNorm2d(10),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(10, 10),
    )


@functools.cache
def wide_nets() -> list[tuple[ag.ArchGraph, dict[str, torch.Tensor]]]:
    """A network, and the same with an exit behind its first layers."""
    torch.manual_seed(0)
    traced = ag.trace(digits_net(), torch.zeros(2, 1, 8, 8))
    more = ag.add_exits(traced.graph, {"0": 10})
    return [(traced.graph, traced.state), (more.graph, more.transfer.pull(traced.state))]


@settings(max_examples=15, deadline=None)
@given(classes=st.sets(st.integers(0, 9), min_size=2), exits=st.booleans())
def test_a_cut_head_is_a_masked_one(classes, exits):
    """Logits, and what training does to the rows: others take no part in the softmax."""
    rows = sorted(classes)
    graph, state = wide_nets()[exits]
    cut = class_cut(graph, 10, tuple(rows))
    draw = torch.Generator().manual_seed(len(rows))
    images = torch.randn(6, 1, 8, 8, generator=draw)
    labels = torch.randint(len(rows), (6,), generator=draw)
    wide, narrow = ag.build(graph, state), ag.build(cut.graph, cut.transfer.pull(state))
    outputs, cut_outputs = (
        [*out.values()] if exits else [out] for out in (wide(images), narrow(images))
    )
    masked = torch.full((10,), -torch.inf)
    masked[rows] = 0
    losses = torch.zeros(2)
    for one, other in zip(outputs, cut_outputs, strict=True):
        torch.testing.assert_close(one[:, rows], other)
        of_wide = functional.cross_entropy(one + masked, torch.tensor(rows)[labels])
        losses = losses + torch.stack([of_wide, functional.cross_entropy(other, labels)])
    losses.sum().backward()
    gradients = {name: p.grad for name, p in wide.named_parameters()}
    for name, parameter in narrow.named_parameters():
        mine = gradients[name]
        assert mine is not None
        torch.testing.assert_close(
            mine if mine.shape == parameter.shape else mine[rows], parameter.grad
        )


def test_all_classes_are_the_same_as_none(tmp_path):
    every = [*range(9, -1, -1)]
    plain = [{"name": "some", "count": 2}, {"name": "all"}]
    named = [{"name": "some", "count": 2, "classes": every}, {"name": "all"}]
    runs = [run_of(clients) for clients in (plain, named)]
    assert result(runs[0]) == result(runs[1])
    assert runs[0].experiment.facts == runs[1].experiment.facts
    assert prepare(experiment()).facts != runs[0].experiment.facts


def test_features_of_as_many_units_as_classes_are_not_cut():
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.fc = nn.Linear(3, 4), nn.Linear(4, 4)

        def forward(self, x):
            features = self.body(x)
            return {"logits": self.fc(features), "features": features}

    cut = class_cut(ag.trace(Both(), torch.zeros(2, 3)).graph, 4, (0, 3))
    shapes = {p.name: p.shape for p in cut.graph.params}
    assert shapes["body.weight"] == (4, 3) and shapes["fc.weight"] == (2, 4)


# -- data ------------------------------------------------------------------------------------------


def labelled(*labels: str) -> Dataset:
    targets = torch.tensor([0, 1, 2, 1, -100])
    split = Split(torch.zeros(5, 1), targets)
    return Dataset("mine", "table", 3, (1,), split, split, labels)


def test_classes_are_named_as_the_data_names_them():
    animals, numbers = labelled("ape", "bee", "cat"), labelled("3", "5", "7")
    assert class_numbers(["cat", "ape"], animals) == class_numbers([2, 0], animals) == (0, 2)
    assert class_numbers([7, 3], numbers) == (0, 2)  # not positions
    assert class_numbers([1, 2], labelled()) == (1, 2)
    assert class_numbers(["bee", "cat", "ape"], animals) == ()
    mistakes: list[tuple[list[str | int], Dataset, str]] = [
        (["dog", "cat"], animals, "does not have the class; found 'dog'"),
        ([0, 5], numbers, "does not have the class; found '0'"),
        ([-1, 1], labelled(), "does not have the class; found '-1'"),
        (["ape", 0], animals, "names a class twice"),
    ]
    for names, data, words in mistakes:
        with pytest.raises(ArchGraphError, match=words):
            class_numbers(names, data)


def test_the_classes_of_a_part_count_from_0_in_ascending_order():
    part = of_classes(labelled("ape", "bee", "cat"), (1, 2))
    assert part.classes == 2 and part.labels == ("bee", "cat")
    assert part.train.targets.tolist() == [-100, 0, 1, 0, -100]  # positions stay
    assert part.test.targets.tolist() == [0, 1, 0]


def test_a_client_trains_on_its_classes_alone():
    setup = prepare(experiment())
    data = load_dataset("digits", limit=400)
    for client, (classes, share) in enumerate(
        zip([LOW, LOW, HIGH, HIGH, range(10)], setup.shares, strict=True)
    ):
        shard, labels = setup.shard(client), data.train.targets[share]
        assert set(labels.tolist()) == set(classes)
        assert [classes[n] for n in shard.targets.tolist()] == labels.tolist()
        assert torch.equal(shard.inputs[0], data.train.examples(share)[0][0])
        counts = [int((labels == n).sum()) for n in classes]
        assert list(shard.histogram) == counts
        assert sum(setup.world.clients[client].histogram) == len(share) == sum(counts)


def test_further_models_have_the_classes_of_who_trains_them():
    spec = experiment([*CLIENTS[:1], {"name": "all", "count": 1}], also={"low": ["all"]})
    run = ag.run(spec, progress=False)
    assert [c.classes for c in run.experiment.world.clients] == [LOW, LOW, (), LOW, LOW]
    assert not run.troubles
    alone = [{**CLIENTS[0], "count": 1}, {"name": "all", "take": 1.0}]
    assert prepare(experiment(alone, also={"all": ["low"]})).world.clients[2].classes == ()


# -- tests -----------------------------------------------------------------------------------------


def test_figures_of_a_client_are_those_of_its_own_head_on_its_own_classes(tmp_path):
    data = load_dataset("digits", limit=400)
    run = run_of(out=tmp_path / "run", rounds=5)
    models, figures = trained(tmp_path / "run"), run.evaluation["models"]
    assert list(models) == list(figures) == ["global", "global+low", "global+high"]
    weights = run.server.group("global")
    for name, classes in (("global", tuple(range(10))), ("global+low", LOW), ("global+high", HIGH)):
        graph, state = models[name]
        head = next(n for n in state if n.startswith("head") and n.endswith("weight"))
        assert torch.equal(state[head], weights[head][list(classes)])
        at = torch.isin(data.test.targets, torch.tensor(classes))
        images, targets = data.test.batch(at.nonzero()[:, 0])
        with torch.inference_mode():
            said = torch.tensor(classes)[ag.build(graph, state).eval()(images).argmax(1)]
        assert figures[name]["accuracy"] == pytest.approx((said == targets).double().mean().item())
        clients = {"global": 1, "global+low": 2, "global+high": 2}[name]
        assert figures[name]["clients"] == clients
        assert figures[name]["local"]["accuracy"] == pytest.approx(figures[name]["accuracy"])
    # Three classes are easier than ten; and what is learnt is more than a guess.
    assert figures["global+low"]["accuracy"] > 0.9 > figures["global"]["accuracy"] > 0.3
    assert run.evaluation["global"]["accuracy"] == figures["global"]["accuracy"]


@pytest.mark.parametrize("strategy", ["fedper", "standalone"])
def test_a_private_head_has_a_row_for_each_class(strategy, tmp_path):
    run = run_of(strategy={strategy: {}}, out=tmp_path / "run", local={"lr": 0.1, "epochs": 8})
    sizes = {
        name: next(v for k, v in m.state.items() if k.startswith("head")).shape[0]
        for name, m in trained(tmp_path / "run").items()
        if "/" in name
    }
    assert sizes == {"low/0": 3, "low/1": 3, "high/2": 4, "high/3": 4, "all/4": 10}
    assert run.evaluation["models"]["low"]["accuracy"] > 0.7
    facts = read_clients(tmp_path / "run")
    assert [sum(n > 0 for n in one.classes) for one in facts] == [3, 3, 4, 4, 10]


def test_own_versions_and_surveys_have_the_own_head():
    """Of methods whose clients have weights of their own, or work before the first round."""
    setup = prepare(experiment())
    setup = replace(setup, strategy=Surveying())
    run = execute(setup, progress=False)
    assert run.server.values["heads"] == [3, 3, 4, 4, 10]
    world = setup.world
    versions = Evaluated(
        "mine", world.graph, world.state, (0, 3), states=lambda client: world.state
    )
    weight = next(n for n in world.state if n.startswith("head") and n.endswith("weight"))
    for model, classes, client in zip(
        class_models(world, [versions]), (LOW, HIGH), (0, 3), strict=True
    ):
        assert model.classes == classes and model.clients == (client,) and model.states
        assert torch.equal(model.states(client)[weight], world.state[weight][list(classes)])


def test_held_out_examples_without_the_classes_of_a_model_say_nothing_of_it(monkeypatch):
    def one(shares, *_, **options):
        first = shares[0][:1]
        return (shares[0][1:], *shares[1:]), first

    monkeypatch.setattr("archgraph.engine.world.hold_out", one)
    clients = [CLIENTS[0], {"name": "other", "classes": [5, 6]}]
    run = run_of(clients, validation={"clients": 0.1}, rounds=1)
    tested = run.rounds[-1]["validation"]["models"]
    assert len(tested) == 2 and "global" in tested and len(run.evaluation["models"]) == 3


def test_metrics_tuning_validation_and_local_tests_see_the_own_classes():
    pytest.importorskip("torchmetrics")
    run = run_of(
        task={"kind": "classification", "metrics": ["MulticlassF1Score"]},
        validation={"clients": 0.2},
        evaluate={"fine_tune": 1, "trained": True},
        local={"lr": 0.1, "epochs": 8},
        strategy={"heterofl": {}},
    )
    assert not run.troubles and "untuned" not in run.evaluation
    for figures in (run.evaluation["models"], run.rounds[-1]["validation"]["models"]):
        # Macro over 10 classes, of which 7 never occur, would stay below 0.3.
        assert figures["low"]["MulticlassF1Score"] > 0.7
    assert all(row["trained"]["MulticlassF1Score"] > 0.6 for row in run.rounds[-1]["clients"][:2])


# -- methods and engines ---------------------------------------------------------------------------

SETS = ([1, 2, 5], [5, 0, 1, 6], [2, 6])


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_strategy_merges_the_rows_of_clients_or_says_why_not(name, tmp_path):
    file = experiment_of(name, tmp_path)
    reason = find_strategy(name).one_head
    values = json.loads(json.dumps(read_document(str(file)).data))
    for kind, classes in zip(values["family"]["clients"], SETS, strict=False):
        kind["classes"] = classes
    values |= {"rounds": 1, "engine": {"workers": 1}, "evaluate": {}}
    values["data"]["partition"] = {"scheme": "iid"}
    if reason:
        with pytest.raises(ag.RunError, match=re.escape(reason)):
            prepare(values)
        return
    run = ag.run(values, progress=False)
    assert not run.troubles and not run.rounds[-1]["rejected"]
    strategy, world = run.experiment.strategy, run.experiment.world
    before, after = (x.group("global") for x in (strategy.init(world), run.server))
    for entry in (n for n in after if n.startswith("head") and after[n].shape[:1] == (10,)):
        having = [
            t for t in world.tiers if any(e.source == entry for e in t.transfer.entries.values())
        ]
        there = {number for tier in having for number in tier.classes}
        changed = (after[entry] != before[entry]).reshape(10, -1).any(1)
        assert set(changed.nonzero()[:, 0].tolist()) == (there if changed.any() else set())


def test_rows_of_a_label_that_a_client_lacks_among_its_classes_stay():
    """HeteroFL's label rows: of its classes a client gives those that it has examples of."""
    x, y = torch.randn(24, 3), torch.tensor([0, 2] * 12)
    test = torch.randn(5, 3), torch.arange(5)
    spec = experiment(
        [{"name": "a", "classes": [0, 1, 2]}, {"name": "b", "classes": [2, 4]}],
        strategy={"heterofl": {}},
        rounds=1,
    )
    spec["family"]["model"] = {
        "archgraph": 1,
        "name": "linear",
        "inputs": {"x": [3]},
        "sections": [{"name": "head", "steps": [{"linear": {"out": 5}}]}],
    }
    spec["data"] = {"partition": {"scheme": "iid"}}
    run = ag.run(spec, data=((x, y), test), progress=False)
    old, new = run.experiment.world.state, run.server.group("global")
    for entry in new:
        changed = (new[entry] != old[entry]).reshape(5, -1).any(1).tolist()
        assert changed == [True, False, True, False, False]


@pytest.mark.parametrize("strategy", ["fedavg", "fedper"])
def test_resumed_runs_and_workers_have_the_same_bits(strategy, tmp_path, monkeypatch):
    once = run_of(strategy={strategy: {}}, rounds=3, out=tmp_path / "once")
    several = run_of(strategy={strategy: {}}, rounds=3, engine={"workers": 2})
    assert result(once) == result(several)
    macs = once.rounds[-1]["macs"]  # backward passes cost twice as much as forward ones
    assert macs["round"] == 3 * macs["epoch"] * macs["epochs"]
    part, work = experiment(strategy={strategy: {}}, rounds=3), ClientWork.__call__

    def die(self: Any, what: Any, tell: Any) -> Any:
        if what.round == 3:
            raise KeyboardInterrupt
        return work(self, what, tell)

    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(ClientWork, "__call__", die)
        ag.run(part, progress=False, out=tmp_path / "run")
    changed = experiment(
        [{**CLIENTS[0], "classes": [0, 1, 3]}, *CLIENTS[1:]],
        **{key: part[key] for key in ("strategy", "rounds")},
    )
    with pytest.raises(ag.RunError, match="another experiment"):
        ag.run(changed, progress=False, out=tmp_path / "run", resume=True)
    assert result(ag.run(part, progress=False, out=tmp_path / "run", resume=True)) == result(once)


@pytest.mark.parametrize(("strategy", "private"), [("fedavg", "server"), ("fedper", "node")])
def test_on_flower_a_run_has_the_same_bits(strategy, private):
    pytest.importorskip("flwr", reason="needs the extra `flower`")
    from archgraph.flower.client import client_app
    from archgraph.flower.server import Nodes
    from tests.flower.process_grid import ProcessGrid

    spec = experiment(strategy={strategy: {}})
    setup = prepare(spec)
    grid = ProcessGrid(client_app(lambda context: setup), len(setup.world.clients))
    nodes = Nodes(grid, len(setup.world.clients), private)
    flower, local = execute(setup, progress=False, elsewhere=nodes), run_of(strategy={strategy: {}})
    assert not flower.troubles
    assert result(flower)[1] == result(local)[1]
    if private == "server":
        assert flower.evaluation == local.evaluation


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"classes": [0, 12]}, "classes.*digits.*does not have the class; found '12'"),
        ({"classes": [3, "3"]}, "names a class twice"),
        ({"classes": [3]}, "classes"),
        ({"attack": {"among": "clients"}}, "attack.among: does not serve clients with classes"),
        ({"evaluate": {"answers": True}}, "evaluate.answers: does not serve clients"),
        ({"strategy": {"fedfa": {}}}, "strategy.fedfa: does not serve.*it grafts.*of some"),
        (
            {"data": {"dataset": "digits", "partition": {"scheme": "classes", "per_client": 1}}},
            r"family.clients: client \d \(some\): none of its examples is of its classes; found",
        ),
    ],
)
def test_what_contradicts_classes_is_refused(changes, words):
    classes = changes.pop("classes", [0, 1])
    clients = [{"name": "some", "count": 5, "classes": classes}, {"name": "all", "count": 5}]
    with pytest.raises(ArchGraphError, match=words):
        prepare(experiment(clients, **changes))


def test_classes_of_numbers_and_heads_without_them_are_refused():
    x = torch.randn(8, 4)
    spec = experiment([{"name": "some", "classes": [0, 1]}, {"name": "all"}])
    spec["data"] = {"partition": {"scheme": "iid"}}
    model = {"archgraph": 1, "name": "net", "inputs": {"x": [4]}}
    spec["family"]["model"] = {
        **model,
        "sections": [{"name": "head", "steps": [{"linear": {"out": 1}}]}],
    }
    rows = x, torch.randn(8)
    with pytest.raises(ag.RunError, match="one class for each example; found regression"):
        prepare({**spec, "task": "regression"}, data=(rows, rows))
    spec["family"]["model"] = {**model, "sections": [{"name": "body", "steps": ["relu"]}]}
    labels = x, torch.arange(8) % 4
    with pytest.raises(ag.RewriteError, match="the head cannot be cut"):
        prepare(spec, data=(labels, labels))
    spec["family"]["model"] = {
        **model,
        "sections": [{"name": "body", "steps": [{"linear": {"out": 4}}]}],
    }
    with pytest.raises(
        ag.DataError, match="the test data has no example of these classes; found 0, 1"
    ):
        prepare(spec, data=(labels, (x, torch.tensor([2, 3] * 4))))


@pytest.mark.parametrize("inline", [True, False])
def test_classes_have_the_order_of_the_models_folder(inline, tmp_path):
    """They were in alphabetical order: the names in the result's config.json were other ones."""
    rows, targets = torch.rand(6, 2), torch.arange(6) % 3
    split = Split(rows, targets)
    data = Dataset("pets", "table", 3, (2,), split, split, labels=("ant", "bee", "cat"))
    model: Any = {"transformers": "net", "inputs": {"x": [2]}}
    if inline:
        model["transformers"] = str(tmp_path / "net")
    else:
        (tmp_path / "model.yaml").write_text(json.dumps(model))
        model = str(tmp_path / "model.yaml")
    spec = FamilySpec(name="f", model=model, clients=(MemberSpec(name="all"),))
    (tmp_path / "net").mkdir()
    for names, expected in ((["cat", "ant", "bee"], True), (["LABEL_0", "LABEL_1"], False)):
        config = {"id2label": dict(enumerate(names))}
        (tmp_path / "net" / "config.json").write_text(json.dumps(config))
        again = in_order_of_folder(data, spec)
        assert list(again.labels) == (names if expected else ["ant", "bee", "cat"])
        for one in (again.train, again.test):
            assert torch.equal(one.inputs, rows)
            assert [again.labels[i] for i in one.targets] == ["ant", "bee", "cat"] * 2
