"""The matrix of strategies and models: what runs, what is refused and why, what failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import archgraph as ag
from archgraph.cli import app
from archgraph.errors import RunError
from archgraph.federation import find_strategy
from archgraph.language import verdicts
from archgraph.language.help import strategy_names
from archgraph.studies import matrix as module
from archgraph.studies.matrix import MatrixCell, matrix
from archgraph.studies.spec import load_study

SPECS = Path(__file__).parents[2] / "specs"
FILE = """
archgraph: 1
study: Two strategies
experiment:
  family: {model: MODEL, choose: "{size}", clients: [{name: whole}, {name: half, take: 0.5}]}
  data: {dataset: digits, limit: 40}
  rounds: 1
rows:
  heterofl: {strategy: {heterofl: {}}}
  fedavg: {strategy: {fedavg: {}}}
columns:
  small: {values: {size: {d1: 1, d2: 1, w1: 8, w2: 16}}}
  wide: {values: {size: {d1: 1, d2: 1, w1: 16, w2: 16}}}
figures: {worst: worst_accuracy}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "two.yaml"
    path.write_text(FILE.replace("MODEL", str(SPECS / "models" / "digits_cnn.yaml")))
    return path


def test_a_cell_runs_or_is_refused_with_its_reason(file: Path, tmp_path: Path):
    log = tmp_path / "log.jsonl"
    result = matrix(file, log=log, only=["small"])
    ran, refused = result.cells
    assert (ran.strategy, ran.model, ran.outcome, ran.reason) == ("heterofl", "small", "runs", "")
    assert (refused.strategy, refused.outcome) == ("fedavg", "refused")
    assert "one architecture" in refused.reason and "yaml" not in refused.reason
    assert result.due == 4 and len(log.read_text().splitlines()) == 2


def test_what_the_log_holds_is_not_run_again_unless_it_failed(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    log, told = tmp_path / "log.jsonl", list[MatrixCell]()
    lines = [
        {"strategy": "heterofl", "model": "small", "outcome": "runs", "reason": "", "seconds": 1.0},
        {"strategy": "fedavg", "model": "small", "outcome": "fails", "reason": "x", "seconds": 1.0},
    ]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def dies(*_: object, **__: object) -> None:
        raise ValueError("no room")

    monkeypatch.setattr(module, "execute", dies)
    result = matrix(file, log=log, notify=told.append)
    assert [(cell.strategy, cell.model) for cell in told] == [
        ("fedavg", "small"), ("heterofl", "wide"), ("fedavg", "wide")
    ]  # fmt: skip
    assert [cell.outcome for cell in result.cells] == ["runs", "fails", "refused", "refused"]
    table, reasons = result.tables()
    assert table.rows == (("heterofl", "✓", "✗ 1"), ("fedavg", "– 2", "– 2"))
    assert table.note == "1 runs, 2 refused, 1 fails of 4 cells"
    assert reasons.rows[0] == ("1", "ValueError: no room")
    log.write_text(log.read_text() + '{"strategy": "cut')
    with pytest.raises(RunError, match=r"log\.jsonl:6: damaged line"):
        matrix(file, log=log)


def test_the_command_writes_the_table(file: Path, tmp_path: Path):
    page = tmp_path / "page.md"
    words = ["matrix", str(file), "--only", "fedavg", "--log", str(tmp_path / "l"), "-o", str(page)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert text.startswith("# Two strategies\n") and "| fedavg | – 1 | – 1 |" in text


def test_the_shipped_matrix_has_every_strategy_with_clients_that_it_serves():
    spec = load_study(SPECS / "matrix.yaml")
    assert sorted(spec.rows) == strategy_names()
    kinds = {"take": "width", "shorten": "depth", "ends_after": "exits"}
    for name, row in spec.rows.items():
        family: Any = row.get("family", spec.experiment["family"])
        used = {kinds[key] for client in family["clients"] for key in client if key in kinds}
        serves = set(find_strategy(name).serves)
        if "split" in serves:
            serves |= {"exits"}
        assert "any" in serves or used <= serves, name
        strategy: Any = row["strategy"]
        assert list(strategy) == [name]
    assert ag.load_study(SPECS / "matrix.yaml").about


def test_check_counts_the_cells_that_a_matrix_may_have_refused(file: Path):
    (verdict,) = verdicts([file])
    assert "fedavg" in str(verdict.error) and "one architecture" in str(verdict.error)
    file.write_text(f"{file.read_text()}may_be_refused: true\n")
    (verdict,) = verdicts([file])
    assert verdict.good and "4 cells, 2 refused" in verdict.note
    file.write_text(file.read_text().replace("{fedavg: {}}", "{fedavg: {wrong: 1}}"))
    (verdict,) = verdicts([file])
    assert "wrong" in str(verdict.error), "what cannot be understood is no answer of a method"
