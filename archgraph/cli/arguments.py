"""Arguments that several commands take, and how their texts are read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archgraph.errors import ArchGraphError, SpecError
from archgraph.hints import unknown
from archgraph.plain import Json

if TYPE_CHECKING:
    from archgraph.federation.family import Family
    from archgraph.graph.ir import ArchGraph
    from archgraph.language import ExperimentSpec
    from archgraph.language.document import Document
    from archgraph.reports.runs import Log
    from archgraph.states import Rewritten, Transfer


# Values of an option that may be repeated; None without any.
Words = list[str] | None

ModelFile = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="A model (YAML, ONNX), or a folder of transformers."),
]

ModelOrFamily = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="A model (YAML, ONNX), a family or an experiment."),
]

Choose = Annotated[
    Words,
    typer.Option(
        metavar="KEY=N",
        help="A choice of the model, e.g. stage1.depth=4; of an ONNX file the size of a dimension, "
        "or batch=open. Repeatable.",
    ),
]

Settings = Annotated[
    Words,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a setting, e.g. local.lr=0.1. Repeatable."
    ),
]

OutputFile = Annotated[Path | None, typer.Option("-o", "--output", help="Where to write.")]

DataFolder = Annotated[
    Path | None, typer.Option("--data", metavar="ROOT", help="Folder of the data.")
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

RunFolders = Annotated[
    list[Path], typer.Argument(metavar="RUN…", help="Run folders, or folders of some.")
]

ExperimentFile = Annotated[Path, typer.Argument(metavar="EXPERIMENT", help="An experiment file.")]

Member = Annotated[
    str | None, typer.Option(metavar="NAME", help="Of a family: the model `global`, or a client's.")
]


def read_graph(
    file: Path, choose: Sequence[str] | None = None, member: str | None = None
) -> ArchGraph:
    """Return the architecture in a file, with some choices made; of a family, that of a member."""
    from archgraph.language import load_graph

    path, name = _file_and_model(str(file))
    if is_run(path):
        return _of_run(path, member or name)
    family = read_family(file)
    if family is None:
        if member is not None:
            raise SpecError("is not a family", where=str(file), found=f"--member {member}")
        return load_graph(file, choices_of(choose) or None)
    if choose:
        raise SpecError("is a family; --choose applies to a single model", where=str(file))
    models = family.models
    if member is None:
        raise SpecError(
            f"is a family, not one model; its models are {', '.join(models)}",
            where=str(file),
            hint="show and explain take one of them by --member, diff and view as FILE:NAME, "
            "other commands the file of the model alone",
        )
    if member not in models:
        raise SpecError("has no such model", where=str(file), **unknown(member, models))
    return models[member]


def is_run(path: Path) -> bool:
    """Return whether a path is the folder of a run, not that of a model."""
    names = ("archgraph.json", "config.json")
    return path.is_dir() and not any((path / name).is_file() for name in names)


def page_subject(text: str) -> ArchGraph | Rewritten | Log | Family:
    """Return what a page shows of a file or folder: a run, a family, a model, or a part of one.

    Args:
        text: `FILE`, or `FILE:MODEL` for one model of a family or of a run.
    """
    path, member = _file_and_model(text)
    if member is not None:
        from archgraph.states import Rewritten

        graph, family = _graph_in(path, member), None if is_run(path) else read_family(path)
        graph = graph.replace(name=f"{path.resolve().stem}:{member}")
        if family is None or not family.has_global:
            return graph
        # With its transfer the page shows which positions of the global model it has.
        return Rewritten(graph, _from_global(family, member))
    if is_run(path):
        from archgraph.reports import read_run

        return read_run(path)
    return read_family(path) or read_graph(path)


def two_graphs(a: str, b: str) -> tuple[ArchGraph, ArchGraph, tuple[Transfer, Transfer] | None]:
    """Read two architectures, and the transfers to both if they are of one family."""
    (one, first), (two, second) = _file_and_model(a), _file_and_model(b)
    graphs = _graph_in(one, first), _graph_in(two, second)
    same = first is not None and second is not None and one == two and not is_run(one)
    family = read_family(one) if same else None
    if family is None or first is None or second is None or not family.has_global:
        return (*graphs, None)
    return (*graphs, (_from_global(family, first), _from_global(family, second)))


def _graph_in(path: Path, member: str | None) -> ArchGraph:
    return _of_run(path, member) if is_run(path) else read_graph(path, member=member)


def _file_and_model(text: str) -> tuple[Path, str | None]:
    """Split `FILE` or `FILE:MODEL`; a file whose name holds a colon is that file."""
    # The last colon: a drive letter has one, too.
    name, mark, member = text.rpartition(":")
    return (Path(name), member) if mark and not Path(text).exists() else (Path(text), None)


def _from_global(family: Family, name: str) -> Transfer:
    """Return the transfer from a family's global model to one of its models."""
    from archgraph.states import Transfer

    transfers = {kind.name: kind.transfer for kind in family.clients}
    return transfers.get(name) or Transfer.identity(family.graph)  # `global` itself


def _of_run(folder: Path, member: str | None) -> ArchGraph:
    """Return an architecture of a run: the global one by default."""
    from archgraph.fields import GLOBAL
    from archgraph.reports import read_run

    graphs = read_run(folder).graphs
    name = member or GLOBAL
    graph = graphs.get(name)
    if graph is None:
        raise SpecError("has no such model", where=str(folder), **unknown(name, list(graphs)))
    if isinstance(graph, str):  # why its file cannot be read
        raise SpecError(graph, where=f"{folder}: {name}")
    return graph


