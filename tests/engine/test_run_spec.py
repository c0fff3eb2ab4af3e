"""Whole runs from YAML, by real strategies: repeatable, resumable, clear about bad input."""

from __future__ import annotations

import importlib
import json
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import archgraph as ag
from archgraph.data import ROOT_VARIABLE
from archgraph.engine import prepare
from archgraph.errors import DataError, RunError, SpecError
from archgraph.language import ExperimentSpec
from archgraph.record import read_metrics

MODEL = """
archgraph: 1
name: small
inputs: {image: [1, 8, 8]}
sections:
  - name: stem
    steps:
      - conv: {out: 8, kernel: 3, stride: 2}
      - batch_norm
      - relu
  - name: head
    steps:
      - global_avg_pool
      - flatten
      - linear: {out: 10}
"""

EXPERIMENT: dict[str, Any] = {
    "archgraph": 1,
    "name": "small",
    "family": {
        "model": "model.yaml",
        "clients": [{"name": "half", "count": 3, "take": 0.5}, {"name": "whole", "count": 2}],
    },
    "data": {"dataset": "digits", "limit": 300, "partition": {"scheme": "dirichlet"}},
    "strategy": {"heterofl": {}},
    "rounds": 2,
    "local": {"lr": 0.05, "momentum": 0.9, "batch": 16},
    "seed": 3,
}


def bits(tensors: Any) -> dict[str, bytes]:
    return {k: v.numpy().tobytes() for k, v in tensors.items()}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """An experiment file; keywords replace keys, dotted ones (`data__limit`) inside."""

    def make(name: str = "experiment", **changes: Any) -> Path:
        values = json.loads(json.dumps(EXPERIMENT))
        for key, value in changes.items():
            *path, last = key.split("__")
            target = values
            for part in path:
                target = target[part]
            target[last] = value
        (tmp_path / "model.yaml").write_text(MODEL)
        file = tmp_path / f"{name}.yaml"
        with file.open("w") as stream:
            YAML(typ="safe", pure=True).dump(values, stream)
        return file

    return make


def test_run_writes_what_it_returns(write, tmp_path):
    run = ag.run(write(), out=tmp_path / "out")
    assert run.folder == tmp_path / "out"
    assert read_metrics(tmp_path / "out") == list(run.rounds)
    assert [line["round"] for line in run.rounds] == [1, 2]
    assert set(run.evaluation["models"]) == {"global", "half", "whole"}
    graphs = {name: ag.load(tmp_path / "out" / "models" / f"{name}.yaml") for name in ("half",)}
    assert graphs["half"] == run.experiment.world.tier("half").graph
    assert [c.name for c in run.experiment.world.clients] == ["half"] * 3 + ["whole"] * 2


def test_record_names_the_architecture_that_ran(write):
    found = ag.run(write(strategy={"heterofl": {"mode": "dynamic"}}), progress=False)
    tiers = found.server.values["tiers"]
    ran = {c["client"]: c["name"] for c in found.rounds[-1]["clients"]}
    assert ran == {c: tiers[c] for c in ran}
    assert ran != {c.id: c.name for c in found.experiment.world.clients}


def test_run_without_a_folder_writes_nothing(write, tmp_path, monkeypatch):
    file = write()
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    assert ag.run(file).folder is None
    assert sorted(tmp_path.rglob("*")) == before


def test_folder_may_be_named_by_the_experiment(write, tmp_path):
    run = ag.run(write(out=str(tmp_path / "named"), rounds=1))
    assert run.folder == tmp_path / "named"
    assert (tmp_path / "named" / "run.yaml").is_file()


def test_resolved_experiment_reads_back_to_itself(write, tmp_path, monkeypatch):
    monkeypatch.delenv(ROOT_VARIABLE, raising=False)
    first = prepare(write())
    (tmp_path / "again.yaml").write_text(first.text)
    again = prepare(tmp_path / "again.yaml")
    assert again.facts == first.facts
    assert again.text == first.text
    assert again.world.graph == first.world.graph
    assert (again.local, again.evaluate) == (first.local, first.evaluate)
    assert "scaler" in first.text  # a default of the strategy, written out
    # What is not asked for is not written: else runs of before would be other experiments.
    assert not {"after", "fine_tune"} & set(re.findall(r"\w+", first.text))


def test_tests_begin_when_the_experiment_says(write, tmp_path):
    file = write(rounds=5, evaluate={"after": 0.5})
    run = ag.run(file, out=tmp_path / "run", progress=False)
    assert [line["round"] for line in run.rounds if "evaluation" in line] == [3, 4, 5]
    again = prepare(tmp_path / "run" / "run.yaml")
    assert again.evaluate == run.experiment.evaluate
    assert again.facts == prepare(write(rounds=5)).facts


