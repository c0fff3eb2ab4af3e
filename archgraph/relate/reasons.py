"""Why parts of two graphs have no counterpart."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from archgraph.analysis.forms import differ, nearest
from archgraph.relate.alignment import Unmatched
from archgraph.relate.sides import Match, Sides

# Why blocks of one form were not matched, by number in the client and in the whole.
Refused = Mapping[tuple[int, int], str]


def unmatched(
    sides: Sides, matches: Sequence[Match], refused: Refused, leaves: Collection[str]
) -> Iterator[Unmatched]:
    """Parts without a counterpart: the client's blocks, its leaves, then the whole's blocks."""
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
                "evaluation does not use it, and no leaf of its module or name is left in the "
                "other graph",
            )
    yield from _blocks(sides, 1, matches, refused)


def _blocks(
    sides: Sides, index: int, matches: Sequence[Match], refused: Refused
) -> Iterator[Unmatched]:
    """Blocks of one graph without a counterpart; whole sections as one."""
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
        return f"{name} of the other graph has this form ({form}), but lies elsewhere"
    if same:
        return f"the other graph has fewer blocks of this form ({form})"
    best = nearest(form, candidates)
    text = f" ({differ(form, best)})" if best is not None else ""
    return f"no block of the other graph has this form{text}"
