"""A worker: a process with one thread that calls a function on request."""

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
"""A function that workers call; its argument type is not checked."""

# Seconds to wait for the end of a process that has closed its pipe.
GRACE = 1.0
# Imported once by the fork server, not by every process that it starts.
PRELOAD = ["archgraph.engine.clientwork"]
# Placeholder for an item that is sent through the pipe.
AWAITED = object()


@wire.carried
class Died(NamedTuple):
    """The result of a failed call.

    Attributes:
        reason: The reason of the failure.
        trace: The traceback, if known.
        error: The error, if it was raised in this process.
    """

    reason: str
    trace: str = ""
    error: BaseException | None = None


class OnDevice(Protocol):
    """A function that computes on a device."""

    def on(self, device: str) -> Function[object]:
        """Return the same function on a device."""


@wire.carried
class Ended(NamedTuple):
    """A finished call: its result, its duration, and whether its process has ended."""

    value: object
    seconds: float = 0.0
    last: bool = True


class Job(NamedTuple):
    """A worker's job: a function, and settings of the process.

    Attributes:
        function: The function. On a device, its method ``on`` returns the function to call.
        file: File with the serialised function, for processes of the fork server. Empty for forked
            processes.
        script: Whether the function needs definitions of the user's script. The worker then imports
            the script.
        memory: Maximum memory of a call in MB, in addition to that of its process.
        dtype: The user's default dtype.
        deterministic: Whether the user has requested deterministic algorithms.
    """

    function: Function[object] | None
    file: str
    script: bool
    memory: float | None
    dtype: torch.dtype
    deterministic: int


class Process:
    """A worker process, controlled by its parent process.

    Args:
        job: The worker's job.
        device: The worker's device.
        item: The first item, if the process is forked with it.

    Attributes:
        pipe: Receives the worker's messages.
        waits: Whether the worker has received another item but has not begun its call. If the
            worker then ends, the item is not the cause.
        end: Ends the worker at any time. The worker also ends when this object is deleted or the
            parent process ends.
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
            # Python warns if there are threads; `Workers._job_of` handles them.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()
        self.sentinel, self.waits = self._process.sentinel, False
        # At exit, Python would wait for this process, which waits for its pipe to close.
        self.end = util.Finalize(self, _end, (self.pipe, self._process), exitpriority=0)

    def send(self, message: bytes) -> bool:
        """Send a serialised item to the worker. Returns False if the worker has ended."""
        try:
            self.pipe.send_bytes(message)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def hear(self) -> Ended | None:
        """Receive a message: None when the process has started, then the results of its calls."""
        try:
            said: Ended | None = wire.decode(self.pipe.recv_bytes())
        except (EOFError, OSError):
            return self.ended()
        self.waits = False
        return said

    def ended(self) -> Ended:
        """Return the result of the current call if the process has ended."""
        # Not `join`, which would wait forever if a program has closed the handle that signals its
        # end.
        until = time.monotonic() + GRACE
        while (code := self._process.exitcode) is None and time.monotonic() < until:
            time.sleep(0.001)
        return Ended(Died("its process no longer answers" if code is None else _ending(code)))


def attempted(call: Callable[[], R], *, worker: bool = False) -> R | Died:
    """Return the result of a call, or ``Died`` if it raises an error.

    In the parent process, a keyboard interrupt is raised again.
    """
    try:
        return call()
    except BaseException as error:  # any error of a client's program
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
    """Start processes without importing the user's script, which may lack a main guard."""
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
    """Run calls until the parent process has ended, or memory has run out."""
    # An interrupt from the keyboard reaches all processes. The parent ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, name="archgraph", daemon=True).start()
    gc.freeze()  # else garbage collection would write to, and so copy, all shared objects
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
            pipe.send_bytes(wire.encode(None))  # the deadline counts from here
            ended = _called(function, item, job.memory)
            last, item = ended.last, AWAITED
            sent = attempted(lambda: wire.encode(ended), worker=True)  # noqa: B023  # called at once
            if isinstance(sent, Died):  # the result contains other types than values and tensors
                sent = wire.encode(ended._replace(value=sent._replace(error=None)))
            pipe.send_bytes(sent)
            del ended, sent
    os._exit(0)


def _called(function: object, item: object, memory: float | None) -> Ended:
    """Call the function in a worker, or return the error of reading function or item."""
    began, last = time.perf_counter(), False
    value: object = next((one for one in (function, item) if isinstance(one, Died)), None)
    if value is None:
        call = functools.partial(cast(Function[object], function), item)
        with _bounded(memory):
            value = attempted(call, worker=True)
    if isinstance(value, Died):
        # A process that ran out of memory cannot free it, so the next call gets a new process.
        if memory is not None and _exhausted(value.error):
            value, last = value._replace(reason=f"asked for more than {memory:g} MB (memory)"), True
        value = value._replace(error=None)  # messages cannot contain errors
    return Ended(value, time.perf_counter() - began, last)


@contextlib.contextmanager
def _bounded(memory: float | None) -> Iterator[None]:
    """Limit this process to its current memory plus a number of megabytes."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    if memory is not None:
        data = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (data + int(memory * 2**20), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _exhausted(error: BaseException | None) -> bool:
    """Return whether an error of Python or PyTorch means that the system is out of memory."""
    return isinstance(error, MemoryError) or "Cannot allocate memory" in str(error)


def _own_output() -> None:
    """Replace the standard streams, since a thread of the parent may have held their locks."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        with contextlib.suppress(OSError):  # closed
            stream = os.fdopen(number, "w", buffering=1, errors="replace", closefd=False)
            setattr(sys, name, stream)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)  # at once, since an interrupted run can be resumed from its last checkpoint
