r"""How alike blocks are, and how far the scales of models lie apart (FedFA, appendices B.3 and F).

A convolution is a set of filters ``[out]``, a filter a set of weight maps ``[in]`` with the values
of a kernel. Neither set has an order that means anything, so two layers are compared by matching:

- ``r_{k,l}^{i,j}``: Pearson correlation of map k of filter i with map l of filter j;
- ``r̂^{i,j}``: mean over the maps of both filters, matched one to one;
- similarity: mean of ``r̂`` over the filters of both layers, matched one to one.

What independent random weights reach depends on how many there are to choose from, and is far from
zero: see :func:`chance`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from archgraph.analysis.cost import cost
from archgraph.analysis.structure import structure
from archgraph.errors import GraphError
from archgraph.graph.ir import ArchGraph, Leaf
from archgraph.ops.table import row
from archgraph.states import State

Matching = Literal["greedy", "assignment"]
# Correlations in memory at a time.
ROOM = 1 << 24


class Weight(NamedTuple):
    """A weight that a layer multiplies with.

    Attributes:
        leaf: Its name.
        order: Dimensions in the order out, in, kernel.
    """

    leaf: str
    order: tuple[int, ...]

    def of(self, state: State) -> Tensor:
        """Its values as ``[out, in, kernel]``; a kernel of one has one value."""
        value = state[self.leaf].detach().permute(self.order).to("cpu", torch.float32)
        return value.reshape(*value.shape[:2], -1)


def weights(graph: ArchGraph, nodes: Sequence[str] | None = None) -> tuple[Weight, ...]:
    """Return the weights of layers in topological order, each once.

    Args:
        graph: The architecture.
        nodes: Only of these operators.
    """
    by_leaf: dict[str, Weight] = {}
    chosen = graph.nodes if nodes is None else [graph.node[name] for name in nodes]
    for node in chosen:
        facts = row(node.op)
        for argument, sides in facts.sides.items() if facts.weighted else ():
            leaf = node.arg(argument)
            if isinstance(leaf, Leaf) and {"out", "in"} <= set(sides):
                param = graph.param[leaf.name]
                # Transposed convolutions and `matmul` have them the other way round.
                first = [sides.index("out"), sides.index("in")]
                rest = [d for d in range(len(param.shape)) if d not in first]
                if len(param.shape) >= 2 and param.role != "constant":
                    by_leaf.setdefault(leaf.name, Weight(leaf.name, (*first, *rest)))
    return tuple(by_leaf.values())


# ---------------------------------------------------------------- similarity


@torch.no_grad()
def similarity(
    a: Tensor,
    b: Tensor,
    *,
    matching: Matching = "greedy",
    filters: int | None = 32,
) -> float:
    """Compute the mean correlation of two layers' weight maps, matched one to one.

    Where kernels have one value (linear layers, pointwise convolutions) a map has nothing to
    correlate; then each filter is one map over its inputs, in their order. A map whose values are
    all equal correlates with nothing.

    Args:
        a: Weights ``[out, in, kernel]``.
        b: Weights of the same kernel; the smaller set is matched into the larger one.
        matching: ``greedy``: row by row, the highest that is left (as published, and what the
            published figures of untrained networks fit); ``assignment``: the best matching of all.
        filters: Of a layer with more filters, only this many are compared: drawn at random, the
            same in both layers. None compares all. Maps are never left out.

    Raises:
        GraphError: If the kernels differ.

    Example:
        >>> a = torch.randn(8, 6, 9, generator=torch.Generator().manual_seed(0))
        >>> shuffled = a[torch.randperm(8)][:, torch.randperm(6)]
        >>> round(similarity(a, shuffled), 6)
        1.0
    """
    if a.shape[2] == b.shape[2] == 1:
        a, b = a.transpose(1, 2), b.transpose(1, 2)
    if a.shape[2] != b.shape[2]:
        sizes = f"{a.shape[2]} and {b.shape[2]} values"
        raise GraphError(f"kernels of different sizes cannot be compared: {sizes}")
    a, b = _standard(_drawn(a, filters)), _standard(_drawn(b, filters))
    matched = torch.empty(len(a), len(b))  # r̂
    # All correlations of two wide layers do not fit into memory: some filters of `b` at a time.
    step = max(ROOM // (a.shape[1] * b.shape[1]), 1)
    for i, one in enumerate(a):
        for start in range(0, len(b), step):
            part = b[start : start + step]
            # r: [map of `one`, filter of `part`, map of `part`]
            table = (one @ part.reshape(-1, part.shape[2]).T).view(len(one), *part.shape[:2])
            matched[i, start : start + step] = _match(table, matching)
    return float(_match(matched[:, None], matching))


def _drawn(weight: Tensor, filters: int | None) -> Tensor:
    if filters is None or len(weight) <= filters:
        return weight
    # One seed for all: layers of one size are compared at the same filters.
    order = torch.randperm(len(weight), generator=torch.Generator().manual_seed(0))
    return weight[order[:filters].sort().values]


def _standard(maps: Tensor) -> Tensor:
    """Standardise maps to mean zero and length one: their products are correlations."""
    centred = maps - maps.mean(2, keepdim=True)
    return centred / centred.norm(dim=2, keepdim=True).clamp_min(1e-12)


def _match(table: Tensor, matching: Matching) -> Tensor:
    """Return the mean of the matched values of each table; ``[row, table, column]``."""
    # The smaller set is matched into the larger one: every row finds a column.
    if table.shape[0] > table.shape[2]:
        table = table.transpose(0, 2).contiguous()
    if matching == "assignment":
        from scipy.optimize import linear_sum_assignment  # 0.2 s, for one option

        tables = table.transpose(0, 1).numpy()
        return torch.tensor(
            [float(t[linear_sum_assignment(t, maximize=True)].mean()) for t in tables]
        )
    barred = torch.zeros(table.shape[1:])  # -inf at columns that have a row
    total = torch.zeros(table.shape[1])
    for line in table:
        best, at = (line + barred).max(1)
        total += best
        barred.scatter_(1, at[:, None], -math.inf)
    return total / len(table)


@functools.lru_cache(maxsize=256)
def chance(
    a: tuple[int, ...],
    b: tuple[int, ...],
    matching: Matching = "greedy",
    filters: int | None = 32,
) -> float:
    """Compute the similarity of independent uniform weights of shapes ``(out, in, kernel)``.

    Layers start so.

    Example:
        >>> 0.63 < chance((64, 64, 9), (64, 64, 9)) < 0.67
        True
    """
    draw = torch.Generator().manual_seed(0)
    one, other = (torch.rand(shape, generator=draw) - 0.5 for shape in (a, b))
    return similarity(one, other, matching=matching, filters=filters)


@dataclass(frozen=True)
class SectionSimilarity:
    """Similarity of the blocks of one section.

    Attributes:
        section: Name of the section.
        rows: Blocks of the one model that have something to be compared with.
        columns: Those of the other.
        values: By row and column; None where two blocks have different layers, or are one.
        chance: Mean over the same pairs of what independent weights reach.
        layers: How many layers of each pair were compared, at most.
    """

    section: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    chance: float
    layers: int


def block_similarity(
    graph: ArchGraph,
    state: State,
    other: tuple[ArchGraph, State] | None = None,
    *,
    matching: Matching = "greedy",
    filters: int | None = 32,
    sections: Sequence[str] = (),
) -> tuple[SectionSimilarity, ...]:
    """Compute the similarity of blocks of the same section, within a model or between two.

    Two blocks are compared where they have as many layers with equal kernels and with inputs and
    outputs in the same proportion; the mean is over the layers with kernels, if any, else over all.
    (The first block of a section mostly has fewer inputs: it is compared with no other one.)

    Args:
        graph: The architecture.
        state: Its weights.
        other: Another model with weights. Default: the blocks are compared with one another.
        matching: See :func:`similarity`.
        filters: See :func:`similarity`.
        sections: Only these; by default all with at least two blocks to compare.

    Raises:
        GraphError: If there is no such section; names the nearest.
    """
    for name in sections:
        structure(graph).section(name)  # refuses an unknown one
    theirs, weights_of = other or (graph, state)
    compared = []
    for section in structure(graph).sections:
        if sections and section.name not in sections:
            continue
        opposite = [s for s in structure(theirs).sections if s.name == section.name]
        rows = {b.name: _kernels(graph, b.nodes, state) for b in section.blocks}
        columns = {
            b.name: _kernels(theirs, b.nodes, weights_of) for s in opposite for b in s.blocks
        }
        pairs: dict[tuple[str, str], float] = {}
        expected: list[float] = []
        most = 0
        for i, (a, ours) in enumerate(rows.items()):
            for j, (b, others) in enumerate(columns.items()):
                # Within a model a pair is compared once, and no block with itself.
                if not _alike(ours, others) or (other is None and i >= j):
                    continue
                layers = list(zip(ours, others, strict=True))
                each = [similarity(x, y, matching=matching, filters=filters) for x, y in layers]
                pairs[a, b] = sum(each) / len(each)
                if other is None:
                    pairs[b, a] = pairs[a, b]
                expected += [chance(x.shape, y.shape, matching, filters) for x, y in layers]
                most = max(most, len(each))
        if pairs:
            above = tuple(a for a in rows if any(a == pair[0] for pair in pairs))
            beside = tuple(b for b in columns if any(b == pair[1] for pair in pairs))
            values = tuple(tuple(pairs.get((a, b)) for b in beside) for a in above)
            mean = sum(expected) / len(expected)
            compared.append(SectionSimilarity(section.name, above, beside, values, mean, most))
    return tuple(compared)


def _alike(ours: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Return whether layers have equal kernels, and inputs and outputs in one proportion."""
    return len(ours) == len(others) > 0 and all(
        a.shape[2] == b.shape[2] and len(a) * b.shape[1] == len(b) * a.shape[1]
        for a, b in zip(ours, others, strict=True)
    )


