"""Derive pairs of blocks and operators of two graphs from pairs of parameters and buffers."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from archgraph.analysis.structure import structure
from archgraph.analysis.widths import Pairs
from archgraph.graph.ir import ArchGraph


@dataclass(frozen=True)
class Half:
    """One of the two graphs, with lookups between its blocks, operators and state entries.

    Attributes:
        graph: The graph.
        inside: Dict from block to its operators, in topological order.
        block: Dict from operator to its block.
        users: Dict from parameter or buffer to the operators that use it, in topological order.
    """

    graph: ArchGraph
    inside: Mapping[str, tuple[str, ...]]
    block: Mapping[str, str]
    users: Mapping[str, tuple[str, ...]]

    @staticmethod
    def of(graph: ArchGraph) -> Half:
        """Return the lookups for a graph."""
        inside = {b.name: b.nodes for b in structure(graph).blocks}
        users: dict[str, list[str]] = {name: [] for name in graph.state_names}
        for node in graph.nodes:
            for leaf in dict.fromkeys(node.leaves()):
                if leaf in users:
                    users[leaf].append(node.name)
        return Half(
            graph,
            inside,
            {n: name for name, nodes in inside.items() for n in nodes},
            {leaf: tuple(nodes) for leaf, nodes in users.items()},
        )

    def blocks_of(self, leaf: str) -> tuple[str, ...]:
        """Return the blocks that use a parameter or buffer."""
        return tuple(dict.fromkeys(self.block[n] for n in self.users[leaf]))

    def leaves_in(self, block: str) -> tuple[str, ...]:
        """Return the parameters and buffers that a block uses."""
        nodes = (self.graph.node[n] for n in self.inside[block])
        return tuple(dict.fromkeys(k for n in nodes for k in n.leaves() if k in self.users))


@dataclass(frozen=True)
class Partners:
    """The corresponding parts of two graphs, A and B.

    Attributes:
        a: The first graph.
        b: The second graph.
        leaves: Dict from parameters and buffers of B to the corresponding ones of A.
        copies: Dict from parameters and buffers of B that are copies to their sources in A.
        blocks: Pairs of blocks (A's, B's), in the order of B.
        nodes: Dict from operators of B to the corresponding operators of A.
    """

    a: Half
    b: Half
    leaves: Mapping[str, str]
    copies: Mapping[str, str] = field(default_factory=dict)
    blocks: Sequence[tuple[str, str]] = ()
    nodes: Mapping[str, str] = field(default_factory=dict)


def partners(
    a: ArchGraph,
    b: ArchGraph,
    leaves: Mapping[str, str],
    copies: Mapping[str, str] | None = None,
    *,
    blocks: Iterable[tuple[str, str]] = (),
    nodes: Mapping[str, str] | None = None,
) -> Partners:
    """Pair blocks and operators by their corresponding parameters and buffers, or by order.

    Args:
        a: The first graph.
        b: The second graph.
        leaves: Dict from parameters and buffers of B to the corresponding ones of A.
        copies: Dict from parameters and buffers of B that are copies to their sources in A.
        blocks: Pairs of blocks (A's, B's) that are already known.
        nodes: Dict from operators of B to operators of A, for pairs that are already known.
    """
    one, two = Half.of(a), Half.of(b)
    order = {name: i for i, name in enumerate(two.inside)}
    pairs = dict.fromkeys(blocks)
    anchors = dict(nodes or {})
    for mine, theirs in leaves.items():
        pairs |= dict.fromkeys(_beside(one.blocks_of(theirs), two.blocks_of(mine)))
        for x, y in _beside(one.users[theirs], two.users[mine]):
            anchors.setdefault(y, x)  # the first partner remains: shared leaves have several
    pairs |= dict.fromkeys(_plain(one, two, list(pairs)))
    for group_a, group_b in _groups(list(pairs)):
        anchors |= _between(one, two, group_a, group_b, anchors)
    return Partners(
        one, two, leaves, copies or {}, sorted(pairs, key=lambda pair: order[pair[1]]), anchors
    )


def _beside(a: Sequence[str], b: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Pair the users of a leaf in order; the last one of the shorter list has several partners."""
    if a and b:
        for k in range(max(len(a), len(b))):
            yield a[min(k, len(a) - 1)], b[min(k, len(b) - 1)]


def _plain(a: Half, b: Half, pairs: Pairs | list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Pair blocks without a state, in order between those that correspond."""
    partner: dict[str, str] = {}
    for x, y in pairs:
        partner.setdefault(y, x)
    mine = [_key(a, name, name) for name in a.inside]
    theirs = [_key(b, name, partner.get(name)) for name in b.inside]
    paired = {x for x, _ in pairs}
    for x, y in _common(mine, theirs, list(a.inside), list(b.inside)):
        if x not in paired and y not in partner:
            yield x, y


def _key(half: Half, block: str, partner: str | None) -> Hashable:
    """Return the key by which a block is matched: its partner if it has a state, else operators."""
    if half.leaves_in(block):
        return partner, "state"
    return tuple(half.graph.node[n].op for n in half.inside[block])


def _groups(pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[list[str], list[str]]]:
    """Group blocks connected by pairs: one and one, unless the graphs are divided differently."""
    onward: dict[tuple[str, bool], list[tuple[str, bool]]] = {}
    for x, y in pairs:
        onward.setdefault((x, True), []).append((y, False))
        onward.setdefault((y, False), []).append((x, True))
    grouped: set[tuple[str, bool]] = set()
    for start in onward:
        group, pending = [], [start]
        while pending:
            part = pending.pop()
            if part not in grouped:
                grouped.add(part)
                group.append(part)
                pending += onward[part]
        if group:
            yield [n for n, first in group if first], [n for n, first in group if not first]


def _between(
    a: Half, b: Half, of_a: Sequence[str], of_b: Sequence[str], anchors: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Pair (B's, A's) the other operators of corresponding blocks, in order."""
    anchored = set(anchors.values())
    rows: list[list[str]] = []
    for half, blocks in ((a, of_a), (b, of_b)):
        inside = {n for block in blocks for n in half.inside[block]}
        rows.append([n.name for n in half.graph.nodes if n.name in inside])
    mine = [(n, "") if n in anchored else a.graph.node[n].op for n in rows[0]]
    theirs = [(anchors[n], "") if n in anchors else b.graph.node[n].op for n in rows[1]]
    for x, y in _common(mine, theirs, *rows):
        if y not in anchors and x not in anchored:
            yield y, x


def _common(
    keys_a: Sequence[Hashable], keys_b: Sequence[Hashable], a: Sequence[str], b: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Pair parts of two lists that have equal keys, in the order of both."""
    matcher = difflib.SequenceMatcher(None, keys_a, keys_b, autojunk=False)
    for i, j, size in matcher.get_matching_blocks():
        yield from zip(a[i : i + size], b[j : j + size], strict=True)
