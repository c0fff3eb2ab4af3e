"""One worker: a process of one thread that calls a function on request."""

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

from archgraph.errors import ArchGraphError, raised_in
from archgraph.processes import items
from archgraph.processes.reasons import reason
from archgraph.states import wire

R = TypeVar("R")
Function: TypeAlias = Callable[[Any], R]
"""A worker's function of an item, whose type only its caller knows."""

# Seconds in which a process that has closed its pipe ends, if it is about to.
GRACE = 1.0
# Imported once by the fork server, and not by every process that it starts.
PRELOAD = ["archgraph.engine.clientwork"]
# Replaces an item that comes through the pipe.
AWAITED = object()


@wire.carried
class Died(NamedTuple):
    """A failed call.

    Attributes:
        reason: The reason.
        trace: The traceback, if known.
        error: The error, if raised in this process.
    """

    reason: str
    trace: str = ""
    error: BaseException | None = None


class OnDevice(Protocol):
    """A function that computes on the worker's device."""

    def on(self, device: str) -> Function[object]:
        """Return the same function on a device."""


@wire.carried
class Ended(NamedTuple):
    """A finished call: its result, its duration, whether its process has ended."""

    value: object
    seconds: float = 0.0
    last: bool = True


class Job(NamedTuple):
    """A worker's job.

    Attributes:
        function: The function; on a device, the result of its method ``on``.
        file: File with the function, for processes of the fork server; empty for forked ones.
        script: Whether the function needs definitions of the user's script, which is then imported.
        memory: Megabytes that a call may use in addition to the memory of its process.
        dtype: The user's default dtype.
        deterministic: Whether the user requires deterministic algorithms.
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
        job: Its job.
        device: Its device.
        item: Its first item, if it is forked with one.

    Attributes:
        pipe: Receives its messages.
        waits: Whether it has received another item but not begun: then the item is not the cause of
            its end.
        end: Ends it at any time; so does the end of this object, and of this process.
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
        """Send it an item (:func:`archgraph.processes.items.serialise`); False if it has ended."""
        try:
            self.pipe.send_bytes(message)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def hear(self) -> Ended | None:
        """Receive a message: None when the process has started, later the results of its calls."""
        try:
            said: Ended | None = wire.decode(self.pipe.recv_bytes())
        except (EOFError, OSError):
            return self.ended()
        self.waits = False
        return said

    def ended(self) -> Ended:
        """Return the result of its call if it no longer answers."""
        # Not `join`: if a program has closed the handle that signals its end, that would wait
        # forever.
        until = time.monotonic() + GRACE
        while (code := self._process.exitcode) is None and time.monotonic() < until:
            time.sleep(0.001)
        return Ended(Died("its process no longer answers" if code is None else _ending(code)))


def attempted(call: Callable[[], R], *, worker: bool = False) -> R | Died:
    """Return the result of a call, or its error; in a worker, interrupts are not the user's."""
    try:
        return call()
    except BaseException as error:  # on any error of a client's program the others continue
        if isinstance(error, KeyboardInterrupt) and not worker:
            raise
        line = "" if isinstance(error, ArchGraphError) else raised_in(error)
        said = f"{reason(error)}, {line}" if line else reason(error)
        return Died(said, traceback.format_exc(), error)


def _ending(code: int) -> str:
    """Describe how a process ended.

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
    """Do a job until its parent has gone, or memory has run out."""
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
            if isinstance(sent, Died):  # it returned something other than values and tensors
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
    """Allow this process a number of megabytes in addition to its current ones."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    if memory is not None:
        data = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (data + int(memory * 2**20), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _exhausted(error: BaseException | None) -> bool:
    """Return whether an error means that the system is out of memory, in Python or PyTorch."""
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
        os._exit(1)  # at once: a run that is cut off resumes from its last checkpoint
