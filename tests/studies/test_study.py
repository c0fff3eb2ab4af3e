"""Studies as they run: shared cells, going on after a kill, tables, what failed."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
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
from archgraph.engine.local import execute
from archgraph.engine.world import prepare
from archgraph.errors import RunError, SpecError
from archgraph.language import verdicts
from archgraph.language.privacy import PrivacySpec
from archgraph.record.equal import run_differences
from archgraph.record.folder import read_metrics
from archgraph.reports.measures import right_answers
from archgraph.studies import files as study_files
from archgraph.studies.cell import address
from archgraph.studies.claims import judge
from archgraph.studies.gates import GateRecord, gate_tables, judge_gates, read_gates, setting_of
from archgraph.studies.gates import _figure as gate_figure
from archgraph.studies.gates import _settings as settings_of_cells
from archgraph.studies.outcomes import Paired, resampled
from archgraph.studies.pictures import column_picture, columns_of, curves_of
from archgraph.studies.records import read_records, record_of
from archgraph.studies.references import gate_setting
from archgraph.studies.spec import StudyFigure, cells, load_study
from archgraph.studies.studies import Studies, studies
from archgraph.studies.study import StudyResult, chosen_cells
from archgraph.studies.study_tables import (
    study_csv,
    study_markdown,
    study_page,
    study_tables,
)
from tests.studies.test_claims import readable

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
claims: [{better: HeteroFL, than: Standalone, by: average}]
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
    _, table, claims = study_tables(result)
    assert table.columns[1:3] == ("clean, average", "clean, last two")
    values = result.values("HeteroFL", "clean", "average")
    mean, spread = (values[0] + values[1]) / 2, abs(values[0] - values[1]) / 2**0.5
    assert table.rows[0][1] == f"{mean:.2f} ± {spread:.2f} (90)"
    assert claims.rows[0][:3] == ("HeteroFL better than Standalone", "clean", "average")
    # Published: 90 - 80, and of columns under attack 20 - 10.
    assert [row[5:7] for row in claims.rows] == [("+10.00", "2"), ("+10.00", "2")]
    assert claims.rows[0][-1] == "exploratory"


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
    with pytest.raises(SpecError, match="seed: 7 is not a seed of this study, which has 0, 1"):
        done(seeds=(7,))


def test_the_page_says_what_was_run_and_where_cells_differ(result: StudyResult):
    page, (facts, *_) = study_page(result), study_tables(result)
    setup = {row[0]: row[1] for row in facts.rows}
    assert "<h2>Setup</h2>" in page
    assert setup["data"] == (
        "digits, 200 training and 200 test examples; a random order cut into equal shards"
    )
    assert setup["clients"] == "1 `small` (610 parameters), 1 `large` (1,210 parameters)"
    assert setup["training"] == (
        "3 rounds; all clients in each; 1 local epoch; minibatches of 32; rate 0.1; "
        "attack.fraction 0.5 (attacked)"
    )
    assert setup["figures"] == (
        "average: accuracy, mean over the clients' models, each counted once, last test; "
        "last two: accuracy, mean over the clients' models, each counted once, mean of the tests "
        "of the last 2 rounds"
    )
    assert setup["as published"] == (
        "cifar100, 50,000 training and 10,000 test examples (Standalone)"
    )
    assert "in brackets: published" in page
    assert page.count('<figure class="picture">') >= 2 and "<img" not in page  # of each column


def test_the_page_says_on_what_runs_were_computed_and_of_how_many_seeds(
    result: StudyResult, place: Path
):
    line = next(x for x in study_markdown(result).splitlines() if x.startswith("Computed on"))
    assert f"1 thread, torch {torch.__version__} (8 runs, commit" in line
    assert study_tables(result)[1].note.startswith("measured: mean ± standard deviation")
    one = read(place, STUDY.replace("seeds: [0, 1]", "seeds: [0]"))
    assert study_tables(one)[1].note.startswith("measured: one seed")


def test_a_study_without_published_figures_does_not_speak_of_them(result: StudyResult, place: Path):
    own = read(place, re.sub("published: .*|  paper: .*\n", "", STUDY))
    assert "published" not in study_page(own)


def test_figures_are_counted_in_the_unit_of_the_paper(result: StudyResult, place: Path):
    halves = read(place, STUDY.replace("last: 2}", "last: 2, unit: 0.5, digits: 4}"))
    for figure, factor in (("last two", 2), ("average", 1)):
        ours, theirs = (of.values("HeteroFL", "clean", figure) for of in (halves, result))
        assert ours == pytest.approx({seed: factor * value for seed, value in theirs.items()})
    shown = study_tables(halves)[1].rows[0][2]
    assert re.fullmatch(r"\d+\.\d{4} ± \d+\.\d{4} \(89\)", shown), "as many digits as asked for"
    # Four in all from a thousand on.
    table = study_tables(read(place, STUDY.replace("last: 2}", "last: 2, unit: 0.01}")))[1]
    values = [100 * v for v in result.values("HeteroFL", "clean", "last two").values()]
    mean, std = statistics.fmean(values), statistics.stdev(values)
    assert mean > 1000 and table.rows[0][2].startswith(f"{mean:.4g} ± {std:.2f} (")


def read(place: Path, text: str) -> StudyResult:
    """The table of what ran before, for a study that differs from it."""
    assert text != STUDY
    (place / "differs.yaml").write_text(text)
    return ag.study(place / "differs.yaml", out=place / "out", only_read=True)


def test_curves_are_the_figures_of_the_claims(result: StudyResult, place: Path):
    """Each test's value, of measures that tests have; a line of panels for each."""
    text = re.sub("published: .*", "", STUDY).replace(
        "last: 2}}",
        'last: 2}, MB: megabytes_down, small: "models.small.accuracy", worst: worst_accuracy}',
    )
    more = "by: average}, {better: HeteroFL, than: Standalone, by: small}"
    of = read(place, text.replace("by: average}", more))
    cost = of.spec.claims[0].model_copy(update={"by": "MB"})
    drawn = {}
    for name, claims in (("both", of.spec.claims), ("bytes", (cost,)), ("none", ())):
        one = dataclasses.replace(of, spec=of.spec.model_copy(update={"claims": claims}))
        drawn[name] = curves_of(one, "clean", columns_of(of)["clean"])
    assert list(drawn["both"]) == ["average", "small"]
    assert not drawn["bytes"]
    assert list(drawn["none"]) == ["average", "small", "worst"]
    for row, tests in drawn["both"]["average"].items():
        assert (100 * tests.iloc[-1]).to_dict() == pytest.approx(
            result.values(row, "clean", "average")
        )
        assert (100 * tests[-2:].mean()).to_dict() == pytest.approx(
            result.values(row, "clean", "last two")
        )
    compared = columns_of(result)["clean"]
    figure = column_picture(compared, drawn["both"], of.spec.read, "A study")
    assert readable(figure)
    labels = [panel.get_ylabel() for panel in figure.axes]
    assert labels == ["average\naverage_accuracy", "", "", "small\nmodels.small.accuracy", "", ""]
    axes = [panel.get_xlabel() for panel in figure.axes[:3]]
    assert axes == ["round", "megabytes, both ways", "GMACs of training"]
    # Standalone exchanges nothing: its last value is a level.
    for panel, levels in zip(figure.axes[:3], (0, 1, 0), strict=True):
        flat = [line for line in panel.get_lines() if np.array_equal(line.get_xdata(), [0, 1])]
        assert len(flat) == levels
    (legend,) = figure.legends
    assert [one.get_text() for one in legend.get_texts()] == ["HeteroFL", "Standalone"]
    assert legend.get_title().get_text() == (
        "lines and bands: mean ± standard deviation, 2 seeds; "
        "dashed: last test of Standalone, which exchanges nothing"
    )


