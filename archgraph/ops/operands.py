"""Types, shapes and sizes of a node's operands."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from archgraph.graph.ir import (
    ArchGraph,
    Leaf,
    Node,
    Ref,
    Size,
    TensorType,
    Value,
    in_mode,
    size_at,
)
from archgraph.graph.polynomial import Polynomial
from archgraph.graph.sizes import example_sizes


def type_of(graph: ArchGraph, value: Value) -> TensorType | None:
    """Return the type of a tensor argument (or of its first result); None if it has no type."""
    value = in_mode(value, True)
    if isinstance(value, Ref):
        return graph.node[value.name].types[0]
    if isinstance(value, Leaf):
        return graph.param[value.name].type
    return None


def shape_of(graph: ArchGraph, value: Value) -> tuple[Size, ...]:
    """Return the shape of a tensor argument; empty if it has no type."""
    type_ = type_of(graph, value)
    return type_.shape if type_ is not None else ()


def sizes_of(graph: ArchGraph, value: Value) -> tuple[int, ...]:
    """Return the shape of a tensor argument in numbers, for a batch of one.

    Other open (dynamic) sizes have their values in the traced example.
    """
    sizes = example_sizes(graph)
    return tuple(size_at(s, sizes) for s in shape_of(graph, value))


def leaf_shape(graph: ArchGraph, value: Value) -> tuple[int, ...]:
    """Return the shape of a parameter, buffer or constant; empty if the value is computed."""
    return graph.param[value.name].shape if isinstance(value, Leaf) else ()


Amount: TypeAlias = "int | Polynomial"
"""A size or a number of multiply–accumulates: a number, or a polynomial of axis sizes."""


@dataclass(frozen=True, slots=True)
class Counted:
    """An operator and its sizes for a batch of one, from which costs are counted.

    Attributes:
        node: The operator.
        sizes: Function from a tensor argument to its sizes.
        result: Sizes of the operator's first result.
        stated: Dict from arguments that contain sizes (``num_groups``) to these sizes.
    """

    node: Node
    sizes: Callable[[Value], tuple[Amount, ...]]
    result: tuple[Amount, ...]
    stated: Mapping[str, Amount] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: ArchGraph, node: Node) -> Counted:
        """Return a node of a graph with its sizes."""
        sizes = example_sizes(graph)
        result = tuple(size_at(size, sizes) for size in node.types[0].shape)
        return cls(node, functools.partial(sizes_of, graph), result)

    def arg(self, name: str) -> tuple[Amount, ...]:
        """Return the sizes of the argument with a name."""
        return self.sizes(self.node.arg(name))


def numel(sizes: Iterable[Amount]) -> Amount:
    """Return the number of elements of a tensor."""
    return functools.reduce(operator.mul, sizes, 1)
