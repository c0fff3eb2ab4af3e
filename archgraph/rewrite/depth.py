"""Depth: leave blocks out, shorten sections, repeat their last block (FedFA, FedADP, NeFL)."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import numpy as np
import torch

from archgraph.analysis.axes import Kept, axes, positions, size_after, sizes_after, touched
from archgraph.analysis.structure import Block, Section, Structure, structure
from archgraph.check import check
from archgraph.errors import GraphError, RewriteError
from archgraph.ir import (
    ArchGraph,
    Atom,
    Batch,
    Leaf,
    Mode,
    Node,
    Param,
    Ref,
    TensorType,
    Value,
    prune,
    renumber,
    replace,
    same,
    size_at,
    specialise,
    walk,
)
from archgraph.layout import AxisRef, leaves
from archgraph.ops.schema import canonical_args, from_atom, schema
from archgraph.ops.table import is_random, row
from archgraph.transfer import DimMap, Entry, Rewritten, Transfer, signature

Names: TypeAlias = Sequence[tuple[str, tuple[str, ...]]]  # block names by section

# -- fewer blocks -------------------------------------------------------------------------------


def skip(
    graph: ArchGraph,
    blocks: str | Iterable[str],
    *,
    keep_projection: bool = False,
    verify: bool = False,
) -> Rewritten:
    """Leave blocks out: the value that enters each stands in for the value that left it.

    From a dense block the term that it appends goes, and with it the width of all that reads it.

    Args:
        graph: The architecture.
        blocks: Names or patterns (``layer2.1``, ``layer*.1``).
        keep_projection: Keep the projection shortcut of a block, so that only its body goes; a
            block that changes the shape can then be left out too (NeFL).
        verify: Compare with the original that runs with these blocks bypassed (two forwards in
            float64).

    Raises:
        RewriteError: For a block that does not exist or cannot be left out, with the reason.

    Example:
        >>> import torch
        >>> from archgraph.trace import trace
        >>> net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
        >>> [p.name for p in skip(trace(net, torch.zeros(1, 4)).graph, "1").graph.params]
        ['0.weight', '0.bias', '2.weight', '2.bias']
    """
    found = structure(graph)
    bypass: dict[str, str] = {}  # a node whose value another one's stands in for
    terms: dict[str, str] = {}  # what dense blocks append: the exit after which it is read
    gone: set[str] = set()
    for block in _matching(found, [blocks] if isinstance(blocks, str) else list(blocks)):
        projected = block.shortcut not in ("", block.entry)
        if keep_projection and projected:
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
        (s.name, tuple(b.name for b in s.blocks if b.name not in gone)) for s in found.sections
    ]
    rewritten = _with_sections(_without(graph, bypass, terms, kept), graph, found, names)
    if verify:
        dense = set(terms.values())
        _bypassed(graph, rewritten, {k: v for k, v in bypass.items() if k not in dense}, kept)
    return rewritten


def shallow(graph: ArchGraph, depths: Mapping[str, int], *, verify: bool = False) -> Rewritten:
    """Shorten sections: leave out their last removable blocks.

    Args:
        graph: The architecture.
        depths: Number of blocks to keep, by section; a section that is not named stays.
        verify: As in :func:`skip`.

    Raises:
        RewriteError: For a depth that the section cannot have; gives the range.
        GraphError: For a section that does not exist; names the nearest.

    Example:
        >>> import torch
        >>> from archgraph.trace import trace
        >>> net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))
        >>> [len(s.blocks) for s in structure(shallow(trace(net, torch.zeros(1, 4)).graph,
        ...                                           {"0": 2}).graph).sections]
        [2, 1]
    """
    found = structure(graph)
    out: list[str] = []
    for name, depth in depths.items():
        section = found.section(name)
        free = [b.name for b in section.blocks if b.removable]
        most = len(section.blocks)
        least = max(most - len(free), 1)
        if isinstance(depth, bool) or not least <= depth <= most:
            fixed = [b for b in section.blocks if not b.removable]
            hint = f"{fixed[0].name} stays: it {fixed[0].reason}" if fixed else None
            raise RewriteError(
                "impossible depth",
                where=name,
                found=depth,
                expected=f"{least} to {most}" if least < most else str(most),
                hint=hint,
            )
        out += free[len(free) - (most - depth) :]
    return skip(graph, out, verify=verify)


def _matching(found: Structure, patterns: Sequence[str]) -> list[Block]:
    """Blocks by name or pattern, in topological order."""
    chosen: set[str] = set()
    known = [b.name for b in found.blocks]
    for pattern in patterns:
        named = [n for n in known if n == pattern] or fnmatch.filter(known, pattern)
        if not named:
            near = difflib.get_close_matches(pattern, known, n=1, cutoff=0.5)
            raise RewriteError(
                "no such block", found=pattern, expected=near[0] if near else ", ".join(known)
            )
        chosen.update(named)
    return [b for b in found.blocks if b.name in chosen]


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
    entries: dict[str, Entry] = {}
    params = []
    for param in graph.params:
        dims: tuple[DimMap | None, ...] = (None,) * len(param.shape)
        if kept:
            param, dims = _resized(graph, param, kept)
        params.append(param)
        entries[param.name] = Entry(param.name, dims)
    if kept:
        nodes = tuple(_resized_node(graph, n, kept) for n in nodes)
    new = prune(
        graph.replace(
            params=tuple(params),
            nodes=nodes,
            outputs=replace(graph.outputs, change),
            updates=tuple((k, replace(v, change)) for k, v in graph.updates),
        )
    )
    new = renumber(new)
    check(new)
    return Rewritten(
        new,
        Transfer(signature(graph), signature(new), {n: entries[n] for n in new.state_names}),
    )


def _resized(
    graph: ArchGraph, param: Param, kept: Kept
) -> tuple[Param, tuple[DimMap | None, ...]]:
    layouts = axes(graph).of(param.name)
    cut = [touched(layout, kept) for layout in layouts]
    if not any(cut) or param.value is not None:
        return param, (None,) * len(layouts)
    index = [positions(a, kept) for a in layouts]
    dims = tuple(
        DimMap.of(i, size) if c and len(i) else None
        for c, i, size in zip(cut, index, param.shape, strict=True)
    )
    type_ = TensorType(tuple(len(i) for i in index), param.dtype)
    return dataclasses.replace(param, type=type_), dims


def _resized_node(graph: ArchGraph, node: Node, kept: Kept) -> Node:
    if node.op == "input":
        return node
    solved = axes(graph)
    types = tuple(
        TensorType(tuple(size_after(d, kept) for d in layouts), t.dtype)
        for t, layouts in zip(node.types, solved.value[node.name], strict=True)
    )
    sizes = {
        k: sizes_after(solved.attributes[node.name, k], kept)
        for k, _ in node.args
        if (node.name, k) in solved.attributes
    }
    given = dict(node.args) | sizes
    args = canonical_args(node.op, given) if node.op.startswith("aten.") else tuple(given.items())
    return dataclasses.replace(
        node, args=args, type=types if isinstance(node.type, tuple) else types[0]
    )


def _references(node: Node) -> list[str]:
    """Operands that an operator takes in lists."""
    lists = (v for _, v in node.args if isinstance(v, tuple))
    return [i.name for v in lists for i in v if isinstance(i, Ref)]


def _with_sections(
    rewritten: Rewritten, before: ArchGraph, found: Structure, names: Names
) -> Rewritten:
    """Keep the sections: the user's own, and those that could not be found again.

    Dropping blocks can take away what the analysis goes by (the last residual block of a section,
    the repetition of a layer); the sections are then written into the graph.
    """
    kinds = {s.name: s.kind for s in found.sections}
    given = {b for _, blocks in before.sections for b in blocks}
    if given:
        wanted = [
            (name, tuple(b for b in blocks if b in given or name in dict(before.sections)))
            for name, blocks in names
        ]
    elif _names(structure(rewritten.graph)) == [(n, b) for n, b in names if b]:
        return rewritten
    else:
        wanted = [(name, blocks) for name, blocks in names if kinds.get(name) == "stage"]
    sections = tuple((name, blocks) for name, blocks in wanted if blocks)
    graph = rewritten.graph.replace(sections=sections)
    return Rewritten(graph, rewritten.transfer)


def _names(found: Structure) -> list[tuple[str, tuple[str, ...]]]:
    return [(s.name, tuple(b.name for b in s.blocks)) for s in found.sections]


# -- more blocks --------------------------------------------------------------------------------


def graft(
    graph: ArchGraph,
    depths: Mapping[str, int],
    *,
    like: ArchGraph | None = None,
    verify: bool = False,
) -> Rewritten:
    """Lengthen sections by copies of their last block.

    Where blocks alternate (attention, feed-forward) the copies go on alternating. The copies'
    weights come from the block that they repeat.

    Args:
        graph: The architecture.
        depths: Number of blocks to reach, by section; a section that is not named stays.
        like: An architecture (the global one) whose names the new blocks take, so that the result
            lines up with it; otherwise the number in the last block's name is increased.
        verify: Check that leaving the new blocks out again gives the graph back.

    Raises:
        RewriteError: For a depth below the section's own, a section that ends in a block that
            changes the shape, or one that has no counterpart in ``like``.
        GraphError: For a section that does not exist; names the nearest.

    Example:
        >>> import torch
        >>> from archgraph.trace import trace
        >>> net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
        >>> deep = graft(trace(net, torch.zeros(1, 4)).graph, {"0": 3})
        >>> deep.transfer.entries["3.weight"].source
        '1.weight'

    Source: Wang et al., FedFA, NeurIPS 2023 workshop / arXiv 2311.xxxxx, layer grafting.
    """
    found = structure(graph)
    model = structure(like) if like is not None else None
    splice = _Splice(graph)
    names: dict[str, list[str]] = {s.name: [b.name for b in s.blocks] for s in found.sections}
    fresh: list[str] = []
    for name, depth in depths.items():
        section = found.section(name)
        have = len(section.blocks)
        if isinstance(depth, bool) or depth < have:
            raise RewriteError(
                "impossible depth",
                where=name,
                found=depth,
                expected=f"at least {have}",
                hint="shallow() leaves blocks out",
            )
        if depth == have:
            continue
        if like is None or model is None:
            added = _extend(splice, section, depth)
        else:
            added = _line_up(splice, section, depth, like, model)
        names[name] = added
        fresh += [b for b in added if b not in {b.name for b in section.blocks}]
    if not fresh:
        return Rewritten.identity(graph)
    rewritten = splice.rewritten(like)
    wanted = [(k, tuple(v)) for k, v in names.items()]
    rewritten = _with_sections(rewritten, graph, found, wanted)
    if like is not None and _names(structure(rewritten.graph.replace(sections=like.sections))) == (
        wanted
    ):
        rewritten = Rewritten(
            rewritten.graph.replace(sections=like.sections), rewritten.transfer
        )
    if verify:
        _undone(graph, rewritten, fresh)
    return rewritten
