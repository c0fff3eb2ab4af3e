"""Captures that are kept: tracing a model takes seconds, reading what it gave does not.

Only the command line keeps them: its process has imported the code as the files have it now.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archgraph.errors import ArchGraphError, TraceWarning
from archgraph.files import write

if TYPE_CHECKING:
    import torch

    from archgraph.capture.trace import Traced
    from archgraph.graph.ir import ArchGraph

FOLDER_VARIABLE = "ARCHGRAPH_CACHE"
MOST = 256  # files; the oldest ones go
CLOSE = 1e-4  # of the largest value of a result
_SINCE: ContextVar[float | None] = ContextVar("since", default=None)


@contextlib.contextmanager
def keeping() -> Iterator[None]:
    """Inside, captures of Python models are kept, but for code that changes from here on."""
    token = _SINCE.set(time.time())
    try:
        yield
    finally:
        _SINCE.reset(token)


def captures_folder() -> Path | None:
    """Where captures are kept: ``ARCHGRAPH_CACHE``, else a cache folder; None if that is empty.

    Example:
        >>> import pytest
        >>> with pytest.MonkeyPatch.context() as patch:
        ...     patch.setenv("ARCHGRAPH_CACHE", "")
        ...     captures_folder() is None
        True
    """
    named = os.environ.get(FOLDER_VARIABLE)
    if named is not None:
        return Path(named) if named else None
    base = os.environ.get("XDG_CACHE_HOME")
    with contextlib.suppress(RuntimeError):  # nobody's home
        return (Path(base) if base else Path.home() / ".cache") / "archgraph" / "captures"
    return None


def kept(
    model: torch.nn.Module,
    inputs: Mapping[str, Any],
    way: Mapping[str, Any],
    make: Callable[[], Traced],
) -> Traced:
    """A capture that was kept of the same model, else a new one, which is then kept.

    What was kept is used only where the model computes with it what it computes itself.

    Args:
        model: The model; one that is used for nothing else, since it is called.
        inputs: Its example inputs.
        way: How it is captured.
        make: The capture.

    Raises:
        TraceError: If it cannot be captured.
    """
    since, folder = _SINCE.get(), captures_folder()
    if since is None or folder is None:
        return make()
    from archgraph.language.made_of import made_of  # with torch

    name = made_of(model, inputs, way, since)
    if name is None:
        return make()
    place = folder / f"{name}.json"
    if (found := _read(place, model, bool(way["train"]))) is not None:
        return found
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", TraceWarning)
        made = make()
    for warning in said:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if not said:
        _keep(place, made.graph)
    return made


def _keep(place: Path, graph: ArchGraph) -> None:
    """Write a graph; what cannot be written is not kept."""
    from archgraph.language import flat

    sources = {node.name: node.source for node in graph.nodes if node.source}
    try:
        write(place, json.dumps({"graph": flat.dump(graph), "sources": sources}))
    except (ArchGraphError, UnicodeError):
        return
    with contextlib.suppress(OSError):
        files = sorted(place.parent.glob("*.json"), key=lambda one: one.stat().st_mtime)
        for old in files[:-MOST]:
            old.unlink(missing_ok=True)


def _read(place: Path, model: torch.nn.Module, train: bool) -> Traced | None:
    """A capture that was kept, if it is one of this model."""
    from archgraph.capture.trace import Leaves, Traced
    from archgraph.language import flat
    from archgraph.language.yaml import parse_document
    from archgraph.ops.check import check

    try:
        stored = json.loads(place.read_text("utf-8"))
        graph = flat.read_flat(parse_document(stored["graph"], str(place)))
        check(graph)
        sources = stored["sources"]
        nodes = [dataclasses.replace(n, source=sources.get(n.name, "")) for n in graph.nodes]
    except (ArchGraphError, OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    leaves = Leaves.of(model)
    own = {dataclasses.replace(p, value=None) for p in graph.params if p.role != "constant"}
    if not own <= {*leaves.params}:
        return None
    traced = Traced(graph.replace(nodes=tuple(nodes)), leaves.state(model))
    if not _computes(traced, model, train):
        return None
    with contextlib.suppress(OSError):
        os.utime(place)
    return traced


def _computes(traced: Traced, model: torch.nn.Module, train: bool) -> bool:
    """Whether a graph computes what a model does, in training with the same random numbers."""
    import torch

    from archgraph.module.build import build
    from archgraph.rewrites.laws import difference, outputs, random_inputs

    given = random_inputs(traced.graph)
    built = build(traced.graph, traced.state)
    for training in (False, True)[: 1 + train]:
        results = []
        for one in (built, model):
            torch.manual_seed(0)
            try:
                results.append(outputs(one.train(training), given))
            except Exception:  # whatever the user's forward raises
                return False
        found, expected = results
        if len(found) != len(expected) or not difference(found, expected) < CLOSE:
            return False
    return True
