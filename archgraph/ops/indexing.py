"""Operators that read or write parts of an operand: slices, index tensors, diagonals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from archgraph.graph.ir import Leaf, Polynomial, Ref, Size, Value
from archgraph.graph.polynomial import as_size
from archgraph.layout.layouts import Fixed, Layout, concatenation
from archgraph.ops import zeros
from archgraph.ops.backward import NOTHING, saves
from archgraph.ops.equations import PROJECT, Dims, Equations
from archgraph.ops.operator import (
    MOVES,
    AxisRule,
    Call,
    Growth,
    Operator,
    Spelling,
    ViewWrite,
    rows,
)


# -- slices ---------------------------------------------------------------------------------------
def _beside(eq: Equations, x: Dims, part: Dims, dim: int) -> list[Dims]:
    """Unify all dimensions except ``dim`` with those of a part; return pairs of unequal size."""
    pairs = [[a, b] for d, (a, b) in enumerate(zip(x, part, strict=True)) if d != dim]
    for a, b in pairs:
        if a.size == b.size:
            eq.unify(a, b)
    return [[a, b] for a, b in pairs if a.size != b.size]


def _run(eq: Equations, layout: Layout, length: Size) -> list[Layout] | None:
    """Cut a dimension around the ``length`` positions from ``start``; None if not possible."""
    start, size = eq.node.arg("start") or 0, layout.size
    if eq.integer("step", 1) != 1 or not isinstance(start, int | Polynomial):
        return None
    if isinstance(start, int) and isinstance(size, int):
        start = min(max(start + (size if start < 0 else 0), 0), size)
    elif isinstance(layout, Fixed):
        return None
    return eq.cut_all(layout, [start, length, as_size(size - start - length)])


def _slice_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of a slice: the dimension is cut before and after the sliced positions."""
    x, dim = eq.along()
    layout, size, step = x[dim], eq.node.shape[dim], eq.integer("step", 1)
    part: Layout = Fixed(size)
    if (parts := _run(eq, layout, size)) is not None:
        part = parts[1]
        eq.states("start", parts[0])
        eq.states("end", concatenation(parts[:2]))
    elif (
        isinstance(layout.size, int)
        and layout.size == size * step
        and (factors := eq.solver.split_product(layout, step))
    ):
        # Every step-th position: one from each run of `step`, so whole runs may be removed.
        part = factors[0]
        eq.pin([factors[1]], "one of every few positions is taken", PROJECT)
        eq.states("end", layout)
    else:
        strided = step != 1 or not isinstance(layout.size, int)
        eq.pin([layout], "strided slice" if strided else "sliced across its factors", PROJECT)
    return [[*x[:dim], part, *x[dim + 1 :]]]


def _slice_spelling(call: Spelling) -> Call:
    """Write a slice with bounds counted from the front."""
    args = dict(call.args)
    if call.op != "aten.slice.Tensor":
        return call.op, args
    dim = args.get("dim", 0)
    assert isinstance(dim, int)
    size = call.sizes["self"][dim]
    start, end = args.get("start"), args.get("end")
    if isinstance(size, int):
        for name, bound in (("start", 0 if start is None else start), ("end", end)):
            if bound is None:
                args[name] = size
            elif isinstance(bound, int):  # an open bound lies within the dimension
                args[name] = min(bound + size if bound < 0 else bound, size)
    elif start in (None, 0) and isinstance(end, int) and end >= 2**62:
        args["start"], args["end"] = 0, None
    return call.op, args


def _narrow_spelling(call: Spelling) -> Call:
    """Write `narrow` as a slice with an explicit start and end."""
    if call.op != "aten.narrow":
        return call.op, call.args
    start, length, dim = (call.args[name] for name in ("start", "length", "dim"))
    assert isinstance(dim, int)
    assert isinstance(start, int | Polynomial) and isinstance(length, int | Polynomial)
    size = call.sizes["self"][dim]
    if isinstance(start, int) and start < 0 and isinstance(size, int):
        start += size
    end = as_size(start + length)
    args = {"self": call.args["self"], "dim": dim, "start": start, "end": end}
    return "aten.slice.Tensor", args


def _write_by(op: str, *names: str) -> Callable[[ViewWrite], Call]:
    """Return a rule that writes into a view with an operator that has the same arguments.

    >>> from archgraph.graph.ir import Ref
    >>> write = ViewWrite("aten.select.int", {"index": 2}, Ref("x"), Ref("y"), (4, 3), 0)
    >>> _write_by("aten.select_scatter", "dim", "index")(write)
    ('aten.select_scatter', {'self': Ref(name='x'), 'src': Ref(name='y'), 'index': 2})
    """
    return lambda write: write.scattered(op, **{k: v for k, v in write.args.items() if k in names})


