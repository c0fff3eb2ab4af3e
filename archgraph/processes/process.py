"""One worker: a process of one thread that calls a function as often as it is asked."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import resource
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import connection, get_context, parent_process, util
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import torch

from archgraph.processes import items
from archgraph.processes.reasons import reason
from archgraph.states import wire

R = TypeVar("R")
Function: TypeAlias = Callable[[Any], R]
"""What a worker calls: with an item, of a type that only its caller knows."""

# Seconds in which a process that has closed its pipe ends, if it is about to.
GRACE = 1.0
# Imported once by the fork server, and not by every process that it starts.
PRELOAD = ["archgraph.engine.clientwork"]
# In place of an item that comes through the pipe.
AWAITED = object()


@wire.carried
class Died(NamedTuple):
    """A call that came to nothing.

    Attributes:
        reason: Why.
        trace: Where, if that is known.
        error: What was raised, if it was in this process.
    """

    reason: str
    trace: str = ""
    error: BaseException | None = None


class OnDevice(Protocol):
    """A function that computes on a device of the worker's."""

    def on(self, device: str) -> Function[object]:
        """Return the same function on a device."""


@wire.carried
class Ended(NamedTuple):
    """A call that is over: what came of it, how long it took, whether its process has ended."""

    value: object
    seconds: float = 0.0
    last: bool = True


class Job(NamedTuple):
    """What a worker does.

    Attributes:
        function: What it calls; on a device, what its method ``on`` gives.
        file: What holds the function, for processes of the fork server; empty: they are forked.
        script: Whether the function needs what the user's script defines, which is imported then.
        memory: Megabytes that a call may use beside what its process has.
        dtype: The default one, and
        deterministic: whether algorithms are to be: what a user may have set for a whole run.
    """

    function: Function[object] | None
    file: str
    script: bool
    memory: float | None
    dtype: torch.dtype
    deterministic: int


class Process:
    """A worker.

    Args:
        job: What it does.
        device: The device on which it does it.
        item: What it begins with, if it is forked with it.

    Attributes:
        pipe: What it says arrives here.
        waits: Whether it has been sent a further item and not begun: what ends it then is not the
            item's doing.
        end: Ends it, whatever it does; so does the end of this object, and of this process.
    """

    def __init__(self, job: Job, device: str, item: object = AWAITED) -> None:
        context = get_context("forkserver" if job.file else "fork")
        context.set_forkserver_preload(PRELOAD)
        self.pipe, theirs = context.Pipe()
        if job.file:
            job, item = job._replace(function=None), None
        self._process: BaseProcess = context.Process(  # type: ignore[attr-defined]  # both have it
            target=_serve, args=(theirs, job, device, item)
        )
        with warnings.catch_warnings(), contextlib.nullcontext() if job.script else _no_script():
            # Python warns of threads; see `Workers._job_of`.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()
        self.sentinel, self.waits = self._process.sentinel, False
        # Python waits for its children when it ends, and theirs would wait for it.
        self.end = util.Finalize(self, _end, (self.pipe, self._process), exitpriority=0)

    def send(self, message: bytes) -> bool:
        """Give it an item (:func:`archgraph.processes.items.serialise`); False: it has ended."""
        try:
            self.pipe.send_bytes(message)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def hear(self) -> Ended | None:
        """Return what it says: what came of its call, or None as it begins."""
        try:
            said: Ended | None = wire.decode(self.pipe.recv_bytes())
        except (EOFError, OSError):
            return self.ended()
        self.waits = False
        return said

    def ended(self) -> Ended:
        """Return what came of its call if nothing more is heard of it."""
        # Not `join`: where a program has closed what its end is seen by, that would wait for ever.
        until = time.monotonic() + GRACE
        while (code := self._process.exitcode) is None and time.monotonic() < until:
            time.sleep(0.001)
        return Ended(Died("its process no longer answers" if code is None else _ending(code)))


