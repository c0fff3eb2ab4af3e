"""Find the corresponding blocks of two graphs: sections in order, and blocks within them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from archgraph.relate.likeness import OPERATOR, Likeness
from archgraph.relate.sides import Match, SideGraph, Sides, level

# Scores of a pair of blocks, largest first: per operator at equal resolution (PLACE), per operator
# (OPERATOR), for an equal name (NAME), and 1 per leaf of equal shape.
PLACE, NAME = 10**14, 10**4
# Maximum number of blocks of one graph that may be one block of the other.
MERGED = 8


class MatchedPair(NamedTuple):
    """A match of ``m`` items from index ``i`` of one sequence and ``n`` from ``j`` of another."""

    i: int
    j: int
    m: int
    n: int


def best_matches(
    m: int, n: int, options: Callable[[int, int], Iterable[tuple[int, int, int]]]
) -> tuple[int, list[MatchedPair]]:
    """Align two sequences in order so that the total score of the matches is maximal.

    ``best[i][j]`` is the largest score for the items from index i of the first and from index j of
    the second sequence on. At each step, either an item of one sequence is skipped, or some items
    of both are matched. The matches are then read from (0, 0) on.

    Args:
        m: Length of the first sequence.
        n: Length of the second sequence.
        options: Function from indices i and j to the matches that are possible there. Each has a
            score, a number of items from i on, and a number of items from j on.

    Returns:
        The total score, and the matches in order. If several alignments are best, the first one.

    >>> same = lambda i, j: [(1, 1, 1)] if "abcd"[i] == "xbd"[j] else []
    >>> [(piece.i, piece.j) for piece in best_matches(4, 3, same)[1]]
    [(1, 1), (3, 2)]

    Source: Needleman and Wunsch, *A general method applicable to the search for similarities*,
    Journal of Molecular Biology 48, 1970.
    """
    best = [[0] * (n + 1) for _ in range(m + 1)]
    step: dict[tuple[int, int], tuple[int, int]] = {}
    for i in reversed(range(m)):
        for j in reversed(range(n)):
            top = max(best[i + 1][j], best[i][j + 1])
            for value, p, q in options(i, j):
                total = value + best[i + p][j + q]
                # Not `>`: at equal totals a match is preferred to a skip, so the first one wins.
                if value and total >= top:
                    top = total
                    step[i, j] = p, q
            best[i][j] = top
    matches = []
    i = j = 0
    while i < m and j < n:
        p, q = step.get((i, j), (0, 0))
        if p:
            matches.append(MatchedPair(i, j, p, q))
            i, j = i + p, j + q
        elif best[i][j + 1] == best[i][j]:
            j += 1
        else:
            i += 1
    return best[0][0], matches


def matching_blocks(sides: Sides, likeness: Likeness) -> list[Match]:
    """Match the blocks of two graphs, by sections or, if that matches more, ignoring sections.

    The score of a pair of sections is the total score of the best matches of their blocks. Sections
    are ignored if this increases the total score and leaves fewer blocks unmatched (of the client's
    blocks, or of the blocks that cannot be removed).
    """
    mine, theirs = sides
    inner = [
        [_run(sides, likeness, a, b, s.name == t.name)
         for b, t in zip(theirs.runs, theirs.sections, strict=True)]
        for a, s in zip(mine.runs, mine.sections, strict=True)
    ]  # fmt: skip
    total, chosen = best_matches(
        len(mine.runs), len(theirs.runs), lambda i, j: ((inner[i][j][0], 1, 1),)
    )
    by_sections = [match for piece in chosen for match in inner[piece.i][piece.j][1]]
    left = _left_over(sides, by_sections)
    if not any(left):
        return by_sections  # a single run cannot leave fewer, and costs as much as all sections
    every = range(len(mine.blocks)), range(len(theirs.blocks))
    flat, run = _run(sides, likeness, *every, False)
    fewer = any(a < b for a, b in zip(_left_over(sides, run), left, strict=True))
    return run if flat > total and fewer else by_sections


def same_operators(sides: Sides, nodes: Mapping[str, str]) -> list[Match]:
    """Match the blocks of two graphs that differ only in names and widths, by their operators."""
    at = {n: j for j, b in enumerate(sides[1].blocks) for n in b.nodes}
    matches = []
    for i, block in enumerate(sides[0].blocks):
        places = Counter(at[nodes[n]] for n in block.nodes if n in nodes)
        if places:
            j = places.most_common(1)[0][0]
            matches.append((range(i, i + 1), range(j, j + 1)))
    return matches


def _left_over(sides: Sides, matches: Sequence[Match]) -> tuple[int, int]:
    """Count unmatched blocks: those that are not removable, and the client's."""
    fixed = 0
    for index, side in enumerate(sides):
        matched = {i for match in matches for i in match[index]}
        fixed += sum(not b.removable and i not in matched for i, b in enumerate(side.blocks))
    return fixed, len(sides[0].unmatched(run for run, _ in matches))


def _run(
    sides: Sides, likeness: Likeness, a: range, b: range, by_name: bool
) -> tuple[int, list[Match]]:
    """Align two runs of blocks; return their total value and the matches."""
    mine, theirs = sides
    kinds = [[s.graph.node[n].types for n in s.inputs] for s in sides]

    def options(i: int, j: int) -> Iterator[tuple[int, int, int]]:
        pieces = _pieces(sides, a[i:], b[j:])
        if pieces is None:
            return
        left, right = a[i : i + pieces[0]], b[j : j + pieces[1]]
        value = likeness.value(left, right)
        if value:
            ends = mine.blocks[left[-1]].exit, theirs.blocks[right[-1]].exit
            if kinds[0] == kinds[1] and level(sides, ends):
                # Larger than any sum of the other scores, so that resolution decides first.
                value += value // OPERATOR * PLACE
            if by_name and mine.blocks[a[i]].name == theirs.blocks[b[j]].name:
                value += NAME
            yield value, *pieces

    total, chosen = best_matches(len(a), len(b), options)
    return total, [(a[i : i + m], b[j : j + n]) for i, j, m, n in chosen]


def _pieces(sides: Sides, a: range, b: range) -> tuple[int, int] | None:
    """Count blocks from the start of two runs until both have the same number of operators.

    The result is (1, 1) unless the graphs are divided into blocks differently.
    """
    counts, totals = [1, 1], [side.sizes[run[0]] for side, run in zip(sides, (a, b), strict=True)]
    while totals[0] != totals[1]:
        shorter = int(totals[0] > totals[1])
        side, run, count = sides[shorter], (a, b)[shorter], counts[shorter]
        if max(counts) > MERGED or count == len(run) or not _follows(side, run[count]):
            return None
        totals[shorter] += side.sizes[run[count]]
        counts[shorter] += 1
    return counts[0], counts[1]


def _follows(side: SideGraph, index: int) -> bool:
    """Return whether a block takes the result of the one before it."""
    return side.blocks[index].entry == side.blocks[index - 1].exit
