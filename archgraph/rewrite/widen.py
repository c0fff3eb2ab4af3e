"""Wider without changing the function, and narrower again (Net2Wider, FedADP)."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import torch

from archgraph.analysis.axes import Axes, Axis, Contraction, Kept, axes, touched
from archgraph.analysis.axes import positions as positions_of
from archgraph.analysis.axes import shares as shares_of
from archgraph.analysis.choice import (
    Positions,
    Shares,
    Sizes,
    chosen_positions,
    chosen_sizes,
    require_choice,
)
from archgraph.errors import RewriteError
from archgraph.graph.ir import ArchGraph, Batch, Leaf, Node, Ref, Value, size_at, walk
from archgraph.layout.layouts import AxisRef, Layout, leaves
from archgraph.ops.schema import schema
from archgraph.ops.table import growth, offset
from archgraph.rewrite.width import cut
from archgraph.states import DimMap, Entry, Rewritten, Transfer, signature

Mode: TypeAlias = Literal["paper", "net2net"]
Sources: TypeAlias = dict[tuple[str, int], npt.NDArray[np.float64]]
Sent: TypeAlias = "torch.Tensor | list[torch.Tensor] | tuple[torch.Tensor, ...]"
Factors: TypeAlias = Mapping[tuple[str, int], npt.NDArray[np.float64]]


def widen(
    graph: ArchGraph,
    factors: Shares | None = None,
    *,
    sizes: Sizes | None = None,
    positions: Positions | None = None,
    seed: int = 0,
    approximate: bool = False,
    verify: bool = False,
) -> Rewritten:
    """Widen axes so that the network computes the same in evaluation (Net2WiderNet).

    New positions copy old ones; where an axis is summed over, one of the factors is divided by how
    often the position occurs. The copies depend on the seed, the axis' name and its sizes alone,
    so that server and clients agree on them; where the new size is a multiple of the old one all
    positions are copied equally often.

    Args:
        graph: The narrow architecture.
        factors: One factor from 1 on for every free axis, or factors by axis name, role or pattern.
        sizes: New numbers of positions by axis name, role or pattern.
        positions: The old position that each new one copies, by axis name, role or pattern.
            Positions win over sizes, sizes over factors, and a later entry over an earlier one.
        seed: Of the copies.
        approximate: Copy also where the function cannot be kept (a norm over an axis whose
            positions are not repeated equally often, a softmax over it).
        verify: Run the law (two forwards in float64).

    Raises:
        RewriteError: For an axis that cannot be widened exactly, with the reason, or an impossible
            size.
        AxisError: For an axis that does not exist or is pinned.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        >>> wide = widen(trace(net, torch.zeros(1, 3)).graph, sizes={"0.out": 6}, verify=True)
        >>> {p.name: p.shape for p in wide.graph.params if "weight" in p.name}
        {'0.weight': (6, 3), '2.weight': (2, 6)}

    Source: Chen et al., *Net2Net*, ICLR 2016, §2.2; FedADP, Algorithm 2.
    """
    require_choice(factors, sizes, positions)
    solved = axes(graph)
    wanted = chosen_sizes(solved, factors, sizes, grow=True)
    copies = _copies(wanted, chosen_positions(solved, positions, grow=True), seed)
    parts, refused = _compensation(graph, solved, copies)
    if refused and not approximate:
        axis, reason = next(iter(refused.items()))
        raise RewriteError(
            "cannot be widened exactly",
            where=axis,
            found=reason,
            hint="a multiple of its size, approximate=True, or leave it out",
        )
    rewritten = _scaled(graph, cut(graph, copies), copies, parts)
    if verify and not refused:
        from archgraph.rewrite.laws import same_function

        same_function(graph, rewritten)
    return rewritten


def refusals(graph: ArchGraph, factor: float = 1.5, *, seed: int = 0) -> dict[str, str]:
    """Why free axes cannot be widened by a factor, each alone; those that can are left out.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2)
        ... )
        >>> refusals(trace(net, torch.zeros(1, 3)).graph)
        {'0.out': 'aten.layer_norm in 1 runs over it: copies must be equally many'}
    """
    solved = axes(graph)
    found: dict[str, str] = {}
    for axis in solved.free:
        copies = _copies(chosen_sizes(solved, {axis: factor}, grow=True), {}, seed)
        found |= _compensation(graph, solved, copies)[1]
    return found


def narrow(
    graph: ArchGraph,
    shares: Shares | None = None,
    *,
    sizes: Sizes | None = None,
    mode: Mode = "paper",
    seed: int = 0,
) -> Rewritten:
    """Narrow axes to their first positions and give the others' part to those that stay.

    Args:
        graph: The wide architecture.
        shares: One share in (0, 1] for every free axis, or shares by axis name, role or pattern.
        sizes: Numbers of first positions that stay, by axis name, role or pattern.
        mode: ``paper``: where an axis is summed over, the sum of what is left out is added to the
            weights that stay, in equal parts (FedADP, Algorithm 3). ``net2net``: the inverse of
            :func:`widen` with the same seed: copies are merged with what they copied, summed where
            widening divides them, else averaged.
        seed: Of the copies (``net2net``).

    Raises:
        RewriteError: For an impossible size.
        AxisError: For an axis that does not exist or is pinned.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        >>> graph = trace(net, torch.zeros(1, 3)).graph
        >>> both = widen(graph, sizes={"0.out": 6}) >> (
        ...     lambda g: narrow(g, sizes={"0.out": 4}, mode="net2net")
        ... )
        >>> all(entry.unchanged for entry in both.transfer.entries.values())
        True

    Source: FedADP, Algorithm 3.
    """
    if mode not in get_args(Mode):
        raise RewriteError("no such mode", found=mode, expected=", ".join(get_args(Mode)))
    require_choice(shares, sizes)
    solved = axes(graph)
    wanted = chosen_sizes(solved, shares, sizes)
    kept = {a.name: np.arange(n) for a, n in wanted.items() if n < a.size}
    copies = {a.name: _drawn(a.name, n, a.size, seed) for a, n in wanted.items() if n < a.size}
    narrowed = cut(graph, kept)
    small = axes(narrowed.graph)
    # Seen from the narrow graph: which leaf's dimension widening divides.
    factors, _ = _compensation(narrowed.graph, small, copies)
    share = {name: _parts(index) for name, index in copies.items()}
    entries = dict(narrowed.transfer.entries)
    for leaf, entry in entries.items():
        dims = list(entry.dims)
        for dim, layout in enumerate(small.of(leaf)):
            factor = factors.get((leaf, dim))
            if not touched(layout, copies) or (mode == "paper" and factor is None):
                continue
            if mode == "paper":
                dims[dim] = _spread(solved.of(leaf)[dim], kept)
                continue
            rows = positions_of(layout, copies)
            equal = shares_of(layout, copies, share)
            assert isinstance(layout.size, int)
            dims[dim] = DimMap.sparse(
                rows,
                np.arange(len(rows)),
                equal if factor is None else equal / factor,
                size=len(rows),
                length=layout.size,
            )
        entries[leaf] = dataclasses.replace(entry, dims=tuple(dims))
    target = signature(narrowed.graph)
    return Rewritten(narrowed.graph, Transfer(signature(graph), target, entries))


# -- which positions --------------------------------------------------------------------------


def _copies(
    sizes: Mapping[Axis, int], positions: Mapping[Axis, npt.NDArray[np.int64]], seed: int
) -> dict[str, npt.NDArray[np.int64]]:
    """Old position of each new one, by axis, where they differ."""
    sources = {axis: _drawn(axis.name, axis.size, size, seed) for axis, size in sizes.items()}
    sources.update(positions)
    return {a.name: i for a, i in sources.items() if not np.array_equal(i, np.arange(a.size))}


def _drawn(name: str, size: int, wide: int, seed: int) -> npt.NDArray[np.int64]:
    """The first positions are the old ones; the others copy at random, or in turn for multiples."""
    if wide % size == 0:
        return np.arange(wide) % size
    digest = hashlib.sha256(f"widen/{seed}/{name}/{size}/{wide}".encode()).digest()
    random = np.random.default_rng(int.from_bytes(digest[:8], "little"))
    return np.concatenate([np.arange(size), random.integers(0, size, wide - size)])


# -- what keeps the function --------------------------------------------------------------------


@dataclass
class _Compensation:
    """Factors on leaves that make up for positions that occur several times.

    Attributes:
        graph: The architecture before.
        solved: Its axes.
        copies: Old position of each new one, by axis.
        factors: What is found: a factor per new position, by leaf and dimension.
    """

    graph: ArchGraph
    solved: Axes
    copies: Kept
    factors: dict[tuple[str, int], npt.NDArray[np.float64]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.share: dict[str, npt.NDArray[np.float64]] = {}
        for name, index in self.copies.items():
            self.share[name] = _parts(index)
        self.summed: dict[str, list[Contraction]] = {}
        for contraction in self.solved.contractions:
            self.summed.setdefault(contraction.node, []).append(contraction)

    def layout(self, layout: Layout) -> npt.NDArray[np.float64]:
        """Share of each new position of a layout."""
        return shares_of(layout, self.copies, self.share)

    def run_over(self, node: Node, layout: Layout) -> str:
        """Why an operator that runs over a layout gives something else; empty where it does not."""
        kind = growth(node.op).repeated(node)
        where = f"{node.op} in {node.scope}" if node.scope else f"{node.op} %{node.name}"
        if kind == "never":
            return f"{where} runs over it"
        if kind == "uniform" and np.ptp(self.layout(layout)) > 1e-12:
            return f"{where} runs over it: copies must be equally many"
        return ""

    def divide(self, contraction: Contraction) -> str:
        """Divide one factor of a sum of products; the reason where none can be."""
        part = self.layout(contraction.layout)
        for value, dim in contraction.operands:
            if isinstance(value, Leaf) and self._leaf(value.name, dim, part):
                return ""
        problems = []
        for value, dim in contraction.operands:
            if isinstance(value, Ref):
                problem = self._made(value.name, dim, contraction)
                if not problem:
                    return ""
                problems.append(problem)
        node = self.graph.node[contraction.node]
        where = f" in {node.scope}" if node.scope else ""
        twice = any(
            self._square(contraction, v.name)
            for v, _ in contraction.operands
            if isinstance(v, Leaf)
        )
        shared = "a weight times itself" if twice else "a weight that other operators use as well"
        text = "; ".join(dict.fromkeys(problems)) or shared
        return f"{node.op}{where} sums over it: {text}"

    def _leaf(self, name: str, dim: int, part: npt.NDArray[np.float64]) -> bool:
        """Whether a leaf's dimension can be divided: everything that uses it sums over it."""
        if self.graph.param[name].role == "constant":
            return False
        for user in self.graph.leaf_users[name]:
            node = self.graph.node[user]
            times = sum(
                isinstance(i, Leaf) and i.name == name for _, v in node.args for i in walk(v)
            )
            sums = [
                c
                for c in self.summed.get(user, ())
                for v, d in c.operands
                if v == Leaf(name) and d == dim
            ]
            if len(sums) != times or any(self._square(c, name) for c in sums):
                return False
        held = self.factors.get((name, dim))
        if held is None:
            self.factors[name, dim] = part
        return held is None or np.array_equal(held, part)

    @staticmethod
    def _square(contraction: Contraction, name: str) -> bool:
        """Whether a leaf is multiplied by itself: dividing it would divide the product twice."""
        return sum(v == Leaf(name) for v, _ in contraction.operands) > 1

    def _sole(self, node: Node, name: str) -> bool:
        """Whether an operator is the only one that uses a leaf, and uses it once."""
        used = [i for _, v in node.args for i in walk(v)].count(Leaf(name))
        return used == 1 and self.graph.leaf_users[name] == (node.name,)

    def _path(self, start: str) -> tuple[list[Node], Node] | None:
        """Operators that only move a layer's result about until it is this one, and the layer."""
        path = [self.graph.node[start]]
        while growth(path[-1].op).moves:
            operands = [i for _, v in path[-1].args for i in walk(v) if isinstance(i, (Ref, Leaf))]
            if len(operands) != 1 or not isinstance(operands[0], Ref):
                return None
            path.append(self.graph.node[operands[0].name])
        source = path.pop()
        fact = growth(source.op)
        return (path, source) if path and isinstance(fact.weight(source), Leaf) else None

    def _moved(
        self,
        starts: Mapping[str, int],
        share: Mapping[str, npt.NDArray[np.float64]],
        ends: set[str],
    ) -> Sources | str:
        """What to divide of layers' results that, only moved about, become operands.

        Numbered positions are sent along the way: packed queries, keys and values share a layer,
        and only one of them is to be divided.

        Args:
            starts: Results, with the dimension that is to be divided.
            share: The factor of each new position, by axis.
            ends: Operators that may use them.

        Returns:
            Factors, or the reason against them.
        """
        sources: Sources = {}
        on: set[str] = set()
        used: dict[str, tuple[torch.Tensor, set[int]]] = {}
        for start, dim in starts.items():
            found = self._path(start)
            assert found is not None
            path, source = found
            on |= {n.name for n in path}
            fact = growth(source.op)
            given = [v for a in fact.affine if (v := source.arg(a)) is not None]
            weight = fact.weight(source)
            assert isinstance(weight, Leaf)
            layout = self.solved.of(weight.name)[next(iter(fact.affine.values()))]
            at = [i for i, d in enumerate(self.solved.value[source.name][0]) if d == layout]
            alone = all(isinstance(v, Leaf) and self._sole(source, v.name) for v in given)
            if len(at) != 1 or not alone:
                return f"{source.op} %{source.name} shares its weights"
            size = len(positions_of(layout, self.copies))
            whole = self._numbered(source.name, at[0], size)
            sent: Sent = whole
            for node in path[::-1]:
                sent = _sent(self.wide.node[node.name], sent)
            assert isinstance(sent, torch.Tensor)
            part = shares_of(self.solved.value[start][0][dim], self.copies, share)
            factor = np.ones(size)
            if sent.numel():
                numbers = sent.movedim(dim, -1).reshape(-1, sent.shape[dim])
                for column, value in zip(numbers.T.numpy(), part, strict=True):
                    factor[column] = value
            used.setdefault(source.name, (whole, set()))[1].update(sent.reshape(-1).tolist())
            for argument, d in fact.affine.items():
                if isinstance(leaf := source.arg(argument), Leaf):
                    held = sources.get((leaf.name, d), np.ones(size))
                    if ((held != 1) & (factor != 1) & (held != factor)).any():
                        return f"{source.op} %{source.name} takes a position twice"
                    sources[leaf.name, d] = np.where(factor == 1, held, factor)
        for name, (whole, own) in used.items():
            if any(own & other for other in self._others(name, whole, on, ends)):
                return f"%{next(iter(starts))} is also used elsewhere"
        return sources

    @functools.cached_property
    def wide(self) -> ArchGraph:
        """The architecture with its axes widened."""
        return cut(self.graph, self.copies).graph

    def _numbered(self, source: str, dim: int, size: int) -> torch.Tensor:
        """A result whose values are its positions along a dimension."""
        type_ = self.wide.node[source].types[0]
        shape = [size_at(s, 1) for s in type_.shape]
        view = [size if i == dim else 1 for i in range(len(shape))]
        return torch.arange(size).reshape(view).expand(shape).contiguous()

    def _others(
        self, source: str, whole: torch.Tensor, on: set[str], ends: set[str]
    ) -> Iterator[set[int]]:
        """Positions of a result that operators off a path take."""
        pending: list[tuple[str, str, Sent]] = [
            (source, u, whole) for u in self.graph.users[source]
        ]
        while pending:
            giver, name, sent = pending.pop()
            if name in ends and giver in on:
                continue
            node = self.wide.node[name]
            if growth(node.op).moves and name not in ends:
                moved = _sent(node, sent)
                pending += [(name, user, moved) for user in self.graph.users[name]]
            else:
                parts = (sent,) if isinstance(sent, torch.Tensor) else sent
                yield {i for p in parts for i in p.reshape(-1).tolist()}

    def _made(self, start: str, dim: int, contraction: Contraction) -> str:
        """Divide what makes an operand, back through operators that hand on a factor."""
        wanted = {
            leaf.name
            for leaf in leaves(contraction.layout)
            if isinstance(leaf, AxisRef) and leaf.name in self.copies
        }
        share = {k: v for k, v in self.share.items() if k in wanted}
        inside: set[str] = set()
        apart: set[str] = set()  # operands of theirs that are not to be divided
        moved: dict[str, int] = {}
        sources: Sources = {}
        pending: list[tuple[str, int | None]] = [(start, dim)]
        while pending:
            name, at = pending.pop()
            if name in inside or name in moved:
                continue
            node = self.graph.node[name]
            fact = growth(node.op)
            if fact.moves and at is not None and self._path(name):
                moved[name] = at
                continue
            inside.add(name)
            given = [i for _, v in node.args for i in walk(v) if isinstance(i, (Ref, Leaf))]
            if fact.affine and isinstance(fact.weight(node), Leaf):
                problem = self._source(node, fact.affine, wanted, sources)
                if problem:
                    return problem
                apart |= {i.name for i in given if isinstance(i, Ref)}
                continue
            if fact.scales == "all" and not offset(node):
                follow = given
            elif fact.scales == "first":
                follow = given[:1]
            elif fact.scales == "one":
                fed = [i for i in given if isinstance(i, Ref) and self._weighed(i.name)]
                if len(fed) > 1:
                    return f"{node.op} %{name} multiplies two results"
                follow = list(fed or given[:1])
            elif fact.bilinear and len(makers := self._makers(node, given, wanted)) == 1:
                follow, at = makers, None
            else:
                return f"{node.op} %{name} does not hand on a factor"
            apart |= {i.name for i in Counter(given) - Counter(follow) if isinstance(i, Ref)}
            for item in follow:
                if isinstance(item, Leaf):
                    if not self._added(node, item.name, wanted, sources):
                        return f"{node.op} %{name} takes {item.name}"
                    continue
                place = None
                if fact.pointwise and at is not None:  # None where the operand lacks the dimension
                    place = at - len(node.shape) + len(self.graph.node[item.name].shape)
                pending.append((item.name, None if place is None or place < 0 else place))
        if moved:
            found = self._moved(moved, share, inside | {contraction.node})
            if isinstance(found, str):
                return found
            for key, factor in found.items():
                sources[key] = sources.get(key, np.ones(len(factor))) * factor
        if both_ways := sorted(apart & {*inside, *moved}):
            return f"%{both_ways[0]} goes into it twice"
        users = {u for n in inside for u in self.graph.users[n]} - inside
        if users - {contraction.node} or inside & set(self.graph.output_refs()):
            other = sorted(users - {contraction.node}) or ["the output"]
            return f"%{start} is also used by %{other[0]}"
        node = self.graph.node[contraction.node]
        both = [v for v, _ in contraction.operands if isinstance(v, Ref) and v.name == start]
        if len(both) != 1:
            return f"{node.op} %{node.name} takes %{start} twice"
        return self._settle(sources)

    def _makers(
        self, node: Node, given: Sequence[Ref | Leaf], wanted: set[str]
    ) -> list[Ref | Leaf]:
        """Operands of a product that bring axes into its result: it does not sum over them."""

        def has(layouts: Iterable[Layout]) -> bool:
            found = (leaf for layout in layouts for leaf in leaves(layout))
            return any(isinstance(leaf, AxisRef) and leaf.name in wanted for leaf in found)

        if has(c.layout for c in self.summed.get(node.name, ())):
            return []
        return [
            i
            for i in given
            if has(self.solved.of(i.name) if isinstance(i, Leaf) else self.solved.value[i.name][0])
        ]

    def _settle(self, sources: Sources) -> str:
        """Take factors over, unless the same positions make up for something else."""
        for key, factor in sources.items():
            held = self.factors.get(key)
            if held is not None and ((held != 1) & (factor != 1)).any():
                return f"{key[0]} makes up for another sum already"
        for key, factor in sources.items():
            self.factors[key] = self.factors.get(key, np.ones(len(factor))) * factor
        return ""

    def _added(
        self,
        node: Node,
        name: str,
        wanted: set[str],
        sources: dict[tuple[str, int], npt.NDArray[np.float64]],
    ) -> bool:
        """Divide a leaf that an operator hands on as it is; whether that can be done."""
        if self.graph.param[name].role == "constant" or not self._sole(node, name):
            return False
        share = {k: v for k, v in self.share.items() if k in wanted}
        left = set(wanted)
        for dim, layout in enumerate(self.solved.of(name)):
            own = wanted & {a.name for a in leaves(layout) if isinstance(a, AxisRef)}
            if own:
                left -= own
                sources[name, dim] = shares_of(layout, self.copies, share)
        return not left

    def _source(
        self,
        node: Node,
        affine: Mapping[str, int],
        wanted: set[str],
        sources: dict[tuple[str, int], npt.NDArray[np.float64]],
    ) -> str:
        for argument, dim in affine.items():
            value = node.arg(argument)
            if value is None:
                continue
            if not isinstance(value, Leaf) or not self._sole(node, value.name):
                return f"{node.op} %{node.name} shares its {argument}"
            layout = self.solved.of(value.name)[dim]
            own = {a.name for a in leaves(layout) if isinstance(a, AxisRef)}
            if not wanted <= own:
                return f"{node.op} %{node.name} does not make it"
            share = {k: v for k, v in self.share.items() if k in wanted}
            sources[value.name, dim] = shares_of(layout, self.copies, share)
        return ""

    def _weighed(self, name: str) -> bool:
        """Whether a result depends on parameters."""
        seen: set[str] = set()
        pending = [name]
        while pending:
            node = self.graph.node[pending.pop()]
            if node.name in seen:
                continue
            seen.add(node.name)
            if any(self.graph.param[leaf].role == "parameter" for leaf in node.leaves()):
                return True
            pending += node.uses()
        return False


