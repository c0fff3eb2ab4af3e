"""What a shell and a notebook show of public values: a line or a small table, never the whole."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch

import archgraph as ag
from archgraph.notebook import MOST
from archgraph.reports.runs import Log

EXPERIMENT = "specs/experiments/fedfa_digits.yaml"
# What is shown as a picture, and as text, where there is neither a table nor a page.
PICTURES = ("graph", "traced")
TEXTS = {"experiment", "outline", "family file", "log"}


@pytest.fixture(scope="module")
def values(shipped: ag.ArchGraph, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    half = ag.take(shipped, 0.5)
    family = ag.resolve(ag.load_family("specs/families/fedfa_digits.yaml"))
    net = ag.build(shipped, seed=0)
    folder = tmp_path_factory.mktemp("reprs") / "run"
    short = ag.load_experiment(EXPERIMENT).model_copy(update={"rounds": 1, "sample": 1})
    run = ag.run(short, out=folder, progress=False)
    return {
        "graph": shipped,
        "axes": ag.axes(shipped),
        "structure": ag.structure(shipped),
        "cost": ag.cost(shipped),
        "explanation": ag.explain(shipped),
        "importance": ag.importance(shipped, ag.state_of(net)),
        "rewritten": half,
        "transfer": half.transfer,
        "alignment": ag.align(half.graph, shipped),
        "joined": ag.join([shipped, half.graph]),
        "met": ag.meet([shipped, half.graph]),
        "family": family,
        "traced": ag.trace(net, torch.zeros(2, 1, 8, 8)),
        "experiment": ag.load_experiment(EXPERIMENT),
        "parts": ag.split(shipped, before="head"),
        "merger": ag.Merger(shipped, ag.state_of(net)),
        "outline": ag.outline(shipped),
        "family file": ag.load_family("specs/families/fedfa_digits.yaml"),
        "run": run,
        "log": Log(folder, (folder / "run.yaml").read_text(), run.rounds),
    }


@pytest.fixture(scope="module")
def shipped() -> ag.ArchGraph:
    return ag.load("specs/models/digits_cnn.yaml")


def test_a_repr_is_a_line(values: dict[str, Any]):
    for name, value in values.items():
        text = repr(value)
        assert len(text) <= 200 and "\n" not in text, name
        assert " object at 0x" not in text, name


def static_part(html: str) -> str:
    """What is left of HTML where frames and scripts are off."""
    return re.sub("<iframe.*?</iframe>", "", html, flags=re.DOTALL)


def test_notebooks_show_tables_and_pictures(values: dict[str, Any]):
    for name in set(values) - {*PICTURES, *TEXTS, "parts", "merger"}:
        html = static_part(values[name]._repr_html_())
        assert html.count("<table>") == html.count("</table>") >= 1, name
        assert len(html) < 50_000, name
    for name in PICTURES:
        assert '<img alt="the network"' in static_part(values[name]._repr_html_()), name
    for name in TEXTS - {"log"}:
        assert "<pre>" in values[name]._repr_html_(), name
    assert values["graph"]._repr_svg_().lstrip().startswith("<?xml")


def test_notebooks_show_pages_that_reach_nothing(values: dict[str, Any]):
    """The page of a value is that of `ag.view`, alone in a frame without an origin."""
    for name in (*PICTURES, "rewritten", "family", "run", "log"):
        html = values[name]._repr_html_()
        (frame,) = re.findall(r"<iframe (.*?)></iframe>", html, re.DOTALL)
        assert 'sandbox="allow-scripts allow-downloads"' in frame, name
        assert "<script" not in html and ' src="http' not in html
        page = unescape(re.findall('srcdoc="([^"]*)"', frame)[0])
        assert page.startswith("<!doctype html>") and "default-src 'none'" in page, name
        if name in ("graph", "rewritten", "family"):
            assert page == ag.view(values[name])


def test_text_of_a_file_reads_back(values: dict[str, Any], tmp_path: Path):
    (tmp_path / "family.yaml").write_text(str(values["family file"]))
    assert ag.load_family(tmp_path / "family.yaml") == values["family file"]
    (tmp_path / "experiment.yaml").write_text(str(values["experiment"]))
    assert ag.load_experiment(tmp_path / "experiment.yaml") == values["experiment"]


def test_a_graph_too_large_for_a_picture_shows_its_line(monkeypatch, shipped: ag.ArchGraph):
    assert len(shipped.nodes) < MOST
    monkeypatch.setattr("archgraph.display.picture.MOST", 1)
    assert shipped._repr_svg_() is None and shipped._repr_html_() is None
