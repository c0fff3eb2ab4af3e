"""Pictures of README and documentation show what today's code draws."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.zoo.collection import entry
from tests.zoo.gallery import graph_of, printed, thumbnail

ROOT = Path(__file__).resolve().parents[2]
STATIC = ROOT / "docs" / "_static"
with (ROOT / "docs" / "gallery.csv").open(newline="") as file:
    ROWS = list(csv.DictReader(file))
MODELS = [row["model"] for row in ROWS]


@pytest.fixture(scope="module")
def picture() -> Any:
    """The script that makes the pictures."""
    spec = importlib.util.spec_from_file_location("picture", ROOT / "docs" / "picture.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_of_the_readme_is_drawn_by_todays_code(picture: Any) -> None:
    assert (STATIC / "network.svg").read_bytes() == picture.network(), "run python docs/picture.py"


def test_photographs_show_todays_pages(picture: Any) -> None:
    assert json.loads(picture.DIGESTS.read_text()) == picture.digests(), (
        "run python docs/picture.py --photos"
    )
    assert all((STATIC / f"{name}.png").is_file() for name in picture.PHOTOS)


@pytest.mark.parametrize(
    "model",
    [pytest.param(name, marks=[] if i == 0 else pytest.mark.full) for i, name in enumerate(MODELS)],
)
def test_a_small_picture_of_the_gallery_is_drawn_by_todays_code(model: str) -> None:
    file = STATIC / "gallery" / f"{model.replace('/', '-')}.svg"
    assert file.read_bytes() == thumbnail(graph_of(entry(model))), "run make gallery"


def printed_rows() -> dict[str, list[str]]:
    """Return what the gallery says of each model's figures, by its name."""
    lines = re.findall(r"^\| (.*) \|$", (ROOT / "docs" / "gallery.md").read_text(), re.M)
    return {name: said for name, *said in (line.split(" | ") for line in lines[2:])}


def test_most_of_the_gallery_fits_a_page_with_a_box_per_block() -> None:
    assert sum("per block" in said[1] for said in printed_rows().values()) >= 9


@pytest.mark.full
@pytest.mark.parametrize("model", MODELS)
def test_figures_for_papers_are_as_the_gallery_says(model: str) -> None:
    (name,) = [row["name"] for row in ROWS if row["model"] == model]
    graph = graph_of(entry(model))
    assert [printed(graph, width) for width in ("3.3in", "7in")] == printed_rows()[name]


def test_small_pictures_of_the_gallery_are_small() -> None:
    files = list((STATIC / "gallery").iterdir())
    assert len(files) == len(MODELS) == 12
    assert sum(file.stat().st_size for file in files) <= 300_000
