"""Products summed over an axis: linear layers, matrix products, distances.

A sum over an axis of two activations is the cut network's only where one factor is zero at masked
positions; else the axis is spanned (:meth:`archgraph.ops.equations.Equations.contract`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from torch import nn

from archgraph.graph.ir import ArchGraph, Node, Ref, TensorType, Value, size_at
from archgraph.layout.layouts import Fixed, product
from archgraph.ops import zeros
from archgraph.ops.equations import Dims, Dirt, Equations
from archgraph.ops.layers import weighted
from archgraph.ops.operands import leaf_shape, numel, sizes_of, type_of
from archgraph.ops.operator import (
    SMALL,
    FixedShape,
    Growth,
    Initialiser,
    Operator,
    Rows,
    Shapes,
    Start,
    TypeRule,
    alike,
)
from archgraph.ops.types import Args, broadcast, certain, optional, real
from archgraph.ops.weighted import FAN_IN, OUT, OUT_IN, contract_weight, masked_outputs

ROWS: Rows = {}


# -- linear layers --------------------------------------------------------------------------------


def _linear_axes(eq: Equations) -> list[Dims]:
    """x[-1] = w[1], y[-1] = w[0]."""
    x, w = eq.arg("input"), eq.arg("weight")
    eq.unify(x[-1], w[-1])
    contract_weight(eq, w[-1], -1, -1)
    if eq.has("bias"):
        eq.unify(eq.arg("bias")[-1], w[0])
    return [[*x[:-1], w[0]]] if len(w) == 2 else [x[:-1]]


def _linear_zero(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """A masked output has a row of zeros; a weight that is a vector has one output, no axis."""
    (dims,) = results
    return masked_outputs(eq, dims, len(dims) - 1 if len(eq.arg("weight")) > 1 else -1)


def _linear_macs(graph: ArchGraph, node: Node) -> int:
    """A row of the weight for every number of the result."""
    return numel(node.shape) * sizes_of(graph, node.arg("weight"))[-1]


def _linear_type(args: Args) -> TensorType:
    """[…, in] and [out, in] give […, out]."""
    x, w = real(args.get("input"), args.get("weight"))
    certain(len(w.shape) == 2, x.shape)
    certain(x.shape[-1] == w.shape[1])
    optional(args, ("bias",), w.shape[:1], x.dtype)
    return TensorType((*x.shape[:-1], w.shape[0]), x.dtype)


def _linear_identity(graph: ArchGraph, node: Node) -> Mapping[str, Start] | str:
    """The unit matrix."""
    shape = leaf_shape(graph, node.arg("weight"))
    if not shape:
        return "its weight is computed"
    out, inside = shape
    if out != inside:
        return f"has {out} channels from {inside}"
    return {"weight": ("eye", {}), "bias": ("zeros", {})}


ROWS |= {
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
    )
}


# -- bilinear layers ------------------------------------------------------------------------------


def _pair(eq: Equations, first: int = 0) -> tuple[Value, Value, Dims, Dims]:
    """Two arguments in turn, and their layouts."""
    (_, left), (_, right) = eq.node.args[first : first + 2]
    return left, right, eq.of(left), eq.of(right)


def _bilinear_axes(eq: Equations) -> list[Dims]:
    """x₁[-1] = w[1], x₂[-1] = w[2], y[-1] = w[0]."""
    a, b, w = eq.arg("input1"), eq.arg("input2"), eq.arg("weight")
    for x, side, name in ((a, 1, "input1"), (b, 2, "input2")):
        eq.unify(x[-1], w[side])
        given = [(eq.node.arg(name), -1), (eq.node.arg("weight"), side)]
        eq.contract(x[-1], given, "bilinear")
    if eq.has("bias"):
        eq.unify(eq.arg("bias")[0], w[0])
    return [[*eq.broadcast([a[:-1], b[:-1]]), w[0]]]


def _bilinear_macs(graph: ArchGraph, node: Node) -> int:
    """Two nested sums for every number of the result."""
    _, left, right = sizes_of(graph, node.arg("weight"))
    return numel(node.shape) * (left * right + right)


def _bilinear_start(shape: FixedShape, shapes: Shapes) -> Initialiser:
    """Uniform in ±1/√(width of the first operand)."""
    weight = shapes.get("weight", (1, 1, 1))
    return Initialiser("uniform", 1 / math.sqrt(max(weight[1], 1)))


ROWS |= {
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


def _matmul_axes(eq: Equations) -> list[Dims]:
    """a[-1] = b[-2]; leading dimensions broadcast."""
    (_, left), (_, right) = eq.node.args[:2]
    return [_matrix_product(eq, left, right)]


def _matmul_macs(graph: ArchGraph, node: Node) -> int:
    """A sum over the shared dimension for every number of the result."""
    operands = [type_of(graph, v) for _, v in node.args]
    left = [o for o in operands if o is not None and len(o.shape) > 0][-2]
    return numel(node.shape) * size_at(left.shape[-1], 1)


def _matmul_type(args: Args) -> TensorType:
    """[…, a, b] and […, b, c] give […, a, c]."""
    a, b = real(args.get("self"), args.get("other"))
    certain(min(len(a.shape), len(b.shape)) >= 2)
    certain(a.shape[-1] == b.shape[-2])
    return TensorType((*broadcast([a.shape[:-2], b.shape[:-2]]), a.shape[-2], b.shape[-1]), a.dtype)


def _product(growth: Growth, type_: TypeRule | None = None) -> Operator:
    init = {"self": SMALL, "other": SMALL}
    return Operator(_matmul_axes, zeros.some, _matmul_macs, init, growth=growth, type=type_)


ROWS |= {
    "matmul": _product(Growth(bilinear=True), _matmul_type),
    **alike(("bmm", "mm", "mv"), _product(Growth(bilinear=True))),
    **alike(("dot", "vdot"), _product(Growth(finite=False))),
    "linalg_matmul": Operator(alias="matmul"),
}


# -- products that are added to something ---------------------------------------------------------


def _addmm_axes(eq: Equations) -> list[Dims]:
    """Bias + a @ b (or a @ vector)."""
    left, right, _, _ = _pair(eq, 1)
    return [eq.broadcast([eq.arg("self"), _matrix_product(eq, left, right)])]


def _added_zero(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """``self + a @ b``: zero where self and the product are."""
    start, *factors = eq.operands()
    dims = results[0]
    return [zeros.stretched(eq, start, dims) + zeros.product(eq, factors, dims)]


def _addbmm_axes(eq: Equations) -> list[Dims]:
    """Bias + the sum over the batch of a @ b."""
    left, right, a, b = _pair(eq, 1)
    eq.unify(a[0], b[0])
    eq.contract(a[0], [(left, 0), (right, 0)], "addbmm")
    return [eq.broadcast([eq.arg("self"), _matrix_product(eq, left, right)[1:]])]


def _addbmm_macs(graph: ArchGraph, node: Node) -> int:
    """A batch of products that are added up."""
    return math.prod(sizes_of(graph, node.arg("batch1"))) * sizes_of(graph, node.arg("batch2"))[-1]


ROWS |= {
    # A linear layer whose weight stands in the other order: columns are its outputs.
    "addmm": Operator(
        _addmm_axes,
        _added_zero,
        _matmul_macs,
        {"self": Initialiser("zeros"), "mat1": SMALL, "mat2": SMALL},
        weighted=True,
        growth=Growth(affine={"mat2": 1, "self": 0}),
    ),
    **alike(("baddbmm", "addmv"), Operator(_addmm_axes, _added_zero, _matmul_macs)),
    "addbmm": Operator(_addbmm_axes, _added_zero, _addbmm_macs),
}


# -- other products -------------------------------------------------------------------------------


def _chain_axes(eq: Equations) -> list[Dims]:
    """A product of many matrices: neighbours share an axis."""
    value = eq.node.args[0][1]
    assert isinstance(value, tuple)
    for left, right in itertools.pairwise(value):
        a, b = eq.of(left), eq.of(right)
        eq.unify(a[-1], b[0])
        eq.contract(a[-1], [(left, -1), (right, 0)], "product of matrices")
    return [[*eq.of(value[0])[:-1], *eq.of(value[-1])[1:]]]


def _inner_axes(eq: Equations) -> list[Dims]:
    """a[-1] = b[-1]; all other dimensions stay."""
    left, right, a, b = _pair(eq)
    if not a or not b:
        return [a or b]
    eq.unify(a[-1], b[-1])
    eq.contract(a[-1], [(left, -1), (right, -1)], "inner product")
    return [[*a[:-1], *b[:-1]]]


def _vecdot_axes(eq: Equations) -> list[Dims]:
    """Operands agree; one dimension is summed over."""
    left, right, a, b = _pair(eq)
    both = eq.broadcast([a, b])
    dim = eq.dim("dim", len(both), -1)
    back = dim - len(both)  # operands broadcast from the right
    eq.contract(both[dim], [(left, back), (right, back)], "inner product")
    return [[*both[:dim], *both[dim + 1 :]]]


def _tensordot_axes(eq: Equations) -> list[Dims]:
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


def _outer_axes(eq: Equations) -> list[Dims]:
    """Every position of one with every position of the other."""
    _, _, a, b = _pair(eq)
    return [[*a, *b]]


def _kronecker_axes(eq: Equations) -> list[Dims]:
    """Each dimension is the product of the two operands'."""
    _, _, a, b = _pair(eq)
    rank = max(len(a), len(b))
    a, b = ([Fixed(1)] * (rank - len(x)) + x for x in (a, b))
    return [[product(pair) for pair in zip(a, b, strict=True)]]


