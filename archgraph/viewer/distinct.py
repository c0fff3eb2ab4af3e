"""What makes the data of a page small: each distinct row once, lists by what repeats in them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence


def numbered(names: Iterable[str]) -> dict[str, int]:
    """Return the position of each name.

    >>> numbered(["conv", "relu"])
    {'conv': 0, 'relu': 1}
    """
    return {name: i for i, name in enumerate(names)}


class Distinct:
    """Distinct rows in the order in which they came; a column holds their numbers.

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
        """The rows by their numbers."""
        return list(self.numbers)


def stepping(lists: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    """Renumber lists, each number counted from the first one that no list before it has.

    Blocks that repeat use leaves and axes of their own in the same order, so that their lists
    become equal and are stored once.

    >>> stepping([(0, 1), (2, 3), (4, 0)])
    [(0, 1), (0, 1), (0, -4)]
    """
    new, result = 0, []
    for numbers in lists:
        result.append(tuple(number - new for number in numbers))
        new = max([new, *(number + 1 for number in numbers)])
    return result
