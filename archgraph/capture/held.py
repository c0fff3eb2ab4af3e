"""What forward can keep between calls: attributes, and what its code names beyond the module.

The code of every forward is followed from name to name: methods and helper functions of the user's,
their globals and closures, the classes and objects that they name. Each place that can hold a value
is a :class:`Space`, which can be read, compared and put back.
"""

from __future__ import annotations

import functools
import inspect
import pickle
import sys
import threading
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from archgraph.capture.places import is_users, place

ABSENT = object()
# Attributes of every module, and a recurrent layer's lists of its own parameters.
TABLES = frozenset({*vars(torch.nn.Module()), "_flat_weights", "_flat_weight_refs"})
CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_MANY = 100  # values of a container that are looked at
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CACHE = functools._lru_cache_wrapper
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial, _CACHE)
_OPAQUE = (torch.Tensor, type, types.ModuleType, types.BuiltinFunctionType)


@dataclass(frozen=True)
class Space:
    """Named values that forward may replace: attributes, globals, or variables of a closure."""

    prefix: str
    where: Callable[[str], str]  # the code that may write a value
    read: Callable[[], dict[str, Any]]
    write: Callable[[str, Any], None]  # ABSENT removes it

    def name(self, key: str) -> str:
        """What a value is called in messages."""
        return f"{self.prefix}{key}"

    def prints(self) -> dict[str, Any]:
        """Something for each value that is equal as long as the value is as it was."""
        return {key: fingerprint(value) for key, value in self.read().items()}


@dataclass
class Held:
    """All spaces of a module, the caches of its functions, and the names that its code uses."""

    spaces: list[Space] = field(default_factory=list)
    caches: list[Any] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # each with the place of a function
    _globals: dict[int, set[str]] = field(default_factory=dict)
    _seen: dict[Any, Any] = field(default_factory=dict)

    def new(self, value: Any, owner: Any = None) -> bool:
        """Whether a value comes up for the first time; it is kept, so that its id stays its own."""
        key = id(value), owner
        if key in self._seen:
            return False
        self._seen[key] = value
        return True

    def module(self, module: torch.nn.Module) -> None:
        """A module: its attributes, its code, its hooks."""
        if not self.new(module):
            return
        kind, own = type(module), vars(module)
        without = kind.forward is torch.nn.Module.forward
        self.attributes(
            own, kind.__name__, _file(kind) if without else place(kind.forward), own.keys
        )
        self.function(kind.forward, kind)
        hooks = module._forward_hooks, module._forward_pre_hooks
        for value in [*own.values(), *(h for table in hooks for h in table.values())]:
            self.value(value, kind)

    def value(self, value: Any, owner: type | None = None, depth: int = 2) -> None:
        """Something that forward can reach: a function, a container, an object of the user's."""
        if isinstance(value, _FUNCTIONS):
            self.function(value, owner)
        elif isinstance(value, type):
            self.kind(value)
        elif isinstance(value, _OPAQUE + _PLAIN):
            return
        elif isinstance(value, (dict, list, tuple, deque)):
            items = contents(value)
            for item in items if depth and len(items) < _MANY else ():
                self.value(item, owner, depth - 1)
        elif isinstance(value, torch.nn.Module):
            self.module(value)
        elif self.new(value):
            self.object(value, depth)

    def object(self, value: Any, depth: int) -> None:
        """An object: attributes and slots of the user's, or what a thread or a context holds."""
        kind = type(value)
        where = _file(kind)
        if isinstance(value, ContextVar):
            self.spaces.append(_variable(value))
        elif isinstance(value, threading.local):
            self.attributes(value.__dict__, kind.__name__, "<thread>", value.__dict__.keys)
        elif _own(kind):
            self.kind(kind)
            if hasattr(value, "__dict__"):
                self.attributes(vars(value), kind.__name__, where, vars(value).keys)
                self.value([*vars(value).values()], depth=depth)
            slots = [s for k in kind.__mro__ for s in _slots(k)]
            if slots:
                self.spaces.append(_slotted(value, slots, where))

    def kind(self, kind: type) -> None:
        """A class of the user's: what it holds besides functions."""
        if not _own(kind) or not self.new(kind):
            return

        def read() -> dict[str, Any]:
            return {k: v for k, v in vars(kind).items() if _is_data(k, v)}

        def write(key: str, value: Any) -> None:
            if value is ABSENT:
                delattr(kind, key)
            else:
                setattr(kind, key, value)

        where = _file(kind)
        self.spaces.append(Space(f"{kind.__name__}.", lambda _: where, read, write))

    def function(self, function: Any, owner: type | None) -> None:
        """A function of the user's: its globals and its closure, and what they lead to."""
        if isinstance(function, _CACHE) and self.new(function):
            self.caches.append(function)
        function = _innermost(function)
        code = getattr(function, "__code__", None)
        if code is None or not is_users(code.co_filename) or not self.new(function, owner):
            return
        names, where = frozenset(_names(code)), place(function)
        for name in names:
            self.names.setdefault(name, where)
        self.scope(function.__globals__, names)
        self.attributes(vars(function), function.__name__, where, vars(function).keys)
        if function.__defaults__:
            self.spaces.append(_defaults(function, where))
        if function.__closure__:
            cells = dict(zip(code.co_freevars, function.__closure__, strict=True))
            self.spaces.append(_closure(cells, where))
            for value in _bound(cells).values():
                self.value(value, owner)
        for kind in filter(_own, owner.__mro__ if owner is not None else ()):
            self.kind(kind)
            for name in names & vars(kind).keys():
                method = vars(kind)[name]
                self.value(getattr(method, "fget", None) or method, owner)

    def scope(self, scope: dict[str, Any], names: frozenset[str]) -> None:
        """What some code names of a module's globals, unless the module is torch's or Python's."""
        known = self._globals.setdefault(id(scope), set())
        if not known:
            self.attributes(scope, "", "", lambda: known & scope.keys())
        for name in (names - known) & scope.keys():
            value = scope[name]
            if not isinstance(value, types.ModuleType):
                self.value(value)
            elif is_users(getattr(value, "__file__", None) or "<"):
                self.scope(vars(value), names & vars(value).keys())
        known |= names

    def attributes(
        self, own: dict[str, Any], prefix: str, where: str, names: Callable[[], Any]
    ) -> None:
        """A space that is a dictionary, or some names of it."""

        def read() -> dict[str, Any]:
            return {k: own[k] for k in list(names()) if k not in TABLES}

        def write(key: str, value: Any) -> None:
            if value is ABSENT:
                own.pop(key, None)
            else:
                own[key] = value

        prefix = f"{prefix}." if prefix else ""
        self.spaces.append(Space(prefix, lambda key: where or self.names[key], read, write))


