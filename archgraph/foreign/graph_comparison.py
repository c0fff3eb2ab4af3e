"""Whether two graphs compute the same by their operators: exact, and without any weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

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

# Operators that keep the order of numbers where they repeat none.
_RESHAPES = frozenset(
    f"aten.{name}" for name in ("reshape", "view", "unsqueeze", "squeeze.dim", "expand")
)
# Of the larger number: scales and tables that were computed in another order.
ROUNDING = 1e-6


def first_unequal(graph: ArchGraph, other: ArchGraph, names: Mapping[str, str]) -> str | None:
    """Return the first operator that another graph lacks; None if both compute the same.

    1. The results of both graphs are paired, then, from the results backwards, the operands of
       operators that are paired.
    2. A pair has one operator with equal numbers and one type, and no operator is in two pairs.
    3. Paired leaves are one tensor by their names, or have equal values.
    4. Reshapes of one result to one shape are equal, in however many steps; to its own, none.

    Graphs that compute the same by other operators count as different.

    Args:
        graph: The graph whose leaves ``names`` renames.
        other: The graph that it is compared with.
        names: Names in the other graph by those in this one.
    """
    pairs: dict[str, str] = {}
    waiting: list[tuple[str, str]] = []

    def equal(a: Value, b: Value) -> bool:
        for x, y in _side_by_side(a, b):
            match x, y:
                case Ref(name), Ref(mate):
                    waiting.append((name, mate))
                case Leaf(name), Leaf(mate):  # 3
                    if not _same_leaf(graph.param[name], other.param[mate], names):
                        return False
                case float(), float():
                    if not math.isclose(x, y, rel_tol=ROUNDING) and not same_value(x, y):
                        return False
                case _:
                    if not same_value(x, y):
                        return False
        return True

    def base(where: ArchGraph, name: str) -> str:  # 4
        while (node := where.node[name]).op in _RESHAPES:
            operands = [*node.uses()]  # none of a leaf
            if not operands or not _as_many(where.node[operands[0]].type, node.type):
                break
            name = operands[0]
        return name

    if not equal(graph.outputs, other.outputs):  # 1
        return "the results"
    while waiting:
        name, mate = waiting.pop()
        if name in pairs:  # 2
            if pairs[name] != mate:
                return _label(graph, name)
            continue
        pairs[name] = mate
        one, two = graph.node[name], other.node[mate]
        roots = base(graph, name), base(other, mate)
        if roots != (name, mate):
            if one.type != two.type:
                return _label(graph, name)
            waiting.append(roots)
            continue
        same = one.op == two.op and one.type == two.type
        if not same or [k for k, _ in one.args] != [k for k, _ in two.args]:
            return _label(graph, name)
        if not equal(tuple(v for _, v in one.args), tuple(v for _, v in two.args)):
            return _label(graph, name)
    return None


def _as_many(a: object, b: object) -> bool:
    """Return whether a reshape only moves numbers: nothing is repeated."""
    if not isinstance(a, TensorType) or not isinstance(b, TensorType) or a.dtype != b.dtype:
        return False
    fixed = [math.prod(s for s in t.shape if isinstance(s, int)) for t in (a, b)]
    open_ = [[s for s in t.shape if not isinstance(s, int)] for t in (a, b)]
    return fixed[0] == fixed[1] and open_[0] == open_[1]


def _label(graph: ArchGraph, name: str) -> str:
    node = graph.node[name]
    return f"{node.op.removeprefix('aten.')} in {node.scope}" if node.scope else f"%{name}"


def _same_leaf(leaf: Param, mate: Param, names: Mapping[str, str]) -> bool:
    if any(names.get(n) in (mate.name, *mate.aliases) for n in (leaf.name, *leaf.aliases)):
        return leaf.shape == mate.shape
    # Weights are known by their names alone; what the class computes has a value.
    return leaf.value is not None and _same_constant(leaf.value, mate.value)


def _same_constant(a: Constant, b: Constant | None) -> bool:
    if b is None or a == b or (a.dtype, a.shape) != (b.dtype, b.shape):
        return a == b
    one, two = constant_tensor(a), constant_tensor(b)
    return one.is_floating_point() and torch.allclose(one, two, rtol=ROUNDING, atol=ROUNDING)


def _side_by_side(a: Value, b: Value) -> Iterator[tuple[Value, Value]]:
    """Yield the scalars of two values side by side; the values where their forms differ."""
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
