"""Types of the options of rewrites, in files and as keywords.

The most common option of a rewrite has a short form: ``take: 0.5`` for ``take: {shares: 0.5}``, and
``skip: layer2.1`` for ``skip: {blocks: [layer2.1]}``. In the long form, options have the names of
the function's arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)

from archgraph.analysis.choice import LARGEST_FACTOR, percent
from archgraph.fields import Base, Count, Mistake, Natural
from archgraph.graph.ir import ArchGraph
from archgraph.plain import Json


def _number(
    fits: Callable[[float], bool], what: str, expected: str, bounds: Any
) -> BeforeValidator:
    """Return a validator of a number's range. Pydantic rejects values that are not numbers."""

    def checked(value: Any) -> Any:
        value = percent(value)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and not fits(value):
            hint = "to set numbers of positions, write sizes: {axis: 4}" if value > 1 else None
            raise Mistake(f"is not a {what}", found=value, expected=expected, hint=hint)
        return value

    text = Annotated[str, Field(pattern="%$", examples=["50%"])]
    return BeforeValidator(checked, json_schema_input_type=Annotated[float, bounds] | text)


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _or_graph(value: Any, read: Callable[[Any], Any]) -> Any:
    return value if isinstance(value, ArchGraph) else read(value)


CheckedShare = Annotated[
    float, _number(lambda n: 0 < n <= 1, "share", "a number in (0, 1]", Field(gt=0, le=1))
]
CheckedFactor = Annotated[
    float,
    _number(
        lambda n: 1 <= n <= LARGEST_FACTOR,
        "factor",
        f"a number from 1 to {LARGEST_FACTOR}",
        Field(ge=1, le=LARGEST_FACTOR),
    ),
]
ShareChoice = CheckedShare | dict[str, CheckedShare]
FactorChoice = CheckedFactor | dict[str, CheckedFactor]
BlockNames = Annotated[
    tuple[str, ...], BeforeValidator(_listed, json_schema_input_type=str | tuple[str, ...])
]
# A fraction of the model's own cost, or an absolute cost. The measure determines the units.
BudgetValue = Annotated[Annotated[float, Field(gt=0)] | str | None, Field(examples=["10M", 0.5])]
SomeNames = Annotated[BlockNames, Field(min_length=1)]
Flags = Annotated[tuple[Literal[0, 1], ...], Field(min_length=1)]
PositionChoice = dict[str, tuple[Natural, ...]]
# In a call from Python the value may be an architecture; schema and messages do not mention this.
OrGraph = WrapValidator(_or_graph)
AxisScores = dict[str, Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=1)]]
ScoreChoice = (
    Annotated[str, Field(min_length=1)]
    | AxisScores
    | Annotated[dict[Literal["positions", "blocks", "method"], Any], Field(min_length=1)]
)


class SkipOptions(Base):
    """Options of ``skip``."""

    blocks: BlockNames = Field(default=(), description="names or patterns of blocks")
    keep: dict[str, Flags] = Field(
        default={},
        description="for each section, a list with 1 for each block to keep and 0 for each block "
        "to remove, as in the tables of NeFL. If a removed block changes the shape, its "
        "projection shortcut stays",
        examples=[{"layer2": [1, 0]}],
    )


class NarrowOptions(Base):
    """Options of ``narrow``. Keys are axis names, roles or patterns.

    If an axis has both a fraction in ``shares`` and a size, the size is used.
    """

    shares: ShareChoice = Field(
        default={},
        description="fraction of every width to keep, or a fraction for each axis; sizes are "
        "rounded up",
        examples=[{"layer1.*": 0.5}],
    )
    sizes: dict[str, Count] = Field(
        default={},
        description="number of positions (indices along the axis) to keep, counted from the first",
        examples=[{"heads": 4}],
    )


class TakeOptions(NarrowOptions):
    """Options of ``take``. Keys are axis names, roles or patterns.

    If an axis has both a size and a list of positions (indices), the list is used.
    """

    positions: PositionChoice = Field(
        default={},
        description="positions (indices along the axis) to keep, in their new order",
        examples=[{"stem.conv.out": [0, 2, 5]}],
    )
    importance: ScoreChoice | None = Field(
        default=None,
        description="scores of positions (indices along an axis). On axes that `shares` or "
        "`sizes` cut, the positions with the best scores are kept instead of the first. The "
        "value is a file that `ag.importance(…).save` wrote, relative to this file, or a list "
        "of scores for each axis",
        examples=["scores.safetensors"],
    )


class WidenOptions(Base):
    """Options of ``widen``. Keys are axis names, roles or patterns.

    If an axis has both a size and a list of positions (indices), the list is used.
    """

    factors: FactorChoice = Field(
        default={},
        description="factor for every width, or a factor for each axis; sizes are rounded up",
        examples=[{"layer1.*": 2}],
    )
    sizes: dict[str, Count] = Field(
        default={},
        description="new number of positions (indices along the axis)",
        examples=[{"heads": 4}],
    )
    positions: PositionChoice = Field(
        default={},
        description="for each new position (index along the axis), the old position that it copies",
        examples=[{"stem.conv.out": [0, 1, 2, 0]}],
    )


class EndsAfter(Base):
    """Options of ``ends_after``."""

    section: str = Field(description="last section or block to keep")
    head: Annotated[Count, OrGraph] | None = Field(
        default=None,
        description="number of classes of a new classifier, which consists of a mean over "
        "positions and a linear layer; default: use the exit that add_exits added after this "
        "section, and keep the earlier exits",
    )


