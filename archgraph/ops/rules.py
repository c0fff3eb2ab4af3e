"""Axis equations of ATen operators, by class of operator. Each returns its results' layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from archgraph.ir import Batch, Leaf, Mode, Ref, Size, Value
from archgraph.layout import Fixed, Layout, concatenation, divide, product
from archgraph.ops.equations import Dims, Equations

Rule = Callable[[Equations], list[Dims]]


def _tensor_args(eq: Equations) -> list[Dims]:
    operands = []
    for name, value in eq.node.args:
        if isinstance(value, tuple):
            operands += [eq.of(i) for i in value if isinstance(i, (Ref, Leaf, Mode))]
        elif eq.has(name):
            operands.append(eq.arg(name))
    return operands


def _conform(eq: Equations, dims: Dims, index: int = 0) -> Dims:
    """Replace layouts whose size the result's type contradicts (a stretched dimension)."""
    shape = eq.node.types[index].shape
    return [d if d.size == s else Fixed(s) for d, s in zip(dims, shape, strict=True)]


def unknown(eq: Equations) -> list[Dims]:
    """No row: nothing that touches the operator may be cut."""
    for dims in _tensor_args(eq):
        eq.pin(dims, "no rule for this operator")
    return [eq.fixed(t.shape) for t in eq.node.types]


def opaque(eq: Equations) -> list[Dims]:
    """An operator that mixes axes in ways of its own."""
    for dims in _tensor_args(eq):
        eq.pin(dims, "the operator is opaque")
    return [eq.fixed(t.shape) for t in eq.node.types]


def elementwise(eq: Equations) -> list[Dims]:
    """Operands agree up to broadcasting."""
    return [eq.broadcast(_tensor_args(eq))] * len(eq.node.types)


def same(eq: Equations) -> list[Dims]:
    """The result has the first operand's layout (a second operand only gives dtype or values)."""
    return [eq.of(eq.node.args[0][1])] * len(eq.node.types)


def like(eq: Equations) -> list[Dims]:
    """A new tensor of the first operand's layout."""
    return same(eq)


def overwrite(eq: Equations) -> list[Dims]:
    """The first operand with the second's values, stretched to its shape."""
    target = eq.of(eq.node.args[0][1])
    eq.broadcast([target, eq.arg("src")])
    return [target]


def factory(eq: Equations) -> list[Dims]:
    """A new tensor whose shape is written out; its axes may turn out to be channels."""
    for name in ("size", "shape"):
        if eq.node.arg(name) is not None:
            dims: Dims = [eq.new(s) for s in eq.node.shape]
            eq.states(name, tuple(dims))
            return [dims]
    return [eq.fixed(eq.node.shape)]


def getitem(eq: Equations) -> list[Dims]:
    """One of several results."""
    source = eq.node.arg("source")
    assert isinstance(source, Ref)
    return [eq.values[source.name][eq.integer("index")]]


def linear(eq: Equations) -> list[Dims]:
    """x[-1] = w[1], y[-1] = w[0]."""
    x, w = eq.arg("input"), eq.arg("weight")
    eq.unify(x[-1], w[-1])
    if eq.has("bias"):
        eq.unify(eq.arg("bias")[-1], w[0])
    return [[*x[:-1], w[0]]] if len(w) == 2 else [x[:-1]]


