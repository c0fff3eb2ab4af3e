"""Match the positions (indices along each axis) of two separately trained networks."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from archgraph.analysis.axes import axes
from archgraph.errors import RewriteError
from archgraph.graph.argument import GraphLike, graph_of, takes_graph
from archgraph.graph.ir import ArchGraph
from archgraph.hints import optional_module, unknown
from archgraph.ops.constants import constant_tensor
from archgraph.rewrites.take import take
from archgraph.states import State, Transfer
from archgraph.states.pieces import NamedPiece, pieces
from archgraph.states.state import first_difference, signature
from archgraph.states.updates import check_update
from archgraph.tables import Table

Order: TypeAlias = npt.NDArray[np.int64]
Pair: TypeAlias = "tuple[Tensor, Tensor, tuple[str | None, ...]]"


@dataclass(frozen=True, repr=False)
class PositionMatch:
    """Correspondence between the positions of two networks.

    Attributes:
        positions: Dict from axis to an array of positions. (A position is an index along an axis,
            such as a channel.) Item ``i`` of the array is the position of the first network that
            matches position ``i`` of the second network.
        transfer: Transfer from states of the first network to states of the second. Pass it to
            ``Merger.add`` to average the second network with the first.
        order: Transfer that sorts the positions of the second network in the order of the first
            network. The states ``b`` and ``order.pull(b)`` give the same function.
        before: Cosine similarity between the weights of the two networks before matching.
        after: Cosine similarity between the weights of the two networks after matching.
        by_axis: Dict from axis to a pair ``(before, after)``: the cosine similarities, before and
            after matching, of the weights that have this axis.
        equal: Whether reordering makes the weights of the second network exactly equal to those of
            the first network, or to a part of the first network.
    """

    positions: Mapping[str, Order]
    transfer: Transfer
    order: Transfer
    before: float
    after: float
    by_axis: Mapping[str, tuple[float, float]]
    equal: bool

    @functools.cached_property
    def moved(self) -> Mapping[str, int]:
        """Dict from axis to the number of positions whose index changes."""
        return {
            name: int((index != np.arange(len(index))).sum())
            for name, index in self.positions.items()
        }

    def __repr__(self) -> str:
        total = sum(map(len, self.positions.values()))
        moved = f"{sum(self.moved.values())} of {total} positions"
        return f"<Match: {moved} move; similarity {self.before:.3f} → {self.after:.3f}>"

    def table(self) -> Table:
        """Return a table of the moved positions and the similarity of weights for each axis."""
        rows = tuple(
            (
                name,
                str(len(self.positions[name])),
                str(moved),
                *(f"{cosine:.3f}" for cosine in self.by_axis[name]),
            )
            for name, moved in self.moved.items()
        )
        columns = ("axis", "positions", "move", "similarity", "in one order")
        note = "after matching, all weights are equal" if self.equal else ""
        right = frozenset({1, 2, 3, 4})
        return Table(repr(self).strip("<>"), columns, rows, right, note=note)

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


@takes_graph
def match(
    graph: ArchGraph,
    a: State,
    b: State,
    *,
    other: GraphLike | None = None,
    seed: int = 0,
) -> PositionMatch:
    """Reorder the channels of a network so that its weights are similar to another network's.

    The second network is reordered to match the first. An axis is a set of dimensions that are
    permuted together, such as the output channels of a layer and the input channels of the next
    layer. An axis is free if its positions (such as channels) can be permuted without changing what
    the network computes. The algorithm is Algorithm 1 of Ainsworth et al., *Git Re-Basin*, ICLR
    2023, but permutes free axes instead of layers. It therefore also supports heads, groups, gates
    of recurrent layers and concatenations.

    1. Split weights into tensors in which each dimension belongs to at most one axis.
    2. Run the following steps from two initial orders: the present order, and an order in which
       positions with similar moments (mean, variance, …) of their weights are matched.
    3. Visit the axes in random order. For each axis, compute the inner products of the weights for
       all pairs of a position of the first network and a position of the second network. Match the
       positions by the linear assignment that maximises the sum of the inner products.
    4. Repeat step 3 until no match changes. Return the result with the higher similarity.

    Args:
        graph: Architecture of the first network.
        a: Weights of the first network.
        b: Weights of the second network.
        other: Architecture of the second network, if it is narrower than the first. Each position
            of the second network is matched to a position of the first network.
        seed: Seed of the order in which axes are visited.

    Raises:
        RewriteError: If the architectures differ in more than their widths, or the second is wider
            than the first.
        RejectedUpdate: If a state does not match its architecture, or contains values that are not
            finite.

    Example:
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        >>> graph, state = trace(net, torch.zeros(1, 3))
        >>> shuffled = take(graph, positions={"0.out": [2, 0, 3, 1]}).transfer.pull(state)
        >>> found = match(graph, state, shuffled)
        >>> found.positions["0.out"].tolist(), round(found.after, 6)
        ([2, 0, 3, 1], 1.0)
        >>> bool((found.order.pull(shuffled)["0.weight"] == state["0.weight"]).all())
        True
    """
    second = graph if other is None else graph_of(other)
    check_update(graph, a)
    check_update(second, b)
    names = matched_axes(graph, second)
    sizes = {axis.name: axis.size for axis in axes(second).free if axis.name in names}
    search = _Search(sizes, _weights(graph, second, a, b, names))
    draw = np.random.default_rng(seed)
    ends = [search.solved(start, draw) for start in (search.as_it_is, search.guess())]
    best = max(ends, key=search.likeness)  # the first if tied
    back = {name: np.argsort(index) for name, index in best.items()}
    transfer = take(graph, positions=best, allow_nothing=True).transfer
    if transfer.target != signature(second):
        difference = first_difference(transfer.target, signature(second))
        raise RewriteError("the second network is not a narrower form of the first", **difference)
    part = transfer.pull(a)
    return PositionMatch(
        best,
        transfer,
        take(second, positions=back, allow_nothing=True).transfer,
        search.cosine(search.as_it_is),
        search.cosine(best),
        {name: (search.cosine(search.as_it_is, name), search.cosine(best, name)) for name in best},
        all(torch.equal(value, b[name]) for name, value in part.items()),
    )


def matched_axes(graph: ArchGraph, second: ArchGraph) -> frozenset[str]:
    """Return the axes whose positions :func:`match` may permute.

    These are the axes that can be permuted without changing what the network computes, except axes
    along which the values of a constant or buffer vary, such as the angles of rotary embeddings.

    Raises:
        RewriteError: If the second graph is wider along one of these axes.
    """
    sizes = [{axis.name: axis.size for axis in axes(g).free} for g in (graph, second)]
    for name, size in sizes[1].items():
        if size > sizes[0].get(name, size):
            problem, expected = "the second network is wider", f"at most {sizes[0][name]}"
            raise RewriteError(problem, where=name, found=size, expected=expected)
    fixed = {
        name
        for g in (graph, second)
        for param in g.params
        if param.value is not None
        for piece, names in pieces(constant_tensor(param.value), axes(g).leaf[param.name])
        for dim, name in enumerate(names)
        if name is not None and not bool((piece == piece.narrow(dim, 0, 1)).all())
    }
    return frozenset(sizes[0].keys() & sizes[1].keys() - fixed)


def _weights(
    graph: ArchGraph, second: ArchGraph, a: State, b: State, names: frozenset[str]
) -> list[Pair]:
    """Return the parameters of both networks in pieces.

    Raises:
        RewriteError: If the second network has another form.
    """
    pairs = list[Pair]()
    for param in second.params:
        if param.role != "parameter":
            continue
        if param.name not in graph.param:
            problem = "the first network has no such parameter"
            raise RewriteError(problem, where=param.name, **unknown(param.name, graph.param))
        layouts = axes(graph).leaf[param.name], axes(second).leaf[param.name]
        both = zip(
            *(pieces(state[param.name], dims) for state, dims in zip((a, b), layouts, strict=True)),
            strict=False,
        )
        pairs += _paired(both, names, param.name)
    return pairs


def _paired(
    both: Iterable[tuple[NamedPiece, NamedPiece]], names: frozenset[str], where: str
) -> Iterator[Pair]:
    """Yield the pieces with a matched axis, in double precision.

    Raises:
        RewriteError: If the pieces differ in more than the sizes of matched axes.
    """
    for (x, mine), (y, theirs) in both:
        sizes = ((d, e) for n, d, e in zip(mine, x.shape, y.shape, strict=False) if n not in names)
        if mine != theirs or any(d != e for d, e in sizes):
            problem = "the two networks have different forms"
            raise RewriteError(problem, where=where, found=list(y.shape), expected=list(x.shape))
        if not names.isdisjoint(mine):
            known = tuple(name if name in names else None for name in mine)
            yield x.detach().double(), y.detach().double(), known


class _Search:
    """Search for the orders of axes that make two networks most similar."""

    def __init__(self, sizes: Mapping[str, int], pairs: Sequence[Pair]) -> None:
        self.pairs = pairs
        self.narrower = {
            name
            for x, y, names in pairs
            for name, d, e in zip(names, x.shape, y.shape, strict=True)
            if d != e and name is not None
        }
        self.of = {name: [pair for pair in pairs if name in pair[2]] for name in sizes}
        # An axis that occurs twice in a tensor is its own neighbour.
        self.near = {
            axis: {n for *_, names in beside for n in names if n != axis or names.count(n) > 1}
            for axis, beside in self.of.items()
        }
        self.as_it_is: dict[str, Order] = {name: np.arange(size) for name, size in sizes.items()}

    def likeness(self, positions: Mapping[str, Order], axis: str | None = None) -> float:
        """Return the inner product of the second network and the matched part of the first.

        Args:
            positions: The orders.
            axis: Use only the weights with this axis. Default: all weights.
        """
        pairs = self.pairs if axis is None else self.of[axis]
        return sum(float((_part(x, names, positions) * y).sum()) for x, y, names in pairs)

    def cosine(self, positions: Mapping[str, Order], axis: str | None = None) -> float:
        """Return the same as a cosine similarity."""
        pairs = self.pairs if axis is None else self.of[axis]
        squares = sum(float(_part(x, names, positions).square().sum()) for x, _, names in pairs)
        others = sum(float(y.square().sum()) for _, y, _ in pairs)
        return self.likeness(positions, axis) / max((squares * others) ** 0.5, 1e-300)

    def guess(self) -> dict[str, Order]:
        """Return orders by similar moments, which no permutation of other axes changes."""
        return {name: self._alike(name) for name in self.as_it_is}

    def _alike(self, axis: str) -> Order:
        features: tuple[list[Tensor], list[Tensor]] = ([], [])
        for *tensors, names in self.of[axis]:
            for dim in (d for d, name in enumerate(names) if name == axis):
                others = [name for d, name in enumerate(names) if d != dim]
                free = [d for d, name in enumerate(others, 1) if name is not None]
                for tensor, columns in zip(tensors, features, strict=True):
                    moved = tensor.movedim(dim, 0)
                    for power in (1, 2, 3, 4):
                        moment = moved**power
                        moment = moment.mean(free) if free else moment
                        root = moment.sign() * moment.abs() ** (1 / power)
                        columns.append(root.reshape(len(root), -1))
        if not features[0]:
            return self.as_it_is[axis]
        u, v = (torch.cat(columns, 1) for columns in features)
        spread = torch.cat([u, v]).std(0).clamp_min(1e-12)
        return _assigned(-torch.cdist(u / spread, v / spread).square())

    def solved(self, start: Mapping[str, Order], draw: np.random.Generator) -> dict[str, Order]:
        """Return the orders at which coordinate descent ends."""
        positions, settled = dict(start), set[str]()
        while len(settled) < len(positions):
            names = draw.permutation([*positions]).tolist()
            # Axes that are narrower in the second network first: for them, the start is arbitrary.
            for axis in sorted(names, key=lambda name: name not in self.narrower):
                if axis in settled:  # already optimal for the present order of the others
                    continue
                settled.add(axis)
                products = self._products(axis, positions)
                index = _assigned(products)
                columns = np.arange(len(index))
                now = float(products[positions[axis], columns].sum())
                if float(products[index, columns].sum()) > now + 1e-9 * (1 + abs(now)):
                    positions[axis] = index
                    settled -= self.near[axis]
        return positions

    def _products(self, axis: str, positions: Mapping[str, Order]) -> Tensor:
        """Return the inner products of positions of the first network (rows) and the second."""
        total: Tensor | float = 0.0
        for x, y, names in self.of[axis]:
            for dim in (d for d, name in enumerate(names) if name == axis):
                others = [None if d == dim else name for d, name in enumerate(names)]
                mine = _part(x, others, positions).movedim(dim, 0)
                theirs = y.movedim(dim, 0)
                products = mine.reshape(len(mine), -1) @ theirs.reshape(len(theirs), -1).T
                total = total + products
        size = len(self.as_it_is[axis])
        return total if isinstance(total, Tensor) else torch.eye(size, dtype=torch.float64)


def _part(tensor: Tensor, names: Sequence[str | None], positions: Mapping[str, Order]) -> Tensor:
    for dim, name in enumerate(names):
        if name is not None:
            tensor = tensor.index_select(dim, torch.from_numpy(positions[name]))
    return tensor


def _assigned(products: Tensor) -> Order:
    """Return the row of each column that maximises the sum (linear assignment)."""
    optimize = optional_module("scipy.optimize", where="matching of neurons")
    rows: Order = optimize.linear_sum_assignment(products.T.numpy(), maximize=True)[1]
    return rows
