"""Steps that apply one ATen operator to one value.

A row lists the arguments of the operator that are options, their names in a file, and defaults that
differ from the operator's. Types and other defaults come from the operator's schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from archgraph.fields import Count
from archgraph.graph.ir import TRAINING, Ref, Value
from archgraph.language.steps.base import (
    STEPS,
    AxisMeaning,
    AxisNumber,
    Site,
    StepOptions,
    StepRow,
    options_model,
)
from archgraph.ops.schema import Argument, op_schema
from archgraph.plain import Json

# Arguments that count axes, whose range is that of a tensor's rank.
_AXES = frozenset({"dim", "dims", "start_dim", "end_dim"})
_PLAIN: dict[str, type] = {"float": float, "int": int, "bool": bool, "str": str, "number": float}
_OF_SCHEMA = object()


@dataclass(frozen=True)
class SchemaOption:
    """An option that sets one argument of an operator.

    Attributes:
        text: Description for the help.
        argument: Name of the operator's argument. Default: the option's name.
        default: Value if a file omits the option. Default: the operator's default.
        type: Type of the value in a file. Default: the argument's type.
    """

    text: str
    argument: str = ""
    default: object = _OF_SCHEMA
    type: Json = None

    def field(self, argument: Argument) -> tuple[Json, Json]:
        """Return the option as a field of a pydantic model."""
        kind = self.type
        if kind is None:
            axis = argument.name in _AXES
            inner = argument.type.removeprefix("List[").removesuffix("]")
            kind = AxisNumber if axis and inner == "int" else _PLAIN[inner]
            kind = tuple[kind, ...] if inner != argument.type else kind  # type: ignore[valid-type]  # made at run time
        default = self.default
        if default is _OF_SCHEMA:
            default = ... if argument.required else argument.default
            # Schemas write 1 for 1.0, which a strict model refuses.
            default = float(default) if kind is float and isinstance(default, int) else default
        return kind, Field(default, description=self.text)


def derive(
    name: str,
    op: str,
    sentence: str,
    example: str = "",
    *,
    main: str = "",
    stem: str = "",
    fixed: dict[str, Value] | None = None,
    unless: str = "",
    axes: AxisMeaning = "same",
    **options: SchemaOption,
) -> None:
    """Add a step that applies one operator to the table of steps.

    Args:
        name: Name of the step.
        op: The operator; its first argument is the step's input.
        sentence: A one-sentence description.
        example: The step as YAML. Default: its name.
        main: Option that a bare value sets.
        stem: Module name. Default: the name of the step.
        fixed: Arguments of the operator with fixed values.
        unless: Name of an option. If its value is 0, the step returns its input unchanged.
        axes: Meaning of the result's axes, as in :class:`StepRow`.
        options: The options of the step.
    """
    known = op_schema(op).by_name
    first = next(iter(known))
    arguments = {key: option.argument or key for key, option in options.items()}
    fields = {k: o.field(known[arguments[k]]) for k, o in options.items()}

    def emit(site: Site, o: StepOptions, xs: tuple[Ref, ...]) -> Ref:
        # A dropout of probability 0 leaves no node: it would differ from the model without it.
        if unless and not getattr(o, unless):
            return xs[0]
        specified: dict[str, Value] = {first: xs[0], **(fixed or {})}
        for key, argument in arguments.items():
            value = getattr(o, key)
            # `mean: 1` for `mean: [1]`; the operator takes a list.
            listed = "List[" in known[argument].type and not isinstance(value, tuple)
            specified[argument] = (value,) if listed else value
        return site.call(op, **specified)

    model, example = options_model(name, fields), example or name
    module = stem or name
    STEPS[name] = StepRow(model, emit, module, main, False, False, sentence, example, axes)


_ACTIVATIONS = {
    "relu": "Negative numbers become 0.",
    "silu": "x · sigmoid(x), also called swish.",
    "hardswish": "x · relu6(x + 3) / 6, a swish of straight pieces.",
    "hardsigmoid": "relu6(x + 3) / 6, a sigmoid of straight pieces.",
    "sigmoid": "1 / (1 + exp(-x)): numbers between 0 and 1.",
    "tanh": "Hyperbolic tangent: numbers between -1 and 1.",
    "softplus": "log(1 + exp(x)), a smooth relu.",
    "mish": "x · tanh(softplus(x)).",
}
for _name, _sentence in _ACTIVATIONS.items():
    derive(_name, f"aten.{_name}", _sentence)

derive(
    "relu6",
    "aten.hardtanh",
    "Clip numbers to the range from 0 to 6.",
    stem="hardtanh",
    fixed={"min_val": 0.0, "max_val": 6.0},
)
derive(
    "gelu",
    "aten.gelu",
    "x · Φ(x), the Gaussian error linear unit.",
    "gelu: {approximate: tanh}",
    approximate=SchemaOption(
        "tanh: the approximation by a hyperbolic tangent", type=Literal["none", "tanh"]
    ),
)
derive(
    "leaky_relu",
    "aten.leaky_relu",
    "Negative numbers are multiplied by a small slope.",
    "leaky_relu: {negative_slope: 0.2}",
    negative_slope=SchemaOption("factor of negative numbers"),
)
derive(
    "elu",
    "aten.elu",
    "Negative numbers become alpha · (exp(x) - 1).",
    "elu: {alpha: 0.5}",
    alpha=SchemaOption("the limit of very negative numbers is -alpha"),
)
derive(
    "softmax",
    "aten.softmax.int",
    "Numbers along an axis become positive with sum 1.",
    "softmax: {dim: 1}",
    dim=SchemaOption("the axis", default=-1),
)
derive(
    "log_softmax",
    "aten.log_softmax.int",
    "The logarithm of softmax.",
    "log_softmax: {dim: 1}",
    dim=SchemaOption("the axis", default=-1),
)
derive(
    "dropout",
    "aten.dropout",
    "In training each number becomes 0 with probability p; the others are scaled up.",
    "dropout: 0.1",
    main="p",
    fixed={"train": TRAINING},
    unless="p",
    p=SchemaOption("the probability", default=0.5, type=Annotated[float, Field(ge=0, lt=1)]),
)
derive(
    "flatten",
    "aten.flatten.using_ints",
    "Merge adjacent axes into one axis.",
    "flatten: {start: 2}",
    axes="",
    start=SchemaOption("the first of the axes", "start_dim", 1),
    end=SchemaOption("the last of the axes", "end_dim"),
)
derive(
    "permute",
    "aten.permute",
    "Reorder the axes, including the batch axis 0.",
    "permute: [0, 2, 3, 1]",
    axes="",
    main="dims",
    dims=SchemaOption("for each axis of the result, the axis of the input"),
)
derive(
    "mean",
    "aten.mean.dim",
    "Take the mean over one or several axes.",
    "mean: {dim: 1, keep: true}",
    axes="",
    main="dim",
    dim=SchemaOption("the axes", type=AxisNumber | tuple[AxisNumber, ...], default=...),
    keep=SchemaOption("keep these axes with size 1", "keepdim"),
)
derive(
    "select",
    "aten.select.int",
    "Take one index along an axis, and remove the axis.",
    "select: {dim: 1, index: 0}",
    axes="",
    main="index",
    dim=SchemaOption("the axis", default=1),
    index=SchemaOption("index along the axis; a negative index counts from the end", default=0),
)
derive(
    "split",
    "aten.split_with_sizes",
    "Split a value along an axis into several values; `get` takes one of them.",
    "split: {sizes: [2, 3], as: parts}",
    main="sizes",
    sizes=SchemaOption("size of each part", "split_sizes", type=tuple[Count, ...]),
    dim=SchemaOption("the axis", default=1),
)