def test_a_picture_says_how_many_rounds_are_averaged_of_runs_of_any_length(result: StudyResult):
    compared = columns_of(result)["clean"]
    first, second = compared.groups
    longer = dataclasses.replace(second, settings={**second.settings, "rounds": 6})
    compared = dataclasses.replace(compared, groups=(first, longer))
    read = {"average": StudyFigure(measure="average_accuracy", last=0.5)}
    figure = column_picture(compared, curves_of(result, "clean", compared), read, "A study")
    text = figure.legends[0].get_title().get_text()
    assert "the table averages the tests of the last 1.5 or 3 rounds" in text


def test_values_of_a_thousand_and_more_have_four_digits(result: StudyResult, place: Path):
    table = study_tables(read(place, STUDY.replace("last: 2}", "last: 2, unit: 0.01}")))[1]
    values = [100 * v for v in result.values("HeteroFL", "clean", "last two").values()]
    mean, std = statistics.fmean(values), statistics.stdev(values)
    assert mean > 1000 and table.rows[0][2].startswith(f"{mean:.4g} ± {std:.2f} (")


def test_heads_name_the_figure_where_there_are_several_or_no_columns(
    result: StudyResult, place: Path
):
    assert study_tables(result)[1].columns[1] == "clean, average"
    few = STUDY.replace(', "last two": {measure: average_accuracy, last: 2}', "")
    few = few.replace("[90, 89, 20, 20]", "[90, 20]").replace("[80, 79, 10, null]", "[80, 10]")
    assert study_tables(read(place, few))[1].columns == ("", "clean", "attacked")
    one = few.replace(
        "columns: {clean: {}, attacked: {attack: {fraction: 0.5, intensity: 20}}}\n", ""
    )
    one = one.replace("[90, 20]", "[90]").replace("[80, 10]", "[80]")
    assert study_tables(read(place, one))[1].columns == ("", "average")


def test_columns_that_a_size_leaves_out_are_not_in_its_table(result: StudyResult, place: Path):
    table = study_tables(read(place, STUDY.replace("[0, 1]}", "[0, 1], leave_out: [attacked]}")))[1]
    assert table.columns == ("", "clean, average", "clean, last two")
    assert [len(row) for row in table.rows] == [3, 3]


def test_a_cell_that_waits_for_a_strategy_is_listed(result: StudyResult, place: Path):
    text = STUDY.replace("{standalone: {}}", "{fedsoon: {}}") + "waits_for: [fedsoon]\n"
    table = study_tables(read(place, text))[-1]
    assert table.title == "Not measured"
    waiting = [("Standalone", column, "waits for fedsoon") for column in ("clean", "attacked")]
    assert list(table.rows) == waiting


def test_a_claim_of_columns_names_the_other_one_and_what_they_share(
    result: StudyResult, place: Path
):
    attack = "attack: {fraction: 0.5, intensity: 20}"
    names = f'[{{clean: {{}}, "0 %": {{}}, "20 %": {{{attack}}}}}, {{IID: {{}}, again: {{}}}}]'
    text = STUDY.replace(f"{{clean: {{}}, attacked: {{{attack}}}}}", names)
    text = text.replace('"last two": {measure: average_accuracy, last: 2}', "")
    text = text[: text.index("published:")] + text[text.index("claims:") :]
    claim = '{better: clean, than: ["0 %", "20 %"], where: HeteroFL}'
    text = text.replace("{better: HeteroFL, than: Standalone, by: average}", claim)
    found = read(place, text).findings
    assert [(one.claim, one.where) for one in found] == [
        (f"clean better than {other}", f"HeteroFL; {part}")
        for other in ("0 %", "20 %")
        for part in ("IID", "again")
    ]
    assert all(one.paired and not any(one.paired.differences) for one in found[:2])  # the same runs


