"""Studies as they run: shared cells, going on after a kill, tables, what failed."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import archgraph as ag
from archgraph.cli import app
from archgraph.errors import RunError, SpecError
from archgraph.language import verdicts
from archgraph.language.privacy import PrivacySpec
from archgraph.record.folder import read_metrics
from archgraph.reports.measures import right_answers
from archgraph.studies import files as study_files
from archgraph.studies.origin import program
from archgraph.studies.outcomes import LEVEL, holm, resampled
from archgraph.studies.records import read_records, record_of
from archgraph.studies.spec import cells, load_study
from archgraph.studies.study import StudyResult
from archgraph.studies.study_tables import study_csv, study_latex, study_tables, study_text
from tests.runs import same_bits

STUDY = """\
archgraph: 1
study: Somebody, Table 1
experiment:
  family:
    model:
      archgraph: 1
      name: net
      inputs: {image: [1, 8, 8]}
      sections:
        - {name: body, steps: [flatten, linear: 16, relu]}
        - {name: head, steps: [linear: 10]}
    clients: [{name: small, take: {body: 0.5}}, {name: large}]
  data: {dataset: digits, limit: 200, partition: {scheme: iid}}
  local: {lr: 0.1}
  rounds: 3
rows:
  HeteroFL: {strategy: {heterofl: {}}}
  Standalone: {strategy: {standalone: {}}}
columns: {clean: {}, attacked: {attack: {fraction: 0.5, intensity: 20}}}
figures: {average: average_accuracy, "last two": {measure: average_accuracy, last: 2}}
published: {HeteroFL: [90, 89, 20, 20], Standalone: [80, 79, 10, null]}
compare: [[HeteroFL, Standalone]]
sizes:
  paper: {rows: {Standalone: {data: {dataset: cifar100, limit: null}}}}
  small: {seeds: [0, 1]}
