"""What forward can keep between calls: attributes, and what its code names beyond the module.

The code of every forward is followed from name to name: methods and helper functions of the user's,
their globals and closures, the classes and objects that they name.
"""

from __future__ import annotations

import dis
import functools
import threading
import types
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from archgraph.capture import spaces
from archgraph.capture.places import is_users, place
from archgraph.capture.prints import (
    CACHE,
    CONTAINERS,
    DEPTH,
    FUNCTIONS,
    STILL,
    bound,
    contents,
    file,
    hidden,
    inner,
    is_own,
)
from archgraph.capture.spaces import Space

_EVERYTHING = frozenset({"globals", "exec", "eval"})  # with these, code can reach all its globals
_UNNAMED = {f"__{n}__" for n in ("call", "getitem", "setitem", "iter", "next", "enter", "exit")}
_LATE = frozenset({"modules"})  # of Python's own: what an import changes


@dataclass
class Held:
    """All spaces of a module, the caches of its functions, and the names that its code uses."""

    spaces: list[Space] = field(default_factory=list)
    caches: list[Any] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # each with the place of a function
    _globals: dict[int, set[str]] = field(default_factory=dict)
    _seen: dict[Any, Any] = field(default_factory=dict)
    _kinds: set[type] = field(default_factory=set)  # of objects

    def new(self, value: Any, owner: Any = None) -> bool:
        """Whether a value comes up for the first time; it is kept, so that its id stays its own."""
        key = id(value), owner
        if key in self._seen:
            return False
        self._seen[key] = value
        return True

    def module(self, module: torch.nn.Module) -> None:
        """A module: its attributes, its code, its hooks, attributes of its parameters."""
        if not self.new(module):
            return
        kind, own = type(module), vars(module)
        without = kind.forward is torch.nn.Module.forward
        where = file(kind) if without else place(kind.forward)
        self.spaces.append(spaces.table(own, kind.__name__, lambda _: where, own.keys))
        self.function(kind.forward, kind)
        hooks = module._forward_hooks, module._forward_pre_hooks
        for value in [*own.values(), *(h for table in hooks for h in table.values())]:
            self.value(value, kind)
        for tensors in (module._parameters, module._buffers):
            self.spaces += (spaces.of_tensor(tensors, name, self.names) for name in tensors)

    def value(
        self, value: Any, owner: type | None = None, depth: int = DEPTH, code: bool = True
    ) -> None:
        """Something that forward can reach: a function (``code``), a container, an object."""
        if isinstance(value, STILL):
            return
        if isinstance(value, torch.nn.Module):
            self.module(value)
        elif isinstance(value, type):
            self.kind(value)
        elif isinstance(value, FUNCTIONS) or bound(value):
            if code:
                self.function(value, owner)
            for name in ("__self__", "args", "keywords") if self.new(value) else ():
                self.value(getattr(value, name, None), owner, depth - 1, code)
        elif isinstance(value, CONTAINERS):
            for item in contents(value) if depth and self.new(value, owner) else ():
                self.value(item, owner, depth - 1, code)
        elif self.new(value):
            self.object(value, depth)

    def object(self, value: Any, depth: int) -> None:
        """An object: attributes and slots, or what a thread or a context holds."""
        kind = type(value)
        if isinstance(value, ContextVar):
            self.space(spaces.of_context(value), depth)
            return
        where, own = file(kind), inner(value)
        if isinstance(value, threading.local):
            where, own = "<thread>", value.__dict__
        if own is not None:
            self.space(spaces.table(own, kind.__name__, lambda _: where, own.keys), depth)
        if is_own(kind):
            self.kind(kind)
            self._kinds |= set(filter(is_own, kind.__mro__))
            self.space(spaces.of_slots(value, where), depth)

    def space(self, space: Space, depth: int = DEPTH, code: bool = True) -> None:
        """A space and what its values lead to."""
        self.spaces.append(space)
        for value in space.read().values() if depth else ():
            self.value(value, depth=depth - 1, code=code)

    def kind(self, kind: type) -> None:
        """A class of the user's: what it holds besides functions (tables of them are long)."""
        if is_own(kind) and self.new(kind):
            self.space(spaces.of_class(kind, file(kind)), code=False)

    def methods(self) -> None:
        """Methods of the objects that code can reach, where it names them."""
        named: set[Any] = set()
        while (
            fresh := {
                (kind, name)
                for kind in self._kinds
                for name in vars(kind).keys() & (self.names.keys() | _UNNAMED)
            }
            - named
        ):
            named |= fresh
            for kind, name in fresh:
                method = vars(kind)[name]
                self.function(getattr(method, "fget", None) or method, None)

    def function(self, function: Any, owner: type | None) -> None:
        """A function of the user's: its globals and its closure, and what they lead to."""
        if isinstance(function, CACHE) and self.new(function):
            self.caches.append(function)
        function = _innermost(function)
        code = getattr(function, "__code__", None)
        if code is None or not is_users(code.co_filename) or not self.new(function, owner):
            return
        names, where = _names(code), place(function)
        for name in names:
            self.names.setdefault(name, where)
        self.scope(function.__globals__, _globals(code), names)
        own = vars(function)
        self.space(spaces.table(own, function.__name__, lambda _: where, own.keys))
        if function.__defaults__:
            self.space(spaces.of_defaults(function, where))
        if function.__closure__:
            cells = dict(zip(code.co_freevars, function.__closure__, strict=True))
            closure = spaces.of_closure(cells, where)
            self.spaces.append(closure)
            for value in closure.read().values():
                self.value(value, owner)
        for kind in filter(is_own, owner.__mro__ if owner is not None else ()):
            self.kind(kind)
            for name in names & vars(kind).keys():
                method = vars(kind)[name]
                self.value(getattr(method, "fget", None) or method, owner)

    def scope(self, scope: dict[str, Any], wanted: frozenset[str], names: frozenset[str]) -> None:
        """What some code names of a module's globals, and of the modules among them."""
        if names & _EVERYTHING and is_users(scope.get("__file__") or "<"):
            wanted = frozenset(name for name in scope if not name.startswith("__")) | names
            for name in wanted:
                self.names.setdefault(name, scope.get("__file__") or "<unknown>")
        known = self._globals.setdefault(id(scope), set())
        if not known:
            self.spaces.append(
                spaces.table(scope, "", self.names.__getitem__, lambda: known & scope.keys())
            )
        fresh = wanted - known - _LATE
        known |= fresh
        for name in fresh & scope.keys():
            value = scope[name]
            if isinstance(value, types.ModuleType):
                self.scope(vars(value), names, names)
            else:
                self.value(value)

    def hidden(self) -> dict[str, str]:
        """Values that code names and that nothing shows, each with the place of the code."""
        return {
            space.name(key): self.names[key]
            for space in self.spaces
            for key, value in space.read().items()
            if key in self.names and hidden(value)
        }


