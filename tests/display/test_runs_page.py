"""The page of several runs: seeds are one curve with a band, and every figure is the library's."""

from __future__ import annotations

import csv
import html
import io
import re
import urllib.parse
from pathlib import Path

import numpy as np
import pytest

from archgraph.display import report
from archgraph.display.comparison import comparison
from archgraph.display.runs_page import rounds_sheet, runs_charts, runs_page
from tests.cli.terminal import call, refused
from tests.display.test_comparison import made

VALUES = {"small": 0.4, "large": 0.6, "global": 0.5}


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [
        made(tmp_path / f"{strategy}{seed}", {k: v + seed / 10 for k, v in VALUES.items()},
             seed=seed, strategy=strategy)
        for strategy in ("fedfa", "heterofl") for seed in (0, 1)
    ]  # fmt: skip


def files(text: str, kind: str) -> dict[str, str]:
    links = re.findall(rf'download="(\w+)\.{kind}" href="data:[^,]*,([^"]*)"', text)
    return {name: urllib.parse.unquote(html.unescape(source)) for name, source in links}


def test_seeds_are_one_curve_whose_band_is_within_the_scale(runs: list[Path]):
    (name, figure), _ = runs_charts(comparison(runs[:2]))
    assert name == "accuracy on all test data over the rounds"
    (panel,) = figure.axes
    drawn = {line.get_label(): line for line in panel.get_lines()}
    assert list(drawn) == ["small", "large", "global"]
    for label, line in drawn.items():
        last = np.asarray(line.get_ydata())[-1]
        assert last == pytest.approx(VALUES[str(label)] + 0.05, abs=1e-9)
    assert len(panel.collections) == 3  # a band each
    low, high = panel.get_ylim()
    for part in panel.collections:
        (path,) = part.get_paths()
        heights = np.asarray(path.vertices)[:, 1]
        assert low < heights.min() and heights.max() < high


def test_groups_are_compared_by_their_average_worst_and_every_tier(runs: list[Path]):
    drawn = dict(runs_charts(comparison(runs)))
    assert list(drawn) == [
        "average submodel: accuracy over the rounds",
        "worst submodel: accuracy over the rounds",
        "small: accuracy over the rounds",
        "large: accuracy over the rounds",
        "global model: accuracy over the rounds",
        "seconds per round",
    ]
    lines = drawn["worst submodel: accuracy over the rounds"].axes[0].get_lines()
    assert [np.asarray(line.get_ydata())[-1] for line in lines] == pytest.approx([0.45] * 2)


def test_every_table_and_plot_can_be_taken_away(runs: list[Path]):
    compared = comparison(runs, tiers=True)
    text = runs_page(compared)
    tables = files(text, "csv")
    assert tables["runs"] == compared.csv() and tables["rounds"] == rounds_sheet(compared).csv()
    rows = list(csv.DictReader(io.StringIO(tables["rounds"])))
    assert len(rows) == 4 * 2 * 3  # runs, tests, models
    assert {row["accuracy"] for row in rows if row["model"] == "small" and row["round"] == "4"} == {
        "0.4", "0.5"
    }  # fmt: skip
    assert len(files(text, "svg")) == text.count("<figure>") == 6
    assert all(plot.startswith("<?xml") for plot in files(text, "svg").values())
    shown = compared.tables()[0]
    for cell in (*shown.columns[1:], *shown.rows[0], *shown.rows[1]):
        assert html.escape(cell) in text
    assert "<script" not in text


def test_report_takes_one_run_or_several_and_folders_of_them(runs: list[Path], tmp_path: Path):
    assert report(runs[0]) == runs[0] / "report.html"
    assert "<h2>Each run</h2>" not in (runs[0] / "report.html").read_text()
    path = report(tmp_path, tmp_path / "all.html")
    text = path.read_text()
    assert text.count("<summary>tiny (") == 4 and "6 in" not in text and "4 in 2 groups" in text
    assert report(runs) == runs[0] / "report.html"
    result = call("report", *runs[:2], "-o", tmp_path / "two.html")
    assert result.exit_code == 0 and "two.html" in result.output
    refused(call("report", tmp_path / "nothing"), "not a run folder")
