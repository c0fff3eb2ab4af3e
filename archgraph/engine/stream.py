"""The results of a round, which a strategy reads one by one, and only once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from archgraph.errors import RunError
from archgraph.federation import Result


class ResultStream(Iterator[Result]):
    """Results that can be read once; a second pass raises an error.

    Args:
        results: The results, in the order of the clients.
        where: The method of a strategy that reads the results, for error messages.

    Example:
        >>> results = ResultStream([], "Mine.receive")
        >>> [result.metrics for result in results]
        []
        >>> list(results)
        Traceback (most recent call last):
        archgraph.errors.RunError: Mine.receive: reads results a second time...
    """

    def __init__(self, results: Iterable[Result], where: str) -> None:
        self._results, self._read, self._where = iter(results), False, where

    def __iter__(self) -> Iterator[Result]:
        """Begin to read them.

        Raises:
            RunError: If any result was read before.
        """
        if self._read:
            raise RunError(
                "reads results a second time: they are a stream, one client in memory at a time, "
                "and can be read only once",
                where=self._where,
                hint="begin with `results = list(results)`, which keeps those of all clients in "
                "memory, or use a single loop",
            )
        self._read = True
        return self._results

    def __next__(self) -> Result:
        """Read the next result."""
        self._read = True
        return next(self._results)