def read_family(file: Path) -> Family | None:
    """Return the resolved family of a file or of its experiment; None for a model."""
    import archgraph
    from archgraph.language.saved import is_transformers
    from archgraph.language.yaml import read_document

    if is_run(_file_and_model(str(file))[0]) or is_transformers(file):
        return None
    data = read_document(file).data
    if isinstance(data, dict) and "family" in data:
        from archgraph.engine.facts import family_of

        return archgraph.resolve(family_of(archgraph.load_experiment(file)))
    if isinstance(data, dict) and "clients" in data:
        return archgraph.resolve(archgraph.load_family(file))
    return None


def by_key(texts: Iterable[str]) -> dict[str, str]:
    """Parse `key=value`s; each key once, so that no value is dropped."""
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
    """Parse `key=N`s, and `key=open`s of an ONNX file."""
    values: dict[str, int | str] = {}
    for key, value in by_key(texts or ()).items():
        if not value.isdecimal() and value != "open":
            raise SpecError("is not a number", where=repr(f"{key}={value}"), expected=f"{key}=N")
        values[key] = value if value == "open" else int(value)
    return values


def numbers_by_name(file: Path) -> dict[str, list[float]]:
    """Read numbers by name: a JSON object, lines of CSV, or saved scores of importance."""
    import csv
    import json

    if file.suffix == ".safetensors":
        from archgraph.states.importance import Importance

        return {name: list(scores) for name, scores in Importance.load(file).positions.items()}
    try:
        text = file.read_text(encoding="utf-8-sig")  # spreadsheets begin CSV with a mark
        if file.suffix == ".json":
            # Before they become a dict, which drops all but the last of equal names.
            pairs = json.loads(text, object_pairs_hook=_once).items()
            rows = [(name, v if isinstance(v, list) else [v]) for name, v in pairs]
        else:
            rows = [(line[0], line[1:]) for line in csv.reader(text.splitlines()) if line]
            # A first line without a number is a heading.
            rows = rows[1:] if rows and not any(map(_numeric, rows[0][1])) else rows
        return _once([(name, [float(n) for n in numbers]) for name, numbers in rows])
    # Whatever JSON, CSV and `float` make of a file that holds something else.
    except (ArithmeticError, AttributeError, RecursionError, TypeError, ValueError, csv.Error) as e:
        raise SpecError(
            "does not contain numbers by name",
            where=str(file),
            found=e,
            expected='{"NAME": 0.5, …} in a .json file, else lines NAME,0.5',
        ) from e


def _once(rows: Iterable[tuple[str, Json]]) -> dict[str, Json]:
    """Return a mapping of names, none of which comes twice: JSON would keep the last one."""
    mapping: dict[str, Json] = {}
    for name, value in rows:
        if name in mapping:
            raise ValueError(f"{name} appears twice")
        mapping[name] = value
    return mapping


def _numeric(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def settings_of(texts: Sequence[str] | None) -> dict[str, Json]:
    """Parse `key=value`s with values as YAML writes them: numbers, true, [1, 2], text."""
    return {key: value_of(value) for key, value in by_key(texts or ()).items()}


def value_of(text: str) -> Json:
    """Parse a value as YAML does: a number, true, [1, 2], {a: 1}, text."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe", pure=True).load(text)  # as files are: no tag makes an object
    except YAMLError as error:
        raise SpecError("is not a value", where=repr(text), expected="YAML") from error


def experiment_of(file: Path, settings: Sequence[str] | None) -> ExperimentSpec:
    """Read the experiment in a file, with some settings changed."""
    import archgraph
    from archgraph.language import ExperimentSpec

    spec = archgraph.load_experiment(file)
    changes = settings_of(settings)
    if not changes:
        return spec
    # The family stays as it was read: its files lie beside the experiment, not beside `--set`.
    data = spec.model_dump(mode="python", by_alias=True, exclude_unset=True, exclude={"family"})
    for key, value in changes.items():
        at: Json = data
        *path, last = key.split(".")
        for part in path:
            if not isinstance(at, dict):
                break
            if at.get(part) is None:  # a mapping that the file leaves out
                at[part] = {}
            at = at[part]
        if not isinstance(at, dict) or path[:1] == ["family"] or key == "family":
            raise SpecError("cannot be set", where=f"--set {key}", expected="a key of the file")
        at[last] = tuple(value) if isinstance(value, list) else value  # as files are read
    # Validation asks for a family; the one that was read is put back below.
    with typed("--set", {**data, "family": ""}, "--set ") as document:
        changed = document.validate(ExperimentSpec)
    return changed.model_copy(update={"family": spec.family})


@contextlib.contextmanager
def typed(name: str, data: Mapping[str, Json], prefix: str) -> Iterator[Document]:
    """Treat typed values as a document: a command line has neither file nor line to point at.

    An error names the option or key behind ``prefix``.
    """
    from archgraph.language.document import Document, places

    try:
        yield Document(name, data, dict.fromkeys(places(data), 1))
    except ArchGraphError as error:
        where = (error.where or "").replace(f"{name}:1: ", prefix).replace(f"{name}:1", prefix)
        where = where.replace(f"{prefix}python: ", prefix)  # the key of `trace`'s own document
        error.where = where.removesuffix(": python").rstrip(": ")
        raise
