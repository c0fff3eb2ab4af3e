"""Skip: leave blocks out (NeFL, FedADP)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from archgraph.analysis.after import node_after, param_after
from archgraph.analysis.axes import axes
from archgraph.analysis.positions import Kept, positions, touched
from archgraph.analysis.structure import Block, Structure, structure
from archgraph.errors import RewriteError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph, Node, Ref, Value, replace
from archgraph.graph.passes import prune, renumber
from archgraph.layout.layouts import AxisRef, Layout, leaves
from archgraph.ops.check import check
from archgraph.rewrite.leaves import tidied
from archgraph.rewrite.sections import with_sections
from archgraph.states import DimMap, Entry, Rewritten, Transfer, signature


@takes_graph
def skip(
    graph: ArchGraph,
    blocks: str | Iterable[str] = (),
    *,
    keep: Mapping[str, Sequence[int]] | None = None,
    keep_projection: bool = False,
    verify: bool = False,
) -> Rewritten:
    """Leave blocks out: the value that enters each stands in for the value that left it.

    From a dense block the term that it appends goes, and with it the width of all that reads it.

    Args:
        graph: The architecture.
        blocks: Names or patterns (``layer2.1``, ``layer*.1``).
        keep: A 1 for every block that stays and a 0 for every block that goes, by section, as
            NeFL's tables list them; of these blocks projection shortcuts stay.
        keep_projection: Keep the projection shortcut of a block, so that only its body goes; a
            block that changes the shape can then be left out too (NeFL).
        verify: Compare with the original that runs with these blocks bypassed (two forwards in
            float64).

    Raises:
        RewriteError: For a block that cannot be left out, with the reason.
        GraphError: For a block that does not exist; names the nearest.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
        >>> [p.name for p in skip(trace(net, torch.zeros(1, 4)).graph, "1").graph.params]
        ['0.weight', '0.bias', '2.weight', '2.bias']
    """
    parts = structure(graph)
    bypass: dict[str, str] = {}  # a node whose value another one's stands in for
    terms: dict[str, str] = {}  # what dense blocks append: the exit after which it is read
    gone: set[str] = set()
    flagged = _flagged(parts, keep or {})
    for block in (*parts.matching(blocks), *flagged):
        projected = block.shortcut not in ("", block.entry)
        if projected and (keep_projection or block in flagged):
            bypass[block.merge] = block.shortcut
            continue
        if not block.removable:
            raise RewriteError(
                "block cannot be left out",
                where=block.name,
                found=block.reason,
                hint="keep_projection=True leaves its body out" if projected else None,
            )
        gone.add(block.name)
        bypass[block.exit] = block.entry
        if block.kind == "dense":
            before = set(block.nodes)
            joined = _references(graph.node[block.merge])
            terms |= {name: block.exit for name in joined if name in before}
    if not bypass:
        return Rewritten.identity(graph)
    solved = axes(graph)
    empty = np.zeros(0, dtype=np.int64)
    kept = {
        leaf.name: empty
        for name in terms
        for layout in solved.value[name][0]
        for leaf in leaves(layout)
        if isinstance(leaf, AxisRef)
    }
    names = [
        (s.name, tuple(b.name for b in s.blocks if b.name not in gone)) for s in parts.sections
    ]
    rewritten = with_sections(_without(graph, bypass, terms, kept), graph, parts, names)
    if verify:
        dense = set(terms.values())
        _bypassed(graph, rewritten, {k: v for k, v in bypass.items() if k not in dense}, kept)
    return rewritten


def _flagged(parts: Structure, keep: Mapping[str, Sequence[int]]) -> list[Block]:
    """Blocks whose flag is 0."""
    gone = []
    for name, flags in keep.items():
        blocks = parts.section(name).blocks
        if len(flags) != len(blocks) or not set(flags) <= {0, 1}:
            raise RewriteError(
                "needs a flag for every block",
                where=name,
                found=list(flags),
                expected=f"{len(blocks)} numbers, 0 or 1, for {blocks[0].name} to "
                f"{blocks[-1].name}",
            )
        gone += [block for block, flag in zip(blocks, flags, strict=True) if not flag]
    return gone


def _without(
    graph: ArchGraph, bypass: Mapping[str, str], terms: Mapping[str, str], kept: Kept
) -> Rewritten:
    """Draw values from elsewhere, drop terms of lists, and remove what nothing needs any more."""

    def source(name: str) -> str:
        while name in bypass:
            name = bypass[name]
        return name

    def change(value: Value) -> Value:
        return Ref(source(value.name)) if isinstance(value, Ref) else value

    def drop(value: Value) -> Value:
        if not isinstance(value, tuple):
            return value
        return tuple(v for v in value if not (isinstance(v, Ref) and v.name in terms))

    nodes = tuple(
        dataclasses.replace(n, args=tuple((k, replace(drop(v), change)) for k, v in n.args))
        for n in graph.nodes
    )
    params = graph.params
    maps: dict[str, tuple[DimMap | None, ...]] = {}
    if kept:
        solved = axes(graph)
        nodes = tuple(node_after(solved, n, kept) for n in nodes)
        maps = {p.name: tuple(_maps(solved.leaf[p.name], p.shape, kept)) for p in params}
        params = tuple(param_after(solved, p, kept) for p in params)
    new = prune(
        graph.replace(
            params=params,
            nodes=nodes,
            outputs=replace(graph.outputs, change),
            updates=tuple((k, replace(v, change)) for k, v in graph.updates),
        )
    )
    new = renumber(tidied(graph, new))
    check(new)
    entries = {
        name: Entry(name, maps.get(name, (None,) * len(graph.param[name].shape)))
        for name in new.state_names
    }
    return Rewritten(new, Transfer(signature(graph), signature(new), entries))


def _maps(layouts: Sequence[Layout], shape: Sequence[int], kept: Kept) -> Iterator[DimMap | None]:
    """What the transfer takes of a leaf's dimensions; a leaf that loses one whole is not kept."""
    for layout, size in zip(layouts, shape, strict=True):
        index = positions(layout, kept) if touched(layout, kept) else ()
        yield DimMap.of(index, size) if len(index) else None


