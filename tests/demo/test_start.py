"""`archgraph init` writes copies of the shipped specs: complete, valid, in a new folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from archgraph.demo.start import start
from archgraph.errors import RunError
from archgraph.language import load_experiment
from archgraph.studies.spec import load_study

SPECS = Path(__file__).resolve().parents[2] / "specs"


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return start(tmp_path_factory.mktemp("start") / "mine")


def test_files_are_copies_of_the_shipped_ones(place):
    written = [file for file in place.rglob("*") if file.is_file() and file.suffix != ".md"]
    assert len(written) > 80
    for file in written:
        assert file.read_bytes() == (SPECS / file.relative_to(place)).read_bytes()


def test_every_experiment_finds_its_family(place):
    for file in place.glob("experiments/**/*.yaml"):
        assert load_experiment(file).family is not None, file


def test_commands_of_the_pages_find_their_files(place):
    """Those that name a file in specs, as the README promises after `archgraph init specs`."""
    pages = (SPECS.parent / "README.md", *SPECS.parent.glob("docs/*.md"))
    named = {
        name
        for page in pages
        for line in page.read_text().splitlines()
        if line.startswith("$ archgraph ")
        for name in re.findall(r"specs/([\w/.-]+)", line)
    }
    assert "studies/recipfl_table3.yaml" in named
    assert not [name for name in named if not (place / name).exists()]
    assert load_study(place / "studies/recipfl_table3.yaml").compare


def test_the_readme_names_files_that_were_written(place):
    text = (place / "README.md").read_text()
    for name in ("models/digits_cnn.yaml", "families/fedfa_digits.yaml"):
        assert name in text
        assert (place / name).exists()


@pytest.mark.parametrize("blocked", ["holds something", "is a file"])
def test_it_writes_over_nothing(tmp_path, blocked):
    if blocked == "is a file":
        (tmp_path / "mine").write_text("a letter")
    else:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "letter").write_text("a letter")
    with pytest.raises(RunError, match="needs a new or empty folder; found a f"):
        start(tmp_path / "mine")
    assert (
        "a letter"
        in next(
            f for f in (tmp_path / "mine", tmp_path / "mine" / "letter") if f.is_file()
        ).read_text()
    )
