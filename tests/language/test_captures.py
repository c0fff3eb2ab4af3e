"""Captures that are kept: the same graph without tracing, and none where anything differs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import archgraph as ag
from archgraph.capture import trace as tracing
from archgraph.language import captures
from archgraph.language.captures import captures_folder, keeping
from archgraph.language.consent import allowed
from archgraph.language.loading import load_model
from archgraph.language.yaml import read_document
from archgraph.rewrites.laws import outputs, random_inputs, relative_difference

NET = """\
from pathlib import Path

import torch
from torch import nn

from kept_parts import tools


def told(name):
    return float((Path(__file__).parent / name).read_text())


EPS = told("eps")


class Net(nn.Module):
    def __init__(self, width=8, function=None, made=None):
        super().__init__()
        self.first, self.norm = nn.Linear(4, width), nn.BatchNorm1d(width, eps=EPS)
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(width, 3)
        self.register_buffer("table", torch.full((width,), 2.0), persistent=False)
        self.factors = {"b", "a", "c"}
        self.function = function or torch.relu
        if made:
            self.made = tools.Own() if made == "own" else lambda x: x

    def forward(self, x):
        y = tools.act(self.first(x)) * self.table
        if self.training:
            y = y * told("training")
        return self.last(self.drop(self.function(self.norm(y)))) * told("always")
"""
OWN = """

class Own:
    def __getstate__(self):
        return {}
"""
FACTORY = """\
from kept_given import act
from kept_net import Net


def make():
    return Net(function=act)
"""
FILE = """\
archgraph: 1
python: kept_net:Net
args: {width: 8}
inputs: {x: {shape: [4], dtype: float32}}
"""


class Place:
    """A folder with a model in Python and the file that names it."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        (folder / "kept_parts").mkdir()
        self.write("kept_net.py", NET)
        self.write("kept_parts/__init__.py", "")
        self.write(
            "kept_parts/tools.py", "import torch\n\n\ndef act(x):\n    return torch.relu(x)\n" + OWN
        )
        self.write("net.yaml", FILE)
        for name, number in (("eps", 1e-5), ("training", 1.0), ("always", 1.0)):
            self.write(name, str(number))
        self.traced = 0
        original = tracing.trace

        def counted(*args: object, **kwargs: object) -> object:
            self.traced += 1
            return original(*args, **kwargs)  # type: ignore[arg-type]  # passed on

        patch.setattr("archgraph.language.python.trace", counted)

    def write(self, name: str, text: str, old: bool = True) -> None:
        path = self.folder / name
        path.write_text(text)
        if old:
            os.utime(path, (time.time() - 60,) * 2)

    def load(self) -> tuple[ag.ArchGraph, dict[str, torch.Tensor], int]:
        """As a new process: what it gives, and how often it was traced."""
        for name in [n for n in sys.modules if n.startswith("kept_")]:
            del sys.modules[name]
        before = self.traced
        with keeping(), allowed():
            graph, state = load_model(read_document(self.folder / "net.yaml"))
        assert state is not None
        return graph, state, self.traced - before

    def kept(self) -> int:
        folder = captures_folder()
        assert folder is not None
        return len([*folder.glob("*.json")])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("ARCHGRAPH_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield Place(tmp_path, monkeypatch)
    for name in [n for n in sys.modules if n.startswith("kept_")]:
        del sys.modules[name]


def test_a_second_process_gets_the_same_without_tracing(place: Place):
    graph, state, traced = place.load()
    again, weights, more = place.load()
    assert (traced, more, place.kept()) == (1, 0, 1)
    assert again == graph and again.notes == graph.notes and again.name == graph.name
    assert [n.source for n in again.nodes] == [n.source for n in graph.nodes]
    assert {*state} == {*weights}
    assert all(torch.equal(state[name], weights[name]) for name in state)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("kept_net.py", "self.first(x)", "self.first(x + 1)"),
        ("kept_parts/tools.py", "relu", "tanh"),
        ("kept_net.py", "2.0", "3.0"),  # a constant of the graph
        ("kept_net.py", "Dropout(0.5)", "Dropout(0.4)"),
        ("eps", "1e-05", "2e-05"),  # a number that a module has read
        ("net.yaml", "width: 8", "width: 6"),
        ("net.yaml", "shape: [4]", "shape: [5, 4]"),
        ("net.yaml", "python:", "name: other\npython:"),
    ],
)
def test_whatever_it_is_made_of_makes_another_one(place: Place, name: str, old: str, new: str):
    place.load()
    text = (place.folder / name).read_text()
    assert old in text
    place.write(name, text.replace(old, new))
    if "5, 4" in new:
        place.write("kept_net.py", NET.replace("BatchNorm1d(width", "BatchNorm1d(5"))
    graph, state, traced = place.load()
    assert (traced, place.kept()) == (1, 2)
    given = random_inputs(graph, 3)
    model = sys.modules["kept_net"].Net(len(state["first.bias"]))
    model.load_state_dict(state)
    found, expected = (outputs(m.eval(), given) for m in (ag.build(graph, state), model))
    assert relative_difference(found, expected) < 1e-6