"""
ALIKE = STUDY.replace("{rows: {Standalone: {data: {dataset: cifar100, limit: null}}}}", "{}")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies")
    (folder / "table1.yaml").write_text(STUDY)
    return folder


@pytest.fixture(scope="module")
def result(place: Path) -> StudyResult:
    return ag.study(place / "table1.yaml", out=place / "out")


def test_the_table_shows_what_the_runs_measured(result: StudyResult):
    assert not result.failed and len(result.runs) == 8 and result.done == 8
    for one in result.runs:
        last = read_metrics(one.folder)[-1]["evaluation"]["models"]
        mean = 100 * (last["small"]["accuracy"] + last["large"]["accuracy"]) / 2
        ours = result.values(one.cell.row, one.cell.column, "average")[one.seed]
        assert ours == pytest.approx(mean)
    table, differences = study_tables(result)
    assert table.columns[1:3] == ("clean, average", "clean, last two")
    values = result.values("HeteroFL", "clean", "average")
    mean, spread = (values[0] + values[1]) / 2, abs(values[0] - values[1]) / 2**0.5
    assert table.rows[0][1] == f"{mean:.2f} ± {spread:.2f}"
    # Published figures are lines of their own, without any word about them.
    assert [row[0] for row in table.rows] == [
        "HeteroFL", "HeteroFL, published", "Standalone", "Standalone, published"
    ]  # fmt: skip
    assert table.rows[1][1:] == ("90", "89", "20", "20")
    assert table.rows[3][1:] == ("80", "79", "10", "–")
    assert differences.rows[0][:3] == ("HeteroFL − Standalone", "clean", "average")


def test_differences_are_paired_and_corrected_by_figure(result: StudyResult):
    columns, figures = ("clean", "attacked"), ("average", "last two")
    assert [(one.where, one.figure) for one in result.differences] == [
        (column, figure) for figure in figures for column in columns
    ]
    for figure in figures:
        of = [one for one in result.differences if one.figure == figure]
        raw = {}
        for one in of:
            ours, theirs = (result.values(row, one.where, figure) for row in one.names)
            assert one.paired is not None
            assert one.paired.differences == tuple(ours[seed] - theirs[seed] for seed in (0, 1))
            raw[one.where] = one.paired.p or 0.0
            assert one.detectable == one.paired.detectable(LEVEL / 2)
        assert {one.where: one.p for one in of} == holm(raw)


def test_what_is_not_measured_yet_is_corrected_for(result: StudyResult):
    left = {one.address for one in result.runs if one.cell.key == ("HeteroFL", "attacked")}
    fewer = {name: record for name, record in result.records.items() if name not in left}
    half = dataclasses.replace(result, records=fewer)
    assert {(one.where, one.figure): one.p for one in half.differences if one.paired} == {
        ("clean", figure): min(1.0, 2 * (one.paired.p or 0.0))
        for figure in ("average", "last two")
        for one in result.differences
        if one.paired and (one.where, one.figure) == ("clean", figure)
    }
    assert [row[3:] for row in study_tables(half)[1].rows if row[1] == "attacked"] == [
        ("–",) * 5
    ] * 2


def test_some_cells_and_seeds_can_be_run_alone(place: Path):
    def done(*, only: tuple[str, ...] = (), seeds: tuple[int, ...] = ()) -> list[tuple[str, ...]]:
        result = ag.study(place / "table1.yaml", out=place / "parts", only=only, seeds=seeds)
        runs = [r for r in result.runs if (r.folder / "models").exists()]
        return [(r.cell.row, r.cell.column, str(r.seed)) for r in runs]

    first = done(only=("HeteroFL | cl*",), seeds=(1,))
    assert first == [("HeteroFL", "clean", "1")]
    # What ran before stays in the table.
    assert done(only=("Standalone",), seeds=(0,)) == [
        ("Standalone", "clean", "0"),
        ("Standalone", "attacked", "0"),
        *first,
    ]
    with pytest.raises(
        SpecError, match=r"does not match any cell; found Fed\*;.*rows: HeteroFL, Standalone"
    ):
        done(only=("Fed*",))
    with pytest.raises(SpecError, match="seed: 7 is not a seed of this study; its seeds are 0, 1"):
        done(seeds=(7,))


def test_the_text_says_what_was_run_where_and_of_how_many_seeds(result: StudyResult, place: Path):
    text = study_text(result)
    assert text.startswith(
        "Somebody, Table 1\n\nSize small, 2 seeds, 8 of 8 cells done (8 runs).\n"
    )
    line = next(x for x in text.splitlines() if x.startswith("Computed on"))
    versions = f"1 thread, torch {torch.__version__}, numpy {np.__version__}"
    assert f"{versions} (8 runs, code {program()['code']}, " in line
    assert study_tables(result)[0].note.startswith("measured: mean ± standard deviation")
    one = read(place, STUDY.replace("seeds: [0, 1]", "seeds: [0]"))
    assert study_tables(one)[0].note.startswith("measured: one seed")


@pytest.mark.full
def test_a_study_without_published_figures_does_not_speak_of_them(result: StudyResult, place: Path):
    own = read(place, re.sub("published: .*|  paper: .*\n", "", STUDY))
    assert "published" not in study_text(own)


@pytest.mark.full
def test_figures_are_counted_in_the_unit_of_the_paper(result: StudyResult, place: Path):
    halves = read(place, STUDY.replace("last: 2}", "last: 2, unit: 0.5, digits: 4}"))
    for figure, factor in (("last two", 2), ("average", 1)):
        ours, theirs = (of.values("HeteroFL", "clean", figure) for of in (halves, result))
        assert ours == pytest.approx({seed: factor * value for seed, value in theirs.items()})
    shown = study_tables(halves)[0].rows[0][2]
    assert re.fullmatch(r"\d+\.\d{4} ± \d+\.\d{4}", shown), "as many digits as asked for"


def read(place: Path, text: str) -> StudyResult:
    """The table of what ran before, for a study that differs from it."""
    assert text != STUDY
    (place / "differs.yaml").write_text(text)
    return ag.study(place / "differs.yaml", out=place / "out", only_read=True)


def test_a_trivial_model_is_a_row_like_any_other(result: StudyResult, place: Path):
    """It is recorded, not run again, compared; its data are the cell's."""
    row = "  nearest: {trivial: nearest_neighbours}\n"
    text = STUDY.replace("columns:", row + "columns:", 1).replace("HeteroFL, S", "nearest, S")
    (place / "trivial.yaml").write_text(text)
    heard: list[str] = []
    for expected in ("12 of 12: nearest, attacked, seed 1: done", "12 of 12 runs already done"):
        more = ag.study(place / "trivial.yaml", out=place / "out", notify=heard.append)
        assert heard[-1] == expected and not more.failed
    values = [more.values("nearest", column, "average") for column in ("clean", "attacked")]
    assert values[0] == values[1]  # nobody trains, so nobody attacks
    assert set(values[0]) == {0, 1} and min(values[0].values()) > 70
    assert {one.names for one in more.differences} == {("nearest", "Standalone")}
    assert all(one.paired for one in more.differences)


