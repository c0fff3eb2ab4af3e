"""Sections after a rewrite of depth, and the depths that are asked for."""

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
    """Return the depths by section.

    Raises:
        RewriteError: For anything but whole numbers by name.
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
    """Keep the sections: the user's own, and those that could not be found again.

    Dropping blocks can take away what the analysis goes by (the last residual block of a section,
    the repetition of a layer); the sections are then written into the graph.
    """
    kinds = {s.name: s.kind for s in parts.sections}
    mine = dict(before.sections)
    known = {b for blocks in mine.values() for b in blocks}
    if mine:
        # A section without a list keeps what is in its scope; a copy of its only block is not.
        listed = [
            (name, bs if any(path_of(b)[0] != name for b in bs) else ())
            if mine.get(name) == ()
            else (name, tuple(b for b in bs if b in known or mine.get(name)))
            for name, bs in names
        ]
        requested = [(name, blocks) for name, blocks in listed if blocks or mine.get(name) == ()]
    elif section_blocks(rewritten.graph) == [(n, b) for n, b in names if b]:
        return rewritten
    else:
        stages = [(name, blocks) for name, blocks in names if kinds.get(name) == "stage"]
        requested = [(name, blocks) for name, blocks in stages if blocks]
    graph = rewritten.graph.replace(sections=tuple(requested))
    try:
        section_blocks(graph)
    except GraphError:  # some of these blocks are gone
        return rewritten
    return Rewritten(graph, rewritten.transfer)