def test_a_function_that_the_model_holds_is_part_of_it(place: Place):
    """Its module is imported by the factory alone."""
    place.write("kept_factory.py", FACTORY)
    place.write("kept_given.py", "def act(x):\n    return x.clamp(max=50)\n")
    place.write("net.yaml", FILE.replace("kept_net:Net\nargs: {width: 8}", "kept_factory:make"))
    assert [place.load()[2], place.load()[2]] == [1, 0]
    place.write("kept_given.py", "def act(x):\n    return x.clamp(max=20)\n")
    graph, _, traced = place.load()
    assert traced == 1
    assert any("20" in str(node) for node in graph.nodes)


@pytest.mark.parametrize("file", ["always", "training"])
def test_what_computes_something_else_is_traced_again(place: Place, file: str):
    """What forward reads for itself is no part of the name."""
    place.load()
    place.write(file, "2.0")
    traced = place.load()[2]
    assert (traced, place.kept()) == (1, 1)
    assert place.load()[2] == 0
    place.write(file, "1.0")
    assert place.load()[2] == 1


@pytest.mark.parametrize("asks", ["os.environ.get('KEPT')", "os.getenv('KEPT')"])
def test_code_that_asks_the_environment_is_not_kept(place: Place, asks: str):
    place.write("kept_net.py", f"import os\n\nKEPT = {asks}\n{NET}")
    assert place.load()[2] == place.load()[2] == 1
    assert place.kept() == 0


def test_code_that_changes_while_the_process_runs_is_not_kept(place: Place):
    place.write("kept_parts/tools.py", "import torch\nact = torch.tanh\n", old=False)
    os.utime(place.folder / "kept_parts/tools.py", (time.time() + 60,) * 2)
    assert place.load()[2] == place.load()[2] == 1
    assert place.kept() == 0


@pytest.mark.parametrize("made", ["unnamed", "own"])
def test_a_model_that_cannot_be_described_is_not_kept(place: Place, made: str):
    place.write("net.yaml", FILE.replace("width: 8", f"made: {made}"))
    assert place.load()[2] == place.load()[2] == 1
    assert place.kept() == 0


@pytest.mark.parametrize("content", ["", "{", "{}", '{"graph": "x", "sources": {}}', "[1]"])
def test_a_file_that_is_not_whole_is_written_anew(place: Place, content: str):
    place.load()
    (file,) = (place.folder / "cache").iterdir()
    file.write_text(content)
    assert place.load()[2] == 1
    assert place.load()[2] == 0


def test_a_file_of_another_model_is_not_taken(place: Place):
    place.load()
    (file,) = (place.folder / "cache").iterdir()
    file.write_text(file.read_text().replace("float32[8, 4]", "float32[9, 4]"))
    assert place.load()[2] == 1


def test_none_is_kept_without_a_folder_and_in_python(place: Place):
    with allowed():
        load_model(read_document(place.folder / "net.yaml"))
    assert place.kept() == 0
    place.patch.setenv("ARCHGRAPH_CACHE", "")
    assert place.load()[2] == place.load()[2] == 1
    place.patch.setenv("ARCHGRAPH_CACHE", str(place.folder / "net.yaml/no"))  # cannot be written
    assert place.load()[2] == place.load()[2] == 1


def test_the_oldest_go(place: Place):
    place.patch.setattr(captures, "MOST", 2)
    for width in (5, 6, 7):
        place.write("net.yaml", FILE.replace("8", str(width)))
        place.load()
    assert place.kept() == 2
    assert place.load()[2] == 0
