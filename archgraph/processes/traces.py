"""Whether a program has left its process as it found it.

What ``isolation`` restores leaves no trace. This is about the rest: functions
that were replaced, modes and hooks that are still there, threads, memory. Nothing of it can be put
back; the process can be left to nobody else.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import math
import operator
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import nn

# Bytes that a program may leave allocated: an allocator keeps some of what is freed.
LEFT = 2**28


# Packages in which functions are looked up that programs, training and this package call.
_PACKAGES = (
    *("archgraph.engine.", "archgraph.federation.", "archgraph.module."),
    *("archgraph.states.", "archgraph.strategies.", "strategies."),
    *("torch.autograd.", "torch.library.", "torch.linalg.", "torch.nn.", "torch.optim."),
    *("numpy.linalg.", "numpy.random."),
)
_ALONE = (builtins, math, random, time, os, sys, np, torch)
_OPTIMISERS = importlib.import_module("torch.optim.optimizer")  # torch.optim hides its name


def _namespaces() -> Iterator[Mapping[str, object]]:
    """Names of modules, and of classes."""
    found = [m for name, m in list(sys.modules.items()) if f"{name}.".startswith(_PACKAGES)]
    modules = [module for module in found if isinstance(module, ModuleType)]
    kinds = {torch.Tensor, torch.Generator}
    for module in modules:
        kinds.update(kind for kind in _classes(module) if kind.__module__ == module.__name__)
    for space in (*_ALONE, *modules, *kinds):
        yield vars(space)


def _classes(module: ModuleType) -> Iterator[type]:
    return (value for value in vars(module).values() if isinstance(value, type))


def _hooks() -> tuple[int, ...]:
    """How many hooks there are for all modules and all optimisers."""
    spaces = (vars(nn.modules.module), vars(_OPTIMISERS))
    return tuple(
        len(hooks)
        for space in spaces
        for name, hooks in space.items()
        if name.startswith("_global") and isinstance(hooks, dict)
    )


_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_SIGNALS = sorted(signal.valid_signals())
_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


# What is compared, beside names; modes come first, since what follows may not work in them.
_COUNTS: list[Callable[[], object]] = [
    torch._C._len_torch_function_stack,
    torch._C._len_torch_dispatch_stack,
    _hooks,
    threading.active_count,
    sys.gettrace,
    sys.getprofile,
    lambda: len(sys.meta_path),
    lambda: torch._C._autograd._top_saved_tensors_default_hooks(True),
    torch.autograd.is_multithreading_enabled,
    lambda: len(torch.library._impls),
    # Whether numbers below the smallest normal one are taken for 0, and how others are rounded.
    lambda: float(torch.full((), 1e-40) * 1) > 0,
    lambda: (operator.truediv(1.0, 3.0), operator.truediv(2.0, 3.0)),
    lambda: [signal.getitimer(timer)[0] > 0 for timer in _TIMERS],
    lambda: [signal.getsignal(number) for number in _SIGNALS],
    lambda: [resource.getrlimit(kind) for kind in _LIMITS],
    lambda: os.sched_getaffinity(0),
    _has_children,
]


@functools.cache
def use_optimisers() -> None:
    """Make one of each kind: the first of a kind replaces the kind's ``step`` for good."""
    for kind in _classes(torch.optim):
        if issubclass(kind, torch.optim.Optimizer):
            with contextlib.suppress(TypeError, ValueError):  # the base, and what is abstract
                kind([nn.Parameter(torch.zeros(1, 1))])  # type: ignore[call-arg]  # defaults


def _own_memory() -> int:
    """Bytes of memory that this process has and no file holds."""
    resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
    return (int(resident) - int(shared)) * resource.getpagesize()


class Traces:
    """What a process looks like, to be compared later.

    Args:
        left: Bytes of memory that it may have more then.

    Example:
        >>> traces = Traces()
        >>> traces.none
        True
        >>> relu, nn.functional.relu = nn.functional.relu, abs
        >>> traces.none
        False
        >>> nn.functional.relu = relu
    """

    def __init__(self, left: int = LEFT) -> None:
        use_optimisers()
        self._spaces = [(space, list(space.values())) for space in _namespaces()]
        self._counts = [count() for count in _COUNTS]
        self._most = _own_memory() + left

    @property
    def none(self) -> bool:
        """Whether everything is as it was."""
        return (
            _own_memory() <= self._most
            and all(count() == before for count, before in zip(_COUNTS, self._counts, strict=True))
            and all(_same(*space) for space in self._spaces)
        )


def _same(space: Mapping[str, object], values: list[object]) -> bool:
    """Whether names still mean what they meant; a module may have more of them."""
    more = isinstance(space, dict) and len(space) > len(values)
    try:
        # In their order, which a name keeps as long as it is there.
        now = [*space.values()]
        return (more or len(now) == len(values)) and now[: len(values)] == values
    except Exception:  # values that cannot be compared, and so are not the same
        return False
