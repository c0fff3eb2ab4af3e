"""The YAML of published figures: what a paper prints about architectures that are written here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal, TypeAlias

import pydantic
from pydantic import Field
from pydantic_core import CoreSchema, core_schema

from archgraph.fields import Base, Mistake, Name, Natural
from archgraph.language.mistakes import abbreviate
from archgraph.plain import Json

# How a paper comes from a value to the digits that it prints.
FigureRounding: TypeAlias = Literal["nearest", "down"]

_UNITS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9}
# At most 30 digits: nothing that is counted here has more.
_NUMBER = re.compile(r"([0-9]{1,15})(\.[0-9]{1,15})? ?([kKMGB]?)")


@dataclass(frozen=True, slots=True)
class Printed:
    """A number as a paper prints it: its digits say how precise it is.

    Attributes:
        text: As printed.
        value: The number.
        unit: What one more in the last digit is worth.
    """

    text: str
    value: Fraction
    unit: Fraction

    @classmethod
    def parse(cls, value: Json) -> Printed:
        """Read ``6.71M``, ``450K``, ``0.20`` or a whole number.

        Raises:
            Mistake: For anything else, a number with a point that YAML has read included.

        Example:
            >>> Printed.parse("6.71M").unit
            Fraction(10000, 1)
        """
        # YAML reads 0.20 as a float, and with it drops the digit that says how precise it is.
        text = str(value) if isinstance(value, str | int) else ""  # of true: no number
        parts = _NUMBER.fullmatch(text)
        if parts is None:
            raise Mistake(
                "is not a printed number",
                found=abbreviate(value),
                expected="digits and a unit, e.g. 6.71M, 450K, 61706 or '0.20'",
                hint="in quotes, its last zeros count" if isinstance(value, float) else None,
            )
        integer, decimals, suffix = parts[1], parts[2] or "", parts[3]
        unit = Fraction(_UNITS[suffix], 10 ** max(len(decimals) - 1, 0))  # without the point
        return cls(text, Fraction(integer + decimals) * _UNITS[suffix], unit)

    def agrees(self, value: Fraction | int, rounding: FigureRounding = "nearest") -> bool:
        """Return whether a value rounds to this number; one in the middle rounds both ways.

        >>> six = Printed.parse("6.71M")
        >>> [six.agrees(n) for n in (6_704_999, 6_705_000, 6_715_000, 6_715_001)]
        [False, True, True, False]
        >>> [six.agrees(n, "down") for n in (6_709_999, 6_710_000, 6_719_999, 6_720_000)]
        [False, True, True, False]
        """
        if rounding == "down":
            return self.value <= value < self.value + self.unit
        return 2 * abs(value - self.value) <= self.unit

    def like(self, value: Fraction | int) -> str:
        """Write another value in the same unit, two digits finer.

        >>> Printed.parse("6.7M").like(6_712_345), Printed.parse("12").like(11)
        ('6.712M', '11')
        """
        if self.unit == 1 and Fraction(value).denominator == 1:
            return str(value)
        suffix = self.text.lstrip("0123456789. ")
        digits = len(self.text.removesuffix(suffix).strip().partition(".")[2]) + 2
        return f"{float(Fraction(value) / _UNITS[suffix]):.{digits}f}{suffix}"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(cls.parse)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: object, handler: object) -> dict[str, Json]:
        # JSON knows no printed numbers: 11 and 11.0 are one, and digits that count are text.
        return {
            "title": "Printed",
            "anyOf": [
                {"type": "string", "pattern": f"^{_NUMBER.pattern}$"},
                {"type": "integer", "minimum": 0},
            ],
        }


class KnownSpec(Base):
    """A published figure that is not met, and why."""

    ours: Printed = Field(description="what is found instead; still compared")
    because: Annotated[str, Field(min_length=1)] = Field(description="the reason")


class FigureSpec(Base):
    """One published figure, or one per kind of client, and where ours comes from.

    A family without ``member`` and ``mean`` stands for its global model.
    """

    what: Annotated[str, Field(min_length=1)] = Field(description="place in the paper, and of what")
    model: str | None = Field(default=None, description="a model file")
    choose: dict[str, Natural] = Field(default={}, description="choices of the model")
    family: str | None = Field(default=None, description="a family file")
    member: Name | None = Field(default=None, description="a kind of client of the family")
    mean: Literal["members", "clients"] | None = Field(
        default=None, description="mean over the family's kinds of client, or over all its clients"
    )
    measure: Literal["parameters", "macs", "flops", "state", "bytes"] = Field(
        default="parameters",
        description="macs: multiply–accumulates of one example; flops: twice as many; state: "
        "elements of parameters and buffers; bytes: their size",
    )
    trainable: bool = Field(default=False, description="count what is trained only")
    share: bool = Field(default=False, description="as a share of the family's global model")
    published: Printed | dict[Name, Printed] = Field(
        description="as printed: 6.71M, 450K, 61706, '0.20'; or one each by kind of client"
    )
    rounding: FigureRounding = Field(
        default="nearest", description="down: the paper cuts digits off here"
    )
    known: KnownSpec | None = Field(default=None, description="where it cannot be met")

    @pydantic.model_validator(mode="after")
    def _sensible(self) -> FigureSpec:
        if (self.model is None) == (self.family is None):
            raise Mistake("needs a model or a family, not both")
        # Keys that say nothing beside others: a figure must not be compared with another one.
        beside_model, by_client = self.model is not None, isinstance(self.published, dict)
        useless = {
            "belongs to a family": ("member", "mean", "share") if beside_model else (),
            "belongs to a model": () if beside_model else ("choose",),
            "does not go with a member": ("mean",) if self.member else (),
            "belongs to parameters": ("trainable",) if self.measure != "parameters" else (),
            "does not go with figures by kind of client, write an entry of its own": (
                ("model", "member", "mean", "known") if by_client else ()
            ),
        }
        for mistake, keys in useless.items():
            for key in keys:
                if getattr(self, key):
                    raise Mistake(mistake, place=(key,))
        return self


class FiguresSpec(Base):
    """What one paper prints about its architectures."""

    archgraph: Literal[1] = 1
    paper: Annotated[str, Field(min_length=1)] = Field(description="short name, for tables")
    source: Annotated[str, Field(min_length=1)] = Field(description="authors, title, where")
    figures: Annotated[tuple[FigureSpec, ...], Field(min_length=1)]