class LoraOptions(Base):
    """Options of ``add_lora``."""

    rank: Count = Field(default=8, description="rank of every adapter")
    where: BlockNames | None = Field(
        default=None,
        description="names or patterns of the layers that get an adapter; default: every "
        "layer that can have one",
        examples=["*.query"],
    )
    alpha: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="numerator of the scale; default: the value that makes the scale 1",
    )
    scaling: Literal["alpha_over_r", "rsqrt"] = Field(
        default="alpha_over_r",
        description="scale of the adapters: alpha / rank (alpha_over_r) or alpha / √rank (rsqrt)",
    )


class RankOptions(Base):
    """Options of ``rank``."""

    size: Count | None = Field(
        default=None, description="new rank; default: all ranks stay unchanged", examples=[4]
    )
    alpha: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="numerator of the scale for this client; default: the scale of the model "
        "stays unchanged",
    )
    scaling: Literal["alpha_over_r", "rsqrt"] = Field(
        default="alpha_over_r",
        description="scale of the adapters: alpha / rank (alpha_over_r) or alpha / √rank (rsqrt)",
    )
    allow_nothing: bool = Field(default=False, description="accept a rank that changes nothing")


class FitOptions(Base):
    """Options of ``fit``: budgets, and how to choose a submodel within all of them."""

    parameters: BudgetValue = Field(default=None, description="budget of parameters")
    macs: BudgetValue = Field(
        default=None, description="budget of multiply–accumulates for one example"
    )
    bytes: BudgetValue = Field(
        default=None, description="budget of the size of weights and buffers, in bytes"
    )
    activations: BudgetValue = Field(
        default=None,
        description="budget of the size of all activations (intermediate results) of one "
        "example, in bytes",
    )
    memory: BudgetValue = Field(
        default=None, description="budget of the peak memory of a training step, in bytes"
    )
    batch: Count | None = Field(
        default=None, description="batch size of the training step, required for memory"
    )
    optimizer: str = Field(
        default="sgd",
        description="optimiser of the training step, for memory: the name of a class in "
        "torch.optim, or momentum",
    )
    shape: Literal["free", "nested", "uniform"] = Field(
        default="free",
        description="free: the sizes that use the budget best; nested: a smaller budget "
        "selects a part of the submodel of a larger budget; uniform: the same fraction of every "
        "width",
    )
    importance: ScoreChoice | None = Field(
        default=None,
        description="scores of positions (indices along an axis). The positions with the best "
        "scores are kept instead of the first. The value is a file that "
        "`ag.importance(…).save` wrote, relative to this file, or a list of scores for each "
        "axis",
        examples=["scores.safetensors"],
    )
    multiple: Count = Field(
        default=1, description="round sizes to multiples of this number, except numbers of heads"
    )
    keep: BlockNames = Field(
        default=(), description="axes that stay unchanged, and blocks that are not removed"
    )
    skip: BlockNames = Field(default=(), description='blocks that may be removed; "*": all blocks')
    like: bool = Field(
        default=False,
        description="choose only sizes that the model's class supports, so that transformers or "
        "timm can load the result; requires a `python:` model from transformers or timm",
    )

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        if isinstance(value, str | int | float):
            expected = "budgets by measure, e.g. {macs: 10M}"
            raise Mistake("is a budget without a measure", found=value, expected=expected)
        return value


def _main_or_options(main: str) -> Callable[[Any], Any]:
    """Return a function that converts the short form (a value of the main option) to the long."""
    return lambda value: value if isinstance(value, Mapping | Base) else {main: value}


def _by_axis(main: str) -> Any:
    """Return a function that converts the short form to the long form.

    The short form is a value of the main option, or a mapping from axis to value. A mapping is the
    long form if all of its keys are options or if it contains a mapping. An axis with the name of
    an option must be chosen in the long form.
    """
    options = {main, "sizes", "positions", "importance"}

    def long(value: Any) -> Any:
        is_long = isinstance(value, Base)
        if isinstance(value, Mapping) and value:
            nested = any(isinstance(choice, Mapping) for choice in value.values())
            is_long = nested or set(value) <= options
        return value if is_long else {main: value}

    return long


def _key(options: type[Base], before: Callable[[Any], Any], short: Any) -> Any:
    """Return the type of the value of a rewrite: its options, or their short form."""
    return Annotated[options, BeforeValidator(before, json_schema_input_type=short | options)]


# Types of the value of each rewrite.
Skip = _key(SkipOptions, _main_or_options("blocks"), str | tuple[str, ...])
Take = _key(TakeOptions, _by_axis("shares"), ShareChoice)
Narrow = _key(NarrowOptions, _by_axis("shares"), ShareChoice)
Widen = _key(WidenOptions, _by_axis("factors"), FactorChoice)
Lora = _key(LoraOptions, _main_or_options("rank"), Count)
Rank = _key(RankOptions, _main_or_options("size"), Count)
NumberBySection = dict[str, Count]
OrderBySection = dict[str, Count | tuple[Annotated[int, Field(ge=0)], ...]]


class UnreadSteps(tuple[Json, ...]):
    """A list of layers, as in a model file, that is parsed once the layers' input is known."""

    __slots__ = ()


StepList = Annotated[
    tuple[Json, ...],
    Field(min_length=1),
    AfterValidator(UnreadSteps),
    OrGraph,
    # Steps belong to the language of models, which parses them once the section's result is known.
    WithJsonSchema({"type": "array", "items": {"title": "Step"}, "minItems": 1}),
]
HeadBySection = dict[str, Count | StepList]
NamesOrAll = bool | BlockNames
