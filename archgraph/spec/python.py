"""Models written in Python: the only place where a file imports code of the user's."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch

from archgraph.errors import SpecError
from archgraph.ir import ArchGraph
from archgraph.ops.schema import torch_dtype
from archgraph.spec.document import Document
from archgraph.spec.model import PythonModel
from archgraph.trace import trace


def capture(document: Document, spec: PythonModel) -> tuple[ArchGraph, dict[str, torch.Tensor]]:
    """Import, construct and trace a model; the caller's random numbers stay as they were.

    Raises:
        SpecError: If it cannot be imported or constructed.
        TraceError: If it cannot be captured.
    """
    module_name, _, path = spec.python.partition(":")
    where = document.where(("python",))
    try:
        made: Any = importlib.import_module(module_name)
        for part in path.split("."):
            made = getattr(made, part)
    except (ImportError, AttributeError) as error:
        raise SpecError("cannot be imported", where=where, found=str(error)) from error
    if not callable(made):
        raise SpecError("is not callable", where=where, found=type(made).__name__)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        try:
            model = made(**{k: _plain(v) for k, v in spec.args.items()})
        except Exception as error:  # whatever the user's constructor raises
            raise SpecError(
                "cannot be constructed", where=where, found=f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(model, torch.nn.Module):
            raise SpecError(
                "makes no model",
                where=where,
                found=type(model).__name__,
                expected="torch.nn.Module",
            )
        inputs = {
            name: torch.zeros((2, *given.shape), dtype=torch_dtype(given.dtype))
            for name, given in spec.inputs.items()
        }
        traced = trace(model, train=spec.train, name=spec.name, **inputs)
    sections = tuple(spec.sections.items())
    graph = traced.graph.replace(sections=sections) if sections else traced.graph
    return graph, traced.state


def _plain(value: Any) -> Any:
    """Sequences as lists, as YAML readers give them to everybody else."""
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return value
