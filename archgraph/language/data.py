"""The YAML of data: the examples, and how they are divided among the clients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, TypeAlias

import pydantic
from pydantic import Discriminator, Field, Tag

from archgraph.fields import Base, Count, Mistake, Name, Share
from archgraph.hints import unknown
from archgraph.language.document import PathKind
from archgraph.language.mistakes import abbreviate
from archgraph.language.model import CallableName
from archgraph.plain import Json


def _at_most_all(value: dict[str, float]) -> dict[str, float]:
    # Fractions that sum to 1 on paper may sum to slightly more in floating point.
    total = sum(value.values())
    if total > 1 and not math.isclose(total, 1):
        raise Mistake("add up to more than 1", found=f"{total:g}", expected="at most 1")
    return value


DataShares = (
    Annotated[
        dict[Name, Share],
        pydantic.AfterValidator(_at_most_all),
        Field(
            min_length=1,
            description="kind of client → fraction of all examples, with all classes in "
            "proportion, that is divided equally among the clients of this kind; the clients of "
            "other kinds receive the rest",
        ),
    ]
    | None
)


Alpha = Annotated[
    float, Field(gt=0, description="concentration; smaller values give more unequal classes")
]


class IidSpec(Base):
    """Shuffle the examples and divide them into equal parts."""

    scheme: Literal["iid"] = Field(default="iid", description="name of the scheme")
    shares: DataShares = None


class DirichletSpec(Base):
    """Divide the examples of each class by fractions drawn from a Dirichlet distribution."""

    scheme: Literal["dirichlet"] = Field(description="name of the scheme")
    alpha: Alpha = 0.5
    min_size: Count = Field(
        default=10, description="smallest number of examples that a client may have"
    )
    balanced: bool = Field(
        default=False,
        description="true: a client that already has as many examples as in an equal division "
        "receives no more",
    )
    shares: DataShares = None


class EqualDirichletSpec(Base):
    """Give all clients equally many examples, with Dirichlet-distributed class fractions."""

    scheme: Literal["equal_dirichlet"] = Field(description="name of the scheme")
    alpha: Alpha = 0.5
    shares: DataShares = None


class ClassesSpec(Base):
    """Give each client examples of a fixed number of classes."""

    scheme: Literal["classes"] = Field(description="name of the scheme")
    per_client: Count = Field(default=2, description="number of classes of each client")
    assignment: Literal["first-deterministic", "deterministic", "random"] = Field(
        default="first-deterministic",
        description="how the classes of a client are chosen. first-deterministic: the first "
        "class in turn and the others at random; deterministic: all classes in turn; random: "
        "all classes at random. Examples of a class that no client gets are dropped, with a "
        "note",
    )
    shares: DataShares = None


class WholeSpec(Base):
    """Give each client all examples, to train several models on the same data."""

    scheme: Literal["whole"] = Field(description="name of the scheme")
    shares: DataShares = None


PartitionSpec = Annotated[
    IidSpec | DirichletSpec | EqualDirichletSpec | ClassesSpec | WholeSpec,
    Field(discriminator="scheme"),
]


Located: TypeAlias = Mapping[str, PathKind]


class DataSpec(Base):
    """The data, and how it is divided among the clients. Exactly one key names the data.

    Attributes:
        located: Keys that name a file or folder, relative to the file that contains them.
        known: Keys that identify the data. If empty, the content identifies the data.
    """

    partition: PartitionSpec | None = Field(
        default=None,
        description="how the training examples are divided among the clients; default: the "
        "division that the data defines, else `iid`",
    )

    located: ClassVar[Located] = {}
    known: ClassVar[tuple[str, ...]] = ()


class NamedData(DataSpec):
    """A well-known data set, read from its published files."""

    dataset: str = Field(
        description="name of the data set: digits, mnist, fashion_mnist, kmnist, cifar10, "
        "cifar100, wikitext2; multinli, sick; mnli and snli (only their development sets, "
        "split again)"
    )
    root: str | None = Field(
        default=None, description="folder that contains the data sets; default: $ARCHGRAPH_DATA"
    )
    limit: Count | None = Field(
        default=None, description="maximum number of examples in each split"
    )
    bptt: Count = Field(default=64, description="length of a text window, in tokens")
    length: Count | None = Field(
        default=None,
        description="number of tokens of a pair of sentences, including padding; default: 128",
    )
    vocabulary: Count | None = Field(
        default=None,
        description="maximum size of the vocabulary that is learned from pairs of sentences; "
        "default: 8192",
    )
    tokenizer: str | None = Field(
        default=None,
        description="a tokenizer for pairs of sentences, in place of a learned vocabulary: a "
        "tokenizer.json, or a folder saved by transformers; the path is relative to this file",
    )

    located: ClassVar[Located] = {"tokenizer": "file or folder"}
    known: ClassVar[tuple[str, ...]] = ("dataset", "limit", "bptt", "length", "vocabulary")


class PythonData(DataSpec):
    """A training and a test set that your own function returns."""

    python: CallableName = Field(
        json_schema_extra={"pattern": "^[^:]+:.+$"},
        description="the function, `package.module:function`. It returns a `Dataset`, or "
        "(train, test), where each is a torch dataset or a pair of tensors (inputs, targets); "
        "train may also be a mapping from clients to such data",
    )
    arguments: dict[str, Json] = Field(
        default={}, alias="with", description="arguments of the function, by name"
    )
    cache: bool = Field(
        default=False,
        description="read each item of a torch dataset only once; false: read the items again "
        "in every pass, so that random transforms are drawn again",
    )


Target = Annotated[
    str | Annotated[tuple[str, ...], Field(min_length=1)] | None,
    Field(
        description="the column to predict. Without `task`, it contains classes as whole "
        "numbers. For regression or multilabel tasks, several columns can be listed. Default: "
        "the next token of `text` is predicted",
        examples=["diagnosis"],
    ),
]
TestShare = Annotated[float, Field(gt=0, lt=1)]
TestPart = Annotated[
    TestShare | str | None,
    Field(
        description="the test rows: a separate file, or a fraction of the rows. The fraction is "
        "drawn from every class and client in proportion, and is the same for every seed. "
        "Default: 0.2"
    ),
]


TokenizerPath = Annotated[
    str | None,
    Field(
        description="tokenizer of the texts: a tokenizer.json, or a folder saved by "
        "transformers; the path is relative to this file",
        examples=["tokenizer.json"],
    ),
]
TextLength = Annotated[
    Count | None,
    Field(
        description="number of tokens per example; shorter texts are padded, and longer texts "
        "are cut",
        examples=[128],
    ),
]
TextColumns = Annotated[
    str | Annotated[tuple[str, ...], Field(min_length=2, max_length=2)] | None,
    Field(
        description="the column of texts, or two columns of paired texts, e.g. `[premise, "
        "hypothesis]`. Models receive the tokens of the texts. Requires `tokenizer` and `length`",
        examples=["review"],
    ),
]


def column_names(columns: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the names in the key ``text`` or ``target`` as a tuple, which may be empty.

    >>> column_names("review"), column_names(None)
    (('review',), ())
    """
    return (columns,) if isinstance(columns, str) else columns or ()


