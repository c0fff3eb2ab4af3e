"""The page of a run: every figure on it is the library's, and it can be read on a telephone."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import shutil
import subprocess
import urllib.parse
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from matplotlib.container import BarContainer

import archgraph as ag
from archgraph.analysis.cost import cost
from archgraph.display import colours
from archgraph.language import ExperimentSpec
from archgraph.record.points import points
from archgraph.record.traffic import size
from archgraph.reports.charts import charts, client_charts, curve_chart
from archgraph.reports.header import header
from archgraph.reports.headline import run_headline
from archgraph.reports.run_page import page
from archgraph.reports.run_tables import client_sheet, model_sheet, setting_sheet
from archgraph.reports.runs import Log, read_run
from archgraph.reports.settings import differing

SPECS = Path(__file__).parents[2] / "specs"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
SPEC = f"""\
archgraph: 1
name: attacked
family:
  model: {SPECS / "models" / "digits_cnn.yaml"}
  clients: [{{name: whole, choose: {{w1: 8}}}}, {{name: half_of_it, count: 3, take: 0.5}}]
data: {{dataset: digits, limit: 120}}
strategy: {{heterofl: {{scaler: false}}}}
rounds: 2
local: {{batch: 16, lr: 0.05}}
attack: {{fraction: 0.25, intensity: 1}}
validation: 0.2
seed: 4
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ag.engine.Run:
    folder = tmp_path_factory.mktemp("page")
    (folder / "e.yaml").write_text(SPEC)
    return ag.run(folder / "e.yaml", out=folder / "run", progress=False)


@pytest.fixture(scope="module")
def log(run: ag.engine.Run) -> Log:
    assert run.folder is not None
    return read_run(run.folder)


@pytest.fixture(scope="module")
def text(log: Log) -> str:
    return page(log)


def files(text: str) -> dict[str, list[dict[str, str]]]:
    """The CSV files of a page."""
    links = re.findall(r'download="(\w+)\.csv" href="data:text/csv;charset=utf-8,([^"]*)"', text)
    return {
        name: list(csv.DictReader(io.StringIO(urllib.parse.unquote(html.unescape(source)))))
        for name, source in links
    }


def test_every_figure_of_the_page_is_the_librarys(run: ag.engine.Run, text: str):
    found = files(text)
    assert list(found) == ["rounds", "models", "clients", "communication", "settings"]
    last, world = run.rounds[-1]["evaluation"], run.experiment.world
    for row in found["models"]:
        figures = last["models"][row["model"]]
        graph = world.graph if row["model"] == "global" else world.tier(row["model"]).graph
        assert float(row["accuracy"]) == figures["accuracy"]
        assert row["local_accuracy"] == str((figures.get("local") or {}).get("accuracy", ""))
        assert int(row["parameters"]) == cost(graph).parameters
        assert int(row["macs"]) == cost(graph).macs
    expected = [p for line in run.rounds for p in points(line) if p.part != "train"]
    assert [(r["group"], r["metric"], float(r["value"])) for r in found["rounds"]] == [
        (p.group, p.metric, p.value) for p in expected
    ]
    for row, client in zip(found["clients"], world.clients, strict=True):
        assert (row["tier"], int(row["examples"])) == (client.name, client.examples)
        counts = [int(row[f"class_{i}"]) for i in range(10)]
        assert tuple(counts) == client.histogram
    tasks = {row["tier"]: row for row in found["communication"]}
    whole = 2 * size(world.tier("whole").state)
    assert (int(tasks["whole"]["bytes_down"]), int(tasks["whole"]["bytes_up"])) == (whole, whole)
    seen = sum(r["seen"] for line in run.rounds for r in line["clients"] if r["client"] == 0)
    assert int(tasks["whole"]["macs"]) == 3 * seen * cost(world.tier("whole").graph).macs
    both = sum(int(tasks[name]["bytes_down"]) for name in ("whole", "half_of_it"))
    assert int(tasks["all"]["bytes_down"]) == both


def test_what_is_read_is_what_the_files_say(log: Log, text: str):
    for sheet in (model_sheet(log), client_sheet(log)):
        assert sheet.table().html() in text
    for name, fact in header(log):
        assert f"<dt>{html.escape(name)}</dt><dd>{html.escape(fact)}</dd>" in text
    facts = dict(header(log))
    assert facts["strategy"] == "heterofl"
    assert facts["clients"] == "4: 1 whole, 3 half_of_it"
    assert (facts["rounds"], facts["seed"], facts["data"]) == ("2", "4", "digits, iid")
    (bad,) = [client for client in log.clients if client.malicious]
    assert facts["malicious"] == bad.label
    assert "–" in facts["parameters"] or "of clients" in facts["parameters"]


