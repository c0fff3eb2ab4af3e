"""Read model files of any form as graphs, and write graphs to files."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from archgraph.errors import GraphError, SpecError
from archgraph.files import write
from archgraph.graph.argument import GraphLike, graph_of
from archgraph.graph.ir import ArchGraph
from archgraph.language import flat
from archgraph.language.document import Document
from archgraph.language.lowering import lower
from archgraph.language.model import AuthoredModel, OnnxModel, PythonModel, absolute_path
from archgraph.language.saved import (
    is_saved,
    is_transformers,
    save_folder,
    saved_weights,
    weights_of,
)
from archgraph.language.yaml import is_onnx, read_document
from archgraph.ops.check import check

if TYPE_CHECKING:
    import torch

    from archgraph.states.lazy import LazyState

# Logger for the notes of each graph that is read; the command line prints them.
NOTES = logging.getLogger("archgraph.notes")

# Dict from choice to value; for an ONNX file, from dimension to size or "open".
Choices: TypeAlias = Mapping[str, int | str]

# Endings of files that hold weights.
WEIGHTS = (".onnx", ".safetensors", ".pt", ".pt2", ".pth")


def save(model: GraphLike | torch.nn.Module, path: str | os.PathLike[str]) -> None:
    r"""Write an architecture to a YAML file, or a model with its weights to a folder.

    :func:`archgraph.load` returns exactly what was saved. A folder contains ``model.yaml``,
    ``model.safetensors`` and ``archgraph.json``. The folder gets its final name only after all
    files are written.

    Args:
        model: A graph, or a model with weights (the result of :func:`archgraph.trace`, or a module
            from :func:`archgraph.build`). A folder requires a model with weights. A file contains
            only the architecture.
        path: A file with the suffix ``.yaml``, or a folder. An earlier file or folder that this
            function wrote is replaced.

    Raises:
        GraphError: If a name in the graph cannot be written without loss, or the weights do not fit
            the graph.
        SpecError: If the file has the suffix of a weights file; if the path is a folder but the
            model has no weights; if the folder contains other files.
        RunError: If the file or folder cannot be written.

    Example:
        >>> import tempfile, torch
        >>> from archgraph.capture.trace import trace
        >>> from archgraph.engine.loading import load
        >>> traced = trace(torch.nn.Linear(3, 2), torch.zeros(1, 3))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(traced.graph, f"{folder}/small.yaml")
        ...     save(traced, f"{folder}/small")
        ...     load(f"{folder}/small.yaml") == load(f"{folder}/small").graph == traced.graph
        True
    """
    graph = graph_of(cast("GraphLike", getattr(model, "arch", model)))  # of a built module
    target, state = Path(path), weights_of(model)
    check_ending(target)
    if state is not None and target.suffix.lower() not in (".yaml", ".yml"):
        save_folder(graph, state, target)
    elif target.is_dir() or os.fspath(path).endswith("/"):
        problem, expected = (
            "a folder needs weights, but a graph has none",
            "a .yaml file, or a traced model",
        )
        raise SpecError(problem, where=str(path), expected=expected)
    else:
        write(target, flat.dump(graph))


def check_ending(path: str | os.PathLike[str]) -> None:
    """Check that a file for an architecture does not have the suffix of a weights file.

    Raises:
        SpecError: If the file has such a suffix.
    """
    if Path(path).suffix.lower() in WEIGHTS:
        message = "an architecture is written as YAML, without weights"
        raise SpecError(
            message,
            where=str(path),
            expected="a .yaml file",
            hint="for weights: ag.export, or `archgraph export`, see docs/onnx.md",
        )


def load_graph(path: str | os.PathLike[str], choices: Choices | None = None) -> ArchGraph:
    """Return the architecture in a model file, or in a model folder of the transformers package.

    Raises:
        SpecError: If the file cannot be understood. The message names file, line and key.
        TraceError: If the file names a Python model that cannot be captured.
        GraphError: If a folder does not contain a transformers model.
    """
    if is_transformers(Path(path)):
        return load_folder(path)[0]
    return load_model(read_document(path), choices)[0]


def load_folder(path: str | os.PathLike[str]) -> tuple[ArchGraph, LazyState]:
    """Return the graph of a transformers folder and its weights, which are read lazily.

    The model is built from a class of the transformers package, so no code in the folder is run.

    Raises:
        GraphError: If the folder does not contain a model.
        TraceError: If its class cannot be captured.
    """
    # Tracing loads torch.export: most files do not need it.
    from archgraph.foreign.transformers_folder import from_transformers

    graph, state = from_transformers(path)
    _say_notes(graph, str(path))
    return graph, state


def load_model(
    document: Document, choices: Choices | None = None
) -> tuple[ArchGraph, dict[str, torch.Tensor] | None]:
    """Return the graph of a model file, and its weights if it has any.

    Raises:
        SpecError: If the file cannot be understood. The message names file, line and key.
        TraceError: If the file names a Python model that cannot be captured.
    """
    graph, state = _read(document, choices)
    if state is None and is_saved(Path(document.file).parent):
        state = saved_weights(graph, Path(document.file).parent)
    _say_notes(graph, document.file)
    return graph, state


def _say_notes(graph: ArchGraph, file: str) -> None:
    for note in graph.notes:
        NOTES.info("%s: %s", file, note)


def _read(
    document: Document, choices: Choices | None
) -> tuple[ArchGraph, dict[str, torch.Tensor] | None]:
    data = document.data
    if not isinstance(data, dict):
        document.fail((), "is not a model", expected="keys and values")
    if is_onnx(document.file):
        # Importing its packages takes a second, and they are an optional extra.
        from archgraph.onnx.read import read_onnx

        return read_onnx(document.file, choices)
    if "onnx" in data:
        from archgraph.onnx.read import read_onnx

        model = document.validate(OnnxModel)
        file = absolute_path(model.onnx, Path(document.file).parent)
        return read_onnx(file, {**model.sizes, **(choices or {})})
    # The other two forms have `sections`, too: lists of the names of blocks.
    if "sections" in data and "python" not in data and "nodes" not in data:
        try:
            return _lowered(document, tuple((choices or {}).items())), None
        except GraphError as error:  # a law about the whole graph, which a single step cannot break
            message = f"{error.where}: {error.message}" if error.where else error.message
            document.fail(("sections",), message, **error.facts)
    if choices:
        raise SpecError("has no choices", where=document.file, found=", ".join(choices))
    if "python" in data:
        # Tracing loads torch.export, which takes longer than all other files together.
        from archgraph.language.python import capture

        return capture(document, document.validate(PythonModel))
    if (
        "nodes" not in data
    ):  # neither form: this validation raises an error that names the missing keys
        document.validate(AuthoredModel)
    return _flat(document), None


def _flat(document: Document) -> ArchGraph:
    """Return a graph that is written node by node, checked."""
    graph = flat.read_flat(document)
    try:
        check(graph)
    except GraphError as error:
        where = error.where or "graph"
        line = f"{document.file}:{flat.line_of(document, where)}: {where}"
        raise SpecError(error.message, where=line, **error.facts) from error
    return graph


# Cached, since families and experiments read the same model many times, and results that were
# computed from a graph stay with the graph.
@functools.lru_cache(maxsize=512)
def _lowered(document: Document, choices: tuple[tuple[str, int | str], ...]) -> ArchGraph:
    return lower(document, document.validate(AuthoredModel), dict(choices))
