"""Buffers that no mean can hold: causal masks of −∞, say."""

from __future__ import annotations

import functools

from archgraph.graph.ir import ArchGraph
from archgraph.ops.schema import torch_dtype
from archgraph.ops.table import statistics
from archgraph.states import State
from archgraph.states.updates import SUMMABLE


def masks(graph: ArchGraph, state: State) -> frozenset[str]:
    """Buffers whose values no mean can hold, infinite or nearly: causal masks.

    Nothing changes them, so nothing is lost where they are not merged.
    """
    return frozenset(
        name
        for name in still(graph)
        if name in state and not bool((state[name].abs() < SUMMABLE).all())
    )


@functools.lru_cache(maxsize=256)
def still(graph: ArchGraph) -> tuple[str, ...]:
    """Buffers of real numbers that forward does not write."""
    written = statistics(graph)
    buffers = (p for p in graph.params if p.role == "buffer" and p.name not in written)
    return tuple(p.name for p in buffers if torch_dtype(p.dtype).is_floating_point)
