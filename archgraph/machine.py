"""Properties of the machine, and control of the garbage collector."""

from __future__ import annotations

import contextlib
import gc
import platform
from collections.abc import Iterator
from pathlib import Path


def processor() -> str:
    """Return the processor's name, with family, model and stepping if the system reports them."""
    with contextlib.suppress(OSError, KeyError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        facts = {key.strip(): text.strip() for key, _, text in (x.partition(":") for x in lines)}
        return "{model name}, family {cpu family}, model {model}, stepping {stepping}".format(
            **facts
        )
    return platform.processor() or platform.machine()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Disable the garbage collector while code creates millions of long-lived objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