def test_facts_do_not_depend_on_names_of_files(write, tmp_path):
    first = prepare(write())
    (tmp_path / "model.yaml").rename(tmp_path / "renamed.yaml")
    other = write(family__model="renamed.yaml", name="other")
    (tmp_path / "renamed.yaml").write_text(MODEL)
    assert prepare(other).facts == first.facts


def test_folder_of_another_experiment_is_refused(write, tmp_path):
    ag.run(write(rounds=1), out=tmp_path / "out")
    before = {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    for key, value, changed in (
        ("seed", 4, "seed: 3 instead of 4"),
        ("strategy", {"heterofl": {"scaler": False}}, "strategy.heterofl.scaler: true instead of"),
        ("local__lr", 0.1, "local.lr: 0.05 instead of 0.1"),
        ("data__limit", 299, "data.limit: 300 instead of 299"),
    ):
        with pytest.raises(RunError, match=f"holds another experiment(?s:.)*{changed}"):
            ag.run(write(rounds=1, **{key: value}), out=tmp_path / "out", resume=True)
    assert {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()} == before


HYPERNETWORK: dict[str, Any] = {"width": 16, "hidden": 16, "tile": 8, "descriptor": "id"}
STRATEGIES: dict[str, dict[str, Any]] = {
    "fedavg": {"family__clients": [{"name": "all", "count": 5}], "strategy": {"fedavg": {}}},
    "fedavg, local statistics": {
        "family__clients": [{"name": "all", "count": 5}],
        "strategy": {"fedavg": {"norm": "local"}},
    },
    "heterofl": {},
    "fedfa": {"strategy": {"fedfa": {}}},
    "fedfa, attacked": {
        "strategy": {"fedfa": {}},
        "attack": {"fraction": 0.2, "intensity": 20.0},
    },
    "recipfl": {"strategy": {"recipfl": HYPERNETWORK}},
    "recipfl, states on the disk": {"strategy": {"recipfl": {**HYPERNETWORK, "memory": 0.0}}},
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", STRATEGIES)
def test_resumed_run_has_the_bits_of_the_whole_one(write, tmp_path, name, monkeypatch):
    """Interrupted inside round 3 by something that no handler catches."""
    from archgraph.engine.clientwork import ClientWork

    file = write(rounds=3, sample=4, **STRATEGIES[name])
    whole = ag.run(file, out=tmp_path / "whole")
    work, third = ClientWork.__call__, []

    def die(self: Any, what: Any) -> Any:
        if what.round == 3:
            third.append(what.task.client)
        if len(third) == 3:
            raise KeyboardInterrupt
        return work(self, what)

    monkeypatch.setattr(ClientWork, "__call__", die)
    with pytest.raises(KeyboardInterrupt):
        ag.run(file, out=tmp_path / "broken")
    monkeypatch.undo()
    assert len(read_metrics(tmp_path / "broken")) == 2
    resumed = ag.run(file, out=tmp_path / "broken", resume=True)
    assert bits(resumed.server.tensors) == bits(whole.server.tensors)
    assert resumed.server.values == whole.server.values
    for ours, theirs in zip(resumed.rounds, whole.rounds, strict=True):
        assert ours.get("evaluation") == theirs.get("evaluation")
        assert all(line["rejected"] == line["failed"] == [] for line in (ours, theirs))


@pytest.mark.full
@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.1])
@pytest.mark.parametrize("strategy", [{"heterofl": {}}, {"recipfl": HYPERNETWORK}])
def test_killed_run_resumes_to_the_same_bits(write, tmp_path, delay, strategy):
    """`kill -9` of a real process during a round."""
    file = write(rounds=6, local__epochs=4, strategy=strategy)
    whole = ag.run(file, out=tmp_path / "whole")
    code = f"import archgraph; archgraph.run({str(file)!r}, out={str(tmp_path / 'run')!r})"
    process = subprocess.Popen([sys.executable, "-c", code])
    checkpoint = tmp_path / "run" / "checkpoints" / "round-000002"
    limit = time.monotonic() + 300
    while not checkpoint.is_dir() and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.002)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert 2 <= len(read_metrics(tmp_path / "run")) < 6
    resumed = ag.run(file, out=tmp_path / "run", resume=True)
    assert bits(resumed.server.tensors) == bits(whole.server.tensors)
    assert [r["evaluation"] for r in resumed.rounds] == [r["evaluation"] for r in whole.rounds]


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"strategy": {"hetrofl": {}}}, SpecError, "did you mean 'heterofl'"),
    ({"strategy": {"heterofl": {"skaler": True}}}, SpecError, "did you mean 'scaler'"),
    ({"sample": 6}, RunError, "sample: more clients in a round than the family has; found 6"),
    (
        {"engine": {"device": "warp"}},
        RunError,
        "engine.device: this machine, or this build of PyTorch, cannot use the device",
    ),
    ({"data__dataset": "fashion_mnist"}, DataError, "the data folder is not set"),
    ({"data__dataset": "digit"}, DataError, "did you mean 'digits'"),
    ({"family__clients": [{"name": "a", "count": 500}]}, DataError, "impossible number of"),
    ({"family__clients": [{"name": "global"}]}, SpecError, "stands for the global model"),
    (
        {"local": {"optimiser": "Adam", "momentum": 0.9}},
        SpecError,
        "local.momentum: cannot be combined with `optimiser`; found 0.9; write optimiser: {Adam: ",
    ),
    ({"local": {"decay": 0.5}}, SpecError, "local.decay: is an unknown key"),
    ({"data__bptt": 32}, DataError, "data.bptt: is not an option of digits; expected one of"),
    ({"strategy": {"fedavg": {}}}, RunError, "FedAvg averages one architecture"),
]


