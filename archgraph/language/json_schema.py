"""The JSON schema of model files, for editors: made of the models and tables that read them."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema

from archgraph.language.flat import FlatModel
from archgraph.language.lowering import BlockOptions
from archgraph.language.model import AuthoredModel, PythonModel
from archgraph.language.steps import STEPS, RawOptions, StepOptions


def model_schema() -> dict[str, Any]:
    """Return the JSON schema of model files, what a step may be included."""
    described = TypeAdapter(AuthoredModel | FlatModel | PythonModel).json_schema()
    _add_steps(described["$defs"])
    linked: dict[str, Any] = _link(described)
    return linked


def _add_steps(definitions: dict[str, Any]) -> None:
    """Define what a step may be: the table's rows, ATen operators, blocks of the model."""
    models: list[type[StepOptions]] = list(dict.fromkeys(row.options for row in STEPS.values()))
    sources = [(m, "validation") for m in (*models, RawOptions, BlockOptions)]
    models_and_kinds: Any = sources
    names, schemas = models_json_schema(models_and_kinds, ref_template="#/$defs/{model}")
    definitions |= {k: v for k, v in schemas.get("$defs", {}).items() if k not in definitions}
    everywhere: list[type[StepOptions]] = [*models, RawOptions]
    for options in everywhere:
        properties = definitions[options.__name__]["properties"]
        for key, value in properties.items():
            # Any option may be an expression; these two are names of values.
            if key not in ("from", "as"):
                properties[key] = {"anyOf": [value, {"$ref": "#/$defs/Expression"}]}
    definitions["Expression"] = {
        "type": "string",
        "pattern": r"\$",
        "description": "$name, or arithmetic: $width * 6 // 2",
    }
    forms: list[dict[str, Any]] = []
    for name, row in STEPS.items():
        reference = names[row.options, "validation"]
        values = [reference, {"type": "null"}]
        if row.main:
            field = row.options.model_fields[row.main]
            main = definitions[row.options.__name__]["properties"][field.alias or row.main]
            values.append(main)
        forms.append(_one(name, {"anyOf": values}))
    forms.append(_one("block", names[BlockOptions, "validation"]))
    definitions["Step"] = {
        "description": "an operator, a block of this model, or an ATen operator (aten.…)",
        "anyOf": [
            {"enum": list(STEPS)},
            *forms,
            {"type": "string", "not": {"enum": ["block"]}},
            {
                "type": "object",
                "minProperties": 1,
                "maxProperties": 1,
                "propertyNames": {"not": {"enum": [*STEPS, "block"]}},
                "additionalProperties": {"type": ["object", "null"]},
            },
        ],
    }


def _link(value: Any) -> Any:
    """Replace every placeholder of a step in a schema by a reference to its definition."""
    if value == {"title": "Step"}:
        return {"$ref": "#/$defs/Step"}
    if isinstance(value, dict):
        return {k: _link(v) for k, v in value.items()}
    return [_link(v) for v in value] if isinstance(value, list) else value


def _one(name: str, options: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: options},
        "required": [name],
        "additionalProperties": False,
    }
