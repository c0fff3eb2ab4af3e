"""A run that goes on names the user's modules that changed since, and no others."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import archgraph as ag
from archgraph.engine.local import Run
from archgraph.errors import RunError
from archgraph.record.checkpoint import SUMS
from archgraph.record.proof import sha256

MODULES = {
    "net57": """
import torch

def make():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
""",
    "rows57": """
import torch
from help57 import SIZE

def make():
    inputs = torch.arange(64.0 * SIZE).remainder(7).reshape(SIZE, 1, 8, 8)
    return (inputs, torch.arange(SIZE) % 10), (inputs, torch.arange(SIZE) % 10)
""",
    "help57": "SIZE = 20\n",
    "loss57": "from torch.nn.functional import cross_entropy as loss\n",
    "cuts57": """
import archgraph as ag

def same(graph):
    return ag.Rewritten.identity(graph)
""",
    "way57": """
from archgraph.strategies.fedavg import FedAvg as Mine
""",
}
EXPERIMENT = {
    "name": "mine",
    "family": {
        "model": {"python": "net57:make", "inputs": {"input": [1, 8, 8]}},
        "clients": [{"name": "c", "count": 2, "python": {"cuts57:same": True}}],
    },
    "data": {"python": "rows57:make"},
    "task": {"kind": "classification", "objective": "python:loss57:loss"},
    "strategy": {"python": "way57:Mine"},
    "local": {"batch": 5, "lr": 0.1},
}


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Run]]:
    """Write the modules, as changed, and run or go on."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def run(rounds: int = 1, **changed: str) -> Run:
        for name, text in (MODULES | changed).items():
            (tmp_path / f"{name}.py").write_text(text)
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        experiment: dict[str, Any] = EXPERIMENT | {"rounds": rounds}
        out = tmp_path / "run"
        more = {"out": out, "resume": out.exists(), "progress": False, "python": True}
        return ag.run(experiment, **more)  # type: ignore[arg-type]  # of many types

    yield run
    for name in MODULES:
        sys.modules.pop(name, None)


def named(run: Run) -> list[str]:
    notes = [note for note in run.notes if "code" in note]
    return [name for note in notes for name in re.findall(r"\w+57", note)]


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_changed_is_named_for_good_and_no_other(go: Callable[..., Run], name: str):
    assert not named(go())
    assert not named(go(2, **{name: f"# said better\n\n{MODULES[name]}"}))
    edited = {name: f"{MODULES[name]}\nMORE = 1\n"}
    assert named(go(3, **edited)) == [name]
    assert named(go(4, **edited)) == [name]  # rounds 1 and 2 remain of the old one
    assert named(go(5)) == [name, name]


def test_where_the_change_makes_another_experiment_the_refusal_names_it(go: Callable[..., Run]):
    go()
    with pytest.raises(RunError, match=r"another experiment; found examples: .*; undo .* help57,"):
        go(2, help57="SIZE = 30\n")
    wide = MODULES["net57"].replace(
        "torch.nn.Linear(64, 10)", "torch.nn.Linear(64, 10, bias=False)"
    )
    with pytest.raises(
        RunError, match=r"found family\.c\.graph: .*; undo the changes in net57, or"
    ):
        go(2, net57=wide)
    assert not named(go(2))


def test_a_record_that_does_not_know_the_code_says_so_once(go: Callable[..., Run], tmp_path: Path):
    go()
    facts, server = (
        next((tmp_path / "run").rglob(f)) for f in ("facts.json", "round-000001/*.json")
    )
    known = json.loads(facts.read_text())
    assert set(known.pop("code")) == set(MODULES)
    facts.write_text(json.dumps(known))
    said = json.loads(server.read_text())
    del said["environments"][0]["code"]
    before = sha256(server)
    server.write_text(json.dumps(said))
    sums = server.with_name(SUMS)
    sums.write_text(sums.read_text().replace(before, sha256(server)))
    run = go(2)
    assert [note for note in run.notes if "code" in note] == [
        "your code is recorded only from round 2; earlier rounds may have run other code"
    ]
    assert named(go(3, loss57=f"{MODULES['loss57']}\nMORE = 1\n")) == ["loss57"]