def _sent(node: Node, sent: Sent) -> Sent:
    """What an operator that only moves positions about makes of numbers, for a batch of one."""
    if node.op == "getitem":
        index = node.arg("index")
        assert isinstance(index, int)
        return sent[index]

    def real(value: Value) -> Any:
        match value:
            case Ref():
                return sent
            case Batch():
                return size_at(value, 1)
            case tuple():
                return [real(v) for v in value]
            case _:
                return value

    called = schema(node.op)
    positional, named = called.call_args({k: real(v) for k, v in node.args})
    made: Sent = called.overload(*positional, **named)
    return made


def _parts(index: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Equal parts of one for the copies of each position, which add up to one exactly."""
    share = 1 / np.bincount(index)[index]
    for position in np.unique(index[np.bincount(index)[index] > 1]):
        places = np.flatnonzero(index == position)
        share[places[-1]] = 1 - np.cumsum(share[places[:-1]])[-1]
    return np.asarray(share)


def _compensation(graph: ArchGraph, solved: Axes, copies: Kept) -> tuple[Factors, dict[str, str]]:
    """Factors by leaf and dimension, and the reasons of axes for which there are none."""
    work = _Compensation(graph, solved, copies)
    refused: dict[str, str] = {}

    def refuse(layout: Layout, reason: str) -> None:
        for leaf in leaves(layout):
            if isinstance(leaf, AxisRef) and leaf.name in copies:
                refused.setdefault(leaf.name, reason)

    for name, layout in solved.runs:
        if touched(layout, copies):
            reason = work.run_over(graph.node[name], layout)
            if reason:
                refuse(layout, reason)
    for contraction in solved.contractions:
        if touched(contraction.layout, copies):
            reason = work.divide(contraction)
            if reason:
                refuse(contraction.layout, reason)
    return work.factors, refused


def _scaled(graph: ArchGraph, wide: Rewritten, copies: Kept, factors: Factors) -> Rewritten:
    """The transfer with the factors on its entries."""
    solved = axes(graph)
    entries = dict(wide.transfer.entries)
    for (leaf, dim), part in factors.items():
        layout = solved.of(leaf)[dim]
        assert isinstance(layout.size, int)
        dims = list(entries[leaf].dims)
        dims[dim] = DimMap.of(positions_of(layout, copies), layout.size, part)
        entries[leaf] = Entry(leaf, tuple(dims))
    return Rewritten(wide.graph, Transfer(wide.transfer.source, wide.transfer.target, entries))


def _spread(layout: Layout, kept: Kept) -> DimMap | None:
    """What is left out added to what stays, in equal parts (FedADP, Algorithm 3)."""
    size = layout.size
    assert isinstance(size, int)
    stays = positions_of(layout, kept)
    gone = np.setdiff1d(np.arange(size), stays)
    length = len(stays)
    rows = np.concatenate([np.arange(length), np.repeat(np.arange(length), len(gone))])
    columns = np.concatenate([stays, np.tile(gone, length)])
    weights = np.concatenate([np.ones(length), np.full(length * len(gone), 1 / length)])
    return DimMap.sparse(rows, columns, weights, size=size, length=length)
