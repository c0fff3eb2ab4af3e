"""A process of one thread that is forked from this one, and calls a function as often as asked.

It shares all memory with this one until one of them writes, so neither data nor models nor its
first item are copied to it, and whatever a program does to it ends with it. It takes a further item
as long as it is young, and as it was when it began (:mod:`archgraph.processes.traces`).
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import connection, get_context, parent_process, reduction, util
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import torch

from archgraph.errors import RunError
from archgraph.processes.nursery import Started
from archgraph.processes.parcel import Parcel, SentOnce, parcel
from archgraph.processes.reasons import reason
from archgraph.processes.traces import LEFT, Traces, use_optimisers

T = TypeVar("T")
Tell: TypeAlias = Callable[..., object]
"""Hears how far a call is: keywords of plain values."""
Function: TypeAlias = Callable[[T, Tell], Any]

# Seconds between two reports of a process on how far it is.
REPORTS = 0.2
MEGABYTE = 2**20
# Seconds in which a process that says nothing more has ended, if it is about to.
GRACE = 1.0
# Whole seconds in which the rest of a message comes.
REST = 5
# Bytes that work on a device may leave in its process: libraries are loaded when first needed.
LEFT_ON_DEVICE = 2**32
# In place of an item that comes through the pipe.
_AWAITED = object()
# What the system says where this process may open no further file.
FULL = (errno.EMFILE, errno.ENFILE)


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


class Unread(NamedTuple):
    """A call that was not made: its process could not read its item, or had ended before."""


class UnsentError(RunError):
    """A call that no process can be given."""


class Ended(NamedTuple):
    """A call that is over.

    Attributes:
        value: What came of it.
        seconds: How long it took.
        last: Whether the process takes no further one.
    """

    value: Any
    seconds: float = 0.0
    last: bool = True


@contextlib.contextmanager
def _files() -> Iterator[None]:
    """Say what to do where this process may open no further file."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise RunError(
            "no further file can be opened",
            found=f"a limit of {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} for this process",
            hint="raise it (`ulimit -n`), then go on with `--resume`",
        ) from error


class Process(Generic[T]):
    """A process that is forked to make a call, and may make others afterwards.

    Args:
        function: What it calls.
        item: What it calls it with first.
        known: Types of frozen values that it is sent once.
        life: Seconds of work after which it takes no further item.
        memory: Megabytes that it may use beside those that it shares with this one.
        start: What starts it, with its end of a pipe; None: it is forked from this one here.

    Attributes:
        pipe: What it says arrives here.
        gone: Ready to be read once it has ended (a descriptor), though its own children may hold
            the other end of the pipe; None: this system has no such thing.
        end: Ends it, whatever it does; so does the end of this object, and of this process.

    Raises:
        RunError: If no further file can be opened.
        UnsentError: If the item cannot be sent to a process that is started elsewhere.
    """

    @_files()
    def __init__(
        self,
        function: Function[T],
        item: T,
        *,
        known: tuple[type, ...] = (),
        life: float = 0.0,
        memory: float | None = None,
        start: Callable[[connection.Connection], Started] | None = None,
    ) -> None:
        self.function = function
        self._begun = True
        self._known = SentOnce(known)
        self.pipe, theirs = get_context("fork").Pipe()
        _impatient(self.pipe)
        if start is None:
            if life:
                use_optimisers()  # once here, and not in every process
            self._process = _forked(function, item, theirs, self._known, life, memory)
        else:
            self._process = start(theirs)
        theirs.close()
        pid = self._process.pid
        assert pid is not None  # it has begun
        self.gone = _descriptor(pid)
        # Python waits for its children when it ends, and theirs would wait for it.
        self.end = util.Finalize(self, _end, (self.pipe, self._process, self.gone), exitpriority=0)
        if start is not None:
            self._send_first(item)

    def _send_first(self, item: T) -> None:
        """Give an item to a process that was not forked with it."""
        try:
            self._send(item)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has ended, and will be heard of
        except Exception as error:
            self.end()
            raise UnsentError(
                "a client's work cannot be sent to its process",
                where="engine.workers",
                found=reason(error),
                expected="tasks and programs that can be pickled",
                hint="define the program's class or function at the top of a module, or set "
                "`engine.workers: 1`, without limits and with one device",
            ) from error

    @_files()
    def send(self, item: T) -> bool:
        """Give it a further item; False: it cannot be given this one, or any."""
        try:
            self._send(item)
        except OSError as error:
            if error.errno in FULL:
                raise
            return False
        except Exception:  # whatever a user's class says to being pickled
            return False
        self._begun = False
        return True

    def _send(self, item: T) -> None:
        with parcel() as sent:
            sent.pack(item, self._known)
            self.pipe.send_bytes(b"")
            reduction.send_handle(self.pipe, sent.place, self._process.pid)

    @property
    def speaks(self) -> bool:
        """Whether there is something to hear."""
        return self.pipe.poll()

    @property
    def has_ended(self) -> bool:
        """Whether it has, as far as this system says."""
        return self.gone is not None and bool(connection.wait([self.gone], 0))

    @_files()
    def hear(self) -> Ended | dict[str, Any] | None:
        """What it says, which there must be: what came of its call, how far it is, or nothing."""
        try:
            said = json.loads(self.pipe.recv_bytes())
            if "seconds" not in said:
                self._begun = True
                return said.get("far")
            value: Any = Unread() if "unread" in said else None
            if "reason" in said:
                value = Died(said["reason"], said["trace"])
            elif value is None:
                with parcel(reduction.recv_handle(self.pipe)) as received:
                    value = received.unpack()
            return Ended(value, said["seconds"], said["last"])
        except (EOFError, OSError) as error:
            if isinstance(error, OSError) and error.errno in FULL:
                raise
            return self.ended()
        except Exception as error:  # nothing that a process leaves behind ends a run
            return Ended(Died(f"what the process sent cannot be read ({type(error).__name__})"))

    def ended(self) -> Ended:
        """What came of its call if nothing more is heard of it."""
        if not self._begun:  # what ended it while it waited is not the item's doing
            return Ended(Unread())
        until = time.monotonic() + GRACE
        while (code := self._process.exitcode) is None and time.monotonic() < until:
            time.sleep(0.001)
        return Ended(Died("its process no longer answers" if code is None else _ending(code)))


