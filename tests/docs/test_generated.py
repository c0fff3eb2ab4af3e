"""The pages that are written from the code have an entry for everything that they describe."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from archgraph.cli import app
from archgraph.hints import EXTRAS
from tests import sheets

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generated() -> Any:
    """The extension of Sphinx that writes the pages."""
    spec = importlib.util.spec_from_file_location("generated", ROOT / "docs" / "generated.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def headings(text: str) -> set[str]:
    return set(re.findall(r"^#+ `([^`]+)`$", text, re.M))


def test_every_command_has_an_entry(generated: Any) -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    single = set(group.commands) - {"flower"}
    assert headings(generated.commands()) == single | {"flower init"}


def test_every_strategy_has_an_entry_and_every_option_a_sentence(generated: Any) -> None:
    text = generated.strategies()
    names = {e.name for e in importlib.metadata.entry_points(group="archgraph.strategies")}
    assert headings(text) == names
    assert not re.findall(r"^\| `.*\|  \|$", text, re.M)


def test_every_field_of_a_strategys_types_has_a_sentence(generated: Any) -> None:
    names = (*generated.STRATEGY_TYPES, *generated.CLIENT_TYPES)
    text = generated.fields(names)
    assert headings(text) == set(names)
    assert not re.findall(r"^\| `.*\|  \|$", text, re.M)


def test_every_public_name_belongs_to_one_task(generated: Any) -> None:
    names = " ".join(generated.TASKS.values()).split()
    assert sorted(names) == sorted(generated._stub_names("archgraph"))


def test_every_room_has_a_row(generated: Any) -> None:
    names = re.findall(r"^\| (?:\{doc\}`)?(\w+)", generated.rooms(), re.M)
    rooms = {path.parent.name for path in (ROOT / "archgraph").glob("*/__init__.py")}
    assert len(names) == len(set(names)) and set(names) == rooms | {"room"}


def test_every_extra_has_a_row_with_its_modules(generated: Any) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"]) - {"dev", "docs"}
    rows = dict(re.findall(r"^\| `(\w+)` \| .+ \| (`.+) \|$", generated.extras(), re.M))
    assert set(rows) == extras
    assert {m: e for e, cell in rows.items() for m in re.findall(r"`(\w+)`", cell)} == EXTRAS


def test_a_picture_of_the_gallery_leads_to_its_page_once_that_is_written(
    generated: Any, tmp_path: Path
) -> None:
    page = tmp_path / "gallery" / "torchvision-resnet18.html"
    page.parent.mkdir()
    page.write_text("")
    links = re.findall(r'href="([^"]+)"', generated.gallery(tmp_path))
    assert len(links) == 12 and links[0] == "gallery/torchvision-resnet18.html"
    assert all((ROOT / "docs" / link).is_file() for link in links[1:])


def test_a_value_is_described_on_one_page(generated: Any) -> None:
    pages = generated.reference()
    described = [n for p in pages.values() for n in re.findall(r"^\.\. auto\w+:: (.*)$", p, re.M)]
    modules = [name for name in described if name in {page[:-3] for page in pages}]
    assert len(described) == len(set(described))
    assert len(modules) == len(pages)
    assert "archgraph.take" in described and "archgraph.federation.Task" in described


def test_every_strategy_has_a_row_of_requirements(generated: Any) -> None:
    rows = [line.split(" | ") for line in generated.methods().splitlines()]
    heads = rows[0]
    assert len(rows) == 2 + len(importlib.metadata.entry_points(group="archgraph.strategies"))
    assert all(len(row) == len(heads) for row in (rows[0], *rows[2:]))
    fedmd = next(row for row in rows if row[0] == "| `fedmd`")
    assert fedmd[heads.index("needs public data")] == "●"
    assert not fedmd[heads.index("needs a global model")].strip()


def test_every_measured_model_is_counted_once(generated: Any) -> None:
    counted: dict[str, int] = {}
    for line in generated.measured().splitlines()[2:]:
        name, models, passed = (line.split(" | ")[i] for i in (0, 2, 3))
        assert int(passed) <= int(models)
        counted[name.strip("| `")] = counted.get(name.strip("| `"), 0) + int(models)
    folder = ROOT / "docs" / "measured"
    assert counted == {name: len(sheets.read(folder / f"{name}.csv")) for name in generated.EXAMS}