def test_rows_that_read_one_run_by_measures_of_their_own_are_two_comparisons(
    result: StudyResult, place: Path
):
    rows = """\
  Small: {strategy: {heterofl: {}}, values: {of: small}}
  Large: {strategy: {heterofl: {}}, values: {of: large}}
  Standalone: {strategy: {standalone: {}}, values: {of: "*"}}
"""
    text = re.sub("  HeteroFL: .*\n  Standalone: .*\n", rows, re.sub("published: .*\n", "", STUDY))
    text = text.replace("{average: average_accuracy,", '{average: "models.{of}.accuracy",')
    text = re.sub("  paper: .*\n", "", text).replace("than: Standalone", "than: [Small, Large]")
    text = text.replace("better: HeteroFL", "where: clean, better: Standalone")
    judged = judge(read(place, text).findings)
    assert [one.text for one in judged] == ["exploratory"] * 2
    assert len({one.finding.paired for one in judged}) == 2
    turned = text.replace(
        "better: Standalone, than: [Small, Large]", "better: Small, than: Standalone"
    )
    pairs = judge([*read(place, text).findings, *read(place, turned).findings])
    assert [one.elsewhere for one in pairs] == [False, False, True]


def test_a_claim_is_judged_by_the_seeds_that_both_have(result: StudyResult, place: Path):
    ours, theirs = (result.values(row, "clean", "average") for row in ("HeteroFL", "Standalone"))
    gains = [ours[seed] - theirs[seed] for seed in (0, 1)]
    less = STUDY.replace("average: average_", "average: {measure: average_")
    less = less.replace('_accuracy, "', '_accuracy, better: less}, "')
    costs = read(place, re.sub("published: .*", "", less))
    for of, sign in ((result, 1), (costs, -1)):
        paired = of.findings[0].paired
        assert paired is not None and paired.differences == tuple(sign * x for x in gains)


def test_csv_and_markdown_hold_the_same_figures(result: StudyResult):
    rows = list(csv.DictReader(study_csv(result).splitlines()))
    assert len(rows) == 8 and rows[0]["published"] == "90.0" and rows[7]["published"] == ""
    first = list(map(float, rows[0]["values"].split()))
    assert first == list(result.values("HeteroFL", "clean", "average").values())
    text = study_markdown(result)
    assert text.startswith("## Somebody, Table 1\n") and "| HeteroFL |" in text


def test_what_is_done_is_not_run_again_and_equal_cells_are_one(result: StudyResult, place: Path):
    before = {one.folder: (one.folder / "metrics.jsonl").stat().st_mtime_ns for one in result.runs}
    other = STUDY.replace("Somebody, Table 1", "Another").replace("local: {lr: 0.1}", "local: {}")
    other = other.replace("HeteroFL: {strategy: {heterofl: {}}}", "H: {strategy: {heterofl: }}")
    other = other.replace("HeteroFL", "H").replace("name: net", "name: other")
    (place / "another.yaml").write_text(other.replace("name: other", "name: net"))
    heard: list[str] = []
    again = ag.study(place / "another.yaml", out=place / "out", notify=heard.append)
    assert heard == ["8 of 8 runs done before"]
    assert {one.folder for one in again.runs} == set(before)
    assert all((f / "metrics.jsonl").stat().st_mtime_ns == at for f, at in before.items())
    (place / "unlike.yaml").write_text(STUDY.replace("lr: 0.1", "lr: 0.2"))
    unlike = ag.study(place / "unlike.yaml", out=place / "out", only_read=True)
    assert not {one.folder for one in unlike.runs} & set(before) and unlike.done == 0


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
        assert run_differences(one.folder, other.folder)[0] == []


def test_what_fails_is_told_and_the_rest_goes_on(place: Path):
    call = CliRunner().invoke
    words = [str(place / "table1.yaml"), "--size", "paper", "--out", str(place / "out")]
    done = call(app, ["study", *words, "--data", str(place)])
    assert done.exit_code == 1, done.output
    # Of the first seed, the cells that do not differ between the sizes.
    assert "2 of 4 runs done before" in done.output
    told = (
        "what its runs need is not there; found no cifar100; expected cifar100: train, test into "
    )
    assert told in done.output and "there is no cifar100" in done.output
    assert "Not measured" in done.output and "not measured" in done.output
    page = (place / "out" / "table1-paper.html").read_text()
    assert "Somebody, Table 1" in page and "data:image/svg+xml" in page
    for ending in ("txt", "md", "csv"):
        assert (place / "out" / f"table1-paper.{ending}").is_file()


def test_a_study_whose_data_are_not_there_says_what_to_fetch(
    result: StudyResult, place: Path, monkeypatch: pytest.MonkeyPatch
):
    """Where nothing can be run, before a folder is made."""
    text = STUDY.replace("dataset: digits", "dataset: svhn").replace("Table 1", "Table 2")
    (place / "svhn.yaml").write_text(text)
    out = place / "nothing"
    words = ["study", str(place / "svhn.yaml"), "--size", "paper", "--out", str(out)]
    done = CliRunner().invoke(app, [*words, "--data", str(place)])
    assert done.exit_code == 2 and not out.exists(), done.output
    assert done.stderr == (
        "error: what its runs need is not there; found no svhn, no cifar100; expected svhn: "
        "train_32x32.mat, test_32x32.mat into svhn/, published at "
        "http://ufldl.stanford.edu/housenumbers; cifar100: train, test into cifar-100-python/, "
        "published at https://www.cs.toronto.edu/~kriz/cifar.html; put the original files into "
        "these folders, of data sets below the one that --data or ARCHGRAPH_DATA names; nothing is "
        "downloaded\n"
    )
    monkeypatch.setenv("COLUMNS", "600")
    words = ["study", str(place / "table1.yaml"), str(place / "svhn.yaml"), "--data", str(place)]
    several = CliRunner().invoke(app, [*words, "--out", str(place / "out")])
    assert several.exit_code == 1 and "no cifar100" not in several.stdout
    assert (
        "what its runs need is not there; found no svhn; expected svhn: train_32x32"
        in several.stdout
    )


