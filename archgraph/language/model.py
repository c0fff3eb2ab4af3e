"""The YAML of one architecture as pydantic models: blocks, sections, choices."""

from __future__ import annotations

import contextlib
import keyword
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pydantic
from pydantic import Field
from pydantic_core import CoreSchema, core_schema

from archgraph.errors import SpecError
from archgraph.fields import MAX_SIZE, Base, Count, Mistake, Name, Version, bare
from archgraph.graph.sizes import OpenSize, is_size_name
from archgraph.graph.values import BATCH_WORD
from archgraph.hints import nearest
from archgraph.language.expression import ParamValue, is_expression
from archgraph.language.mistakes import abbreviate
from archgraph.plain import Json

Expression = Annotated[str, Field(pattern=r"\$|^[\s\d()]+[-+*/%][\s\d()*/%+-]*$")]


def _count(value: object) -> object:
    if is_expression(value) or (type(value) is int and 1 <= value <= MAX_SIZE):
        return value
    raise Mistake("has a wrong value", found=abbreviate(value), expected="an integer ≥ 1, or $name")


# A number, or ``$name`` arithmetic that results in one.
CountOr = Annotated[
    int | str, pydantic.PlainValidator(_count, json_schema_input_type=Count | Expression)
]


def dotted_callable(value: str) -> str:
    """Check that a text is the name of a callable, ``package.module:path``, and return it."""
    if re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", value):
        return value
    raise Mistake(
        "is not the name of a callable", found=repr(value), expected="package.module:callable"
    )


# The name of a callable, which is imported only after the caller has consented.
CallableName = Annotated[str, pydantic.AfterValidator(dotted_callable)]


@dataclass(frozen=True)
class Step:
    """A step as written in a file: a name, with its options or the value of its main option."""

    name: str
    # Validated when the row of the step is known (`lowering.reader`). A union of all rows would
    # report one wrong key as the errors of sixty rows.
    options: Json = None

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(cls._read)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: object, handler: object) -> dict[str, Json]:
        # The table defines the steps: `archgraph.language.json_schema` inserts them here.
        return {"title": "Step"}

    @classmethod
    def _read(cls, value: object) -> Step:
        if isinstance(value, str):
            return cls(value)
        if isinstance(value, Mapping) and len(value) == 1:
            return cls(*next(iter(value.items())))
        raise Mistake(
            "is not a step",
            found=abbreviate(value),
            expected="an operator's name, or one name with its options",
        )


ModelSteps = tuple[Step, ...]


class ShortcutSpec(Base):
    """Options of the 1×1 projection of a block's input, which is used where shapes differ."""

    source: Name | None = Field(
        default=None,
        alias="from",
        description="name of the value to project; default: the input of the block. Networks "
        "with pre-activation project a later value",
    )
    batch_norm: bool | None = Field(
        default=None,
        description="add batch norm after the projection; default: true if the steps of the "
        "block end with batch norm",
    )
    bias: bool = Field(default=False, description="add a bias to the projection")


class BlockBody(Base):
    """A list of steps, and the shortcut that adds their input to their result."""

    shortcut: (
        Literal["auto", "projection", "identity", "where_equal", "none"]
        | Expression
        | ShortcutSpec
        | None
    ) = Field(
        default=None,
        description="how the input of the block is added to its result. If the shapes differ, "
        "the input is projected (auto), not added (where_equal), or an error is raised "
        "(identity). projection: the input is always projected. none: the input is never "
        "added",
    )
    steps: Annotated[ModelSteps, Field(min_length=1)] = Field(
        description="layers and operators that are applied in this order"
    )
    after: ModelSteps = Field(
        default=(), description="steps that are applied after the shortcut is added"
    )


class BlockSpec(BlockBody):
    """A block with parameters, used by sections and by other blocks."""

    params: dict[Name, ParamValue] = Field(
        default={},
        description="parameters of the block: name → default; null: there is no default, so "
        "that each use of the block must set a value",
    )


