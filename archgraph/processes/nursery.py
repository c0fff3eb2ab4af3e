"""A process that forks others for this one, which may meanwhile do what no fork survives.

Where a machine has a GPU, PyTorch computes gradients in threads from the first backward pass on, on
the processor too; a process that is forked later cannot compute any. Nor can it use CUDA if this
process has. So the nursery is forked first, does neither, and starts the processes of the clients.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import warnings
from collections.abc import Callable
from multiprocessing import connection, get_context, reduction, util
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import torch

from archgraph.errors import RunError

# Seconds in which it answers; to fork a process that shares gigabytes takes less than one.
ANSWERS = 30.0

Serve = Callable[..., None]


def accelerated() -> bool:
    """Whether this machine has a device because of which forked processes need a nursery."""
    device = torch.accelerator.current_accelerator()
    return device is not None and torch.get_device_module(device).device_count() > 0


class Started(Protocol):
    """A process that was started, by whichever process."""

    @property
    def pid(self) -> int | None:
        """Its number."""

    @property
    def exitcode(self) -> int | None:
        """How it ended; None: it has not."""

    def kill(self) -> None:
        """End it, whatever it does."""

    def join(self) -> None:
        """Wait for its end."""

    def close(self) -> None:
        """Forget it."""


class Nursery:
    """Starts processes.

    Args:
        serve: What each process does, with its end of a pipe and the options that it is started
            with.

    Attributes:
        end: Ends it and all that it has started; so does the end of this process.
    """

    def __init__(self, serve: Serve) -> None:
        context = get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_tend, args=(serve, theirs, self._pipe))
        with warnings.catch_warnings():
            # Python warns of threads: the new process leaves alone what they hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()
        self.end = util.Finalize(self, _end, (self._pipe, self._process), exitpriority=0)

    @property
    def trains(self) -> bool:
        """Whether its processes can compute gradients: if this one had computed none before."""
        return self.ask({"try": True}) == 0

    def start(self, pipe: connection.Connection, **options: Any) -> Ward:
        """A new process.

        Args:
            pipe: What it hears and says.
            options: Plain values for what it does.

        Raises:
            RunError: If it cannot be started.
        """
        return Ward(self, int(self.ask({"options": options}, pipe) or 0))

    def ask(self, what: dict[str, Any], pipe: connection.Connection | None = None) -> int | None:
        """Ask for a new process, or after one that was started."""
        try:
            self._pipe.send_bytes(json.dumps(what).encode())
            if pipe is not None:
                reduction.send_handle(self._pipe, pipe.fileno(), self._process.pid)
            if not self._pipe.poll(ANSWERS):
                raise TimeoutError
            said: dict[str, Any] = json.loads(self._pipe.recv_bytes())
        except (OSError, EOFError) as error:
            self._pipe.close()  # an answer that comes late is not one to what is asked next
            raise RunError(
                "no further process can be started",
                where="engine.workers",
                found="the process that starts those of clients has ended or does not answer",
                hint="go on with `--resume`",
            ) from error
        except BaseException:  # an interrupt, perhaps in the middle of a question
            self._pipe.close()
            raise
        if "error" in said:
            raise RunError("a process cannot be started", found=said["error"])
        return said["answer"]


class Ward:
    """A process that a nursery has started; see :class:`Started`."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid = pid
        self._nursery = nursery
        self._code: int | None = None

    @property
    def exitcode(self) -> int | None:
        """How it ended; None: it has not."""
        if self._code is None:
            self._code = self._nursery.ask({"code": self.pid})
        return self._code

    def kill(self) -> None:
        """End it, whatever it does."""
        if self._code is None:  # by the nursery, which knows whose number it is
            with contextlib.suppress(RunError):  # the nursery has ended, and all that it had
                self._code = self._nursery.ask({"code": self.pid, "kill": True})

    def join(self) -> None:
        """Wait for its end."""
        if self._code is None:
            with contextlib.suppress(RunError):  # as above
                self._code = self._nursery.ask({"code": self.pid, "wait": True})

    def close(self) -> None:
        """Forget it: the nursery has."""


def _end(pipe: connection.Connection, process: BaseProcess) -> None:
    pipe.close()
    process.kill()
    process.join()
    process.close()


def _tend(serve: Serve, pipe: connection.Connection, theirs: connection.Connection) -> None:
    """Start processes, and say how they ended, until nobody asks any more."""
    theirs.close()  # else the end of who asks would not be seen
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    context = get_context("fork")
    children: dict[int, BaseProcess] = {}
    while True:
        try:
            asked = json.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)  # with it end the processes that it has started
        try:
            answer: int | None
            if "options" in asked:
                answer = _started(context, serve, pipe, asked["options"], children)
            elif "try" in asked:
                answer = _tried(context)
            else:
                answer = _code(children, **asked)
            said: dict[str, Any] = {"answer": answer}
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        try:
            pipe.send_bytes(json.dumps(said).encode())
        except OSError:
            os._exit(0)


def _started(
    context: Any,
    serve: Serve,
    pipe: connection.Connection,
    options: dict[str, Any],
    children: dict[int, BaseProcess],
) -> int:
    theirs = connection.Connection(reduction.recv_handle(pipe))
    process = context.Process(target=_child, args=(serve, pipe, theirs, options))
    process.start()
    theirs.close()
    children[process.pid] = process
    return int(process.pid)


def _child(
    serve: Serve,
    nursery: connection.Connection,
    pipe: connection.Connection,
    options: dict[str, Any],
) -> None:
    nursery.close()  # else its end would not be seen
    serve(pipe, **options)


def _tried(context: Any) -> int:
    """How a process ends that computes a gradient."""
    process = context.Process(target=_differentiate)
    process.start()
    process.join()
    return int(process.exitcode)


def _differentiate() -> None:
    try:
        torch.ones((), requires_grad=True).mul(2).backward()
    except RuntimeError:
        os._exit(1)
    os._exit(0)


def _code(
    children: dict[int, BaseProcess], code: int, *, kill: bool = False, wait: bool = False
) -> int | None:
    """How a process ended; None: it has not. One that has is forgotten."""
    process = children[code]
    if kill:
        process.kill()
    if wait:
        process.join()
    ended = process.exitcode
    if ended is not None:
        process.close()
        del children[code]
    return ended
