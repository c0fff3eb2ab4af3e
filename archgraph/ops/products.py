"""Products that are summed over an axis: linear layers, matrix products, einsum, attention.

If the axis is masked, a sum of products of two activations equals the sum in the cut network only
if one of the factors is zero at the masked positions. Otherwise the product is recorded as an
operation for which masking differs from cutting
(:meth:`archgraph.ops.equations.Equations.contract`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from torch import nn

from archgraph.graph.ir import ArchGraph, Node, Ref, TensorType, Value
from archgraph.graph.polynomial import divide
from archgraph.layout.layouts import Fixed, Layout, product
from archgraph.ops import zeros
from archgraph.ops.backward import Backward, saves
from archgraph.ops.equations import Dims, Dirt, Equations
from archgraph.ops.layers import weighted
from archgraph.ops.operands import Amount, Counted, leaf_shape, numel
from archgraph.ops.operator import Call, Growth, LinearMap, Operator, Spelling, TypeRule, rows
from archgraph.ops.starts import SMALL, FixedShape, Identity, Initialiser, Shapes
from archgraph.ops.types import Args, broadcast, certain, number, optional, plain_value, real
from archgraph.ops.weighted import FAN_IN, OUT, OUT_IN, contract_weight, masked_outputs
from archgraph.ops.zeros import open_dims


# -- linear layers --------------------------------------------------------------------------------
def _linear_axes(eq: Equations) -> list[Dims]:
    """x[-1] = w[1], y[-1] = w[0]."""
    x, w = eq.arg("input"), eq.arg("weight")
    eq.unify(x[-1], w[-1])
    contract_weight(eq, w[-1], -1, -1)
    eq.vectors(w[0], "bias")
    return [[*x[:-1], w[0]]] if len(w) == 2 else [x[:-1]]


def _linear_zero(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Return where a linear layer may be nonzero: not at masked outputs, whose rows are zero.

    A weight that is a vector has a single output without an axis.
    """
    (dims,) = results
    return masked_outputs(eq, dims, len(dims) - 1 if len(eq.arg("weight")) > 1 else -1)


def _linear_macs(of: Counted) -> Amount:
    """Count the MACs of a linear layer: one row of the weight per element of the result."""
    return numel(of.result) * of.arg("weight")[-1]


def _linear_type(args: Args) -> TensorType:
    """[…, in] and [out, in] give […, out]."""
    x, w = real(args.get("input"), args.get("weight"))
    certain(len(w.shape) == 2, x.shape)
    certain(x.shape[-1] == w.shape[1])
    optional(args, ("bias",), w.shape[:1], x.dtype)
    return TensorType((*x.shape[:-1], w.shape[0]), x.dtype)


def _linear_identity(graph: ArchGraph, node: Node) -> Identity:
    """Return weights that make a linear layer the identity: the identity matrix."""
    shape = leaf_shape(graph, node.arg("weight"))
    if not shape:
        return "its weight is not a parameter"
    out, inside = shape
    if out != inside:
        return f"has {out} output channels for {inside} input channels"
    return {"weight": ("eye", {}), "bias": ("zeros", {})}


_LINEAR = {
    "linear": Operator(
        _linear_axes,
        _linear_zero,
        _linear_macs,
        FAN_IN,
        sides=OUT_IN,
        weighted=True,
        growth=Growth(affine=OUT, identity=_linear_identity),
        type=_linear_type,
        layer=weighted(nn.Linear, ("out_features", "in_features"), "input"),
        linear_map=LinearMap(),
        backward=saves(input="weight", weight="input", matrices={"input": 1}),
    )
}


# -- bilinear layers ------------------------------------------------------------------------------
def _pair(eq: Equations, first: int = 0) -> tuple[Value, Value, Dims, Dims]:
    """Return two consecutive arguments and their layouts."""
    (_, left), (_, right) = eq.node.args[first : first + 2]
    return left, right, eq.of(left), eq.of(right)


