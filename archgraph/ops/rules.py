"""Axis equations of ATen operators, by class of operator. Each returns its results' layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from archgraph.graph.ir import Batch, Leaf, Mode, Ref, Value
from archgraph.layout.layouts import Fixed, Layout, divide, fixed_size, product
from archgraph.ops.equations import Dims, Equations
from archgraph.ops.schema import schema

AxisRule = Callable[[Equations], list[Dims]]

# What would free an axis that an operator pins.
PROJECT = "a linear layer or convolution between would free it"

ORDER = "the order of its positions matters"


def _tensor_args(eq: Equations) -> list[Dims]:
    operands = []
    for name, value in eq.node.args:
        if isinstance(value, tuple):
            operands += [eq.of(i) for i in value if isinstance(i, (Ref, Leaf, Mode))]
        elif eq.has(name):
            operands.append(eq.arg(name))
    return operands


def conform(eq: Equations, dims: Dims, index: int = 0) -> Dims:
    """Replace layouts whose size the result's type contradicts (a stretched dimension)."""
    shape = eq.node.types[index].shape
    return [d if d.size == s else Fixed(s) for d, s in zip(dims, shape, strict=True)]


def unknown(eq: Equations) -> list[Dims]:
    """No row: nothing that touches the operator may be cut."""
    for dims in _tensor_args(eq):
        eq.pin(dims, "no rule for this operator", PROJECT)
    return [eq.fixed(t.shape) for t in eq.node.types]


def opaque(eq: Equations, why: str = "the operator is opaque") -> list[Dims]:
    """An operator that mixes axes in ways of its own."""
    for dims in _tensor_args(eq):
        eq.pin(dims, why, PROJECT)
    return [eq.fixed(t.shape) for t in eq.node.types]


def elementwise(eq: Equations) -> list[Dims]:
    """Operands agree up to broadcasting; so do several results."""
    return [eq.broadcast(_tensor_args(eq))] * len(eq.node.types)


def same(eq: Equations) -> list[Dims]:
    """The result has the first operand's layout (a second operand only gives dtype or values)."""
    return [eq.of(eq.node.args[0][1])] * len(eq.node.types)


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
    _contract_weight(eq, w[-1], -1, -1)
    if eq.has("bias"):
        eq.unify(eq.arg("bias")[-1], w[0])
    return [[*x[:-1], w[0]]] if len(w) == 2 else [x[:-1]]


def _contract_weight(eq: Equations, layout: Layout, side: int, channel: int) -> None:
    """A leaf is masked, so the sum is exact; a weight that forward computes need not be zero."""
    operands = [(eq.node.arg("input"), channel), (eq.node.arg("weight"), side)]
    eq.contract(layout, operands, eq.node.op.split(".")[1])


