"""Shorten sections: remove their last blocks (FedFA, FedADP)."""

from __future__ import annotations

from collections.abc import Mapping

from archgraph.analysis.structure import structure
from archgraph.errors import RewriteError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph
from archgraph.rewrites.sections import integer_depths
from archgraph.rewrites.skip import skip
from archgraph.states import Rewritten


@takes_graph
def shorten(graph: ArchGraph, depths: Mapping[str, int], *, verify: bool = False) -> Rewritten:
    """Shorten sections (stages of similar blocks) by removing their last removable blocks.

    Args:
        graph: The architecture.
        depths: Dict from section to the number of blocks to keep. Sections that are not in the dict
            keep all blocks.
        verify: As in :func:`skip`.

    Raises:
        RewriteError: If a section cannot have the given number of blocks. The message gives the
            possible range.
        GraphError: If a section does not exist. The message suggests the nearest name.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))
        >>> short = shorten(trace(net, torch.zeros(1, 4)).graph, {"0": 2}).graph
        >>> [len(s.blocks) for s in structure(short).sections]
        [2, 1]
    """
    parts = structure(graph)
    out: list[str] = []
    for name, depth in integer_depths(depths).items():
        section = parts.section(name)
        free = [b.name for b in section.blocks if b.removable]
        most = len(section.blocks)
        least = max(most - len(free), 1)
        if not least <= depth <= most:
            fixed = next((b for b in section.blocks if not b.removable), None)
            hint = f"{fixed.name} stays: it {fixed.reason}" if fixed else None
            bounds = f"{least} to {most}" if least < most else str(most)
            raise RewriteError(
                "depth out of range", where=name, found=depth, expected=bounds, hint=hint
            )
        out += free[len(free) - (most - depth) :]
    return skip(graph, out, verify=verify)
