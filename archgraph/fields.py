"""Fields of files: strict types, no unknown keys, frozen values, mistakes with their place."""

from __future__ import annotations

from typing import Annotated, Literal, Unpack

import pydantic
from pydantic import Field

from archgraph.errors import ErrorFacts
from archgraph.plain import Json

Key = str | int
Place = tuple[Key, ...]


class Base(pydantic.BaseModel):
    """A mapping in a file: every key is known, every value has its exact type."""

    model_config = pydantic.ConfigDict(
        extra="forbid",
        strict=True,  # '3' in quotes is text
        frozen=True,
        # `from`, `as` and `with` are aliases, since Python has these words for itself.
        populate_by_name=True,
        allow_inf_nan=False,  # which JSON lacks
        # Built when the first file of its kind is read: a file uses few of them.
        defer_build=True,
    )

    def __repr__(self) -> str:
        text = ", ".join(f"{key}={value!r}" for key, value in self if key in self.model_fields_set)
        return f"{type(self).__name__}({text if len(text) <= 120 else text[:119] + '…'})"


# Nothing that a person means is larger, and products of two still fit 64 bits.
MAX_SIZE = 2**31 - 1
# The global model: of its group in the server's state, in files, and among models that are tested.
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
    """What is wrong with a value, before it is known where in a file that stands.

    Args:
        message: The mistake, as a short fact.
        place: Keys from the examined value down to the mistake.
        other: Keys down to what it conflicts with, whose line is told, too.
        **facts: What was found, what was expected, how to fix it.
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
    """Accept a bare value for a mapping that sets its main key alone.

    Args:
        main: The key.
        kinds: Types of bare values; others are left to the mapping's own validation.
        schema: Type whose JSON schema describes both forms.
    """

    def long(value: object) -> object:
        return {main: value} if isinstance(value, kinds) else value

    return pydantic.BeforeValidator(long, json_schema_input_type=schema)
