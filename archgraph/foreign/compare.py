"""Check whether a module and a graph compute the same, with random weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from archgraph.graph.ir import ArchGraph
from archgraph.module.build import build, state_dict
from archgraph.ops.schema import torch_dtype
from archgraph.rewrites.laws import random_inputs, random_state

# Relative to the largest value. Rounding errors in float32 are much smaller.
TOLERANCE = 1e-5


class FunctionComparison:
    """Compares modules with a graph by their results in eval mode, with the same random weights.

    The weights are those of :func:`archgraph.rewrites.laws.random_state`. With freshly initialised
    weights, attention is nearly uniform, so that a wrong number of heads would not be noticed.

    Args:
        graph: The graph.
        names: Dict from name in the graph to name in the module.
    """

    def __init__(self, graph: ArchGraph, names: Mapping[str, str]) -> None:
        state = {
            name: value.to(torch_dtype(graph.param[name].dtype))
            for name, value in random_state(graph).items()
        }
        self._inputs = random_inputs(graph)
        full = state_dict(graph, state)
        self._state = {new: full[name] for name, new in names.items()}
        with torch.no_grad():
            self._expected = build(graph, state).eval()(**self._inputs)

    def __call__(self, module: nn.Module) -> bool:
        """Return whether a module computes the same as the graph. Its weights are overwritten."""
        module.load_state_dict(self._state, strict=False)
        with torch.no_grad():
            actual = module.eval()(**self._inputs)
        expected = self._expected
        if isinstance(expected, Mapping):  # the graph does not return a cache
            expected, actual = dict(expected), {key: actual.get(key) for key in expected}
        ones, others = _tensors(expected), _tensors(actual)
        if isinstance(expected, Tensor):  # a wrapper may return only one of several results
            return any(_close(expected, other) for other in others)
        return len(ones) == len(others) and all(map(_close, ones, others))


def _tensors(value: object) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    scale = max(float(one.abs().max()), 1e-30) if one.numel() else 1.0
    return torch.allclose(one, other.to(one.dtype), rtol=0, atol=TOLERANCE * scale)
