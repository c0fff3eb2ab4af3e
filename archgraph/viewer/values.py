"""What the values of weights are like: ends, mean, zeros and a histogram of every parameter."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from archgraph.graph.ir import ArchGraph
from archgraph.plain import Json
from archgraph.states import State, check_update
from archgraph.states.updates import unsummable

BINS = 24


def value_rows(graph: ArchGraph, versions: Sequence[State]) -> list[Json]:
    """Describe the values of each leaf, of all versions of a graph's weights together.

    Raises:
        RejectedUpdate: If weights do not fit the graph, or are not finite.

    Returns:
        For each leaf smallest and largest value, mean, standard deviation, share of zeros, norm,
        and counts in bins of equal width between the ends, of the finite values; None where there
        are none, or they are no numbers.
    """
    for state in versions:
        # A mask of −∞ is a constant, and is not refused.
        check_update(graph, state, fixed=unsummable(graph, state))
    return [_row([v[p.name] for v in versions if p.name in v]) for p in graph.params]


def _row(tensors: Sequence[torch.Tensor]) -> Json:
    if not tensors or tensors[0].is_complex() or tensors[0].dtype == torch.bool:
        return None
    values = torch.cat([one.detach().cpu().flatten().double() for one in tensors])
    values = values[values.isfinite()]
    if not len(values):
        return None
    low, high = float(values.min()), float(values.max())
    counts = torch.histc(values, BINS, low, high) if high > low else torch.tensor([len(values)])
    zeros = float((values == 0).double().mean())
    facts = (low, high, float(values.mean()), float(values.std(correction=0)), zeros)
    return [*map(_short, (*facts, float(values.norm()))), [int(n) for n in counts]]


def _short(value: float) -> float:
    return float(f"{value:.4g}")