def _bilinear_axes(eq: Equations) -> list[Dims]:
    """x₁[-1] = w[1], x₂[-1] = w[2], y[-1] = w[0]."""
    a, b, w = eq.arg("input1"), eq.arg("input2"), eq.arg("weight")
    for x, side, name in ((a, 1, "input1"), (b, 2, "input2")):
        eq.unify(x[-1], w[side])
        factors = [(eq.node.arg(name), -1), (eq.node.arg("weight"), side)]
        eq.contract(x[-1], factors, "bilinear")
    eq.vectors(w[0], "bias")
    return [[*eq.broadcast([a[:-1], b[:-1]]), w[0]]]


def _bilinear_macs(of: Counted) -> Amount:
    """Count the MACs of a bilinear layer: two nested sums per element of the result."""
    _, left, right = of.arg("weight")
    return numel(of.result) * (left * right + right)


def _bilinear_start(shape: FixedShape, shapes: Shapes) -> Initialiser:
    """Return a uniform initialiser in ±1/√(width of the first operand)."""
    weight = shapes.get("weight", (1, 1, 1))
    return Initialiser("uniform", 1 / math.sqrt(max(weight[1], 1)))


_BILINEAR = {
    "bilinear": Operator(
        _bilinear_axes,
        macs=_bilinear_macs,
        init={"weight": _bilinear_start, "bias": _bilinear_start},
        sides={"weight": ("out", "in1", "in2"), "bias": ("out",)},
        weighted=True,
        layer=weighted(
            nn.Bilinear, ("out_features", "in1_features", "in2_features"), "input1", "input2"
        ),
    )
}


# -- matrix products ------------------------------------------------------------------------------
def _matrix_product(eq: Equations, first: int = 0) -> Dims:
    """a[-1] = b[-2]; leading dimensions broadcast."""
    left, right, a, b = _pair(eq, first)
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
    """Record a product that a softmax may turn into attention; give attended values their role."""
    if not isinstance(left, Ref) or not isinstance(right, Ref):
        return
    if left.name in eq.attends:
        eq.role(b[-1], "value_dim")
        eq.attention[eq.node.name] = (lead, b[-1])
    eq.scores[eq.node.name] = ([a[-1]], lead)


def _matmul_axes(eq: Equations) -> list[Dims]:
    """a[-1] = b[-2]; leading dimensions broadcast."""
    return [_matrix_product(eq)]


def _matmul_macs(of: Counted) -> Amount:
    """Count the MACs of a product: a sum over the shared dimension per element of the result."""
    left, _ = [sizes for _, v in of.node.args if (sizes := of.sizes(v))][-2:]
    return numel(of.result) * left[-1]


def _matmul_type(args: Args) -> TensorType:
    """[…, a, b] and […, b, c] give […, a, c]."""
    a, b = real(args.get("self"), args.get("other"))
    certain(min(len(a.shape), len(b.shape)) >= 2)
    certain(a.shape[-1] == b.shape[-2])
    return TensorType((*broadcast([a.shape[:-2], b.shape[:-2]]), a.shape[-2], b.shape[-1]), a.dtype)


# Several leading dimensions are flattened into one, which copies tensors in another memory order.
_FACTORS = saves(
    self="other mat2 vec",
    other="self",
    mat2="self",
    vec="self",
    matrices={"self": 2, "other": 2},
)


def _product(growth: Growth, type_: TypeRule | None = None) -> Operator:
    init = {"self": SMALL, "other": SMALL}
    return Operator(
        _matmul_axes,
        zeros.some,
        _matmul_macs,
        init,
        growth=growth,
        type=type_,
        backward=_FACTORS if growth.bilinear else None,
    )


# -- products with an addend ----------------------------------------------------------------------
def _addmm_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of ``self`` + a @ b, where b may be a vector."""
    return [eq.broadcast([eq.arg("self"), _matrix_product(eq, 1)])]


def _added_zero(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Return where ``self + a @ b`` may be nonzero: zero where ``self`` and the product are."""
    start, *factors = eq.operands()
    dims = results[0]
    return [zeros.stretched(eq, start, dims) + zeros.product_dirt(eq, factors, dims)]


