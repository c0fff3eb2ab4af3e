"""Values compared from call to call: fingerprints, what containers hold, what shows nothing.

A user's object equals itself here; what it holds is compared as a :class:`~.spaces.Space`.
"""

from __future__ import annotations

import array
import ctypes
import logging
import pickle
import sys
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextvars import ContextVar
from functools import _lru_cache_wrapper, partial
from typing import Any

import numpy as np
import torch

from archgraph.capture.places import is_users

PLAIN = (bool, int, float, complex, str, bytes, type(None))
CONTAINERS = (dict, list, tuple, set, frozenset, deque)
CACHE = _lru_cache_wrapper
FUNCTIONS = (types.FunctionType, types.MethodType, partial, CACHE)
DEPTH = 50  # containers in containers
_BASES: tuple[Any, ...] = (OrderedDict, dict, list, tuple, set, frozenset, deque)
STILL = (torch.Tensor, types.ModuleType, logging.Filterer, *PLAIN)  # not looked into
_OPAQUE = (type, *STILL)
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_FOREIGN: Any = ctypes._SimpleCData.__mro__[1]  # values of C
_BUFFERS = (bytearray, array.array, np.ndarray, _FOREIGN)


class Same:
    """A value that equals nothing but itself."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]  # only ever an item of a list


def fingerprint(value: Any, seen: dict[int, int] | None = None, depth: int = DEPTH) -> Any:
    """Something that is equal as long as a value is as it was; tensors are not compared."""
    if isinstance(value, PLAIN):
        return type(value), repr(value) if isinstance(value, float | complex) else value
    if isinstance(value, CONTAINERS) and depth:
        seen = {} if seen is None else seen
        if id(value) in seen:
            return seen[id(value)]
        seen[id(value)] = len(seen)
        return [fingerprint(item, seen, depth - 1) for item in contents(value)]
    if bound(value):
        return Same(value), fingerprint(value.__self__, seen, depth - 1)
    if not opaque(value):
        return Same(value)
    if isinstance(value, Iterator) and pickled(value) is None:
        return object()  # nothing tells where it stands
    return Same(value), _inside(value)


def _inside(value: Any) -> Any:
    """What a value holds that is neither a container nor an object of the user's."""
    if isinstance(value, weakref.ref):
        return Same(value())
    if isinstance(value, _LOCKS):
        return repr(value).startswith("<unlocked") or object()  # nothing tells who locked it
    if is_foreign(value):
        return bytes(value)
    return pickled(value)


def pickled(value: Any) -> bytes | None:
    """A value as bytes (an array, a generator of random numbers); None where it cannot be."""
    try:
        return pickle.dumps(value)
    except Exception:  # whatever its class raises
        return None


def opaque(value: Any) -> bool:
    """Whether a value can change inside in a way that neither attributes nor contents show."""
    known = (torch.nn.Module, types.BuiltinFunctionType, *_OPAQUE, *FUNCTIONS, *CONTAINERS)
    return not isinstance(value, known) and not is_own(type(value))


def hidden(value: Any) -> bool:
    """Whether nothing shows what a value holds."""
    shown = isinstance(value, (Iterator, ContextVar)) or hasattr(value, "__dict__")
    return not shown and opaque(value) and _inside(value) is None


def inner(value: Any) -> dict[str, Any] | None:
    """Attributes of an object of the user's, or of a library's that cannot be pickled."""
    own = getattr(value, "__dict__", None)
    return own if is_own(type(value)) or (own is not None and _inside(value) is None) else None


def bound(value: Any) -> bool:
    """Whether a value is a method, of Python or of C, of an object that it carries."""
    kinds = (types.BuiltinFunctionType, types.MethodWrapperType, types.MethodType)
    owner = getattr(value, "__self__", None) if isinstance(value, kinds) else None
    return owner is not None and not isinstance(owner, (torch.nn.Module, *_OPAQUE))


def base(container: Any) -> Any:
    """The class of Python's that a container is one of, past what a subclass makes of it."""
    return next(kind for kind in _BASES if isinstance(container, kind))


def contents(container: Any) -> list[Any]:
    """What a container holds, of a dictionary keys and values."""
    kind = base(container)
    if issubclass(kind, dict):
        return [part for item in kind.items(container) for part in item]
    return list(kind.__iter__(container))


def is_buffer(value: Any) -> bool:
    """Whether a value is memory whose bytes can be copied and put back."""
    return isinstance(value, _BUFFERS)


def is_foreign(value: Any) -> bool:
    """Whether a value is one of C, which ``ctypes`` shows."""
    return isinstance(value, _FOREIGN)


def is_own(kind: type) -> bool:
    """Whether a class is the user's: part of neither torch, Python nor numpy."""
    return is_users(file(kind)) and not kind.__module__.startswith("numpy")


def file(kind: type) -> str:
    """The file that a class is written in."""
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or "<unknown>"


def essence(value: Any, seen: set[int] | None = None, depth: int = DEPTH) -> Any:
    """What of a value is no tensor and no text: equal where a result is made anew at each call."""
    if isinstance(value, PLAIN):
        return None if isinstance(value, (str, bytes)) else (type(value), repr(value))
    seen = set() if seen is None else seen
    if id(value) in seen or not depth:
        return None
    seen.add(id(value))
    if isinstance(value, (set, frozenset)):
        return sorted(repr(essence(item, seen, depth - 1)) for item in contents(value))
    if isinstance(value, CONTAINERS):
        return [essence(item, seen, depth - 1) for item in contents(value)]
    if isinstance(value, torch.nn.Module) or not is_own(type(value)):
        return type(value).__name__
    names = (*getattr(value, "__dict__", {}), *slots(type(value)))
    parts = {name: essence(getattr(value, name, None), seen, depth - 1) for name in names}
    return type(value).__name__, parts


def slots(kind: type) -> list[str]:
    """The names of all slots of a class."""
    own = [vars(k).get("__slots__", ()) for k in kind.__mro__]
    return [name for names in own for name in ((names,) if isinstance(names, str) else names)]
