"""Restore a model and the random numbers around it to their previous state."""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from archgraph.capture.places import is_own, is_users

# Containers of the user, of any class and with any items. Their methods are those of these types,
# bypassing overrides in subclasses.
Container: TypeAlias = Any
Memory: TypeAlias = Tensor | np.ndarray[Any, Any]
_KINDS: tuple[Container, ...] = (OrderedDict, dict, list, set, deque)
_CACHE = functools._lru_cache_wrapper
_Cached: TypeAlias = "functools._lru_cache_wrapper[object]"
_PARTS = frozenset(("training", "_parameters", "_buffers", "_modules"))  # not attributes
_SHARED = 4096  # maximum length of a copied dictionary outside of the model: caches are shorter
_CAPTURE = ("torch", "sympy", "mpmath", "archgraph")  # packages whose caches a capture fills


@contextlib.contextmanager
def restored(model: nn.Module) -> Iterator[Callable[[], list[str]]]:
    """Undo changes that forward makes; yield a function that lists changed attributes.

    These are restored:

    - attributes of every module and of the user's objects in modules, and the contents of lists and
      dictionaries;
    - values of all tensors and arrays except parameters, and ``requires_grad`` and ``grad`` of
      parameters;
    - results of functions with ``functools.cache``;
    - dictionaries of the modules' classes and of the files that define these classes;
    - random numbers of torch, Python and NumPy.
    """
    before = _Snapshot.of(model)
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  # forward may use it
    with torch.random.fork_rng(before.devices):
        try:
            yield before.changed
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002  # forward may use it
            before.put_back()


@dataclass(frozen=True)
class _Snapshot:
    """Previous state of everything that forward may change.

    Attributes:
        containers: Containers with their paths and contents.
        parameters: Parameters with ``requires_grad`` and ``grad``. Values of parameters are not
            copied, because a write to a parameter is an error, and copies of large models would
            need much memory.
        copies: All other tensors and arrays, with their values.
        devices: Indices of the CUDA devices of the tensors.
        caches: Cached functions, with the number of their results.
        tables: Dictionaries of classes and files, with their contents.
    """

    containers: list[tuple[Container, str, dict[object, object]]]
    parameters: list[tuple[nn.Parameter, bool, Tensor | None]]
    copies: list[tuple[Memory, Memory | None]]
    devices: set[int | None]
    caches: dict[_Cached, int]
    tables: list[tuple[dict[object, object], dict[object, object]]]

    @staticmethod
    def of(model: nn.Module) -> _Snapshot:
        holders, memory = reachable_values(model)
        containers = [(holder, path, _contents(holder)) for holder, path in holders]
        trained = [value for value, _ in memory if isinstance(value, nn.Parameter)]
        others = (value for value, _ in memory if not isinstance(value, nn.Parameter))
        return _Snapshot(
            containers,
            [(p, p.requires_grad, p.grad) for p in trained],
            [(value, _copy(value)) for value in others],
            {t.device.index for t, _ in memory if isinstance(t, Tensor) and t.is_cuda},
            {cache: cache.cache_info().currsize for cache in _caches(model)},
            [(table, dict(table)) for table in _shared_tables(model)],
        )

    def changed(self) -> list[str]:
        """List the attributes, and items in them, that have changed."""
        names = (
            f"{path}{key}" if path.endswith(".") else path
            for holder, path, old in self.containers
            if not path.endswith(":")
            for key in _changed(holder, old)
            if key not in _PARTS
        )
        return list(dict.fromkeys(names))

    def put_back(self) -> None:
        """Undo all changes."""
        for holder, _, contents in self.containers:
            if _changed(holder, contents):
                _refill(holder, contents)
        for parameter, needs, gradient in self.parameters:
            if parameter.requires_grad != needs:
                parameter.requires_grad_(needs)
            if parameter.grad is not gradient:
                parameter.grad = gradient
        for value, copy in self.copies:
            _write(value, copy)
        for cache, size in self.caches.items():
            if cache.cache_info().currsize != size:
                cache.cache_clear()
        for table, before in self.tables:
            # Only tensors: entries that an import registers in the meantime must remain.
            for key in _changed(table, before):
                new = table.get(key)
                if any(isinstance(v, Tensor) for v in (new if isinstance(new, tuple) else [new])):
                    del table[key]
                    table |= {key: before[key]} if key in before else {}


def reachable_values(
    model: nn.Module,
) -> tuple[list[tuple[Container, str]], list[tuple[Memory, str]]]:
    """Return containers that forward may change, and tensors and arrays in them, with their paths.

    A path begins with the name of the model's class. Modules, objects of the user and containers
    are searched in order. The path of a dict of attributes ends in a dot. The path of a module's
    dict of parameters, buffers or submodules ends in a colon.
    """
    holders: list[tuple[Container, str]] = []
    memory: list[tuple[Memory, str]] = []
    waiting: list[tuple[object, str]] = [(model, type(model).__name__)]
    visited: set[int] = set()
    while waiting:  # not recursive: chains of objects may be longer than Python's stack
        value, path = waiting.pop()
        if id(value) in visited:
            continue
        visited.add(id(value))
        if isinstance(value, (Tensor, np.ndarray)):
            memory.append((value, path))
            continue
        if not isinstance(value, (*_KINDS, tuple)):
            inside = isinstance(value, nn.Module) or is_own(type(value))
            if not inside or not isinstance(getattr(value, "__dict__", None), dict):
                continue
            value, path = vars(value), f"{path}."
        if not isinstance(value, tuple):
            holders.append((value, path))
        items = reversed(_contents(value).items())
        waiting += [(item, _joined(path, key)) for key, item in items]
    return holders, memory