def _cross_axes(eq: Equations) -> list[Dims]:
    """Vectors of three numbers along one dimension; the others agree."""
    both = eq.broadcast(eq.layouts())
    value = eq.node.arg("dim", -1 if eq.node.op.startswith("aten.linalg") else None)
    dims = [value] if isinstance(value, int) else range(len(both))
    eq.pin([both[d] for d in dims], "its positions are taken apart")
    return [both]


ROWS |= {
    **alike(("chain_matmul", "linalg_multi_dot"), Operator(_chain_axes, zeros.some)),
    "inner": Operator(_inner_axes, zeros.some),
    "linalg_vecdot": Operator(_vecdot_axes, zeros.some),
    "tensordot": Operator(_tensordot_axes, zeros.some),
    "outer": Operator(_outer_axes, zeros.some),
    "ger": Operator(alias="outer"),
    "kron": Operator(_kronecker_axes, zeros.some),
    **alike(("cross", "linalg_cross"), Operator(_cross_axes, zeros.some)),
}


# -- distances ------------------------------------------------------------------------------------


def _cdist_axes(eq: Equations) -> list[Dims]:
    """Every row of one to every row of the other, over the last dimension."""
    left, right, a, b = _pair(eq)
    eq.unify(a[-1], b[-1])
    eq.total(a[-1], [left, right], "distance")
    return [[*eq.broadcast([a[:-2], b[:-2]]), a[-2], b[-2]]]


def _pairwise_axes(eq: Equations) -> list[Dims]:
    """Rows compared one by one over the last dimension, with a small number added to each."""
    both = eq.broadcast([eq.of(v) for _, v in eq.node.args[:2]])
    eq.span(both[-1], "distance")
    keep = len(eq.node.shape) == len(both)
    return [[*both[:-1], Fixed(1)] if keep else both[:-1]]


def _cosine_axes(eq: Equations) -> list[Dims]:
    """Cosines over a dimension."""
    left, right, a, b = _pair(eq)
    both = eq.broadcast([a, b])
    dim = eq.dim("dim", len(both), 1)
    eq.total(both[dim], [left, right], "cosine")
    return [[*both[:dim], *both[dim + 1 :]]]


ROWS |= {
    "cdist": Operator(_cdist_axes),
    "pairwise_distance": Operator(_pairwise_axes, rates=("eps",)),
    # Of nothing with anything the cosine is 0/ε, not 0/0.
    "cosine_similarity": Operator(_cosine_axes, zeros.some, rates=("eps",)),
}
