"""What all models of files share: strict types, no unknown keys, frozen values."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
from pydantic import Field


class Base(pydantic.BaseModel):
    """A mapping in a file: every key is known, every value has its exact type."""

    model_config = pydantic.ConfigDict(
        extra="forbid", strict=True, frozen=True, populate_by_name=True, allow_inf_nan=False
    )


# Nothing that a person means is larger, and products of two still fit 64 bits.
MAX_SIZE = 2**31 - 1

Version = Annotated[Literal[1], Field(description="version of the language")]
Count = Annotated[int, Field(ge=1, le=MAX_SIZE)]
Natural = Annotated[int, Field(ge=0, le=MAX_SIZE)]
Share = Annotated[float, Field(gt=0, le=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_+-]*$", max_length=100)]