def _check_columns(spec: TableData | HuggingFaceData) -> None:
    """Raise an error if keys of texts are missing, or if they are set without a column of texts."""
    if spec.text is not None:
        lacks = [key for key in ("tokenizer", "length") if getattr(spec, key) is None]
        if lacks:
            actual, expected = (
                f"no {' and no '.join(lacks)}",
                "tokenizer: tokenizer.json, length: 128",
            )
            raise Mistake(
                "texts need a tokenizer and a length",
                place=("text",),
                found=actual,
                expected=expected,
            )
        if len(names := column_names(spec.text)) > len(set(names)):
            raise Mistake("names a column twice", place=("text",), found=names[0])
        if spec.target is None and not isinstance(spec.text, str):
            message = "next-token prediction needs a single column of texts"
            raise Mistake(
                message, place=("text",), found="two columns", expected="one column, or a target"
            )
        return
    for key in ("tokenizer", "length"):
        if getattr(spec, key) is not None:
            raise Mistake(
                "applies to columns of texts only",
                place=(key,),
                found="no `text`",
                hint="name the column of texts: text: review",
            )
    if spec.target is None:
        raise Mistake("lacks the key 'target'", expected="the column to be predicted")


class FolderData(DataSpec):
    """Images in folders, one folder for each class."""

    folder: str = Field(
        description="the folder, which contains CLASS/IMAGE, or train/CLASS/IMAGE and "
        "test/CLASS/IMAGE; the path is relative to this file"
    )
    size: tuple[Count, Count] | None = Field(
        default=None,
        description="height and width to which images are scaled; default: images are not scaled",
    )
    colour: bool | None = Field(
        default=None,
        description="true: three channels; false: one channel; default: three channels if any "
        "image has colour",
    )
    test: TestShare | None = Field(
        default=None,
        description="fraction of the files of each class that is used for tests, with the same "
        "files for every seed; default: the folder `test`, else 0.2",
    )

    located: ClassVar[Located] = {"folder": "folder"}


ColumnKind: TypeAlias = Literal["number", "category"]


class TableData(DataSpec):
    """Rows of a table: CSV, or Parquet."""

    table: str = Field(description="the file, .csv or .parquet; the path is relative to this file")
    target: Target = None
    columns: tuple[str, ...] | dict[str, ColumnKind] | None = Field(
        default=None,
        description="the input columns, or a mapping from input columns to their types; "
        "default: all columns that no other key names. Categories are one-hot encoded",
    )
    text: TextColumns = None
    tokenizer: TokenizerPath = None
    length: TextLength = None
    client: str | None = Field(
        default=None,
        description="the column that names the owner of each row; owners become clients in "
        "the order in which they first appear",
    )
    standardise: bool = Field(
        default=True,
        description="subtract the mean from columns of numbers and divide them by their "
        "standard deviation, both computed over the training rows without those that "
        "`validation` holds out",
    )
    separator: Annotated[str, Field(min_length=1, max_length=1)] = Field(
        default=",", description="separator between the columns of a CSV file"
    )
    test: TestPart = None

    located: ClassVar[Located] = {"table": "file", "tokenizer": "file or folder", "test": "file"}

    @pydantic.model_validator(mode="after")
    def _one_kind(self) -> TableData:
        _check_columns(self)
        for key, numbers in (("columns", self.columns), ("standardise", not self.standardise)):
            if self.text is not None and numbers:
                raise Mistake(
                    "applies to columns of numbers and categories only",
                    place=(key,),
                    found="`text`, too",
                )
        return self


