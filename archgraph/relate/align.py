"""Align: relate two graphs that were written separately, part by part, leaf by leaf, axis by axis.

Sections are aligned in order, blocks within sections, operators and leaves within blocks: two
blocks belong together when they have one form (:mod:`archgraph.analysis.forms`), whatever their
names and widths.
"""

from __future__ import annotations

from archgraph.graph.argument import GraphLike, graph_of, takes_graph
from archgraph.graph.ir import ArchGraph
from archgraph.relate.alignment import Alignment
from archgraph.relate.blocks import matching_blocks, same_operators
from archgraph.relate.counterparts import Counterparts
from archgraph.relate.likeness import Likeness
from archgraph.relate.reasons import unmatched
from archgraph.relate.sides import Match, side_by_side


@takes_graph
def align(client: ArchGraph, whole: GraphLike) -> Alignment:
    """Find what of two graphs belongs together, whoever wrote them.

    Sections are aligned in order, then blocks in order within them; two blocks match when they
    have one form: the same operators, wired alike, with the same arguments, constants and kernels;
    widths of free axes, factors that are roots of widths, rates and what only training does aside.
    Operands of one form are told apart by name, in graphs without common names by width. As much as
    can is matched, first of all at the same resolution; then equal names count (in sections of one
    name), then equal shapes, then what comes first. Where that leaves more of the client's blocks
    over, or more that could not be left out, blocks are aligned as one run, sections aside.

    Args:
        client: A graph, usually the smaller one.
        whole: Another one.

    Returns:
        The alignment; ``transfer`` is the map from the whole's states to the client's, if the
        whole contains the client.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> def net(*widths):
        ...     layers = []
        ...     for a, b in zip((3, *widths), widths):
        ...         layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
        ...     layers += [torch.nn.Linear(widths[-1], 2)]
        ...     return trace(torch.nn.Sequential(*layers), torch.zeros(1, 3)).graph
        >>> found = align(net(4), net(8, 8))
        >>> found.blocks, found.score
        ((('0', '0'), ('2', '4')), 0.8)
        >>> print(*align(net(4, 4), net(8, 8, 8)).unmatched)
        whole 4: the other graph has fewer blocks of this form (linear > relu)
        >>> {name: str(entry) for name, entry in found.transfer.entries.items()}["2.weight"]
        '4.weight[:, :4]'
    """
    whole = graph_of(whole)
    sides = side_by_side(client, whole)
    likeness, counterparts = Likeness(sides), Counterparts(sides)
    mine, theirs = (side.forms.whole for side in sides)
    matches: list[Match] = []
    if mine.lines == theirs.lines and not likeness.obstacle(mine, theirs):
        counterparts.pair(mine, theirs)
        matches = same_operators(sides, counterparts.nodes)
    else:
        for match in matching_blocks(sides, likeness):
            if reason := counterparts.accept(match):
                likeness.refused[match[0][0], match[1][0]] = reason
            else:
                matches.append(match)
    counterparts.pair_unused()
    # The last block of the shorter of two runs has several counterparts.
    pairs = [
        (sides[0].blocks[a[min(k, len(a) - 1)]], sides[1].blocks[b[min(k, len(b) - 1)]])
        for a, b in matches
        for k in range(max(len(a), len(b)))
    ]
    return Alignment(
        client,
        whole,
        tuple(dict.fromkeys((a.section, b.section) for a, b in pairs)),
        tuple((a.name, b.name) for a, b in pairs),
        tuple(counterparts.nodes.items()),
        tuple(counterparts.leaves.items()),
        tuple(unmatched(sides, matches, likeness.refused, counterparts.leaves)),
    )
