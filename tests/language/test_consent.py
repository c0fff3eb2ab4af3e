"""Python code that a file names runs only where the caller consents, at every door."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import archgraph as ag
from archgraph.cli import app
from archgraph.engine import prepare
from archgraph.engine.run_models import trained
from archgraph.federation import Strategy, configure
from archgraph.language import verdicts
from archgraph.language.consent import needs_consent

MODULE = """\
from pathlib import Path
Path(__file__).with_name("imported").touch()
import torch
from archgraph.strategies.fedavg import FedAvg
class Mine(FedAvg):
    pass
def net():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
"""
FILES = {
    "model.yaml": "archgraph: 1\npython: 'planted:net'\ninputs: {input: [1, 8, 8]}\n",
    "family.yaml": "archgraph: 1\nmodel: model.yaml\nclients: [{name: a, count: 2}]\n",
    "experiment.yaml": "archgraph: 1\nname: e\nfamily: family.yaml\n"
    "data: {dataset: digits, limit: 60}\nstrategy: {fedavg: {}}\nrounds: 1\nlocal: {lr: 0.1}\n",
    "strategy.yaml": "archgraph: 1\nname: s\nfamily: own.yaml\n"
    "data: {dataset: digits, limit: 60}\nstrategy: {python: 'planted:Mine'}\nrounds: 1\n"
    "local: {lr: 0.1}\n",
    "own.yaml": "archgraph: 1\nmodel: flat.yaml\nclients: [{name: a, count: 2}]\n",
    "flat.yaml": "archgraph: 1\ninputs: {input: [1, 8, 8]}\n"
    "sections: [{name: body, steps: [flatten, linear: 10]}]\n",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of files that name code; `imported` is in it as soon as that code runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "planted", raising=False)
    (tmp_path / "planted.py").write_text(MODULE)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


DOORS: Mapping[str, tuple[Callable[..., Any], str]] = {
    "load": (lambda **k: ag.load("model.yaml", **k), "model.yaml:2: python"),
    "resolve": (lambda **k: ag.resolve(ag.load_family("family.yaml"), **k), "model.yaml:2: python"),
    "prepare": (lambda **k: prepare("experiment.yaml", **k), "model.yaml:2: python"),
    "run": (lambda **k: ag.run("experiment.yaml", progress=False, **k), "model.yaml:2: python"),
    "a strategy": (
        lambda **k: ag.run("strategy.yaml", progress=False, **k),
        "strategy.yaml:5: strategy.python",
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_without_consent_nothing_is_imported(here: Path, door: str) -> None:
    enter, place = DOORS[door]
    with pytest.raises(ag.SpecError, match=rf"{place}: names Python code.*found planted:") as error:
        enter()
    assert "--python" in str(error.value) and "python=True" in str(error.value)
    assert not (here / "imported").exists()
    enter(python=True)
    assert (here / "imported").exists()
    with pytest.raises(ag.SpecError, match="without your consent"):
        enter()  # consent is for one call


def test_a_runs_models_need_consent_again(here: Path) -> None:
    ag.run("strategy.yaml", out="run", progress=False, python=True)
    with pytest.raises(ag.SpecError, match=r"run\.yaml:\d+: strategy\.python: names Python code"):
        trained("run")
    with pytest.raises(ag.SpecError, match="names Python code"):
        ag.run("run/run.yaml", out="run", resume=True, progress=False)
    assert set(trained("run", python=True)) == {"global"}


def test_checks_stay_at_the_form_and_keep_their_consent_to_themselves(here: Path) -> None:
    unseen = list(verdicts(["."]))
    assert all(verdict.good for verdict in unseen)
    assert {v.path.name for v in unseen if v.unseen} == {
        "model.yaml",
        "family.yaml",
        "experiment.yaml",
        "strategy.yaml",
    }
    assert not (here / "imported").exists()
    seen = verdicts(["model.yaml", "family.yaml"], python=True)
    assert next(seen).good
    with pytest.raises(ag.SpecError, match="names Python code"):
        ag.load("model.yaml")  # between two verdicts
    assert next(seen).note == "2 clients on 1 architecture"


COMMANDS = (
    "show model.yaml",
    "explain model.yaml",
    "draw model.yaml",
    "compare model.yaml flat.yaml",
    "match flat.yaml model.yaml",
    "rewrite model.yaml",
    "show family.yaml",
    "draw family.yaml -o pictures.svg",
    "run experiment.yaml --out run",
    "run strategy.yaml --out run",
    "match model.yaml model.yaml --weights",
)


@pytest.mark.sample(2)
@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_takes_consent_and_needs_it(here: Path, line: str) -> None:
    refused = CliRunner().invoke(app, line.split())
    assert refused.exit_code == 2, refused.output
    assert "names Python code, which is not run without your consent" in refused.stderr
    assert not (here / "imported").exists() and not (here / "run").exists()
    done = CliRunner().invoke(app, [*line.split(), "--python"])
    assert done.exit_code in (0, 1), done.stderr  # 1: two models differ
    assert (here / "imported").exists()


def test_to_name_a_callable_on_the_command_line_is_consent(here: Path) -> None:
    done = CliRunner().invoke(app, ["trace", "python:planted:net", "--input", "input=2,1,8,8"])
    assert done.exit_code == 0, done.stderr
    assert CliRunner().invoke(app, ["show", "model.yaml"]).exit_code == 2


@pytest.mark.parametrize(
    ("name", "base", "needed"),
    [
        ("archgraph.demo.network:Network", torch.nn.Module, False),
        ("archgraph.strategies.fedavg:FedAvg", Strategy, False),
        ("archgraph.strategies.fedavg:FedAvg", torch.nn.Module, True),
        ("archgraph.demo.network:torch.os.system", torch.nn.Module, True),
        ("archgraph.demo.network:nn", torch.nn.Module, True),
        ("archgraph.demo.network:Tensor", torch.nn.Module, True),
        ("archgraph.federation.training:nn.Module", torch.nn.Module, True),
        ("archgraph.files:write", torch.nn.Module, True),
        ("archgraph.demo:demo", torch.nn.Module, True),
        ("archgraph.nowhere:Net", torch.nn.Module, True),
        ("archgraphs.nowhere:Net", torch.nn.Module, True),
        ("torch.nn:Linear", torch.nn.Module, True),
    ],
)
def test_only_models_and_strategies_of_archgraph_need_none(
    name: str, base: type, needed: bool
) -> None:
    assert needs_consent(name, base) is needed


def test_names_of_others_in_our_modules_are_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    import archgraph.demo.network as ours

    monkeypatch.setattr(ours, "Theirs", torch.nn.Linear, raising=False)
    assert needs_consent("archgraph.demo.network:Theirs", torch.nn.Module)


def test_a_name_that_only_begins_like_ours_is_not_even_imported(here: Path) -> None:
    (here / "archgraphical.py").write_text(MODULE)
    assert needs_consent("archgraphical:Net", torch.nn.Module)
    assert not (here / "imported").exists()


def test_an_argument_made_in_python_needs_it_too(here: Path) -> None:
    (here / "nested.yaml").write_text(
        "python: archgraph.demo.network:Network\ninputs: {image: [1, 8, 8]}\n"
        "args:\n  width:\n    python: 'planted:net'\n"
    )
    with pytest.raises(ag.SpecError, match=r"names Python code.*found planted:net"):
        ag.load("nested.yaml")
    (verdict,) = verdicts(["nested.yaml"])
    assert verdict.unseen and not (here / "imported").exists()


def test_archgraphs_own_run_without_it(here: Path) -> None:
    (here / "ours.yaml").write_text(
        "python: archgraph.demo.network:Network\ninputs: {image: [1, 8, 8]}\n"
    )
    assert ag.load("ours.yaml").nodes
    (verdict,) = verdicts(["ours.yaml"])
    assert verdict.good and not verdict.unseen
    assert configure("archgraph.strategies.fedavg:FedAvg").needs_global


def command(here: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command line as a process of its own, which knows the folder only by standing in it."""
    line = [sys.executable, "-P", "-m", "archgraph", *words]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(line, cwd=here, env=environment, capture_output=True, text=True)