def _slice_scatter_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of an operator that overwrites a slice.

    The dimension is cut before and after the slice.
    """
    (x, dim), source = eq.along(), eq.arg("src")
    _beside(eq, x, source, dim)
    parts = _run(eq, x[dim], source[dim].size)
    if parts is None:
        eq.pin([x[dim], source[dim]], "overwritten in part", PROJECT)
        return [x]
    eq.unify(parts[1], source[dim])
    eq.states("start", parts[0])
    eq.states("end", concatenation(parts[:2]))
    return [[eq.resolve(d) for d in x]]


# -- single positions -----------------------------------------------------------------------------
def _select_axes(eq: Equations) -> list[Dims]:
    """Pin the dimension from which one position is selected."""
    x, dim = eq.along()
    eq.pin([x[dim]], "one of its positions is selected")
    return [[*x[:dim], *x[dim + 1 :]]]


def _select_scatter_axes(eq: Equations) -> list[Dims]:
    """Pin the dimension in which one position is overwritten; unify the other dimensions."""
    x, dim = eq.along()
    eq.pin([x[dim]], "one of its positions is overwritten")
    eq.agree([*x[:dim], *x[dim + 1 :]], eq.arg("src"))
    return [x]


def _unbind_axes(eq: Equations) -> list[Dims]:
    """Pin the dimension whose positions become separate results."""
    x, dim = eq.along()
    eq.pin([x[dim]], "its positions become separate results")
    return [[*x[:dim], *x[dim + 1 :]] for _ in eq.node.types]


def _unbind_write(write: ViewWrite) -> Call:
    """Write into one of the results of ``unbind``."""
    return write.scattered("aten.select_scatter", dim=write.args.get("dim", 0), index=write.index)


_POSITIONS = {
    "slice": Operator(
        _slice_axes,
        zeros.first,
        growth=MOVES,
        spelling=_slice_spelling,
        unchanged=True,
        overwritten=_write_by("aten.slice_scatter", "dim", "start", "end", "step"),
        backward=NOTHING,
    ),
    "narrow": Operator(spelling=_narrow_spelling),
    "slice_scatter": Operator(_slice_scatter_axes, zeros.every, real=True, backward=NOTHING),
    "select": Operator(
        _select_axes,
        zeros.first,
        growth=MOVES,
        overwritten=_write_by("aten.select_scatter", "dim", "index"),
        backward=NOTHING,
    ),
    "select_scatter": Operator(_select_scatter_axes, zeros.every, real=True, backward=NOTHING),
    "unbind": Operator(
        _unbind_axes, zeros.first, growth=MOVES, overwritten=_unbind_write, backward=NOTHING
    ),
}


# -- positions read by value: they depend on data, so their dimension cannot be cut ---------------
def _indexed(eq: Equations) -> tuple[tuple[Value, ...], list[int]]:
    """Return the index tensors and the dimensions that they index; none if not adjacent."""
    value = eq.node.arg("indices")
    indices = value if isinstance(value, tuple) else ()
    used = [i for i, v in enumerate(indices) if v is not None]
    return indices, used if used and used == list(range(used[0], used[-1] + 1)) else []


def _index_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of indexing: index tensors select from some dimensions, others pass."""
    x = eq.arg("self")
    indices, used = _indexed(eq)
    # The number of results of a mask is its number of ones.
    if not used or any(eq.operand_dtype(indices[i]) == "bool" for i in used):
        return eq.opaque()
    for i in used:
        eq.pin([x[i]], "indexed by values")
    picked = eq.broadcast([eq.of(indices[i]) for i in used])
    eq.taint(picked)
    return [eq.conform([*x[: used[0]], *picked, *x[used[-1] + 1 :]])]


def _index_select_axes(eq: Equations) -> list[Dims]:
    """Relate the axes if an index tensor selects positions along one dimension."""
    x, dim = eq.along()
    eq.pin([x[dim]], "indexed by values")
    picked = eq.arg("index") or [Fixed(1)]  # its positions are the result's
    return [[*x[:dim], *picked, *x[dim + 1 :]]]


