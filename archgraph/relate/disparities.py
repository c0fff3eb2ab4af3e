"""The differences of two graphs, derived from their corresponding parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from archgraph.analysis.axes import axes
from archgraph.analysis.widths import matching_parts
from archgraph.graph.ir import Leaf, Node, Ref, Value, replace, show
from archgraph.layout.layouts import AxisRef, Layout
from archgraph.relate.correspondence import PartDifference, PartKind
from archgraph.relate.partners import Half, Partners

# Names of a layout in both graphs, and its sizes in both.
Resized: TypeAlias = tuple[str, str, int, int]


def disparities(pairs: Partners) -> Iterator[PartDifference]:
    """Yield every difference between two graphs: blocks, then operators, state entries and axes."""
    of_a, of_b = _alone(pairs)
    yield from of_a
    yield from of_b
    done_a = {n for item in of_a for n in item.nodes_a}
    done_b = {n for item in of_b for n in item.nodes_b}
    matched = set(pairs.nodes.values())
    for node in pairs.a.graph.nodes:
        if node.name not in matched and node.name not in done_a:
            yield PartDifference("missing", "operator", node.name, nodes_a=(node.name,))
    for node in pairs.b.graph.nodes:
        if node.name not in pairs.nodes and node.name not in done_b:
            yield PartDifference("new", "operator", b=node.name, nodes_b=(node.name,))
    yield from _changed(pairs)
    yield from _leaves(pairs)
    yield from _resized(pairs)


def _alone(pairs: Partners) -> tuple[list[PartDifference], list[PartDifference]]:
    """Return the blocks of A and of B without a partner."""
    mine, theirs = ({pair[i] for pair in pairs.blocks} for i in (0, 1))
    gone = [
        PartDifference("missing", "block", name, nodes_a=nodes)
        for name, nodes in pairs.a.inside.items()
        if name not in mine
    ]
    more = []
    for name, nodes in pairs.b.inside.items():
        if name in theirs:
            continue
        origins = [pairs.copies[k] for k in pairs.b.leaves_in(name) if k in pairs.copies]
        source = next((block for leaf in origins for block in pairs.a.blocks_of(leaf)), "")
        users = dict.fromkeys(n for leaf in origins for n in pairs.a.users[leaf])
        kind: PartKind = "copied" if origins else "new"
        more.append(PartDifference(kind, "block", source, name, None, None, tuple(users), nodes))
    return gone, more


def _changed(pairs: Partners) -> Iterator[PartDifference]:
    """Yield corresponding operators with different arguments, ignoring sizes set by axes."""
    decided = [axes(side.graph).attributes for side in (pairs.a, pairs.b)]
    for theirs, mine in pairs.nodes.items():
        before, after = _said(pairs.a, mine), _said(pairs.b, theirs)
        keys = [
            key
            for key in dict.fromkeys((*before, *after))
            if before.get(key) != after.get(key)
            and (mine, key) not in decided[0]
            and (theirs, key) not in decided[1]
        ]
        if keys:
            was, now = (", ".join(side[k] for k in keys if k in side) for side in (before, after))
            yield PartDifference("changed", "operator", mine, theirs, was, now, (mine,), (theirs,))


def _said(half: Half, name: str) -> dict[str, str]:
    """Return an operator and its arguments as text, without names of operands."""

    def unnamed(value: Value) -> Value:
        match value:
            case Ref():
                return Ref("")
            case Leaf():
                return Leaf("")
            case _:
                return value

    node: Node = half.graph.node[name]
    return {"": node.op} | {k: f"{k}={show(replace(v, unnamed))}" for k, v in node.args}


def _leaves(pairs: Partners) -> Iterator[PartDifference]:
    """Yield state entries without a partner whose operators all have one."""
    matched = set(pairs.nodes.values())
    matched_leaves = set(pairs.leaves.values())
    for leaf, users in pairs.a.users.items():
        if leaf not in matched_leaves and matched.issuperset(users):
            yield PartDifference("missing", "leaf", leaf, nodes_a=users)
    for leaf, users in pairs.b.users.items():
        if leaf not in pairs.leaves and all(n in pairs.nodes for n in users):
            origin = pairs.copies.get(leaf, "")
            kind: PartKind = "copied" if origin else "new"
            yield PartDifference(kind, "leaf", origin, leaf, nodes_b=users)


def _resized(pairs: Partners) -> Iterator[PartDifference]:
    """Yield axes that differ in size, each once."""
    sizes: dict[Resized, tuple[dict[str, None], dict[str, None]]] = {}
    of_a, of_b = axes(pairs.a.graph), axes(pairs.b.graph)
    for theirs, mine in pairs.leaves.items():
        for x, y in zip(of_a.of(mine), of_b.of(theirs), strict=False):
            for p, q in matching_parts(x, y):
                if isinstance(p.size, int) and isinstance(q.size, int) and p.size != q.size:
                    nodes = sizes.setdefault((_named(p), _named(q), p.size, q.size), ({}, {}))
                    nodes[0].update(dict.fromkeys(pairs.a.users[mine]))
                    nodes[1].update(dict.fromkeys(pairs.b.users[theirs]))
    for (name, other, before, after), (nodes_a, nodes_b) in sizes.items():
        kind: PartKind = "narrower" if after < before else "wider"
        yield PartDifference(
            kind, "axis", name, other, before, after, tuple(nodes_a), tuple(nodes_b)
        )


def _named(layout: Layout) -> str:
    return layout.name if isinstance(layout, AxisRef) else str(layout)
