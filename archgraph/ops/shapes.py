"""Axis equations of operators that rearrange, pick or write positions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from archgraph.graph.ir import Batch, Ref, Size, Value
from archgraph.layout.layouts import Fixed, Layout, concatenation, divide, fixed_size, product
from archgraph.ops.equations import Dims, Equations
from archgraph.ops.rules import PROJECT, conform, unknown


def reshape(eq: Equations) -> list[Dims]:
    """Factors of the dimensions, regrouped; the target shape is recomputed after a cut."""
    x = eq.of(eq.node.args[0][1])
    dims = eq.solver.regroup(x, eq.node.shape)
    if dims is None:
        eq.pin(x, "reshaped across its factors", PROJECT)
        dims = eq.fixed(eq.node.shape)
    eq.states(eq.node.args[1][0], tuple(dims))
    return [dims]


def permute(eq: Equations) -> list[Dims]:
    """Dimensions in a new order."""
    x = eq.arg("self")
    return [[x[d % len(x)] for d in eq.ints("dims")]]


def transpose(eq: Equations) -> list[Dims]:
    """Two dimensions change places."""
    x = list(eq.arg("self"))
    a, b = eq.dim("dim0", len(x)), eq.dim("dim1", len(x))
    x[a], x[b] = x[b], x[a]
    return [x]


def matrix_transpose(eq: Equations) -> list[Dims]:
    """The last two dimensions change places."""
    x = eq.arg("self")
    return [[*x[:-2], *reversed(x[-2:])]]


def movedim(eq: Equations) -> list[Dims]:
    """Some dimensions move, the others keep their order."""
    x = eq.arg("self")
    source = [d % len(x) for d in eq.ints("source")]
    target = [d % len(x) for d in eq.ints("destination")]
    order: list[int | None] = [None] * len(x)
    for s, t in zip(source, target, strict=True):
        order[t] = s
    rest = iter(d for d in range(len(x)) if d not in source)
    return [[x[next(rest) if o is None else o] for o in order]]


def unsqueeze(eq: Equations) -> list[Dims]:
    """A new dimension of size one."""
    x = list(eq.arg("self"))
    x.insert(eq.dim("dim", len(x) + 1), Fixed(1))
    return [x]


def squeeze(eq: Equations) -> list[Dims]:
    """Dimensions of size one vanish."""
    x = eq.arg("self")
    given = eq.ints("dim")
    dims = {d % len(x) for d in given} if given else set(range(len(x)))
    return [[layout for d, layout in enumerate(x) if not (d in dims and layout.size == 1)]]


def expand(eq: Equations) -> list[Dims]:
    """Dimensions of size one stretch."""
    x = eq.arg("self")
    shape = eq.node.shape
    lead = len(shape) - len(x)
    out: Dims = []
    for index, size in enumerate(shape):
        old = x[index - lead] if index >= lead else Fixed(1)
        out.append(old if old.size == size else eq.new(size))
        if old.size != size:
            eq.taint(out[-1:])  # copies, also where the new axis is masked
    eq.states("size", tuple(out))
    return [out]


def repeat(eq: Equations) -> list[Dims]:
    """A repeated channel axis is the product of the repetition and the axis."""
    x = eq.arg("self")
    value = eq.node.arg("repeats")
    repeats: tuple[Value, ...] = value if isinstance(value, tuple) else (value,)
    x = [Fixed(1)] * (len(repeats) - len(x)) + x
    out: Dims = []
    for layout, count in zip(x, repeats, strict=True):
        if count == 1:
            out.append(layout)
        elif isinstance(count, (int, Batch)) and not isinstance(layout.size, Batch):
            out.append(product((Fixed(count), layout)))
        else:
            out.append(Fixed(eq.node.shape[len(out)]))
    return [out]


def repeat_interleave(eq: Equations) -> list[Dims]:
    """Each position repeated in place: the axis times the repetition."""
    x = eq.arg("self")
    count = eq.node.arg("repeats")
    if not isinstance(count, int) or eq.node.arg("dim") is None:
        return unknown(eq)
    dim = eq.dim("dim", len(x))
    out = list(x)
    out[dim] = product((x[dim], Fixed(count)))
    if isinstance(eq.node.arg("output_size"), int):
        eq.states("output_size", out[dim])
    return [out]


def cat(eq: Equations) -> list[Dims]:
    """The concatenated dimension is the sum of its parts; the others agree."""
    operands = [eq.of(v) for v in eq.operands()]
    operands = [o for o in operands if not (len(o) == 1 and o[0].size == 0)]
    return [_joined(eq, operands, eq.dim("dim", len(operands[0])))]


def _joined(eq: Equations, operands: Sequence[Dims], dim: int) -> Dims:
    out: Dims = []
    for d in range(len(operands[0])):
        if d == dim:
            parts = [o[d] for o in operands]
            if all(isinstance(p.size, int) for p in parts):
                out.append(concatenation(parts))
            else:
                out.append(Fixed(eq.node.shape[d]))
        else:
            for other in operands[1:]:
                eq.unify(operands[0][d], other[d])
            out.append(eq.resolve(operands[0][d]))
    return out


def stacked(eq: Equations) -> list[Dims]:
    """``hstack``, ``vstack``, …: operands of few dimensions get more, then join."""
    unit = Fixed(1)
    operands = [eq.of(v) for v in eq.operands()]
    if eq.node.op == "aten.column_stack":
        columns = [o if len(o) > 1 else [*(o or [unit]), unit] for o in operands]
        return [_joined(eq, columns, 1)]
    if eq.node.op == "aten.hstack":
        operands = [o or [unit] for o in operands]
        return [_joined(eq, operands, 1 if len(operands[0]) > 1 else 0)]
    operands = [o if len(o) > 1 else [unit, *(o or [unit])] for o in operands]
    if eq.node.op == "aten.vstack":
        return [_joined(eq, operands, 0)]
    return [_joined(eq, [o if len(o) > 2 else [*o, unit] for o in operands], 2)]


def stack(eq: Equations) -> list[Dims]:
    """Operands agree; a new dimension counts them."""
    operands = [eq.of(v) for v in eq.operands()]
    for other in operands[1:]:
        for a, b in zip(operands[0], other, strict=True):
            eq.unify(a, b)
    out = [eq.resolve(d) for d in operands[0]]
    out.insert(eq.dim("dim", len(out) + 1), Fixed(len(operands)))
    return [out]


def split(eq: Equations) -> list[Dims]:
    """A dimension cut at given sizes, which a cut recomputes."""
    x, dim = eq.along()
    parts = _cut_all(eq, x[dim], [t.shape[dim] for t in eq.node.types])
    if parts is None:
        eq.pin([x[dim]], "split across its factors", PROJECT)
        parts = [Fixed(t.shape[dim]) for t in eq.node.types]
    eq.states("split_sizes", tuple(parts))
    return [[*x[:dim], part, *x[dim + 1 :]] for part in parts]


def _cut_all(eq: Equations, layout: Layout, sizes: Sequence[Size]) -> list[Layout] | None:
    parts: list[Layout] = []
    rest = layout
    for size in sizes[:-1]:
        if not isinstance(size, int):
            return None
        pair = eq.solver.cut(rest, size)
        if pair is None:
            return None
        parts.append(pair[0])
        rest = pair[1]
    return [*parts, rest]


def slice_(eq: Equations) -> list[Dims]:
    """A run of positions: the dimension is cut before and after it."""
    x, dim = eq.along()
    layout = x[dim]
    parts = _run(eq, layout, eq.node.shape[dim])
    step = eq.integer("step", 1)
    if parts is None and isinstance(layout.size, int) and layout.size == eq.node.shape[dim] * step:
        places = eq.solver.split_product(layout, step)  # every step-th: one place of each run
        if places is not None:
            eq.pin([places[1]], "one of every few positions is taken", PROJECT)
            eq.states("end", layout)
            return [[*x[:dim], places[0], *x[dim + 1 :]]]
    if parts is None:
        strided = eq.integer("step", 1) != 1 or not isinstance(layout.size, int)
        eq.pin([layout], "strided slice" if strided else "sliced across its factors", PROJECT)
        return [[*x[:dim], Fixed(eq.node.shape[dim]), *x[dim + 1 :]]]
    eq.states("start", parts[0])
    eq.states("end", concatenation(parts[:2]))
    return [[*x[:dim], parts[1], *x[dim + 1 :]]]


def select(eq: Equations) -> list[Dims]:
    """One position of a dimension, which therefore stays whole."""
    x, dim = eq.along()
    eq.pin([x[dim]], "one of its positions is selected")
    return [[*x[:dim], *x[dim + 1 :]]]


def unbind(eq: Equations) -> list[Dims]:
    """Every position of a dimension on its own."""
    x, dim = eq.along()
    eq.pin([x[dim]], "its positions are taken apart")
    return [[*x[:dim], *x[dim + 1 :]] for _ in eq.node.types]


def _indexed(eq: Equations) -> tuple[tuple[Value, ...], list[int]]:
    """Index tensors by dimension, and which dimensions have one; none where they are apart."""
    value = eq.node.arg("indices")
    indices = value if isinstance(value, tuple) else ()
    used = [i for i, v in enumerate(indices) if v is not None]
    return indices, used if used and used == list(range(used[0], used[-1] + 1)) else []


def index(eq: Equations) -> list[Dims]:
    """Leading dimensions addressed by index tensors; the others pass."""
    x = eq.arg("self")
    indices, used = _indexed(eq)
    if not used:
        return unknown(eq)
    if any(eq.operand_dtype(indices[i]) == "bool" for i in used):  # as many results as it has ones
        return unknown(eq)
    for i in used:
        eq.pin([x[i]], "indexed by values")
    picked = eq.broadcast([eq.of(indices[i]) for i in used])
    eq.taint(picked)
    return [conform(eq, [*x[: used[0]], *picked, *x[used[-1] + 1 :]])]


def index_select(eq: Equations) -> list[Dims]:
    """Positions of one dimension picked by an index tensor."""
    x, dim = eq.along()
    eq.pin([x[dim]], "indexed by values")
    picked = eq.arg("index") or [Fixed(1)]  # its positions are the result's
    return [[*x[:dim], *picked, *x[dim + 1 :]]]


def gather(eq: Equations) -> list[Dims]:
    """Positions picked along one dimension; all layouts as the index tensor's."""
    (x, dim), where = eq.along(), eq.arg("index")
    eq.pin([x[dim]], "indexed by values")
    for d, (a, b) in enumerate(zip(x, where, strict=True)):
        if d != dim and a.size == b.size:
            eq.unify(a, b)
        elif d != dim:
            eq.pin([a], "gathered in part")
    eq.taint(where[dim : dim + 1])
    return [where]


