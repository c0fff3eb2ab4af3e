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

import archgraph as ag
from archgraph.analysis.cost import cost
from archgraph.record.traffic import DOWN, UP, traffic
from archgraph.reports import report
from archgraph.reports.comparison import comparison
from archgraph.reports.headline import Ranking
from archgraph.reports.runs_page import rounds_sheet, runs_charts, runs_page
from tests.cli.terminal import call, refused
from tests.reports.test_comparison import made
from tests.reports.test_page import SPEC
from tests.reports.test_page import files as sheets

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
    chart, _ = runs_charts(comparison(runs[:2]))
    assert chart.name == "accuracy on all test data over the rounds"
    (panel,) = chart.figure.axes
    low, high = panel.get_ylim()
    bands = [np.asarray(of.get_paths()[0].vertices)[:, 1] for of in panel.collections]
    ends = {str(line.get_label()): np.asarray(line.get_ydata())[-1] for line in panel.get_lines()}
    assert list(ends) == ["small", "large", "global"]
    for (name, end), heights in zip(ends.items(), bands, strict=True):
        assert end == pytest.approx(VALUES[name] + 0.05, abs=1e-9)
        assert heights.max() == pytest.approx(end + 0.1 / 2**0.5, abs=1e-9)
        assert low < heights.min() and heights.max() < high


def test_groups_are_compared_by_their_average_worst_and_every_tier(runs: list[Path]):
    drawn = {chart.name: chart for chart in runs_charts(comparison(runs))}
    assert list(drawn) == [
        "average submodel: accuracy over the rounds",
        "worst submodel: accuracy over the rounds",
        "small: accuracy over the rounds",
        "large: accuracy over the rounds",
        "global model: accuracy over the rounds",
        "seconds per round",
    ]
    (worst,) = drawn["worst submodel: accuracy over the rounds"].figure.axes
    ends = [np.asarray(line.get_ydata())[-1] for line in worst.get_lines()]
    assert ends == pytest.approx([0.45] * 2)


def test_the_best_group_stands_first_with_its_lead_and_its_doubts(runs: list[Path], tmp_path: Path):
    """The ranking is that of the figures; a lead within the seeds' deviation says so."""
    ahead = made(tmp_path / "ahead", {k: v + 0.3 for k, v in VALUES.items()}, strategy="fedavg")
    near = [
        made(tmp_path / f"near{seed}", {k: v + 0.05 + seed / 10 for k, v in VALUES.items()},
             seed=seed, strategy="fedavg")
        for seed in (0, 1)
    ]  # fmt: skip
    level = Ranking.by(comparison([*near, *runs[:2]]))  # 5 points, with a deviation of 7
    clear = Ranking.by(comparison([ahead, *runs]))
    assert level is not None and clear is not None
    assert "This gap is smaller than the deviation over the seeds." in list(level.sentences())
    first, *others = clear.sentences()
    assert clear.rows[0][0].strategy == "fedavg"
    assert "80.00 % accuracy" in first and "25.00 points ahead of" in first
    assert "(55.00 ± 7.07 %)" in first and "With one seed, this gap may be chance." in others
    assert "Its worst model: 70.00 %." in others
    assert Ranking.by(comparison(runs[:2])) is None
    text = runs_page(comparison([ahead, *runs]), lambda log: None).replace("&nbsp;", " ")
    assert text.index(html.escape(first)) < text.index("<figure") < text.index("<h2>")


def test_every_table_and_plot_can_be_taken_away(runs: list[Path]):
    compared = comparison(runs, tiers=True)
    text = runs_page(compared, lambda log: None)
    tables = files(text, "csv")
    assert tables["runs"] == compared.csv() and tables["rounds"] == rounds_sheet(compared).csv()
    rows = list(csv.DictReader(io.StringIO(tables["rounds"])))
    assert len(rows) == 4 * 2 * 3  # runs, tests, models
    assert {row["accuracy"] for row in rows if row["model"] == "small" and row["round"] == "4"} == {
        "0.4", "0.5"
    }  # fmt: skip
    assert len(files(text, "svg")) == text.count("<figure ") == 6
    assert all(plot.startswith("<svg role") for plot in files(text, "svg").values())
    shown = compared.tables()[0]
    for cell in (*shown.columns[1:], *shown.rows[0], *shown.rows[1]):
        assert html.escape(cell) in text
    assert "<script" not in text


