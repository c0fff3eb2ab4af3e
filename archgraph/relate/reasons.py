"""Why parts of two graphs have no counterpart."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from archgraph.analysis.forms import differ, nearest
from archgraph.relate.alignment import Side, Unmatched
from archgraph.relate.sides import Index, Match, Sides, covered

# Why blocks of one form were not matched, by number in the client and in the whole.
Refused = Mapping[tuple[int, int], str]


def unmatched(
    sides: Sides, matches: Sequence[Match], refused: Refused, leaves: Collection[str]
) -> Iterator[Unmatched]:
    """Parts without a counterpart: the client's blocks, then its leaves, then the whole's blocks.

    Args:
        sides: The graphs.
        matches: Blocks that belong together.
        refused: Why blocks of one form were not matched.
        leaves: The client's leaves that have a counterpart.
    """
    yield from _blocks(sides, 0, matches, refused)
    lost = _leaves_of_lost_blocks(sides, matches)
    for param in sides.graphs[0].params:
        if param.role != "constant" and param.name not in leaves and param.name not in lost:
            yield Unmatched(
                param.name,
                "client",
                "evaluation does not use it, and no leaf of its module or name is left in the "
                "other graph",
            )
    yield from _blocks(sides, 1, matches, refused)


def _leaves_of_lost_blocks(sides: Sides, matches: Sequence[Match]) -> set[str]:
    """The client's leaves in the modules of blocks that have no counterpart."""
    graph, matched = sides.graphs[0], covered(matches, 0)
    nodes = (n for i, b in enumerate(sides.blocks[0]) if i not in matched for n in b.nodes)
    used = {leaf for n in nodes for leaf in graph.node[n].leaves()}
    modules = {leaf.rpartition(".")[0] for leaf in used}
    return used | {p.name for p in graph.params if p.name.rpartition(".")[0] in modules}


def _blocks(
    sides: Sides, side: Index, matches: Sequence[Match], refused: Refused
) -> Iterator[Unmatched]:
    """Blocks of one graph without a counterpart; whole sections as one."""
    matched, blocks = covered(matches, side), sides.blocks[side]
    name: Side = "whole" if side else "client"
    sections = sides.forms[side].structure.sections
    for section, members in zip(sections, sides.sections(side), strict=True):
        gone = [i for i in members if i not in matched and sides.works(side, blocks[i])]
        reasons = {i: _reason(sides, side, i, matches, refused) for i in gone}
        if len(gone) == len(members) > 1 and len(set(reasons.values())) == 1:
            yield Unmatched(section.name, name, next(iter(reasons.values())))
        else:
            for i, reason in reasons.items():
                yield Unmatched(blocks[i].name, name, reason)


def _reason(
    sides: Sides, side: Index, index: int, matches: Sequence[Match], refused: Refused
) -> str:
    for pair, reason in refused.items():
        if pair[side] == index:
            return reason
    other: Index = 0 if side else 1
    form = sides.form(side, range(index, index + 1))
    candidates = [sides.forms[other].part(b.entry, b.exit) for b in sides.blocks[other]]
    matched = covered(matches, other)
    same = [i for i, candidate in enumerate(candidates) if candidate.lines == form.lines]
    free = [i for i in same if i not in matched]
    if free:
        name = sides.blocks[other][free[0]].name
        return f"{name} of the other graph has this form ({form}), but lies elsewhere"
    if same:
        return f"the other graph has fewer blocks of this form ({form})"
    best = nearest(form, candidates)
    text = f" ({differ(form, best)})" if best is not None else ""
    return f"no block of the other graph has this form{text}"
