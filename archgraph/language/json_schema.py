"""The JSON schema of model files, for editors. It is built from the models that validate files."""

from __future__ import annotations

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from archgraph.language.flat import FlatModel
from archgraph.language.lowering import BlockOptions
from archgraph.language.model import AuthoredModel, OnnxModel, PythonModel
from archgraph.language.steps import STEPS, RawOptions, StepOptions
from archgraph.plain import Json, JsonSchema

FORMS = AuthoredModel | FlatModel | PythonModel | OnnxModel


def model_schema() -> JsonSchema:
    """Return the JSON schema of model files, including the steps."""
    described = TypeAdapter(FORMS).json_schema()
    _add_steps(described["$defs"])
    return {key: _link(value) for key, value in described.items()}


def _add_steps(definitions: JsonSchema) -> None:
    """Define the schema of a step: the table's rows, ATen operators, blocks of the model."""
    models: list[type[StepOptions]] = [*{row.options: None for row in STEPS.values()}, RawOptions]
    mode: JsonSchemaMode = "validation"
    sources: list[tuple[type[BaseModel], JsonSchemaMode]] = [(m, mode) for m in models]
    sources.append((BlockOptions, mode))
    names, schemas = models_json_schema(sources, ref_template="#/$defs/{model}")
    definitions |= {k: v for k, v in schemas.get("$defs", {}).items() if k not in definitions}
    for options in models:
        properties = definitions[options.__name__]["properties"]
        for key, value in properties.items():
            # Any option may be an expression, except these two, which are names of values.
            if key not in ("from", "as"):
                properties[key] = {"anyOf": [value, {"$ref": "#/$defs/Expression"}]}
    definitions["Expression"] = {
        "type": "string",
        "pattern": r"\$",
        "description": "$name, or arithmetic such as $width * 6 // 2",
    }
    forms: list[JsonSchema] = []
    for name, row in STEPS.items():
        values = [names[row.options, mode], {"type": "null"}]
        if row.main:  # its bare value
            field = row.options.model_fields[row.main]
            values.append(definitions[row.options.__name__]["properties"][field.alias or row.main])
        forms.append(_one(name, {"anyOf": values}))
    forms.append(_one("block", names[BlockOptions, mode]))
    definitions["Step"] = {
        "description": "an operator, a block of this model, or an ATen operator (aten.…)",
        "anyOf": [
            {"enum": list(STEPS)},
            *forms,
            # Names of blocks and of ATen operators, which a schema cannot list.
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


def _link(value: Json) -> Json:
    """Replace every placeholder of a step in a schema by a reference to its definition."""
    if value == {"title": "Step"}:
        return {"$ref": "#/$defs/Step"}
    if isinstance(value, dict):
        return {k: _link(v) for k, v in value.items()}
    return [_link(v) for v in value] if isinstance(value, list) else value


def _one(name: str, options: JsonSchema) -> JsonSchema:
    only = {"properties": {name: options}, "required": [name], "additionalProperties": False}
    return {"type": "object", **only}