def take_along(eq: Equations) -> list[Dims]:
    """As gather, but the index broadcasts."""
    x, where = eq.arg("self"), eq.arg("indices")
    if not isinstance(eq.node.arg("dim"), int):
        return unknown(eq)
    dim = eq.dim("dim", len(x))
    eq.pin([x[dim]], "indexed by values")
    both = eq.broadcast([[*x[:dim], Fixed(1), *x[dim + 1 :]], where])
    eq.taint([*both[dim : dim + 1], *(d for d, a in zip(both, x, strict=True) if a.size == 1)])
    return [both]


def scatter(eq: Equations) -> list[Dims]:
    """Positions written along one dimension; the others agree with index and source."""
    (x, dim), where = eq.along(), eq.arg("index")
    for written in (where, *([eq.arg("src")] if eq.has("src") else [])):
        eq.pin([x[dim], written[dim]], "indexed by values")
        for d, (a, b) in enumerate(zip(x, written, strict=True)):
            if d != dim and a.size == b.size:
                eq.unify(a, b)
            elif d != dim:
                eq.pin([a, b], "written in part")
    return [x]


def index_add(eq: Equations) -> list[Dims]:
    """Slices written along one dimension; the others agree with the source."""
    (x, dim), source = eq.along(), eq.arg("source")
    eq.pin([x[dim], source[dim]], "indexed by values")
    for d, (a, b) in enumerate(zip(x, source, strict=True)):
        if d != dim:
            eq.unify(a, b)
    return [x]


