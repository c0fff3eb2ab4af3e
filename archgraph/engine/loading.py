"""Load architectures and models from files, folders and runs."""

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
) -> Any:  # not a union, since each caller would have to exclude the other types
    """Load a model from a file, a saved folder, a transformers folder, or a run.

    Args:
        path: A file (YAML or ONNX), a folder written by :func:`archgraph.save` or by transformers,
            ``RUN:NAME`` for a model of a run, or a run folder for all models of the run. ``NAME``
            is ``global`` or a kind of client, as in the table of :func:`archgraph.run`.
        choices: For a YAML file, values of the model's ``choices``, e.g. ``{"stage1.depth": 4}``.
            For an ONNX file, sizes of dimensions, e.g. ``{"batch": "open", "length": 128}``. A
            number fixes a dynamic dimension; ``"open"`` makes a fixed dimension dynamic.
        python: If True, Python code to which the model file or the run refers may be executed.

    Returns:
        For a YAML file, the graph. For files with weights (ONNX, a folder, ``RUN:NAME``), a graph
        and a state: ``graph, state = load("net.onnx")``. For a transformers folder, the result of
        :func:`archgraph.from_transformers`. For a run folder, a dict from the name of each model to
        a graph and a state. The state of a run's model includes the running statistics with which
        the model was tested.

    Raises:
        SpecError: If the file cannot be read, if it refers to Python code and ``python`` is False,
            or if the run has no model with this name. The message shows the file, line and key.
        TraceError: If the file refers to a Python model that cannot be traced.
        ArchGraphError: If a run's data is missing or its checkpoint is damaged.
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
