"""Load: architectures and models, from files, folders and runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from archgraph.errors import SpecError
from archgraph.hints import unknown
from archgraph.language import allowed, load_model
from archgraph.language.loading import Choices, load_folder
from archgraph.language.saved import is_saved, is_transformers
from archgraph.language.yaml import is_onnx, read_document


def load(
    path: str | os.PathLike[str], choices: Choices | None = None, *, python: bool = False
) -> Any:  # not a union, of which each caller would have to exclude the rest
    """Read a model file of any form, a saved folder, one of transformers, or a run's models.

    Args:
        path: A file (YAML or ONNX), a folder that :func:`archgraph.save` wrote or one of
            transformers, ``RUN:NAME`` for a model of a run (a name of :func:`archgraph.run`'s
            table: ``global``, a kind of client), or a run folder for all of them.
        choices: Values of what the model's ``choices`` leave open, e.g. ``{"stage1.depth": 4}``.
            Of an ONNX file, numbers for dimensions that it leaves open, and ``"open"`` for those
            that it does not: ``{"batch": "open", "length": 128}``.
        python: Consent to run the Python code that the file, or the run's files, name.

    Returns:
        Of a YAML file the graph. Of what has weights (ONNX, a folder, ``RUN:NAME``) what
        :func:`archgraph.trace` returns: ``graph, state = load("net.onnx")``; of a folder of
        transformers what :func:`archgraph.from_transformers` returns. Of a run folder these by
        name. A run's model has the running statistics that it is tested with.

    Raises:
        SpecError: If it cannot be understood, or names Python code without your consent, with file,
            line and key; if a run has no such model.
        TraceError: If it names a Python model that cannot be captured.
        ArchGraphError: If a run's data is gone or its checkpoint damaged.
    """
    # A file whose name holds a colon is that file.
    text = os.fspath(path)
    folder, mark, name = (text, "", "") if Path(text).exists() else text.rpartition(":")
    source = Path(folder if mark else text)
    if is_transformers(source):
        return load_folder(source)
    if source.is_dir() and not is_saved(source):
        return _of_run(source, name if mark else None, python)
    with allowed(python):
        graph, state = load_model(read_document(path), choices)
    if state is None or not (is_onnx(path) or source.is_dir()):
        return graph
    from archgraph.capture.trace import Traced

    return Traced(graph, state)


def _of_run(folder: Path, name: str | None, python: bool) -> Any:
    from archgraph.capture.trace import Traced
    from archgraph.engine.trained import trained

    models = trained(folder, python=python, tested=True)
    if name is not None and name not in models:
        raise SpecError("has no such model", where=str(folder), **unknown(name, models))
    every = {key: Traced(model.graph, dict(model.state)) for key, model in models.items()}
    return every if name is None else every[name]