def index_fill(eq: Equations) -> list[Dims]:
    """Slices of one dimension set to a number."""
    x = eq.arg("self")
    eq.pin([x[eq.dim("dim", len(x))]], "indexed by values")
    return [x]


def index_put(eq: Equations) -> list[Dims]:
    """Dimensions addressed by index tensors are written with values that broadcast to the rest."""
    x = eq.arg("self")
    indices, used = _indexed(eq)
    masks = [eq.operand_dtype(indices[i]) == "bool" for i in used]
    if not used or (any(masks) and len(used) > 1):
        return unknown(eq)
    # a mask addresses as many dimensions as it has, and what it picks is one
    count = len(eq.of(indices[used[0]])) if any(masks) else len(used)
    picked = 1 if any(masks) else max(len(eq.of(indices[i])) for i in used)
    lead, rest = x[: used[0]], x[used[0] + count :]
    eq.pin(x[used[0] : used[0] + count], "indexed by values")
    target: list[Layout | None] = [*lead, *[None] * picked, *rest]
    for layout, against in zip(reversed(eq.arg("values")), reversed(target), strict=False):
        if against is None:
            eq.pin([layout], "indexed by values")
        elif layout.size != 1:
            eq.unify(layout, against)
    return [[eq.resolve(d) for d in x]]


