"""Find the main stream of a graph: the operators that carry the data from an input to the output.

The stream starts at one source: an input, or a learned value to which branches are added (queries).
It consists of the operators that depend on the source and on parameters, and that lead to the
deepest output in evaluation. Masks, position indices, bias tables and conditioning are not part of
the stream. An addition of a branch belongs to the stream of the value to which the branch is added,
not to the stream that the branch reads, because two streams may read each other in turn.

A *cut node* is a node that every path of the stream passes. A node is a cut node if no edge jumps
over it in topological order, so one pass finds all of them. A *piece* of the stream consists of the
nodes between two neighbouring cut nodes.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal, TypeAlias

from archgraph.analysis.summands import summands
from archgraph.graph.ir import ArchGraph, Node, Ref, Value, refs, show
from archgraph.graph.passes import reachable
from archgraph.ops.table import row

PieceKind = Literal["step", "residual", "dense", "parallel"]


@dataclass(frozen=True, slots=True)
class Piece:
    """The operators between two neighbouring cut nodes, including the second one.

    Attributes:
        nodes: Operators of the piece in topological order; the last one is ``exit``.
        entry: Cut node whose value is the input; empty at the start of the stream.
        exit: Cut node that computes the output.
        kind: ``step`` for a single operator. A piece of several operators is ``residual`` if it
            ends by adding a branch to a shortcut, ``dense`` if it ends by concatenating new
            features to the input, and ``parallel`` otherwise.
        shortcut: For a residual piece, the operand that the branch is added to: the input, or its
            projection. For a dense piece, the input. Otherwise empty.
        heavy: Whether the piece has operators with weights.
        joins: Whether the piece ends a long skip connection, that is, also takes a value that was
            computed before its input.
        level: Cut node whose value the piece takes through a long skip connection, if the stream in
            between has another resolution.
    """

    nodes: tuple[str, ...]
    entry: str
    exit: str
    kind: PieceKind = "step"
    shortcut: str = ""
    heavy: bool = False
    joins: bool = False
    level: str = ""


Chain: TypeAlias = tuple[Piece, ...]


def computed_weights(graph: ArchGraph) -> dict[str, tuple[str, ...]]:
    """Return a dict from each result computed from parameters alone to these parameters."""
    leaves_of: dict[str, tuple[str, ...]] = {}
    for n in graph.nodes:
        used = dict.fromkeys(n.uses())
        if n.op != "input" and all(u in leaves_of for u in used):
            leaves = dict.fromkeys([*n.leaves(), *(leaf for u in used for leaf in leaves_of[u])])
            if any(graph.param[leaf].role == "parameter" for leaf in leaves):
                leaves_of[n.name] = tuple(leaves)
    return leaves_of


class Stream:
    """The main stream of a graph in training or evaluation, and other streams that lead into it.

    Attributes:
        heavy: Operators that multiply by a weight.
        live: Operators that the deepest output needs.
        output: The deepest output: the output that depends on the most heavy operators.
        sources: Results at which a stream may start.
        source: The source of the main stream; empty if there is none.
        pieces: The pieces of the main stream.
        towers: For each stream of another source that leads into the main stream (an encoder), its
            pieces. Towers are in topological order.
    """

    def __init__(self, graph: ArchGraph) -> None:
        self.graph = graph
        self.order = {n.name: i for i, n in enumerate(graph.nodes)}
        self.preds = _factored(graph)
        self._computed = computed_weights(graph)
        self._weights: dict[str, tuple[str, ...]] = {}
        self.heavy = frozenset(n.name for n in graph.nodes if self._is_heavy(n))
        depth: dict[str, int] = {}
        for n in graph.nodes:
            below = max((depth[p] for p in self.preds[n.name]), default=0)
            depth[n.name] = below + (n.name in self.heavy)
        self.outputs = tuple(dict.fromkeys(refs(graph.outputs)))
        self.output = max(self.outputs, key=depth.__getitem__, default="")
        self.live = self.ancestors((self.output,)) if self.output else set()
        branches = [
            s
            for s in summands(graph)
            if self.heavy & s.private
            and s.other in s.enters
            and graph.node[s.other].types == graph.node[s.sum].types
        ]
        self._private = {s.sum: s.private for s in branches}
        self._added_to = {s.sum: s.other for s in branches}
        learned = (n.name for n in graph.nodes if self._has_parameter(n))
        self._learned = reachable(learned, graph.users.__getitem__)
        self.sources = self._sources()
        self.source, self.pieces, self.towers = self._choose()

    # -- which nodes ------------------------------------------------------------------------

    def _is_heavy(self, node: Node) -> bool:
        """Return whether an operator multiplies by a weight, which may be computed."""
        fact = row(node.op)
        if fact.weighted or fact.macs is None or node.name in self._computed:
            return fact.weighted
        if self._has_parameter(node):
            return True
        factors = itertools.islice(node.uses(), 2)  # further operands are added (biases, masks)
        return any(u in self._computed for u in factors)

    def weights(self, name: str) -> tuple[str, ...]:
        """Return an operator's parameters, including those from which its weights are computed."""
        if name not in self._weights:
            node = self.graph.node[name]
            through = (leaf for u in node.uses() for leaf in self._computed.get(u, ()))
            self._weights[name] = tuple(dict.fromkeys([*node.leaves(), *through]))
        return self._weights[name]

    def _has_parameter(self, node: Node) -> bool:
        return any(self.graph.param[leaf].role == "parameter" for leaf in node.leaves())

    def ancestors(self, names: Iterable[str], inside: set[str] | None = None) -> set[str]:
        """Return ``names`` and all operators that they depend on, restricted to ``inside``."""
        return reachable(names, self.preds.__getitem__, inside)

    def _choose(self) -> tuple[str, Chain, tuple[Chain, ...]]:
        """Choose the source, and return it with the pieces of the main stream and of the towers.

        The chosen source maximises the number of residual pieces minus the number of long skip
        connections.
        """
        chains = []
        for source in self.sources:
            below, nodes = self._downstream(source, self.live)
            if self.output not in below:
                continue  # only branches of other streams use this source
            if self.output not in nodes:
                nodes = sorted(below, key=self.order.__getitem__)
            nodes = self._leading_to(self.output, nodes)
            # With a single source, no tower can start elsewhere.
            towers = self._towers(nodes) if len(self.sources) > 1 else ()
            chains.append((source, self._chain(nodes, ""), towers))
        if not chains:
            ordered = sorted(self.live, key=self.order.__getitem__)
            return "", self._chain(ordered, ""), ()

        def score(item: tuple[str, Chain, tuple[Chain, ...]]) -> tuple[int, int]:
            _, pieces, towers = item
            every = [p for chain in (pieces, *towers) for p in chain]
            residual = sum(p.heavy and p.kind == "residual" for p in every)
            return residual - sum(p.joins for p in every), sum(p.heavy for p in every)

        return max(chains, key=score)

    def _sources(self) -> list[str]:
        """Return the inputs, and values to which results are added but that no input leads to."""
        sources = [n.name for n in self.graph.nodes if n.op == "input" and n.name in self.live]
        below = reachable(sources, self.graph.users.__getitem__)
        for total, before in self._added_to.items():
            if sources and total in self.live and before not in below:
                sources.append(before)
                below |= reachable([before], self.graph.users.__getitem__)
        return sources

    def _downstream(self, source: str, among: set[str]) -> tuple[set[str], list[str]]:
        """Return the operators that depend on a source, and in order those of its stream."""
        below = {source} & among
        for n in self.graph.nodes:
            before = self._added_to.get(n.name)
            carried = self.preds[n.name] if before is None else (before,)
            if n.name in among and not below.isdisjoint(carried):
                below.add(n.name)
        core = below & self._learned
        starts = [v for v in core if not any(p in core for p in self.preds[v])]
        ordered = sorted(core | self.ancestors(starts, below), key=self.order.__getitem__)
        return below, ordered

    def _leading_to(self, end: str, nodes: Sequence[str]) -> list[str]:
        """Return the nodes on which ``end`` depends."""
        leading = self.ancestors((end,), set(nodes))
        return [n for n in nodes if n in leading]

    def _towers(self, main: Iterable[str]) -> tuple[Chain, ...]:
        """Return the pieces of each tower: a chain of several layers from another source.

        A tower ends where its result is first used more than once, or with its last addition of a
        branch. Later operators belong to the block that uses them.
        """
        used = set(main)
        result = []
        for source in reversed(self.sources):  # values that a stream reads come before it
            _, ordered = self._downstream(source, self.live - used)
            outside = {p for v in self.live.difference(ordered) for p in self.preds[v]}
            # Results of an input alone (a mask) do not belong to the stream.
            cuts = self._cuts(ordered, "", outside & self._learned)
            ends = [v for v in ordered if v in cuts or v in self._added_to]
            ordered = self._leading_to(self._settled(ends[-1], ordered), ordered) if ends else []
            if sum(v in self.heavy for v in ordered) >= 2:  # one layer (an embedding) is no tower
                used.update(ordered)
                result.append(self._chain(ordered, ""))
        return tuple(sorted(result, key=lambda chain: self.order[chain[0].exit]))

    def _settled(self, name: str, nodes: Sequence[str]) -> str:
        """Return the last of the norms and elementwise operators that alone use a result."""
        while True:
            users = [u for u in self.graph.users[name] if u in nodes]
            if len(users) != 1 or {*self.graph.node[users[0]].uses()} != {name}:
                return name
            fact = row(self.graph.node[users[0]].op)
            if not (fact.normalises or fact.pointwise):
                return name
            name = users[0]

    # -- how they hang together ---------------------------------------------------------------

    def _chain(self, nodes: Sequence[str], entry: str) -> Chain:
        """Return the pieces of a part of the graph whose only output is its last node."""
        pieces: list[Piece] = []
        cuts = self._cuts(nodes, entry)
        begin = 0
        for i, name in enumerate(nodes):
            if name in cuts:
                pieces += self._piece(nodes[begin : i + 1], entry)
                entry, begin = name, i + 1
        return tuple(pieces)

    def _cuts(self, nodes: Sequence[str], entry: str, ends: Iterable[str] = ()) -> frozenset[str]:
        """Return the cut nodes among ``nodes``: those that no edge jumps over.

        Nodes in ``ends`` have another edge, which leaves the part of the graph. A branch may take
        values from before the value to which it is added. Such an edge counts as if it started at
        the latter value.
        """
        order = {name: i for i, name in enumerate(nodes)}
        begin: dict[str, int] = {}  # index from which a branch's nodes may take values
        for total in order.keys() & self._added_to.keys():
            start = order.get(self._added_to[total], -1)
            begin |= {
                n: start
                for n in self._private[total]
                if order.get(n, -1) > start >= begin.get(n, 0)
            }
        jumps = [0] * (len(nodes) + 1)
        for i, name in enumerate(nodes):
            inside = [order[p] for p in self.preds[name] if p in order]
            first = min(inside, default=-1)  # -1: before the part
            if entry in self.preds[name]:
                first = -1
            first = max(first, begin.get(name, first))
            # A difference array: an edge jumps over the nodes between its ends.
            jumps[first + 1] += 1
            jumps[i] -= 1
        for name in ends:
            if name in order:
                jumps[order[name] + 1] += 1
        over = itertools.accumulate(jumps)
        return frozenset(name for name, count in zip(nodes, over, strict=False) if count == 0)

    def _piece(self, nodes: Sequence[str], entry: str) -> Iterable[Piece]:
        """Return the piece with these nodes, or several pieces if its body is a chain of blocks."""
        end = nodes[-1]
        work = not self.heavy.isdisjoint(nodes)
        if len(nodes) == 1:
            return (Piece(tuple(nodes), entry, end, heavy=work),)
        inside = set(nodes) - {end}
        # A branch may be the entry itself: the empty branch of an identity shortcut.
        starts = [p for p in self.preds[end] if p == entry or p in inside]
        branches = {p: self.ancestors((p,), inside) for p in starts}
        layers = {p: len(branch & self.heavy) for p, branch in branches.items()}
        kind, shortcut = self._kind(self.graph.node[end], entry, branches, layers)
        region = Piece(tuple(nodes), entry, end, kind, shortcut, work)
        longest = max(branches, key=lambda p: (layers[p], len(branches[p])), default="")
        if not entry or layers.get(longest, 0) < 2:
            return (region,)
        # Bare: the other branches have no layers, as in a long skip connection.
        bare = sum(layers.values()) == layers[longest]
        return self._opened(region, longest, branches[longest], bare)

    def _opened(self, region: Piece, longest: str, body: Set[str], bare: bool) -> Chain:
        """Replace a piece by the pieces inside its body if the body is a chain of blocks.

        1. Replace it if the body contains residual pieces, or dense pieces within a dense piece.
        2. Replace it if a long skip connection leads around a chain that changes the resolution and
           returns to it (U-Net).
        """
        chain = self._chain([n for n in region.nodes if n in body], region.entry)
        nested = {p.kind for p in chain if p.heavy}
        opens = {"residual", "dense"} if bare and region.kind == "dense" else {"residual"}  # 1
        joins = bare and region.kind in ("dense", "residual")
        deep = joins and self._hourglass(chain, region.entry)  # 2
        if nested.isdisjoint(opens) and not deep:
            return (region,)
        rest = tuple(n for n in region.nodes if n not in body)
        level = region.entry if deep else ""
        heavy = not self.heavy.isdisjoint(rest)
        return (*chain, Piece(rest, longest, region.exit, "step", "", heavy, True, level))

    def _hourglass(self, chain: Sequence[Piece], entry: str) -> bool:
        """Return whether a chain changes the resolution of its input and returns to it.

        The resolution has changed if at least two dimensions of a result differ from those of the
        input, in any order. If only one dimension differs, a layer has changed only the width.
        """
        before, after = (self.graph.node[n].shape for n in (entry, chain[-1].exit))
        if len(before) != len(after) or sum(a != b for a, b in zip(before, after, strict=True)) > 1:
            return False
        steps = [self.graph.node[p.exit].shape for p in chain if p.heavy and len(p.nodes) == 1]
        return any(
            len(shape) == len(before) > 2
            and shape[0] == before[0]
            and (Counter(before[1:]) - Counter(shape[1:])).total() > 1
            for shape in steps
        )

    def _kind(
        self, end: Node, entry: str, branches: Mapping[str, Set[str]], layers: Mapping[str, int]
    ) -> tuple[PieceKind, str]:
        start = self.graph.node[entry] if entry else end
        same = start.dtype == end.dtype and len(start.shape) == len(end.shape)
        if row(end.op).merges and len(branches) > 1 and same:
            least, more, *_ = sorted(branches, key=lambda p: (layers[p], len(branches[p]), p))
            # A shortcut has no layers, or one (a projection) if the branch has more.
            if layers[least] == 0 or (layers[least] == 1 and layers[more] > 1):
                return "residual", least
        items = [i for _, v in end.args if isinstance(v, tuple) for i in v]
        if entry in self.preds[end.name] and any(isinstance(i, Ref) for i in items):
            return "dense", entry
        return "parallel", ""