def test_a_study_asks_for_one_worker_or_more(place: Path):
    with pytest.raises(RunError, match="at least one worker, not 0"):
        ag.study(place / "table1.yaml", workers=0)


def test_check_goes_through_every_cell_and_the_printed_figures(place: Path):
    figures = "archgraph: 1\npaper: A\nsource: Somebody\nfigures:\n  - {what: Table 1, published: "
    net = "{sections: [{name: fc, steps: [linear: 3]}], inputs: {x: [4]}, archgraph: 1}"
    (place / "net.yaml").write_text(net)

    def verdict(text: str, published: str = "15") -> Any:
        (place / "figures.yaml").write_text(f"{figures}{published}, model: net.yaml}}\n")
        named = "architectures: {figures: figures.yaml, of: Table 1}\n"
        (place / "checked.yaml").write_text(text + named)
        return next(verdicts([place / "checked.yaml"]))

    good = verdict(ALIKE)
    assert good.good and good.kind == "study", good.error
    sizes = "paper: 4 cells, 1 seed, of digits; small: 4 cells, 2 seeds, of digits"
    expected = f"Somebody, Table 1: 2 comparisons; {sizes}; 1 of 1 published figure met"
    assert good.note == expected
    other = verdict(ALIKE, published="16")
    assert "is not what the paper prints; found 15; expected 16" in str(other.error)
    assert "figures.yaml:5" in str(other.error)
    wrong = verdict(ALIKE.replace("{standalone: {}}", "{fedin: {}}"))
    assert str(wrong.error).startswith("Standalone, clean: ")
    waits = verdict("waits_for: [fedsoon]\n" + ALIKE.replace("{standalone: {}}", "{fedsoon: {}}"))
    assert "waits for fedsoon" in waits.note


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

    begin, states = world.begun, []

    def counted(experiment: Any) -> Any:
        states.append(type(experiment.strategy).__name__)
        return begin(experiment)

    monkeypatch.setattr(world, "begun", counted)
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