def _references(node: Node) -> list[str]:
    """Operands that an operator takes in lists."""
    lists = (v for _, v in node.args if isinstance(v, tuple))
    return [i.name for v in lists for i in v if isinstance(i, Ref)]


def _bypassed(
    graph: ArchGraph, rewritten: Rewritten, bypass: Mapping[str, str], kept: Kept
) -> None:
    """The new network computes what the old one does when values stand in for others.

    Raises:
        RewriteError: If it does not.
    """
    from archgraph.module.build import build
    from archgraph.rewrite import laws

    wide = laws.in_float64(graph)
    state = laws.random_state(wide)
    inputs = laws.random_inputs(wide)
    results = laws.outputs(
        build(laws.in_float64(rewritten.graph), rewritten.transfer.pull(state)).eval(), inputs
    )
    if kept:
        wide, state = laws.masked(wide, state, kept)
    original = build(_with_stand_ins(wide, bypass), state).eval()
    gap = laws.difference(results, laws.outputs(original, inputs))
    if not gap <= 1e-10:
        raise RewriteError(
            "the network is not the original with blocks bypassed",
            where=graph.name or "graph",
            found=f"relative difference {gap:.3g}",
            expected="≤ 1e-10",
        )


def _with_stand_ins(graph: ArchGraph, bypass: Mapping[str, str]) -> ArchGraph:
    """The graph with other results in the place of some."""

    def stand_in(value: Value) -> Value:
        while isinstance(value, Ref) and value.name in bypass:
            value = Ref(bypass[value.name])
        return value

    nodes = tuple(
        dataclasses.replace(n, args=tuple((k, replace(v, stand_in)) for k, v in n.args))
        for n in graph.nodes
    )
    outputs = replace(graph.outputs, stand_in)
    return prune(graph.replace(nodes=nodes, outputs=outputs, updates=()), leaves=False)
