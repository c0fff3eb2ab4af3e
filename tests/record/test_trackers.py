"""Trackers are told what `metrics.jsonl` is told; one that fails is a note of the run."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import archgraph as ag
from archgraph.data import Dataset, Split
from archgraph.language import verdicts
from archgraph.record.points import points
from archgraph.record.trackers import ConsoleTracker, CsvTracker, tracker

MODEL = """
archgraph: 1
inputs: {row: [6]}
sections: [{name: net, steps: [linear: {out: 4}, relu, linear: {out: 1}]}]
"""


@pytest.fixture
def run(tmp_path) -> Callable[..., ag.engine.Run]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, 6, generator=generator)
    split = Split(inputs, inputs[:, 0])
    data = Dataset("made", "tensor", None, (6,), split, split)
    (tmp_path / "net.yaml").write_text(MODEL)

    def do(more: str = "", rounds: int = 2, **options: Any) -> Any:
        (tmp_path / "e.yaml").write_text(f"""\
name: e
family: {{model: net.yaml, clients: [{{name: all, count: 2}}]}}
strategy: {{fedavg: {{}}}}
rounds: {rounds}
validation: 0.2
local: {{batch: 10, lr: 0.1}}
{more}
""")
        return ag.run(tmp_path / "e.yaml", data=data, **{"progress": False, **options})

    return do


class Mine:
    """A tracker of one's own."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.said: list[Any] = []

    def begin(self, run: Any) -> None:
        self._note("begin", run)

    def round(self, line: Mapping[str, Any]) -> None:
        self._note("round", line)

    def end(self) -> None:
        self._note("end", None)

    def _note(self, what: str, value: Any) -> None:
        self.said.append((what, value))
        if what == self.fails:
            raise OSError("the service is away")


def test_ones_own_tracker_is_told_what_the_file_is_told(run, tmp_path):
    mine = Mine()
    done = run(out=tmp_path / "run", trackers=[mine])
    lines = [json.loads(t) for t in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [what for what, _ in mine.said] == ["begin", "round", "round", "end"]
    assert [value for what, value in mine.said if what == "round"] == lines
    begun = mine.said[0][1]
    assert (begun.name, begun.rounds, begun.folder, begun.lines) == ("e", 2, tmp_path / "run", ())
    assert begun.settings["strategy"]["fedavg"]["weights"] == "examples"
    assert not done.notes


@pytest.mark.parametrize("fails", ["begin", "round", "end"])
def test_a_tracker_that_fails_is_a_note_and_the_others_go_on(run, fails):
    broken, whole = Mine(fails), Mine()
    done = run(trackers=[broken, whole])
    assert len(done.rounds) == 2 and len(whole.said) == 4
    (note,) = done.notes
    assert note.startswith("Mine failed ") and note.endswith("OSError: the service is away")
    assert note in done.table().note
    assert sum(what == fails for what, _ in broken.said) == 1


def test_csv_has_a_row_for_each_figure_also_after_a_resume(run, tmp_path):
    folder = tmp_path / "run"
    done = run("trackers: [csv]", rounds=3, out=folder)
    text = (folder / "metrics.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    figures = [p for line in done.rounds for p in points(line)]
    assert [(int(r["round"]), r["part"], r["group"], r["metric"]) for r in rows] == [
        tuple(p[:4]) for p in figures
    ]
    assert [float(r["value"]) for r in rows] == [p.value for p in figures]
    run("trackers: [csv]", rounds=3, out=folder, resume_from=2)
    again = list(csv.DictReader(io.StringIO((folder / "metrics.csv").read_text())))
    kept = [r for r in again if not r["metric"].startswith("seconds")]
    assert kept == [r for r in rows if not r["metric"].startswith("seconds")]


def test_console_says_a_line_per_round(run, capsys):
    run(progress=True)
    first, second = capsys.readouterr().err.splitlines()
    form = r"round 1 of 2: 2 clients, mse [\d.]+, validation mse [\d.]+, [\d.]+ s"
    assert re.fullmatch(form, first) and second.startswith("round 2 of 2: ")
    run(progress=False)
    assert capsys.readouterr().err == ""
    run("trackers: [console]", progress=True)
    assert len(capsys.readouterr().err.splitlines()) == 2  # once, not twice


def test_console_names_what_went_wrong():
    stream = io.StringIO()
    said = ConsoleTracker(stream)
    said.round({"round": 1, "clients": [], "failed": [{}], "rejected": [{}, {}]})
    assert stream.getvalue() == "round 1 of 0: 0 clients, 2 rejected, 1 failed, 0.0 s\n"


def test_tensorboard_holds_the_scalars_of_every_round(run, tmp_path):
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    done = run("trackers: [tensorboard]", out=tmp_path / "run")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    found = [(e.step, e.value) for e in events.Scalars("test/global/mse")]
    wanted = [(line["round"], line["evaluation"]["global"]["mse"]) for line in done.rounds]
    assert [step for step, _ in found] == [1, 2]
    assert [value for _, value in found] == pytest.approx([v for _, v in wanted], rel=1e-6)


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ("tensorbord", "e.yaml:8: trackers: unknown tracker; found 'tensorbord'; expected one of"),
        ("{csv: {paht: a}}", "e.yaml:8: trackers.csv.paht: unknown option; found 'paht'; expected"),
        ("{csv: {path: 3}}", "e.yaml:8: trackers.csv.path: has a wrong value; found 3; expected"),
        ("{console: {stream: a}}", "trackers.console.stream: unknown option; found 'stream'"),
        ("csv", "trackers: csv: has no path to write to, since the run has no folder; name a run"),
        ("tensorboard", "trackers: tensorboard: needs the package tensorboard; found import"),
        (
            "wandb",
            "one of console, csv, tensorboard; it was removed: pass an object that logs to it",
        ),
        ("{csv: {}, console: {}}", "e.yaml:8: trackers[0]: must be one name with its options"),
    ],
    ids=["unknown", "option", "value", "none", "folder", "package", "gone", "two"],
)
def test_mistakes(run, monkeypatch, choice, said):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ag.ArchGraphError, match=re.escape(said)):
        run(f"\ntrackers: [{choice}]")


