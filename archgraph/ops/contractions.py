"""Axis equations of products that are summed over an axis of two activations.

Such a sum is the cut network's only where one factor is zero at masked positions; else the axis is
spanned (:meth:`archgraph.ops.equations.Equations.contract`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from archgraph.graph.ir import Ref, Value
from archgraph.layout.layouts import Fixed, Layout, divide, product
from archgraph.ops.costs import equation
from archgraph.ops.equations import Dims, Equations


def _pair(eq: Equations, first: int = 0) -> tuple[Value, Value, Dims, Dims]:
    """Two arguments in turn, and their layouts."""
    (_, left), (_, right) = eq.node.args[first : first + 2]
    return left, right, eq.of(left), eq.of(right)


def _matrix_product(eq: Equations, left: Value, right: Value) -> Dims:
    """a[-1] = b[-2]; leading dimensions broadcast."""
    a, b = eq.of(left), eq.of(right)
    what = eq.node.op.split(".")[1]
    inner = b[0] if len(b) == 1 else b[-2]
    eq.unify(a[-1], inner)
    eq.contract(a[-1], [(left, -1), (right, 0 if len(b) == 1 else -2)], what)
    if len(a) == 1:
        return [*b[:-2], *b[-1:]] if len(b) > 1 else []
    if len(b) == 1:
        return a[:-1]
    lead = eq.broadcast([a[:-2], b[:-2]])
    _attention_roles(eq, left, right, a, b, lead)
    return [*lead, a[-2], b[-1]]


def _attention_roles(
    eq: Equations, left: Value, right: Value, a: Dims, b: Dims, lead: Dims
) -> None:
    """Remember what a softmax would turn into attention; name the values that it weighs."""
    if not isinstance(left, Ref) or not isinstance(right, Ref):
        return
    if left.name in eq.attends:
        eq.role(b[-1], "value_dim")
        eq.attention[eq.node.name] = (lead, b[-1])
    eq.scores[eq.node.name] = ([a[-1]], lead)


def matmul(eq: Equations) -> list[Dims]:
    """a[-1] = b[-2]; leading dimensions broadcast."""
    (_, left), (_, right) = eq.node.args[:2]
    return [_matrix_product(eq, left, right)]


def addmm(eq: Equations) -> list[Dims]:
    """Bias + a @ b (or a @ vector)."""
    left, right, _, _ = _pair(eq, 1)
    return [eq.broadcast([eq.arg("self"), _matrix_product(eq, left, right)])]


def summed_products(eq: Equations) -> list[Dims]:
    """Bias + the sum over the batch of a @ b."""
    left, right, a, b = _pair(eq, 1)
    eq.unify(a[0], b[0])
    eq.contract(a[0], [(left, 0), (right, 0)], "addbmm")
    return [eq.broadcast([eq.arg("self"), _matrix_product(eq, left, right)[1:]])]


def chained(eq: Equations) -> list[Dims]:
    """A product of many matrices: neighbours share an axis."""
    value = eq.node.args[0][1]
    assert isinstance(value, tuple)
    for left, right in itertools.pairwise(value):
        a, b = eq.of(left), eq.of(right)
        eq.unify(a[-1], b[0])
        eq.contract(a[-1], [(left, -1), (right, 0)], "product of matrices")
    return [[*eq.of(value[0])[:-1], *eq.of(value[-1])[1:]]]


def inner(eq: Equations) -> list[Dims]:
    """a[-1] = b[-1]; all other dimensions stay."""
    left, right, a, b = _pair(eq)
    if not a or not b:
        return [a or b]
    eq.unify(a[-1], b[-1])
    eq.contract(a[-1], [(left, -1), (right, -1)], "inner product")
    return [[*a[:-1], *b[:-1]]]


def vector_product(eq: Equations) -> list[Dims]:
    """Operands agree; one dimension is summed over."""
    left, right, a, b = _pair(eq)
    both = eq.broadcast([a, b])
    dim = eq.dim("dim", len(both), -1)
    back = dim - len(both)  # operands broadcast from the right
    eq.contract(both[dim], [(left, back), (right, back)], "inner product")
    return [[*both[:dim], *both[dim + 1 :]]]


def tensordot(eq: Equations) -> list[Dims]:
    """Dimensions named on both sides are summed over."""
    left, right, a, b = _pair(eq)
    over = [d % len(a) for d in eq.ints("dims_self")]
    with_ = [d % len(b) for d in eq.ints("dims_other")]
    for i, j in zip(over, with_, strict=True):
        eq.unify(a[i], b[j])
        eq.contract(a[i], [(left, i), (right, j)], "tensordot")
    return [
        [d for i, d in enumerate(a) if i not in over]
        + [d for j, d in enumerate(b) if j not in with_]
    ]


def outer(eq: Equations) -> list[Dims]:
    """Every position of one with every position of the other."""
    _, _, a, b = _pair(eq)
    return [[*a, *b]]


def kronecker(eq: Equations) -> list[Dims]:
    """Each dimension is the product of the two operands'."""
    _, _, a, b = _pair(eq)
    rank = max(len(a), len(b))
    a, b = ([Fixed(1)] * (rank - len(x)) + x for x in (a, b))
    return [[product(pair) for pair in zip(a, b, strict=True)]]


