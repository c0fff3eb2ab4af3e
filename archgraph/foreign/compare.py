"""Whether a module computes what a graph computes: asked with random weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from archgraph.graph.ir import ArchGraph
from archgraph.module.build import build, state_dict
from archgraph.rewrites.laws import random_inputs, random_state

# Of the largest value: far above the rounding of single precision, far below another function.
TOLERANCE = 1e-4


def same_function(graph: ArchGraph, module: nn.Module, names: Mapping[str, str]) -> bool:
    """Return whether a module computes what a graph computes, in eval mode.

    Weights of natural scale are drawn for both: in those of a fresh network, attention is even, and
    a wrong number of heads would not show.

    Args:
        graph: The graph.
        module: The module; its weights are overwritten.
        names: Names in the module by those in the graph.
    """
    kinds = {p.name: p.dtype for p in graph.params}
    state = {
        name: value.to(getattr(torch, kinds[name])) for name, value in random_state(graph).items()
    }
    given = random_inputs(graph)
    inputs = {k: pytree.tree_map_only(Tensor, _single, v) for k, v in given.items()}
    module.load_state_dict(
        {names[k]: v for k, v in state_dict(graph, state).items() if k in names}, strict=False
    )
    with torch.no_grad():
        expected = build(graph, state).eval()(**inputs)
        actual = module.eval()(**inputs)
    if isinstance(expected, Mapping):  # a cache for the next call, say, is not part of the graph
        if not expected.keys() <= actual.keys():
            return False
        expected, actual = dict(expected), {key: actual[key] for key in expected}
    ones, others = _tensors(expected), _tensors(actual)
    return len(ones) == len(others) and all(map(_close, ones, others))


def _single(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


def _tensors(value: object) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    scale = max(float(one.abs().max()), 1e-30) if one.numel() else 1.0
    return torch.allclose(one, other.to(one.dtype), rtol=0, atol=TOLERANCE * scale)