def _addbmm_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of ``self`` + the sum of a @ b over the batch."""
    left, right, a, b = _pair(eq, 1)
    eq.unify(a[0], b[0])
    eq.contract(a[0], [(left, 0), (right, 0)], "addbmm")
    return [eq.broadcast([eq.arg("self"), _matrix_product(eq, 1)[1:]])]


def _addbmm_macs(of: Counted) -> Amount:
    """Count the MACs of a batch of products that are summed."""
    return numel(of.arg("batch1")) * of.arg("batch2")[-1]


_MATRICES = {
    "matmul": _product(Growth(bilinear=True), _matmul_type),
    "bmm mm mv": _product(Growth(bilinear=True)),
    "dot vdot": _product(Growth(finite=False)),
    "linalg_matmul": Operator(alias="matmul"),
    # A linear layer with a transposed weight, whose columns are the outputs.
    "addmm": Operator(
        _addmm_axes,
        _added_zero,
        _matmul_macs,
        {"self": Initialiser("zeros"), "mat1": SMALL, "mat2": SMALL},
        weighted=True,
        growth=Growth(affine={"mat2": 1, "self": 0}),
        linear_map=LinearMap("mat1", "mat2", "self", transposed=True),
        words="linear",
        backward=saves(mat1="mat2", mat2="mat1"),
    ),
    "baddbmm": Operator(
        _addmm_axes, _added_zero, _matmul_macs, backward=saves(batch1="batch2", batch2="batch1")
    ),
    "addmv": Operator(_addmm_axes, _added_zero, _matmul_macs, backward=saves(mat="vec", vec="mat")),
    "addbmm": Operator(
        _addbmm_axes, _added_zero, _addbmm_macs, backward=saves(batch1="batch2", batch2="batch1")
    ),
}


# -- other products -------------------------------------------------------------------------------
def _chain_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of a product of several matrices: neighbours share an axis."""
    value = eq.node.args[0][1]
    assert isinstance(value, tuple)
    for left, right in itertools.pairwise(value):
        a, b = eq.of(left), eq.of(right)
        eq.unify(a[-1], b[0])
        eq.contract(a[-1], [(left, -1), (right, 0)], "product of matrices")
    return [[*eq.of(value[0])[:-1], *eq.of(value[-1])[1:]]]


def _inner_axes(eq: Equations) -> list[Dims]:
    """a[-1] = b[-1]; all other dimensions remain."""
    left, right, a, b = _pair(eq)
    if not a or not b:
        return [a or b]
    eq.unify(a[-1], b[-1])
    eq.contract(a[-1], [(left, -1), (right, -1)], "inner product")
    return [[*a[:-1], *b[:-1]]]


def _vecdot_axes(eq: Equations) -> list[Dims]:
    """Unify operands; one dimension is summed over."""
    left, right, a, b = _pair(eq)
    both = eq.broadcast([a, b])
    dim = eq.dim("dim", len(both), -1)
    back = dim - len(both)  # operands broadcast from the right
    eq.contract(both[dim], [(left, back), (right, back)], "inner product")
    return [[*both[:dim], *both[dim + 1 :]]]


def _tensordot_axes(eq: Equations) -> list[Dims]:
    """Unify and sum over the dimensions listed for both operands."""
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


def _outer_axes(eq: Equations) -> list[Dims]:
    """Combine every position of one operand with every position of the other."""
    _, _, a, b = _pair(eq)
    return [[*a, *b]]


def _outer_sum_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of ``self`` + the outer product of two vectors."""
    _, _, a, b = _pair(eq, 1)
    return [eq.broadcast([eq.arg("self"), [*a, *b]])]


def _solution_axes(eq: Equations) -> list[Dims]:
    """Pin the axes of a square matrix and of the right-hand sides of a system of equations."""
    a, b = eq.arg("A"), eq.arg("B")
    vector = len(b) == len(a) - 1  # one vector per matrix; otherwise columns
    lead = a[:-2]
    if not vector or [d.size for d in b[:-1]] != [d.size for d in lead]:
        lead, vector = eq.broadcast([lead, b[:-2]]), False
    else:
        eq.agree(lead, b[:-1])
    tail = 1 if vector else 2
    eq.pin([*a[-2:], *b[-tail:]], "mixed by a system of equations")
    return [[*lead, *eq.fixed(eq.node.shape[-tail:])], *(lead for _ in eq.node.types[1:])]


def _kronecker_axes(eq: Equations) -> list[Dims]:
    """Make each dimension the product of the operands' dimensions."""
    _, _, a, b = _pair(eq)
    rank = max(len(a), len(b))
    a, b = ([Fixed(1)] * (rank - len(x)) + x for x in (a, b))
    return [[product(pair) for pair in zip(a, b, strict=True)]]