def masked_scatter(eq: Equations) -> list[Dims]:
    """Positions that a mask picks are filled with those of the source, in order.

    Trailing dimensions along which the mask is constant are filled whole: they are the source's.
    """
    x, mask, source = eq.arg("self"), eq.arg("mask"), eq.arg("source")
    both = eq.broadcast([x, mask])
    whole = 0
    while whole < min(len(both), len(source)) and _constant_along(eq, "mask", whole + 1):
        if both[-1 - whole].size != source[-1 - whole].size:
            break
        eq.unify(both[-1 - whole], source[-1 - whole])
        whole += 1
    eq.pin(both[: len(both) - whole], "filled in order")
    eq.pin(source[: len(source) - whole], "filled in order")
    return [[eq.resolve(d) for d in both]]


def _constant_along(eq: Equations, name: str, back: int) -> bool:
    """Whether an argument is constant along a dimension, counted from the last (1)."""
    value = eq.node.arg(name)
    while isinstance(value, Ref):
        shape = eq.graph.node[value.name].shape
        if len(shape) < back or shape[-back] == 1:
            return True
        if not eq.graph.node[value.name].op.startswith("aten.expand"):
            return False
        value = eq.graph.node[value.name].arg("self")
    return False


def slice_scatter(eq: Equations) -> list[Dims]:
    """A run of positions overwritten: the dimension is cut before and after it."""
    (x, dim), source = eq.along(), eq.arg("src")
    for d, (a, b) in enumerate(zip(x, source, strict=True)):
        if d != dim:
            eq.unify(a, b)
    parts = _run(eq, x[dim], source[dim].size)
    if parts is None:
        eq.pin([x[dim], source[dim]], "overwritten in part", PROJECT)
        return [x]
    eq.unify(parts[1], source[dim])
    eq.states("start", parts[0])
    eq.states("end", concatenation(parts[:2]))
    return [[eq.resolve(d) for d in x]]


def _run(eq: Equations, layout: Layout, length: Size) -> list[Layout] | None:
    """A dimension cut before and after the positions from ``start`` on, or None."""
    start, size = eq.node.arg("start") or 0, layout.size
    if not (isinstance(start, int) and isinstance(size, int) and isinstance(length, int)):
        return None
    if eq.integer("step", 1) != 1:
        return None
    first = min(max(start + (size if start < 0 else 0), 0), size)
    return _cut_all(eq, layout, [first, length, size - first - length])


def select_scatter(eq: Equations) -> list[Dims]:
    """One position of a dimension overwritten; the others agree."""
    x, dim = eq.along()
    eq.pin([x[dim]], "one of its positions is overwritten")
    for a, b in zip([*x[:dim], *x[dim + 1 :]], eq.arg("src"), strict=True):
        eq.unify(a, b)
    return [x]