class SectionSpec(Base):
    """A section (a stage) of a model: consecutive equal blocks, or a list of steps.

    Further keys are parameters of the block.
    """

    model_config = pydantic.ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, ParamValue]

    name: Name = Field(
        description="name of the section's result, and prefix of the names of its parameters"
    )
    block: Name | None = Field(default=None, description="name of the block that is repeated")
    steps: Annotated[ModelSteps, Field(min_length=1)] | None = Field(
        default=None, description="layers and operators, in place of a block"
    )
    depth: CountOr = Field(default=1, description="number of blocks")
    width: CountOr | None = Field(default=None, description="value of the block parameter `width`")
    stride: CountOr | None = Field(
        default=None,
        description="value of the block parameter `stride`, only for the first block",
    )
    first: dict[Name, ParamValue] = Field(
        default={}, description="parameters that only the first block receives"
    )

    @pydantic.model_validator(mode="after")
    def _block_or_steps(self) -> SectionSpec:
        if (self.block is None) == (self.steps is None):
            # Other keys are parameters of the block, so a misspelt `blok:` is noticed only here.
            hints = (nearest(key, ["block", "steps"]) for key in self.model_extra or {})
            raise Mistake(
                f"needs either a block or steps, section {self.name!r}",
                found="both" if self.block else "neither",
                hint=next(filter(None, hints), None),
            )
        others = {*self.model_fields_set, *(self.model_extra or {})} - {"name", "steps"}
        if self.steps is not None and others:
            key = min(others)
            raise Mistake("is not a key of a section of steps", place=(key,), found=repr(key))
        return self

    @property
    def arguments(self) -> dict[str, ParamValue]:
        """Parameters that the section passes to all its blocks."""
        width = {} if self.width is None else {"width": self.width}
        return {**width, **(self.model_extra or {})}

    @property
    def first_arguments(self) -> dict[str, ParamValue]:
        """Parameters that the section passes only to its first block."""
        stride = {} if self.stride is None else {"stride": self.stride}
        return {**stride, **self.first}


def _size_name(value: str) -> str:
    if is_size_name(value):
        return value
    raise Mistake("cannot be the name of a size", found=repr(value), expected="an identifier")


SizeName = Annotated[str, pydantic.AfterValidator(_size_name)]


class OpenSizeSpec(Base):
    """A size of inputs that is variable."""

    example: Annotated[int, Field(ge=2, le=MAX_SIZE)] = Field(
        description="size with which the model is traced and its cost is computed"
    )
    least: Count = Field(default=1, alias="from", description="smallest allowed size")
    to: Count | None = Field(
        default=None, description="largest allowed size; default: any size that the model accepts"
    )

    @pydantic.model_validator(mode="after")
    def _in_order(self) -> OpenSizeSpec:
        if not self.least <= self.example <= (self.to or self.example):
            raise Mistake(
                "is out of its range",
                place=("example",),
                found=self.example,
                expected=f"{self.least} to {self.to}",
            )
        return self

    def size(self, name: str) -> OpenSize:
        """Return the open size that a graph contains."""
        high = math.inf if self.to is None else self.to
        return OpenSize(name, self.example, self.least if self.least > 1 else 0, high, ())


class InputSpec(Base):
    """A tensor that forward takes."""

    shape: tuple[Count | SizeName, ...] = Field(
        description="sizes of the axes, without the batch axis. A name stands for a size that "
        "is variable (see `open`). If the batch is not the first axis, write 'batch' at its "
        "place"
    )
    dtype: Literal["float32", "float64", "float16", "bfloat16", "int64", "int32", "bool"] = Field(
        default="float32", description="data type of the tensor"
    )


Input = Annotated[InputSpec, bare("shape", tuple, tuple[Count | SizeName, ...] | InputSpec)]


def _identifiers(value: dict[str, InputSpec]) -> dict[str, InputSpec]:
    if not value:
        raise Mistake("is empty", expected="name: [sizes without the batch]")
    for name in value:  # they become parameters of the module's forward(self, …)
        if not name.isidentifier() or keyword.iskeyword(name) or name == "self":
            raise Mistake(
                "cannot be the name of an argument of forward",
                place=(name,),
                found=repr(name),
                expected="an identifier",
            )
    return value


Inputs = Annotated[dict[str, Input], pydantic.AfterValidator(_identifiers)]
OpenSizes = dict[SizeName, Annotated[OpenSizeSpec, bare("example", int, int | OpenSizeSpec)]]


class _WithInputs(Base):
    """Inputs, with their variable sizes."""

    archgraph: Version
    name: str = Field(default="", description="name that tables and pages show")
    inputs: Inputs = Field(
        description="arguments of forward: name → sizes of the axes without the batch axis"
    )
    open: OpenSizes = Field(
        default={},
        description="variable sizes: name in `inputs` → example size, and the allowed range",
    )

    @pydantic.model_validator(mode="after")
    def _names_are_known(self) -> _WithInputs:
        used = {s: n for n, i in self.inputs.items() for s in i.shape if isinstance(s, str)}
        for size, name in used.items():
            if size not in self.open and size != BATCH_WORD:
                hint = f"add `open: {{{size}: {{example: 64}}}}`"
                raise Mistake(
                    "has a size that is not listed under open",
                    place=("inputs", name),
                    found=size,
                    hint=hint,
                )
        for size in self.open.keys() - used.keys():
            raise Mistake("is a size that no input has", place=("open", size))
        return self

    def shape(self, name: str) -> tuple[int | str, ...]:
        """Return the shape of an input with the batch."""
        shape = self.inputs[name].shape
        return shape if BATCH_WORD in shape else (BATCH_WORD, *shape)


