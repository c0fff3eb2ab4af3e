"""What a client's program can change for the whole process is restored after it.

A process of its own (``workers``) holds back more: functions that are replaced, memory that is not
freed, a crash, an endless loop. In this process a program is trusted not to do that.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import random
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import get_num_threads, set_num_threads


class _Global(NamedTuple):
    """Something that all of a process shares: how it is read, and how it is set."""

    read: Callable[[], Any]
    change: Callable[[Any], object]


def _folder() -> Path | None:
    """The current folder; None: it no longer exists."""
    with contextlib.suppress(FileNotFoundError):
        return Path.cwd()
    return None


def _mask() -> int:
    """The mask of new files' permissions, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _go(place: Path | None) -> None:
    if place is not None:
        os.chdir(place)


def _set_default_device(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)


def _products() -> str | None:
    """The precision of products; None: it was set for one kind of device, and is not one."""
    with contextlib.suppress(RuntimeError):
        return torch.get_float32_matmul_precision()
    return None


def _set_products(precision: str | None) -> None:
    if precision is not None:
        torch.set_float32_matmul_precision(precision)


def _set_environment(values: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(values)


def _set_warnings(filters: list[Any]) -> None:
    warnings.resetwarnings()
    warnings.filters[:] = filters  # type: ignore[index]  # a list, annotated as a sequence


def _set_output(streams: tuple[Any, Any]) -> None:
    sys.stdout, sys.stderr = streams


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _set_handlers(handlers: list[Any]) -> None:
    for number, handler in zip(_SIGNALS, handlers, strict=True):
        signal.signal(number, handler)


_GLOBALS = [
    _Global(torch.is_grad_enabled, torch.set_grad_enabled),
    _Global(torch.get_default_dtype, torch.set_default_dtype),
    _Global(torch.get_default_device, _set_default_device),
    _Global(get_num_threads, set_num_threads),
    _Global(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    _Global(_products, _set_products),  # before those that it sets, too
    *(
        _Global(
            functools.partial(torch._C._get_fp32_precision_getter, backend, operation),
            functools.partial(torch._C._set_fp32_precision_setter, backend, operation),
        )
        for backend, operations in (
            ("generic", ("all",)),
            ("mkldnn", ("all", "matmul", "conv", "rnn")),
            ("cuda", ("all", "matmul", "conv", "rnn")),
        )
        for operation in operations
    ),
    _Global(torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    *(
        _Global(functools.partial(read, device), functools.partial(change, device))
        for device in ("cpu", "cuda")
        for read, change in (
            (torch.is_autocast_enabled, torch.set_autocast_enabled),
            (torch.get_autocast_dtype, torch.set_autocast_dtype),
        )
    ),
    _Global(
        lambda: torch.backends.cudnn.benchmark,
        lambda on: setattr(torch.backends.cudnn, "benchmark", on),
    ),
    _Global(
        lambda: torch.backends.cudnn.deterministic,
        lambda on: setattr(torch.backends.cudnn, "deterministic", on),
    ),
    _Global(lambda: torch.backends.mkldnn.enabled, lambda on: torch.backends.mkldnn.set_flags(on)),
    _Global(torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    _Global(torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    _Global(_mask, os.umask),
    _Global(lambda: list(sys.path), lambda path: sys.path.__setitem__(slice(None), path)),
    _Global(lambda: logging.root.manager.disable, logging.disable),
    _Global(random.getstate, random.setstate),
    _Global(np.geterr, lambda kinds: np.seterr(**kinds)),
    _Global(lambda: list(warnings.filters), _set_warnings),
    _Global(lambda: dict(os.environ), _set_environment),
    _Global(_folder, _go),
    _Global(sys.getrecursionlimit, sys.setrecursionlimit),
    _Global(gc.isenabled, lambda on: (gc.enable if on else gc.disable)()),
    _Global(lambda: (sys.stdout, sys.stderr), _set_output),
    _Global(lambda: [signal.getsignal(number) for number in _SIGNALS], _set_handlers),
]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: bits depend on their number, and not on who computes beside.

    Example:
        >>> with one_thread():
        ...     torch.get_num_threads()
        1
    """
    threads = get_num_threads()
    set_num_threads(1)
    try:
        yield
    finally:
        set_num_threads(threads)


def seed_torch(seed: int, device: torch.device) -> None:
    """Seed the generators that computations on a device draw from.

    ``torch.manual_seed`` seeds those of all devices; without any it takes a stack trace each time,
    a twentieth of a small client's turn.

    Example:
        >>> seed_torch(0, torch.device("cpu"))
        >>> torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(0)))
        True
    """
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.manual_seed(seed)


@contextlib.contextmanager
def isolated(generator: torch.Generator, device: str = "cpu") -> Iterator[None]:
    """Seed the process's generators (dropout) from a client's; restore its settings afterwards.

    That is what the table above lists, and the generators of torch and NumPy. A program begins with
    gradients on, whatever the strategy that waits for it has turned off, and with one thread.

    Example:
        >>> with isolated(torch.Generator()):
        ...     torch.set_default_dtype(torch.float64)
        >>> torch.get_default_dtype()
        torch.float32
    """
    where, seed = torch.device(device), generator.initial_seed()
    devices = [] if where.type == "cpu" else [where.index or 0]
    before = [one.read() for one in _GLOBALS]
    numpy = np.random.get_state()  # noqa: NPY002  # programs may use it
    with torch.random.fork_rng(devices, device_type="cuda" if not devices else where.type):
        seed_torch(seed, where)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002  # as above
        try:
            # Left, it restores both modes, however deep a program has gone.
            with torch.inference_mode(False), one_thread():
                yield
        finally:
            np.random.set_state(numpy)  # noqa: NPY002  # as above
            for one, value in zip(_GLOBALS, before, strict=True):
                if one.read() != value:
                    one.change(value)