def _descriptor(pid: int) -> int | None:
    """A descriptor of a process; None where the system has no such thing."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        return None


def _forked(
    function: Function[T],
    item: T,
    pipe: connection.Connection,
    known: SentOnce,
    life: float,
    memory: float | None,
) -> Started:
    """A process that is forked from this one with its first item."""
    process = get_context("fork").Process(
        target=_serve, args=(function, item, pipe, known, life, memory)
    )
    with warnings.catch_warnings():
        # Python warns of threads: the new one leaves alone what they hold (a display).
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    return process


def _end(pipe: connection.Connection, process: Started, gone: int | None) -> None:
    pipe.close()
    if gone is not None:
        os.close(gone)
    process.kill()
    process.join()
    process.close()


def attempted(call: Callable[[], Any], *, forked: bool = False) -> Any:
    """What a call gives, or what it dies of.

    Args:
        call: What is called.
        forked: Whether this process was forked: no interrupt in it is the user's.
    """
    try:
        return call()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not forked:
            raise
        return Died(reason(error), traceback.format_exc(), error)


def _ending(code: int) -> str:
    """How a process ended.

    >>> _ending(3), _ending(-9)
    ('its process ended with exit code 3', 'its process was ended by SIGKILL')
    """
    if code >= 0:
        return f"its process ended with exit code {code}"
    return f"its process was ended by {signal.Signals(-code).name}"


def serve(
    function: Function[Any],
    known: tuple[type, ...],
    pipe: connection.Connection,
    *,
    life: float,
    memory: float | None,
    place: str,
) -> None:
    """Work for another process, in one that a nursery has started without an item.

    Args:
        function: What is called; it has a method ``on`` that gives the same one on a device.
        known: Types of frozen values that arrive once.
        pipe: Where items come from.
        life: Seconds of work after which the process takes no further item.
        memory: Megabytes that it may use beside those that it shares with the nursery.
        place: The device.
    """
    left = LEFT
    if place != "cpu":
        left = LEFT_ON_DEVICE
        # What it needs for itself, before anything is compared; what fails, fails again there.
        with contextlib.suppress(Exception):
            first = torch.ones(1, 1, device=place, requires_grad=True)
            (first @ first).sum().backward()
        function = function.on(place)  # type: ignore[attr-defined]  # as said
    _serve(function, _AWAITED, pipe, SentOnce(known), life, memory, left)


def _serve(
    function: Function[Any],
    item: Any,
    pipe: connection.Connection,
    known: SentOnce,
    life: float,
    memory: float | None,
    left: int = LEFT,
) -> None:
    # An interrupt from the keyboard reaches all processes; the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.freeze()  # else a collection would touch, and so copy, all that is shared
    torch.set_num_threads(1)
    _own_output()
    traces = Traces(left) if life else None
    if item is _AWAITED:
        item = _received(pipe, known, first=True)
    if memory is not None:
        _limit(int(memory * MEGABYTE))  # beside its item
    try:
        _repeat(function, item, pipe, known, life, memory, traces)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)  # nobody listens any more


def _repeat(
    function: Function[Any],
    item: Any,
    pipe: connection.Connection,
    known: SentOnce,
    life: float,
    memory: float | None,
    traces: Traces | None,
) -> None:
    """Make one call after the other, to the end of this process."""
    worked, here = 0.0, os.getpid()
    while True:
        began = time.perf_counter()
        value = attempted(lambda: function(item, _teller(pipe)), forked=True)  # noqa: B023  # at once
        seconds = time.perf_counter() - began
        if os.getpid() != here:
            os._exit(1)  # a copy that the function has made of this process
        if memory is not None and isinstance(value, Died) and _lacks_memory(value.error):
            value = value._replace(reason=f"asked for more than {memory:g} MB (memory)")
        faulthandler.cancel_dump_traceback_later()
        worked += seconds
        further = _tell(pipe, value, seconds, traces if worked < life else None)
        del item, value
        if not further:
            os._exit(0)
        item = _received(pipe, known)


def _received(pipe: connection.Connection, known: SentOnce, *, first: bool = False) -> Any:
    """The next item; this process ends if it cannot be read.

    Args:
        pipe: Where it comes from.
        known: What was received before.
        first: Whether it is this process's first one: then a new process could not read it either.
    """
    try:
        pipe.recv_bytes()
        place = reduction.recv_handle(pipe)
    except (EOFError, OSError):
        os._exit(0)  # nobody asks any more
    with parcel(place) as received:
        item = attempted(lambda: received.unpack(known), forked=True)
    if isinstance(item, Died):
        if first:
            _tell(pipe, item, 0.0, None)
        else:
            pipe.send_bytes(json.dumps({"seconds": 0.0, "unread": True, "last": True}).encode())
        os._exit(0)
    pipe.send_bytes(b"{}")
    return item


def _own_output() -> None:
    """Write past what this process has made of its output: a display, whose locks may be held."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        with contextlib.suppress(OSError):  # closed
            stream = os.fdopen(
                number, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False
            )
            setattr(sys, name, stream)


