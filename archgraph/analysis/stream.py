"""The main stream: the chain of cut nodes that carries the data from an input to the output.

Masks, position indices, bias tables and conditioning are not part of it. The stream consists of the
operators that are downstream of *one* source and of parameters, and lead to the deepest output in
evaluation. A source is an input, or a learned value to which branches are added (queries). A sum
belongs to the stream of the operand that a branch is added to, not to the streams that the branch
reads, because two streams may read each other in turn. A node on every path of the stream is a *cut
node*. One pass finds them: a node is a cut exactly if no edge jumps over it in topological order.
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
        nodes: Its operators in topological order; the last one is ``exit``.
        entry: Cut node whose value it consumes; empty at the start of the stream.
        exit: Cut node whose value it computes.
        kind: ``step`` (one operator), or a region: ``residual`` (ends by adding the carried entry),
            ``dense`` (ends by appending to the entry), ``parallel`` (anything else).
        shortcut: The value that a region passes on parallel to its body. For a residual, the
            operand of the sum that carries the entry (the entry itself, or the end of its
            projection); for a dense region, the entry that it appends to.
        heavy: Whether it has operators with weights.
        joins: Whether it also takes a value from further up the stream (a long skip connection).
        level: Cut node whose value it takes, if the stream in between has another resolution.
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
    """Return the results of parameters alone (a transposed weight), with their leaves."""
    leaves_of: dict[str, tuple[str, ...]] = {}
    for n in graph.nodes:
        used = dict.fromkeys(n.uses())
        if n.op != "input" and all(u in leaves_of for u in used):
            leaves = dict.fromkeys([*n.leaves(), *(leaf for u in used for leaf in leaves_of[u])])
            if any(graph.param[leaf].role == "parameter" for leaf in leaves):
                leaves_of[n.name] = tuple(leaves)
    return leaves_of


class Stream:
    """The main stream of a graph in one mode, and the streams that feed it.

    Attributes:
        heavy: Operators that do a layer's work.
        live: Operators that the deepest output needs.
        output: The deepest output: the one after most heavy operators.
        sources: Results from which a stream may start.
        source: The source of this stream; empty if there is none.
        pieces: The stream, divided into pieces.
        towers: Streams of other inputs that feed it, each divided into pieces, in topological
            order.
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
        """Return whether an operator does a layer's work: weighted, or a product with a weight."""
        fact = row(node.op)
        if fact.weighted or fact.macs is None or node.name in self._computed:
            return fact.weighted
        if self._has_parameter(node):
            return True
        factors = itertools.islice(node.uses(), 2)  # further operands are added (biases, masks)
        return any(u in self._computed for u in factors)

    def weights(self, name: str) -> tuple[str, ...]:
        """Return the leaves of an operator, used directly or through results of leaves alone."""
        if name not in self._weights:
            node = self.graph.node[name]
            through = (leaf for u in node.uses() for leaf in self._computed.get(u, ()))
            self._weights[name] = tuple(dict.fromkeys([*node.leaves(), *through]))
        return self._weights[name]

    def _has_parameter(self, node: Node) -> bool:
        return any(self.graph.param[leaf].role == "parameter" for leaf in node.leaves())

    def ancestors(self, names: Iterable[str], inside: set[str] | None = None) -> set[str]:
        """Return the operators that ``names`` depend on, themselves included, within ``inside``."""
        return reachable(names, self.preds.__getitem__, inside)

    def _choose(self) -> tuple[str, Chain, tuple[Chain, ...]]:
        """Choose the source with the best division of stream and towers into pieces.

        That is the division with the most residual regions minus long skip connections.
        """
        chains = []
        for source in self.sources:
            below, nodes = self._downstream(source, self.live)
            if self.output not in below:
                continue  # the streams that lead to the output read it
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
        """Return the inputs, and values that no input leads to but that results are added to."""
        sources = [n.name for n in self.graph.nodes if n.op == "input" and n.name in self.live]
        below = reachable(sources, self.graph.users.__getitem__)
        for total, before in self._added_to.items():
            if sources and total in self.live and before not in below:
                sources.append(before)
                below |= reachable([before], self.graph.users.__getitem__)
        return sources

    def _downstream(self, source: str, among: set[str]) -> tuple[set[str], list[str]]:
        """Return everything downstream of a source, and the part with learned values, in order."""
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
        """Return the nodes that lead to ``end``; a branch of another stream does not."""
        leading = self.ancestors((end,), set(nodes))
        return [n for n in nodes if n in leading]

    def _towers(self, main: Iterable[str]) -> tuple[Chain, ...]:
        """Return chains of several layers from other sources into the stream (encoders, towers).

        A tower ends where it first fans out, or with its own last sum. Operators after that feed a
        single block and belong to it.
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
        """Follow the norms and pointwise operators that are the only users of a result."""
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
        """Return the pieces of a part of the graph whose only exit is its last node."""
        pieces: list[Piece] = []
        cuts = self._cuts(nodes, entry)
        begin = 0
        for i, name in enumerate(nodes):
            if name in cuts:
                pieces += self._piece(nodes[begin : i + 1], entry)
                entry, begin = name, i + 1
        return tuple(pieces)

    def _cuts(self, nodes: Sequence[str], entry: str, ends: Iterable[str] = ()) -> frozenset[str]:
        """Return the nodes that no edge jumps over; ``ends`` have an edge out of the part.

        A branch may take values from before the operand that it is added to. Such an edge counts
        from that operand.
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
        """Return one piece; a region that contains a chain of regions opens into that chain."""
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
        """Return the chain inside a region and the rest of the region, or the region itself.

        1. A chain of residual regions opens; so does a chain of dense regions in a dense region.
        2. A long skip connection around a chain of regions (U-Net) does not make it one block.
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
        """Return whether a chain leaves the resolution of its entry and returns to it.

        The chain has left it where two or more dimensions differ from the entry's, in any order: a
        layer may change the width or mix positions without leaving the entry's resolution.
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
    """Return predecessors by node; a list that extends an earlier list counts as its successor.

    Dense connections repeat earlier lists: ``cat(x, y)``, ``cat(x, y, z)``. Read as
    ``cat(cat(x, y), z)``, each of them is a cut node.
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
    """Yield sizes in descending order from ``most``; sort only after the first one."""
    if most in sizes:
        yield most
    yield from sorted((s for s in sizes if s < most), reverse=True)
