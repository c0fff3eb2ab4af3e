"""Values that colour the parts of a page's graphs, such as importance scores."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from archgraph.analysis.structure import structure
from archgraph.display.collect import graph_facts
from archgraph.errors import GraphError
from archgraph.hints import unknown
from archgraph.plain import Json
from archgraph.states.importance import Importance
from archgraph.viewer.anatomy import Anatomy

# One number for an operator, axis, parameter or buffer, or one number for each position.
PartNumbers: TypeAlias = "float | Sequence[float] | Tensor"


@dataclass(frozen=True)
class Overlay:
    """A value for each part of each graph, which the page shows as the colour of the part.

    Attributes:
        name: Name of the value.
        low: Lower end of the colour scale.
        high: Upper end of the colour scale.
        figures: For each graph of the page, the result of :func:`by_part`; None for a graph without
            values.
    """

    name: str
    low: float
    high: float
    figures: tuple[dict[str, Json] | None, ...]


def by_part(parts: Anatomy, of: Callable[[Sequence[str]], Json]) -> dict[str, Json]:
    """Apply a function of operators to the whole graph, and to each section, block and operator."""
    # The page can add up costs of operators, but it cannot add up means.
    sections = [[n for _, nodes in blocks for n in nodes] for _, blocks in parts.sections]
    return {
        "whole": of(parts.operators),
        "sections": [of(nodes) for nodes in sections],
        "blocks": [of(nodes) for _, nodes in parts.blocks],
        "folds": [of([n for nodes in fold.nodes for n in nodes]) for fold in parts.folds],
        "boxes": [of(box.nodes) for box in parts.scene.boxes],
        "operators": [of((name,)) for name in parts.operators],
    }


def importance_overlay(
    graphs: Sequence[Anatomy], numbers_by_name: Mapping[str, PartNumbers]
) -> Overlay:
    """Build the overlay of importance.

    The value of a part is the mean over the part's operators and over the axes, parameters and
    buffers that they use.

    Args:
        graphs: The graphs of a page.
        numbers_by_name: Dict from the name of a parameter, buffer, axis or operator to a number, or
            to one number for each position.

    Raises:
        GraphError: If the dict is empty, a name does not occur in any graph, a number is not
            finite, or the count of numbers differs from the number of positions.
    """
    sizes = _sizes(graphs)
    values = {name: _mean(name, numbers, sizes) for name, numbers in numbers_by_name.items()}
    if not values:
        raise GraphError("importance is empty", expected="a dict from names to numbers")
    # All graphs of the page share one scale, which includes zero.
    figures = tuple(_means(parts, values) for parts in graphs)
    low, high = min(values.values()), max(values.values())
    return Overlay("importance", min(low, 0.0), high, figures)


def block_overlay(graphs: Sequence[Anatomy], scores: Importance) -> Overlay:
    """Build the overlay of block scores; the value of a part is the mean over its blocks.

    Args:
        graphs: The graphs of a page.
        scores: Scores of blocks. Blocks that a graph does not have are ignored.
    """

    def columns(parts: Anatomy) -> dict[str, Json]:
        block_of = {
            node: block.name
            for block in structure(parts.graph).blocks
            if block.name in scores.blocks
            for node in block.nodes
        }

        def mean(nodes: Sequence[str]) -> float | None:
            names = dict.fromkeys(block_of[node] for node in nodes if node in block_of)
            return statistics.fmean(scores.blocks[name] for name in names) if names else None

        return by_part(parts, mean)

    low, high = min(scores.blocks.values()), max(scores.blocks.values())
    return Overlay("influence of blocks", min(low, 0.0), high, tuple(map(columns, graphs)))


def _sizes(graphs: Iterable[Anatomy]) -> dict[str, set[int]]:
    """Return a dict from each name to its numbers of positions in the graphs of the page."""
    sizes: dict[str, set[int]] = {}
    for graph in (parts.graph for parts in graphs):
        about = graph_facts(graph)
        for name in about.met:
            sizes.setdefault(name, set()).add(1)
        for axis in about.axes.values():
            sizes.setdefault(axis.name, set()).add(axis.size)
        for param in graph.params:
            sizes.setdefault(param.name, set()).add(math.prod(param.shape))
    return sizes


def _mean(name: str, numbers: PartNumbers, sizes: Mapping[str, set[int]]) -> float:
    """Return the mean of the numbers for a name; raise an error if they are invalid."""
    if name not in sizes:
        advice = unknown(name, sizes)
        raise GraphError("no such leaf, axis or operator", where="importance", **advice)
    try:
        values = torch.as_tensor(numbers, dtype=torch.float64).detach()
    except (TypeError, ValueError, RuntimeError):  # not numbers
        values = torch.empty(0)
    if values.numel() not in {1, *sizes[name]} or not values.isfinite().all():
        many = sorted({1, *sizes[name]})
        raise GraphError(
            "is not a valid importance",
            where=f"importance of {name}",
            found=str(numbers)[:60],
            expected=f"finite numbers, {' or '.join(map(str, many))} of them",
        )
    return float(values.mean())


def _means(parts: Anatomy, values: Mapping[str, float]) -> dict[str, Json]:
    """Return the mean value of each part, over everything that its operators use."""
    inside = {
        name: [k for k in (name, *parts.graph.node[name].leaves(), *axes) if k in values]
        for name, axes in graph_facts(parts.graph).met.items()
    }

    def mean(nodes: Sequence[str]) -> float | None:
        # A parameter or an axis that several operators use counts once.
        names = dict.fromkeys(k for name in nodes for k in inside[name])
        return statistics.fmean(values[k] for k in names) if names else None

    return by_part(parts, mean)
