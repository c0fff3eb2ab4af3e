"""Base class and types for the contents of YAML files, validated with pydantic."""

from __future__ import annotations

from typing import Annotated, Literal, Unpack

import pydantic
from pydantic import Field

from archgraph.errors import ErrorFacts
from archgraph.plain import Json

Key = str | int
Place = tuple[Key, ...]


class Base(pydantic.BaseModel):
    """Base class for mappings in files; unknown keys and values of another type are errors."""

    model_config = pydantic.ConfigDict(
        extra="forbid",
        strict=True,  # a quoted '3' is text
        frozen=True,
        # `from`, `as` and `with` are aliases, since they are reserved words in Python.
        populate_by_name=True,
        allow_inf_nan=False,  # not part of JSON
        # Build validators when the first file of its kind is read: a file uses few of them.
        defer_build=True,
    )

    def __repr__(self) -> str:
        text = ", ".join(f"{key}={value!r}" for key, value in self if key in self.model_fields_set)
        return f"{type(self).__name__}({text if len(text) <= 120 else text[:119] + '…'})"


# Larger than any sensible size; products of two still fit 64 bits.
MAX_SIZE = 2**31 - 1
# Name of the global model in the server's state, in files and in test results.
GLOBAL = "global"

Version = Annotated[Literal[1], Field(description="version of the language")]
Count = Annotated[int, Field(ge=1, le=MAX_SIZE)]
Natural = Annotated[int, Field(ge=0, le=MAX_SIZE)]
Share = Annotated[float, Field(gt=0, le=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_+-]*$", max_length=100)]


def _one_name(value: object) -> object:
    if isinstance(value, dict) and (
        len(value) != 1 or not isinstance(next(iter(value.values())), dict | None)
    ):
        names = ", ".join(map(str, value)) or "nothing"
        expected = "a name, or a name with options, e.g. {csv: {path: figures.csv}}"
        raise Mistake("must be one name with its options", found=names, expected=expected)
    return value


# A name, or a name with options.
_Named = str | dict[str, dict[str, Json] | None]
NamedChoice = Annotated[_Named, pydantic.BeforeValidator(_one_name)]


class Mistake(ValueError):
    """An error in a value whose location in the file is not yet known.

    Args:
        message: The mistake, as a short fact.
        place: Keys that lead from the validated value to the mistake.
        other: Keys that lead to a conflicting value; the error also reports its line.
        **facts: The value found, the expected value, a hint.
    """

    def __init__(
        self, message: str, *, place: Place = (), other: Place = (), **facts: Unpack[ErrorFacts]
    ) -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.other = other
        self.facts = facts


def bare(main: str, kinds: type | tuple[type, ...], schema: object) -> pydantic.BeforeValidator:
    """Return a validator that accepts a bare value as a short form of a mapping with one key.

    Args:
        main: The key.
        kinds: Types of bare values; values of other types are validated as mappings.
        schema: Type whose JSON schema describes both forms.
    """

    def long(value: object) -> object:
        return {main: value} if isinstance(value, kinds) else value

    return pydantic.BeforeValidator(long, json_schema_input_type=schema)