def _factored(graph: ArchGraph) -> Mapping[str, tuple[str, ...]]:
    """Return a dict from node to the nodes that it uses, with nested concatenations.

    Dense blocks concatenate longer and longer lists: ``cat(x, y)``, then ``cat(x, y, z)``. The
    second is read as ``cat(cat(x, y), z)``, so that each concatenation is a cut node.
    """
    first: dict[tuple[str, str, tuple[Value, ...]], str] = {}
    lengths: dict[tuple[str, str], set[int]] = {}  # lengths of earlier lists
    result: dict[str, tuple[str, ...]] = {}
    for n in graph.nodes:
        before = dict.fromkeys(n.uses())
        lists = [(k, v) for k, v in n.args if isinstance(v, tuple)]
        joined = [(k, v) for k, v in lists if v and all(isinstance(i, Ref) for i in v)]
        if len(joined) == 1:
            argument, operands = joined[0]
            rest = f"{argument} {[(k, show(v)) for k, v in n.args if k != argument]}"
            known = lengths.setdefault((n.op, rest), set())
            for size in _downwards(len(operands) - 1, known):
                parts = (operands[:size], operands[size:]), (operands[-size:], operands[:-size])
                match = next(
                    ((first[n.op, rest, a], b) for a, b in parts if (n.op, rest, a) in first), None
                )
                if match is not None:
                    before = dict.fromkeys((match[0], *refs(match[1])))
                    break
            first.setdefault((n.op, rest, operands), n.name)
            known.add(len(operands))
        result[n.name] = tuple(before)
    return result


def _downwards(most: int, sizes: Set[int]) -> Iterator[int]:
    """Yield the sizes up to ``most`` in descending order; sort only if ``most`` is not enough."""
    if most in sizes:
        yield most
    yield from sorted((s for s in sizes if s < most), reverse=True)
