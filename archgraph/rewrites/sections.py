"""Update a graph's sections after a change of depth, and validate depths."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from archgraph.analysis.modules import path_of
from archgraph.analysis.structure import Structure, section_blocks
from archgraph.errors import GraphError, RewriteError
from archgraph.graph.ir import ArchGraph
from archgraph.states import Rewritten

SectionBlocks: TypeAlias = Sequence[tuple[str, tuple[str, ...]]]  # block names by section


def integer_depths(depths: Mapping[str, int]) -> dict[str, int]:
    """Check the depths of sections, and return them as a dict.

    Raises:
        RewriteError: If the depths are not a dict from name to integer.
    """
    if not isinstance(depths, Mapping):
        raise RewriteError("depths must map sections to numbers", found=repr(depths))
    for name, depth in depths.items():
        if isinstance(depth, bool) or not isinstance(depth, numbers.Integral):
            raise RewriteError("depth is not an integer", where=name, found=repr(depth))
    return {name: int(depth) for name, depth in depths.items()}


def with_sections(
    rewritten: Rewritten, before: ArchGraph, parts: Structure, names: SectionBlocks
) -> Rewritten:
    """Return the rewrite; if necessary, store the original's sections in the new graph.

    This is necessary if the analysis would find other sections in the new graph, for example
    because the last residual block of a section was removed.
    """
    if before.sections:
        requested = _requested(dict(before.sections), names)
    elif section_blocks(rewritten.graph) == [(name, blocks) for name, blocks in names if blocks]:
        return rewritten
    else:
        stages = {s.name for s in parts.sections if s.kind == "stage"}
        requested = [(name, blocks) for name, blocks in names if blocks and name in stages]
    graph = rewritten.graph.replace(sections=tuple(requested))
    try:
        section_blocks(graph)
    except GraphError:  # some of these blocks no longer exist
        return rewritten
    return Rewritten(graph, rewritten.transfer)


def _requested(lists: Mapping[str, tuple[str, ...]], names: SectionBlocks) -> SectionBlocks:
    """Return the user's sections with the blocks that they have after the rewrite.

    1. A section without a list consists of the blocks in its module. If a copy is outside this
       module, the section gets a list.
    2. A section with a list keeps its blocks and their copies.
    3. A section that the user did not define keeps only blocks that the user listed.
    """
    listed = {block for blocks in lists.values() for block in blocks}
    requested = list[tuple[str, tuple[str, ...]]]()
    for name, blocks in names:
        if lists.get(name) == ():  # 1
            beside = any(path_of(block)[0] != name for block in blocks)
            requested.append((name, blocks if beside else ()))
        elif rest := blocks if name in lists else tuple(b for b in blocks if b in listed):  # 2, 3
            requested.append((name, rest))
    return requested