def test_check_knows_the_trackers(tmp_path):
    text = (
        "name: e\nfamily: {model: net.yaml, clients: [{name: all, count: 2}]}\nrounds: 1\n"
        "local: {lr: 0.1}\n"
    )
    (tmp_path / "net.yaml").write_text(MODEL)
    (tmp_path / "e.yaml").write_text(text + "strategy: {fedavg: {}}\ntrackers: [tensorbord]\n")
    (found,) = verdicts([tmp_path / "e.yaml"])
    assert "e.yaml:6: trackers: unknown tracker; found 'tensorbord'" in str(found.error)


def test_options_of_a_tracker_are_by_name():
    assert tracker({"csv": {"path": Path("a.csv")}}) == CsvTracker(Path("a.csv"))
    assert tracker({"csv": {"path": None}}) == tracker("csv")
    with pytest.raises(
        ag.RunError, match=r"has invalid options; found a\.csv; expected options by"
    ):
        tracker({"csv": "a.csv"})


def test_what_is_not_a_tracker_is_refused():
    with pytest.raises(ag.RunError, match=r"is not a tracker; found int; expected a name, or an"):
        tracker(3)


# ---------------------------------------------------------------- data frames


def test_a_frame_has_a_row_for_each_figure(run):
    done = run()
    found = done.to_frame()
    assert list(found.columns) == ["round", "part", "group", "metric", "value"]
    chosen = found[(found.part == "test") & (found.group == "global") & (found.metric == "r2")]
    assert chosen["round"].tolist() == [1, 2]
    wanted = [line["evaluation"]["global"]["r2"] for line in done.rounds]
    assert chosen["value"].tolist() == wanted
    assert set(found[found.part == "train"].group) == {"client 0", "client 1"}
    assert found["value"].dtype == float
    assert {"validation", "run"} <= set(found.part)


def test_figures_that_are_not_finite_are_nan_in_a_frame_and_left_out_by_trackers():
    line = {"round": 1, "evaluation": {"models": {"global": {"loss": None, "mse": 1.0}}}}
    found = {p.metric: p.value for p in points(line)}
    assert math.isnan(found["loss"]) and found["mse"] == 1.0
