"""Load: architectures and models, from files, folders and runs."""

from __future__ import annotations

import os
from typing import Any

from archgraph.engine.address import Address
from archgraph.language import allowed, load_model
from archgraph.language.loading import Choices, load_folder
from archgraph.language.saved import is_transformers
from archgraph.language.yaml import is_onnx, read_document


def load(
    path: str | os.PathLike[str], choices: Choices | None = None, *, python: bool = False
) -> Any:  # not a union, whose other members each caller would have to exclude
    """Read a model file of any form, a saved folder, one of transformers, or a run's models.

    Args:
        path: A file (YAML or ONNX), a folder that :func:`archgraph.save` wrote or one of
            transformers, ``RUN:NAME`` for a model of a run (a name of :func:`archgraph.run`'s
            table: ``global``, a kind of client), or a run folder for all of them.
        choices: Values of the model's ``choices``, e.g. ``{"stage1.depth": 4}``. For an ONNX file,
            numbers for open dimensions, and ``"open"`` for fixed ones: ``{"batch": "open",
            "length": 128}``.
        python: Consent to run the Python code that the file, or the run's files, name.

    Returns:
        For a YAML file the graph. For files with weights (ONNX, a folder, ``RUN:NAME``) the type of
        :func:`archgraph.trace`: ``graph, state = load("net.onnx")``; for a folder of transformers
        that of :func:`archgraph.from_transformers`. For a run folder these by name. A run's model
        has the running statistics with which it is tested.

    Raises:
        SpecError: If it cannot be understood, or names Python code without your consent, with file,
            line and key; if a run has no such model.
        TraceError: If it names a Python model that cannot be captured.
        ArchGraphError: If a run's data is gone or its checkpoint damaged.
    """
    address = Address.of(path)
    if is_transformers(address.path):
        return load_folder(address.path)
    from archgraph.capture.trace import Traced

    with allowed(python):
        if address.is_run:
            every = {
                name: Traced(graph, dict(state))
                for name, (graph, state) in address.models(tested=True).items()
            }
            return every if address.member is None else every[address.member]
        graph, state = load_model(read_document(path), choices)
    if state is None or not (is_onnx(path) or address.path.is_dir()):
        return graph
    return Traced(graph, state)