def _cross_axes(eq: Equations) -> list[Dims]:
    """Pin the dimension of the three components of a cross product; unify the others."""
    both = eq.broadcast(eq.layouts())
    value = eq.node.arg("dim", -1 if eq.node.op.startswith("aten.linalg") else None)
    dims = [value] if isinstance(value, int) else range(len(both))
    eq.pin([both[d] for d in dims], "its positions are used separately")
    return [both]


# -- distances ------------------------------------------------------------------------------------
def _cdist_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of distances from every row of one operand to every row of the other."""
    left, right, a, b = _pair(eq)
    eq.unify(a[-1], b[-1])
    eq.total(a[-1], [left, right], "distance")
    return [[*eq.broadcast([a[:-2], b[:-2]]), a[-2], b[-2]]]


def _pairwise_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of distances between pairs of rows, with a small number added to each."""
    both = eq.broadcast([eq.of(v) for _, v in eq.node.args[:2]])
    eq.span(both[-1], "distance")
    keep = len(eq.node.shape) == len(both)
    return [[*both[:-1], Fixed(1)] if keep else both[:-1]]


def _cosine_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of cosines over a dimension."""
    left, right, a, b = _pair(eq)
    both = eq.broadcast([a, b])
    dim = eq.dim("dim", len(both), 1)
    eq.total(both[dim], [left, right], "cosine")
    return [[*both[:dim], *both[dim + 1 :]]]


def _unit_vectors(of: Counted) -> list[tuple[Amount, str]]:
    """Save both operands divided by their norms, and the norms before and after clamping."""
    return [(numel(of.arg("x1")), ""), (numel(of.arg("x2")), ""), (4 * numel(of.result), "")]


_OTHERS = {
    "chain_matmul linalg_multi_dot": Operator(_chain_axes, zeros.some),
    "inner": Operator(_inner_axes, zeros.some),
    "linalg_vecdot": Operator(_vecdot_axes, zeros.some),
    "tensordot": Operator(_tensordot_axes, zeros.some),
    "outer": Operator(_outer_axes, zeros.some),
    "ger": Operator(alias="outer"),
    "addr": Operator(_outer_sum_axes, _added_zero),
    "linalg_solve linalg_solve_ex": Operator(_solution_axes),
    "kron": Operator(_kronecker_axes, zeros.some),
    "cross linalg_cross": Operator(_cross_axes, zeros.some),
    "cdist": Operator(_cdist_axes),
    "pairwise_distance": Operator(_pairwise_axes, rates=("eps",)),
    # The cosine of zeros with any vector is 0/ε, not 0/0.
    "cosine_similarity": Operator(
        _cosine_axes, zeros.some, rates=("eps",), backward=saves("x1", "x2", extra=_unit_vectors)
    ),
}


# -- einsum: one layout per letter -----------------------------------------------------------------
_Sign: TypeAlias = str | int  # a letter, or a dimension of the ellipsis, counted back from -1


def _operands(node: Node) -> tuple[Value, ...]:
    operands = node.arg("tensors")
    assert isinstance(operands, tuple)
    return operands


def _equation(node: Node, ranks: Iterable[int]) -> tuple[list[list[_Sign]], list[_Sign]]:
    """Return the letter of each dimension of an einsum's operands, and of its result.

    Args:
        node: The operator.
        ranks: Number of dimensions of each operand.
    """
    text = node.arg("equation")
    assert isinstance(text, str)
    left, arrow, right = text.replace(" ", "").partition("->")
    if not arrow:  # letters that occur once, in alphabetical order, after the ellipsis
        counted = sorted(c for c in set(left) - {",", "."} if left.count(c) == 1)
        right = ("..." if "..." in left else "") + "".join(counted)
    texts = left.split(",")
    widths = [n - len(t.replace("...", "")) for t, n in zip(texts, ranks, strict=True)]

    def signs(text: str, width: int) -> list[_Sign]:
        head, dots, tail = text.partition("...")
        return [*head, *(range(-width, 0) if dots else ()), *tail]

    return list(map(signs, texts, widths)), signs(right, max(widths))


def _einsum_axes(eq: Equations) -> list[Dims]:
    """Use one layout per letter; an ellipsis broadcasts."""
    operands = _operands(eq.node)
    layouts = [eq.of(v) for v in operands]
    parts, right = _equation(eq.node, map(len, layouts))
    axes: dict[_Sign, Layout] = {}
    for part, dims in zip(parts, layouts, strict=True):
        for sign, layout in zip(part, dims, strict=True):
            # A dimension of size 1 stretches to that of the other operands.
            if sign not in axes or axes[sign].size == 1:
                axes[sign] = layout
            elif layout.size != 1:
                eq.unify(axes[sign], layout)
    # In a fixed order, unlike a set's: spans are listed in the order in which they are recorded.
    for sign in sorted(axes.keys() - set(right), key=str):
        uses = zip(operands, parts, strict=True)
        eq.contract(axes[sign], [(v, part.index(sign)) for v, part in uses if sign in part], "sum")
    _einsum_roles(eq, parts, right, axes)
    return [[eq.resolve(axes[sign]) for sign in right]]


def _einsum_roles(
    eq: Equations, parts: list[list[_Sign]], right: list[_Sign], axes: Mapping[_Sign, Layout]
) -> None:
    """Record a product that a softmax may turn into attention; give attended values their role."""
    refs = [v for v in _operands(eq.node) if isinstance(v, Ref)]
    if not len(refs) == len(parts) == 2:
        return
    letters = {c: layout for c, layout in axes.items() if isinstance(c, str)}
    in_both = set(parts[0]).intersection(parts[1])
    shared = [letters[c] for c in right if c in letters and c in in_both]
    for weights, (scores, other) in zip(refs, itertools.permutations(parts), strict=True):
        if weights.name in eq.attends:
            weighed = letters.keys() & set(right) - set(scores)
            for c in (c for c in other if c in weighed):
                eq.role(axes[c], "value_dim")
                eq.attention[eq.node.name] = (shared, axes[c])
    summed = sorted(letters.keys() - set(right))
    eq.scores[eq.node.name] = ([letters[c] for c in summed], shared)


def _einsum_copies(of: Counted) -> list[tuple[Amount, str]]:
    """Save operands as matrices, which may be copies; with more than two, also partial products."""
    sizes = [of.sizes(value) for value in _operands(of.node)]
    return [(numel(shape), "") for shape in sizes] + [(numel(of.result), "")] * (len(sizes) - 2)


def _einsum_macs(of: Counted) -> Amount:
    """Count the MACs of an einsum from left to right; each sum is taken as early as possible."""
    shapes = [of.sizes(v) for v in _operands(of.node)]
    parts, right = _equation(of.node, map(len, shapes))
    sizes: dict[_Sign, Amount] = {}
    for part, shape in zip(parts, shapes, strict=True):
        for sign, size in zip(part, shape, strict=True):
            if sizes.get(sign, 1) == 1:  # a dimension of size 1 is stretched
                sizes[sign] = size
    count: Amount = 0
    signs = set(parts[0])
    for index, part in enumerate(parts[1:], 1):
        signs |= set(part)
        needed = signs & {*right, *itertools.chain(*parts[index + 1 :])}
        if signs - needed:  # without a sum it is an elementwise product
            count += numel(sizes[sign] for sign in signs)
        signs = needed
    return count


_EINSUM = {
    "einsum": Operator(
        _einsum_axes,
        # A sum of products of all operands: zero where one of them is.
        zeros.some,
        _einsum_macs,
        {"tensors": SMALL},
        growth=Growth(bilinear=True),
        backward=Backward(extra=_einsum_copies, checked=False),
    )
}


# -- attention as one operator; written out, it is two products with a softmax in between ----------
def _attention_axes(eq: Equations) -> list[Dims]:
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


def _attention_zero(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Return where attention may be nonzero: a mean of values is 0 where all values are 0."""
    (dims,) = results
    values = eq.node.arg("value")
    inside = eq.axes_in([d for i, d in enumerate(eq.of(values)) if i != len(eq.of(values)) - 2])
    others = tuple(v for v in eq.axes_in(dims) if v not in inside)
    return [others + open_dims(dims[-2:-1]) + eq.dirt_of(values)]