class AuthoredModel(_WithInputs):
    """An architecture that is written as a list of sections."""

    params: dict[Name, ParamValue] = Field(
        default={}, description="values of the names that this file uses as $name"
    )
    blocks: dict[Name, BlockSpec] = Field(default={}, description="definitions of blocks, by name")
    sections: Annotated[tuple[SectionSpec, ...], Field(min_length=1)] = Field(
        description="sections (stages) of the model, applied in this order"
    )
    outputs: Name | tuple[Name, ...] | dict[str, Name] | None = Field(
        default=None,
        description="names of the values that the model returns; default: the last value",
    )
    choices: dict[str, Annotated[tuple[Count, ...], Field(min_length=1)]] = Field(
        default={},
        description="values that users of the model may choose (with --choose or `choose`): "
        "'section.key' or the name of a parameter → list of allowed values",
    )


# Callables with this name read a local folder. This argument contains the folder.
READER, FOLDER = "from_pretrained", "pretrained_model_name_or_path"


WEIGHTS_FILE = "checkpoint_path"  # argument of timm's callables: other files may hold pickles


def reads_folder(name: str) -> bool:
    """Return whether a callable, ``package.module:callable``, reads a folder.

    >>> reads_folder("transformers:BertModel.from_pretrained"), reads_folder("torch.nn:Linear")
    (True, False)
    """
    return re.split(r"[.:]", name)[-1] == READER


def absolute_path(name: str, base: Path) -> str:
    """Return the absolute path of a named file or folder."""
    # An unknown home folder is unchanged; an error is raised when the file is read.
    with contextlib.suppress(RuntimeError):
        return str(base / Path(name).expanduser())
    return name


def anchored(value: Json, base: Path) -> Json:
    """Make the paths in an inline model absolute.

    >>> made = {"python": "transformers:BertModel.from_pretrained", "args": {FOLDER: "bert"}}
    >>> anchored(made, Path("/specs"))["args"]
    {'pretrained_model_name_or_path': '/specs/bert'}
    """
    if isinstance(value, tuple | list):
        return tuple(anchored(item, base) for item in value)
    if not isinstance(value, Mapping):
        return value
    result = {key: anchored(item, base) for key, item in value.items()}
    if isinstance(file := result.get("onnx"), str):
        result["onnx"] = absolute_path(file, base)
    # A new mapping, because the content of a file is cached and shared.
    name, args = result.get("python"), result.get("args")
    if isinstance(name, str) and isinstance(args, dict):
        key = FOLDER if reads_folder(name) else WEIGHTS_FILE
        file = args.get(key)
        if isinstance(file, str) and file:  # else the mistake is reported with its line
            args[key] = absolute_path(file, base)
            if key == WEIGHTS_FILE and not file.endswith(".safetensors"):
                message = "weights are not in a safetensors file"
                raise SpecError(message, where=f"args.{key}", found=file)
    return result


class PythonValue(Base):
    """A value that a Python callable returns, such as a configuration."""

    python: CallableName = Field(description="package.module:callable")
    args: dict[str, Json] = Field(
        default={},
        description="arguments of the callable. To compute an argument with another callable, "
        "write {python: …, args: …}",
    )


class OnnxModel(Base):
    """An ONNX file, with changed sizes of its dimensions."""

    archgraph: Version = 1
    onnx: str = Field(description="the ONNX file")
    sizes: dict[str, Count | Literal["open"]] = Field(
        description="dimension → size. A dimension is given by its name, by `batch`, or by "
        "INPUT_AXIS if it has no name. A number fixes a dimension that is variable in the file; "
        "`open` makes a fixed dimension variable",
        examples=[{"batch": "open", "length": 128}],
    )


class PythonModel(_WithInputs, PythonValue):
    """A model that a Python callable returns, which archgraph imports and traces."""

    python: CallableName = Field(description="package.module:callable, which returns an nn.Module")
    archgraph: Version = 1
    seed: Annotated[int, Field(ge=0)] = Field(
        default=0, description="random seed during construction of the model"
    )
    train: bool = Field(default=True, description="also capture the model in training mode")
    strict: bool = Field(
        default=True,
        description="raise an error if the graph does not reproduce the module's results, "
        "gradients and training steps; false: only print a note",
    )
    sections: dict[str, tuple[str, ...]] = Field(
        default={},
        description="section → list of its blocks; []: the blocks inside the module that has "
        "the name of the section; default: sections are detected in the graph",
    )
