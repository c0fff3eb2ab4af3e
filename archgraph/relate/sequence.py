"""Sequence alignment: the most valuable matches of two sequences, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple


class MatchedPair(NamedTuple):
    """Items of two sequences that are matched: ``m`` from ``i`` on, ``n`` from ``j`` on."""

    i: int
    j: int
    m: int
    n: int


def best_matches(
    m: int, n: int, options: Callable[[int, int], Iterable[tuple[int, int, int]]]
) -> tuple[int, list[MatchedPair]]:
    """Align two sequences: the largest total value, and the matches; of equal ones the first.

    ``best[i][j]`` is the largest value of what follows positions i and j: skip an item of either
    sequence, or match some items of both and go on behind them. Reading forwards from (0, 0) gives
    the matches.

    Args:
        m: Length of the first.
        n: Length of the second.
        options: By position in both: value of a match, and how many items of each it takes.

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
