"""What a shell and a notebook show of public values: a line or a small table, never the whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import archgraph as ag
from archgraph.display.picture import NOTEBOOK


@pytest.fixture(scope="module")
def values(shipped: ag.ArchGraph) -> dict[str, Any]:
    half = ag.take(shipped, 0.5)
    family = ag.resolve(ag.load_family("specs/families/fedfa_digits.yaml"))
    net = ag.build(shipped, seed=0)
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
        "experiment": ag.load_experiment("specs/experiments/fedfa_digits.yaml"),
        "parts": ag.split(shipped, before="head"),
        "merger": ag.Merger(shipped, ag.state_of(net)),
    }


@pytest.fixture(scope="module")
def shipped() -> ag.ArchGraph:
    return ag.load("specs/models/digits_cnn.yaml")


def test_a_repr_is_a_line(values: dict[str, Any]):
    for name, value in values.items():
        text = repr(value)
        assert len(text) <= 200 and "\n" not in text, name
        assert " object at 0x" not in text, name


def test_notebooks_show_tables_and_pictures(values: dict[str, Any]):
    for name in set(values) - {"experiment", "graph", "traced", "parts", "merger"}:
        html = values[name]._repr_html_()
        assert html.count("<table>") == html.count("</table>") >= 1, name
        assert len(html) < 50_000, name
    assert values["graph"]._repr_svg_().lstrip().startswith("<?xml")


def test_a_graph_too_large_for_a_picture_shows_its_line(monkeypatch, shipped: ag.ArchGraph):
    assert len(shipped.nodes) < NOTEBOOK
    monkeypatch.setattr("archgraph.display.picture.NOTEBOOK", 1)
    assert shipped._repr_svg_() is None
