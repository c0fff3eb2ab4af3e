"""``einsum``: one layout per letter of the equation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from archgraph.graph.ir import ArchGraph, Node, Ref, Value
from archgraph.layout.layouts import Layout
from archgraph.ops import zeros
from archgraph.ops.equations import Dims, Equations
from archgraph.ops.operands import sizes_of
from archgraph.ops.operator import SMALL, Growth, Operator, Rows


def _equation(node: Node) -> tuple[list[str], str, tuple[Value, ...]]:
    """Letters of each operand and of the result of an einsum, and the operands."""
    text, operands = node.arg("equation"), node.arg("tensors")
    assert isinstance(text, str) and isinstance(operands, tuple)
    left, arrow, right = text.replace(" ", "").partition("->")
    if not arrow:
        counted = sorted(c for c in set(left) - {",", "."} if left.count(c) == 1)
        right = ("..." if "..." in left else "") + "".join(counted)
    return left.split(","), right, operands


def _einsum_axes(eq: Equations) -> list[Dims]:
    """One layout per letter; an ellipsis broadcasts."""
    parts, right, operands = _equation(eq.node)
    letters: dict[str, Layout] = {}
    rest: list[Dims] = []
    for part, operand in zip(parts, operands, strict=True):
        dims = eq.of(operand)
        head, dots, tail = part.partition("...")
        pairs = list(zip(head, dims, strict=False))
        if dots:
            rest.append(dims[len(head) : len(dims) - len(tail)])
        if tail:
            pairs += list(zip(tail, dims[len(dims) - len(tail) :], strict=True))
        for letter, layout in pairs:
            if letter in letters and layout.size != 1 and letters[letter].size != 1:
                eq.unify(letters[letter], layout)
            elif letter not in letters or letters[letter].size == 1:
                letters[letter] = layout
    middle = eq.broadcast(rest) if rest else []
    summed = sorted(set("".join(parts)) - set(right) - {"."})
    for letter in summed:
        having = [
            (v, _dimension(part, letter))
            for part, v in zip(parts, operands, strict=True)
            if letter in part
        ]
        eq.contract(letters[letter], having, "sum")
    if rest and "..." not in right:
        for index, layout in enumerate(middle):
            having = [
                (v, index - len(middle) - len(part.partition("...")[2]))
                for part, v in zip(parts, operands, strict=True)
                if "..." in part
            ]
            eq.contract(layout, having, "sum")
    _einsum_roles(eq, parts, operands, right, letters, summed)
    out: Dims = []
    position = 0
    while position < len(right):
        if right.startswith("...", position):
            out += middle
            position += 3
        else:
            out.append(eq.resolve(letters[right[position]]))
            position += 1
    return [out]


def _dimension(part: str, letter: str) -> int:
    """Dimension of a letter in an operand, counted from the back behind an ellipsis."""
    head, _, tail = part.partition("...")
    return head.index(letter) if letter in head else tail.index(letter) - len(tail)


def _einsum_roles(
    eq: Equations,
    parts: Sequence[str],
    operands: Sequence[Value],
    right: str,
    letters: dict[str, Layout],
    summed: Sequence[str],
) -> None:
    refs = [v for v in operands if isinstance(v, Ref)]
    if len(refs) != 2 or len(operands) != 2:
        return
    shared = [letters[c] for c in right if all(c in p for p in parts) and c in letters]
    for own, other, value in ((0, 1, refs[0]), (1, 0, refs[1])):
        if value.name in eq.attends:
            for c in set(parts[other]) & set(right) - set(parts[own]) - {"."}:
                eq.role(letters[c], "value_dim")
                eq.attention[eq.node.name] = (shared, letters[c])
    eq.scores[eq.node.name] = ([letters[c] for c in summed], shared)


def _einsum_macs(graph: ArchGraph, node: Node) -> int:
    """Operands are multiplied from left to right, each sum taken as soon as it can be."""
    parts, right, operands = _equation(node)
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
        shape = sizes_of(graph, operand)
        head, dots, tail = part.partition("...")
        sizes |= dict(zip(head, shape, strict=False))
        if tail:
            sizes |= dict(zip(tail, shape[len(shape) - len(tail) :], strict=True))
        if dots:
            ellipsis = max(ellipsis, math.prod(shape[len(head) : len(shape) - len(tail)]))
    return sizes, ellipsis


ROWS: Rows = {
    "einsum": Operator(
        _einsum_axes,
        # A product of all operands, summed: zero where one of them is.
        zeros.some,
        _einsum_macs,
        {"tensors": SMALL},
        growth=Growth(bilinear=True),
    )
}
