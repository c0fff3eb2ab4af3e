"""Check whether two graphs compute the same, by comparing their operators."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from archgraph.graph.ir import (
    ArchGraph,
    Constant,
    Leaf,
    Mode,
    Param,
    Record,
    Ref,
    TensorType,
    Value,
    same_value,
)
from archgraph.ops.constants import constant_tensor
from archgraph.ops.table import draws

# Operators that keep the order of elements, unless they repeat elements.
_RESHAPES = frozenset(
    f"aten.{name}" for name in ("reshape", "view", "unsqueeze", "squeeze.dim", "expand")
)
# Relative tolerance for numbers, since scales and tables may be computed in another order.
ROUNDING = 1e-6


def first_unequal(graph: ArchGraph, other: ArchGraph, names: Mapping[str, str]) -> str | None:
    """Return the first operator in which two graphs differ; None if they compute the same.

    Only graphs with the same operators count as equal.

    1. Start with pairs of the results of both graphs. Then pair the operands of paired operators,
       from the results backwards.
    2. Both operators of a pair must have the same kind, type and numbers. An operator of ``graph``
       may only be in one pair. The same holds for operators of ``other`` that draw random numbers.
    3. Paired parameters and buffers must have matching names, or equal values.
    4. Consecutive reshapes count as one reshape. A reshape to the same shape is ignored.

    Args:
        graph: A graph.
        other: The graph to compare it with.
        names: Dict from the names of tensors in ``graph`` to their names in ``other``.

    Returns:
        The operator and its module, as text for an error.
    """
    both, pairs = _Pair(graph, other, names), dict[str, str]()
    waiting = both.results(graph.outputs, other.outputs)  # 1
    if waiting is None:
        return "the results"
    while waiting:
        name, mate = waiting.pop()
        if pairs.get(name) == mate:
            continue
        drawn = draws(graph.node[name].op) and mate in pairs.values()
        operands = None if drawn or name in pairs else both.operands(name, mate)  # 2
        if operands is None:
            node = graph.node[name]
            return f"{node.op.removeprefix('aten.')} in {node.scope}" if node.scope else f"%{name}"
        pairs[name] = mate
        waiting += operands
    return None


@dataclass(frozen=True)
class _Pair:
    """Two graphs to compare.

    Attributes:
        graph: A graph.
        other: The graph to compare it with.
        names: Dict from the names of tensors in ``graph`` to their names in ``other``.
    """

    graph: ArchGraph
    other: ArchGraph
    names: Mapping[str, str]

    def operands(self, name: str, mate: str) -> list[tuple[str, str]] | None:
        """Return pairs of operands of two operators; None if the operators differ."""
        one, two = self.graph.node[name], self.other.node[mate]
        roots = _base(self.graph, name), _base(self.other, mate)  # 4
        if one.type == two.type and roots != (name, mate):
            return [roots]
        same = one.op == two.op and one.type == two.type
        return self.results(Record(one.args), Record(two.args)) if same else None

    def results(self, a: Value, b: Value) -> list[tuple[str, str]] | None:
        """Return pairs of operators to which two values refer; None if other parts differ."""
        results = []
        for x, y in _side_by_side(a, b):
            match x, y:
                case Ref(name), Ref(mate):
                    results.append((name, mate))
                    continue
                case Leaf(name), Leaf(mate):  # 3
                    same = _same_leaf(self.graph.param[name], self.other.param[mate], self.names)
                case float(), float():
                    same = math.isclose(x, y, rel_tol=ROUNDING) or same_value(x, y)
                case _:
                    same = same_value(x, y)
            if not same:
                return None
        return results


def _base(graph: ArchGraph, name: str) -> str:
    """Return the operator before one or several consecutive reshapes."""
    while (node := graph.node[name]).op in _RESHAPES:
        operands = [*node.uses()]  # empty for a tensor that is not a result
        if not operands or not _as_many(graph.node[operands[0]].type, node.type):
            break
        name = operands[0]
    return name


def _as_many(a: object, b: object) -> bool:
    """Return whether a reshape keeps the number of elements."""
    if not isinstance(a, TensorType) or not isinstance(b, TensorType) or a.dtype != b.dtype:
        return False
    fixed = [math.prod(s for s in t.shape if isinstance(s, int)) for t in (a, b)]
    open_ = [[s for s in t.shape if not isinstance(s, int)] for t in (a, b)]
    return fixed[0] == fixed[1] and open_[0] == open_[1]


def _same_leaf(leaf: Param, mate: Param, names: Mapping[str, str]) -> bool:
    if any(names.get(n) in (mate.name, *mate.aliases) for n in (leaf.name, *leaf.aliases)):
        return leaf.shape == mate.shape
    # Compare weights by name, and tables that the class computes by value.
    return leaf.value is not None and _same_constant(leaf.value, mate.value)


def _same_constant(a: Constant, b: Constant | None) -> bool:
    if b is None or a == b or (a.dtype, a.shape) != (b.dtype, b.shape):
        return a == b
    one, two = constant_tensor(a), constant_tensor(b)
    return one.is_floating_point() and torch.allclose(one, two, rtol=ROUNDING, atol=ROUNDING)


def _side_by_side(a: Value, b: Value) -> Iterator[tuple[Value, Value]]:
    """Yield pairs of scalars from two nested values; stop at values of different structure."""
    match a, b:
        case tuple(), tuple() if len(a) == len(b):
            for x, y in zip(a, b, strict=True):
                yield from _side_by_side(x, y)
        case Record(), Record() if [k for k, _ in a.fields] == [k for k, _ in b.fields]:
            for (_, x), (_, y) in zip(a.fields, b.fields, strict=True):
                yield from _side_by_side(x, y)
        case Mode(), Mode():
            yield from _side_by_side(a.train, b.train)
            yield from _side_by_side(a.eval, b.eval)
        case _:
            yield a, b