def _gather_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of ``gather``, whose index has the axes of the result."""
    (x, dim), where = eq.along(), eq.arg("index")
    eq.pin([x[dim]], "indexed by values")
    for unequal in _beside(eq, x, where, dim):  # the index covers only the first positions
        eq.pin(unequal, "gathered in part")
    eq.taint(where[dim : dim + 1])
    return [where]


def _take_along_axes(eq: Equations) -> list[Dims]:
    """Relate the axes in the same way as for ``gather``; the index is broadcast."""
    x, where = eq.arg("self"), eq.arg("indices")
    if not isinstance(eq.node.arg("dim"), int):
        return eq.opaque()
    dim = eq.dim("dim", len(x))
    eq.pin([x[dim]], "indexed by values")
    both = eq.broadcast([[*x[:dim], Fixed(1), *x[dim + 1 :]], where])
    eq.taint([*both[dim : dim + 1], *(d for d, a in zip(both, x, strict=True) if a.size == 1)])
    return [both]


# -- positions written by value -------------------------------------------------------------------
def _written_axes(*names: str) -> AxisRule:
    """Return a rule for writing along one dimension; the other dimensions are unified."""

    def rule(eq: Equations) -> list[Dims]:
        x, dim = eq.along()
        eq.pin([x[dim], *eq.arg("index")[: 0 if "index" in names else 1]], "indexed by values")
        for source in (eq.arg(name) for name in names if eq.has(name)):
            eq.pin([source[dim]], "indexed by values")
            # The index may be shorter than the tensor: positions after it stay unchanged.
            for unequal in _beside(eq, x, source, dim):
                eq.pin(unequal, "written in part")
        if eq.node.arg("value") not in (None, 0):
            eq.taint(x)
        return [x]

    return rule


def _index_put_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of values written at indices. The values are broadcast to the written part.

    1. A mask indexes as many dimensions as it has, and the selected positions form one dimension.
       The indexed dimensions can be cut only if a single value is written.
    2. Each index tensor indexes one dimension. The written part has the dimensions of the tensors.
    """
    x, values = eq.arg("self"), eq.arg("values")
    indices, used = _indexed(eq)
    masks = [eq.operand_dtype(indices[i]) == "bool" for i in used]
    if not used or (any(masks) and len(used) > 1):
        return eq.opaque()
    where = [eq.of(indices[i]) for i in used]
    first, count = used[0], len(where[0]) if any(masks) else len(used)
    addressed, rest = x[first : first + count], x[first + count :]
    picked: Dims = [Fixed(1)]
    if any(masks):  # 1
        eq.agree(addressed, where[0])
        if len(values) > len(rest) and values[-len(rest) - 1].size != 1:
            picked = [values[-len(rest) - 1]]
            eq.pin([*addressed, *picked], "filled in order")
    else:  # 2
        picked = eq.broadcast(where)
        eq.pin([*addressed, *picked], "indexed by values")
    target = [*x[:first], *picked, *rest]
    eq.broadcast([target, values])
    if not _zeros_alone(eq, "values"):  # values are constant along dimensions that they lack
        eq.taint(target[: len(target) - len(values)])
        eq.taint([t for t, v in zip(target[::-1], values[::-1], strict=False) if v.size == 1])
    return [[eq.resolve(d) for d in x]]


def _zeros_alone(eq: Equations, name: str) -> bool:
    """Return whether an argument is a constant of zeros."""
    value = eq.node.arg(name)
    constant = eq.graph.param[value.name].value if isinstance(value, Leaf) else None
    return constant is not None and not any(constant.data)


