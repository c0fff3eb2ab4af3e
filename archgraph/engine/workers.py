"""Runs side by side: so many processes of one thread each, every run in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection, get_context, parent_process
from multiprocessing.process import BaseProcess
from typing import Any, TypeAlias

from archgraph.errors import ArchGraphError

# What a job came to: nothing, or what went wrong.
JobResult: TypeAlias = str | None


def attempt(job: Callable[..., object], *arguments: Any) -> JobResult:
    """Call a job; whatever it dies of is its result, and other jobs go on."""
    try:
        job(*arguments)
    except ArchGraphError as error:
        return str(error)
    except Exception as error:  # a fault in one job must not lose the others
        return f"{type(error).__name__}: {error}"
    return None


def side_by_side(
    job: Callable[..., object], arguments: Sequence[tuple[Any, ...]], workers: int
) -> Iterator[tuple[int, JobResult]]:
    """Call a job with each tuple of arguments; which one ended and what came of it, as they end.

    One worker is this process. Several are processes of their own, a new one for every job, so that
    memory goes back. They end with this process, however that ends.

    Args:
        job: A function of a module.
        arguments: Of each call; with several workers plain values that can be pickled.
        workers: How many at a time.
    """
    if workers == 1:
        for number, one in enumerate(arguments):
            yield number, attempt(job, *one)
        return
    context = get_context("spawn")
    waiting = list(enumerate(arguments))[::-1]
    active: dict[connection.Connection, tuple[int, BaseProcess]] = {}
    try:
        while waiting or active:
            while waiting and len(active) < workers:
                number, one = waiting.pop()
                ours, theirs = context.Pipe(duplex=False)
                started = context.Process(target=_worker, args=(theirs, job, one), daemon=True)
                started.start()
                theirs.close()
                active[ours] = number, started
            for pipe in connection.wait(list(active)):
                number, process = active.pop(pipe)  # type: ignore[call-overload]  # one of its keys
                result = _received(pipe)  # type: ignore[arg-type]  # one of its keys
                process.join()
                if result is _DIED:
                    result = f"the process ended with exit code {process.exitcode}"
                yield number, result
    finally:
        for _, left in active.values():
            left.terminate()
        for _, left in active.values():
            left.join()


_DIED: Any = object()


def _received(pipe: connection.Connection) -> Any:
    with contextlib.closing(pipe):
        try:
            return pipe.recv()
        except EOFError:
            return _DIED


def _worker(pipe: connection.Connection, job: Callable[..., object], arguments: Any) -> None:
    # An interrupt from the keyboard reaches all processes; the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.closing(pipe):
        pipe.send(attempt(job, *arguments))


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)  # at once: a run that is cut off goes on from its last checkpoint
