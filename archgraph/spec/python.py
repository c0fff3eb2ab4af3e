"""Models written in Python: the only place where a file imports code of the user's."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import pydantic
import torch

from archgraph.errors import SpecError
from archgraph.ir import ArchGraph
from archgraph.ops.schema import torch_dtype
from archgraph.spec.document import Document, shorten
from archgraph.spec.model import Made, PythonModel
from archgraph.trace import trace


def capture(document: Document, spec: PythonModel) -> tuple[ArchGraph, dict[str, torch.Tensor]]:
    """Import, construct and trace a model; the caller's random numbers stay as they were.

    Raises:
        SpecError: If it cannot be imported or constructed.
        TraceError: If it cannot be captured.
    """
    where = document.where(("python",))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        model = _made(spec.python, spec.args, where)
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


def _made(name: str, args: Mapping[str, Any], where: str) -> Any:
    """What a callable makes of its arguments."""
    module_name, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise SpecError("cannot be imported", where=where, found=str(error)) from error
    except (Exception, SystemExit) as error:  # whatever the module runs when it is imported
        raise SpecError(
            "cannot be imported", where=where, found=f"{type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise SpecError("is not callable", where=where, found=type(found).__name__)
    given = {key: _argument(value, where) for key, value in args.items()}
    try:
        return found(**given)
    except (Exception, SystemExit) as error:  # whatever the user's constructor raises
        raise SpecError(
            "cannot be constructed", where=where, found=f"{type(error).__name__}: {error}"
        ) from error


def _argument(value: Any, where: str) -> Any:
    """An argument: a plain value, or what another callable makes, written like a model."""
    if isinstance(value, tuple | list):
        # Sequences as lists, as YAML readers give them to everybody else.
        return [_argument(v, where) for v in value]
    if isinstance(value, Mapping):
        if "python" in value:
            try:
                nested = Made.model_validate(dict(value))
            except pydantic.ValidationError as error:
                raise SpecError(
                    "is no value made in Python",
                    where=where,
                    found=shorten(value["python"]),
                    expected="python: package.module:callable, and args",
                ) from error
            return _made(nested.python, nested.args, where)
        return {k: _argument(v, where) for k, v in value.items()}
    return value