def _kernels(graph: ArchGraph, nodes: Sequence[str], state: State) -> list[Tensor]:
    """Return the weights of a block that have kernels, else all."""
    values = [weight.of(state) for weight in weights(graph, nodes)]
    return [w for w in values if w.shape[2] > 1] or values


# ---------------------------------------------------------------- scales


class Scale(NamedTuple):
    """A layer of a model beside that of the baseline, on the positions that both have.

    Attributes:
        magnitude: Mean over the weight maps of ``‖M‖₁``.
        ratio: That, over the baseline's.
        distance: Mean over the weight maps of ``‖M − M_baseline‖₁``.
    """

    magnitude: float
    ratio: float
    distance: float


@dataclass(frozen=True)
class ScaleComparison:
    """Scales of several models' layers.

    Attributes:
        baseline: Name of the model that the others are compared with.
        layers: Weights of the baseline, in order.
        magnitudes: Mean over each layer's weight maps of ``‖M‖₁`` in the baseline.
        models: By name of the model, by layer; layers that the model lacks are absent.
    """

    baseline: str
    layers: tuple[str, ...]
    magnitudes: Mapping[str, float]
    models: Mapping[str, Mapping[str, Scale]]


def scale_variation(
    models: Mapping[str, tuple[ArchGraph, State]], baseline: str | None = None
) -> ScaleComparison:
    """Compare average magnitude and distance of layers of models, on their common prefix.

    Layers go by the name of their weight; both are cut to the first filters and the first maps
    that both have.

    Args:
        models: Architectures with weights, by name.
        baseline: What the others are compared with. Default: the model with the fewest parameters.

    Raises:
        GraphError: If there are fewer than two models, or none of the baseline's name.
    """
    if len(models) < 2:
        raise GraphError(f"needs two models to compare, not {len(models)}")
    if baseline is None:
        baseline = min(models, key=lambda name: cost(models[name][0]).parameters)
    if baseline not in models:
        raise GraphError(f"no model {baseline} among {', '.join(models)}", where="baseline")
    graph, state = models[baseline]
    base = {w.leaf: w.of(state) for w in weights(graph)}
    magnitudes = {leaf: magnitude(weight) for leaf, weight in base.items()}
    compared = {
        name: dict(_beside(base, model)) for name, model in models.items() if name != baseline
    }
    return ScaleComparison(baseline, tuple(base), magnitudes, compared)


def _beside(base: State, model: tuple[ArchGraph, State]) -> Iterator[tuple[str, Scale]]:
    graph, state = model
    for weight in weights(graph):
        if weight.leaf not in base:
            continue
        theirs, ours = weight.of(state), base[weight.leaf]
        if theirs.shape[2] == ours.shape[2]:
            theirs, ours = on_common_prefix(theirs, ours)
            after, before = magnitude(theirs), magnitude(ours)
            ratio = after / before if before else math.inf if after else 1.0  # 0 / 0: equal
            yield weight.leaf, Scale(after, ratio, magnitude(theirs - ours))


def on_common_prefix(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Cut two weights ``[out, in, kernel]`` to the first filters and maps that both have."""
    both = tuple(slice(min(x, y)) for x, y in zip(a.shape, b.shape, strict=True))
    return a[both], b[both]


def magnitude(weight: Tensor) -> float:
    """Compute the mean L1 norm of the weight maps ``[out, in, kernel]``.

    >>> magnitude(torch.tensor([[[1.0, -2.0]], [[0.0, 5.0]]]))
    4.0
    """
    return float(weight.abs().sum(2, dtype=torch.float64).mean())