def test_settings_shown_are_those_that_differ(log: Log):
    assert log.experiment is not None
    shown = {row[0]: row[1:] for row in setting_sheet(log).rows}
    assert log.experiment.data is not None
    data = log.experiment.data.model_copy(update={"root": "/a/path/of/a/machine"})
    moved = differing(log.experiment.model_copy(update={"data": data}))
    assert [setting.key for setting in moved] == list(shown)
    assert shown == {
        "strategy.heterofl.scaler": (False, True),
        "data.dataset": ("digits", None),
        "data.limit": (120, None),
        "validation.clients": (0.2, None),
        "local.batch": (16, 32),
        "local.lr": (0.05, None),
        "attack.fraction": (0.25, 0.2),
        "attack.intensity": (1.0, 20.0),
        "seed": (4, 0),
    }


@pytest.mark.parametrize("preset", ["", "attack", "all"])
def test_settings_shown_make_the_experiment_again(preset: str):
    """Law: nothing that decides is missing, and nothing that is shown is the default."""
    base: dict[str, Any] = {"name": "e", "family": "f", "strategy": {"fedavg": {}}, "rounds": 2}
    base["local"] = {"lr": 0.1}
    every: dict[str, dict[str, Any]] = {
        "": {},
        "attack": {"attack": {}, "data": {"dataset": "mnist", "partition": {"scheme": "iid"}}},
        "all": {
            "data": {"dataset": "mnist", "partition": {"scheme": "dirichlet", "min_size": 3}},
            "local": {"lr": 0.5, "schedule": {"StepLR": {"step_size": "$rounds // 2"}}},
            "evaluate": {"every": 3},
            "privacy": {"clip": 1.0, "noise": 0.0, "delta": 0.1},
            "trackers": ("csv",),
            "engine": {"device": "cuda"},
            "sample": 3,
        },
    }
    spec = ExperimentSpec.model_validate({**base, **every[preset]})
    again: dict[str, Any] = dict(base)
    for setting in differing(spec):
        assert setting.value != setting.default
        place: Any = again
        *parents, key = setting.key.split(".")
        for name in parents:
            place = place.setdefault(name, {})
        place[key] = tuple(setting.value) if isinstance(setting.value, list) else setting.value
    plain = ExperimentSpec.model_validate(again)
    if preset == "attack":
        assert spec.data.partition is not None
        assert plain.data.partition is None  # that is iid, too
        plain = plain.model_copy(update={"data": spec.data})
    assert plain == spec


def test_no_round_is_chosen_by_test_data(tmp_path: Path):
    """The best round is that of the validation examples, though another one tested better."""
    config = (
        "name: a\nfamily: f\nstrategy: {fedavg: {}}\nrounds: 3\nlocal: {lr: 0.1}\nvalidation: 0.1\n"
    )
    rounds = [
        {
            "round": number,
            "evaluation": {"better": {"mse": False}, "models": {"global": {"mse": test}}},
            "validation": {"global": {"mse": held}},
        }
        for number, test, held in ((1, 0.1, 5.0), (2, 0.3, 1.0), (3, 0.2, 2.0))
    ]

    def log(folder: Path, text: str) -> Log:
        (folder / "run.yaml").write_text(text)
        return Log(folder, text, tuple(rounds))

    chosen = model_sheet(log(tmp_path, config))
    row = dict(zip((c.key for c in chosen.columns), chosen.rows[0], strict=True))
    assert (row["mse"], row["mse_at_best"]) == (0.2, 0.3)
    assert chosen.note == "3 rounds, round 2 is the best on validation examples"
    bare = model_sheet(log(tmp_path, config.replace("validation: 0.1\n", "")))
    assert bare.table().columns == ("model", "mse", "")
    (panel,) = next(charts(Log(tmp_path, "", tuple(rounds)))).figure.axes
    assert panel.get_title(loc="left") == "mse on all test data (lower is better)"


@pytest.mark.parametrize(
    ("values", "low", "high"), [((0.8, 0.95), 0.75, 1.0), ((0.0, 1.0), -0.02, 1.02)]
)
def test_axes_fit_what_is_drawn(values: tuple[float, ...], low: float, high: float):
    rounds = [
        {"round": i, "evaluation": {"models": {"a": {"accuracy": value}}}}
        for i, value in enumerate(values, 1)
    ]
    drawn = next(charts(Log(Path("run"), "", tuple(rounds))))
    bottom, top = drawn.figure.axes[0].get_ylim()
    assert low <= bottom < min(values)
    assert max(values) < top <= high


