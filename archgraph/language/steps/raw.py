"""Steps that call any other ATen operator by its own name."""

from __future__ import annotations

from collections.abc import Mapping

import pydantic
import torch
from pydantic import Field

from archgraph.errors import GraphError
from archgraph.fields import Base, Count, Mistake
from archgraph.graph.ir import Atom, Ref, Value
from archgraph.language.steps.base import STEPS, Site, StepOptions, StepRow
from archgraph.ops.schema import op_schema
from archgraph.plain import Json


class RawOptions(StepOptions):
    """Arguments of an ATen operator by name, in addition to the options of every step."""

    model_config = pydantic.ConfigDict(extra="allow")


class ParameterOptions(Base):
    """A learned tensor as an argument."""

    parameter: tuple[Count, ...] = Field(description="its shape")


def raw_row(op: str) -> StepRow:
    """Return the table row of a step that calls an ATen operator by its own name.

    The options are the operator's arguments. ``%name`` is the result of a step with ``as: name``,
    ``:float32`` is a dtype, and ``{parameter: [64]}`` is a learned tensor. The step's inputs are
    passed to the omitted tensor arguments, in order. Other omitted arguments have their defaults.

    Raises:
        GraphError: If there is no such functional operator.
    """
    known = op_schema(op)

    def emit(site: Site, o: RawOptions, xs: tuple[Ref, ...]) -> Ref:
        operands = {k: _argument(site, k, v) for k, v in (o.model_extra or {}).items()}
        # Tensors in the order of the schema; an argument that is written out is skipped.
        waiting: list[Value] = list(xs)
        for argument in known.args:
            kind = argument.type.removeprefix("Optional[")
            if argument.name in operands or not kind.startswith(("Tensor", "List[Tensor]")):
                continue
            if argument.type.startswith("List[Tensor]"):
                operands[argument.name], waiting = tuple(waiting), []
            elif waiting:
                operands[argument.name] = waiting.pop(0)
            elif argument.required and argument.type.startswith("Optional"):
                operands[argument.name] = None
        return site.call(op, **operands)

    return StepRow(RawOptions, emit, op.split(".")[1], several=True)


def _argument(site: Site, name: str, value: Json) -> Value:
    """Convert a YAML value to an argument of an operator."""
    match value:
        case str() if value.startswith("%"):
            return site.lookup(value[1:])
        case str() if value.startswith(":"):
            return Atom(value[1:])
        case tuple():
            return tuple(_argument(site, name, v) for v in value)
        case Mapping():
            try:
                return site.parameter(name, ParameterOptions.model_validate(value).parameter)
            except pydantic.ValidationError:
                expected = "{parameter: [sizes]}, a value, or %name"
                raise Mistake("is not an argument", place=(name,), expected=expected) from None
        case _:
            return value


def aten_names() -> list[str]:
    """Return names of the functional ATen operators, for hints."""
    names = torch._C._dispatch_get_all_op_names()
    functional = (n for n in names if n.startswith("aten::") and not n.endswith("_"))
    return [n.replace("::", ".") for n in functional]


def find(name: str) -> StepRow | None:
    """Return the table row of a step or an ATen operator; None if the name is unknown."""
    if name in STEPS or not name.startswith("aten."):
        return STEPS.get(name)
    try:
        return raw_row(name)
    except GraphError:
        return None