def convolution(eq: Equations) -> list[Dims]:
    """x[1] = Prod(groups, w[1]); w[0] = Prod(groups, o); y[1] = w[0]."""
    x, w = eq.arg("input"), eq.arg("weight")
    channel = len(x) - len(w) + 1
    groups = eq.integer("groups", 1)
    if groups == 1:
        eq.unify(x[channel], w[1])
    else:
        group = eq.new(groups)
        assert isinstance(w[0].size, int)
        eq.unify(x[channel], product((group, w[1])))
        eq.unify(w[0], product((group, eq.new(w[0].size // groups))))
        eq.states("groups", group)
    eq.pin(w[2:], "kernel size")
    if eq.has("bias"):
        eq.unify(eq.arg("bias")[0], w[0])
    spatial = eq.fixed(eq.node.shape[channel + 1 :])
    eq.pin(x[channel + 1 :], "convolved over")
    return [[*x[:channel], w[0], *spatial]]


def transposed_convolution(eq: Equations) -> list[Dims]:
    """x[1] = w[0] = Prod(groups, i); y[1] = Prod(groups, w[1])."""
    x, w = eq.arg("input"), eq.arg("weight")
    channel = len(x) - len(w) + 1
    groups = eq.integer("groups", 1)
    eq.unify(x[channel], w[0])
    out = w[1]
    if groups > 1:
        group = eq.new(groups)
        assert isinstance(w[0].size, int)
        eq.unify(w[0], product((group, eq.new(w[0].size // groups))))
        out = product((group, w[1]))
        eq.states("groups", group)
    eq.pin(w[2:], "kernel size")
    if eq.has("bias"):
        eq.unify(eq.arg("bias")[0], out)
    eq.pin(x[channel + 1 :], "convolved over")
    return [[*x[:channel], out, *eq.fixed(eq.node.shape[channel + 1 :])]]


def _affine(eq: Equations, layout: Layout, names: Sequence[str]) -> None:
    for name in names:
        if eq.has(name):
            eq.unify(eq.arg(name)[0], layout)


def batch_norm(eq: Equations) -> list[Dims]:
    """Weights and statistics have the layout of x[1]."""
    x = eq.arg("input")
    channel = x[1] if len(x) > 1 else x[0]
    _affine(eq, channel, ("weight", "bias", "running_mean", "running_var"))
    for layout in x[2:]:
        eq.span(layout, "batch norm")
    return [x] * len(eq.node.types)


def instance_norm(eq: Equations) -> list[Dims]:
    """As batch norm; statistics per example."""
    return batch_norm(eq)


def group_norm(eq: Equations) -> list[Dims]:
    """x[1] = Prod(groups, c): groups may go, a group's own channels are spanned by the norm."""
    x = eq.arg("input")
    groups = eq.integer("num_groups", 1)
    assert isinstance(x[1].size, int)
    inside: Layout = x[1]
    if groups > 1:
        group, inside = eq.new(groups), eq.new(x[1].size // groups)
        eq.unify(x[1], product((group, inside)))
        eq.states("num_groups", group)
    eq.span(inside, "group norm")
    _affine(eq, x[1], ("weight", "bias"))
    return [x]


def layer_norm(eq: Equations) -> list[Dims]:
    """Weights have the layout of the normalised dimensions, which the norm spans."""
    x = eq.arg("input")
    count = len(eq.ints("normalized_shape"))
    tail = x[len(x) - count :]
    for name in ("weight", "bias"):
        if eq.has(name):
            for a, b in zip(eq.arg(name), tail, strict=True):
                eq.unify(a, b)
    for layout in tail:
        eq.span(layout, "layer norm")
    eq.states("normalized_shape", tuple(tail))
    return [x] * len(eq.node.types)


def softmax(eq: Equations) -> list[Dims]:
    """Spans the dimension it runs over."""
    x = eq.of(eq.node.args[0][1])
    eq.span(x[eq.dim("dim", len(x))], "softmax")
    return [x]


def glu(eq: Equations) -> list[Dims]:
    """The two halves of a dimension gate each other."""
    x = eq.arg("self")
    dim = eq.dim("dim", len(x), -1)
    size = x[dim].size
    assert isinstance(size, int)
    parts = eq.solver.cut(x[dim], size // 2)
    if parts is None:
        eq.pin([x[dim]], "cannot be halved")
        parts = (Fixed(size // 2), Fixed(size // 2))
    else:
        eq.unify(*parts)
    return [[*x[:dim], parts[0], *x[dim + 1 :]]]


def prelu(eq: Equations) -> list[Dims]:
    """One slope per channel, or one for all."""
    x, w = eq.arg("self"), eq.arg("weight")
    if w and w[0].size != 1 and len(x) > 1:
        eq.unify(w[0], x[1])
    return [x]


def embedding(eq: Equations) -> list[Dims]:
    """Y = indices' dimensions + w[1]; rows are addressed by value."""
    w = eq.arg("weight")
    eq.pin([w[0]], "indexed by the input's values")
    return [[*eq.arg("indices"), w[1]]]


def matmul(eq: Equations) -> list[Dims]:
    """a[-1] = b[-2]; leading dimensions broadcast."""
    a, b = (eq.of(v) for _, v in eq.node.args[:2])
    if len(a) == 1 and len(b) == 1:
        eq.unify(a[0], b[0])
        return [[]]
    if len(a) == 1:
        eq.unify(a[0], b[-2])
        return [[*b[:-2], b[-1]]]
    if len(b) == 1:
        eq.unify(a[-1], b[0])
        return [a[:-1]]
    eq.unify(a[-1], b[-2])
    return [[*eq.broadcast([a[:-2], b[:-2]]), a[-2], b[-1]]]


def addmm(eq: Equations) -> list[Dims]:
    """Bias + a @ b."""
    a, b = (eq.of(v) for _, v in eq.node.args[1:3])
    eq.unify(a[-1], b[-2])
    out: Dims = [*eq.broadcast([a[:-2], b[:-2]]), a[-2], b[-1]]
    return [eq.broadcast([eq.arg("self"), out])]


def einsum(eq: Equations) -> list[Dims]:
    """One layout per letter; an ellipsis broadcasts."""
    text = eq.node.arg("equation")
    operands = eq.node.arg("tensors")
    assert isinstance(text, str) and isinstance(operands, tuple)
    left, _, right = text.replace(" ", "").partition("->")
    letters: dict[str, Layout] = {}
    rest: list[Dims] = []
    for part, operand in zip(left.split(","), operands, strict=True):
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
    if "->" not in text:
        counted = sorted(c for c in set(left) - {",", "."} if left.count(c) == 1)
        right = ("..." if "..." in left else "") + "".join(counted)
    for letter in sorted(set(left) - set(right) - {",", "."}):
        if sum(letter in part for part in left.split(",")) == 1:  # a plain sum, without a weight
            eq.span(letters[letter], "sum")
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


def attention(eq: Equations) -> list[Dims]:
    """q[..., L, d] · k[..., S, d], softmax over S, · v[..., S, e] → [..., L, e]."""
    q, k, v = eq.arg("query"), eq.arg("key"), eq.arg("value")
    eq.unify(q[-1], k[-1])
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


def reduction(eq: Equations) -> list[Dims]:
    """Reduced dimensions vanish; where they are channels, all of them are mixed."""
    x = eq.of(eq.node.args[0][1])
    value = eq.node.arg("dim")
    given = value if isinstance(value, tuple) else ((value,) if value is not None else ())
    dims = {d % len(x) for d in given if isinstance(d, int)} or set(range(len(x)))
    for d in dims:
        eq.span(x[d], eq.node.op.split(".")[1])
    keep = eq.node.arg("keepdim") is True
    out: Dims = []
    for d, layout in enumerate(x):
        if d not in dims:
            out.append(layout)
        elif keep:
            out.append(Fixed(1))
    return [out] * len(eq.node.types)


def along(eq: Equations) -> list[Dims]:
    """Runs along a dimension in order (cumsum, flip, roll, sort): that dimension stays whole."""
    x = eq.of(eq.node.args[0][1])
    dims = eq.ints("dims") or eq.ints("dim", (-1,))
    for d in dims:
        eq.pin([x[d % len(x)]], "the order of its positions matters")
    return [_conform(eq, x, i) for i in range(len(eq.node.types))]


def pooling(eq: Equations) -> list[Dims]:
    """Leading dimensions pass; pooled ones are no channels."""
    x = eq.of(eq.node.args[0][1])
    results = []
    for t in eq.node.types:
        out: Dims = []
        trailing = POOLED.get(eq.node.op.split(".")[1], len(x) - 2)
        for index, (layout, size) in enumerate(zip(x, t.shape, strict=True)):
            if index < len(x) - trailing:
                out.append(layout)
            else:
                eq.pin([layout], "pooled over")
                out.append(Fixed(size))
        results.append(out)
    return results


POOLED = {
    f"{kind}{suffix}": rank
    for rank in (1, 2, 3)
    for kind in (
        "max_pool",
        "avg_pool",
        "adaptive_avg_pool",
        "adaptive_max_pool",
        "lp_pool",
        "fractional_max_pool",
        "reflection_pad",
        "replication_pad",
    )
    for suffix in (f"{rank}d", f"{rank}d_with_indices")
}
POOLED |= {
    f"upsample_{kind}": rank
    for kind, rank in (
        ("nearest1d", 1),
        ("nearest2d", 2),
        ("nearest3d", 3),
        ("linear1d", 1),
        ("bilinear2d", 2),
        ("bicubic2d", 2),
        ("trilinear3d", 3),
    )
}
POOLED |= {"_upsample_bilinear2d_aa": 2, "_upsample_bicubic2d_aa": 2, "grid_sampler": 2}


# -- shape --------------------------------------------------------------------------------


def reshape(eq: Equations) -> list[Dims]:
    """Factors of the dimensions, regrouped; the target shape is recomputed after a cut."""
    x = eq.of(eq.node.args[0][1])
    dims = eq.solver.regroup(x, eq.node.shape)
    if dims is None:
        eq.pin(x, "reshaped across its factors")
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
    return [out]


def cat(eq: Equations) -> list[Dims]:
    """The concatenated dimension is the sum of its parts; the others agree."""
    value = eq.node.arg("tensors")
    assert isinstance(value, tuple)
    operands = [eq.of(v) for v in value]
    operands = [o for o in operands if not (len(o) == 1 and o[0].size == 0)]
    dim = eq.dim("dim", len(operands[0]))
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
    return [out]


def stack(eq: Equations) -> list[Dims]:
    """Operands agree; a new dimension counts them."""
    value = eq.node.arg("tensors")
    assert isinstance(value, tuple)
    operands = [eq.of(v) for v in value]
    for other in operands[1:]:
        for a, b in zip(operands[0], other, strict=True):
            eq.unify(a, b)
    out = [eq.resolve(d) for d in operands[0]]
    out.insert(eq.dim("dim", len(out) + 1), Fixed(len(operands)))
    return [out]


def split(eq: Equations) -> list[Dims]:
    """A dimension cut at given sizes, which a cut recomputes."""
    x = eq.arg("self")
    dim = eq.dim("dim", len(x))
    parts = _cut_all(eq, x[dim], [t.shape[dim] for t in eq.node.types])
    if parts is None:
        eq.pin([x[dim]], "split across its factors")
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
    x = eq.arg("self")
    dim = eq.dim("dim", len(x))
    layout = x[dim]
    start, end = eq.node.arg("start", 0), eq.node.arg("end")
    size = layout.size
    if not isinstance(size, int) or not isinstance(start or 0, int) or eq.integer("step", 1) != 1:
        eq.pin([layout], "strided slice")
        return [[*x[:dim], Fixed(eq.node.shape[dim]), *x[dim + 1 :]]]
    first = min(max((start or 0) + (size if (start or 0) < 0 else 0), 0), size)  # type: ignore[operator]  # an int by the check above
    last = size if not isinstance(end, int) else min(end + (size if end < 0 else 0), size)
    parts = _cut_all(eq, layout, [first, last - first, size - last])
    if parts is None:
        eq.pin([layout], "sliced across its factors")
        return [[*x[:dim], Fixed(eq.node.shape[dim]), *x[dim + 1 :]]]
    eq.states("start", parts[0])
    eq.states("end", concatenation(parts[:2]))
    return [[*x[:dim], parts[1], *x[dim + 1 :]]]


def select(eq: Equations) -> list[Dims]:
    """One position of a dimension, which therefore stays whole."""
    x = eq.arg("self")
    dim = eq.dim("dim", len(x))
    eq.pin([x[dim]], "one of its positions is selected")
    return [[*x[:dim], *x[dim + 1 :]]]


def unbind(eq: Equations) -> list[Dims]:
    """Every position of a dimension on its own."""
    x = eq.arg("self")
    dim = eq.dim("dim", len(x))
    eq.pin([x[dim]], "its positions are taken apart")
    return [[*x[:dim], *x[dim + 1 :]] for _ in eq.node.types]


def index(eq: Equations) -> list[Dims]:
    """Leading dimensions addressed by index tensors; the others pass."""
    x = eq.arg("self")
    value = eq.node.arg("indices")
    indices: tuple[Value, ...] = value if isinstance(value, tuple) else ()
    used = [i for i, v in enumerate(indices) if v is not None]
    if not used or used != list(range(used[0], used[-1] + 1)):
        return unknown(eq)
    for i in used:
        eq.pin([x[i]], "indexed by values")
    picked = eq.broadcast([eq.of(indices[i]) for i in used])
    return [_conform(eq, [*x[: used[0]], *picked, *x[used[-1] + 1 :]])]


def index_select(eq: Equations) -> list[Dims]:
    """Positions of one dimension picked by an index tensor."""
    x = eq.arg("self")
    dim = eq.dim("dim", len(x))
    eq.pin([x[dim]], "indexed by values")
    return [[*x[:dim], Fixed(eq.node.shape[dim]), *x[dim + 1 :]]]


def gather(eq: Equations) -> list[Dims]:
    """Positions picked along one dimension; all layouts as the index tensor's."""
    x, where = eq.arg("self"), eq.arg("index")
    dim = eq.dim("dim", len(x))
    eq.pin([x[dim]], "indexed by values")
    for d, (a, b) in enumerate(zip(x, where, strict=True)):
        if d != dim and a.size == b.size:
            eq.unify(a, b)
        elif d != dim:
            eq.pin([a], "gathered in part")
    return [where]


def pad(eq: Equations) -> list[Dims]:
    """Padding adds terms before and after; on channels they are axes like others."""
    x = eq.arg("self")
    amounts = list(eq.ints("pad"))
    if eq.node.arg("mode", "constant") != "constant":  # the new positions are copies of others
        padded = x[len(x) - len(amounts) // 2 :]
        eq.pin(padded, "padded with its own positions")
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
                eq.pin([layout], "cropped")
            out[dim] = Fixed(eq.node.shape[dim])
            sizes += [before, after]
        else:
            left = eq.new(before) if before else Fixed(0)
            right = eq.new(after) if after else Fixed(0)
            out[dim] = concatenation((left, layout, right))
            sizes += [left, right]
    eq.states("pad", tuple(sizes))
    return [out]


def pixel_shuffle(eq: Equations) -> list[Dims]:
    """x[-3] = Prod(c, r, r)."""
    x = eq.arg("self")
    r = eq.integer("upscale_factor", 1)
    assert isinstance(x[-3].size, int)
    channel = eq.new(x[-3].size // (r * r))
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
    assert isinstance(x[1].size, int)
    inside = eq.new(x[1].size // groups)
    eq.unify(x[1], product((Fixed(groups), inside)))
    return [[x[0], product((inside, Fixed(groups))), *x[2:]]]


def triangle(eq: Equations) -> list[Dims]:
    """Upper or lower triangle: rows and columns are compared by position."""
    x = eq.of(eq.node.args[0][1])
    eq.pin(x[-2:], "compared by position")
    return [x]


def outer_index(eq: Equations) -> list[Dims]:
    """Results that are positions or counts: no channel axis, and the operand stays whole."""
    return unknown(eq)


def weight_norm(eq: Equations) -> list[Dims]:
    """W = g · v/‖v‖: the norm spans all dimensions of v but one."""
    v, g = eq.arg("v"), eq.arg("g")
    dim = eq.dim("dim", len(v))
    eq.unify(v[dim], g[dim])
    for d, layout in enumerate(v):
        if d != dim:
            eq.span(layout, "weight norm")
    return [v] + [g] * (len(eq.node.types) - 1)
