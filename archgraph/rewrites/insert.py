"""Helpers of rewrites: unused names, name patterns, replacements, channels, new parameters."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Iterable, Mapping

from archgraph.analysis.axes import axes
from archgraph.analysis.structure import Block
from archgraph.errors import GraphError, RewriteError
from archgraph.graph.ir import ArchGraph, Mode, Node, Param, Ref, Value
from archgraph.graph.passes import renumber
from archgraph.hints import nearest
from archgraph.layout.layouts import Fixed
from archgraph.ops.table import initialiser
from archgraph.states import Entry, Rewritten, Slot, signature


def fresh(used: set[str], stem: str) -> str:
    """Return an unused node name, and add it to the used ones."""
    name, count = stem, 0
    while name in used:
        count += 1
        name = f"{stem}_{count}"
    used.add(name)
    return name


def with_leaves(graph: ArchGraph, added: Iterable[tuple[str, Param]]) -> tuple[Param, ...]:
    """Return the leaves (parameters, buffers, constants) of a graph with new leaves inserted.

    Args:
        graph: The graph.
        added: Pairs of the name of an existing leaf and the new leaf to insert after the existing
            leaf. If the name is empty, the new leaf is appended at the end.
    """
    behind: dict[str, list[Param]] = {}
    for previous, param in added:
        behind.setdefault(previous, []).append(param)
    params: list[Param] = []
    for param in graph.params:
        params += [param, *behind.pop(param.name, ())]
    return (*params, *(p for rest in behind.values() for p in rest))


def last_leaf(graph: ArchGraph, block: Block) -> str:
    """Return the block's last parameter or buffer in the state dict; empty if there is none."""
    used = {leaf for n in block.nodes for leaf in graph.node[n].leaves()}
    return next((p.name for p in reversed(graph.params) if p.name in used), "")


def initialised(graph: ArchGraph, new: ArchGraph, zero: Collection[str] = ()) -> Rewritten:
    """Return the rewrite that keeps existing weights and initialises others as in a new model.

    Args:
        graph: The architecture before the change.
        new: The architecture after the change.
        zero: Names of new parameters that start at zero instead.
    """
    after = renumber(new)
    entries = {
        slot.name: Entry.kept(slot)
        if slot.name in graph.param
        else _start(after, slot, slot.name in zero)
        for slot in signature(after)
    }
    return Rewritten.between(graph, after, entries)


def _start(graph: ArchGraph, slot: Slot, zero: bool) -> Entry:
    param = graph.param[slot.name]
    how = initialiser(graph, param)
    if param.value is not None:
        return Entry.initialised(slot, "value", value=param.value)
    # Counters and integer buffers start at zero, whichever operator uses them.
    if zero or how is None or how.kind == "zeros" or not slot.averaged:
        return Entry.initialised(slot, "zeros")
    match how.kind:
        case "ones":
            return Entry.initialised(slot, "constant", val=how.scale)
        case "uniform":
            return Entry.initialised(slot, "uniform", a=-how.scale, b=how.scale)
        case "normal":
            return Entry.initialised(slot, "normal", mean=0.0, std=how.scale)


def channels(graph: ArchGraph, node: Node, where: str) -> tuple[int, int]:
    """Return the channel dimension of a result, and its size.

    The channel dimension is the dimension whose size also occurs in the shapes of parameters. If
    several or no dimensions qualify, the channel dimension is the second of more than three
    dimensions, and otherwise the last.

    Raises:
        RewriteError: If the number of channels depends on the batch, or if there are no channels.
    """
    shape = node.shape
    # Pixels and tokens are fixed; only channels are an axis of parameters.
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


def in_both_modes(value: Value, change: Callable[[Value], Value]) -> Value:
    """Apply a change to the outputs of a graph in training and in evaluation."""
    if isinstance(value, Mode):
        return Mode(change(value.train), change(value.eval))
    return change(value)


def operands_in(graph: ArchGraph) -> Callable[[str], Iterable[str]]:
    """Return a function from an operator's name to the results that the operator uses."""
    return lambda name: graph.node[name].uses()


def following(stands_in: Mapping[str, Value]) -> Callable[[Value], Value]:
    """Return a function that replaces a result, following replacements of replacements."""

    def follow(value: Value) -> Value:
        while isinstance(value, Ref) and value.name in stands_in:
            value = stands_in[value.name]
        return value

    return follow


def matching(patterns: str | Iterable[str], names: Mapping[str, str], problem: str) -> set[str]:
    """Return the values in ``names`` whose keys equal or match a pattern.

    Raises:
        GraphError: If a pattern matches no key. The message is ``problem``, with the nearest names.
    """
    chosen: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        exact = [pattern] if pattern in names else []
        matches = exact or [name for name in names if fnmatch.fnmatchcase(name, pattern)]
        if not matches:
            hint = nearest(pattern, names, cutoff=0.0, count=3)
            raise GraphError(problem, where=pattern, hint=hint)
        chosen.update(names[name] for name in matches)
    return chosen


def unused_leaves(graph: ArchGraph) -> dict[str, set[str]]:
    """Return a dict from each unused parameter or buffer to the used ones in its module."""
    assigned = {buffer for buffer, _ in graph.updates}
    modules: dict[str, set[str]] = {}
    for param in graph.params:
        if graph.leaf_users[param.name]:
            modules.setdefault(param.name.rpartition(".")[0], set()).add(param.name)
    return {
        p.name: modules.get(p.name.rpartition(".")[0], set())
        for p in graph.params
        if not graph.leaf_users[p.name] and p.name not in assigned and p.role != "constant"
    }


def tidied(before: ArchGraph, after: ArchGraph) -> ArchGraph:
    """Remove unused buffers (such as counters) of modules whose used tensors were all removed."""
    # An unused leaf outside any module remains, because checkpoints contain it.
    gone = {
        name
        for name, module in unused_leaves(before).items()
        if module and not any(leaf in after.param for leaf in module)
    }
    return after.replace(params=tuple(p for p in after.params if p.name not in gone))