def _masked_scatter_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of ``masked_scatter``, which fills masked positions from a source in order.

    Trailing dimensions along which the mask is constant are filled as a whole, so they are unified
    with those of the source.
    """
    x, mask, source = eq.arg("self"), eq.arg("mask"), eq.arg("source")
    both = eq.broadcast([x, mask])
    tail = 0
    while tail < min(len(both), len(source)) and _constant_along(eq, "mask", tail + 1):
        if both[-1 - tail].size != source[-1 - tail].size:
            break
        eq.unify(both[-1 - tail], source[-1 - tail])
        tail += 1
    eq.pin(both[: len(both) - tail], "filled in order")
    eq.pin(source[: len(source) - tail], "filled in order")
    return [[eq.resolve(d) for d in both]]


def _constant_along(eq: Equations, name: str, back: int) -> bool:
    """Return whether an argument is constant along a dimension, counted from the end (1)."""
    value = eq.node.arg(name)
    while isinstance(value, Ref):
        node = eq.graph.node[value.name]
        if len(node.shape) < back or node.shape[-back] == 1:
            return True
        value = node.arg("self") if node.op.startswith("aten.expand") else None
    return False


_scatter = Operator(_written_axes("index", "src"), zeros.every)

_BY_VALUE = {
    "index": Operator(_index_axes, zeros.first, growth=Growth("first"), backward=saves("indices")),
    "index_select": Operator(
        _index_select_axes, zeros.first, growth=Growth("first"), backward=saves("index")
    ),
    "gather": Operator(
        _gather_axes, zeros.first, growth=Growth("first"), backward=saves("self", "index")
    ),
    "take_along_dim": Operator(_take_along_axes, zeros.first),
    # Both the written values and the tensor written into have to be zero.
    "scatter scatter_add": replace(_scatter, backward=saves("index")),
    "scatter_reduce": _scatter,
    "index_add index_copy": Operator(
        _written_axes("source"), zeros.every, backward=saves("index", "source")
    ),
    "index_fill": Operator(_written_axes(), backward=saves("index")),
    "index_put": Operator(_index_put_axes, zeros.every, backward=saves("indices")),
    "masked_scatter": Operator(_masked_scatter_axes, zeros.every, backward=saves("mask")),
}


# -- by position in the flattened tensor ----------------------------------------------------------
def _taken_axes(eq: Equations) -> list[Dims]:
    """Take positions of the flattened tensor; the result has the shape of the index tensor."""
    eq.pin(eq.arg("self"), "indexed by values")
    eq.taint(eq.arg("index"))
    return [eq.arg("index")]


def _put_axes(eq: Equations) -> list[Dims]:
    """Write at positions of the flattened tensor, one per element of the source."""
    x = eq.arg("self")
    eq.agree(eq.arg("index"), eq.arg("source"))
    eq.pin([*x, *eq.arg("index")], "indexed by values")
    return [x]


_BY_NUMBER = {"take": Operator(_taken_axes), "put": Operator(_put_axes)}


# -- diagonals and triangles ----------------------------------------------------------------------
def _triangle_axes(eq: Equations) -> list[Dims]:
    """Pin the rows and columns of a triangle, whose positions are compared."""
    x = eq.of(eq.node.args[0][1])
    eq.pin(x[-2:], "compared by position")
    return [x]


def _diagonal_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of a diagonal.

    The main diagonal of a square has the axis of the square. For other diagonals, positions are
    compared, so the axes are pinned.
    """
    x = eq.of(eq.node.args[0][1])
    a, b = eq.dim("dim1", len(x), 0), eq.dim("dim2", len(x), 1)
    rest = [d for i, d in enumerate(x) if i not in (a, b)]
    if eq.integer("offset") or x[a].size != x[b].size:
        eq.pin([x[a], x[b]], "compared by position")
        return [[*rest, Fixed(eq.node.shape[-1])]]
    eq.unify(x[a], x[b])
    return [[*rest, eq.resolve(x[a])]]


def _diagonal_scatter_axes(eq: Equations) -> list[Dims]:
    """Pin the dimensions whose diagonal is overwritten; unify the other dimensions."""
    x = eq.arg("self")
    a, b = eq.dim("dim1", len(x), 0), eq.dim("dim2", len(x), 1)
    *rest, diagonal = eq.arg("src")
    eq.pin([x[a], x[b], diagonal], "compared by position")
    eq.agree([d for i, d in enumerate(x) if i not in (a, b)], rest)
    return [x]


def _diagonal_matrix_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of a diagonal matrix: one axis for both sides, zero off the diagonal."""
    x = eq.arg("self")
    a, b = sorted(eq.dim(n, len(x) + 1, d) for n, d in (("dim1", -2), ("dim2", -1)))
    side: Layout = x[-1]
    if eq.integer("offset"):
        eq.pin(x[-1:], "compared by position")
        side = Fixed(eq.node.shape[a])
    out = list(x[:-1])
    out.insert(a, side)
    out.insert(b, side)
    return [out]


_DIAGONALS = {
    "tril triu": Operator(_triangle_axes, zeros.first, growth=Growth(), backward=NOTHING),
    "diagonal": Operator(
        _diagonal_axes,
        zeros.first,
        overwritten=_write_by("aten.diagonal_scatter", "offset", "dim1", "dim2"),
        backward=NOTHING,
    ),
    "linalg_diagonal": Operator(_diagonal_axes, zeros.first, backward=NOTHING),
    "diagonal_scatter": Operator(_diagonal_scatter_axes, zeros.every),
    "diag_embed": Operator(_diagonal_matrix_axes, zeros.first, backward=NOTHING),
}

ROWS = rows(_POSITIONS, _BY_VALUE, _BY_NUMBER, _DIAGONALS)
