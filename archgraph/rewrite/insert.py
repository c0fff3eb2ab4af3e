"""Operators put in front of others: what step sizes, exits and compensating factors share."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from archgraph.analysis.axes import axes
from archgraph.analysis.structure import Block, structure
from archgraph.errors import RewriteError
from archgraph.graph.ir import ArchGraph, Mode, Node, Param, Ref, Value, in_mode, walk
from archgraph.graph.passes import renumber
from archgraph.layout.layouts import Fixed
from archgraph.ops.table import initialiser
from archgraph.states import Entry, Rewritten, Slot, Transfer, signature


def before(
    graph: ArchGraph, inserted: Mapping[tuple[str, Value], Sequence[Node]]
) -> tuple[Node, ...]:
    """The nodes of a graph with operators put between some values and one user of each.

    Args:
        graph: The graph.
        inserted: By user and the argument's value as it is written: operators in order; the last
            one's result takes its place in the user, others that use the value are not touched.
    """
    nodes: list[Node] = []
    for node in graph.nodes:
        stands: dict[Value, Ref] = {}
        for value in dict.fromkeys(v for _, v in node.args if isinstance(v, (Ref, Mode))):
            new = inserted.get((node.name, value), ())
            nodes += new
            if new:
                stands[value] = Ref(new[-1].name)
        if stands:
            args = tuple(
                (k, stands.get(v, v) if isinstance(v, (Ref, Mode)) else v) for k, v in node.args
            )
            node = dataclasses.replace(node, args=args)
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


@dataclass(frozen=True, slots=True)
class Branch:
    """The operand of a residual block's sum that is not the shortcut.

    Attributes:
        merge: The sum.
        value: The operand as the sum takes it: a ``Mode`` where training drops it at random.
        node: What makes it in evaluation.
        path: Where a new leaf or module of the branch belongs.
    """

    merge: Node
    value: Value
    node: Node
    path: str


def residuals(graph: ArchGraph, blocks: str | Iterable[str] | None) -> tuple[Block, ...]:
    """Blocks by name or pattern; by default all that add to their input.

    Raises:
        GraphError: For a block that does not exist; names the nearest.
    """
    parts = structure(graph)
    return tuple(b for b in parts.blocks if b.sums) if blocks is None else parts.matching(blocks)


def last_leaf(graph: ArchGraph, block: Block) -> str:
    """The last of a block's leaves in state-dict order: new ones stand behind it."""
    used = {leaf for n in block.nodes for leaf in graph.node[n].leaves()}
    return next((p.name for p in reversed(graph.params) if p.name in used), "")


def branches(graph: ArchGraph, block: Block, name: str) -> list[Branch]:
    """The branches of a residual block: a transformer layer has two.

    Args:
        graph: The architecture.
        block: One of its blocks.
        name: What the new leaf or module is called, inside the block; numbered where the block has
            several sums (attention and feed-forward).

    Raises:
        RewriteError: If the block is not residual, or one of its sums does not have two operands.
    """
    if not block.sums:
        raise RewriteError("not a residual block", where=block.name, found=block.kind)
    listed = []
    for number, (merge, shortcut) in enumerate(block.sums, 1):
        node = graph.node[merge]
        operands = [v for _, v in node.args if isinstance(v, (Ref, Mode))]
        others = [v for v in operands if shortcut not in refs(v)]
        if len(operands) != 2 or len(others) != 1:
            raise RewriteError(
                "residual block with several branches",
                where=block.name,
                found=f"%{merge} adds {len(operands)} values",
                expected="the shortcut and one branch",
            )
        path = f"{block.name}.{name}" + (f"_{number}" if len(block.sums) > 1 else "")
        producers = refs(in_mode(others[0], False))
        listed.append(Branch(node, others[0], graph.node[producers[0]], path))
    return listed


def refs(value: Value) -> list[str]:
    """Names of the results in a value."""
    return [i.name for i in walk(value) if isinstance(i, Ref)]


def channels(graph: ArchGraph, node: Node, where: str) -> tuple[int, int]:
    """Dimension and number of a result's channels.

    They are where an axis that parameters have runs; of several, and where none does, the last one
    of two or three dimensions, the second of more.

    Raises:
        RewriteError: If their number depends on the batch, or there are none.
    """
    shape = node.shape
    layouts = axes(graph).value[node.name][0]
    usual = 1 if len(shape) > 3 else len(shape) - 1
    wide = [i for i, d in enumerate(layouts) if i and not isinstance(d, Fixed)]
    at = wide[0] if len(wide) == 1 else usual
    size = shape[at] if at > 0 else None
    if not isinstance(size, int):
        raise RewriteError(
            "result without a channel dimension", where=where, found=f"%{node.name}: {node.type}"
        )
    return at, size
