"""Kinds of files and engines that a package brings."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

import archgraph as ag
from archgraph.language import kinds

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/files-and-engines.md"


def code() -> str:
    """Return what the page of the docs defines."""
    lines = PAGE.read_text().splitlines()
    return "\n".join(line[4:] for line in lines if line.startswith((">>> ", "... ")))


@pytest.mark.full
def test_a_kind_of_file_and_an_engine_of_the_docs_are_known_when_installed(tmp_path):
    """In a process of its own, which finds the package's metadata as it starts."""
    (tmp_path / "mine.py").write_text(code())
    metadata = tmp_path / "mine-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[archgraph.files]\nbudgets = mine:BUDGETS\n"
        "[archgraph.engines]\nannounced = mine:announced\n"
    )
    (tmp_path / "calls.py").write_text(
        "import archgraph as ag\n"
        "from archgraph.language import schema\n"
        "from archgraph.language.kinds import kind_of\n"
        "from tests.cli.terminal import call\n"
        "assert kind_of({'budgets': []}) == 'budgets'\n"
        "assert schema('budgets')['title'] == 'archgraph budgets'\n"
        "assert '2 budgets' in call('check', 'mine.yaml').output\n"
        f"spec = ag.load_experiment({str(ROOT / 'docs/examples/scaffold.yaml')!r})\n"
        "engine = type(spec.engine)(kind='announced')\n"
        "update = {'engine': engine, 'rounds': 1, 'strategy': {'heterofl': None}}\n"
        "run = ag.run(spec.model_copy(update=update))\n"
        "assert len(run.rounds) == 1\n"
    )
    call = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; import calls"
    done = subprocess.run(
        [sys.executable, "-c", call], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "clients\n" in done.stdout


def test_a_package_that_stands_on_the_path_twice_is_one(monkeypatch):
    class Entry:
        def load(self) -> kinds.FileKind:
            return kinds.MODEL

    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Entry(), Entry()])
    assert list(kinds.file_kinds.__wrapped__()) == ["model"]  # a package that stands twice


@pytest.mark.parametrize("name", ["model", "study"])
def test_a_kind_of_file_does_not_replace_a_shipped_one(monkeypatch, name):
    other = dataclasses.replace(kinds.MODEL, name=name, rank=9)
    shipped = kinds.file_kinds()[name]

    class Entry:
        def __init__(self, kind: kinds.FileKind) -> None:
            self.kind = kind

        def load(self) -> kinds.FileKind:
            return self.kind

    entries = [Entry(shipped), Entry(other)]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: entries)
    with pytest.raises(ag.SpecError, match=f"{name}: several packages"):
        kinds.file_kinds.__wrapped__()
