"""Model files of any form as graphs, and graphs as files."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archgraph.errors import GraphError, SpecError
from archgraph.files import write
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph
from archgraph.language import flat
from archgraph.language.consent import allowed
from archgraph.language.document import Document
from archgraph.language.lowering import lower
from archgraph.language.model import AuthoredModel, PythonModel
from archgraph.language.short_forms import written_out
from archgraph.language.yaml import is_onnx, read_document
from archgraph.ops.check import check

if TYPE_CHECKING:
    import torch

# Hears the notes of each graph that is read; the command line prints them.
NOTES = logging.getLogger("archgraph.notes")

# Endings of files that hold weights.
WEIGHTS = (".onnx", ".safetensors", ".pt", ".pt2", ".pth")


@takes_graph
def save(graph: ArchGraph, path: str | os.PathLike[str]) -> None:
    r"""Write a graph as flat YAML, whole or not at all, with the folders it needs.

    The law: ``load(path) == graph`` afterwards.

    Args:
        graph: Any graph.
        path: The file to write; an existing one is replaced.

    Raises:
        GraphError: If a name in the graph does not survive being written.
        SpecError: If the file's ending stands for weights.
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
    check_ending(path)
    write(path, flat.dump(graph))


def check_ending(path: str | os.PathLike[str]) -> None:
    """Check that a file for an architecture does not end as one of weights.

    Raises:
        SpecError: If it does.
    """
    if Path(path).suffix.lower() in WEIGHTS:
        message = "an architecture is written as YAML, without weights"
        hint = "for weights: ag.export, or `archgraph export`, see docs/onnx.md"
        raise SpecError(message, where=str(path), expected="a .yaml file", hint=hint)


def load(
    path: str | os.PathLike[str], choices: Mapping[str, int] | None = None, *, python: bool = False
) -> Any:  # not a union, of which each caller would have to exclude one half
    """Read a model file of any form.

    Args:
        path: The file: YAML or ONNX.
        choices: Values of what the model's ``choices`` leave open, e.g. ``{"stage1.depth": 4}``.
        python: Consent to run the Python code that the file names.

    Returns:
        The graph; of an ONNX file, which has weights, what :func:`archgraph.trace` returns:
        ``graph, state = load("net.onnx")``.

    Raises:
        SpecError: If it cannot be understood, or names Python code without your consent, with file,
            line and key.
        TraceError: If it names a Python model that cannot be captured.
    """
    with allowed(python):
        graph, state = load_model(read_document(path), choices)
    if not is_onnx(path) or state is None:
        return graph
    from archgraph.capture.trace import Traced

    return Traced(graph, state)


def load_graph(path: str | os.PathLike[str], choices: Mapping[str, int] | None = None) -> ArchGraph:
    """Return the architecture in a model file of any form.

    Raises:
        SpecError: If it cannot be understood, with file, line and key.
        TraceError: If it names a Python model that cannot be captured.
    """
    return load_model(read_document(path), choices)[0]


def load_model(
    document: Document, choices: Mapping[str, int] | None = None
) -> tuple[ArchGraph, dict[str, torch.Tensor] | None]:
    """Return the graph of a model file, and its weights if it has any.

    Raises:
        SpecError: If it cannot be understood, with file, line and key.
        TraceError: If it names a Python model that cannot be captured.
    """
    graph, state = _read(document, choices)
    for note in graph.notes:
        NOTES.info("%s: %s", document.file, note)
    return graph, state


def _read(
    document: Document, choices: Mapping[str, int] | None
) -> tuple[ArchGraph, dict[str, torch.Tensor] | None]:
    document = written_out(document)
    data = document.data
    if not isinstance(data, dict):
        document.fail((), "is not a model", expected="keys and values")
    if is_onnx(document.file):
        # Its packages take a second, and are an extra.
        from archgraph.onnx.read import read_onnx

        return read_onnx(document.file, choices)
    # The other two forms have `sections`, too: lists of the names of blocks.
    if "sections" in data and "python" not in data and "nodes" not in data:
        try:
            return _lowered(document, tuple((choices or {}).items())), None
        except GraphError as error:  # a law about the whole, which no step could break alone
            message = f"{error.where}: {error.message}" if error.where else error.message
            document.fail(("sections",), message, **error.facts)
    if choices:
        raise SpecError("has no choices", where=document.file, found=", ".join(choices))
    if "python" in data:
        # Tracing loads torch.export, which takes longer than all other files together.
        from archgraph.language.python import capture

        return capture(document, document.validate(PythonModel))
    if "nodes" not in data:  # neither form: the commoner one says what is missing
        document.validate(AuthoredModel)
    graph = flat.read_flat(document)
    try:
        check(graph)
    except GraphError as error:
        where = error.where or "graph"
        line = f"{document.file}:{flat.line_of(document, where)}: {where}"
        raise SpecError(error.message, where=line, **error.facts) from error
    return graph, None


# A family names its model once for each client, many experiments name one family, and a check reads
# many families: what was computed of a graph stays with it.
@functools.lru_cache(maxsize=512)
def _lowered(document: Document, choices: tuple[tuple[str, int], ...]) -> ArchGraph:
    return lower(document, document.validate(AuthoredModel), dict(choices))
