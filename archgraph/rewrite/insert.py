"""Operators put in front of others: what step sizes, exits and compensating factors share."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

from archgraph.analysis.structure import Block
from archgraph.errors import RewriteError
from archgraph.ir import ArchGraph, Node, Param, Ref, Value, renumber, replace, walk
from archgraph.ops.table import initialiser, row
from archgraph.transfer import Entry, Rewritten, Slot, Transfer, signature


def before(
    graph: ArchGraph, inserted: Mapping[tuple[str, str], Sequence[Node]]
) -> tuple[Node, ...]:
    """The nodes of a graph with operators put between some values and one user of each.

    Args:
        graph: The graph.
        inserted: By (user, value): operators in order; the last one's result takes the value's
            place in the user, others that use the value are not touched.
    """
    nodes: list[Node] = []
    for node in graph.nodes:
        wanted = {value: new for (user, value), new in inserted.items() if user == node.name}
        if wanted:
            stands = {value: new[-1].name for value, new in wanted.items()}

            def follow(value: Value, stands: Mapping[str, str] = stands) -> Value:
                return Ref(stands.get(value.name, value.name)) if isinstance(value, Ref) else value

            for new in wanted.values():
                nodes += new
            node = dataclasses.replace(
                node, args=tuple((k, replace(v, follow)) for k, v in node.args)
            )
        nodes.append(node)
    return tuple(nodes)


def fresh(taken: set[str], stem: str) -> str:
    """A node name that is not taken; it is taken from now on."""
    name, count = stem, 0
    while name in taken:
        count += 1
        name = f"{stem}_{count}"
    taken.add(name)
    return name


def with_leaves(graph: ArchGraph, added: Iterable[tuple[str, Param]]) -> tuple[Param, ...]:
    """The leaves of a graph with new ones, each behind a given leaf (empty: at the end)."""
    behind: dict[str, list[Param]] = {}
    for place, param in added:
        behind.setdefault(place, []).append(param)
    params: list[Param] = []
    for param in graph.params:
        params += [param, *behind.pop(param.name, ())]
    return (*params, *(p for rest in behind.values() for p in rest))


def initialised(graph: ArchGraph, new: ArchGraph, zero: Collection[str] = ()) -> Rewritten:
    """A rewrite that keeps all entries; new ones start as a fresh model's would.

    Args:
        graph: The architecture before.
        new: The architecture after.
        zero: New leaves that start at zero instead.
    """
    after = renumber(new)
    known = {p.name for p in graph.params}
    entries = {}
    for slot in signature(after):
        if slot.name in known:
            entries[slot.name] = Entry(slot.name, (None,) * len(slot.shape))
        else:
            entries[slot.name] = _start(after, slot, slot.name in zero)
    return Rewritten(after, Transfer(signature(graph), signature(after), entries))


def _start(graph: ArchGraph, slot: Slot, zero: bool) -> Entry:
    param = graph.param[slot.name]
    how = initialiser(graph, param)
    if param.value is not None:
        return Entry.initialised(slot, "value", value=param.value)
    if zero or how is None or not slot.averaged:
        return Entry.initialised(slot, "zeros")
    match how.kind:
        case "zeros":
            return Entry.initialised(slot, "zeros")
        case "ones":
            return Entry.initialised(slot, "constant", val=how.scale)
        case "uniform":
            return Entry.initialised(slot, "uniform", a=-how.scale, b=how.scale)
        case "normal":
            return Entry.initialised(slot, "normal", mean=0.0, std=how.scale)


def branch(graph: ArchGraph, block: Block) -> str:
    """Operand of the block's sum that is not its shortcut."""
    merge = graph.node.get(block.merge)
    if block.kind != "residual" or merge is None or not row(merge.op).merges:
        raise RewriteError("no residual block", where=block.name, found=block.kind)
    operands: list[Value] = [i for _, v in merge.args for i in walk(v) if isinstance(i, Ref)]
    others = [i.name for i in operands if isinstance(i, Ref) and i.name != block.shortcut]
    if len(operands) != 2 or len(others) != 1:
        raise RewriteError(
            "no single branch",
            where=block.name,
            found=f"%{merge.name} adds {len(operands)} values",
            expected="the shortcut and one branch",
        )
    return others[0]