def test_values_of_a_thousand_and_more_have_four_digits(result: StudyResult, place: Path):
    table = study_tables(read(place, STUDY.replace("last: 2}", "last: 2, unit: 0.01}")))[0]
    values = [100 * v for v in result.values("HeteroFL", "clean", "last two").values()]
    mean, std = statistics.fmean(values), statistics.stdev(values)
    assert mean > 1000 and table.rows[0][2] == f"{mean:.4g} ± {std:.2f}"


@pytest.mark.full
def test_heads_name_the_figure_where_there_are_several_or_no_columns(
    result: StudyResult, place: Path
):
    assert study_tables(result)[0].columns[1] == "clean, average"
    few = STUDY.replace(', "last two": {measure: average_accuracy, last: 2}', "")
    few = few.replace("[90, 89, 20, 20]", "[90, 20]").replace("[80, 79, 10, null]", "[80, 10]")
    assert study_tables(read(place, few))[0].columns == ("", "clean", "attacked")
    one = few.replace(
        "columns: {clean: {}, attacked: {attack: {fraction: 0.5, intensity: 20}}}\n", ""
    )
    one = one.replace("[90, 20]", "[90]").replace("[80, 10]", "[80]")
    assert study_tables(read(place, one))[0].columns == ("", "average")


@pytest.mark.full
def test_columns_that_a_size_leaves_out_are_not_in_its_table(result: StudyResult, place: Path):
    table = study_tables(read(place, STUDY.replace("[0, 1]}", "[0, 1], leave_out: [attacked]}")))[0]
    assert table.columns == ("", "clean, average", "clean, last two")
    assert [len(row) for row in table.rows] == [3] * 4


def test_columns_are_compared_in_each_row(result: StudyResult, place: Path):
    attack = "attack: {fraction: 0.5, intensity: 20}"
    names = f'[{{clean: {{}}, "0 %": {{}}, "20 %": {{{attack}}}}}, {{IID: {{}}, again: {{}}}}]'
    text = STUDY.replace(f"{{clean: {{}}, attacked: {{{attack}}}}}", names)
    text = text.replace(', "last two": {measure: average_accuracy, last: 2}', "")
    text = text[: text.index("published:")] + text[text.index("compare:") :]
    pairs = '[[clean, "0 %"], [clean, "20 %"]]'
    found = read(place, text.replace("[[HeteroFL, Standalone]]", pairs)).differences
    assert [(one.names, one.where) for one in found] == [
        (("clean", other), f"{row}, {part}")
        for other in ("0 %", "20 %")
        for row in ("HeteroFL", "Standalone")
        for part in ("IID", "again")
    ]
    same = found[:4]  # the same runs
    assert all(one.paired and not any(one.paired.differences) and one.p == 1 for one in same)


def test_csv_and_latex_hold_the_same_figures(result: StudyResult):
    rows = list(csv.DictReader(study_csv(result).splitlines()))
    assert len(rows) == 8 and rows[0]["published"] == "90.0" and rows[7]["published"] == ""
    first = list(map(float, rows[0]["values"].split()))
    assert first == list(result.values("HeteroFL", "clean", "average").values())
    mean = statistics.fmean(first)
    text = study_latex(result)
    assert text.startswith("% Somebody, Table 1\n") and f"HeteroFL & {mean:.2f} $\\pm$ " in text
    assert "HeteroFL, published & 90 & 89" in text and "HeteroFL $-$ Standalone & clean" in text


