"""The differences of two graphs, given what of them corresponds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from archgraph.analysis.axes import axes
from archgraph.analysis.widths import matching_parts
from archgraph.graph.ir import Leaf, Node, Ref, Value, replace, show
from archgraph.layout.layouts import AxisRef, Layout
from archgraph.relate.correspondence import PartDifference, PartKind
from archgraph.relate.partners import Half, Partners

# Names of a layout in both graphs, and its sizes.
Resized: TypeAlias = tuple[str, str, int, int]


def disparities(found: Partners) -> Iterator[PartDifference]:
    """Every difference: blocks first, then operators, entries of the states, and axes."""
    of_a, of_b = _alone(found)
    yield from of_a
    yield from of_b
    done_a = {n for item in of_a for n in item.nodes_a}
    done_b = {n for item in of_b for n in item.nodes_b}
    matched = set(found.nodes.values())
    for node in found.a.graph.nodes:
        if node.name not in matched and node.name not in done_a:
            yield PartDifference("missing", "operator", node.name, nodes_a=(node.name,))
    for node in found.b.graph.nodes:
        if node.name not in found.nodes and node.name not in done_b:
            yield PartDifference("new", "operator", b=node.name, nodes_b=(node.name,))
    yield from _changed(found)
    yield from _leaves(found)
    yield from _resized(found)


def _alone(found: Partners) -> tuple[list[PartDifference], list[PartDifference]]:
    """Blocks without a partner, of A and of B."""
    mine, theirs = ({pair[i] for pair in found.blocks} for i in (0, 1))
    gone = [
        PartDifference("missing", "block", name, nodes_a=nodes)
        for name, nodes in found.a.inside.items()
        if name not in mine
    ]
    more = []
    for name, nodes in found.b.inside.items():
        if name in theirs:
            continue
        origins = [found.copies[k] for k in found.b.leaves_in(name) if k in found.copies]
        source = next((block for leaf in origins for block in found.a.blocks_of(leaf)), "")
        users = dict.fromkeys(n for leaf in origins for n in found.a.users[leaf])
        kind: PartKind = "copied" if origins else "new"
        more.append(PartDifference(kind, "block", source, name, None, None, tuple(users), nodes))
    return gone, more


def _changed(found: Partners) -> Iterator[PartDifference]:
    """Operators that correspond with other arguments; sizes that axes decide are no difference."""
    decided = [axes(side.graph).attributes for side in (found.a, found.b)]
    for theirs, mine in found.nodes.items():
        before, after = _said(found.a, mine), _said(found.b, theirs)
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
    """The arguments of an operator without the names of what it uses, and itself."""

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


def _leaves(found: Partners) -> Iterator[PartDifference]:
    """Entries of the states without a partner, where the operators that use them have one."""
    matched = set(found.nodes.values())
    taken = set(found.leaves.values())
    for leaf, users in found.a.users.items():
        if leaf not in taken and matched.issuperset(users):
            yield PartDifference("missing", "leaf", leaf, nodes_a=users)
    for leaf, users in found.b.users.items():
        if leaf not in found.leaves and all(n in found.nodes for n in users):
            origin = found.copies.get(leaf, "")
            kind: PartKind = "copied" if origin else "new"
            yield PartDifference(kind, "leaf", origin, leaf, nodes_b=users)


def _resized(found: Partners) -> Iterator[PartDifference]:
    """Axes that have another size, each once."""
    seen: dict[Resized, tuple[dict[str, None], dict[str, None]]] = {}
    of_a, of_b = axes(found.a.graph), axes(found.b.graph)
    for theirs, mine in found.leaves.items():
        for x, y in zip(of_a.of(mine), of_b.of(theirs), strict=False):
            for p, q in matching_parts(x, y):
                if isinstance(p.size, int) and isinstance(q.size, int) and p.size != q.size:
                    nodes = seen.setdefault((_named(p), _named(q), p.size, q.size), ({}, {}))
                    nodes[0].update(dict.fromkeys(found.a.users[mine]))
                    nodes[1].update(dict.fromkeys(found.b.users[theirs]))
    for (name, other, before, after), (nodes_a, nodes_b) in seen.items():
        kind: PartKind = "narrower" if after < before else "wider"
        yield PartDifference(
            kind, "axis", name, other, before, after, tuple(nodes_a), tuple(nodes_b)
        )


def _named(layout: Layout) -> str:
    return layout.name if isinstance(layout, AxisRef) else str(layout)
