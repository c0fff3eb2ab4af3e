"""Conversion of clients' programs to JSON values, and back.

A program tells a client what to compute. It is a frozen dataclass whose fields are JSON values,
architectures or other frozen dataclasses. It is sent as names of classes with their fields, never
as a pickle. A node only accepts classes in ``archgraph.federation``, ``archgraph.states`` and the
module of the strategy with which the node was started.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from archgraph.errors import RunError
from archgraph.graph.ir import ArchGraph
from archgraph.language import flat
from archgraph.language.yaml import parse_document
from archgraph.plain import Json

Trusted = frozenset[str]
"""Modules whose classes and functions a program may use, in addition to ``LIBRARY``."""

# Packages of archgraph whose classes and functions a program may use.
LIBRARY = ("archgraph.federation.", "archgraph.states.")


def as_plain(value: object) -> Json:
    """Convert a program, or a part of a program, to values that JSON can represent.

    Raises:
        RunError: If a part is neither a JSON value nor a frozen dataclass, a named tuple, an
            architecture or a function of a module.

    Example:
        >>> from archgraph.federation import Train
        >>> as_program(as_plain(Train(epochs=2)), frozenset()) == Train(epochs=2)
        True
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple) and hasattr(value, "_asdict"):  # a named tuple
        return _value(type(value), value._asdict())
    for kind, key, content in _FORMS:
        if isinstance(value, kind):
            return {key: content(value)}
    if inspect.isfunction(value):
        return {"function": f"{value.__module__}:{value.__qualname__}"}
    if dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        return _value(type(value), {name: getattr(value, name) for name in fields})
    raise RunError(
        "a part of a program cannot be sent to another machine",
        found=type(value).__name__,
        expected="plain values, frozen dataclasses, architectures",
        hint="send tensors as `Task.extras`",
    )


def _value(kind: type, fields: Mapping[str, object]) -> Json:
    path = f"{kind.__module__}:{kind.__qualname__}"
    return {"class": path, "fields": {name: as_plain(item) for name, item in fields.items()}}


# Types that JSON lacks: the type, a key, and the function that converts a value for this key.
_FORMS: list[tuple[type, str, Callable[[Any], Json]]] = [
    (ArchGraph, "graph", flat.dump),
    (torch.dtype, "dtype", lambda dtype: str(dtype).removeprefix("torch.")),
    (bytes, "bytes", bytes.hex),
    (tuple, "tuple", lambda items: [*map(as_plain, items)]),
    (list, "list", lambda items: [*map(as_plain, items)]),
    (frozenset, "set", lambda items: [*map(as_plain, sorted(items))]),
    (Mapping, "map", lambda items: [[as_plain(k), as_plain(v)] for k, v in items.items()]),
]


def as_program(plain: Json, trusted: Trusted) -> Any:
    """Create a program from the result of :func:`as_plain`; reject classes that are not trusted.

    Raises:
        RunError: If a value is malformed, or names something outside the trusted modules.
    """
    if not isinstance(plain, dict):
        return plain
    key, content = next(iter(plain.items()))
    inner = functools.partial(as_program, trusted=trusted)
    match key:
        case "graph":
            return flat.read_flat(parse_document(content, "the server's program"))
        case "dtype" if isinstance(getattr(torch, content, None), torch.dtype):
            return getattr(torch, content)
        case "bytes":
            return bytes.fromhex(content)
        case "tuple" | "list" | "set":
            return {"tuple": tuple, "list": list, "set": frozenset}[key](map(inner, content))
        case "map":
            return {inner(name): inner(item) for name, item in content}
        case "function":
            return _named(content, trusted, inspect.isfunction)
        case "class":
            kind = _named(content, trusted, _is_value_type)
            return kind(**{name: inner(item) for name, item in plain["fields"].items()})
    raise RunError("not a program", where="the server's program", found=key)


def _is_value_type(kind: object) -> bool:
    return inspect.isclass(kind) and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"))


def _named(name: str, trusted: Trusted, suits: Callable[[object], bool]) -> Any:
    module, _, inside = name.partition(":")
    if not (module in trusted or module.startswith(LIBRARY)):
        raise RunError(
            "the server asks for a program that this node does not trust",
            found=name,
            expected=f"one of {', '.join(sorted(trusted)) or 'no module'}, or of archgraph",
            hint="start the node with the experiment of the server",
        )
    value = getattr(importlib.import_module(module), inside, None)
    # Names that a trusted module imports from other modules are not trusted.
    if not suits(value) or getattr(value, "__module__", None) != module:
        raise RunError("not a program", where="the server's program", found=name)
    return value
