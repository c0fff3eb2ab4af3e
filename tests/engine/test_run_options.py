"""When and how a run is tested, as its experiment says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

import archgraph as ag
from archgraph.engine import prepare
from archgraph.errors import SpecError
from archgraph.language import schema

MODEL = """
archgraph: 1
name: tiny
inputs: {image: [1, 8, 8]}
sections:
  - name: head
    steps:
      - flatten
      - linear: {out: 10}
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Any], Path]:
    """An experiment whose `evaluate` is given; None: it says nothing of it."""

    def make(evaluate: Any) -> Path:
        (tmp_path / "model.yaml").write_text(MODEL)
        values = {
            "archgraph": 1,
            "name": "tiny",
            "family": {"model": "model.yaml", "clients": [{"name": "all", "count": 2}]},
            "data": {"dataset": "digits", "limit": 200, "partition": {"scheme": "dirichlet"}},
            "strategy": {"fedavg": {}},
            "rounds": 5,
            "local": {"lr": 0.05, "batch": 16},
        }
        file = tmp_path / "experiment.yaml"
        with file.open("w") as stream:
            evaluation = {} if evaluate is None else {"evaluate": evaluate}
            YAML(typ="safe", pure=True).dump({**values, **evaluation}, stream)
        return file

    return make


def test_tests_begin_when_the_experiment_says(write, tmp_path):
    run = ag.run(write({"after": 0.5}), out=tmp_path / "run", progress=False)
    assert [line["round"] for line in run.rounds if "evaluation" in line] == [3, 4, 5]
    again = prepare(tmp_path / "run" / "run.yaml")
    assert again.evaluate == run.experiment.evaluate
    # How a run is tested decides none of its numbers.
    assert again.facts == prepare(write(None)).facts


def test_models_are_tuned_where_the_experiment_says(write):
    late = {"after": 4}
    plain = ag.run(write(late), progress=False)
    tuned = ag.run(write({**late, "fine_tune": 3}), progress=False)
    rows = [run.evaluation["local"] for run in (plain, tuned)]
    assert rows[1]["matched"] > rows[0]["matched"]
    assert rows[0].keys() == rows[1].keys() == {"accuracy", "loss", "masked", "matched"}
    # The clients' work before a test leaves no trace.
    assert plain.rounds[-1]["clients"][0]["loss"] == tuned.rounds[-1]["clients"][0]["loss"]


def test_options_that_are_not_asked_for_are_not_written(write):
    """Else runs of before would not be seeds of the same experiment."""
    text = prepare(write({"every": 2})).text
    assert "after" not in text
    assert "fine_tune" not in text


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("key", "value"), [("after", 0), ("after", -0.5), ("fine_tune", 0), ("fine_tune", 1.5)]
)
def test_impossible_options_are_refused_by_reader_and_schema(write, key, value):
    with pytest.raises(SpecError, match=rf"evaluate\.{key}"):
        prepare(write({key: value}))
    described = schema("experiment")
    found = YAML(typ="safe", pure=True).load(write({key: 1}).read_text())
    jsonschema.validate(found, described)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**found, "evaluate": {key: value}}, described)
