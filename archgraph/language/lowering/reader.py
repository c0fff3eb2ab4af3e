"""Steps as they are written: what can be said before anything is built, rows, options, values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pydantic

from archgraph.errors import GraphError
from archgraph.fields import Mistake, Place
from archgraph.graph.ir import Ref
from archgraph.hints import nearest, unknown
from archgraph.language import steps as table
from archgraph.language.document import Document
from archgraph.language.elsewhere import suggestion
from archgraph.language.expression import ParamValue, is_expression, resolve_expressions
from archgraph.language.mistakes import raise_mistake, shorten
from archgraph.language.model import AuthoredModel, BlockBody, SectionSpec, Step
from archgraph.language.steps import StepOptions

Read = TypeVar("Read", bound=StepOptions)


class BlockOptions(BlockBody, StepOptions):
    """A block written in place."""


@dataclass(frozen=True)
class StepReader:
    """Reads the steps of a model; a mistake is a ``SpecError`` that points at its place.

    Attributes:
        document: The file of the model.
        model: The model.
    """

    document: Document
    model: AuthoredModel

    def check(self) -> None:
        """Check names, arguments of blocks and options of steps, used or not.

        Raises:
            SpecError: For the first mistake, with file, line and key.
        """
        model = self.model
        for name in model.blocks:
            if table.find(name) or name == "block":
                self.document.fail(
                    ("blocks", name), "has the name of a step", found=repr(name), hint="rename it"
                )
        names: set[str] = set()
        for index, section in enumerate(model.sections):
            place: Place = ("sections", index)
            if section.name in names or section.name in model.inputs:
                self.document.fail(
                    (*place, "name"), "is taken", found=repr(section.name), expected="another name"
                )
            names.add(section.name)
            if section.block is not None:
                self._check_arguments(section, section.block, place)
            else:
                self._check_steps(section.steps or (), (*place, "steps"))
        for name, block in model.blocks.items():
            for part in ("steps", "after"):
                self._check_steps(getattr(block, part), ("blocks", name, part))

    def _check_arguments(self, section: SectionSpec, name: str, place: Place) -> None:
        block = self.model.blocks.get(name)
        if block is None:
            self.document.fail(
                (*place, "block"),
                "is not a block of this model",
                **unknown(name, self.model.blocks),
            )
        section_keys = [k for k in type(section).model_fields if k != "steps"]
        for key in (*section.arguments, *section.first_arguments):
            if key not in block.params:
                inside = (*place, "first", key) if key in section.first else (*place, key)
                known = sorted({*section_keys, *block.params})
                self.document.fail(
                    inside,
                    f"is neither a section's key nor a parameter of block {name!r}",
                    **unknown(key, known),
                )

    def _check_steps(self, steps: Sequence[Step], place: Place) -> None:
        """Check names and options of steps, whether a section uses them or not."""
        for index, step in enumerate(steps):
            here = (*place, index)
            if is_expression(step.name):
                continue
            if step.name == "block":
                options = self.options(BlockOptions, step, "steps", here, None)
                self._check_steps(options.steps, (*here, "block", "steps"))
                self._check_steps(options.after, (*here, "block", "after"))
            elif step.name in self.model.blocks:
                self.block_arguments(step, here, None)
            else:
                row = self.row(step.name, here)
                self.options(row.options, step, row.main, here, None)

    def row(self, name: str, place: Place) -> table.StepRow:
        """Return the row of the table that a name means."""
        row = table.find(name)
        # Looked up once more for the reason: unknown, or refused since it writes in place.
        if row is None and name.startswith("aten."):
            try:
                table.raw_row(name)
            except GraphError as error:
                known = table.aten_names()
                self.document.fail(
                    place,
                    error.message,
                    found=repr(name),
                    expected=error.expected,
                    hint=nearest(name, known, cutoff=0.8),
                )
        if row is None:
            known = [*table.STEPS, *self.model.blocks, "block"]
            self.document.fail(
                place,
                "is an unknown operator",
                found=repr(name),
                expected="a step, a block of this model, or an ATen operator (aten.…)",
                hint=suggestion(name, known),
            )
        return row

    def options(
        self,
        kind: type[Read],
        step: Step,
        main: str,
        place: Place,
        params: Mapping[str, ParamValue] | None,
    ) -> Read:
        """Read a step's options; without parameters, expressions stay unchecked."""
        data = step.options
        inner = (*place, step.name)
        if data is None:
            data = {}
        elif not isinstance(data, dict):
            if not main:
                self.document.fail(
                    inner,
                    "has a wrong value",
                    found=shorten(data),
                    expected="options: {key: value}",
                )
            data = {main: data}
        try:
            if params is not None:
                data = resolve_expressions(data, params)
            return kind.model_validate(data)
        except Mistake as mistake:
            self.document.fail(self.known(inner, mistake.place), mistake.message, **mistake.facts)
        except pydantic.ValidationError as error:
            errors = error.errors(include_url=False)
            # A value that is an expression cannot be judged before its parameters are known.
            if params is None and all(_has_expression(e["input"]) for e in errors):
                plain = {k: v for k, v in data.items() if not _has_expression(v)}
                return kind.model_construct(None, **plain)
            raise_mistake(
                self.document,
                error,
                kind,
                inner,
                ignore=_has_expression if params is None else None,
            )

    def known(self, place: Place, rest: Place) -> Place:
        """Return the longest part of a place that the file has: a bare main option has no key."""
        for key in rest:
            if (*place, key) in self.document.lines:
                place = (*place, key)
        return place

    def block_arguments(
        self, step: Step, place: Place, params: Mapping[str, ParamValue] | None
    ) -> tuple[StepOptions, dict[str, ParamValue]]:
        """Return the common options and the parameters of a step that uses a block."""
        block = self.model.blocks[step.name]
        data = {} if step.options is None else step.options
        inner = (*place, step.name)
        if not isinstance(data, dict):
            self.document.fail(
                inner, "has a wrong value", found=shorten(data), expected="parameters: {key: value}"
            )
        common = {f.alias or n for n, f in StepOptions.model_fields.items()}
        arguments: dict[str, ParamValue] = {}
        for key, value in data.items():
            if key in common:
                continue
            if key not in block.params:
                known = sorted({*common, *block.params})
                self.document.fail(
                    (*inner, key),
                    f"is not a parameter of block {step.name!r}",
                    **unknown(key, known),
                )
            if params is not None:
                value = self.resolve(value, params, (*inner, key))
            arguments[key] = value
        rest = Step(step.name, {k: v for k, v in data.items() if k in common})
        return self.options(StepOptions, rest, "", place, params), arguments

    def resolve(self, value: Any, params: Mapping[str, ParamValue], place: Place) -> Any:
        """Replace every expression inside a value by its value."""
        try:
            return resolve_expressions(value, params)
        except Mistake as mistake:
            self.document.fail(place, mistake.message, **mistake.facts)

    def step_name(self, step: Step, params: Mapping[str, ParamValue], place: Place) -> str:
        """Return the name of a step, resolved if it is a parameter."""
        if not is_expression(step.name):
            return step.name
        name = self.resolve(step.name, params, place)
        if not isinstance(name, str):
            self.document.fail(
                place, "is not a step", found=f"{step.name} = {name!r}", expected="a step's name"
            )
        if name not in self.model.blocks and name != "block":
            self.row(name, place)
        return name

    def guard(self, place: Place, emit: Callable[[], Ref]) -> Ref:
        """Append operators; what does not fit is a mistake of the step."""
        try:
            return emit()
        except Mistake as mistake:
            self.document.fail(self.known(place, mistake.place), mistake.message, **mistake.facts)
        except GraphError as error:
            self.document.fail(place, error.message, **error.facts)


def _has_expression(value: Any) -> bool:
    """Return whether a YAML value has an expression anywhere inside."""
    if isinstance(value, Mapping):
        return any(map(_has_expression, value.values()))
    if isinstance(value, tuple):
        return any(map(_has_expression, value))
    return is_expression(value)
