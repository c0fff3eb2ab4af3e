"""archgraph: architectures as values for federated learning over different models.

One idea: an architecture is a value, its weights are a state, and a rewrite is a function from one
architecture to another that leaves behind a linear map between their states.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from archgraph.align import Alignment, align
    from archgraph.analysis.axes import axes
    from archgraph.analysis.cost import cost
    from archgraph.analysis.structure import structure
    from archgraph.build import build, initial_state, load_state, state_of
    from archgraph.carry import carry
    from archgraph.check import check
    from archgraph.engine import run
    from archgraph.errors import (
        ArchGraphError,
        AxisError,
        DataError,
        GraphError,
        RejectedUpdate,
        RewriteError,
        RunError,
        SpecError,
        TraceError,
    )
    from archgraph.family import resolve
    from archgraph.ir import ArchGraph, Node, Param
    from archgraph.join import join, meet
    from archgraph.merge import Merger
    from archgraph.rewrite.adapters import adapters
    from archgraph.rewrite.deepen import deepen
    from archgraph.rewrite.depth import graft, shallow, skip
    from archgraph.rewrite.exits import exits
    from archgraph.rewrite.scaler import scaler
    from archgraph.rewrite.split import chain, split
    from archgraph.rewrite.steps import steps
    from archgraph.rewrite.widen import narrow, widen
    from archgraph.rewrite.width import take
    from archgraph.spec import load, load_experiment, load_family, save
    from archgraph.text import parse
    from archgraph.trace import trace
    from archgraph.transfer import Rewritten, Transfer
    from archgraph.view import draw, explain

# Public name -> module that defines it; imported on first use, so that ``import archgraph`` is
# instant and torch is loaded only by what needs it.
_HOME = {
    "Alignment": "align",
    "ArchGraph": "ir",
    "ArchGraphError": "errors",
    "AxisError": "errors",
    "DataError": "errors",
    "GraphError": "errors",
    "Merger": "merge",
    "Node": "ir",
    "Param": "ir",
    "RejectedUpdate": "errors",
    "RewriteError": "errors",
    "Rewritten": "transfer",
    "RunError": "errors",
    "SpecError": "errors",
    "TraceError": "errors",
    "Transfer": "transfer",
    "adapters": "rewrite.adapters",
    "align": "align",
    "axes": "analysis.axes",
    "build": "build",
    "carry": "carry",
    "chain": "rewrite.split",
    "check": "check",
    "cost": "analysis.cost",
    "deepen": "rewrite.deepen",
    "draw": "view",
    "exits": "rewrite.exits",
    "explain": "view",
    "graft": "rewrite.depth",
    "initial_state": "build",
    "join": "join",
    "load": "spec",
    "load_experiment": "spec",
    "load_family": "spec",
    "load_state": "build",
    "meet": "join",
    "narrow": "rewrite.widen",
    "parse": "text",
    "resolve": "family",
    "run": "engine",
    "save": "spec",
    "scaler": "rewrite.scaler",
    "shallow": "rewrite.depth",
    "skip": "rewrite.depth",
    "split": "rewrite.split",
    "state_of": "build",
    "steps": "rewrite.steps",
    "structure": "analysis.structure",
    "take": "rewrite.width",
    "trace": "trace",
    "widen": "rewrite.widen",
}

__all__ = [
    "Alignment",
    "ArchGraph",
    "ArchGraphError",
    "AxisError",
    "DataError",
    "GraphError",
    "Merger",
    "Node",
    "Param",
    "RejectedUpdate",
    "RewriteError",
    "Rewritten",
    "RunError",
    "SpecError",
    "TraceError",
    "Transfer",
    "adapters",
    "align",
    "axes",
    "build",
    "carry",
    "chain",
    "check",
    "cost",
    "deepen",
    "draw",
    "exits",
    "explain",
    "graft",
    "initial_state",
    "join",
    "load",
    "load_experiment",
    "load_family",
    "load_state",
    "meet",
    "narrow",
    "parse",
    "resolve",
    "run",
    "save",
    "scaler",
    "shallow",
    "skip",
    "split",
    "state_of",
    "steps",
    "structure",
    "take",
    "trace",
    "widen",
]


class _Package(types.ModuleType):
    """A package whose public functions win over submodules of the same name.

    Importing ``archgraph.trace`` would otherwise replace the function ``archgraph.trace``.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, types.ModuleType) and name in _HOME):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'archgraph' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"archgraph.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
