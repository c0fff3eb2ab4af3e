"""A process of one thread that is forked from this one, and calls a function as often as asked.

It shares all memory with this one until one of them writes, so neither data nor models nor its
first item are copied to it, and whatever a program does to it ends with it. It takes a further item
as long as it is young, and as it was when it began (:mod:`archgraph.engine.traces`).
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from multiprocessing import connection, get_context, parent_process, reduction, util
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import torch

from archgraph.engine.parcel import SentOnce, parcel
from archgraph.engine.returned import reason
from archgraph.engine.traces import Traces, use_optimisers

T = TypeVar("T")
Tell: TypeAlias = Callable[..., object]
"""Hears how far a call is: keywords of plain values."""
Function: TypeAlias = Callable[[T, Tell], Any]

# Seconds between two reports of a process on how far it is.
REPORTS = 0.2
MEGABYTE = 2**20


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


class Process(Generic[T]):
    """A process that is forked to make a call, and may make others afterwards.

    Args:
        function: What it calls.
        item: What it calls it with first.
        known: Types of frozen values that it is sent once.
        life: Seconds of work after which it takes no further item.
        memory: Megabytes that it may use beside those that it shares with this one.

    Attributes:
        pipe: What it says arrives here.
        end: Ends it, whatever it does; so does the end of this object, and of this process.
    """

    def __init__(
        self,
        function: Function[T],
        item: T,
        *,
        known: tuple[type, ...] = (),
        life: float = 0.0,
        memory: float | None = None,
    ) -> None:
        self.function = function
        self._begun = True
        self._known = SentOnce(known)
        if life:
            use_optimisers()  # once here, and not in every process
        context = get_context("fork")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(function, item, theirs, self._known, life, memory)
        )
        with warnings.catch_warnings():
            # Python warns of threads; those of this process hold nothing that the new one needs.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()
        # Python waits for its children when it ends, and theirs would wait for it.
        self.end = util.Finalize(self, _end, (self.pipe, self._process), exitpriority=0)

    def send(self, item: T) -> bool:
        """Give it a further item; False: it cannot be given this one, or any."""
        with parcel() as sent:
            try:
                sent.pack(item, self._known)
            except Exception:  # whatever a user's class says to being pickled
                return False
            try:
                self.pipe.send_bytes(b"")
                reduction.send_handle(self.pipe, sent.place, self._process.pid)
            except OSError:
                return False
        self._begun = False
        return True

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
        except (EOFError, OSError, ValueError, KeyError):
            if not self._begun:  # what ended it while it waited is not the item's doing
                return Ended(Unread())
            self._process.join()
            return Ended(Died(_ending(self._process.exitcode or 0)))
        except Exception as error:  # nothing that a process leaves behind ends a run
            return Ended(Died(f"what the process sent cannot be read ({type(error).__name__})"))


def _end(pipe: connection.Connection, process: BaseProcess) -> None:
    pipe.close()
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


def _serve(
    function: Function[Any],
    item: Any,
    pipe: connection.Connection,
    known: SentOnce,
    life: float,
    memory: float | None,
) -> None:
    # An interrupt from the keyboard reaches all processes; the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.freeze()  # else a collection would touch, and so copy, all that is shared
    torch.set_num_threads(1)
    traces = Traces() if life else None
    if memory is not None:
        _limit(int(memory * MEGABYTE))
    worked = 0.0
    while True:
        began = time.perf_counter()
        value = attempted(lambda: function(item, _teller(pipe)), forked=True)  # noqa: B023  # at once
        seconds = time.perf_counter() - began
        worked += seconds
        last = traces is None or isinstance(value, Died) or worked >= life or not traces.none
        _tell(pipe, value, {"seconds": seconds, "last": last})
        del item, value
        if last:
            os._exit(0)
        pipe.recv_bytes()
        with parcel(reduction.recv_handle(pipe)) as received:
            item = attempted(lambda: received.unpack(known), forked=True)  # at once
        if isinstance(item, Died):
            pipe.send_bytes(json.dumps({"seconds": 0.0, "unread": True, "last": True}).encode())
            os._exit(0)
        pipe.send_bytes(b"{}")


def _teller(pipe: connection.Connection) -> Tell:
    """Reports how far a call is, now and then."""
    last = time.perf_counter()

    def tell(**values: Any) -> None:
        nonlocal last
        if time.perf_counter() - last > REPORTS:
            last = time.perf_counter()
            pipe.send_bytes(json.dumps({"far": values}).encode())

    return tell


def _tell(pipe: connection.Connection, value: Any, said: dict[str, Any]) -> None:
    """Send what came of a call."""
    with parcel() as sent:
        if not isinstance(value, Died):
            value = attempted(lambda: sent.pack(value), forked=True) or value
        if isinstance(value, Died):
            said |= {"reason": value.reason, "trace": value.trace}
        pipe.send_bytes(json.dumps(said).encode())
        if "reason" not in said:
            parent = parent_process()
            assert parent is not None
            reduction.send_handle(pipe, sent.place, parent.pid)


def _limit(more: int) -> None:
    """Allow this process so many bytes beside those that it has."""
    data = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (data + more, data + more))


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)  # at once: a run that is cut off goes on from its last checkpoint