def held(model: torch.nn.Module) -> Held:
    """Everything that the forward of a model and of its submodules can keep."""
    found = Held()
    for module in model.modules():
        found.module(module)
    return found


def fingerprint(value: Any, depth: int = 3) -> Any:
    """Something that is equal as long as a value is as it was; tensors are not compared."""
    if isinstance(value, _PLAIN):
        return type(value), repr(value) if isinstance(value, float | complex) else value
    if depth and isinstance(value, CONTAINERS):
        return [fingerprint(item, depth - 1) for item in contents(value)]
    if not opaque(value):
        return Same(value)
    try:
        return Same(value), pickle.dumps(value)  # an array, a generator of random numbers
    except Exception:  # whatever its class raises
        # nothing tells where an iterator stands
        return object() if isinstance(value, Iterator) else Same(value)


def opaque(value: Any) -> bool:
    """Whether a value can change inside in a way that neither attributes nor contents show."""
    if isinstance(value, (torch.nn.Module, *_OPAQUE, *_FUNCTIONS, *_PLAIN, *CONTAINERS)):
        return False
    return not _own(type(value))


def contents(container: Any) -> list[Any]:
    """What a container holds, of a dictionary keys and values, past what a subclass makes of it."""
    for base in (OrderedDict, dict):
        if isinstance(container, base):
            return [part for item in base.items(container) for part in item]
    bases: tuple[Any, ...] = (list, tuple, set, frozenset, deque)
    return list(next(base.__iter__(container) for base in bases if isinstance(container, base)))


class Same:
    """A value that equals nothing but itself."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]  # only ever an item of a list


def _defaults(function: Any, where: str) -> Space:
    """A space that is the default values of a function's arguments."""
    code = function.__code__
    count = len(function.__defaults__)
    names = code.co_varnames[code.co_argcount - count : code.co_argcount]

    def read() -> dict[str, Any]:
        return dict(zip(names, function.__defaults__, strict=True))

    def write(key: str, value: Any) -> None:
        function.__defaults__ = tuple((read() | {key: value}).values())

    return Space(f"{function.__name__}.", lambda _: where, read, write)


def _variable(variable: ContextVar[Any]) -> Space:
    """A space that is a context variable."""

    def read() -> dict[str, Any]:
        value = variable.get(ABSENT)
        return {} if value is ABSENT else {variable.name: value}

    def write(key: str, value: Any) -> None:
        if value is not ABSENT:
            variable.set(value)

    return Space("", lambda _: "<context>", read, write)


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _slotted(value: Any, slots: list[str], where: str) -> Space:
    """A space that is the slots of an object."""

    def read() -> dict[str, Any]:
        return {slot: getattr(value, slot) for slot in slots if hasattr(value, slot)}

    def write(key: str, new: Any) -> None:
        if new is ABSENT:
            delattr(value, key)
        else:
            setattr(value, key, new)

    return Space(f"{type(value).__name__}.", lambda _: where, read, write)


def _closure(cells: dict[str, Any], where: str) -> Space:
    """A space that is the variables of a closure."""

    def write(key: str, value: Any) -> None:
        if value is not ABSENT:
            cells[key].cell_contents = value

    return Space("", lambda _: where, lambda: _bound(cells), write)


def _bound(cells: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, cell in cells.items():
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    return found


def _innermost(function: Any) -> Any:
    """The function inside a method, a partial function or a decorator."""
    while isinstance(function, _FUNCTIONS):
        inner = getattr(function, "__func__", None) or getattr(function, "func", None)
        inner = inner or getattr(function, "__wrapped__", None)
        if inner is None:
            break
        function = inner
    return function


def _names(code: types.CodeType) -> Iterator[str]:
    """Globals and attributes that some code names, that of the functions inside it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _own(kind: type) -> bool:
    """Whether a class is the user's: part of neither torch, Python nor numpy."""
    return is_users(_file(kind)) and not kind.__module__.startswith("numpy")


def _file(kind: type) -> str:
    """The file that a class is written in."""
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or "<unknown>"


def _is_data(key: str, value: Any) -> bool:
    """Whether an attribute of a class is a value, not part of how the class works."""
    if key.startswith("__") or inspect.isroutine(value) or hasattr(type(value), "__get__"):
        return False
    return not isinstance(value, type)
