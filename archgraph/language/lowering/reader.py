"""Check the steps of a model before its graph is built, and read their options."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, TypeVar

import pydantic
from pydantic_core import ErrorDetails

from archgraph.errors import GraphError
from archgraph.fields import Mistake, Place
from archgraph.hints import nearest, unknown
from archgraph.language import steps as table
from archgraph.language.document import Document
from archgraph.language.elsewhere import suggestion
from archgraph.language.expression import (
    ParamValue,
    evaluate,
    is_expression,
    names_in,
    resolve_expressions,
)
from archgraph.language.lowering.scope import CHANNELS, FEATURES, INPUT
from archgraph.language.mistakes import abbreviate
from archgraph.language.model import AuthoredModel, BlockBody, SectionSpec, Step
from archgraph.language.steps import StepOptions
from archgraph.plain import Json

Read = TypeVar("Read", bound=StepOptions)

SIZES = {
    CHANNELS: "which stands for the size of axis 1",
    FEATURES: "which stands for the size of the last axis",
}
"""Names that parameters would hide."""
RESERVED = SIZES | {
    field.alias or name: "an option of every step"
    for name, field in StepOptions.model_fields.items()
}
"""Names that a parameter of a block cannot have, since it could not be set."""


class BlockOptions(BlockBody, StepOptions):
    """An inline block."""


@dataclass(frozen=True)
class StepReader:
    """Reads the steps of a model. Errors are ``SpecError`` with file, line and key.

    Attributes:
        document: The file of the model.
        model: The model.
    """

    document: Document
    model: AuthoredModel

    def resolved(self) -> StepReader:
        """Return a reader for the model with evaluated parameters.

        The expression of a parameter may use the parameters before it.

        Raises:
            SpecError: If an expression is invalid, or uses other parameters.
        """
        params: dict[str, ParamValue] = {}
        for name, value in self.model.params.items():
            for used in names_in(value):
                if used in self.model.params and used not in params:
                    later = "itself" if used == name else "a parameter that is defined after it"
                    itself = "write a number, or a parameter that is defined before it"
                    hint = itself if used == name else f"move {used} in front of {name}"
                    message, at = f"is defined by {later}", ("params", name)
                    self.document.fail(at, message, found=repr(value), hint=hint)
            params[name] = self.parameter(value, params, ("params", name))
        return replace(self, model=self.model.model_copy(update={"params": params}))

    def parameter(
        self, value: ParamValue, params: Mapping[str, ParamValue], loc: Place
    ) -> ParamValue:
        """Return the value of a parameter, given the values of the parameters before it."""
        if not is_expression(value):
            return value
        with self.guard(loc):
            return evaluate(str(value), params)

    def check(self) -> None:
        """Check names, arguments of blocks and options of steps, also in unused blocks.

        Raises:
            SpecError: For the first mistake, with file, line and key.
        """
        # Before steps are read: a step of that name would be read as the block.
        self._check_words()
        names: dict[str, Place] = {name: ("inputs", name) for name in self.model.inputs}
        for index, section in enumerate(self.model.sections):
            loc: Place = ("sections", index)
            if section.name == INPUT:
                self._reserved(
                    INPUT, "which stands for the input of a list of steps", (*loc, "name")
                )
            if section.name in names:
                self.duplicate(section.name, (*loc, "name"), names[section.name])
            names[section.name] = (*loc, "name")
            if section.block is not None:
                self._check_arguments(section, section.block, loc)
            else:
                self._check_steps(section.steps or (), (*loc, "steps"))
        for name, block in self.model.blocks.items():
            self._check_steps(block.steps, ("blocks", name, "steps"))
            self._check_steps(block.after, ("blocks", name, "after"))

    def check_used(self) -> None:
        """Check that each parameter of a block is used by an expression anywhere in the file.

        Raises:
            SpecError: For the first unused parameter.
        """
        used = set(names_in(json.dumps(self.document.data, default=str)))
        for name, block in self.model.blocks.items():
            for key in block.params.keys() - used:
                hint = f"write ${key} where it belongs, or remove it"
                at: Place = ("blocks", name, "params", key)
                self.document.fail(at, "is not used by any expression", hint=hint)

    def _check_words(self) -> None:
        """Raise an error for names of blocks and parameters that are reserved."""
        for name, block in self.model.blocks.items():
            if table.find(name) or name == "block":
                meaning = (
                    "which begins an inline block" if name == "block" else "the name of a step"
                )
                self._reserved(name, meaning, ("blocks", name))
            for key in block.params:
                if key in RESERVED:
                    self._reserved(key, RESERVED[key], ("blocks", name, "params", key))
        for key in self.model.params:
            if key in SIZES:
                self._reserved(key, SIZES[key], ("params", key))

    def _reserved(self, word: str, meaning: str, loc: Place) -> NoReturn:
        self.document.fail(
            loc,
            f"is a reserved word, {meaning}",
            found=repr(word),
            hint=f"rename it, e.g. {word}_1, here and where it is used",
        )

    def duplicate(self, name: str, loc: Place, other: Place | None = None) -> NoReturn:
        """Raise an error for a duplicate name, with the line of its other use if known."""
        line = None if other is None else self.document.lines.get(other)
        message = "is taken" if line is None else f"is taken, by line {line}"
        self.document.fail(loc, message, found=repr(name), expected="another name")

    def _check_arguments(self, section: SectionSpec, name: str, loc: Place) -> None:
        block = self.model.blocks.get(name)
        if block is None:
            facts = unknown(name, self.model.blocks)
            self.document.fail((*loc, "block"), "is not a block of this model", **facts)
        for key in (*section.arguments, *section.first_arguments):
            if key not in block.params:
                inside = (*loc, "first", key) if key in section.first else (*loc, key)
                known = sorted({*type(section).model_fields, *block.params} - {"steps"})
                message = f"is neither a section's key nor a parameter of block {name!r}"
                self.document.fail(inside, message, **unknown(key, known))

    def _check_steps(self, steps: Sequence[Step], loc: Place) -> None:
        """Check names and options of steps, whether a section uses them or not."""
        for index, step in enumerate(steps):
            here = (*loc, index)
            if is_expression(step.name):  # known only where the block is used
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

    def row(self, name: str, loc: Place) -> table.StepRow:
        """Return the table row of the step with a name."""
        row = table.find(name)
        # Looked up again for the reason: unknown, or refused since it writes in place.
        if row is None and name.startswith("aten."):
            try:
                return table.raw_row(name)
            except GraphError as error:
                error.found, names = repr(name), table.aten_names()
                error.hint = nearest(name, names, cutoff=0.8)
                self.document.fail(loc, error.message, **error.facts)
        if row is None:
            self.document.fail(
                loc,
                "is an unknown operator",
                found=repr(name),
                expected="a step, a block of this model, or an ATen operator (aten.…)",
                hint=suggestion(name, [*table.STEPS, *self.model.blocks, "block"]),
            )
        return row

    def options(
        self,
        kind: type[Read],
        step: Step,
        main: str,
        loc: Place,
        params: Mapping[str, ParamValue] | None,
    ) -> Read:
        """Read a step's options. If ``params`` is None, expressions are not checked."""
        inner = (*loc, step.name)
        data = {} if step.options is None else step.options
        short = not isinstance(data, dict)
        if short and not main:
            self._not_a_mapping(inner, data, "options")
        written = data = {main: data} if short else data
        if params is not None:
            data = self.resolve(data, params, inner)
        try:
            return kind.model_validate(data)
        except pydantic.ValidationError as error:
            errors = error.errors(include_url=False)
            # A value that is an expression cannot be judged before its parameters are known.
            if params is None and all(_has_expression(e["input"]) for e in errors):
                plain = {k: v for k, v in data.items() if not _has_expression(v)}
                return kind.model_construct(None, **plain)
            ignore = _has_expression if params is None else None
            hint = self._origin(errors[0], written)
            if short:
                hint = hint or _meaning(
                    errors[0], f"`{step.name}: VALUE` sets {main!r}", kind, main
                )
            self.document.refuse(error, kind, inner, ignore, hint=hint)

    def _origin(self, fault: ErrorDetails, written: Mapping[str, Json]) -> str | None:
        """Return where the parameters of a wrong expression are set; None if the file sets none."""
        value = written.get(str(next(iter(fault["loc"]), "")))
        lines = {name: self.document.lines.get(("params", name)) for name in names_in(value)}
        listed = ", ".join(f"{name} is set on line {line}" for name, line in lines.items() if line)
        return f"computed from {value!r}; {listed}" if listed else None

    def _not_a_mapping(self, loc: Place, value: Json, what: str) -> NoReturn:
        expected = f"{what}: {{key: value}}"
        self.document.fail(loc, "has a wrong value", found=abbreviate(value), expected=expected)

    def block_arguments(
        self, step: Step, loc: Place, params: Mapping[str, ParamValue] | None
    ) -> tuple[StepOptions, dict[str, ParamValue]]:
        """Return the options of a step that uses a block, and the block's arguments."""
        block = self.model.blocks[step.name]
        data = {} if step.options is None else step.options
        inner = (*loc, step.name)
        if not isinstance(data, dict):
            self._not_a_mapping(inner, data, "parameters")
        # `from`, `as` and `name` belong to the step; all other keys are parameters of the block.
        common = {f.alias or n for n, f in StepOptions.model_fields.items()}
        arguments: dict[str, ParamValue] = {}
        for key, value in data.items():
            if key in common:
                continue
            if key not in block.params:
                facts = unknown(key, sorted({*common, *block.params}))
                message = f"is not a parameter of block {step.name!r}"
                self.document.fail((*inner, key), message, **facts)
            if params is not None:
                value = self.resolve(value, params, (*inner, key))
            arguments[key] = value
        rest = Step(step.name, {k: v for k, v in data.items() if k in common})
        return self.options(StepOptions, rest, "", loc, params), arguments

    def resolve(self, value: Json, params: Mapping[str, ParamValue], loc: Place) -> Json:
        """Replace every expression inside a value by its value."""
        with self.guard(loc):
            return resolve_expressions(value, params)

    def step_name(self, step: Step, params: Mapping[str, ParamValue], loc: Place) -> str:
        """Return the name of a step. A name may be a parameter (``- $activation``)."""
        if not is_expression(step.name):
            return step.name
        name = self.resolve(step.name, params, loc)
        if not isinstance(name, str):
            self.document.fail(
                loc, "is not a step", found=f"{step.name} = {name!r}", expected="a step's name"
            )
        if name not in self.model.blocks and name != "block":
            self.row(name, loc)
        return name

    @contextlib.contextmanager
    def guard(self, loc: Place) -> Iterator[None]:
        """Report errors that are raised in this context as errors at a place in the file."""
        try:
            yield
        except Mistake as mistake:
            self.document.fail(
                self.document.known(loc, mistake.place), mistake.message, **mistake.facts
            )
        except GraphError as error:
            self.document.fail(loc, error.message, **error.facts)


def _meaning(
    fault: ErrorDetails, form: str, kind: type[pydantic.BaseModel], main: str
) -> str | None:
    """Describe the option that a short form sets, where its value is of a wrong type."""
    if fault["type"].startswith(("less", "greater")):
        return None
    return f"{form}, {kind.model_fields[main].description}"


def _has_expression(value: Json) -> bool:
    """Return whether a YAML value has an expression anywhere inside."""
    if isinstance(value, Mapping):
        return any(map(_has_expression, value.values()))
    if isinstance(value, tuple):
        return any(map(_has_expression, value))
    return is_expression(value)
