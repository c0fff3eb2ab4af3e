"""Records that can be trusted: versions, repeated first rounds, one study at a time."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import archgraph as ag
from archgraph.cli import app
from archgraph.errors import RunError
from archgraph.record.folder import RunRecord
from archgraph.studies.records import StudyRecord, read_records, unlike
from archgraph.studies.study_tables import study_tables
from tests.studies.test_study import STUDY

SHORT = STUDY.replace("rounds: 3", "rounds: 1").replace("seeds: [0, 1]", "seeds: [0]")
SHORT = SHORT.replace("columns:", "  nearest: {trivial: nearest_neighbours}\ncolumns:", 1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trust")
    (folder / "short.yaml").write_text(SHORT)
    assert not ag.study(folder / "short.yaml", out=folder / "out").failed
    return folder


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Path:
    """A folder with the study and the records of its runs."""
    shutil.copy(finished / "short.yaml", tmp_path)
    shutil.copytree(finished / "out" / "records", tmp_path / "out" / "records")
    return tmp_path


def rewrite(place: Path, change: Any) -> None:
    """Change every record."""
    file = place / "out" / "records" / "short.jsonl"
    records = map(json.loads, file.read_text().splitlines())
    file.write_text("".join(f"{json.dumps(record | change(record))}\n" for record in records))


def test_first_rounds_repeat_on_the_same_machine_and_nearly_on_others(place: Path):
    records = read_records(place / "out" / "records").values()
    record: StudyRecord = next(one for one in records if one.row == "HeteroFL")
    here = {key: record.origin[key] for key in ("processor", "torch", "threads")}
    there, first = {**here, "processor": "another"}, record.first
    near, far = (
        {**first, "loss": [first["loss"][0] * factor, *first["loss"][1:]]}
        for factor in (1.0009, 1.0011)
    )
    assert not unlike(record, first, here) and not unlike(record, near, there)
    count = sum(map(len, first.values()))
    assert unlike(record, near, here) == f"1 of {count} figures differ"
    assert unlike(record, far, there) == f"1 of {count} figures differ"
    moved = record.model_copy(update={"origin": {**record.origin, "resumed": ["elsewhere"]}})
    assert not unlike(moved, near, here) and unlike(moved, far, here), "round 1 was elsewhere"
    shorter = {**first, "norm": first["norm"][:-1]}
    assert unlike(record, shorter, here) == "other clients or parameters"
    empty = record.model_copy(update={"first": {}})
    assert unlike(empty, first, here) == "the record has no first round"


def test_who_only_reads_writes_no_records(finished: Path, tmp_path: Path):
    """The study that runs writes them, with the program that ran."""
    shutil.copytree(finished / "out" / "runs", tmp_path / "runs")
    result = ag.study(finished / "short.yaml", out=tmp_path, only_read=True)
    assert result.done == 4 and not (tmp_path / "records").exists()


def test_check_repeats_a_first_round_of_each_row(place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    words = ["study", str(place / "short.yaml"), "--out", str(place / "out"), "--check"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    table = done.stdout[done.stdout.index("Repeated first rounds") :]
    assert table.count("repeats\n") + table.count("repeats ") == 3
    assert not (place / "out" / "runs").exists()

    def other(record: Any) -> Any:
        return (
            {"first": {**record["first"], "loss": [9.0, *record["first"]["loss"][1:]]}}
            if "Hetero" in record["row"]
            else {}
        )

    rewrite(place, other)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    table = done.stdout[done.stdout.index("Repeated first rounds") :]
    assert "1 of" in table and table.count("figures differ") == 1
    rewrite(place, lambda record: {"run": record["run"].replace("torch", "torch0.")})
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1, "nothing that could be repeated is no success"
    assert done.stdout.count("no run is recorded with these versions") == 3


def test_runs_of_other_versions_are_listed_apart_and_repeated_on_request(place: Path):
    def older(record: Any) -> Any:
        return {
            "run": record["run"].partition("-bits")[0] + "-bits0-torch1.0-numpy1.0",
            "origin": {**record["origin"], "bits": 0, "torch": "1.0"},
        }

    rewrite(place, older)
    heard: list[str] = []
    study: dict[str, Any] = {"out": place / "out", "notify": heard.append}
    result = ag.study(place / "short.yaml", **study)
    assert heard == ["6 of 6 runs already done"] and result.done == 0
    assert all(one.paired is None for one in result.differences)
    assert result.values("HeteroFL", "clean", "average") == {}
    current, old, *_ = study_tables(result)
    assert "recorded with bits 0, torch 1.0, numpy" in old.title and "--again" in old.title
    assert set(current.rows[0][1:]) == {"–"} and "–" not in old.rows[0]
    again = ag.study(place / "short.yaml", **study, again=True, only=["HeteroFL | clean"])
    assert again.done == 1 and again.values("HeteroFL", "clean", "average")
    assert list(again.outdated) == list(result.outdated)
    assert len(next(iter(again.outdated.values())).runs) == 5


def test_a_study_or_a_run_in_use_is_refused(place: Path, tmp_path: Path):
    shutil.rmtree(place / "out")
    root = place / "out" / "runs"
    root.mkdir(parents=True)
    with RunRecord(root, "", keep=1) as other:
        other.acquire()
        with pytest.raises(RunError, match="another study is running in this folder"):
            ag.study(place / "short.yaml", out=place / "out")
    plan = ag.study(place / "short.yaml", out=place / "out", only_read=True)
    folder = plan.runs[0].folder
    folder.mkdir()
    with RunRecord(folder, "", keep=1) as other:
        other.acquire()
        result = ag.study(place / "short.yaml", out=place / "out", only=["HeteroFL | clean"])
    assert "another process is writing this run" in result.failed[folder]


def test_the_time_left_is_that_of_the_runs_so_far(place: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.rmtree(place / "out")
    clock = SimpleNamespace(monotonic=itertools.count(0, 120).__next__)
    monkeypatch.setattr(sys.modules["archgraph.studies.study"], "time", clock)
    heard: list[str] = []
    ag.study(place / "short.yaml", out=place / "out", only=["* | clean"], notify=heard.append)
    assert [line.partition("done")[2] for line in heard] == [
        "; about 4 min left", "; about 2 min left", ""
    ]  # fmt: skip