def _joined(path: str, key: object) -> str:
    """Return the path of an item in a container; parameters and submodules are attributes."""
    if path.endswith("."):
        return path[:-1] + ":" if key in _PARTS else f"{path}{key}"
    return f"{path[:-1]}.{key}" if path.endswith(":") else f"{path}[{key!r}]"


def _caches(model: nn.Module) -> set[_Cached]:
    """Return ``functools.cache`` functions and methods of a model and all loaded modules.

    Functions of the capture's own modules are excluded.
    """
    installed, users = _loaded(tuple(map(id, [*sys.modules.values()])))
    classes = {base for module in model.modules() for base in type(module).__mro__}
    return {*installed, *_cached(map(vars, [*users, *classes, *model.modules()]))}


def _shared_tables(model: nn.Module) -> list[dict[object, object]]:
    """Return dictionaries, such as caches, of the user's classes and of the files defining them."""
    every = {base for module in model.modules() for base in type(module).__mro__}
    classes = [class_ for class_ in every if is_own(class_)]
    files = (sys.modules.get(class_.__module__) for class_ in classes)
    tables = [*map(vars, classes), *map(vars, filter(None, {id(f): f for f in files}.values()))]
    values = {id(v): v for table in tables for v in [*table.values()] if type(v) is dict}
    return [value for value in values.values() if len(value) <= _SHARED]


@functools.lru_cache(maxsize=1)
def _loaded(ids: tuple[int, ...]) -> tuple[set[_Cached], list[ModuleType]]:
    """Return the cached functions of installed packages, and all modules outside of packages.

    Only modules outside of installed packages may define further functions without importing a
    module. The ``ids`` of all modules change if a module is imported or reloaded. While this result
    is cached, ids are not reused.
    """
    modules = [m for n, m in [*sys.modules.items()] if _is_others(n) and is_users(_file(m))]
    installed = [module for module in modules if "site-packages" in _file(module)]
    return _cached(map(vars, installed)), [m for m in modules if "site-packages" not in _file(m)]


def _cached(tables: Iterable[Mapping[str, object]]) -> set[_Cached]:
    """Return the cached functions in dicts of attributes, and in classes in these dicts."""
    # Lists, since another thread may define something in the meantime.
    values = [value for table in tables for value in [*table.values()]]
    classes = {id(value): value for value in values if isinstance(value, type)}  # once each
    values += [value for class_ in classes.values() for value in [*vars(class_).values()]]
    values = [_function_of(value) for value in values]
    return {value for value in values if type(value) is _CACHE and _is_others(value.__module__)}


def _function_of(value: object) -> object:
    """Return the function of a static method, class method or property; else the value."""
    if isinstance(value, property):
        return value.fget
    return value.__func__ if isinstance(value, staticmethod | classmethod) else value


def _is_others(name: str) -> bool:
    """Return whether a module is not in the packages whose caches a capture fills."""
    return name.partition(".")[0] not in _CAPTURE


def _file(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or "<unknown>"


def _kind(container: Container) -> Container:
    return next((kind for kind in _KINDS if isinstance(container, kind)), tuple)


def _contents(container: Container) -> dict[object, object]:
    """Return a dict from keys or indices to the items of a container."""
    kind = _kind(container)
    items = kind.items if issubclass(kind, dict) else kind.__iter__
    return dict(items(container) if issubclass(kind, dict) else enumerate(items(container)))


def _changed(container: Container, before: dict[object, object]) -> list[object]:
    """List the keys that a container lost, gained or rebound."""
    now, missing = _contents(container), object()
    every = {**before, **now}
    # By identity, since comparing the user's objects would run the user's code.
    return [key for key in every if before.get(key, missing) is not now.get(key, missing)]


def _refill(container: Container, before: dict[object, object]) -> None:
    kind = _kind(container)
    kind.clear(container)
    if issubclass(kind, dict):
        for key, item in before.items():
            kind.__setitem__(container, key, item)
    else:
        (kind.update if kind is set else kind.extend)(container, before.values())


def _copy(value: Memory) -> Memory | None:
    if isinstance(value, Tensor):
        return None if value.is_meta else value.detach().clone()
    return value.copy()


def _write(value: Memory, copy: Memory | None) -> None:
    """Restore values from a copy; values that have not changed are not written."""
    if isinstance(value, np.ndarray):
        if value.flags.writeable:
            value[...] = copy
    # NaN is unequal to itself and is written back, which changes nothing.
    elif isinstance(copy, Tensor) and not torch.equal(value, copy):
        with torch.no_grad():
            value.copy_(copy)
