"""Which blocks of two graphs belong together: sections in order, blocks in order within them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from archgraph.analysis.structure import Block
from archgraph.relate.likeness import OPERATOR, Likeness
from archgraph.relate.sequence import best_matches
from archgraph.relate.sides import Index, Match, Sides, agree, covered

# What a pair of blocks has in common, most important first: operators at one resolution (PLACE),
# operators (OPERATOR), the name (NAME), shapes of leaves (1 each).
PLACE, NAME = 10**14, 10**4
# Blocks of one graph that may be one block of the other.
MERGED = 8


def matching_blocks(sides: Sides, likeness: Likeness) -> list[Match]:
    """The blocks that belong together: by sections, or as one run where that matches more.

    Two sections are worth what the best sequence of matches of their blocks is worth; the best
    sequence of sections wins, unless all blocks as one run are worth more and leave fewer blocks
    over.
    """
    left, right = sides.sections(0), sides.sections(1)
    names, others = ([s.name for s in f.structure.sections] for f in sides.forms)
    inner = [
        [_run(sides, likeness, a, b, names[i] == others[j]) for j, b in enumerate(right)]
        for i, a in enumerate(left)
    ]
    total, chosen = best_matches(len(left), len(right), lambda i, j: ((inner[i][j][0], 1, 1),))
    by_sections = [match for piece in chosen for match in inner[piece.i][piece.j][1]]
    every = range(len(sides.blocks[0])), range(len(sides.blocks[1]))
    flat, run = _run(sides, likeness, *every, False)
    better = any(left_over(sides, run) < left_over(sides, by_sections) for left_over in _LEFT_OVER)
    return run if flat > total and better else by_sections


def same_operators(sides: Sides, nodes: Mapping[str, str]) -> list[Match]:
    """Blocks of two graphs of one form: those that have the same operators."""
    at = {n: j for j, b in enumerate(sides.blocks[1]) for n in b.nodes}
    matches = []
    for i, block in enumerate(sides.blocks[0]):
        places = Counter(at[nodes[n]] for n in block.nodes if n in nodes)
        if places:
            j = places.most_common(1)[0][0]
            matches.append((range(i, i + 1), range(j, j + 1)))
    return matches


def _lacking(sides: Sides, matches: Sequence[Match]) -> int:
    """Number of the client's blocks without a counterpart."""
    matched = covered(matches, 0)
    return sum(i not in matched and sides.works(0, b) for i, b in enumerate(sides.blocks[0]))


def _fixed(sides: Sides, matches: Sequence[Match]) -> int:
    """Number of blocks without a counterpart that cannot be left out either."""
    indices: tuple[Index, Index] = (0, 1)
    matched = [covered(matches, side) for side in indices]
    return sum(
        not block.removable and i not in matched[side]
        for side in indices
        for i, block in enumerate(sides.blocks[side])
    )


_LEFT_OVER = (_fixed, _lacking)


def _run(
    sides: Sides, likeness: Likeness, a: range, b: range, named: bool
) -> tuple[int, list[Match]]:
    """Align two runs of blocks: what they have in common, and the matches."""

    def options(i: int, j: int) -> Iterator[tuple[int, int, int]]:
        pieces = _pieces(sides, range(a[i], a.stop), range(b[j], b.stop))
        if pieces is None:
            return
        m, n = pieces
        value = likeness.value(range(a[i], a[i] + m), range(b[j], b[j] + n))
        if value:
            if _same_resolution(sides, a[i] + m - 1, b[j] + n - 1):
                value += value // OPERATOR * PLACE
            if named and sides.blocks[0][a[i]].name == sides.blocks[1][b[j]].name:
                value += NAME
            yield value, m, n

    total, chosen = best_matches(len(a), len(b), options)
    return total, [(range(a[i], a[i] + m), range(b[j], b[j] + n)) for i, j, m, n in chosen]


def _pieces(sides: Sides, a: range, b: range) -> tuple[int, int] | None:
    """How many blocks from the start of two runs have equally many operators in all.

    One and one, unless the graphs are cut into blocks at other places.
    """
    m = n = 1
    size, other = sides.sizes[0][a[0]], sides.sizes[1][b[0]]
    while size != other:
        if max(m, n) > MERGED:
            return None
        if size < other:
            if m == len(a) or not _follows(sides.blocks[0], a[m]):
                return None
            size, m = size + sides.sizes[0][a[m]], m + 1
        else:
            if n == len(b) or not _follows(sides.blocks[1], b[n]):
                return None
            other, n = other + sides.sizes[1][b[n]], n + 1
    return m, n


def _follows(blocks: Sequence[Block], index: int) -> bool:
    """Whether a block takes the result of the one before it."""
    return blocks[index].entry == blocks[index - 1].exit


def _same_resolution(sides: Sides, i: int, j: int) -> bool:
    """Whether the results of two blocks have one resolution."""
    known = sides.resolutions
    return known is not None and agree(known[0][i], known[1][j])
