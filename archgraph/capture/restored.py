"""A model and the random numbers around it are afterwards what they were before."""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from archgraph.capture.places import is_own, is_users

_KINDS: tuple[Any, ...] = (OrderedDict, dict, list, set, deque)  # past what a subclass overrides
_MEMORY = (torch.Tensor, np.ndarray)
_CACHE = functools._lru_cache_wrapper
_UNNAMED = dict.fromkeys(("training", "_parameters", "_buffers", "_modules"), "")
_CAPTURE = ("torch", "sympy", "mpmath", "archgraph")  # packages whose caches fill in a capture


@contextlib.contextmanager
def restored(model: torch.nn.Module) -> Iterator[Callable[[], list[str]]]:
    """Take back what forward changes; gives a function that names the attributes among it.

    Attributes of every module and of the user's objects in them, what lists and dictionaries hold,
    values of all tensors and arrays but parameters, ``requires_grad`` and ``grad`` of parameters,
    results of functions with ``functools.cache``, random numbers of torch, Python and NumPy.
    """
    holders, memory = _reached(model)
    before = [(holder, label, _contents(holder)) for holder, label in holders]
    trained = [value for value in memory if isinstance(value, torch.nn.Parameter)]
    flags = [(p, p.requires_grad, p.grad) for p in trained]
    copies = [
        (value, _copy(value)) for value in memory if not isinstance(value, torch.nn.Parameter)
    ]
    devices = {t.device.index for t in memory if isinstance(t, torch.Tensor) and t.is_cuda}
    caches = {cache: cache.cache_info().currsize for cache in _caches()}

    def changed() -> list[str]:
        names = (_changed(*item) for item in before)
        return list(dict.fromkeys(name for some in names for name in some if name))

    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  # forward may use it
    with torch.random.fork_rng(devices):
        try:
            yield changed
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002  # forward may use it
            for holder, label, contents in before:
                if [*_changed(holder, label, contents)]:
                    _refill(holder, contents)
            for parameter, needs, gradient in flags:
                if parameter.requires_grad != needs:
                    parameter.requires_grad_(needs)
                if parameter.grad is not gradient:
                    parameter.grad = gradient
            for value, copy in copies:
                _write(value, copy)
            for cache, size in caches.items():
                if cache.cache_info().currsize != size:
                    cache.cache_clear()


def _reached(model: torch.nn.Module) -> tuple[list[tuple[Any, str]], list[Any]]:
    """Containers that forward may change, each with its name, and tensors and arrays in them.

    The name of a table of attributes is empty: its entries have names of their own.
    """
    holders: list[tuple[Any, str]] = []
    memory: list[Any] = []
    waiting: list[tuple[Any, str]] = [(module, "") for module in model.modules()]
    seen: set[int] = set()
    while waiting:
        value, label = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, _MEMORY):
            memory.append(value)
        elif isinstance(value, (*_KINDS, tuple)):
            if not isinstance(value, tuple):
                holders.append((value, label))
            waiting += ((item, label) for item in _values(value))
        elif isinstance(value, torch.nn.Module) or (
            is_own(type(value)) and isinstance(getattr(value, "__dict__", None), dict)
        ):
            own, prefix = vars(value), type(value).__name__
            holders.append((own, f"{prefix}."))
            waiting += ((item, _UNNAMED.get(key, f"{prefix}.{key}")) for key, item in own.items())
    return holders, memory


def _caches() -> set[Any]:
    """Functions with ``functools.cache`` of all modules that are loaded, the capture's apart."""
    return {
        value
        for name, module in [*sys.modules.items()]
        if name.partition(".")[0] not in _CAPTURE and is_users(_file(module))
        for value in [*vars(module).values()]
        if type(value) is _CACHE and value.__module__.partition(".")[0] not in _CAPTURE
    }


def _file(module: Any) -> str:
    return getattr(module, "__file__", None) or "<unknown>"


def _kind(container: Any) -> Any:
    return next((kind for kind in _KINDS if isinstance(container, kind)), tuple)


def _values(container: Any) -> list[Any]:
    kind = _kind(container)
    return list((kind.values if issubclass(kind, dict) else kind.__iter__)(container))


def _contents(container: Any) -> Any:
    kind = _kind(container)
    return list((kind.items if issubclass(kind, dict) else kind.__iter__)(container))


def _changed(container: Any, label: str, before: list[Any]) -> Iterator[str]:
    """The names of what a container no longer holds, or holds besides; empty where it has none."""
    now, kind = _contents(container), _kind(container)
    if issubclass(kind, dict):
        old, new, missing = dict(before), dict(now), object()
        for key in {**old, **new}:
            if old.get(key, missing) is not new.get(key, missing):
                attribute = label.endswith(".") and key not in _UNNAMED
                yield f"{label}{key}" if attribute else label.rstrip(".") * (key not in _UNNAMED)
    elif len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True)):
        yield label


def _refill(container: Any, before: list[Any]) -> None:
    kind = _kind(container)
    kind.clear(container)
    if issubclass(kind, dict):
        for key, item in before:
            kind.__setitem__(container, key, item)
    else:
        (kind.update if kind is set else kind.extend)(container, before)


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return None if value.is_meta else value.detach().clone()
    return value.copy()


def _write(value: Any, copy: Any) -> None:
    """Give memory its values back; what did not change is not touched."""
    if isinstance(value, torch.Tensor):
        with torch.no_grad():
            if copy is not None and not torch.equal(
                value, copy
            ):  # NaN is written back, which changes nothing
                value.copy_(copy)
    elif value.flags.writeable:
        value[...] = copy