def test_report_takes_one_run_or_several_and_folders_of_them(runs: list[Path], tmp_path: Path):
    assert report(runs[0]) == runs[0] / "report.html"
    assert "<h2>Each run</h2>" not in (runs[0] / "report.html").read_text()
    path = report(tmp_path, tmp_path / "all.html")
    text = path.read_text()
    assert text.count("<summary>tiny (") == 4
    assert report(runs[:2]) == runs[0] / "report.html"
    result = call("report", *runs[:2], "-o", tmp_path / "two.html")
    assert result.exit_code == 0 and "two.html" in result.output
    refused(call("report", tmp_path / "nothing"), "not a run folder")


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> list[ag.engine.Run]:
    """Two seeds with an attack, and one of them without."""
    folder = tmp_path_factory.mktemp("attacked")
    clean = re.sub("attack: .*\n", "", SPEC).replace("name: attacked", "name: clean")
    made = []
    for name, text in (
        ("a4", SPEC),
        ("a5", SPEC.replace("seed: 4", "seed: 5")),
        ("clean", clean),
    ):
        (folder / f"{name}.yaml").write_text(text)
        made.append(ag.run(folder / f"{name}.yaml", out=folder / name, progress=False))
    return made


def folders(runs: list[ag.engine.Run]) -> list[Path]:
    return [run.folder for run in runs if run.folder is not None]


def test_traffic_of_several_runs_is_the_engines(attacked: list[ag.engine.Run]):
    compared = comparison(folders(attacked), tiers=True)
    found = sheets(runs_page(compared, lambda log: None))
    both = attacked[:2]
    for row in found["communication"]:
        runs = both if row["experiment"] == "attacked" else attacked[2:]
        lines = [line for run in runs for line in run.rounds]
        if row["tier"] == "all":
            for way in (DOWN, UP):
                sent = sum(traffic(line)[way] for line in lines) / len(runs)
                assert float(row[way]) == pytest.approx(sent, abs=1e-6)
            continue
        graph = runs[0].experiment.world.tier(row["tier"]).graph
        own = [r for line in lines for r in line["clients"] if r["name"] == row["tier"]]
        macs = 3 * sum(r["seen"] for r in own) * cost(graph).macs / len(runs)
        assert float(row["macs"]) == pytest.approx(macs, abs=1e-6)
        assert float(row["tasks"]) == len(own) / len(runs)


@pytest.mark.full
def test_what_all_runs_share_stands_once(attacked: list[ag.engine.Run], tmp_path: Path):
    asked: list[Path] = []

    def viewer(log):
        asked.append(log.folder)
        return "<p>the viewer</p>"

    text = report(folders(attacked), tmp_path / "all.html", viewer=viewer).read_text()
    assert asked == folders(attacked)[:1] and text.count("<iframe") == 1
    assert "<summary>attacked, clean</summary>" in text
    shared = {row["setting"]: row["value"] for row in sheets(text)["shared_settings"]}
    assert shared["local.batch"] == "16" and not {"seed", "attack.fraction"} & set(shared)
    assert any(row["setting"].startswith("attack") for row in sheets(text)["differences"])
    for fact in ("heterofl", "digits, iid", "4: 1 whole, 3 half_of_it"):
        assert f"<dd>{fact}</dd>" in text  # of each run
    ids = re.findall(r' id="([^"]*)"', text)
    assert len(ids) == len(set(ids))


def test_curves_are_drawn_over_bytes_and_macs_too(attacked: list[ag.engine.Run]):
    drawn = {chart.name: chart for chart in runs_charts(comparison(folders(attacked)))}
    costs = {
        "megabytes, both ways": lambda line: sum(traffic(line).values()) / 1e6,
        "GMACs of training": lambda line: line["macs"]["round"] / 1e9,
    }
    for axis, read in costs.items():
        (panel,) = drawn[f"average submodel: accuracy over {axis}"].figure.axes
        spent = np.cumsum([read(line) for line in attacked[2].rounds])
        second = panel.get_lines()[1]
        assert second.get_label() == "clean"
        assert np.asarray(second.get_xdata()) == pytest.approx(spent)


@pytest.mark.full
def test_long_names_leave_neither_legend_nor_bars_outside(tmp_path: Path):
    name = "RecipFL, Figure 6, RecipFL without knowledge transfer, MNIST"
    places = [
        made(tmp_path / strategy, VALUES, name=f"{name}, {strategy}", strategy=strategy)
        for strategy in ("fedfa", "heterofl")
    ]
    for chart in runs_charts(comparison(places)):
        chart.figure.draw_without_rendering()
        ink = chart.figure.get_tightbbox()  # in inches
        assert min(ink.x0, ink.y0) >= 0, chart.name
        assert ink.x1 <= chart.figure.get_figwidth() and ink.y1 <= chart.figure.get_figheight()
