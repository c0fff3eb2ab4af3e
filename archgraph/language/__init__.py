"""What a person writes: models, families and experiments as YAML.

A model file has one of three forms: *authored* (blocks and sections), *flat* (every operator, as
:func:`save` writes it) or *python* (a callable that returns a module).
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from archgraph.errors import GraphError, SpecError
from archgraph.fields import Mistake
from archgraph.files import write
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph
from archgraph.hints import nearest
from archgraph.language import flat
from archgraph.language.document import Document, folder_beside
from archgraph.language.family import DataSpec, ExperimentSpec, FamilySpec
from archgraph.language.lowering import lower
from archgraph.language.mistakes import shorten
from archgraph.language.model import AuthoredModel, PythonModel, anchored
from archgraph.language.schema import schema
from archgraph.language.yaml import read_document
from archgraph.ops.check import check

if TYPE_CHECKING:
    import torch

Path_ = str | os.PathLike[str]


@takes_graph
def save(graph: ArchGraph, path: Path_) -> None:
    r"""Write a graph as flat YAML, whole or not at all, with the folders it needs.

    The law: ``load(path) == graph`` afterwards.

    Args:
        graph: Any graph.
        path: Where to; an existing file is replaced.

    Raises:
        GraphError: If a name in the graph does not survive being written.
        RunError: If the file cannot be written.

    Example:
        >>> import tempfile
        >>> from archgraph.graph.text import parse
        >>> text = "%x: float32[batch, 2] = input()\nforward x = %x\nreturn %x"
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(parse(text), f"{folder}/tiny.yaml")
        ...     load(f"{folder}/tiny.yaml") == parse(text)
        True
    """
    write(path, flat.dump(graph))


def load(path: Path_, choices: Mapping[str, int] | None = None) -> ArchGraph:
    """Read a model file of any form.

    Args:
        path: The file.
        choices: Values of what the model's ``choices`` leave open, e.g. ``{"stage1.depth": 4}``.

    Raises:
        SpecError: If it cannot be understood, with file, line and key.
        TraceError: If it names a Python model that cannot be captured.
    """
    return load_model(read_document(path), choices)[0]


def load_model(
    document: Document, choices: Mapping[str, int] | None = None
) -> tuple[ArchGraph, dict[str, torch.Tensor] | None]:
    """The graph of a model that was read, and the weights where it brings its own.

    Raises:
        SpecError: If it cannot be understood, with file, line and key.
        TraceError: If it names a Python model that cannot be captured.
    """
    data = document.data
    if not isinstance(data, dict):
        document.fail((), "is not a model", expected="keys and values")
    if "sections" in data and "python" not in data and "nodes" not in data:
        try:
            return _lowered(document, tuple((choices or {}).items())), None
        except GraphError as error:  # a law about the whole, which no step could break alone
            document.fail(
                ("sections",),
                f"{error.where}: {error.message}" if error.where else error.message,
                found=error.found,
                expected=error.expected,
                hint=error.hint,
            )
    if choices:
        raise SpecError(
            "has no choices", where=document.file, found=", ".join(choices), expected="none"
        )
    if "python" in data:
        # Tracing loads torch.export, which takes longer than all other files together.
        from archgraph.language.python import capture

        return capture(document, document.validate(PythonModel))
    if "nodes" not in data:
        document.validate(AuthoredModel)
    graph = flat.read(document)
    try:
        check(graph)
    except GraphError as error:
        where = error.where or "graph"
        line = flat.line_of(document, where)
        raise SpecError(
            error.message,
            where=f"{document.file}:{line}: {where}",
            found=error.found,
            expected=error.expected,
            hint=error.hint,
        ) from error
    return graph, None


# A family names its model once for each client, and many experiments name one family.
@functools.lru_cache(maxsize=64)
def _lowered(document: Document, choices: tuple[tuple[str, int], ...]) -> ArchGraph:
    return lower(document, document.validate(AuthoredModel), dict(choices))


def load_family(path: Path_) -> FamilySpec:
    """Read a family file; :func:`archgraph.federation.family.resolve` makes its graphs.

    Raises:
        SpecError: If it cannot be understood, with file, line and key.
    """
    return _family(read_document(path))


def load_experiment(path: Path_) -> ExperimentSpec:
    """Read an experiment file, and the family that it names.

    Raises:
        SpecError: If either cannot be understood, with file, line and key.
    """
    document = read_document(path)
    spec = document.validate(ExperimentSpec)
    if isinstance(spec.family, str):
        file = beside(document, spec.family, ("family",))
        family = load_family(file)
    else:
        family = _family(document.sub(("family",)))
    _shared(document, spec, family)
    return spec.model_copy(update={"family": family, "data": _data(document, spec.data)})


def _data(document: Document, data: DataSpec) -> DataSpec:
    """The data with its tokenizer's folder named so that it is found from anywhere."""
    if data.tokenizer is None:
        return data
    place = ("data", "tokenizer")
    folder = folder_beside(document, data.tokenizer, place)
    return data.model_copy(update={"tokenizer": str(folder)})


def _shared(document: Document, spec: ExperimentSpec, family: FamilySpec) -> None:
    """Check that shares of the data are the family's, and that all data is shared out."""
    shares = spec.data.partition.shares
    if shares is None:
        return
    place = ("data", "partition", "shares")
    kinds = [member.name for member in family.clients]
    for name in shares:
        if name not in kinds:
            document.fail(
                (*place, name),
                "is not a kind of client",
                found=repr(name),
                expected=f"one of {', '.join(kinds)}",
                hint=nearest(name, kinds),
            )
    complete, total = len(shares) == len(kinds), sum(shares.values())
    if complete != math.isclose(total, 1):
        document.fail(
            place,
            "leaves some data to no client" if complete else "leaves no data to the other clients",
            found=f"{total:g}",
            expected="1 together" if complete else "less than 1 together",
        )


def _family(document: Document) -> FamilySpec:
    """A family whose model files are named so that they are found from anywhere."""
    spec = document.validate(FamilySpec)
    spec = spec.model_copy(
        update={
            "model": spec.model
            if spec.model == "join"
            else _source(document, spec.model, ("model",)),
            "clients": tuple(
                member.model_copy(
                    update={"model": _source(document, member.model, ("clients", i, "model"))}
                )
                for i, member in enumerate(spec.clients)
            ),
        }
    )
    spec._document = document
    return spec


def _source(document: Document, source: object, place: tuple[str | int, ...]) -> object:
    if isinstance(source, str):
        return str(beside(document, source, place))
    return anchored(source, Path(document.file).parent.absolute())


def beside(document: Document, name: str, place: tuple[str | int, ...]) -> Path:
    """A file named relative to the file that names it."""
    path = Path(document.file).parent / name
    try:
        path = path.resolve()
        there = path.is_file()
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, links in a circle
        there = False
    if not there:
        found = str(path) if name.isprintable() else name
        document.fail(
            place,
            "names a file that is not there",
            found=found if len(found) < 200 else shorten(found),
        )
    return path


__all__ = [
    "ExperimentSpec",
    "FamilySpec",
    "Mistake",
    "load",
    "load_experiment",
    "load_family",
    "load_model",
    "save",
    "schema",
]