def test_a_folder_of_studies_makes_a_page_for_each_paper(
    result: StudyResult, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Runs that are there count once; a study without the size is listed with what it says."""
    folder = tmp_path / "studies"
    folder.mkdir()
    told = STUDY.replace("seeds: [0, 1]}", "seeds: [0, 1], findings: [Both are alike.]}")
    (folder / "a.yaml").write_text(told)
    (folder / "b.yaml").write_text(told.replace("Table 1", "Table 2"))
    other = "Another's table\npage: Tables of others"
    (folder / "d.yaml").write_text(told.replace("Somebody, Table 1", other))
    left = STUDY.replace("Table 1", "Table 3").split("sizes:")[0]
    (folder / "c.yaml").write_text(left + "sizes: {paper: {about: Needs what nobody has.}}\n")
    pages = tmp_path / "pages"
    words = ["study", str(folder), "--only-read", "--out", str(place / "out"), "-o", str(pages)]
    monkeypatch.setenv("COLUMNS", "200")
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output

    def several() -> Studies:
        return studies([folder], lambda file: ag.study(file, out=place / "out", only_read=True))

    both = several()
    assert [spec.study for spec in both.others.values()] == ["Somebody, Table 3"]
    assert both.seconds == pytest.approx(sum(result.seconds.values()), rel=1e-12)
    assert len(result.seconds) == 8 and all(value > 0 for value in result.seconds.values())
    assert not both.claims().rows  # none is primary
    first = both.summary().rows[0]
    assert first[:3] == ("Somebody, Table 1", "8 of 8", "8")
    assert first[4:] == ("0", "0", "0", "0", "0", "2")  # no claim is primary
    assert not both.uncounted().rows
    marked = told.replace("by: average}", "by: average, not_counted: untrained}")
    (folder / "e.yaml").write_text(marked.replace("Table 1", "Table 4"))
    more = several()
    (folder / "e.yaml").unlink()
    assert more.uncounted().rows == (
        ("Somebody, Table 4", "HeteroFL better than Standalone", "2",
         "holds of the same networks before training"),
    )  # fmt: skip
    # The other two compare the same runs, and refer to it.
    assert [row[-1] for row in both.summary().rows] == ["2", "0", "0"]
    again = study_tables(both.results[folder / "b.yaml"], both.judged["Somebody, Table 2"])
    (rows,) = (table.rows for table in again if table.title == "Claims")
    assert rows == (("2 comparisons", "", "", "compared in Somebody, Table 1"),)
    text = {file.name: file.read_text() for file in pages.iterdir()}
    pictures = {name: text.pop(name) for name in list(text) if name.endswith(".svg")}
    assert set(pictures) == set(re.findall(r"\((.*?\.svg)\)", "".join(text.values())))
    # Of each study two columns, and the differences of its claims once.
    assert len(pictures) == 7 and all(one.startswith("<?xml") for one in pictures.values())
    assert text == both.pages() and set(text) == {"index.md", "somebody.md", "tables_of_others.md"}
    assert "| Somebody, Table 3 | Needs what nobody has. |" in text["index.md"]
    assert "[Somebody](somebody.md), [Tables of others](tables_of_others.md)" in text["index.md"]
    assert text["somebody.md"].count("Both are alike.") == 2
    assert "## Somebody" not in text["index.md"]
    assert "## Somebody, Table 1" in text["somebody.md"]
    page = text["tables_of_others.md"]
    assert page.startswith("# Tables of others, measured\n\n## Another's table\n")
    assert "Both are alike." not in study_markdown(result)
    (folder / "a.yaml").write_text(told.replace("lr: 0.1", "lr: 0.3"))
    half = several()
    assert half.summary().rows[0][:2] == ("Somebody, Table 2", "8 of 8")
    assert "No run is done yet of: Somebody, Table 1." in half.pages()["index.md"]
    assert "## Somebody, Table 1" not in half.pages()["somebody.md"]
    assert "## Somebody, Table 2" in half.pages()["somebody.md"]
    (folder / "more").mkdir()
    (folder / "more" / "a.yaml").write_text(told)
    same = CliRunner().invoke(app, ["study", str(folder), "--out", str(place / "out")])
    assert same.exit_code == 2 and "would be written into the same files" in same.output
    nothing = CliRunner().invoke(app, ["study", str(folder / "c.yaml")])
    assert nothing.exit_code == 2 and "no study of this size, small" in nothing.output


def test_records_outlive_the_runs(result: StudyResult, place: Path, tmp_path: Path):
    """Without a run folder and without data, the same figures, verdicts, tables and plots."""
    records = tmp_path / "records"
    shutil.copytree(place / "out" / "records", records)
    heard: list[str] = []
    words: dict[str, Any] = {"out": tmp_path / "gone", "records": records}
    again = ag.study(place / "table1.yaml", data_root=tmp_path, notify=heard.append, **words)
    assert heard == ["8 of 8 runs done before"] and again.done == 8
    assert not (tmp_path / "gone").exists()  # nothing was run
    assert study_tables(again) == study_tables(result)
    assert study_csv(again) == study_csv(result)
    assert study_page(again) == study_page(result)
    assert again.seconds == result.seconds
    record = next(iter(read_records(records).values()))
    assert record.clients == {"small": 1, "large": 1}
    assert {"processor", "threads", "torch", "archgraph", "commit", "date"} <= record.origin.keys()
    # Other settings are other runs: what was recorded of the old ones does not count.
    (tmp_path / "unlike.yaml").write_text(STUDY.replace("lr: 0.1", "lr: 0.3"))
    assert ag.study(tmp_path / "unlike.yaml", only_read=True, **words).done == 0


def test_a_record_says_on_which_device_a_run_was(place: Path, result: StudyResult, tmp_path: Path):
    folder = shutil.copytree(result.runs[0].folder, tmp_path / "run")
    file = folder / "run.yaml"
    origin = record_of(folder, "study", "row", "column", {}).origin
    assert origin["device"] == "cpu"
    said = file.read_text()
    assert "device: cpu" in said
    file.write_text(said.replace("device: cpu", "device: meta"))
    there = record_of(folder, "study", "row", "column", {}).origin
    assert there == {**origin, "device": "meta"}


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
    with pytest.raises(RunError, match=r"b\.jsonl:1: the same run with other figures"):
        read_records(tmp_path)


def test_seeds_that_two_versions_recorded_are_one_cell(result: StudyResult):
    """Facts that a later version adds or words otherwise part no seeds: the address is one."""
    one = next(r for r in result.runs if r.seed == 1)
    record = result.records[one.address]
    later = record.model_copy(update={"settings": {**record.settings, "graph": "later"}})
    mixed = dataclasses.replace(result, records={**result.records, one.address: later})
    cell = one.cell.row, one.cell.column, "average"
    assert mixed.values(*cell) == result.values(*cell) and len(mixed.values(*cell)) == 2


def test_a_paper_has_three_primary_claims_at_most(tmp_path: Path):
    claim = "{better: HeteroFL, than: Standalone, by: average, primary: true}"
    for number in range(2):
        text = re.sub(r"claims: .*", f"claims: [{claim}, {claim}]", STUDY)
        (tmp_path / f"{number}.yaml").write_text(text.replace("Table 1", f"Table {number}"))
    with pytest.raises(SpecError, match="Somebody: has 4 primary claims: name at most 3"):
        studies([tmp_path], lambda file: pytest.fail("nothing is run"))


def test_two_studies_of_one_name_are_refused(tmp_path: Path):
    """Claims are judged by it: the page of the first would show those of the second."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(STUDY)
    with pytest.raises(SpecError, match=r"a.yaml and .*b.yaml: is the name of two studies"):
        studies([tmp_path], lambda file: ag.study(file, out=tmp_path, only_read=True))


def test_a_part_of_several_studies_is_run_where_it_is(tmp_path: Path):
    """A study without it is only read; nothing is run where none has it."""
    (tmp_path / "folder").mkdir()
    short = STUDY.replace("rounds: 3", "rounds: 1").replace("seeds: [0, 1]", "seeds: [0]")
    (tmp_path / "folder" / "a.yaml").write_text(short)
    other = short.replace("Table 1", "Table 2").replace("Standalone:", "Alone:")
    (tmp_path / "folder" / "b.yaml").write_text(other.replace("than: Standalone", "than: Alone"))
    words = ["study", str(tmp_path / "folder"), "--out", str(tmp_path / "out"), "--only"]
    pages = tmp_path / "pages"
    done = CliRunner().invoke(app, [*words, "Alone | clean", "-o", str(pages)])
    assert done.exit_code == 0, done.output
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 1
    summary = (pages / "index.md").read_text()
    assert "No run is done yet of: Somebody, Table 1." in summary  # read before
    assert "| Somebody, Table 2 | 1 of 4 |" in summary
    nothing = CliRunner().invoke(app, [*words, "Nobody"])
    assert nothing.exit_code == 2 and "does not match any cell" in nothing.output
    (tmp_path / "folder" / "b.yaml").unlink()
    left = short.replace("seeds: [0]", "seeds: [0], leave_out: [Standalone]")
    (tmp_path / "folder" / "a.yaml").write_text(left)
    out = CliRunner().invoke(app, [*words, "Standalone"])
    assert out.exit_code == 2 and "does not match any cell of size small" in out.output


def test_what_ends_after_it_was_read_does_not_count(tmp_path: Path):
    short = STUDY.replace("rounds: 3", "rounds: 1").replace("seeds: [0, 1]", "seeds: [0]")
    (tmp_path / "a.yaml").write_text(short)
    before = ag.study(tmp_path / "a.yaml", out=tmp_path / "out", only_read=True)
    ag.study(tmp_path / "a.yaml", out=tmp_path / "out", only=["HeteroFL | clean"])
    assert before.done == 0 and "0 of 4 cells done" in study_markdown(before)
    assert ag.study(tmp_path / "a.yaml", out=tmp_path / "out", only_read=True).done == 1


# A convolutional network beats a linear model on digits within ten passes.
CONVOLUTIONS = (
    "[conv: {out: 16}, batch_norm, relu, conv: {out: 16, stride: 2}, batch_norm, relu, flatten]"
)
GATED = STUDY.replace("rounds: 3", "rounds: 10").replace("limit: 200, ", "")
GATED = GATED.replace("[flatten, linear: 16, relu]", CONVOLUTIONS)


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gated")
    (folder / "passes.yaml").write_text(GATED)
    (folder / "fails.yaml").write_text(STUDY.replace("Somebody", "Nobody"))
    return folder


def gates(file: Path, seed: int = 9, **more: Any) -> tuple[GateRecord, ...]:
    spec = load_study(file)
    chosen = chosen_cells(spec, "small", (), ())
    return judge_gates(spec, seed, records=file.parent / "out/records", chosen=chosen, **more)


def test_a_setting_that_fails_its_gate_is_not_run_and_does_not_count(gated: Path):
    heard: list[str] = []
    (judged,) = gates(gated / "fails.yaml", notify=heard.append)
    assert not judged.passed and heard == ["clean: does not pass its gate"]
    assert [one["what"] for one in judged.comparisons] == ["global, trained centrally (3 passes)"]
    assert gates(gated / "fails.yaml") == ()  # judged once
    result = ag.study(gated / "fails.yaml", out=gated / "out", notify=heard.append)
    assert result.done == 0 and not result.failed
    assert heard[1:] == ["8 runs left out: the setting does not pass its gate"]
    assert {finding.rule for finding in result.findings} == {"reference"}
    table = str(study_tables(result)[-1])
    assert table.count("its setting does not pass its gate") == 4


def test_rows_are_run_until_one_passes_and_attacks_share_the_clean_gate(gated: Path):
    heard: list[str] = []
    (judged,) = gates(gated / "passes.yaml", notify=heard.append)
    assert judged.passed and judged.column == "clean" and len(heard) == 2
    spec = load_study(gated / "passes.yaml")
    experiments = [cell.experiment for cell in cells(spec, "small") if cell.experiment]
    addresses = {setting_of(address(each)) for each in experiments}
    assert set(judged.covers) == addresses and len(addresses) == 4
    _, linear, alone = judged.comparisons
    assert linear["what"] == alone["what"] == "HeteroFL"
    assert (
        linear["figure"] > linear["reference"] == judged.references["softmax regression"]["pooled"]
    )
    # The method was tested on the held-out examples, a fifth of what clients have.
    experiment = prepare(gate_setting(experiments[0], 9))
    assert judged.tested == len(experiment.held_out)
    run = execute(dataclasses.replace(experiment.validating, selection=None), progress=False)
    models = run.rounds[-1]["evaluation"]["models"]
    reached = [models[name]["accuracy"] for name in ("small", "large")]
    assert linear["figure"] == pytest.approx(statistics.fmean(reached), rel=1e-5)  # six digits


@pytest.mark.parametrize("left", ["Standalone | attacked", "HeteroFL | attacked"])
def test_a_column_without_some_rows_shares_the_gate_of_the_one_with_all(tmp_path: Path, left: str):
    """Else a gate of the worse rows alone would cover their cells of the other column, too."""
    (tmp_path / "a.yaml").write_text(STUDY + f"leave_out: [{left}]\n")
    (setting,) = settings_of_cells(cells(load_study(tmp_path / "a.yaml"), "small"))
    assert [(one.row, one.column) for one in setting.rows] == [
        ("HeteroFL", "clean"), ("Standalone", "clean")
    ]  # fmt: skip
    assert len(setting.cells) == len(setting.covers) == 3


def test_a_changed_cell_has_no_gate(gated: Path):
    gates(gated / "passes.yaml")
    for changed, known in (("lr: 0.1", True), ("lr: 0.2", False)):
        (gated / "changed.yaml").write_text(GATED.replace("lr: 0.1", changed))
        result = ag.study(gated / "changed.yaml", out=gated / "out", only_read=True)
        assert all(finding.gated == known for finding in result.findings)


def test_a_part_of_a_setting_is_judged_by_all_of_its_rows(gated: Path, tmp_path: Path):
    """The best method gates, whatever is asked for; columns under attack ask for the clean one."""
    spec = load_study(gated / "passes.yaml")
    for asked in ("Standalone | clean", "Standalone | attacked"):
        heard: list[str] = []
        chosen = chosen_cells(spec, "small", (asked,), ())
        (judged,) = judge_gates(
            spec, 9, records=tmp_path / asked, chosen=chosen, notify=heard.append
        )
        assert judged.passed and heard[0].startswith("HeteroFL")


def test_a_gate_takes_no_seed_of_the_study(gated: Path):
    with pytest.raises(RunError, match="is a seed of the study"):
        gates(gated / "passes.yaml", seed=1)


@pytest.mark.parametrize("measure", ["seconds", "mace", "reach.0.9.average_accuracy"])
def test_a_gate_judges_no_method_by_what_references_do_not_have(tmp_path: Path, measure: str):
    """Any number of seconds would be better than any accuracy."""
    (tmp_path / "a.yaml").write_text(GATED.replace("average: average_accuracy", f"cost: {measure}")
                                     .replace("by: average", "by: cost"))  # fmt: skip
    with pytest.raises(SpecError, match=rf"Table 1: gate: no trivial.*found {measure}"):
        gates(tmp_path / "a.yaml")
    assert not (tmp_path / "out").exists()


def test_all_rows_that_a_gate_tried_are_recorded_and_tabled_once(gated: Path, tmp_path: Path):
    """A row that is worse than the reference, then one that passes; two studies share the gate."""
    swapped = GATED.replace("rows:\n", "rows:\n  First: {strategy: {standalone: {}}, sample: 1}\n")
    (tmp_path / "a.yaml").write_text(swapped)
    (judged,) = gates(tmp_path / "a.yaml")
    assert list(judged.methods) == ["First", "HeteroFL"]
    _, linear, _ = judged.comparisons
    assert judged.methods["HeteroFL"] == linear["figure"] > linear["reference"]
    known = list(read_gates(tmp_path / "out/records").values())  # read anew: equal, not the same
    tried, trivial = gate_tables([judged, *known])
    assert [row[2] for row in tried.rows] == [judged.comparisons[0]["what"], "First", "HeteroFL"]
    assert [row[-1] for row in tried.rows] == ["yes", "no", "yes"]
    assert [row[1] for row in trivial.rows] == list(judged.references)
    best = judged.references["softmax regression"]["pooled"]
    error = 100 * (best * (1 - best) / judged.tested) ** 0.5
    assert tried.rows[0][1] == f"{judged.tested} (± {error:.1f}), seed 9"
    assert "not recorded" not in tried.note
    old = judged.model_copy(update={"methods": {}})
    assert [row[2] for row in gate_tables([old])[0].rows[1:]] == ["HeteroFL"]
    assert "not recorded" in gate_tables([old])[0].note


def test_the_command_judges_gates_first(gated: Path):
    out = gated / "command"
    command = ["study", str(gated / "fails.yaml"), "--gate", "9", "--out", str(out)]
    outcome = CliRunner().invoke(app, command)
    assert outcome.exit_code == 0, outcome.output
    assert "does not pass its gate" in outcome.output
    assert "Gates" in outcome.output and "Trivial references" in outcome.output
    assert len(read_gates(out / "records")) == 4


# ---------------------------------------------------------------- equal cost


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


def test_a_gate_reads_a_methods_figure_as_the_study_does(result: StudyResult):
    log = result.groups["HeteroFL", "clean"]["average"].runs[0]
    spent = sum(line["macs"]["round"] for line in log.rounds)
    tests = [line["evaluation"]["models"] for line in log.rounds]
    curve = [statistics.fmean(test[m]["accuracy"] for m in ("small", "large")) for test in tests]
    for within, expected in ((None, curve[2]), (0.7 * spent, curve[1]), (2 * spent, math.nan)):
        figure = StudyFigure(measure="average_accuracy", within=within)
        assert gate_figure(log, figure) == pytest.approx(expected, nan_ok=True)


def test_a_run_that_spends_less_than_the_budget_has_no_figure(result: StudyResult, place: Path):
    figure = "average_accuracy, within: 1.0e+15"
    text = STUDY.replace("{average: average_accuracy,", f"{{average: {{measure: {figure}}},")
    assert read(place, text).values("HeteroFL", "clean", "average") == {}


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
    text = re.sub("published: .*\n", "", STUDY.replace("[{better", "[] #"))
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
        table = " ".join(str(study_tables(read_again)[1]).split())
        assert (f"{never} of 2 never" in table) == bool(never)
    text = STUDY.replace("average: average_accuracy,", measure)
    with pytest.raises(SpecError, match="lower bound"):
        read(place, text.replace("by: average}", "by: average, primary: true}"))


# ---------------------------------------------------------------- small test sets


def test_small_test_sets_are_drawn_again_with_the_seeds(tmp_path: Path):
    text = STUDY.replace("  rounds: 3", "  rounds: 3\n  evaluate: {answers: true}")
    text = text.replace("{average: average", "{worst: worst_accuracy, average: average")
    text = re.sub("published: .*\n", "", text)
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
    clean = result.findings[0].paired
    assert clean is not None and clean.resampled is not None and clean.error is not None
    assert clean.resampled == resampled(
        right("HeteroFL", "average"), right("Standalone", "average")
    )
    assert clean.error >= clean.resampled > 0


def test_without_answers_seeds_alone_are_drawn(result: StudyResult):
    assert all(f.paired is not None and f.paired.resampled is None for f in result.findings)


# ---------------------------------------------------------------- what a sceptic asks


def gate_of(result: StudyResult, figure: str = "accuracy", **figures: float) -> GateRecord:
    """Return a gate of all cells whose references have these figures; majority class is worst."""
    worst = 0.0 if figure == "accuracy" else 1e9
    names = ("majority class", "softmax regression", "nearest neighbours")
    # Nearest neighbours are best, and gate nothing.
    rows = {name: dict.fromkeys(figures, worst) for name in names}
    rows["softmax regression"] = figures
    rows["nearest neighbours"] = dict.fromkeys(figures, 1 - worst)
    return GateRecord(
        covers=[one.setting for one in result.runs], study="A", column="b", seed=9, data="digits",
        figure=figure, tested=100, references=rows, origin={},
        comparisons=[{"what": "c", "figure": 1.0, "than": "d", "reference": 0.5, "passed": True}],
    )  # fmt: skip


def with_gate(result: StudyResult, gate: GateRecord) -> StudyResult:
    return dataclasses.replace(result, gates=dict.fromkeys(gate.covers, gate))


def test_central_training_that_diverged_is_tabled_as_failed(result: StudyResult):
    """JSON has null for what is not a number."""
    gate = gate_of(result, pooled=0.5)
    lost = [{**gate.comparisons[0], "figure": None, "passed": False}]
    tried, _ = gate_tables([gate.model_copy(update={"comparisons": lost})])
    assert tried.rows[0][3] == "nan" and tried.rows[0][-1] == "no"


def test_a_mean_below_its_trivial_reference_is_marked(result: StudyResult):
    """Between the means of both rows: one is marked, in its table and beside the verdict."""
    means = {
        row: statistics.fmean(result.values(row, "clean", "average").values())
        for row in ("HeteroFL", "Standalone")
    }
    low, high = sorted(means, key=means.__getitem__)
    between = round((means[low] + means[high]) / 2, 1)
    gated = with_gate(result, gate_of(result, pooled=between / 100, own_matched=0.0))
    _, table, claims, *_ = study_tables(gated)
    cells = {row[0]: row[1] for row in table.rows}
    assert "†" in cells[low] and "†" not in cells[high]
    assert f"softmax regression, pooled (b), {between:.2f}" in table.note
    assert claims.rows[0][-1] == f"exploratory ({low} † {between:.2f})"
    assert "† mean worse" in claims.note
    at = with_gate(result, gate_of(result, pooled=means[low] / 100 - 1e-9))
    assert "†" not in study_tables(at)[1].rows[list(cells).index(low)][1]
    assert "†" not in str(study_tables(result))


def test_only_figures_of_a_references_kind_are_compared(result: StudyResult):
    gate = gate_of(result, pooled=0.5, own_matched=0.7)
    pooled = ("softmax regression, pooled (b)", 0.5)
    alone = ("softmax regression, one client (b)", 0.7)
    expected = {
        "global_accuracy": pooled, "worst_accuracy": pooled, "models.small.accuracy": pooled,
        "clients.*.accuracy": pooled, "validation_average_accuracy": pooled,
        "local_matched": alone, "tier.weak.matched": alone, "validation_local_matched": alone,
        "local_accuracy": None, "tier.weak.accuracy": None, "worst_tenth_matched": None,
        "global_loss": None, "macs": None, "reach.0.9.global_accuracy": None,
    }  # fmt: skip
    assert {measure: gate.reference(measure) for measure in expected} == expected
    words = gate_of(result, "perplexity", pooled=50.0)
    assert words.reference("global_perplexity") == ("softmax regression, pooled (b)", 50.0)
    assert words.better(50.0, 51.0) and not words.better(51.0, 50.0)
    assert words.reference("local_matched") is None


def test_cells_with_fewer_seeds_say_so(place: Path, tmp_path: Path):
    out = tmp_path / "out"
    shutil.copytree(place / "out" / "records", out / "records")
    file = out / "records" / "table1.jsonl"
    kept_lines = [x for x in file.read_text().splitlines() if '"seed": 1' not in x or "fl-" in x]
    file.write_text("\n".join(kept_lines) + "\n")
    _, table, *_ = study_tables(ag.study(place / "table1.yaml", out=out, only_read=True))
    full, few = (row[1] for row in table.rows)
    assert ", n " not in full and ", n 1 (80)" in few
    assert "over 2 seeds, or n of them where a cell says so" in table.note


def test_the_index_counts_the_verdicts_and_puts_what_says_most_first(result: StudyResult):
    clear = Paired((5.0, 5.5, 6.0, 5.2, 5.8), margin=1.0)
    noisy = Paired((5.0, -5.5, 6.0, -5.2, 0.8), margin=1.0)
    facts = {"study": "Somebody, Table 1", "where": "x", "figure": "average", "primary": True}

    def one(claim: str, pair: Paired | None, **more: Any) -> Any:
        first = result.findings[0]
        values = {**facts, "runs": (claim, (claim,), ("base",)), "published": None, **more}
        return dataclasses.replace(first, claim=claim, paired=pair, gated=True, **values)

    findings = [
        one("plain", noisy), one("missing", None), one("missing too", None),
        one("outside", noisy, published=99.0),
        one("inside", noisy, published=0.2, below=("base † 9.00",)),
        one("holds", clear, published=5.5), one("trivial", clear, below=("base † 9.00",)),
    ]  # fmt: skip
    pages = Studies("small", {Path("a.yaml"): result}, {})
    pages.__dict__["judged"] = {result.spec.study: judge(findings)}
    table = pages.claims()
    assert [row[1] for row in table.rows] == [
        "holds", "trivial", "outside", "plain", "inside", "missing, missing too"
    ]  # fmt: skip
    assert [row[5] for row in table.rows] == ["+5.50", "–", "+99.00 ‡", "–", "+0.20", ""]
    assert [row[-1] for row in table.rows[1:3]] == ["holds (base † 9.00)", "undecided"]
    assert table.rows[-1][2:] == ("2 comparisons", "", "", "", "", "not measured")
    assert pages.verdicts() == (
        "Of the 7 comparisons that primary claims make, 2 hold, 0 are against, 0 are equivalent, "
        "3 are undecided, 0 are not counted, 2 are not measured. Of those that hold, 1 are "
        "against a method below its trivial reference (†)."
    )
    text = pages.pages()
    assert text["index.md"].splitlines()[2] == pages.verdicts()
    # Explained once a page, however many studies it has.
    assert text["somebody.md"].count("## How claims are judged") == 1