def _attention_macs(of: Counted) -> Amount:
    """Count the MACs of attention: the scores, and the weighted sum of values."""
    q, k, v = map(of.arg, ("query", "key", "value"))
    scores = numel(q[:-1]) * k[-2]
    return scores * (q[-1] + v[-1])


def _attention_type(args: Args) -> TensorType:
    """[n, heads, a, d], [n, heads, b, d] and [n, heads, b, e] give [n, heads, a, e]."""
    q, k, v = real(*map(args.get, ("query", "key", "value")))
    certain(len(q.shape) == len(k.shape) == len(v.shape) == 4, "enable_gqa" not in args)
    certain(q.shape[:2] == k.shape[:2] == v.shape[:2])
    certain(q.shape[-1] == k.shape[-1], k.shape[-2] == v.shape[-2])
    certain(0 <= number(args, "dropout_p", 0.0, float) < 1)
    mask = args.get("attn_mask")
    if isinstance(mask, TensorType):
        scores = (*q.shape[:3], k.shape[-2])
        certain(mask.dtype in ("bool", q.dtype), len(mask.shape) <= 4, "is_causal" not in args)
        certain(broadcast([scores, mask.shape]) == scores)
    else:
        certain(mask is None or plain_value(mask) is None)
    return TensorType((*q.shape[:3], v.shape[-1]), q.dtype)