@pytest.mark.parametrize(("changes", "kind", "message"), BAD)
def test_bad_input_is_explained_and_leaves_nothing_behind(
    write, tmp_path, monkeypatch, changes, kind, message
):
    monkeypatch.delenv("ARCHGRAPH_DATA", raising=False)
    file = write(**changes)
    with pytest.raises(kind) as caught:
        ag.run(file, out=tmp_path / "new" / "out")
    assert message in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_model_of_another_shape(write, tmp_path):
    file = write()
    (tmp_path / "model.yaml").write_text(MODEL.replace("[1, 8, 8]", "[3, 32, 32]"))
    with pytest.raises(RunError, match=r"fit the data; .*; expected float32\[batch, 3, 32, 32"):
        ag.run(file)
    (tmp_path / "model.yaml").write_text(MODEL.replace("out: 10", "out: 7"))
    with pytest.raises(RunError, match=r"does not fit classification; found \[batch, 7\]"):
        ag.run(file)


def test_strategy_that_needs_a_global_model_says_so(write, tmp_path):
    clients = [{"name": "a", "model": "model.yaml"}, {"name": "b", "model": "model.yaml"}]
    with pytest.raises(RunError, match=r"strategy\.heterofl: the strategy needs a global model"):
        prepare(write(family={"clients": clients}))


def test_folder_in_use_is_noticed_before_anything_else(write, tmp_path):
    """Even when the data is missing: what costs no time comes first."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    file = write(data__dataset="fashion_mnist", data__root=str(tmp_path / "nowhere"))
    with pytest.raises(RunError, match="the run folder is not empty"):
        ag.run(file, out=tmp_path / "out")
    with pytest.raises(RunError, match="no run to resume"):
        ag.run(file, out=tmp_path / "missing", resume=True)
    with pytest.raises(RunError, match="no run folder"):
        ag.run(file, resume=True)


def test_python_model_brings_its_weights(write, tmp_path, monkeypatch):
    """A module without preparation: its own initial weights are the first global state."""
    (tmp_path / "mine.py").write_text(
        textwrap.dedent(
            """
            import torch
            from torch import nn

            def net():
                torch.manual_seed(5)
                return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
            """
        )
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    file = write(rounds=4, strategy={"fedavg": {}}, family__clients=[{"name": "a", "count": 2}])
    model = 'archgraph: 1\npython: "mine:net"\ninputs: {input: [1, 8, 8]}\n'
    (tmp_path / "model.yaml").write_text(model)
    run = ag.run(file, python=True)
    expected = importlib.import_module("mine").net().state_dict()
    assert bits(run.experiment.world.state) == bits(expected)
    assert run.experiment.facts["state"] is not None
    assert run.evaluation["global"]["accuracy"] > 0.3


def test_a_strategy_without_options_is_its_name():
    """A user writes `strategy: fedavg`, as `server: adam`."""
    shared = {"name": "e", "family": "f.yaml", "rounds": 1, "local": {"lr": 0.1}}
    short = ExperimentSpec.model_validate({**shared, "strategy": "fedavg"})
    assert short == ExperimentSpec.model_validate({**shared, "strategy": {"fedavg": {}}})