def _impatient(pipe: connection.Connection) -> None:
    """Let a pipe fail where the rest of a message does not come."""
    with socket.socket(fileno=os.dup(pipe.fileno())) as end:
        seconds = struct.pack("ll", REST, 0)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)


def _teller(pipe: connection.Connection) -> Tell:
    """Reports how far a call is, now and then, as long as somebody listens."""
    last = time.perf_counter()
    room = select.poll()
    room.register(pipe.fileno(), select.POLLOUT)

    def tell(**values: Any) -> None:
        nonlocal last
        if time.perf_counter() - last > REPORTS and room.poll(0):
            last = time.perf_counter()
            pipe.send_bytes(json.dumps({"far": values}).encode())

    return tell


def _tell(pipe: connection.Connection, value: Any, seconds: float, traces: Traces | None) -> bool:
    """Send what came of a call.

    Args:
        pipe: To whom.
        value: What came of it.
        seconds: How long it took.
        traces: Whether this process is as it was; None: it takes no further call.

    Returns:
        Whether this process takes a further call.
    """
    with contextlib.ExitStack() as stack:

        def packed() -> Parcel:
            sent = stack.enter_context(parcel())
            sent.pack(value)
            return sent

        sent = value if isinstance(value, Died) else attempted(packed, forked=True)
        further = False
        if traces is not None and not isinstance(sent, Died):
            further = attempted(lambda: traces.none, forked=True) is True
        said: dict[str, Any] = {"seconds": seconds, "last": not further}
        if isinstance(sent, Died):
            said |= {"reason": sent.reason, "trace": sent.trace}
        pipe.send_bytes(json.dumps(said).encode())
        if not isinstance(sent, Died):
            parent = parent_process()
            assert parent is not None
            reduction.send_handle(pipe, sent.place, parent.pid)
    return further


def _lacks_memory(error: BaseException | None) -> bool:
    """Whether it is what Python, or PyTorch, says where the system gives no memory."""
    return isinstance(error, MemoryError) or "Cannot allocate memory" in str(error)


def _limit(more: int) -> None:
    """Allow this process so many bytes beside those that it has."""
    data = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (data + more, data + more))


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)  # at once: a run that is cut off goes on from its last checkpoint
