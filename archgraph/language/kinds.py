"""Kinds of files, with the functions that recognise, describe and check each kind.

A package can add a kind of file with an entry point of the group ``archgraph.files`` whose value is
a :class:`FileKind`. The modules of a kind are imported when it is first used.
"""

from __future__ import annotations

import functools
import importlib.metadata
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from archgraph.errors import SpecError
from archgraph.hints import unknown
from archgraph.language.consent import needs_consent, python_names
from archgraph.language.yaml import read_document
from archgraph.plain import JsonSchema
from archgraph.tables import count, plural

if TYPE_CHECKING:
    import pydantic

    from archgraph.language.document import Document

# A cache that the checks of several files share, for example for resolved families.
Cache: TypeAlias = dict[str, Any]
GROUP = "archgraph.files"
NOT_IMPORTED = "not imported"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of YAML file, such as a model, a family or an experiment.

    Attributes:
        name: Name of the kind.
        rank: If a file matches several kinds, the kind with the lowest rank applies.
        keys: A file matches this kind if it contains at least one of these top-level keys.
        schema: Function that returns the JSON schema of files of this kind.
        mappings: Function that returns the topics of ``archgraph help`` about this kind, as a dict
            from topic to pydantic model.
        check: Function that checks a file. It takes the path, and a cache that is shared by all
            files of one check. It returns a summary of the file, or raises an error. The summary
            ends in :data:`NOT_IMPORTED` if only keys and values were checked, because the Python
            code that the file names was not run.
    """

    name: str
    rank: int
    keys: frozenset[str]
    schema: Callable[[], JsonSchema]
    mappings: Callable[[], Mapping[str, type[pydantic.BaseModel]]]
    check: Callable[[Path, Cache], str]


@functools.cache
def file_kinds() -> Mapping[str, FileKind]:
    """Return a dict from name to kind of file, for all installed kinds, in the order of rank.

    Raises:
        SpecError: If two packages define kinds with the same name.

    Example:
        >>> list(file_kinds())
        ['study', 'experiment', 'family', 'model']
    """
    entries = importlib.metadata.entry_points(group=GROUP)
    # A set: a package that is on the path twice offers equal kinds.
    kinds: set[FileKind] = {entry.load() for entry in entries}
    known: dict[str, FileKind] = {}
    for kind in sorted(kinds, key=lambda kind: kind.rank):
        if kind.name in known:
            raise SpecError(
                "several packages define a kind of file with this name", where=kind.name
            )
        known[kind.name] = kind
    return known


def kind_of(data: object) -> str:
    """Return the kind of a file with this content, or an empty string if the kind is unknown.

    Example:
        >>> kind_of({"clients": []}), kind_of({"rounds": 3}), kind_of({"sections": []}), kind_of([])
        ('family', 'experiment', 'model', '')
    """
    keys = set(data) if isinstance(data, dict) else set()
    return next((kind.name for kind in file_kinds().values() if keys & kind.keys), "")


def schema(kind: str) -> JsonSchema:
    """Return the JSON schema of one kind of file, which editors use to check such files.

    Args:
        kind: ``model``, ``family``, ``experiment`` or ``study``, or a kind that another package
            defines.

    Raises:
        SpecError: If there is no such kind.

    Example:
        >>> sorted(schema("experiment")["required"])
        ['family', 'name', 'rounds', 'strategy']
    """
    kinds = file_kinds()
    if kind not in kinds:
        raise SpecError("is not a kind of file", **unknown(str(kind), sorted(kinds)))
    return {"$schema": DIALECT, "title": f"archgraph {kind}", **kinds[kind].schema()}


def without_consent(source: Document) -> bool:
    """Return whether a model names Python code for which consent is missing.

    Raises:
        SpecError: If the model is written in Python and its form is invalid.
    """
    if "python" not in source.data:
        return False
    import torch

    from archgraph.language.model import PythonModel

    source.validate(PythonModel)
    return any(needs_consent(name, torch.nn.Module) for name in python_names(source.data))


def _schema() -> JsonSchema:
    from archgraph.language.json_schema import model_schema

    return model_schema()


def _mappings() -> Mapping[str, type[pydantic.BaseModel]]:
    from archgraph.language import model
    from archgraph.language.lowering import BlockOptions

    return {
        "model": model.AuthoredModel,
        "inputs": model.InputSpec,
        "blocks": model.BlockSpec,
        "sections": model.SectionSpec,
        "shortcut": model.ShortcutSpec,
        "block": BlockOptions,
        "python": model.PythonModel,
        "onnx": model.OnnxModel,
    }


def _check(path: Path, cache: Cache) -> str:
    from archgraph.language import load_graph

    document = read_document(path)
    if without_consent(document):
        return f"{document.data['python']} {NOT_IMPORTED}"
    graph = load_graph(path)
    size = sum(math.prod(p.shape) for p in graph.params if p.role == "parameter")
    return f"{plural(len(graph.nodes), 'operator')}, {count(size)} parameters"


MODEL = FileKind(
    "model",
    5,
    frozenset({"sections", "nodes", "python", "inputs", "onnx"}),
    _schema,
    _mappings,
    _check,
)
