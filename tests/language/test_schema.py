"""The JSON schema and the reader come from one source: they agree on what is well-formed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from ruamel.yaml import YAML

from archgraph.errors import SpecError
from archgraph.language import flat, schema
from archgraph.language.data import DOORS
from archgraph.language.help import topics
from archgraph.language.kinds import file_kinds
from archgraph.language.steps import STEPS
from tests.language.test_errors import EXPERIMENT, FAMILY, GOOD
from tests.language.test_flat import TINY
from tests.language.test_lower import REFERENCES, models

SPECS = Path(__file__).parents[2] / "specs"
KINDS = sorted(file_kinds())
FOLDERS = {
    "model": "models",
    "family": "families",
    "experiment": "experiments",
    "study": "studies",
}


def validator(kind: Any) -> Any:
    return jsonschema.Draft202012Validator(schema(kind))


def plain(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


@pytest.mark.parametrize("kind", KINDS)
def test_schemas_are_schemas(kind: Any) -> None:
    described = schema(kind)
    jsonschema.Draft202012Validator.check_schema(described)
    assert json.loads(json.dumps(described)) == described


SHIPPED = [
    (kind, file) for kind in KINDS for file in sorted((SPECS / FOLDERS[kind]).rglob("*.yaml"))
]


@pytest.mark.sample(12)
@pytest.mark.parametrize(("kind", "file"), SHIPPED, ids=lambda value: getattr(value, "stem", value))
def test_shipped_files_are_valid(kind: Any, file: Path) -> None:
    assert not [e.message for e in validator(kind).iter_errors(plain(file.read_text()))]


def test_files_of_every_kind_are_shipped() -> None:
    assert {kind for kind, _ in SHIPPED} == {*KINDS}


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(models())
def test_what_the_reader_accepts_is_valid(data: dict[str, Any]) -> None:
    validator("model").validate(data)


@pytest.mark.sample(6)
@pytest.mark.parametrize("step", [step for step, _, _, _ in REFERENCES])
def test_every_step_is_described(step: Any) -> None:
    data = {"archgraph": 1, "inputs": {"x": [3]}, "sections": [{"name": "s", "steps": [step]}]}
    validator("model").validate(data)


def test_every_step_of_the_table_is_tried() -> None:
    tried = {s if isinstance(s, str) else next(iter(s)) for s, _, _, _ in REFERENCES}
    elsewhere = {  # tests of their own in test_lower, and in test_recurrent_steps
        "attention", "class_token", "dropout", "embedding", "get", "gru", "identity",
        "layer_scale", "lstm", "positional_embedding", "rnn", "split",
    }  # fmt: skip
    assert set(STEPS) <= tried | elsewhere


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: m", "nmae: m"),
        ("stride: $stride}", "strid: 2}"),
        ("out: $width", "out: 1.5"),
        ("out: $width", "out: wide"),
        ("width: 4", "width: 0"),
        ("archgraph: 1", "archgraph: 2"),
        ("auto", "atuo"),
        ("- relu", "- relu: 3"),
        ("- relu", "- {relu: {}, from: x}"),
        ("- relu", "- linear: {bias: true}"),
        ("[3, 8, 8]", "[3, 0, 8]"),
    ],
)
def test_malformed_models_are_invalid(old: str, new: str) -> None:
    validator("model").validate(plain(GOOD))
    assert old in GOOD
    with pytest.raises(jsonschema.ValidationError):
        validator("model").validate(plain(GOOD.replace(old, new)))


def test_flat_and_python_models_are_valid() -> None:
    validator("model").validate(plain(flat.dump(TINY)))
    validator("model").validate(plain("python: a.b:c\ninputs: {x: [3]}"))


@pytest.mark.parametrize(
    ("kind", "text", "old", "new"),
    [
        ("family", FAMILY, "count: 2", "cuont: 2"),
        ("family", FAMILY, "take: 0.5", "take: 1.5"),
        ("experiment", EXPERIMENT, "dirichlet", "dirichelt"),
        ("experiment", EXPERIMENT, "rounds: 3", "rounds: three"),
        ("experiment", EXPERIMENT, "engine: local", "engine: loacl"),
        ("experiment", EXPERIMENT, "engine: local", "evaluate: {after: 0}"),
        ("experiment", EXPERIMENT, "engine: local", "evaluate: {after: -0.5}"),
        ("experiment", EXPERIMENT, "engine: local", "evaluate: {fine_tune: 0}"),
        ("experiment", EXPERIMENT, "engine: local", "evaluate: {fine_tune: 1.5}"),
    ],
)
def test_malformed_families_and_experiments_are_invalid(
    kind: Any, text: str, old: str, new: str
) -> None:
    validator(kind).validate(plain(text))
    with pytest.raises(jsonschema.ValidationError):
        validator(kind).validate(plain(text.replace(old, new)))


@pytest.mark.sample(3)
@pytest.mark.parametrize("door", DOORS)
def test_each_kind_of_data_is_valid_alone(door: str) -> None:
    whole = {
        "name": "e",
        "family": "f.yaml",
        "strategy": {"fedavg": {}},
        "rounds": 1,
        "local": {"lr": 0.1},
    }
    example = plain(topics()[f"data.{door}"].example)
    validator("experiment").validate({**whole, "data": example})
    for wrong in ({**example, "datset": 1}, {**example, door: 3}, {"python": "no_function"}):
        assert not validator("experiment").is_valid({**whole, "data": wrong})


def test_other_kinds_are_unknown() -> None:
    unknown: Any = "modle"
    with pytest.raises(SpecError) as error:
        schema(unknown)
    assert str(error.value) == (
        "is not a kind of file; found 'modle'; expected one of experiment, family, "
        "model, study; "
        "did you mean 'model'?"
    )


def key_pairs(schema: dict[str, Any]) -> set[tuple[str, str]]:
    """Return all keys that a kind of file may have, with the class that each belongs to."""
    mappings = {"": schema, **schema.get("$defs", {})}
    return {(name, key) for name, value in mappings.items() for key in value.get("properties", {})}


def test_experiments_have_no_more_keys_than_before() -> None:
    """Whoever removes one lowers the number."""
    assert len(key_pairs(schema("experiment"))) <= 240