def held(model: torch.nn.Module) -> Held:
    """Everything that the forward of a model and of its submodules can keep."""
    found = Held()
    for module in model.modules():
        found.module(module)
    found.methods()
    return found


def _innermost(function: Any) -> Any:
    """The function inside a method, a partial function or a decorator."""
    while isinstance(function, FUNCTIONS):
        inside = getattr(function, "__func__", None) or getattr(function, "func", None)
        inside = inside or getattr(function, "__wrapped__", None)
        if inside is None:
            break
        function = inside
    return function


@functools.lru_cache(maxsize=1 << 12)
def _names(code: types.CodeType) -> frozenset[str]:
    """Globals and attributes that some code names, and texts that can be names."""
    texts = (c for c in code.co_consts if isinstance(c, str) and c.isidentifier())
    return frozenset((*code.co_names, *texts)).union(*map(_names, _parts(code)))


@functools.lru_cache(maxsize=1 << 12)
def _globals(code: types.CodeType) -> frozenset[str]:
    """Globals that some code names."""
    found = (
        i.argval for i in dis.get_instructions(code) if i.opname.endswith(("_GLOBAL", "_NAME"))
    )
    return frozenset(found).union(*map(_globals, _parts(code)))


def _parts(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of the functions inside of a function."""
    return (c for c in code.co_consts if isinstance(c, types.CodeType))
