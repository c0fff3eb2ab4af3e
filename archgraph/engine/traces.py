"""Whether a program has left its process as it found it.

What :mod:`archgraph.engine.isolation` restores leaves no trace. This is about the rest: functions
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
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import nn

from archgraph.eager import without_compiler

# Bytes that a program may leave allocated: an allocator keeps some of what is freed.
LEFT = 2**28


def _namespaces() -> Iterator[Mapping[str, object]]:
    """Where functions that programs and this package call are looked up."""
    modules = [builtins, math, random, time, os, sys, np, np.random, torch, torch.autograd]
    modules += [nn.functional, nn.init, nn.utils, nn.modules.module, _OPTIMISERS]
    own = [module for name, module in list(sys.modules.items()) if name.startswith(_PACKAGES)]
    for module in (*modules, *own):
        if isinstance(module, ModuleType):
            yield vars(module)
    for kind in {torch.Tensor, torch.Generator, *_classes(nn), *_classes(torch.optim)}:
        yield vars(kind)


_PACKAGES = ("archgraph.federation", "archgraph.module", "archgraph.strategies", "strategies")
_OPTIMISERS = importlib.import_module("torch.optim.optimizer")  # torch.optim hides its name


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
    # Whether numbers below the smallest normal one are taken for 0.
    lambda: float(torch.full((), 1e-40) * 1) > 0,
]


@functools.cache
def use_optimisers() -> None:
    """Make one of each kind: the first of a kind replaces the kind's ``step`` for good."""
    without_compiler()
    for kind in _classes(torch.optim):
        if issubclass(kind, torch.optim.Optimizer):
            with contextlib.suppress(TypeError, ValueError):  # the base, and what is abstract
                kind([nn.Parameter(torch.zeros(1, 1))])  # type: ignore[call-arg]  # defaults


def _resident() -> int:
    """Bytes of memory that this process has; 0 where the system does not say."""
    place = Path("/proc/self/statm")
    return int(place.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if place.exists() else 0


class Traces:
    """What a process looks like, to be compared later.

    Example:
        >>> traces = Traces()
        >>> traces.none
        True
        >>> relu, nn.functional.relu = nn.functional.relu, abs
        >>> traces.none
        False
        >>> nn.functional.relu = relu
    """

    def __init__(self) -> None:
        use_optimisers()
        self._spaces = [(space, list(space), list(space.values())) for space in _namespaces()]
        self._counts = [count() for count in _COUNTS]
        self._memory: int | None = None

    @property
    def none(self) -> bool:
        """Whether everything is as it was; memory: as it was when this was asked first."""
        resident = _resident()
        self._memory = resident if self._memory is None else self._memory
        return (
            resident <= self._memory + LEFT
            and all(count() == before for count, before in zip(_COUNTS, self._counts, strict=True))
            and all(_same(space, names, values) for space, names, values in self._spaces)
        )


def _same(space: Mapping[str, object], names: list[str], values: list[object]) -> bool:
    """Whether names still mean what they meant; there may be more of them."""
    return all(map(operator.is_, map(space.get, names), values))
