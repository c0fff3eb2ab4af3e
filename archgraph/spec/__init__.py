"""What a person writes: models, families and experiments as YAML."""

from __future__ import annotations

import os

from archgraph.ir import ArchGraph
from archgraph.spec import flat
from archgraph.spec.document import read_document, write_atomically


def save(graph: ArchGraph, path: str | os.PathLike[str]) -> None:
    """Write a graph as flat YAML, whole or not at all.

    Args:
        graph: Any graph.
        path: Where to; an existing file is replaced.

    Raises:
        GraphError: If a name in the graph does not survive being written.
        SpecError: If the file cannot be written.
    """
    write_atomically(path, flat.dump(graph))


def load(path: str | os.PathLike[str]) -> ArchGraph:
    """Read a model file.

    Raises:
        SpecError: If it cannot be understood, with file, line and key.
    """
    return flat.read(read_document(path))
