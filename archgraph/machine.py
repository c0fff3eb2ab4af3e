"""The machine that a program runs on."""

from __future__ import annotations

import contextlib
import gc
import platform
from collections.abc import Iterator
from pathlib import Path


def processor() -> str:
    """Return the name of the processor, or its architecture if the system does not show a name."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Suspend collection of cycles, for code that creates millions of long-lived objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
