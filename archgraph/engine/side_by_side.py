"""Parallel runs, each in its own single-threaded process, so that a crash ends only one run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from archgraph.errors import ArchGraphError
from archgraph.processes.isolation import one_thread
from archgraph.processes.process import Died, attempted
from archgraph.processes.workers import Workers

T = TypeVar("T")
R = TypeVar("R")


def side_by_side(
    call: Callable[[T], R], items: Iterable[T], workers: int
) -> Iterator[tuple[T, R | str]]:
    """Call a function on items in parallel, and yield each item with its result or error.

    Results are yielded in the order in which the calls end.

    Args:
        call: The function. Its results must be plain values.
        items: Arguments of the calls.
        workers: Number of processes.
    """

    def ended(item: T) -> R | str:
        # The last bits of sums depend on the number of threads.
        with one_thread():
            done = attempted(functools.partial(call, item))
        if isinstance(done, Died):
            return str(done.error) if isinstance(done.error, ArchGraphError) else done.reason
        return done

    ends = Workers(workers, always=True).calls(ended, items, as_they_end=True)
    for item, done in ends:
        yield item, done.reason if isinstance(done, Died) else done
