"""Calls side by side: so many processes of one thread each, a new one for every call.

A process is forked: it shares all memory with this one until one of them writes, so neither data
nor models nor a task are copied to it, and whatever a program does to it ends with it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing import connection, get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import torch

from archgraph.engine.parcel import Parcel

T = TypeVar("T")
Tell: TypeAlias = Callable[..., object]
"""Hears how far a call is: keywords of plain values."""
Waiting: TypeAlias = Callable[[], contextlib.AbstractContextManager[object]]

# A call of less is over before a process has started and ended, which takes about 0.02 s.
LEAST = 0.1
# Results that wait for an earlier one, for each worker.
AHEAD = 2
# Seconds between two reports of a process on how far it is.
REPORTS = 0.2
MEGABYTE = 2**20


class Died(NamedTuple):
    """A call that came to nothing.

    Attributes:
        reason: Why.
        trace: Where, if that is known.
    """

    reason: str
    trace: str = ""


class _Started(NamedTuple):
    """A call that is under way in a process."""

    number: int
    process: BaseProcess
    parcel: Parcel
    ends: float


@dataclass
class Workers:
    """Calls of a function with one item after the other, several at a time.

    Example:
        >>> workers = Workers(2, always=True)
        >>> [done for _, done in workers.calls(lambda item, tell: item**2, [1, 2, 3])]
        [1, 4, 9]

    Attributes:
        count: Processes at a time; one alone is this process, where nothing is limited.
        always: Whether each call has a process of its own, however short it is; else short ones are
            made in this process: as long as the last call took less than 0.1 s.
        deadline: Seconds after which a call is ended.
        memory: Megabytes that a process may use beside those that it shares with this one.
    """

    count: int = 1
    always: bool = False
    deadline: float | None = None
    memory: float | None = None
    _seconds: float = field(default=0.0, init=False)

    @property
    def apart(self) -> bool:
        """Whether the next call is made in a process of its own."""
        if self.deadline is not None or self.memory is not None:
            return True
        return self.count > 1 and (self.always or self._seconds >= LEAST)

    def calls(
        self,
        function: Callable[[T, Tell], Any],
        items: Iterable[T],
        *,
        key: Callable[[T], Hashable] | None = None,
        told: Tell = lambda **values: None,
        waiting: Waiting = contextlib.nullcontext,
        as_they_end: bool = False,
    ) -> Generator[tuple[T, Any], None, None]:
        """Each item with what the function made of it, in the order of the items.

        Items are taken as workers become free. What a process gives back holds plain values and
        tensors; a process that ends without it gives :class:`Died`. A call in this process raises
        what it dies of.

        Args:
            function: Is called with an item, and what to tell how far it is.
            items: What to call it with.
            key: Of items with the same key the second begins when the first has been dealt with.
            told: Hears how far the calls are.
            waiting: Entered while calls are begun and waited for.
            as_they_end: In the order in which they end instead.
        """
        rest = iter(items)
        while not self.apart:
            try:
                item = next(rest)
            except StopIteration:
                return
            with waiting():
                began = time.perf_counter()
                done = function(item, told)
                self._seconds = time.perf_counter() - began
            yield item, done
            del item, done
        with contextlib.closing(_SideBySide(self, function, told)) as running:
            yield from running.results(rest, key, waiting, as_they_end)
            self._seconds = running.seconds or self._seconds


class _SideBySide(Generic[T]):
    """Calls that are under way."""

    def __init__(self, workers: Workers, function: Callable[[T, Tell], Any], told: Tell) -> None:
        self.workers, self.function, self.told = workers, function, told
        self.active: dict[connection.Connection, _Started] = {}
        self.ended: dict[int, Any] = {}
        self.items: dict[int, T] = {}
        self.seconds = 0.0

    def results(
        self,
        rest: Iterator[T],
        key: Callable[[T], Hashable] | None,
        waiting: Waiting,
        as_they_end: bool,
    ) -> Iterator[tuple[T, Any]]:
        """See :meth:`Workers.calls`."""
        numbered = enumerate(rest)
        upcoming = next(numbered, None)
        turn = 0
        while upcoming is not None or self.items:
            while upcoming is not None and self._free(upcoming[1], key):
                with waiting():
                    self._start(*upcoming)
                upcoming = next(numbered, None)
            if as_they_end and self.ended:
                turn = next(iter(self.ended))
            if turn in self.ended:
                yield self.items[turn], self.ended.pop(turn)
                del self.items[turn]
                turn += 1
                continue
            with waiting():
                self._wait()

    def close(self) -> None:
        """End what is under way."""
        for pipe in list(self.active):
            self._end(pipe, None)

    def _free(self, item: T, key: Callable[[T], Hashable] | None) -> bool:
        count = self.workers.count
        if len(self.active) >= count or len(self.items) >= AHEAD * count:
            return False
        return key is None or key(item) not in map(key, self.items.values())

    def _start(self, number: int, item: T) -> None:
        context = get_context("fork")
        ours, theirs = context.Pipe(duplex=False)
        parcel = Parcel()
        process = context.Process(
            target=_call, args=(self.function, item, parcel, theirs, self.workers.memory)
        )
        with warnings.catch_warnings():
            # Python warns of threads; those of this process hold nothing that the new one needs.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        ends = time.monotonic() + (self.workers.deadline or float("inf"))
        self.active[ours] = _Started(number, process, parcel, ends)
        self.items[number] = item

    def _wait(self) -> None:
        """Wait until something was said, or a deadline is over."""
        first = min(one.ends for one in self.active.values())
        left = None if first == float("inf") else max(first - time.monotonic(), 0)
        for pipe in connection.wait(list(self.active), left):
            self._hear(pipe)  # type: ignore[arg-type]  # one of its keys
        for pipe, one in list(self.active.items()):
            if time.monotonic() >= one.ends:
                self._end(pipe, Died(f"not done after {self.workers.deadline:g} s (deadline)"))

    def _hear(self, pipe: connection.Connection) -> None:
        try:
            said = json.loads(pipe.recv_bytes())
        except (EOFError, OSError, ValueError):
            self._end(pipe, Died(""))
            return
        if "seconds" not in said:
            self.told(**said)
            return
        self.seconds = said["seconds"]
        self._end(pipe, Died(said["reason"], said["trace"]) if "reason" in said else said)

    def _end(self, pipe: connection.Connection, result: Any) -> None:
        """Take what a process has left behind, and end it."""
        number, process, parcel, _ = self.active.pop(pipe)
        pipe.close()
        if result == Died(""):
            process.join()
            result = Died(_ending(process.exitcode or 0))
        process.kill()
        process.join()
        process.close()
        if isinstance(result, dict):
            try:
                result = parcel.unpack()
            except Exception as error:  # nothing that a process leaves behind ends a run
                result = Died(f"what the process sent cannot be read ({type(error).__name__})")
        parcel.close()
        self.ended[number] = result


def _ending(code: int) -> str:
    """How a process ended.

    >>> _ending(3), _ending(-9)
    ('its process ended with exit code 3', 'its process was ended by SIGKILL')
    """
    if code >= 0:
        return f"its process ended with exit code {code}"
    return f"its process was ended by {signal.Signals(-code).name}"


def _call(
    function: Callable[[Any, Tell], Any],
    item: Any,
    parcel: Parcel,
    pipe: connection.Connection,
    memory: float | None,
) -> None:
    # An interrupt from the keyboard reaches all processes; the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.freeze()  # else a collection would touch, and so copy, all that is shared
    torch.set_num_threads(1)
    began = last = time.perf_counter()

    def tell(**values: Any) -> None:
        nonlocal last
        if time.perf_counter() - last > REPORTS:
            last = time.perf_counter()
            pipe.send_bytes(json.dumps(values).encode())

    lost = {}
    try:
        if memory is not None:
            _limit(int(memory * MEGABYTE))
        parcel.pack(function(item, tell))
    except BaseException as error:  # whatever it dies of is told
        lost = {"reason": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    seconds = time.perf_counter() - began
    pipe.send_bytes(json.dumps({"seconds": seconds, **lost}).encode())
    pipe.close()
    os._exit(0)


def _limit(more: int) -> None:
    """Allow this process so many bytes beside those that it has."""
    data = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (data + more, data + more))


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)  # at once: a run that is cut off goes on from its last checkpoint
