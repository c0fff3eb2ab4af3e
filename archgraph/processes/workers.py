"""Calls side by side: so many processes of one thread each (:mod:`archgraph.processes.process`)."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing import connection
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from archgraph.errors import RunError
from archgraph.processes.nursery import Nursery, accelerated
from archgraph.processes.process import (
    Died,
    Ended,
    Function,
    Process,
    Tell,
    Unread,
    UnsentError,
    attempted,
    serve,
)
from archgraph.processes.traces import use_optimisers

T = TypeVar("T")
Waiting: TypeAlias = Callable[[], contextlib.AbstractContextManager[object]]

# A call of fewer seconds is not worth a new process, nor one that waits for it.
LEAST, LEAST_AGAIN = 0.1, 0.02
# Seconds in which a device can be used for the first time.
FIRST_USE = 120.0
# Results that wait for an earlier one, for each worker.
AHEAD = 2
# Seconds of work after which a process takes no further call: to start it took a fiftieth.
LIFE = 3.0
# On a device it takes calls to the end: its first use of the device takes seconds.
LIFE_ON_DEVICE = 1e9


class _Call(NamedTuple):
    """A call that is under way in a process."""

    number: int
    process: Process[Any]
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
        always: Whether calls are made in processes however short they are; else short ones are made
            in this process: as long as the last call took less than 0.1 s, or 0.02 s where
            processes wait for further ones.
        deadline: Seconds after which a call is ended.
        memory: Megabytes that a process may use beside those that it shares with this one.
        life: Seconds of work after which a process takes no further call; with a deadline, or
            bounded memory, none takes a second one.
        known: Types of frozen values that a process is sent once.
        places: Devices that processes compute on, each on the one that has the fewest; none: the
            processor.
    """

    count: int = 1
    always: bool = False
    deadline: float | None = None
    memory: float | None = None
    life: float = LIFE
    known: tuple[type, ...] = ()
    places: tuple[str, ...] = ()
    _asked: bool = field(default=True, init=False)
    _seconds: float = field(default=0.0, init=False)
    _idle: list[Process[Any]] = field(default_factory=list, init=False)
    _nursery: Nursery | None = field(default=None, init=False)
    _prepared: Function[Any] | None = field(default=None, init=False)
    _at: dict[Process[Any], str] = field(default_factory=dict, init=False)

    def apart(self, *, again: bool) -> bool:
        """Whether the next call is made in another process, or in one that waits for it again."""
        long = self._seconds >= (LEAST_AGAIN if again else LEAST)
        asked = self.limited or bool(self.places)
        return asked or (self.count > 1 and (self.always or long))

    @property
    def limited(self) -> bool:
        """Whether anything bounds a call."""
        return self.deadline is not None or self.memory is not None

    def calls(
        self,
        function: Function[Any],
        items: Iterable[T],
        *,
        made: Callable[[T], Any] = lambda item: item,
        key: Callable[[T], Hashable] | None = None,
        told: Tell = lambda **values: None,
        waiting: Waiting = contextlib.nullcontext,
        as_they_end: bool = False,
        again: bool = False,
    ) -> Generator[tuple[T, Any], None, None]:
        """Each item with what the function made of it, in the order of the items.

        Items are taken as workers become free. What a process gives back holds plain values and
        tensors. A call that dies gives :class:`Died`, in whatever process. A process sees what was
        there when it was started, and the items.

        Args:
            function: Is called with an item, and what to tell how far it is.
            items: What to call it with.
            made: What to call it with instead, from an item, when its call begins.
            key: Of items with the same key the second begins when the first has been dealt with.
            told: Hears how far the calls are.
            waiting: Entered while calls are begun and waited for.
            as_they_end: In the order in which they end instead.
            again: Whether the same function will be called again: processes wait for that, until
                :meth:`close`.
        """
        rest = iter(items)
        while not self.apart(again=again):
            try:
                item = next(rest)
            except StopIteration:
                return
            with waiting():
                began = time.perf_counter()
                done = attempted(functools.partial(function, made(item), told))
                self._seconds = time.perf_counter() - began
            yield item, done
            del item, done
        try:
            with contextlib.closing(_SideBySide(self, function, made, told)) as running:
                yield from running.results(rest, key, waiting, as_they_end)
                self._seconds = running.seconds or self._seconds
        finally:
            if not again:
                self.close()

    def prepare(self, function: Function[Any]) -> None:
        """Get ready to call a function, before this process computes anything.

        Where the machine has a GPU, a nursery is forked now: later processes could not compute
        gradients (``nursery``). Then short calls are made in processes, too, so
        that a later run of this process can have some. If this process has computed gradients
        before, and nothing asks for processes, calls are made in this one.

        Args:
            function: What will be called. It has a method ``on`` that gives the same one on a
                device.

        Raises:
            RunError: If processes are asked for, and they could not compute gradients.
        """
        wanted = self.places or ((self.count > 1 or self.limited) and accelerated())
        if self._nursery is not None or not wanted:
            return
        use_optimisers()  # once here, and not in every process
        self._nursery = Nursery(functools.partial(serve, function, self.known))
        self._prepared = function
        if self._nursery.trains:
            self._asked, self.always = self.always or bool(self.places) or self.limited, True
            return
        self.close()
        if self.places or self.limited or self.always:
            raise RunError(
                "clients cannot train in processes of their own: this process has computed "
                "gradients before, and the machine has a GPU",
                where="engine",
                hint="start the run first in a new process (or notebook), use `archgraph run`, or "
                "leave out engine.workers, engine.deadline and engine.memory",
            )
        self.count = 1

    def close(self) -> None:
        """End processes that wait for further calls."""
        while self._idle:
            self.done(self._idle.pop(), last=True)
        if self._nursery is not None:
            self._nursery.end()
            self._nursery = None

    def begun(self, function: Function[T], item: T) -> Process[T]:
        """A process that calls a function with an item: one that has waited, or a new one."""
        while self._idle:
            process = self._idle.pop()
            if process.function is function and process.send(item):
                return process
            self.done(process, last=True)
        life = 0.0 if self.limited else self.life
        if self._nursery is None or function is not self._prepared:
            return Process(function, item, known=self.known, life=life, memory=self.memory)
        used = Counter(self._at.values())
        place = min(self.places or ("cpu",), key=lambda place: used[place])
        start = functools.partial(
            self._nursery.start,
            place=place,
            life=LIFE_ON_DEVICE if self.places else life,
            memory=self.memory,
        )
        process = Process(function, item, known=self.known, start=start)
        self._at[process] = place
        return process

    def done(self, process: Process[Any], *, last: bool) -> None:
        """Let a process wait, or end it."""
        if last:
            self._at.pop(process, None)
            process.end()
        else:
            self._idle.append(process)


