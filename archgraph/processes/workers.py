"""Parallel calls in worker processes (:mod:`archgraph.processes.process`)."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Generic, NamedTuple, TypeAlias, TypeVar, cast

import torch

from archgraph.errors import RunError
from archgraph.processes import items as messages
from archgraph.processes.process import Died, Ended, Function, Job, Process, attempted
from archgraph.processes.reasons import reason

T = TypeVar("T")
R = TypeVar("R")
Waiting: TypeAlias = Callable[[], contextlib.AbstractContextManager[object]]

# Calls shorter than this run in this process: without waiting workers, and with them.
LEAST, LEAST_AGAIN = 0.1, 0.02
# Seconds in which a process must be ready; on a device, starting may take long.
STARTS = 120.0
# Maximum number of results per worker that wait for an earlier result.
AHEAD = 2


class UnsentError(RunError):
    """Raised if a call cannot be sent to a process."""


class _Call(NamedTuple):
    """A running call in a process."""

    number: int
    process: Process
    ends: float


def accelerated() -> bool:
    """Return whether this machine has an accelerator.

    With an accelerator, PyTorch computes gradients in threads. A fork does not copy threads, so
    forked processes cannot compute gradients.
    """
    device = torch.accelerator.current_accelerator()
    return device is not None and torch.get_device_module(device).device_count() > 0


def _foreign_threads() -> bool:
    """Return whether threads of other packages run, which may hold locks."""
    threads = [t for t in threading.enumerate() if t is not threading.main_thread()]
    return any(not thread.name.startswith("archgraph") for thread in threads)


@dataclass
class Workers:
    """Calls a function with each of several items, in parallel worker processes.

    On Linux, workers are forked: they start at once and share data and models with this process.
    Forking is not safe with an accelerator, outside Linux, or if other libraries run threads. A
    fork server then starts the workers, and the function must be picklable. If it is not, and
    threads are the only obstacle, workers are forked anyway.

    Example:
        >>> workers = Workers(2, always=True)
        >>> [done for _, done in workers.calls(lambda item: item**2, [1, 2, 3])]
        [1, 4, 9]

    Attributes:
        count: Maximum number of worker processes. With 1, calls run in this process, unless limits
            are set.
        always: If ``count`` is above 1, whether all calls run in worker processes. Default: a call
            runs in this process if the last call took less than 0.1 s, or less than 0.02 s if
            workers wait for calls.
        deadline: Maximum duration of a call in seconds. Default: no limit.
        memory: Maximum memory of a call in MB, in addition to that of its process. Default: no
            limit.
        devices: Devices of the workers. A new worker uses the device with the fewest workers.
            Default: the CPU.
    """

    count: int = 1
    always: bool = False
    deadline: float | None = None
    memory: float | None = None
    devices: tuple[str, ...] = ()
    _seconds: float = field(default=0.0, init=False)
    _idle: list[Process] = field(default_factory=list, init=False)
    _at: dict[Process, str] = field(default_factory=dict, init=False)
    _job: Job | None = field(default=None, init=False)
    _called: Function[object] | None = field(default=None, init=False)
    _files: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)

    def apart(self, *, again: bool) -> bool:
        """Return whether the next call should run in a worker process.

        Args:
            again: Whether the same function will be called again. Worker processes then stay alive
                between calls.
        """
        long = self._seconds >= (LEAST_AGAIN if again else LEAST)
        needed = self.limited or bool(self.devices)
        return needed or (self.count > 1 and (self.always or long))

    @property
    def limited(self) -> bool:
        """Whether a deadline or a memory limit is set."""
        return self.deadline is not None or self.memory is not None

    @property
    def asked(self) -> bool:
        """Whether calls must run in worker processes."""
        return self.always or self.limited or bool(self.devices)

    def calls(
        self,
        function: Function[R],
        items: Iterable[T],
        *,
        begin: Callable[[T], object] = lambda item: item,
        key: Callable[[T], Hashable] | None = None,
        waiting: Waiting = contextlib.nullcontext,
        as_they_end: bool = False,
        again: bool = False,
    ) -> Generator[tuple[T, R | Died], None, None]:
        """Yield each item with the function's result, in the order of the items.

        Items are read when workers become free. Results of workers may contain plain values,
        tensors and types that :mod:`archgraph.states.wire` supports. The result of a failed call is
        :class:`Died`. A worker has a copy of this process's state from the worker's start.

        Args:
            function: The function to call with each item.
            items: The items.
            begin: Converts an item at the beginning of its call.
            key: Maps an item to a key. A call begins only after the caller has processed the
                results of earlier items with the same key.
            waiting: Returns a context that is entered while calls are started and waited for.
            as_they_end: If True, yield results in the order in which calls end.
            again: Whether the same function will be called again. Workers then wait for calls until
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
                done = attempted(functools.partial(function, begin(item)))
                self._seconds = time.perf_counter() - began
            yield item, done
            del item, done
        try:
            with contextlib.closing(_SideBySide[T, R](self, function, begin)) as running:
                yield from running.results(rest, key, waiting, as_they_end)
                self._seconds = running.seconds or self._seconds
        finally:
            if not again:
                self.close()

    def close(self) -> None:
        """End workers that wait for calls."""
        while self._idle:
            self.done(self._idle.pop(), last=True)
        self._job = self._called = None
        self._files.close()

    def begun(self, function: Function[object], item: object) -> Process:
        """Start a call with an item in a waiting worker or a new one, and return the worker.

        Raises:
            UnsentError: If the function or the item cannot be sent to a process of the fork server.
        """
        if self._job is None or self._called is not function:
            self.close()
            self._job, self._called = self._job_of(function), function
        job = self._job
        if not job.file and not self._idle:
            return self._new(job, item)
        try:
            message = messages.serialise(item)
        except Exception as error:  # any error of a user's class on pickling
            if job.file:
                raise _unsent(error) from error
            if self._idle:
                self.done(self._idle.pop(), last=True)
            return self._new(job, item)
        while self._idle:
            process = self._idle.pop()
            process.waits = True
            if process.send(message):
                return process
            self.done(process, last=True)
        process = self._new(job)
        process.send(message)  # if the worker has already ended, this is noticed later
        return process

    def done(self, process: Process, *, last: bool) -> None:
        """Let a worker wait for another call, or end it."""
        if last:
            self._at.pop(process, None)
            process.end()
        else:
            self._idle.append(process)

    def _new(self, job: Job, *item: object) -> Process:
        used = Counter(self._at.values())
        device = min(self.devices or ("cpu",), key=lambda device: used[device])
        process: Process = Process(job, device, *item)
        self._at[process] = device
        return process

    def _job_of(self, function: Function[object]) -> Job:
        """Return the job of new workers, which get the function by forking or from a file.

        1. If forking is safe, workers are forked with the function.
        2. If not, the function is written to a file, which workers of the fork server read.
        3. If the function cannot be pickled, and only threads of other libraries make forking
           unsafe, workers are forked. In the worst case, a worker needs a lock that such a thread
           holds, and hangs until its deadline.
        """
        dtype, deterministic = torch.get_default_dtype(), torch.get_deterministic_debug_mode()
        job = Job(function, "", False, self.memory, dtype, deterministic)
        forks = sys.platform == "linux" and not self.devices and not accelerated()
        if forks:
            # Torch's optimisers import its compiler. This is done once here, not in every process.
            importlib.import_module("torch._dynamo")
        if forks and not _foreign_threads():  # case 1
            return job
        file = tempfile.NamedTemporaryFile(prefix="archgraph-")  # until close()
        try:
            messages.save_shared(file.name, function)
        except Exception as error:  # any error of a user's class on pickling
            file.close()
            if forks:  # case 3
                return job
            raise _unsent(error) from error
        self._files.enter_context(file)
        script = b"__main__" in Path(file.name).read_bytes()
        return job._replace(file=file.name, script=script)  # case 2


