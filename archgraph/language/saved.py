"""Saved folders of models: architecture, weights, and a file that identifies the folder."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archgraph.errors import RunError, SpecError, os_reason
from archgraph.graph.ir import ArchGraph
from archgraph.hints import version
from archgraph.language import flat

if TYPE_CHECKING:
    from torch import Tensor

    from archgraph.states import State

MODEL, WEIGHTS, MARK = "model.yaml", "model.safetensors", "archgraph.json"
FORMAT = 1


def is_saved(path: Path) -> bool:
    """Return whether a path is the folder of a saved model."""
    return (path / MARK).is_file() and (path / MODEL).is_file()


def is_transformers(path: Path) -> bool:
    """Return whether a path is the folder of a model of transformers."""
    return (path / "config.json").is_file() and not is_saved(path)


def weights_of(model: Any) -> State | None:
    """Return the weights of a traced model or built module; None for a graph.

    Raises:
        GraphError: If a module was not built from a graph.
    """
    state = getattr(model, "state", None)
    if isinstance(state, Mapping):
        return state
    if not callable(getattr(model, "state_dict", None)):
        return None
    from archgraph.module.build import state_of

    return state_of(model)


def save_folder(graph: ArchGraph, state: State, folder: Path) -> Path:
    """Write a model as a folder, atomically.

    Raises:
        GraphError: If the weights do not fit the graph.
        SpecError: If the folder contains other files.
        RunError: If the folder cannot be written.
    """
    from safetensors.torch import save_file

    from archgraph.module.build import state_dict

    state_dict(graph, state)  # checks that it is one
    others = {MODEL, WEIGHTS, MARK}
    if folder.exists() and not (
        folder.is_dir() and {file.name for file in folder.iterdir()} <= others
    ):
        expected = "a new folder, or one that ag.save wrote"
        raise SpecError("contains other files", where=str(folder), expected=expected)
    # Copies: safetensors refuses tensors that share memory.
    tensors = {n: state[n].detach().cpu().clone().contiguous() for n in graph.state_names}
    mark = {"archgraph": version(), "format": FORMAT, "digest": graph.digest}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".draft-{folder.name}-") as at:
            draft = Path(at) / folder.name
            draft.mkdir()
            (draft / MODEL).write_text(flat.dump(graph))
            save_file(tensors, draft / WEIGHTS, {"format": "pt"})
            (draft / MARK).write_text(json.dumps(mark, indent=1) + "\n")
            if folder.exists():
                shutil.rmtree(folder)
            draft.replace(folder)
    except OSError as error:
        reason = os_reason(error)
        raise RunError("cannot write the folder", where=str(folder), found=reason) from error
    return folder


def saved_weights(graph: ArchGraph, folder: Path) -> dict[str, Tensor]:
    """Return the weights of a saved model.

    Raises:
        SpecError: If the weights are damaged, or do not fit the architecture in the folder.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from archgraph.module.build import state_dict

    try:
        mark = json.loads((folder / MARK).read_text())
        state = load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise SpecError("is not a complete model", where=str(folder), found=error) from error
    if not isinstance(mark, dict) or mark.get("format") != FORMAT:
        other = mark.get("format") if isinstance(mark, dict) else mark
        where = str(folder / MARK)
        raise SpecError("has another format", where=where, found=other, expected=FORMAT)
    state_dict(graph, state)
    return state