class HuggingFaceData(DataSpec):
    """A data set that Hugging Face's `datasets` has saved on disk."""

    huggingface: str = Field(
        description="the folder that `save_to_disk` wrote; the path is relative to this file"
    )
    inputs: str | dict[str, str] | None = Field(
        default=None,
        description="the input column; for several inputs, a mapping from the names of the "
        "model's inputs to columns",
    )
    text: TextColumns = None
    tokenizer: TokenizerPath = None
    length: TextLength = None
    target: Target = None
    client: str | None = Field(
        default=None,
        description="the column that names the owner of each row; owners become clients in "
        "the order in which they first appear",
    )
    test: TestShare | None = Field(
        default=None,
        description="fraction of the rows that is used for tests; default: the split `test`, "
        "else 0.2",
    )

    located: ClassVar[Located] = {"huggingface": "folder", "tokenizer": "file or folder"}

    @pydantic.model_validator(mode="after")
    def _one_kind(self) -> HuggingFaceData:
        _check_columns(self)
        if (self.inputs is None) == (self.text is None):
            count = "neither" if self.inputs is None else "both"
            raise Mistake("must name the inputs of models", found=count, expected="inputs, or text")
        return self


class TextData(DataSpec):
    """Your own text; models predict its next character, word or token."""

    text: str = Field(description="the text file, in UTF-8; the path is relative to this file")
    by: Literal["character", "word"] | None = Field(
        default=None,
        description="unit of a token; words are separated by blanks. Default: the unit of the "
        "tokenizer, or a character without a tokenizer",
    )
    tokenizer: TokenizerPath = None
    bptt: Count = Field(default=64, description="length of a text window, in tokens")
    test: Annotated[
        TestShare | str | None,
        Field(
            description="text for tests: a separate file, or a fraction of the text, which is "
            "taken from its end; default: 0.1"
        ),
    ] = None

    located: ClassVar[Located] = {"text": "file", "tokenizer": "file or folder", "test": "file"}

    @pydantic.model_validator(mode="after")
    def _one_vocabulary(self) -> TextData:
        if self.tokenizer is not None and self.by is not None:
            raise Mistake(
                "conflicts with the tokenizer, which has its own tokens",
                place=("by",),
                found=self.by,
            )
        return self


DOORS: Mapping[str, type[DataSpec]] = {
    "dataset": NamedData,
    "python": PythonData,
    "folder": FolderData,
    "table": TableData,
    "huggingface": HuggingFaceData,
    "text": TextData,
}
"""Dict from the key that names the data to the model of its options."""


def _doors(value: Mapping[str, object]) -> list[str]:
    """Return the keys that name data. Next to `table`, the key `text` is an option of the table."""
    doors = [key for key in DOORS if key in value]
    return [k for k in doors if not any(k in DOORS[o].model_fields for o in doors if o != k)]


def _names_data_once(value: object) -> object:
    """Check that a mapping names data exactly once."""
    if isinstance(value, DataSpec):
        return value
    if not isinstance(value, Mapping):
        hint = f"write {{dataset: {value}}}" if isinstance(value, str) else None
        actual = "nothing" if value is None else abbreviate(value)
        raise Mistake(
            "must name the data",
            found=actual,
            expected=f"a mapping with {', '.join(DOORS)}",
            hint=hint,
        )
    doors = _doors(value)
    if len(doors) > 1:
        raise Mistake("names data twice", place=(doors[1],), found=" and ".join(doors))
    others = [str(key) for key in value if key not in DataSpec.model_fields]
    if others and not doors:
        facts = unknown(others[0], (*DOORS, *DataSpec.model_fields))
        raise Mistake("is an unknown key", place=(others[0],), **facts)
    return value


def _kind(value: Mapping[str, Json] | DataSpec) -> str:
    """Return the name of the class that reads a mapping."""
    if isinstance(value, DataSpec):
        return type(value).__name__
    return next((DOORS[key] for key in _doors(value)), DataSpec).__name__


Data = Annotated[
    Annotated[DataSpec, Tag("DataSpec")]
    | Annotated[NamedData, Tag("NamedData")]
    | Annotated[PythonData, Tag("PythonData")]
    | Annotated[FolderData, Tag("FolderData")]
    | Annotated[TableData, Tag("TableData")]
    | Annotated[HuggingFaceData, Tag("HuggingFaceData")]
    | Annotated[TextData, Tag("TextData")],
    Discriminator(_kind),
    pydantic.BeforeValidator(_names_data_once),
]
