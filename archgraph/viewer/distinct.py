"""Compact data for a page: distinct rows stored once, and lists renumbered so that they repeat."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence


def numbered(names: Iterable[str]) -> dict[str, int]:
    """Return a dict from name to index.

    >>> numbered(["conv", "relu"])
    {'conv': 0, 'relu': 1}
    """
    return {name: i for i, name in enumerate(names)}


class Distinct:
    """Distinct rows in order of first appearance; columns refer to them by number.

    >>> pool = Distinct()
    >>> [pool.add(row) for row in ("conv", "relu", "conv")], pool.rows
    ([0, 1, 0], ['conv', 'relu'])
    """

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}

    def add(self, row: Hashable) -> int:
        """Return the number of a row, adding it if it is new."""
        return self.numbers.setdefault(row, len(self.numbers))

    @property
    def rows(self) -> list[Hashable]:
        """The rows in the order of their numbers."""
        return list(self.numbers)


def stepping(lists: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    """Renumber lists relative to the first number that does not occur in an earlier list.

    Repeated blocks use their own leaves and axes in the same order, so their lists become equal
    and are stored once.

    >>> stepping([(0, 1), (2, 3), (4, 0)])
    [(0, 1), (0, 1), (0, -4)]
    """
    new, result = 0, []
    for numbers in lists:
        result.append(tuple(number - new for number in numbers))
        new = max([new, *(number + 1 for number in numbers)])
    return result