def test_every_chart_has_its_name_and_its_values(log: Log, run: ag.engine.Run, text: str):
    drawn = {picture.name: picture for picture in charts(log)}
    assert list(drawn) == [
        "accuracy over the rounds",
        "accuracy on clients' own classes over the rounds",
        "seconds per round",
    ]
    last = run.rounds[-1]["evaluation"]
    (own,) = drawn["accuracy on clients' own classes over the rounds"].figure.axes
    ends = {str(one.get_label()): np.asarray(one.get_ydata())[-1] for one in own.get_lines()}
    assert ends == {
        **{n: row["local"]["accuracy"] for n, row in last["models"].items() if n != "global"},
        "all clients": last["local"]["accuracy"],
        "worst client": last["tenth"]["accuracy"],
    }
    (chart,) = client_charts(log.participants)
    bars, shares = chart.figure.axes
    widths = {
        round(bar.get_y() + bar.get_height() / 2): (bar.get_width(), group.get_label())
        for group in bars.containers
        if isinstance(group, BarContainer)
        for bar in group
    }
    assert [widths[row][0] for row in range(4)] == [c.examples for c in log.participants]
    bad = [widths[row][1] == "malicious" for row in range(4)]
    assert bad == [c.malicious for c in log.participants]
    # As dark as its share is of the largest one, which the picture says.
    (shades,) = shares.get_images()
    counts = np.array([c.classes for c in log.participants])
    of = counts / counts.sum(1, keepdims=True)
    assert np.asarray(shades.get_array())[..., 3] == pytest.approx(of / of.max(), abs=1e-9)
    assert shares.get_title(loc="left").endswith(f"up to {100 * of.max():.0f} %")


def test_pictures_share_no_identifier_and_take_the_colours_of_the_page(log: Log, text: str):
    ids = re.findall(r' id="([^"]*)"', text)
    assert ids and len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]*)\)|xlink:href=\"#([^\"]*)", text)) <= {
        pair for one in ids for pair in ((one, ""), ("", one))
    }
    assert text == page(log)
    shown = "".join(re.findall(r'<figure class="picture">(<svg.*?</svg>)', text, re.DOTALL))
    assert not [one for one in colours.DARK if one in shown] and "var(--c" in shown
    assert "<text" in shown and "<metadata" not in shown


def test_many_rounds_are_thinned_and_a_band_does_not_stretch_a_logarithmic_axis():
    rows = {seed: np.geomspace(1e-2, 1e2, 3000) * 10**seed for seed in (0, -2)}  # deviates beyond 0
    drawn = {"one": pandas.DataFrame(rows, index=range(1, 3001))}
    (panel,) = curve_chart("loss", "loss", drawn, "loss", []).figure.axes
    (line,) = panel.get_lines()
    rounds, values = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
    assert len(rounds) == 400 and (rounds[0], rounds[-1]) == (1, 3000)
    assert panel.get_yscale() == "log" and 0.5 * values.min() < panel.get_ylim()[0] < values.min()


def test_the_headline_is_the_last_test(log: Log, run: ag.engine.Run):
    last = run.rounds[-1]["evaluation"]
    models = {n: row["accuracy"] for n, row in last["models"].items()}
    tiers = {n: value for n, value in models.items() if n != "global"}
    best, worst = (choose(tiers, key=lambda name: tiers[name]) for choose in (max, min))
    text = run_headline(log).replace("&nbsp;", " ")
    gap = 100 * (tiers[best] - tiers[worst])
    assert f"After round 2, the global model has {100 * models['global']:.2f} % accuracy." in text
    assert f"{best} is the best of 2 models, {gap:.2f} points ahead of {worst}." in text
    for value in (models["global"], tiers[best], tiers[worst], last["tenth"]["accuracy"]):
        assert f"<b>{100 * value:.2f} %</b>" in text
    assert page(log).index("<dl class") < page(log).index("<figure") < page(log).index("<h2>")


def test_a_folder_from_before_bytes_and_clients_were_recorded_has_its_page(log: Log, tmp_path):
    shutil.copytree(log.folder, tmp_path / "old")
    (tmp_path / "old" / "clients.json").unlink()
    lines = (tmp_path / "old" / "metrics.jsonl").read_text().splitlines()
    plain = [json.loads(line) for line in lines]
    for line in plain:
        for row in line["clients"]:
            del row["bytes_down"], row["bytes_up"]
    text = "".join(json.dumps(line) + "\n" for line in plain)
    (tmp_path / "old" / "metrics.jsonl").write_text(text)
    found = files(page(read_run(tmp_path / "old")))
    assert list(found) == ["rounds", "models", "settings"]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_telephone_shows_the_page_without_scrolling_sideways(text: str, tmp_path: Path):
    frame = (
        '<!doctype html><iframe id="f" style="width:390px;height:900px;border:0" '
        f'srcdoc="{html.escape(text)}"></iframe><p id="o"></p>'
        "<script>f.onload=()=>{const e=f.contentDocument.documentElement;"
        "o.textContent=`wide ${e.scrollWidth} of ${e.clientWidth}`}</script>"
    )
    (tmp_path / "frame.html").write_text(frame)
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += ["--hide-scrollbars", "--virtual-time-budget=3000"]
    own = [f"--user-data-dir={tmp_path / 'browser'}", (tmp_path / "frame.html").as_uri()]
    done = subprocess.run([*command, *own], capture_output=True, text=True, timeout=60, check=True)
    assert 'id="o">wide 390 of 390<' in done.stdout