def _attention_backward(node: Node) -> Backward:
    """Save queries, keys, values, the result and one number per query, as FlashAttention does.

    PyTorch's CPU kernel needs a dimension of heads and no dropout. Otherwise PyTorch saves the
    scores after the softmax, with dropout also its mask and the masked scores, and scaled copies
    of queries and keys.
    """
    if node.arg("dropout_p") or len(node.shape) != 4:
        known = saves("value", extra=_written_out, matrices={"value": 2})
        return replace(known, checked=False)
    flash = saves("query", "key", "value", "attn_mask", results=(0,), extra=_number_per_query)
    return replace(flash, order="query")


def _number_per_query(of: Counted) -> list[tuple[Amount, str]]:
    return [(numel(of.result[:-1]), "")]


def _written_out(of: Counted) -> list[tuple[Amount, str]]:
    q, k = of.arg("query"), of.arg("key")
    count = 3 if of.node.arg("dropout_p") else 1
    return [(count * numel(q[:-1]) * k[-2], ""), (numel(q), ""), (numel(k), "")]


def _attention_spelling(call: Spelling) -> Call:
    """Write attention with an explicit scale, by default 1/√(width of a head).

    The explicit scale does not change when the width of heads is cut, so the cut network computes
    the same as the masked network.
    """
    args = dict(call.args)
    width = call.sizes["query"][-1]
    if args.get("scale") is None and isinstance(width, int):
        args["scale"] = 1.0 / math.sqrt(width)
    return call.op, args


_ATTENTION = {
    "scaled_dot_product_attention": Operator(
        _attention_axes,
        _attention_zero,
        _attention_macs,
        attends=("query", "attn_mask"),
        rates=("dropout_p", "scale"),
        # Bilinear in queries and keys, but repeated tokens change the softmax that follows.
        growth=Growth(),
        type=_attention_type,
        spelling=_attention_spelling,
        backward=_attention_backward,
    )
}

ROWS = rows(_LINEAR, _BILINEAR, _MATRICES, _OTHERS, _EINSUM, _ATTENTION)
