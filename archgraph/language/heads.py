"""Heads that a file writes as steps: what answers behind a section."""

from __future__ import annotations

from collections.abc import Mapping

from archgraph.analysis.structure import structure
from archgraph.graph.ir import ArchGraph
from archgraph.language.document import Document
from archgraph.language.loading import load_model
from archgraph.plain import Json
from archgraph.rewrites.options import UnreadSteps


def heads(asked: Json, graph: ArchGraph) -> Json:
    """Replace the lists of steps in a rewrite's options by architectures.

    The steps of an entry take what its section or block makes in the graph; all other values stay.

    Raises:
        SpecError: If a list of steps cannot be understood, or does not fit what the section makes.
        GraphError: For a section or block that does not exist; names the nearest.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU())
        >>> graph = trace(net, torch.zeros(1, 1, 5, 5)).graph
        >>> made = heads({"0": UnreadSteps(("flatten", {"linear": 2}))}, graph)
        >>> made["0"].param["head.linear.weight"].shape
        (2, 36)
    """
    if not isinstance(asked, Mapping):
        return asked
    return {
        name: _head(name, head, graph) if isinstance(head, UnreadSteps) else head
        for name, head in asked.items()
    }


def _head(name: str, steps: UnreadSteps, graph: ArchGraph) -> ArchGraph:
    end = graph.node[structure(graph).end(name)]
    model = {
        "archgraph": 1,
        "inputs": {"features": {"shape": end.shape[1:], "dtype": end.dtype}},
        "sections": ({"name": "head", "steps": steps},),
    }
    return load_model(Document(f"steps behind {name}", model, {}))[0]
