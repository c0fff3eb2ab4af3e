"""The YAML of initial weights from a file."""

from __future__ import annotations

from typing import Annotated

import pydantic
from pydantic import Field

from archgraph.fields import Base, Mistake

_Text = Annotated[str, Field(min_length=1)]


class WeightsSpec(Base):
    """The file with the global model's initial weights."""

    file: _Text = Field(
        description="a safetensors file, or a `state_dict()` written by `torch.save`; the path "
        "is relative to this file"
    )
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{8,64}$")] | None = Field(
        default=None,
        description="first digits of the SHA-256 of the file, which are verified. With this "
        "key, `archgraph check` does not need the file",
    )
    published: str = Field(
        default="",
        description="URL from which the file can be downloaded; error messages show the URL",
        examples=["https://example.org/resnet18.pth"],
    )
    rename: dict[_Text, _Text] = Field(
        default={},
        description="mapping from names of tensors in the file, or prefixes of names up to a "
        "dot, to names in the model; `*` stands for any text on both sides",
    )
    fresh: tuple[_Text, ...] = Field(
        default=(),
        description="weights of the model that are drawn from the seed, even if the file "
        "contains them: patterns with * and ?",
    )
    unused: tuple[_Text, ...] = Field(
        default=(),
        description="tensors of the file that the model does not have: patterns with * and ?",
        examples=[["fc.*"]],
    )

    @pydantic.field_validator("rename")
    @classmethod
    def _same_stars(cls, value: dict[str, str]) -> dict[str, str]:
        # The n-th star on one side stands for the same text as the n-th on the other.
        for old, new in value.items():
            if old.count("*") != new.count("*"):
                message = "must have as many * as the name in the file"
                raise Mistake(message, place=(old,), found=new, expected=f"as many as in {old}")
        return value
