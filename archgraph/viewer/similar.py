"""How alike the weights of a page's graphs are, part by part."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from archgraph.errors import GraphError
from archgraph.graph.ir import ArchGraph
from archgraph.plain import Json
from archgraph.relate.align import align
from archgraph.relate.correspond import Way
from archgraph.relate.match import match
from archgraph.states import State, Transfer
from archgraph.viewer.anatomy import Anatomy
from archgraph.viewer.overlays import Overlay, by_part


class Products(NamedTuple):
    """Of the matched values of a leaf: x · y, x · x and y · y."""

    xy: float
    xx: float
    yy: float


def similarity_overlay(
    graphs: Sequence[Anatomy],
    ways: Sequence[Way | None],
    states: Sequence[Sequence[State]],
    *,
    matched: bool = False,
) -> Overlay:
    """Compute the cosine of each graph's weights with the matching ones of the first.

    All weights of a part are one vector. The first graph has the mean over the others; a graph of
    which clients have their own versions has the mean over these.

    Args:
        graphs: The graphs of a page.
        ways: How each further graph is derived from the first; None to align it instead.
        states: Weights of each graph, of all its versions, which fit it.
        matched: Bring graphs that are not derived from the first into its order of positions.

    Raises:
        GraphError: If there are not weights of the first graph and of another one.
        RewriteError: If a graph can neither be reached from the first nor be aligned with it.
    """
    first, *others = graphs
    if not states[0] or not any(states[1:]):
        raise GraphError(
            "similarity needs weights of the first graph and of another one",
            found=f"weights of {sum(map(bool, states))} of {len(graphs)} graphs",
        )
    figures: list[dict[str, Json] | None] = []
    back = []
    for parts, way, versions in zip(others, ways, states[1:], strict=True):
        if not versions:
            figures.append(None)
            continue
        pairs = []
        for mine, theirs in itertools.product(states[0], versions):
            if way is None and matched:
                known: Way = match(first.graph, mine, theirs, other=parts.graph).transfer
            else:
                known = way or align(parts.graph, first.graph).transfer
            pairs.append(_products(mine, theirs, parts.graph, known))
        back += [by_mine for by_mine, _ in pairs]
        figures.append(_mean_cosines(parts, [by_theirs for _, by_theirs in pairs]))
    figures.insert(0, _mean_cosines(first, back))
    # The colours begin at 0, unless some part points the other way.
    negative = any(value < 0 for one in figures if one for value in _values(one))
    name = "matched similarity" if matched else "similarity of weights"
    return Overlay(name, "scale", -float(negative), 1.0, tuple(figures))


def _products(
    mine: State, theirs: State, graph: ArchGraph, way: Way
) -> tuple[dict[str, Products], dict[str, Products]]:
    """Return the products by leaf of the first graph, and by leaf of the other one."""
    leaves = {param.name for param in graph.params if param.role == "parameter"}
    full, names, transfer = _readable_state(mine, way)
    transfer = transfer.only(leaves)
    by_mine: dict[str, Products] = {}
    by_theirs: dict[str, Products] = {}
    for name, value in transfer.pull(full, copy=False, partial=True).items():
        source = transfer.entries[name].source
        if source not in names:
            continue
        # Products in double precision on one device: they are summed over all leaves of a part.
        x, y = value.double().flatten().cpu(), theirs[name].double().flatten().cpu()
        matched = ~x.isnan()
        x, y = x[matched], y[matched]
        new = Products(float(x @ y), float(x @ x), float(y @ y))
        by_theirs[name] = new
        leaf = names[source]
        # Several leaves may come from one of the first graph: copied blocks.
        old = by_mine.get(leaf, Products(0.0, 0.0, 0.0))
        by_mine[leaf] = Products(*(a + b for a, b in zip(old, new, strict=True)))
    return by_mine, by_theirs


def _readable_state(mine: State, way: Way) -> tuple[State, dict[str, str], Transfer]:
    """Return a state that the transfer can read; NaN where the first graph lacks an entry."""
    if isinstance(way, Transfer):
        return dict(mine), {name: name for name in mine}, way
    # Both are derived from a third graph: the state goes back to that one first.
    into, transfer = way
    sums, coverage = into.push(mine)
    names = {e.source: name for name, e in into.entries.items() if e.source is not None}
    full = {
        name: torch.where(many > 0, sums[name] / many, torch.nan)
        for name in names
        if sums[name].is_floating_point() and (many := coverage[name]) is not None
    }
    return full, names, transfer


def _mean_cosines(parts: Anatomy, versions: Sequence[Mapping[str, Products]]) -> dict[str, Json]:
    """Average the cosine of each part."""

    def mean(nodes: Sequence[str]) -> float | None:
        leaves = dict.fromkeys(k for name in nodes for k in parts.graph.node[name].leaves())
        values = [_cosine([one[k] for k in leaves if k in one]) for one in versions]
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if known else None

    return by_part(parts, mean)


def _cosine(products: Sequence[Products]) -> float | None:
    """Compute the cosine over all values; None without values, or if one side is zero."""
    xy, xx, yy = (sum(column) for column in zip(*products, strict=True)) if products else (0, 0, 0)
    # Rounding may lead beyond 1.
    return max(-1.0, min(1.0, xy / math.sqrt(xx * yy))) if xx and yy else None


def _values(columns: Mapping[str, Json]) -> Iterator[float]:
    for column in columns.values():
        yield from (v for v in (column if isinstance(column, list) else [column]) if v is not None)