def convolution(eq: Equations) -> list[Dims]:
    """x[1] = Prod(groups, w[1]); w[0] = Prod(groups, o); y[1] = w[0]."""
    x, w = eq.arg("input"), eq.arg("weight")
    channel = len(x) - len(w) + 1
    groups = eq.value("groups", 1)
    if groups == 1:
        eq.unify(x[channel], w[1])
    elif isinstance(groups, Batch):  # each example has a kernel of its own
        eq.unify(x[channel], product((Fixed(groups), w[1])))
        inside = divide(w[0].size, groups)
        eq.unify(w[0], product((Fixed(groups), eq.new(inside or w[0].size))))
    else:
        assert isinstance(groups, int)
        group = eq.new(groups)
        eq.unify(x[channel], product((group, w[1])))
        eq.unify(w[0], product((group, eq.new(fixed_size(w[0]) // groups))))
        eq.states("groups", group)
    eq.pin(w[2:], "kernel size")
    _contract_weight(eq, w[1], 1, channel)
    if eq.has("bias"):
        eq.unify(eq.arg("bias")[0], w[0])
    spatial: Dims = []
    for index, (place, kernel) in enumerate(zip(x[channel + 1 :], w[2:], strict=True)):
        stride, padding = (
            _each(eq, name, index, one) for name, one in (("stride", 1), ("padding", 0))
        )
        if kernel.size == 1 == stride and padding == 0:  # position by position
            spatial.append(place)
        else:
            eq.pin([place], "convolved over")
            spatial.append(Fixed(eq.node.shape[channel + 1 + index]))
    return [[*x[:channel], w[0], *spatial]]


def _each(eq: Equations, name: str, index: int, default: int) -> Value:
    """An argument that is one number for all dimensions, or one for each."""
    value = eq.value(name, default)
    if isinstance(value, tuple):
        return value[index] if index < len(value) else (value[0] if value else default)
    return 0 if value == "valid" else value


def any_convolution(eq: Equations) -> list[Dims]:
    """A convolution that says by a flag whether it is transposed."""
    return (transposed_convolution if eq.value("transposed") is True else convolution)(eq)


def transposed_convolution(eq: Equations) -> list[Dims]:
    """x[1] = w[0] = Prod(groups, i); y[1] = Prod(groups, w[1])."""
    x, w = eq.arg("input"), eq.arg("weight")
    channel = len(x) - len(w) + 1
    groups = eq.integer("groups", 1)
    eq.unify(x[channel], w[0])
    inside, out = w[0], w[1]
    if groups > 1:
        group, inside = eq.new(groups), eq.new(fixed_size(w[0]) // groups)
        eq.unify(w[0], product((group, inside)))
        out = product((group, w[1]))
        eq.states("groups", group)
    eq.pin(w[2:], "kernel size")
    _contract_weight(eq, inside, 0, channel)
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
    statistics = (t.shape for t in eq.node.types[1:])
    return [x, *([channel] if s == (channel.size,) else eq.fixed(s) for s in statistics)]


def group_norm(eq: Equations) -> list[Dims]:
    """x[1] = Prod(groups, c): groups may go, a group's own channels are spanned by the norm."""
    x = eq.arg("input")
    groups = eq.integer("num_groups", 1)
    inside: Layout = x[1]
    if groups > 1:
        group, inside = eq.new(groups), eq.new(fixed_size(x[1]) // groups)
        eq.unify(x[1], product((group, inside)))
        eq.states("num_groups", group)
    else:
        eq.states("num_groups", groups)
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
    source = eq.node.args[0][1]
    x = eq.of(source)
    eq.span(x[eq.dim("dim", len(x))], "softmax")
    if isinstance(source, Ref) and source.name in eq.scores:
        over, shared = eq.scores[source.name]
        heads = eq.axes_in(shared)
        if heads:  # q · kᵀ per head
            for layout in over:
                eq.role(layout, "head_dim")
            for var in heads:
                eq.role(var, "heads")
            eq.attends.add(eq.node.name)
    return [x]


def glu(eq: Equations) -> list[Dims]:
    """The two halves of a dimension gate each other."""
    x = eq.arg("self")
    dim = eq.dim("dim", len(x), -1)
    half = fixed_size(x[dim]) // 2
    parts = eq.solver.cut(x[dim], half)
    if parts is None:
        eq.pin([x[dim]], "cannot be halved", PROJECT)
        parts = (Fixed(half), Fixed(half))
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


def reduction(eq: Equations) -> list[Dims]:
    """Reduced dimensions vanish; where they are channels, all of them are mixed."""
    return _reduce(eq, exact=False)


def total(eq: Equations) -> list[Dims]:
    """A reduction to which zeros add nothing: exact along axes whose masked positions are zero."""
    order = eq.node.arg("p", eq.node.arg("ord", 2))  # of a norm
    return _reduce(eq, exact=isinstance(order, (int, float)) and order > 0)


def counted(eq: Equations) -> list[Dims]:
    """How many, or whether any: exact for truth values, not for numbers next to zero."""
    floating = eq.operand_dtype(eq.node.args[0][1]).startswith(("float", "bfloat"))
    return _reduce(eq, exact=not floating)


def _reduce(eq: Equations, exact: bool) -> list[Dims]:
    x = eq.of(eq.node.args[0][1])
    value = eq.node.arg("dim", eq.node.arg("axis"))
    given = value if isinstance(value, tuple) else ((value,) if value is not None else ())
    dims = {d % len(x) for d in given if isinstance(d, int)} or set(range(len(x)))
    for d in dims:
        if exact:
            eq.total(x[d], [eq.node.args[0][1]], eq.node.op.split(".")[1])
        else:
            eq.span(x[d], eq.node.op.split(".")[1])
    out: Dims = []
    for d, layout in enumerate(x):
        if d not in dims:
            out.append(layout)
        elif len(eq.node.shape) == len(x):
            out.append(Fixed(1))
    return [out] * len(eq.node.types)


def loss(eq: Equations) -> list[Dims]:
    """Two operands compared position by position, then all of them, their mean or their sum."""
    both = eq.broadcast(_tensor_args(eq))
    if len(eq.node.shape) == len(both) and eq.integer("reduction", 1) == 0:
        return [both]
    for layout in both:
        eq.span(layout, eq.node.op.split(".")[1])
    return [[]]


def along(eq: Equations) -> list[Dims]:
    """Runs along a dimension in order (cumsum, flip, roll, sort): that dimension stays whole."""
    x = eq.of(eq.node.args[0][1])
    dims = eq.ints("dims") or eq.ints("dim", (-1,))
    if "dims" in schema(eq.node.op).by_name and not eq.ints("dims"):  # the flattened tensor
        dims = tuple(range(len(x)))
    for d in dims:
        eq.pin([x[d % len(x)]], ORDER, PROJECT)
    return [conform(eq, x, i) for i in range(len(eq.node.types))]


def transform(eq: Equations) -> list[Dims]:
    """A Fourier transform along some dimensions, which stay whole; each of the others passes."""
    x = eq.of(eq.node.args[0][1])
    dims, sizes = eq.ints("dim"), eq.ints("s")
    if not dims:  # the last ones, as many as there are sizes; without sizes all
        dims = tuple(range(len(x) - len(sizes) if sizes else 0, len(x)))
    out = list(x)
    for d in dims:
        eq.pin([x[d % len(x)]], "transformed as a whole", PROJECT)
        out[d % len(x)] = Fixed(eq.node.shape[d % len(x)])
    return [out]


def renorm(eq: Equations) -> list[Dims]:
    """Every position of one dimension is scaled by its own norm over the others."""
    x = eq.arg("self")
    for index, layout in enumerate(x):
        if index != eq.dim("dim", len(x)):
            eq.total(layout, [eq.node.arg("self")], "renorm")
    return [x]


def along_first(eq: Equations) -> list[Dims]:
    """Runs along the first dimension."""
    x = eq.of(eq.node.args[0][1])
    eq.pin(x[:1], ORDER, PROJECT)
    return [x]


def along_reduced(eq: Equations) -> list[Dims]:
    """Runs along a dimension in order and keeps one position of it (kthvalue, mode, trapezoid)."""
    x = eq.of(eq.node.args[0][1])
    d = eq.dim("dim", len(x), -1)
    eq.pin([x[d]], ORDER, PROJECT)
    keep = len(eq.node.shape) == len(x)
    return [[*x[:d], *([Fixed(1)] if keep else []), *x[d + 1 :]]] * len(eq.node.types)


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


_PADS = ("reflection_pad", "replication_pad")
POOLED = {
    f"{kind}{rank}d{suffix}": rank
    for rank in (1, 2, 3)
    for kind in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool", *_PADS)
    for suffix in (("", "_with_indices") if kind == "max_pool" else ("",))
}
POOLED |= {f"upsample_nearest{rank}d": rank for rank in (1, 2, 3)}
POOLED |= {"upsample_linear1d": 1, "upsample_trilinear3d": 3}
POOLED |= {f"upsample_{kind}2d": 2 for kind in ("bilinear", "bicubic")}
POOLED |= {f"_upsample_{kind}2d_aa": 2 for kind in ("bilinear", "bicubic")}


def unpooling(eq: Equations) -> list[Dims]:
    """Values put back where a pooling took them: both operands share the leading dimensions."""
    x, where = eq.arg("self"), eq.arg("indices")
    trailing = len(eq.ints("output_size")) or 2
    for a, b in zip(x[:-trailing], where[:-trailing], strict=True):
        eq.unify(a, b)
    eq.pin([*x[-trailing:], *where[-trailing:]], "pooled over")
    return [[*x[:-trailing], *eq.fixed(eq.node.shape[-trailing:])]]


def grid_sample(eq: Equations) -> list[Dims]:
    """Channels pass; pixels and the grid's coordinates stay whole."""
    x, grid = eq.arg("input"), eq.arg("grid")
    eq.pin([*x[2:], *grid[1:]], "sampled at coordinates")
    return [[*x[:2], *eq.fixed(eq.node.shape[2:])]]


def weight_norm(eq: Equations) -> list[Dims]:
    """W = g · v/‖v‖ along one dimension; masked positions of the others add nothing to ‖v‖."""
    v, g = eq.arg("v"), eq.arg("g")
    dim = eq.dim("dim", len(v))
    eq.unify(v[dim], g[dim])
    for d, layout in enumerate(v):
        if d != dim:
            eq.total(layout, [eq.node.arg("v")], "weight norm")
    return [v] + [g] * (len(eq.node.types) - 1)


def one_hot(eq: Equations) -> list[Dims]:
    """Classes are numbers, no channels."""
    return [[*eq.arg("self"), Fixed(eq.node.shape[-1])]]


def class_loss(eq: Equations) -> list[Dims]:
    """Scores per class at x[1], addressed by the target's values."""
    x = eq.arg("self")
    classes = x[1] if len(x) > 1 else x[0]
    eq.pin([classes], "indexed by values")
    rest = [*x[:1], *x[2:]] if len(x) > 1 else []
    if eq.has("weight"):
        eq.pin(eq.arg("weight"), "indexed by values")
    if eq.integer("reduction", 1) == 0 and len(eq.node.shape) == len(rest):
        out: Dims = rest
    else:
        out = []
        for layout in rest:
            eq.span(layout, "cross entropy")
    return [out, *(eq.fixed(t.shape) for t in eq.node.types[1:])]


def embedding_bag(eq: Equations) -> list[Dims]:
    """Rows of a table summed or averaged per bag."""
    w = eq.arg("weight")
    eq.pin([w[0]], "indexed by the input's values")
    for name in ("indices", "offsets", "per_sample_weights"):
        if eq.has(name):
            eq.pin(eq.arg(name), "bags are lists of rows")
    return [[*eq.fixed(eq.node.shape[:-1]), w[1]], *(eq.fixed(t.shape) for t in eq.node.types[1:])]


def cross(eq: Equations) -> list[Dims]:
    """Vectors of three numbers along one dimension; the others agree."""
    both = eq.broadcast(_tensor_args(eq))
    value = eq.node.arg("dim", -1 if eq.node.op.startswith("aten.linalg") else None)
    dims = [value] if isinstance(value, int) else range(len(both))
    eq.pin([both[d] for d in dims], "its positions are taken apart")
    return [both]


def layer_norm_statistics(eq: Equations) -> list[Dims]:
    """Layer norm with its means and deviations."""
    (x, *_) = layer_norm(eq)
    return [conform(eq, x, i) for i in range(len(eq.node.types))]
