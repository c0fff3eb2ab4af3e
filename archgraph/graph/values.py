"""Classes for the values of arguments, types of tensors, and constants."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from archgraph.graph.polynomial import Polynomial, Size

Role = Literal["parameter", "buffer", "constant"]

# The name of the batch size, which every graph may leave open without declaring it.
BATCH_WORD = "batch"
BATCH = Polynomial.of(BATCH_WORD)


def size_at(size: Size, sizes: Mapping[str, int]) -> int:
    """Evaluate a size at the values of open sizes.

    >>> size_at(2 * BATCH, {"batch": 8}), size_at(3, {})
    (16, 3)
    """
    return size.value(sizes) if isinstance(size, Polynomial) else size


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and dtype of a tensor, e.g. ``float32[batch, 64, 8, 8]``."""

    shape: tuple[Size, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Ref:
    """Reference to the result of a node, printed ``%name``."""

    name: str

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True, slots=True)
class Leaf:
    """Reference to a parameter, buffer or constant, printed as its name."""

    name: str

    def __str__(self) -> str:
        return leaf_word(self.name)


@dataclass(frozen=True, slots=True)
class Mode:
    """A value that depends on the mode, printed ``train(a, b)``: a in training, b in evaluation."""

    train: Value
    eval: Value

    def __str__(self) -> str:
        if self.train is True and self.eval is False:
            return "training"
        return f"train({show(self.train)}, {show(self.eval)})"


TRAINING = Mode(True, False)


@dataclass(frozen=True, slots=True)
class Atom:
    """A dtype, memory format or other enumeration of torch as an argument, printed ``:float32``."""

    name: str

    def __str__(self) -> str:
        return f":{self.name}"


@dataclass(frozen=True, slots=True)
class Record:
    """A dict (``{a: 1}``) or, with a type name, a named tuple (``Name{a: 1}``) of values."""

    fields: tuple[tuple[str, Value], ...]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.name}{{{', '.join(f'{quote(k)}: {show(v)}' for k, v in self.fields)}}}"


# The possible values of an argument. Tuples may be nested.
Value: TypeAlias = (
    "bool | int | float | str | Polynomial | Ref | Leaf | Mode | Atom | Record"
    " | tuple[Value, ...] | None"
)
RESERVED = frozenset(
    {"None", "True", "False", "training", "train", BATCH_WORD, "inf", "+inf", "-inf", "nan"}
)


# A leaf's name is printed bare if it cannot be mistaken for anything else.
WORD = re.compile(r"[^\s,()\[\]{}=%@:'\"*]+")
_NUMBER = re.compile(
    r"[+-]?(?:[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][+-]?[0-9]+)?)"
)


def leaf_word(name: str) -> str:
    """Render the name of a leaf, in quotes if the parser would read it as something else.

    >>> leaf_word("layer1.0.conv1.weight"), leaf_word("0"), leaf_word("train")
    ('layer1.0.conv1.weight', "@'0'", "@'train'")
    """
    plain = WORD.fullmatch(name) and not _NUMBER.fullmatch(name) and name not in RESERVED
    return name if plain else f"@{quote(name)}"


def quote(text: str) -> str:
    """Render a Python string literal in double or single quotes, always on one line."""
    # repr() escapes line breaks, at which `parse` splits a graph.
    return repr(text)


def show(value: Value) -> str:
    """Return the printed form of an argument's value.

    >>> show((Ref("relu"), 2, 4 * BATCH, Leaf("fc.weight"), TRAINING, 0.5))
    '(%relu, 2, 4*batch, fc.weight, training, 0.5)'
    """
    if isinstance(value, tuple):
        return f"({', '.join(map(show, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, str):
        return quote(value)
    # repr() of a float is the shortest text that reads back to the same value.
    return repr(value) if isinstance(value, float) else str(value)


# Values that contain values. Most do not, so one check for all three kinds is the fast path.
NESTING = (tuple, Mode, Record)


def walk(value: Value) -> Iterator[Value]:
    """Yield all items of a nested value from left to right, for both modes of a ``Mode``."""
    match value:
        case tuple():
            for item in value:
                yield from walk(item)
        case Mode():
            yield from walk(value.train)
            yield from walk(value.eval)
        case Record():
            for _, item in value.fields:
                yield from walk(item)
        case _:
            yield value


def refs(value: Value) -> list[str]:
    """Return the names of all nodes to which a value refers."""
    return [i.name for i in walk(value) if isinstance(i, Ref)]


def replace(value: Value, change: Callable[[Value], Value]) -> Value:
    """Apply ``change`` to every item of a nested value."""
    match value:
        case tuple():
            return tuple(replace(item, change) for item in value)
        case Mode():
            train, eval_ = replace(value.train, change), replace(value.eval, change)
            # A value that is the same in both modes has one spelling: equal graphs print equally.
            return train if same_value(train, eval_) else Mode(train, eval_)
        case Record():
            return Record(tuple((k, replace(v, change)) for k, v in value.fields), value.name)
        case _:
            return change(value)


def same_value(a: Value, b: Value) -> bool:
    """Return whether two values are the same; ``True``, ``1`` and ``1.0`` are different."""
    # For `==`, True equals 1 and NaN differs from NaN; neither holds for the printed forms.
    return show(a) == show(b)


def in_mode(value: Value, training: bool) -> Value:
    """Return a value in one mode, without any ``Mode`` inside."""
    if not isinstance(value, NESTING):
        return value
    match value:
        case tuple():
            return tuple(in_mode(item, training) for item in value)
        case Mode():
            return in_mode(value.train if training else value.eval, training)
        case Record():
            return Record(tuple((k, in_mode(v, training)) for k, v in value.fields), value.name)


def nested(value: Value) -> Iterator[Value]:
    """Yield a value and all values inside it, including containers."""
    yield value
    if not isinstance(value, NESTING):
        return
    match value:
        case tuple():
            inner = value
        case Mode():
            inner = (value.train, value.eval)
        case Record():
            inner = tuple(item for _, item in value.fields)
    for item in inner:
        yield from nested(item)


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor that is part of the architecture (index tables, masks), as little-endian bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def __str__(self) -> str:
        # Short constants stay uncompressed: zlib's header alone would make them longer.
        packed = zlib.compress(self.data, 9) if len(self.data) > 64 else None
        if packed is not None and len(packed) < len(self.data):
            return "zlib:" + base64.b64encode(packed).decode()
        return "raw:" + base64.b64encode(self.data).decode()