def test_what_is_done_is_not_run_again_and_equal_cells_are_one(result: StudyResult, place: Path):
    before = {one.folder: (one.folder / "metrics.jsonl").stat().st_mtime_ns for one in result.runs}
    other = STUDY.replace("Somebody, Table 1", "Another").replace("lr: 0.1}", "lr: 0.10}")
    other = other.replace("HeteroFL: {strategy: {heterofl: {}}}", "H: {strategy: {heterofl: }}")
    other = other.replace("HeteroFL", "H").replace("name: net", "name: other")
    (place / "another.yaml").write_text(other.replace("name: other", "name: net"))
    heard: list[str] = []
    again = ag.study(place / "another.yaml", out=place / "out", notify=heard.append)
    assert heard == ["8 of 8 runs already done"]
    assert {one.folder for one in again.runs} == set(before)
    assert all((f / "metrics.jsonl").stat().st_mtime_ns == at for f, at in before.items())
    (place / "unlike.yaml").write_text(STUDY.replace("lr: 0.1", "lr: 0.2"))
    unlike = ag.study(place / "unlike.yaml", out=place / "out", only_read=True)
    assert not {one.folder for one in unlike.runs} & set(before) and unlike.done == 0


@pytest.mark.full
def test_a_killed_study_goes_on_to_the_same_bits(result: StudyResult, place: Path):
    """Two workers die with the process that started them; the last run is cut off by hand."""
    out = place / "killed"
    words = ["study", str(place / "table1.yaml"), "--workers", "2", "--out", str(out)]
    started = subprocess.Popen([sys.executable, "-m", "archgraph", *words])
    while not any((out / "runs").glob("*/checkpoints/round-000001")):
        assert started.poll() is None
        time.sleep(0.05)
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    time.sleep(1.0)  # workers notice

    def written() -> dict[Path, bytes]:  # a worker may have been killed before its run's first line
        return {one: one.read_bytes() for one in (out / "runs").glob("*/metrics.jsonl")}

    before = written()
    time.sleep(1.0)
    assert before and before == written()
    assert len(list((out / "runs").iterdir())) < 8
    copied = next(one for one in result.runs if not (out / "runs" / one.folder.name).exists())
    cut = shutil.copytree(copied.folder, out / "runs" / copied.folder.name)
    shutil.rmtree(cut / "checkpoints/round-000003")  # as if killed between line and checkpoint
    assert [p.name for p in (cut / "checkpoints").iterdir()] == ["round-000002"]
    (cut / "metrics.jsonl").write_bytes(
        b"".join((cut / "metrics.jsonl").read_bytes().splitlines(keepends=True)[:2])
    )
    whole = ag.study(place / "table1.yaml", out=out)
    assert whole.done == 8
    for one, other in zip(whole.runs, result.runs, strict=True):
        assert one.folder.name == other.folder.name
        same_bits(one.folder, other.folder)


def test_what_fails_is_told_and_the_rest_goes_on(place: Path):
    call = CliRunner().invoke
    words = [str(place / "table1.yaml"), "--size", "paper", "--out", str(place / "out")]
    done = call(app, ["study", *words, "--data", str(place)])
    assert done.exit_code == 1, done.output
    # Of the first seed, the cells that do not differ between the sizes.
    assert "2 of 4 runs already done" in done.output
    told = "data or weights of its runs are missing; found no cifar100; expected cifar100: "
    told += "train, test into "
    assert told in done.output and "there is no cifar100" in done.output
    assert "Not measured" in done.output
    for ending in ("txt", "tex", "csv"):
        assert (place / "out" / f"table1-paper.{ending}").is_file()


@pytest.mark.full
def test_a_study_whose_data_are_not_there_says_what_to_fetch(
    result: StudyResult, place: Path, monkeypatch: pytest.MonkeyPatch
):
    """Where nothing can be run, before a folder is made."""
    text = STUDY.replace("dataset: digits", "dataset: cifar10").replace("Table 1", "Table 2")
    (place / "other.yaml").write_text(text)
    out = place / "nothing"
    words = ["study", str(place / "other.yaml"), "--size", "paper", "--out", str(out)]
    done = CliRunner().invoke(app, [*words, "--data", str(place)])
    assert done.exit_code == 2 and not out.exists(), done.output
    assert (
        "data or weights of its runs are missing; found no cifar10, no cifar100; expected"
        in done.stderr
    )
    assert "put the original files into these folders" in done.stderr
    monkeypatch.setenv("COLUMNS", "600")
    words = ["study", str(place / "table1.yaml"), str(place / "other.yaml"), "--data", str(place)]
    several = CliRunner().invoke(app, [*words, "--out", str(place / "out")])
    assert several.exit_code == 1 and "no cifar100" not in several.stdout
    assert "Not run in size small" in several.stdout and "found no cifar10;" in several.stdout