class _SideBySide(Generic[T]):
    """Calls that are under way."""

    def __init__(
        self, workers: Workers, function: Function[Any], made: Callable[[T], Any], told: Tell
    ) -> None:
        self.workers, self.function, self.made, self.told = workers, function, made, told
        self.active: dict[connection.Connection, _Call] = {}
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
        while self.active:
            _, call = self.active.popitem()
            self.workers.done(call.process, last=True)

    def _free(self, item: T, key: Callable[[T], Hashable] | None) -> bool:
        count = self.workers.count
        if len(self.active) >= count or len(self.items) >= AHEAD * count:
            return False
        return key is None or key(item) not in map(key, self.items.values())

    def _start(self, number: int, item: T) -> None:
        made = self.made(item)
        self.items[number] = item
        try:
            process = self.workers.begun(self.function, made)
        except UnsentError:
            if self.workers._asked:
                raise
            self.ended[number] = attempted(functools.partial(self.function, made, self.told))
            return
        ends = time.monotonic() + (self.workers.deadline or float("inf"))
        if self.workers.places:
            ends += FIRST_USE  # until it has its item
        self.active[process.pipe] = _Call(number, process, ends)

    def _wait(self) -> None:
        """Wait until something was said, a process has ended, or a deadline is over."""
        first = min(one.ends for one in self.active.values())
        left = None if first == float("inf") else max(first - time.monotonic(), 0)
        gone = [one.process.gone for one in self.active.values() if one.process.gone is not None]
        ready = connection.wait([*self.active, *gone], left)
        for pipe, one in list(self.active.items()):
            # All of it: what was done in time is taken, however late this process looks.
            while pipe in self.active and one.process.speaks:
                self._hear(pipe)
            if pipe not in self.active:
                continue
            over = time.monotonic() >= self.active[pipe].ends
            if one.process.gone in ready or (over and one.process.has_ended):
                self._end(pipe, one.process.ended())
            elif over:
                late = Died(f"not done after {self.workers.deadline:g} s (deadline)")
                self._end(pipe, Ended(late))

    def _hear(self, pipe: connection.Connection) -> None:
        said = self.active[pipe].process.hear()
        if isinstance(said, Ended):
            self._end(pipe, said)
        elif said is not None:
            self.told(**said)
        elif self.workers.deadline is not None:  # it begins now
            ends = time.monotonic() + self.workers.deadline
            self.active[pipe] = self.active[pipe]._replace(ends=ends)

    def _end(self, pipe: connection.Connection, ended: Ended) -> None:
        number, process, _ = self.active.pop(pipe)
        self.workers.done(process, last=ended.last)
        if isinstance(ended.value, Unread):  # a new process has it without reading it
            self._start(number, self.items[number])
            return
        self.seconds = ended.seconds
        self.ended[number] = ended.value
