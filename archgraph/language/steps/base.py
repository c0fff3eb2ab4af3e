"""Base of all steps: the table, its rows, and the context in which steps append operators."""

from __future__ import annotations

import dataclasses
import inspect
import math
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from archgraph.fields import Base, Count, Mistake, Name, Natural
from archgraph.graph.ir import Leaf, Ref, Size, Value
from archgraph.graph.polynomial import sizes_in
from archgraph.graph.values import size_at
from archgraph.language.draft import GraphDraft

CountOrPair = Count | tuple[Count, ...]
Padding = Literal["same", "valid"] | Natural | tuple[Natural, ...]
AxisNumber = Annotated[int, Field(ge=-8, le=8)]


@dataclass(frozen=True)
class Site:
    """The context of a step: its graph, its module path, and the names that it can use.

    Attributes:
        draft: The graph so far.
        scope: Module path of the step.
        lookup: Function that returns the value of a name (``as:``).
        normalised: Whether a batch norm is in the same list of steps.
    """

    draft: GraphDraft
    scope: str
    lookup: Callable[[str], Ref]
    normalised: bool = False

    def call(self, op: str, /, **args: Value) -> Ref:
        """Append an operator."""
        return self.draft.call(op, args, self.scope)

    def parameter(self, name: str, shape: Sequence[int]) -> Leaf:
        """Append a parameter of this step."""
        return self.draft.leaf(f"{self.scope}.{name}", tuple(shape))

    def buffer(self, name: str, shape: Sequence[int], dtype: str = "float32") -> Leaf:
        """Append a buffer of this step."""
        return self.draft.leaf(f"{self.scope}.{name}", tuple(shape), role="buffer", dtype=dtype)

    def shape(self, value: Value) -> tuple[Size, ...]:
        """Return the shape of a value."""
        return self.draft.shape(value)

    def size(self, value: Value, dim: int) -> int:
        """Return one size of a value, which must be a number."""
        shape = self.shape(value)
        if not -len(shape) <= dim < len(shape):
            raise Mistake("has too few axes", found=shape_text(shape), expected=f"an axis {dim}")
        size = shape[dim]
        if not isinstance(size, int):
            axis = f"axis {dim} of {shape_text(shape)}, {size}"
            raise Mistake("needs an axis whose size is a number", found=axis)
        return size

    def largest(self, size: Size) -> int:
        """Return the value of a size if every open (dynamic) size has its maximum."""
        highs = {name: open_size.high for name, open_size in self.draft.sizes.items()}
        unbounded = [name for name in sizes_in(size) if highs.get(name, math.inf) == math.inf]
        if unbounded:
            (name, *_) = sorted(unbounded)
            hint = f"set it: open: {{{name}: {{example: …, to: …}}}}"
            raise Mistake("needs the largest value of a size", found=name, hint=hint)
        return size_at(size, {name: int(high) for name, high in highs.items()})

    def within(self, name: str) -> Site:
        """Return the context of a submodule."""
        return dataclasses.replace(self, scope=f"{self.scope}.{name}")


def shape_text(shape: Sequence[Size]) -> str:
    """Render a shape for messages.

    >>> shape_text((2, 3))
    '[2, 3]'
    """
    return f"[{', '.join(map(str, shape))}]"


class StepOptions(Base):
    """Options of every step."""

    source: Name | tuple[Name, ...] | None = Field(
        default=None,
        alias="from",
        description="name of the input; default: the result of the previous step",
    )
    label: Name | None = Field(default=None, alias="as", description="name of the result")
    name: Name | None = Field(default=None, description="prefix of the names of the step's weights")


AxisMeaning = Literal["", "maps", "same", "last"]
Emit = Callable[[Site, Any, tuple[Ref, ...]], Ref]


@dataclass(frozen=True)
class StepRow:
    """One kind of step.

    Attributes:
        options: Pydantic model of its options.
        emit: Function that appends its operators and returns its result.
        stem: Module name. If a list contains several steps with this name, they are numbered:
            ``conv1``, ``conv2``.
        main: Option that a bare value sets: ``linear: 10`` is ``linear: {out: 10}``.
        several: Whether ``from`` may name several values.
        batch_norm: Whether the step is a batch norm, so that convolutions in the same list need no
            bias.
        axes: Meaning of the result's axes. ``maps``: [batch, channel, size, …]. ``same``: as in the
            first input. ``last``: the step works only on the last axis.
        sentence: A one-sentence description.
        example: A step of this kind, as YAML.
    """

    options: type[StepOptions]
    emit: Emit
    stem: str
    main: str = ""
    several: bool = False
    batch_norm: bool = False
    sentence: str = ""
    example: str = ""
    axes: AxisMeaning = ""


STEPS: dict[str, StepRow] = {}


def add_step(
    name: str,
    stem: str = "",
    main: str = "",
    *,
    example: str,
    several: bool = False,
    batch_norm: bool = False,
    axes: AxisMeaning = "",
) -> Callable[[Callable[..., Ref]], Callable[..., Ref]]:
    """Return a decorator that adds a function to the table of steps.

    The function receives a :class:`Site` and the step's input (with ``several``, a tuple of
    inputs). Its further arguments are the step's options, each described by a text in its
    ``Annotated`` type. The docstring describes the step.
    """

    def add(function: Callable[..., Ref]) -> Callable[..., Ref]:
        # The function is the only description of a step: schema, help and defaults come from it.
        # Evaluated, since `from __future__ import annotations` leaves annotations as text.
        signature = inspect.signature(function, eval_str=True)
        fields: dict[str, Any] = {}
        for key, parameter in list(signature.parameters.items())[2:]:
            default = ... if parameter.default is parameter.empty else parameter.default
            about = next(m for m in typing.get_args(parameter.annotation) if isinstance(m, str))
            fields[key] = (parameter.annotation, Field(default, description=about))

        def emit(site: Site, options: StepOptions, xs: tuple[Ref, ...]) -> Ref:
            values = {key: getattr(options, key) for key in fields}
            return function(site, xs if several else xs[0], **values)

        sentence = " ".join((function.__doc__ or "").split())
        model, module = options_model(name, fields), stem or name
        words = sentence, example
        STEPS[name] = StepRow(model, emit, module, main, several, batch_norm, *words, axes)
        return function

    return add


def options_model(name: str, fields: dict[str, Any]) -> type[StepOptions]:
    """Build the pydantic model of a step's options."""
    if not fields:  # one model for all of them, and so one definition in the schema
        return StepOptions
    title = "".join(word.capitalize() for word in name.split("_"))
    return pydantic.create_model(f"{title}Options", __base__=StepOptions, **fields)