@pytest.fixture
def registered(here: Path) -> Path:
    """A folder with a package's metadata, which register a strategy under a plain name."""
    metadata = here / "planted-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1\n")
    names = "mine = planted:Mine\nfedavg = planted:Mine\n"
    (metadata / "entry_points.txt").write_text(f"[archgraph.strategies]\n{names}")
    (here / "named.yaml").write_text(
        FILES["strategy.yaml"].replace("python: 'planted:Mine'", "mine: {}")
    )
    return here


def test_the_folder_of_a_command_is_searched_only_with_consent(registered: Path) -> None:
    refused = command(registered, "check", "named.yaml")
    assert refused.returncode == 2 and "unknown strategy; found 'mine'" in refused.stdout
    assert not (registered / "imported").exists()


@pytest.mark.full
def test_consent_finds_the_strategy_of_a_folder_but_replaces_none_of_ours(registered: Path) -> None:
    here = registered
    (here / "other.yaml").write_text((here / "named.yaml").read_text().replace("mine", "fedavg"))
    double = command(here, "check", "--python", "other.yaml")  # nor does consent replace ours
    assert double.returncode == 2 and not (here / "imported").exists()
    words = " ".join(double.stdout.split())
    assert "several packages define a strategy named fedavg" in words
    assert "archgraph.strategies.fedavg:FedAvg, planted:Mine" in words
    done = command(here, "check", "--python", "named.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (here / "imported").exists()


def test_a_file_name_behind_two_dashes_is_no_consent(here: Path) -> None:
    refused = command(here, "check", "--", "strategy.yaml", "--python")
    assert refused.returncode == 2 and "--python: does not exist" in refused.stderr
    assert not (here / "imported").exists()