def _unsent(error: Exception) -> UnsentError:
    return UnsentError(
        "a client's work cannot be sent to its process",
        where="engine.workers",
        found=reason(error),
        hint="define the program's class or function at the top level of a module, or set "
        "`engine.workers: 1` with one device and without limits",
    )


@dataclass(eq=False)
class _SideBySide(Generic[T, R]):
    """The running calls of :meth:`Workers.calls`."""

    workers: Workers
    function: Function[R]
    begin: Callable[[T], object]
    active: dict[connection.Connection, _Call] = field(default_factory=dict)
    ended: dict[int, R | Died] = field(default_factory=dict)
    items: dict[int, T] = field(default_factory=dict)
    seconds: float = 0.0

    def results(
        self,
        rest: Iterator[T],
        key: Callable[[T], Hashable] | None,
        waiting: Waiting,
        as_they_end: bool,
    ) -> Iterator[tuple[T, R | Died]]:
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
        """End running calls."""
        while self.active:
            _, call = self.active.popitem()
            self.workers.done(call.process, last=True)

    def _free(self, item: T, key: Callable[[T], Hashable] | None) -> bool:
        count = self.workers.count
        if len(self.active) >= count or len(self.items) >= AHEAD * count:
            return False
        return key is None or key(item) not in map(key, self.items.values())

    def _start(self, number: int, item: T) -> None:
        sent = self.begin(item)
        self.items[number] = item
        try:
            process = self.workers.begun(self.function, sent)
        except UnsentError:
            if self.workers.asked:
                raise
            self.ended[number] = attempted(functools.partial(self.function, sent))
            return
        self.active[process.pipe] = _Call(number, process, time.monotonic() + STARTS)

    def _wait(self) -> None:
        """Wait for a message, the end of a worker, or a deadline."""
        first = min(one.ends for one in self.active.values())
        gone = [one.process.sentinel for one in self.active.values()]
        left = None if first == float("inf") else max(first - time.monotonic(), 0)
        ready = connection.wait([*self.active, *gone], left)
        for pipe, one in list(self.active.items()):
            # All messages: results in time are accepted, even if this process checks late.
            while pipe in self.active and pipe.poll():
                self._hear(pipe)
            if pipe not in self.active:
                continue
            if one.process.sentinel in ready:
                self._end(pipe, one.process.ended())
            elif time.monotonic() >= self.active[pipe].ends:
                seconds = self.workers.deadline or STARTS
                self._end(pipe, Ended(Died(f"not done after {seconds:g} s (deadline)")))

    def _hear(self, pipe: connection.Connection) -> None:
        said = self.active[pipe].process.hear()
        if isinstance(said, Ended):
            self._end(pipe, said)
        else:  # the call begins now
            ends = time.monotonic() + (self.workers.deadline or float("inf"))
            self.active[pipe] = self.active[pipe]._replace(ends=ends)

    def _end(self, pipe: connection.Connection, ended: Ended) -> None:
        number, process, _ = self.active.pop(pipe)
        self.workers.done(process, last=ended.last)
        if process.waits:  # the worker ended before the call began
            self._start(number, self.items[number])
            return
        self.seconds, self.ended[number] = ended.seconds, cast("R | Died", ended.value)
