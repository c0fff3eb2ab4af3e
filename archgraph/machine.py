"""The machine that a program runs on."""

from __future__ import annotations

import contextlib
import gc
import platform
from collections.abc import Iterator
from pathlib import Path


def processor() -> str:
    """Return the name of the processor, as far as the system tells it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Suspend the collection of cycles, for what makes millions of objects that stay in use."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
