"""Places that can hold a value between calls: each can be read, compared and put back."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from archgraph.capture.prints import fingerprint, slots

ABSENT = object()
# Attributes of every module, and a recurrent layer's lists of its own parameters.
TABLES = frozenset({*vars(torch.nn.Module()), "_flat_weights", "_flat_weight_refs"})


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


def table(
    own: dict[str, Any], prefix: str, where: Callable[[str], str], names: Callable[[], Any]
) -> Space:
    """A dictionary of attributes or globals, or some names of it."""

    def read() -> dict[str, Any]:
        return {k: own[k] for k in list(names()) if k not in TABLES}

    def write(key: str, value: Any) -> None:
        if value is ABSENT:
            own.pop(key, None)
        else:
            own[key] = value

    return Space(f"{prefix}." if prefix else "", where, read, write)


def of_tensor(holder: dict[str, Any], name: str, names: dict[str, str]) -> Space:
    """Attributes of a parameter or a buffer that some code names, or of its stand-in."""

    def own() -> dict[str, Any]:
        return getattr(holder.get(name), "__dict__", {})

    def read() -> dict[str, Any]:
        attributes = own()
        return {key: attributes[key] for key in attributes.keys() & names.keys()}

    def write(key: str, value: Any) -> None:
        if value is ABSENT:
            own().pop(key, None)
        else:
            own()[key] = value

    return Space(f"{name}.", names.__getitem__, read, write)


def of_class(kind: type, where: str) -> Space:
    """What a class holds besides functions."""

    def read() -> dict[str, Any]:
        return {k: v for k, v in vars(kind).items() if _is_data(k, v)}

    def write(key: str, value: Any) -> None:
        _set(kind, key, value)

    return Space(f"{kind.__name__}.", lambda _: where, read, write)


def of_slots(value: Any, where: str) -> Space:
    """The slots of an object."""
    names = slots(type(value))

    def read() -> dict[str, Any]:
        return {name: getattr(value, name) for name in names if hasattr(value, name)}

    def write(key: str, new: Any) -> None:
        _set(value, key, new)

    return Space(f"{type(value).__name__}.", lambda _: where, read, write)


def of_defaults(function: types.FunctionType, where: str) -> Space:
    """The default values of a function's arguments."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]

    def read() -> dict[str, Any]:
        return dict(zip(names, function.__defaults__ or (), strict=True))

    def write(key: str, value: Any) -> None:
        function.__defaults__ = tuple((read() | {key: value}).values())

    return Space(f"{function.__name__}.", lambda _: where, read, write)


def of_closure(cells: dict[str, Any], where: str) -> Space:
    """The variables of a closure."""

    def read() -> dict[str, Any]:
        values = {}
        for name, cell in cells.items():
            try:
                values[name] = cell.cell_contents
            except ValueError:  # not bound yet
                continue
        return values

    def write(key: str, value: Any) -> None:
        if value is not ABSENT:
            cells[key].cell_contents = value

    return Space("", lambda _: where, read, write)


def of_context(variable: ContextVar[Any]) -> Space:
    """A context variable."""

    def read() -> dict[str, Any]:
        value = variable.get(ABSENT)
        return {} if value is ABSENT else {variable.name: value}

    def write(_: str, value: Any) -> None:
        if value is not ABSENT:
            variable.set(value)

    return Space("", lambda _: "<context>", read, write)


def _set(holder: Any, key: str, value: Any) -> None:
    if value is ABSENT:
        delattr(holder, key)
    else:
        setattr(holder, key, value)


def _is_data(key: str, value: Any) -> bool:
    """Whether an attribute of a class is a value, not part of how the class works."""
    if key.startswith(("__", "_abc_")):
        return False
    if inspect.isroutine(value) or hasattr(type(value), "__get__"):
        return False
    return not isinstance(value, type)
