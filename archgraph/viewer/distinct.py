"""Compact data for a page: each distinct row is stored once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence


def numbered(names: Iterable[str]) -> dict[str, int]:
    """Return a dict from each name to its index.

    >>> numbered(["conv", "relu"])
    {'conv': 0, 'relu': 1}
    """
    return {name: i for i, name in enumerate(names)}


class Distinct:
    """A pool of distinct rows, in order of first appearance.

    Data that uses a row contains the row's index in the pool.

    >>> pool = Distinct()
    >>> [pool.add(row) for row in ("conv", "relu", "conv")], pool.rows
    ([0, 1, 0], ['conv', 'relu'])
    """

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}

    def add(self, row: Hashable) -> int:
        """Return the index of a row. Add the row if it is new."""
        return self.numbers.setdefault(row, len(self.numbers))

    @property
    def rows(self) -> list[Hashable]:
        """The rows in the order of their indices."""
        return list(self.numbers)


def stepping(lists: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    """Subtract from each list the smallest number that exceeds all numbers in earlier lists.

    Repeated blocks use their own parameters and axes in the same order. After the subtraction,
    their lists are equal and are stored once.

    >>> stepping([(0, 1), (2, 3), (4, 0)])
    [(0, 1), (0, 1), (0, -4)]
    """
    new, result = 0, []
    for numbers in lists:
        result.append(tuple(number - new for number in numbers))
        new = max([new, *(number + 1 for number in numbers)])
    return result
