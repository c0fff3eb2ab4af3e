"""Actions in a fork of a warm process, with a limit on time and memory."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

Tell = Callable[[Any], None]


def forked(action: Callable[[Tell], None], limit: float, memory: int) -> Iterator[Any]:
    """What an action tells from a fork of this process, until it ends or its time is up.

    Args:
        action: Called with a function that tells one value, as JSON can express it.
        limit: Seconds without a word; after them the fork is killed, with its children.
        memory: Bytes that the fork may have.

    Raises:
        RuntimeError: If the action raises, with its traceback.
    """
    receive, send = os.pipe()
    with tempfile.TemporaryDirectory() as scratch:
        child = os.fork()
        if not child:
            os.close(receive)
            _child(action, send, scratch, memory)
        os.close(send)
        end, left = time.monotonic() + limit, b""
        try:
            while (rest := end - time.monotonic()) > 0 and select.select([receive], [], [], rest)[
                0
            ]:
                if not (more := os.read(receive, 1 << 20)):
                    break
                *lines, left = (left + more).split(b"\n")
                end = time.monotonic() + limit
                for told in map(json.loads, lines):
                    if "error" in told:
                        raise RuntimeError(told["error"])
                    yield told
        finally:
            os.close(receive)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)


def silent() -> None:
    """In a fork: a group of processes of its own, that says nothing."""
    os.setsid()
    void = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(void, number)


def _child(action: Callable[[Tell], None], send: int, scratch: str, memory: int) -> NoReturn:
    silent()
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    tempfile.tempdir = os.environ["TMPDIR"] = os.environ["PYTEST_DEBUG_TEMPROOT"] = scratch

    def tell(told: Any) -> None:
        os.write(send, json.dumps(told).encode() + b"\n")

    try:
        action(tell)
    except BaseException:
        tell({"error": traceback.format_exc()})
    finally:
        os._exit(0)