def attempted(call: Callable[[], R], *, worker: bool = False) -> R | Died:
    """Return what a call gives, or what it dies of; in a worker, no interrupt is the user's."""
    try:
        return call()
    except BaseException as error:  # whatever a client's program dies of, the others go on
        if isinstance(error, KeyboardInterrupt) and not worker:
            raise
        return Died(reason(error), traceback.format_exc(), error)


def _ending(code: int) -> str:
    """Say how a process ended.

    >>> _ending(3), _ending(-9)
    ('its process ended with exit code 3', 'its process was ended by SIGKILL')
    """
    if code >= 0:
        return f"its process ended with exit code {code}"
    return f"its process was ended by {signal.Signals(-code).name}"


@contextlib.contextmanager
def _no_script() -> Iterator[None]:
    """Start a process that does not import the user's script, which may have no main guard."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _end(pipe: connection.Connection, process: BaseProcess) -> None:
    pipe.close()
    process.kill()
    process.join()
    process.close()


def _serve(pipe: connection.Connection, job: Job, device: str, item: object) -> None:
    """Do a job until the one that asks has gone, or memory has run out."""
    # An interrupt from the keyboard reaches all processes; the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, name="archgraph", daemon=True).start()
    gc.freeze()  # else a collection would touch, and so copy, all that is shared
    torch.set_num_threads(1)
    torch.set_default_dtype(job.dtype)
    torch.set_deterministic_debug_mode(job.deterministic)
    function: object = job.function
    if job.file:
        function, item = attempted(lambda: items.load_shared(job.file), worker=True), AWAITED
    else:
        _own_output()
    if device != "cpu" and not isinstance(function, Died):
        function = cast(OnDevice, function).on(device)
    last = False
    with contextlib.suppress(EOFError, OSError):
        while not last:
            if item is AWAITED:
                message = pipe.recv_bytes()
                item = attempted(lambda: items.deserialise(message), worker=True)  # noqa: B023
            pipe.send_bytes(wire.encode(None))  # a deadline counts from here
            ended = _called(function, item, job.memory)
            last, item = ended.last, AWAITED
            sent = attempted(lambda: wire.encode(ended), worker=True)  # noqa: B023  # called at once
            if isinstance(sent, Died):  # it gave back something else than values and tensors
                sent = wire.encode(ended._replace(value=sent._replace(error=None)))
            pipe.send_bytes(sent)
            del ended, sent
    os._exit(0)


def _called(function: object, item: object, memory: float | None) -> Ended:
    """Call a function in a worker, unless it, or the item, could not be read."""
    began, last = time.perf_counter(), False
    value: object = next((one for one in (function, item) if isinstance(one, Died)), None)
    if value is None:
        call = functools.partial(cast(Function[object], function), item)
        with _bounded(memory):
            value = attempted(call, worker=True)
    if isinstance(value, Died):
        # A process that ran out of memory keeps what filled it: the next call gets a new one.
        if memory is not None and _exhausted(value.error):
            value, last = value._replace(reason=f"asked for more than {memory:g} MB (memory)"), True
        value = value._replace(error=None)  # it stays here: no message holds an error
    return Ended(value, time.perf_counter() - began, last)


@contextlib.contextmanager
def _bounded(memory: float | None) -> Iterator[None]:
    """Allow this process so many megabytes beside those that it has."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    if memory is not None:
        data = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (data + int(memory * 2**20), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _exhausted(error: BaseException | None) -> bool:
    """Return whether an error is what Python or PyTorch raises if the system is out of memory."""
    return isinstance(error, MemoryError) or "Cannot allocate memory" in str(error)


def _own_output() -> None:
    """Write past the output of the process that forked this one: a thread may hold its lock."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        with contextlib.suppress(OSError):  # closed
            stream = os.fdopen(number, "w", buffering=1, errors="replace", closefd=False)
            setattr(sys, name, stream)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)  # at once: a run that is cut off goes on from its last checkpoint
