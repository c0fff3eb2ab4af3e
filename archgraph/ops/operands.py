"""The operands of a node: their types, shapes and sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from archgraph.graph.ir import (
    ArchGraph,
    Leaf,
    Mode,
    Record,
    Ref,
    Size,
    TensorType,
    Value,
    in_mode,
    size_at,
)


def type_of(graph: ArchGraph, value: Value) -> TensorType | None:
    """Return the type of a tensor argument (its first result), or None."""
    value = in_mode(value, True)
    if isinstance(value, Ref):
        return graph.node[value.name].types[0]
    if isinstance(value, Leaf):
        return graph.param[value.name].type
    return None


def shape_of(graph: ArchGraph, value: Value) -> tuple[Size, ...]:
    """Return the shape of a tensor argument; empty without a type."""
    type_ = type_of(graph, value)
    return type_.shape if type_ is not None else ()


def sizes_of(graph: ArchGraph, value: Value) -> tuple[int, ...]:
    """Return the shape of a tensor argument for a batch of one."""
    return tuple(size_at(s, 1) for s in shape_of(graph, value))


def leaf_shape(graph: ArchGraph, value: Value) -> tuple[int, ...]:
    """Return the shape of a leaf; empty if the value is computed."""
    return graph.param[value.name].shape if isinstance(value, Leaf) else ()


def numel(shape: Sequence[Size]) -> int:
    """Return how many numbers a tensor has, for a batch of one."""
    return math.prod(size_at(s, 1) for s in shape)


def nested(value: Value) -> Iterator[Value]:
    """Yield a value and all values inside it, containers included."""
    yield value
    match value:
        case tuple():
            inner = value
        case Mode():
            inner = (value.train, value.eval)
        case Record():
            inner = tuple(item for _, item in value.fields)
        case _:
            return
    for item in inner:
        yield from nested(item)
