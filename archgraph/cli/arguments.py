"""Arguments of several commands, and their parsers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archgraph.errors import ArchGraphError, SpecError
from archgraph.plain import Json

if TYPE_CHECKING:
    from archgraph.engine.address import Address
    from archgraph.graph.ir import ArchGraph
    from archgraph.language import ExperimentSpec
    from archgraph.language.document import Document


# Values of a repeatable option; None if it is not used.
Words = list[str] | None

ModelFile = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="A model (YAML, ONNX), or a folder saved by transformers."),
]

ModelOrFamily = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="A model (YAML, ONNX), a family, an experiment or a run folder. FAMILY:NAME or "
        "RUN:NAME selects one model of a family or run.",
    ),
]

Choose = Annotated[
    Words,
    typer.Option(
        metavar="KEY=N",
        help="Set a value that the model file lists under `choices`, e.g. stage1.depth=4. For an "
        "ONNX file, set the size of a dimension; batch=open makes the batch size variable. "
        "Repeatable.",
    ),
]

Settings = Annotated[
    Words,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a setting, e.g. local.lr=0.1. Repeatable."
    ),
]

OutputFile = Annotated[Path | None, typer.Option("-o", "--output", help="File or folder to write.")]

DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="ROOT", help="Folder of the data sets; default: $ARCHGRAPH_DATA."
    ),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

RunFolders = Annotated[
    list[Path],
    typer.Argument(metavar="RUN…", help="Run folders, or folders that contain run folders."),
]

ExperimentFile = Annotated[Path, typer.Argument(metavar="EXPERIMENT", help="An experiment file.")]

WithWeights = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A model (YAML, ONNX) or a run folder. FAMILY:NAME or RUN:NAME selects one model of "
        "a family or run.",
    ),
]

States = Annotated[
    list[Path] | None,
    typer.Option(
        "--state",
        metavar="FILE",
        help="Weights of a model (safetensors): the first --state is for MODEL, the second for "
        "OTHER.",
    ),
]


def read_graph(file: Path, choose: Sequence[str] | None = None) -> ArchGraph:
    """Read the architecture in a file, with some choices set."""
    from archgraph.engine.address import Address

    return Address.of(file).graph(choices_of(choose) or None)


def with_states(
    models: Sequence[str], files: Sequence[Path] | None
) -> list[tuple[Address, Path | None]]:
    """Pair each model with its file of weights. Both lists have the same order."""
    from archgraph.engine.address import Address

    weights = list(files or ())
    if len(weights) > len(models):
        raise SpecError(
            "there are more files than models", where="--state", found=str(weights[len(models)])
        )
    padded = [*weights, *[None] * (len(models) - len(weights))]
    return [(Address.of(text), file) for text, file in zip(models, padded, strict=True)]


def check_weights_file(output: Path, option: str = "--output") -> None:
    """Check the suffix of a file for weights, before anything is printed."""
    if output.suffix.lower() != ".safetensors":
        expected = "a .safetensors file"
        raise SpecError("unknown suffix", where=option, found=str(output), expected=expected)


def by_key(texts: Iterable[str]) -> dict[str, str]:
    """Parse `key=value` texts; refuse repeated keys, so that no value is lost."""
    values: dict[str, str] = {}
    for text in texts:
        key, mark, value = (part.strip() for part in text.partition("="))
        if not (mark and key and value):
            raise SpecError("is not a setting", where=repr(text), expected="key=value")
        if key in values:
            raise SpecError(f"is set twice, to {values[key]} and {value}", where=repr(key))
        values[key] = value
    return values


def choices_of(texts: Sequence[str] | None) -> dict[str, int | str]:
    """Parse `key=N` texts, and for ONNX files `key=open`."""
    values: dict[str, int | str] = {}
    for key, value in by_key(texts or ()).items():
        if not value.isdecimal() and value != "open":
            raise SpecError("is not a number", where=repr(f"{key}={value}"), expected=f"{key}=N")
        values[key] = value if value == "open" else int(value)
    return values


def settings_of(texts: Sequence[str] | None) -> dict[str, Json]:
    """Parse `key=value` texts, whose values are YAML: numbers, true, [1, 2], text."""
    return {key: value_of(value) for key, value in by_key(texts or ()).items()}


def value_of(text: str) -> Json:
    """Parse a YAML value: a number, true, [1, 2], {a: 1}, text."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe", pure=True).load(text)  # as for files: tags cannot create objects
    except YAMLError as error:
        raise SpecError("is not a value", where=repr(text), expected="YAML") from error


def experiment_of(file: Path, settings: Sequence[str] | None) -> ExperimentSpec:
    """Read the experiment in a file, and change some settings."""
    import archgraph
    from archgraph.language import ExperimentSpec

    spec = archgraph.load_experiment(file)
    changes = settings_of(settings)
    if not changes:
        return spec
    # The family is not changed: its paths are relative to the experiment file, not to `--set`.
    data = spec.model_dump(mode="python", by_alias=True, exclude_unset=True, exclude={"family"})
    for key, value in changes.items():
        at: Json = data
        *path, last = key.split(".")
        for part in path:
            if not isinstance(at, dict):
                break
            if at.get(part) is None:  # a mapping that the file omits
                at[part] = {}
            at = at[part]
        if not isinstance(at, dict) or path[:1] == ["family"] or key == "family":
            raise SpecError("cannot be set", where=f"--set {key}", expected="a key of the file")
        at[last] = tuple(value) if isinstance(value, list) else value  # as files are read
    # Validation needs a family; the original one is restored below.
    with typed("--set", {**data, "family": ""}, "--set ") as document:
        changed = document.validate(ExperimentSpec)
    return changed.model_copy(update={"family": spec.family})


@contextlib.contextmanager
def typed(name: str, data: Mapping[str, Json], prefix: str) -> Iterator[Document]:
    """Treat values from the command line as a document.

    An error names the option or key after ``prefix``, since there is no file or line.
    """
    from archgraph.language.document import Document, places

    try:
        yield Document(name, data, dict.fromkeys(places(data), 1))
    except ArchGraphError as error:
        where = (error.where or "").replace(f"{name}:1: ", prefix).replace(f"{name}:1", prefix)
        where = where.replace(f"{prefix}python: ", prefix)  # the key of `trace`'s own document
        error.where = where.removesuffix(": python").rstrip(": ")
        raise
