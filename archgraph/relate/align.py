"""Align two independently written graphs: their sections, blocks, operators and leaves.

Sections are aligned in order, then blocks within sections, then operators and leaves (parameters,
buffers and constants) within blocks. Two blocks match if they have the same form
(:mod:`archgraph.analysis.forms`), whatever their names and widths.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from archgraph.analysis.forms import differ, nearest_form
from archgraph.graph.argument import GraphLike, graph_of
from archgraph.graph.ir import ArchGraph, per_graph
from archgraph.relate.alignment import Alignment, Unmatched
from archgraph.relate.blocks import matching_blocks, same_operators
from archgraph.relate.counterparts import Counterparts
from archgraph.relate.likeness import Likeness
from archgraph.relate.sides import Match, Sides, side_by_side

# Dict from indices of blocks of both graphs to the reason why they were not matched.
Refused = Mapping[tuple[int, int], str]


def align(client: GraphLike, whole: GraphLike) -> Alignment:
    """Find the corresponding parts of two graphs, even if they were written independently.

    Sections are aligned in order, then blocks in order within them. Two blocks match if they have
    the same operators, connected in the same way, with the same arguments, constants and kernel
    sizes. Differences in widths (including attention's 1/√width), in dropout rates and in training
    behaviour are ignored. If several operands of an operator (such as the terms of a sum) are
    computed in the same way, they are paired by name. If the graphs have no common names, they are
    paired by width.

    The alignment matches as many operators as possible, preferably those with the same resolution.
    Among alignments with equally many operators, alignments with more equal names are preferred,
    then those with more equal shapes. Sections are ignored if more operators then match and fewer
    blocks remain unmatched.

    Args:
        client: A graph, usually the smaller one.
        whole: Another graph, usually the global model's.

    Returns:
        The alignment. If ``whole`` contains ``client``, its ``transfer`` maps states of ``whole``
        to states of ``client``.

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
    return _aligned(graph_of(client), graph_of(whole))


@per_graph  # several tiers of a family may be the same pair of graphs
def _aligned(client: ArchGraph, whole: ArchGraph) -> Alignment:
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
        tuple(_unmatched(sides, matches, likeness.refused, counterparts.leaves)),
    )


def _unmatched(
    sides: Sides, matches: Sequence[Match], refused: Refused, leaves: Collection[str]
) -> Iterator[Unmatched]:
    """Yield unmatched blocks and leaves of the client, then unmatched blocks of the other graph."""
    yield from _blocks(sides, 0, matches, refused)
    graph = sides[0].graph
    matched = {i for run, _ in matches for i in run}
    nodes = (n for i, b in enumerate(sides[0].blocks) if i not in matched for n in b.nodes)
    lost = {leaf for n in nodes for leaf in graph.node[n].leaves()}
    modules = {leaf.rpartition(".")[0] for leaf in lost}
    for param in graph.params:
        gone = param.name in lost or param.name.rpartition(".")[0] in modules
        if param.role != "constant" and param.name not in leaves and not gone:
            yield Unmatched(
                param.name,
                "client",
                "evaluation does not use it, and the other graph has no leaf left of its module "
                "or name",
            )
    yield from _blocks(sides, 1, matches, refused)


def _blocks(
    sides: Sides, index: int, matches: Sequence[Match], refused: Refused
) -> Iterator[Unmatched]:
    """Yield the unmatched blocks of one graph, or their section if none of its blocks match."""
    side = sides[index]
    gone = side.unmatched(match[index] for match in matches)
    reasons = {i: _reason(sides, index, i, matches, refused) for i in gone}
    for section, run in zip(side.sections, side.runs, strict=True):
        inside = {i: reasons[i] for i in run if i in reasons}
        parts = {side.blocks[i].name: reason for i, reason in inside.items()}
        if len(inside) == len(run) > 1 and len({*inside.values()}) == 1:
            parts = {section.name: next(iter(inside.values()))}
        for part, reason in parts.items():
            yield Unmatched(part, "whole" if index else "client", reason)


def _reason(
    sides: Sides, index: int, block: int, matches: Sequence[Match], refused: Refused
) -> str:
    for pair, reason in refused.items():
        if pair[index] == block:
            return reason
    form, other = sides[index].form(range(block, block + 1)), sides[1 - index]
    candidates = [other.form(range(i, i + 1)) for i in range(len(other.blocks))]
    matched = {i for match in matches for i in match[1 - index]}
    same = [i for i, candidate in enumerate(candidates) if candidate.lines == form.lines]
    free = [i for i in same if i not in matched]
    if free:
        name = other.blocks[free[0]].name
        return f"{name} of the other graph has this form ({form}), but a different position"
    if same:
        return f"the other graph has fewer blocks of this form ({form})"
    best = nearest_form(form, candidates)
    text = f" ({differ(form, best)})" if best is not None else ""
    return f"no block of the other graph has this form{text}"
