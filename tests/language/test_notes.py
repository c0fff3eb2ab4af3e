"""What a graph does otherwise than its model is said wherever the model goes."""

from __future__ import annotations

import pickle
import sys
import warnings
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import archgraph as ag
from archgraph.cli import app
from archgraph.engine import prepare
from archgraph.graph.text import parse

MODULE = """\
import torch
class Net(torch.nn.Module):
    def __init__(self, hooked=False):
        super().__init__()
        self.stem = torch.nn.Linear(64, 8)
        self.fc = torch.nn.Linear(8, 10)
        if hooked:
            self.fc.weight.register_hook(lambda gradient: 2 * gradient)
    def forward(self, image):
        x = self.stem(image.flatten(1))
        if self.training:
            x = x * torch.rand_like(x)
        return self.fc(x)
"""
DRAWN = "only in training: rand_like, mul at noted.py:12"
HOOKED = "fc.weight"
MODEL = "archgraph: 1\npython: 'noted:Net'\ninputs: {image: [1, 8, 8]}\n"
FAMILY = "archgraph: 1\nmodel: model.yaml\nclients: [{name: a}, {name: half, take: 0.5}]\n"
EXPERIMENT = (
    "archgraph: 1\nname: e\nfamily: family.yaml\ndata: {dataset: digits, limit: 60}\n"
    "strategy: {heterofl: {}}\nrounds: 1\nlocal: {lr: 0.1}\n"
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, consent: None) -> Path:
    """A folder with a model that draws random numbers in training, and what names it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "noted", raising=False)
    (tmp_path / "noted.py").write_text(MODULE)
    for name, text in (("model", MODEL), ("family", FAMILY), ("experiment", EXPERIMENT)):
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


def test_notes_are_labels_of_the_graph(here: Path) -> None:
    graph = ag.load("model.yaml")
    assert graph.notes == (DRAWN,)
    assert f"\n  note: {DRAWN}" in repr(graph)
    bare = graph.replace(notes=())
    assert bare == graph and bare.digest == graph.digest and hash(bare) == hash(graph)
    assert "\n" not in repr(bare)
    assert pickle.loads(pickle.dumps(graph)).notes == graph.notes
    ag.save(graph, "flat.yaml")
    assert ag.load("flat.yaml").notes == graph.notes
    assert ag.take(graph, 0.5).graph.notes == graph.notes


def test_what_is_made_of_graphs_has_the_notes_of_all(here: Path) -> None:
    graph = ag.load("model.yaml")
    one, two = graph.replace(notes=("a", "b")), ag.take(graph, 0.5).graph.replace(notes=("b", "c"))
    assert ag.join([one, two]).graph.notes == ("a", "b", "c")
    assert ag.meet([two, one]).graph.notes == ("b", "c", "a")
    parts = ag.split(graph, after="stem")
    assert all(part.graph.notes == (DRAWN,) for part in parts)
    assert ag.chain(parts).notes == (DRAWN,)
    first, second = (part.graph for part in parts)
    assert ag.chain([first, second.replace(notes=("x",))]).notes == (DRAWN, "x")


def test_the_printed_form_has_them(here: Path) -> None:
    graph = ag.load("model.yaml").replace(notes=("it's\nso", DRAWN))
    assert parse(str(graph)).notes == graph.notes
    assert str(graph).splitlines()[1] == 'note "it\'s\\nso"'
    with pytest.raises(ag.SpecError, match=r"line 2, column 6: cannot be read"):
        parse("graph 'x'\nnote unquoted")


def test_unpacking_keeps_them(here: Path) -> None:
    from noted import Net  # type: ignore[import-not-found]  # written by the fixture

    traced = ag.trace(Net(), torch.zeros(2, 1, 8, 8))
    graph, _ = traced
    assert graph.notes == traced.notes == (DRAWN,)
    assert repr(traced).splitlines()[1] == f"  note: {DRAWN}"
    with pytest.warns(ag.TraceWarning, match=HOOKED):
        graph, _ = ag.trace(Net(hooked=True), torch.zeros(2, 1, 8, 8), strict=False)
    assert any(HOOKED in note for note in graph.notes)


def test_a_file_may_take_a_difference_as_a_note(here: Path) -> None:
    (here / "model.yaml").write_text(f"{MODEL}args: {{hooked: true}}\n")
    with pytest.raises(ag.TraceError, match=rf"model\.yaml:2: python: {HOOKED}"):
        ag.load("model.yaml")
    (here / "model.yaml").write_text(f"{MODEL}args: {{hooked: true}}\nstrict: false\n")
    with pytest.warns(ag.TraceWarning, match=HOOKED):
        graph = ag.load("model.yaml")
    assert len(graph.notes) == 2


def test_the_run_folder_has_them(here: Path) -> None:
    run = ag.run("experiment.yaml", out="run", progress=False)
    assert run.experiment.world.graph.notes == (DRAWN,)
    for name in ("global", "a", "half"):
        assert ag.load(f"run/models/{name}.yaml").notes == (DRAWN,)
        text = (here / "run" / "models" / f"{name}.yaml").read_text()
        assert f'notes:\n  - "{DRAWN}"\n' in text


def test_they_are_not_facts_of_a_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wording may change: a run can still be resumed."""
    facts = prepare("experiment.yaml").facts
    monkeypatch.setattr("archgraph.capture.trace._texts", lambda *_: ("other words",))
    again = prepare("experiment.yaml")
    assert again.world.graph.notes == ("other words",)
    assert again.facts == facts


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "line",
    [
        "show model.yaml",
        "explain model.yaml",
        "draw model.yaml",
        "compare model.yaml model.yaml",
        "match model.yaml model.yaml",
        "match model.yaml model.yaml --weights",
        "rewrite model.yaml",
        "show family.yaml",
        "check model.yaml family.yaml experiment.yaml",
        "run experiment.yaml --out run",
        "trace python:noted:Net --input image=2,1,8,8",
    ],
)
def test_every_command_prints_them_once(here: Path, line: str) -> None:
    done = CliRunner().invoke(app, [*line.split(), "--python"])
    assert done.stderr.count(DRAWN) == 1, done.output
    # A printed graph has its notes, so that it reads back.
    assert done.stdout.count(DRAWN) == line.startswith("trace")
    assert next(x for x in done.stderr.splitlines() if DRAWN in x).startswith("note: ")


def test_a_command_prints_a_difference_as_a_note(here: Path) -> None:
    words = "trace python:noted:Net --input image=2,1,8,8 --arg hooked=true".split()
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 2 and HOOKED in refused.stderr
    done = CliRunner().invoke(app, [*words, "--no-strict"])
    assert done.exit_code == 0 and done.stderr.count("note: ") == 2
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        CliRunner().invoke(app, [*words, "--no-strict"])
    assert not seen  # notes, not Python's warnings