def pad(eq: Equations) -> list[Dims]:
    """Padding adds terms before and after; on channels they are axes like others."""
    x = eq.arg("self")
    amounts = list(eq.ints("pad"))
    if eq.node.arg("mode", "constant") != "constant":  # the new positions are copies of others
        padded = x[len(x) - len(amounts) // 2 :]
        eq.pin(padded, "padded with its own positions", PROJECT)
        return [[*x[: len(x) - len(padded)], *eq.fixed(eq.node.shape[-len(padded) :])]]
    out = list(x)
    sizes: list[Layout | int] = []
    for position in range(0, len(amounts), 2):
        dim = len(x) - 1 - position // 2
        before, after = amounts[position], amounts[position + 1]
        layout = x[dim]
        if before == after == 0:
            sizes += [0, 0]
        elif isinstance(eq.resolve(layout), Fixed) or before < 0 or after < 0:
            if not isinstance(eq.resolve(layout), Fixed):
                eq.pin([layout], "cropped", PROJECT)
            out[dim] = Fixed(eq.node.shape[dim])
            sizes += [before, after]
        else:
            left = eq.new(before) if before else Fixed(0)
            right = eq.new(after) if after else Fixed(0)
            out[dim] = concatenation((left, layout, right))
            sizes += [left, right]
            if eq.node.arg("value") not in (None, 0):
                eq.taint([left, right])
    eq.states("pad", tuple(sizes))
    return [out]


def pixel_shuffle(eq: Equations) -> list[Dims]:
    """x[-3] = Prod(c, r, r)."""
    x = eq.arg("self")
    r = eq.integer("upscale_factor", 1)
    channel = eq.new(fixed_size(x[-3]) // (r * r))
    eq.unify(x[-3], product((channel, Fixed(r * r))))
    return [[*x[:-3], channel, *eq.fixed(eq.node.shape[-2:])]]


def pixel_unshuffle(eq: Equations) -> list[Dims]:
    """y[-3] = Prod(c, r, r)."""
    x = eq.arg("self")
    r = eq.integer("downscale_factor", 1)
    return [[*x[:-3], product((x[-3], Fixed(r * r))), *eq.fixed(eq.node.shape[-2:])]]


def channel_shuffle(eq: Equations) -> list[Dims]:
    """Prod(groups, c) becomes Prod(c, groups)."""
    x = eq.arg("self")
    groups = eq.integer("groups", 1)
    inside = eq.new(fixed_size(x[1]) // groups)
    eq.unify(x[1], product((Fixed(groups), inside)))
    return [[x[0], product((inside, Fixed(groups))), *x[2:]]]


def triangle(eq: Equations) -> list[Dims]:
    """Upper or lower triangle: rows and columns are compared by position."""
    x = eq.of(eq.node.args[0][1])
    eq.pin(x[-2:], "compared by position")
    return [x]


def diagonal(eq: Equations) -> list[Dims]:
    """The main diagonal of a square is its axis; other diagonals compare positions."""
    x = eq.of(eq.node.args[0][1])
    a, b = eq.dim("dim1", len(x), 0), eq.dim("dim2", len(x), 1)
    rest = [d for i, d in enumerate(x) if i not in (a, b)]
    if eq.integer("offset") or x[a].size != x[b].size:
        eq.pin([x[a], x[b]], "compared by position")
        return [[*rest, Fixed(eq.node.shape[-1])]]
    eq.unify(x[a], x[b])
    return [[*rest, eq.resolve(x[a])]]


def diagonal_matrix(eq: Equations) -> list[Dims]:
    """An axis becomes both sides of a square, off its diagonal zeros."""
    x = eq.arg("self")
    if eq.integer("offset"):
        eq.pin(x[-1:], "compared by position")
        side: Layout = Fixed(max(s for s in eq.node.shape if isinstance(s, int)))
    else:
        side = x[-1]
    a, b = sorted(eq.dim(n, len(x) + 1, d) for n, d in (("dim1", -2), ("dim2", -1)))
    out = list(x[:-1])
    out.insert(a, side)
    out.insert(b, side)
    return [out]


def windows(eq: Equations) -> list[Dims]:
    """Sliding windows of a dimension, which stays whole."""
    x = eq.arg("self")
    dim = eq.dim("dimension", len(x))
    eq.pin([x[dim]], "cut into windows", PROJECT)
    return [[*x[:dim], Fixed(eq.node.shape[dim]), *x[dim + 1 :], Fixed(eq.node.shape[-1])]]


def patches(eq: Equations) -> list[Dims]:
    """im2col: y[-2] = Prod(c, kernel)."""
    x = eq.arg("self")
    kernel = math.prod(eq.ints("kernel_size"))
    eq.pin(x[-2:], "cut into windows")
    return [[*x[:-3], product((x[-3], Fixed(kernel))), Fixed(eq.node.shape[-1])]]


def from_patches(eq: Equations) -> list[Dims]:
    """col2im: x[-2] = Prod(c, kernel)."""
    x = eq.arg("self")
    eq.pin(x[-1:], "put together from windows")
    channel = eq.new(eq.node.shape[-3])
    kernel = divide(x[-2].size, channel.size)
    assert kernel is not None
    eq.unify(x[-2], product((channel, Fixed(kernel))))
    return [[*x[:-2], eq.resolve(channel), *eq.fixed(eq.node.shape[-2:])]]


def complex_view(eq: Equations) -> list[Dims]:
    """Pairs of a last dimension become complex numbers, or the other way round."""
    x = eq.arg("self")
    if len(eq.node.shape) > len(x):
        return [[*x, Fixed(2)]]
    eq.pin(x[-1:], "holds real and imaginary parts")
    return [x[:-1]]