def test_a_study_asks_for_one_worker_or_more(place: Path):
    with pytest.raises(RunError, match="at least one worker, not 0"):
        ag.study(place / "table1.yaml", workers=0)


def test_check_goes_through_every_cell(place: Path):
    def verdict(text: str) -> Any:
        (place / "checked.yaml").write_text(text)
        return next(verdicts([place / "checked.yaml"]))

    good = verdict(ALIKE)
    assert good.good and good.kind == "study", good.error
    sizes = "paper: 4 cells, 1 seed, of digits; small: 4 cells, 2 seeds, of digits"
    assert good.note == f"Somebody, Table 1: {sizes}"
    wrong = verdict(ALIKE.replace("{standalone: {}}", "{fedin: {}}"))
    assert str(wrong.error).startswith("Standalone, clean: ")


def test_check_looks_at_equal_cells_of_all_studies_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A mistake is not remembered as if it were a good cell: every study that has it is bad."""
    from archgraph.engine import files as experiment_files

    seen: list[str] = []
    check = experiment_files.checked_experiment

    def counted(spec: Any, place: Path, cache: Any, *, begins: bool) -> str:
        assert begins == (spec.attack is not None), "the cells without an attack stand first"
        seen.append(f"{spec.strategy_name} {begins}")
        return check(spec, place, cache, begins=begins)

    monkeypatch.setattr(experiment_files, "checked_experiment", counted)
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(ALIKE.replace("Table 1", name))
    assert all(verdict.good for verdict in verdicts([tmp_path]))
    assert len(seen) == len(set(seen)) == 4
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(ALIKE.replace("{standalone: {}}", "{fedin: {}}"))
    assert not any(verdict.good for verdict in verdicts([tmp_path]))


def test_check_begins_cells_once_that_start_alike(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Whatever else is wrong with one of them is found: here, how its data is shared out."""
    from archgraph.engine import world

    begin, states = world.first_state, []

    def counted(experiment: Any) -> Any:
        states.append(type(experiment.strategy).__name__)
        return begin(experiment)

    monkeypatch.setattr(world, "first_state", counted)
    columns = "columns: {clean: {}, attacked: {attack: {fraction: 0.5, intensity: 20}}}"
    other = "{data: {partition: {scheme: classes, per_client: 2}}, rounds: 9, sample: 1, seed: 5}"
    assert columns in ALIKE
    file = tmp_path / "study.yaml"
    file.write_text(ALIKE.replace(columns, f"columns: {{clean: {{}}, attacked: {other}}}"))
    assert all(verdict.good for verdict in verdicts([file]))
    assert states == ["HeteroFL", "Standalone"]
    wrong = other.replace("per_client: 2", "per_client: 11")
    file.write_text(ALIKE.replace(columns, f"columns: {{clean: {{}}, attacked: {wrong}}}"))
    (verdict,) = verdicts([file])
    assert "HeteroFL, attacked: " in str(verdict.error)
    assert "data.partition" in str(verdict.error)
    # How many clients a round has decides how much noise privacy needs.
    spec = cells(load_study(place / "table1.yaml"), "small")[0].experiment
    assert spec is not None
    private = spec.model_copy(update={"privacy": PrivacySpec(clip=1.0, noise=1.0, delta=1e-3)})
    assert study_files._start(private) == private and study_files._start(spec) != spec


