"""Multiply–accumulates of operators, for one example."""

from __future__ import annotations

import math
from collections.abc import Sequence

from archgraph.graph.ir import ArchGraph, Leaf, Node, Ref, Size, TensorType, Value, in_mode, size_at


def type_of(graph: ArchGraph, value: Value) -> TensorType | None:
    """Type of a tensor argument (its first result), or None."""
    value = in_mode(value, True)
    if isinstance(value, Ref):
        return graph.node[value.name].types[0]
    if isinstance(value, Leaf):
        return graph.param[value.name].type
    return None


def _numel(shape: Sequence[Size]) -> int:
    return math.prod(size_at(s, 1) for s in shape)


def _shape(graph: ArchGraph, node: Node, name: str) -> tuple[int, ...]:
    type_ = type_of(graph, node.arg(name))
    return tuple(size_at(s, 1) for s in type_.shape) if type_ is not None else ()


def conv(graph: ArchGraph, node: Node) -> int:
    """A kernel at every position of the result."""
    weight = _shape(graph, node, "weight")
    return _numel(node.shape) * math.prod(weight[1:])


def transposed(graph: ArchGraph, node: Node) -> int:
    """A kernel at every position of the input."""
    weight = _shape(graph, node, "weight")
    return math.prod(_shape(graph, node, "input")) * math.prod(weight[1:])


def any_conv(graph: ArchGraph, node: Node) -> int:
    """A convolution that says by a flag whether it is transposed."""
    return (transposed if node.arg("transposed") is True else conv)(graph, node)


def linear(graph: ArchGraph, node: Node) -> int:
    """A row of the weight for every number of the result."""
    return _numel(node.shape) * _shape(graph, node, "weight")[-1]


def matmul(graph: ArchGraph, node: Node) -> int:
    """A sum over the shared dimension for every number of the result."""
    operands = [type_of(graph, v) for _, v in node.args]
    left = [o for o in operands if o is not None and len(o.shape) > 0][-2]
    return _numel(node.shape) * size_at(left.shape[-1], 1)


def bilinear(graph: ArchGraph, node: Node) -> int:
    """Two nested sums for every number of the result."""
    _, left, right = _shape(graph, node, "weight")
    return _numel(node.shape) * (left * right + right)


def summed(graph: ArchGraph, node: Node) -> int:
    """A batch of products that are added up."""
    return math.prod(_shape(graph, node, "batch1")) * _shape(graph, node, "batch2")[-1]


def equation(node: Node) -> tuple[list[str], str, tuple[Value, ...]]:
    """Letters of each operand and of the result of an einsum, and the operands."""
    text, operands = node.arg("equation"), node.arg("tensors")
    assert isinstance(text, str) and isinstance(operands, tuple)
    left, arrow, right = text.replace(" ", "").partition("->")
    if not arrow:
        counted = sorted(c for c in set(left) - {",", "."} if left.count(c) == 1)
        right = ("..." if "..." in left else "") + "".join(counted)
    return left.split(","), right, operands


def einsum(graph: ArchGraph, node: Node) -> int:
    """Operands are multiplied from left to right, each sum taken as soon as it can be."""
    parts, right, operands = equation(node)
    sizes, ellipsis = _letters(graph, parts, operands)
    count, letters = 0, set(parts[0])
    for index, part in enumerate(parts[1:], 1):
        letters |= set(part)
        needed = letters & (set("".join(parts[index + 1 :])) | set(right))
        if letters - needed:  # without a sum it is a product position by position
            count += math.prod(sizes[c] for c in letters if c in sizes) * ellipsis
        letters = needed
    return count


def _letters(
    graph: ArchGraph, parts: Sequence[str], operands: Sequence[Value]
) -> tuple[dict[str, int], int]:
    """Sizes of an equation's letters, and the number of positions of its ellipsis."""
    sizes: dict[str, int] = {}
    ellipsis = 1
    for part, operand in zip(parts, operands, strict=True):
        type_ = type_of(graph, operand)
        shape = tuple(size_at(s, 1) for s in type_.shape) if type_ is not None else ()
        head, dots, tail = part.partition("...")
        sizes |= dict(zip(head, shape, strict=False))
        if tail:
            sizes |= dict(zip(tail, shape[len(shape) - len(tail) :], strict=True))
        if dots:
            ellipsis = max(ellipsis, math.prod(shape[len(head) : len(shape) - len(tail)]))
    return sizes, ellipsis


def attention(graph: ArchGraph, node: Node) -> int:
    """Scores, and the values that they weigh."""
    q, k, v = (_shape(graph, node, n) for n in ("query", "key", "value"))
    scores = math.prod(q[:-1]) * k[-2]
    return scores * (q[-1] + v[-1])