def bilinear(eq: Equations) -> list[Dims]:
    """x₁[-1] = w[1], x₂[-1] = w[2], y[-1] = w[0]."""
    a, b, w = eq.arg("input1"), eq.arg("input2"), eq.arg("weight")
    for x, side, name in ((a, 1, "input1"), (b, 2, "input2")):
        eq.unify(x[-1], w[side])
        given = [(eq.node.arg(name), -1), (eq.node.arg("weight"), side)]
        eq.contract(x[-1], given, "bilinear")
    if eq.has("bias"):
        eq.unify(eq.arg("bias")[0], w[0])
    return [[*eq.broadcast([a[:-1], b[:-1]]), w[0]]]


def distances(eq: Equations) -> list[Dims]:
    """Every row of one to every row of the other, over the last dimension."""
    left, right, a, b = _pair(eq)
    eq.unify(a[-1], b[-1])
    eq.total(a[-1], [left, right], "distance")
    return [[*eq.broadcast([a[:-2], b[:-2]]), a[-2], b[-2]]]


def distance(eq: Equations) -> list[Dims]:
    """Rows compared one by one over the last dimension, with a small number added to each."""
    both = eq.broadcast([eq.of(v) for _, v in eq.node.args[:2]])
    eq.span(both[-1], "distance")
    keep = len(eq.node.shape) == len(both)
    return [[*both[:-1], Fixed(1)] if keep else both[:-1]]


def similarity(eq: Equations) -> list[Dims]:
    """Cosines over a dimension."""
    left, right, a, b = _pair(eq)
    both = eq.broadcast([a, b])
    dim = eq.dim("dim", len(both), 1)
    eq.total(both[dim], [left, right], "cosine")
    return [[*both[:dim], *both[dim + 1 :]]]


def einsum(eq: Equations) -> list[Dims]:
    """One layout per letter; an ellipsis broadcasts."""
    parts, right, operands = equation(eq.node)
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
            (v, _place(part, letter))
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


def _place(part: str, letter: str) -> int:
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


def attention(eq: Equations) -> list[Dims]:
    """q[..., L, d] · k[..., S, d], softmax over S, · v[..., S, e] → [..., L, e]."""
    q, k, v = eq.arg("query"), eq.arg("key"), eq.arg("value")
    eq.unify(q[-1], k[-1])
    eq.contract(q[-1], [(eq.node.arg("query"), -1), (eq.node.arg("key"), -1)], "attention")
    eq.unify(k[-2], v[-2])
    for axis in range(-3, -min(len(q), len(k), len(v)) - 1, -1):
        if q[axis].size == k[axis].size:
            eq.unify(q[axis], k[axis])
        elif eq.node.arg("enable_gqa") is True:  # several query heads share a key head
            shared = divide(q[axis].size, k[axis].size)
            eq.unify(q[axis], product((k[axis], eq.new(shared or 1))))
        eq.broadcast([[k[axis]], [v[axis]]])
    if eq.has("attn_mask"):
        scores: Dims = [*q[:-2], q[-2], k[-2]]
        eq.broadcast([scores, eq.arg("attn_mask")])
    eq.span(k[-2], "softmax")
    if len(q) > 2:
        eq.role(q[-3], "heads")
        eq.role(k[-3], "heads")
    eq.role(q[-1], "head_dim")
    eq.role(v[-1], "value_dim" if eq.resolve(q[-1]) is not eq.resolve(v[-1]) else "head_dim")
    lead = q[:-2] if eq.node.arg("enable_gqa") is True else eq.broadcast([q[:-2], k[:-2], v[:-2]])
    return [[*lead, q[-2], v[-1]]]