def test_a_folder_of_studies_writes_the_files_of_each(
    result: StudyResult, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A study without the size is listed with what it says."""
    folder = tmp_path / "studies"
    folder.mkdir()
    (folder / "a.yaml").write_text(STUDY)
    left = STUDY.replace("Table 1", "Table 3").split("sizes:")[0]
    (folder / "c.yaml").write_text(left + "sizes: {paper: {about: Needs a week.}}\n")
    out = tmp_path / "out"
    shutil.copytree(place / "out" / "records", out / "records")
    words = ["study", str(folder), "--only-read", "--out", str(out)]
    monkeypatch.setenv("COLUMNS", "200")
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert re.search(r"Somebody, Table 3 +Needs a week\.", done.output)
    ends = {file.name for file in out.iterdir() if file.is_file()}
    assert ends == {f"a-small.{end}" for end in ("txt", "tex", "csv")}
    (folder / "more").mkdir()
    (folder / "more" / "a.yaml").write_text(STUDY)
    same = CliRunner().invoke(app, ["study", str(folder), "--out", str(out)])
    assert same.exit_code == 2 and "would write to the same files" in same.output
    nothing = CliRunner().invoke(app, ["study", str(folder / "c.yaml")])
    assert nothing.exit_code == 2 and "no study defines the size small" in nothing.output


@pytest.mark.full
def test_records_outlive_the_runs(result: StudyResult, place: Path, tmp_path: Path):
    """Without a run folder and without data, the same figures, verdicts and tables."""
    records = tmp_path / "records"
    shutil.copytree(place / "out" / "records", records)
    heard: list[str] = []
    words: dict[str, Any] = {"out": tmp_path / "gone", "records": records}
    again = ag.study(place / "table1.yaml", data_root=tmp_path, notify=heard.append, **words)
    assert heard == ["8 of 8 runs already done"] and again.done == 8
    assert not (tmp_path / "gone").exists()  # nothing was run
    assert study_tables(again) == study_tables(result)
    assert study_csv(again) == study_csv(result)
    assert study_latex(again) == study_latex(result)
    record = next(iter(read_records(records).values()))
    assert record.clients == {"small": 1, "large": 1}
    assert {"processor", "threads", "torch", "archgraph", "commit", "date"} <= record.origin.keys()
    # Other settings are other runs: what was recorded of the old ones does not count.
    (tmp_path / "unlike.yaml").write_text(STUDY.replace("lr: 0.1", "lr: 0.3"))
    assert ag.study(tmp_path / "unlike.yaml", only_read=True, **words).done == 0


def test_a_record_names_the_machine_that_ran_it_not_the_one_that_reads_it(
    result: StudyResult, tmp_path: Path
):
    folder = shutil.copytree(result.runs[0].folder, tmp_path / "run")
    origin = record_of(folder, "study", "row", "column").origin
    assert origin["device"] == "cpu" and origin["threads"] == 1 and "resumed" not in origin
    file = folder / "checkpoints/round-000003/server.json"
    content = json.loads(file.read_text())
    (first,) = content["environments"]
    content["environments"].append({**first, "since": 3, "threads": 7, "device": "meta"})
    file.write_text(json.dumps(content))
    moved = record_of(folder, "study", "row", "column").origin
    assert (moved["device"], moved["threads"]) == ("meta", 7)
    assert moved["resumed"][0].startswith("from round 3, device: ")


def test_a_record_has_its_first_round(result: StudyResult):
    one = next(r for r in result.runs if r.cell.row == "HeteroFL")
    line, first = read_metrics(one.folder)[0], result.records[one.address].first
    assert first["loss"] == [pytest.approx(row["loss"], rel=1e-5) for row in line["clients"]]
    assert len(first["norm"]) == 4 and all(first["norm"])


def test_records_are_read_whole_or_not_at_all(place: Path, result: StudyResult, tmp_path: Path):
    [file] = (place / "out" / "records").glob("table1.jsonl")
    good = file.read_text()
    (tmp_path / "a.jsonl").write_text(good + '{"run": "cut off')
    with pytest.raises(RunError, match=r"a\.jsonl:9: damaged line"):
        read_records(tmp_path)
    first = json.loads(good.splitlines()[0])
    first["rounds"][-1]["evaluation"]["models"]["small"]["accuracy"] = 0.123
    (tmp_path / "a.jsonl").write_text(good)
    (tmp_path / "b.jsonl").write_text(json.dumps(first) + "\n")
    with pytest.raises(
        RunError, match=r"b\.jsonl:1: two records of the same run have different results"
    ):
        read_records(tmp_path)


@pytest.mark.full
def test_seeds_that_two_versions_recorded_are_one_cell(result: StudyResult):
    """Facts that a later version adds or words otherwise part no seeds: the address is one."""
    one = next(r for r in result.runs if r.seed == 1)
    record = result.records[one.address]
    later = record.model_copy(update={"settings": {**record.settings, "graph": "later"}})
    mixed = dataclasses.replace(result, records={**result.records, one.address: later})
    cell = one.cell.row, one.cell.column, "average"
    assert mixed.values(*cell) == result.values(*cell) and len(mixed.values(*cell)) == 2


def test_what_ends_after_it_was_read_does_not_count(tmp_path: Path):
    short = STUDY.replace("rounds: 3", "rounds: 1").replace("seeds: [0, 1]", "seeds: [0]")
    (tmp_path / "a.yaml").write_text(short)
    before = ag.study(tmp_path / "a.yaml", out=tmp_path / "out", only_read=True)
    ag.study(tmp_path / "a.yaml", out=tmp_path / "out", only=["HeteroFL | clean"])
    assert before.done == 0 and "0 of 4 cells done" in study_text(before)
    assert ag.study(tmp_path / "a.yaml", out=tmp_path / "out", only_read=True).done == 1


# ---------------------------------------------------------------- equal cost


@pytest.mark.sample(3)
@pytest.mark.parametrize(("share", "rounds"), [(1.0, 3), (0.7, 2), (0.34, 1)])
def test_a_budget_counts_the_last_test_within_it(
    result: StudyResult, place: Path, share: float, rounds: int
):
    whole = result.groups["HeteroFL", "clean"]["average"]
    spent = max(sum(line["macs"]["round"] for line in log.rounds) for log in whole.runs)
    figure = f"average_accuracy, within: {share * spent}"
    text = STUDY.replace("{average: average_accuracy,", f"{{average: {{measure: {figure}}},")
    cut = read(place, text).groups["HeteroFL", "clean"]["average"]
    assert cut.at == rounds


def test_each_run_counts_its_own_last_test_within_a_budget(result: StudyResult, place: Path):
    """One seed spends more: its test before the last counts, and that of the other one does not."""
    measure = "{measure: average_accuracy, within: 1.0e+9}"
    text = STUDY.replace("{average: average_accuracy,", f"{{average: {measure},")
    within = read(place, text.replace("last: 2}", "last: 2, within: 1.0e+9}"))
    records = dict(within.records)
    for one in within.runs:
        if (one.cell.row, one.cell.column) == ("HeteroFL", "clean"):
            spent = 1e9 / 3 if one.seed == 0 else 1e9 / 2.5
            lines = [{**line, "macs": {**line["macs"], "round": spent}} for line in
                     records[one.address].rounds]  # fmt: skip
            records[one.address] = records[one.address].model_copy(update={"rounds": lines})
    cut = dataclasses.replace(within, records=records)
    cell, values = ("HeteroFL", "clean"), result.groups["HeteroFL", "clean"]["average"]
    curves = [
        [statistics.fmean(line["evaluation"]["models"][m]["accuracy"] for m in ("small", "large"))
         for line in log.rounds]
        for log in values.runs
    ]  # fmt: skip
    expected = {0: 100 * curves[0][2], 1: 100 * curves[1][1]}
    assert cut.values(*cell, "average") == pytest.approx(expected)
    means = {0: 50 * sum(curves[0][1:]), 1: 50 * sum(curves[1][:2])}
    assert cut.values(*cell, "last two") == pytest.approx(means)
    assert cut.groups[cell]["average"].at == 3


@pytest.mark.full
def test_a_run_that_ended_early_counts_by_its_own_last_test(result: StudyResult):
    one = next(r for r in result.runs if r.seed == 1)
    record, cell = result.records[one.address], (one.cell.row, one.cell.column)
    *lines, _ = record.rounds
    lines[-1] = {**lines[-1], "stopped": "no better accuracy"}
    records = {**result.records, one.address: record.model_copy(update={"rounds": lines})}
    ended = dataclasses.replace(result, records=records)
    early = dataclasses.replace(ended, runs=(one,))
    values = result.values(*cell, "average")[0], early.values(*cell, "average")[1]
    assert ended.values(*cell, "average") == dict(enumerate(values))


def test_a_run_that_spends_less_than_the_budget_has_no_figure(result: StudyResult, place: Path):
    figure = "average_accuracy, within: 1.0e+15"
    text = STUDY.replace("{average: average_accuracy,", f"{{average: {{measure: {figure}}},")
    assert read(place, text).values("HeteroFL", "clean", "average") == {}


@pytest.mark.full
def test_epochs_to_a_target_are_those_of_the_first_test_that_reaches_it(
    result: StudyResult, place: Path
):
    """By hand from the runs' lines; a run that never gets there counts all, and says so."""
    runs = result.groups["HeteroFL", "clean"]["average"].runs
    curves = [
        [statistics.fmean(line["evaluation"]["models"][m]["accuracy"] for m in ("small", "large"))
         for line in log.rounds]
        for log in runs
    ]  # fmt: skip
    text = re.sub("published: .*\n", "", STUDY)
    # One that both reach in the first round, and one that one of them never does.
    low, high = min(c[0] for c in curves), min(max(c) for c in curves) + 1e-4
    for target in (round(low - 1e-4, 4), round(high, 4)):
        expected = [next((n for n, a in enumerate(c, 1) if a >= target), 3) for c in curves]
        never = sum(max(curve) < target for curve in curves)
        assert never == (target > low)
        measure = f"average: reach.{target}.average_accuracy,"
        read_again = read(place, text.replace("average: average_accuracy,", measure))
        values = read_again.values("HeteroFL", "clean", "average")
        assert list(values.values()) == expected
        assert read_again.bounded("HeteroFL", "clean", "average") == never
        table = " ".join(str(study_tables(read_again)[0]).split())
        assert (f"{never} of 2 never" in table) == bool(never)


# ---------------------------------------------------------------- small test sets


@pytest.mark.full
def test_small_test_sets_are_drawn_again_with_the_seeds(tmp_path: Path):
    text = STUDY.replace("  rounds: 3", "  rounds: 3\n  evaluate: {answers: true}")
    text = text.replace("{average: average", "{worst: worst_accuracy, average: average")
    text = re.sub("published: .*\n", "", text)
    row = "  nearest: {trivial: nearest_neighbours}\n"
    text = text.replace("columns:", row + "columns:", 1)
    (tmp_path / "table.yaml").write_text(text)
    result = ag.study(tmp_path / "table.yaml", out=tmp_path)

    def right(row: str, figure: str) -> np.ndarray:
        group, measure = result.groups[row, "clean"][figure], result.spec.read[figure].measure
        rows = [right_answers(log, group.tests, measure) for log in group.runs]
        return np.stack([one for one in rows if one is not None])

    # Rows of answers have the mean that the figure has.
    for figure, last in (("worst", 1), ("average", 1), ("last two", 2)):
        group = result.groups["HeteroFL", "clean"][figure]
        assert len(group.tests) == last
        values = group.figures[result.spec.read[figure].measure].values
        assert right("HeteroFL", figure).mean(1) == pytest.approx(values, rel=1e-5)  # six digits
    clean = next(one.paired for one in result.differences if one.figure == "average")
    assert clean is not None and clean.resampled is not None and clean.error is not None
    assert clean.resampled == resampled(
        right("HeteroFL", "average"), right("Standalone", "average")
    )
    assert clean.error >= clean.resampled > 0
    # A row without a network is tested on the same sample.
    values = result.groups["nearest", "clean"]["average"].figures["average_accuracy"].values
    assert right("nearest", "average").mean(1) == pytest.approx(values, rel=1e-5)


def test_without_answers_seeds_alone_are_drawn(result: StudyResult):
    assert all(one.paired and one.paired.resampled is None for one in result.differences)


@pytest.mark.full
def test_cells_with_fewer_seeds_say_so(place: Path, tmp_path: Path):
    out = tmp_path / "out"
    shutil.copytree(place / "out" / "records", out / "records")
    file = out / "records" / "table1.jsonl"
    kept_lines = [x for x in file.read_text().splitlines() if '"seed": 1' not in x or "fl-" in x]
    file.write_text("\n".join(kept_lines) + "\n")
    table, *_ = study_tables(ag.study(place / "table1.yaml", out=out, only_read=True))
    full, few = (row[1] for row in table.rows[::2])
    assert ", n " not in full and few.endswith(", n 1")
    assert "over 2 seeds, or n of them where a cell says so" in table.note
