"""Result types in closed form, for the common case of the operators that most networks consist of.

The first call of many meta kernels imports PyTorch's compiler and a computer algebra system, which
takes longer than everything else that is done to a small network. Each function gives the type
that the meta kernel would give, or raises :class:`Uncertain`: then the kernel decides, and says
what is wrong. Arguments are patterns (:func:`archgraph.ops.infer.pattern`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from archgraph.graph.ir import Size, TensorType

Args: TypeAlias = Mapping[str, Any]
SymbolicShape = tuple[Size, ...]
_REAL = frozenset({"float32", "float64", "float16", "bfloat16"})
_MODES = ("none", "tanh")  # of gelu


class Scalar(NamedTuple):
    """A plain argument with its class, so that equal numbers of other classes differ."""

    kind: type
    value: Any


class Uncertain(Exception):
    """No closed form covers this case: the kernel has to decide."""


def _certain(*facts: object) -> None:
    if not all(facts):
        raise Uncertain


def _real(*values: Any) -> list[TensorType]:
    """Tensors of real numbers, of one element type."""
    tensors = [v for v in values if isinstance(v, TensorType) and v.dtype in _REAL]
    _certain(len(tensors) == len(values), len({t.dtype for t in tensors}) == 1)
    return tensors


def _plain(value: Any) -> Any:
    """A plain argument; Ellipsis for all others."""
    return value.value if isinstance(value, Scalar) else ...


def _number(args: Args, name: str, default: Any, kind: type) -> Any:
    value = _plain(args[name]) if name in args else default
    _certain(type(value) is kind)
    return value


def _ints(args: Args, name: str, count: int, default: int) -> tuple[int, ...]:
    """One integer for each of some dimensions, from a list of one for all or one for each."""
    if name not in args:
        return (default,) * count
    values = [_plain(v) for v in args[name]] if type(args[name]) is tuple else []
    _certain(len(values) in (1, count), *(type(v) is int for v in values))
    return tuple(values * count if len(values) == 1 else values)


def _optional(args: Args, names: Iterable[str], shape: SymbolicShape, dtype: str) -> None:
    """Tensors that are absent, or have the shape and element type."""
    for value in map(args.get, names):
        _certain(value is None or _plain(value) is None or value == TensorType(shape, dtype))


def _positive(sizes: Sequence[Size]) -> list[int]:
    """Sizes that are numbers, and not zero."""
    plain = [s for s in sizes if type(s) is int and s > 0]
    _certain(len(plain) == len(sizes))
    return plain


def _broadcast(shapes: Iterable[SymbolicShape]) -> SymbolicShape:
    """Shape of several together."""
    result: list[Size] = []  # last dimension first
    for shape in shapes:
        result += [1] * (len(shape) - len(result))
        for i, size in enumerate(reversed(shape)):
            _certain(size in (1, result[i]) or result[i] == 1)
            result[i] = size if result[i] == 1 else result[i]
    return tuple(reversed(result))


def arithmetic(args: Args) -> TensorType:
    """Sums and products: as :func:`elementwise`; integers stay integers."""
    tensors = [v for v in args.values() if isinstance(v, TensorType)]
    plain = [_plain(v) for v in args.values() if not isinstance(v, TensorType)]
    if all(t.dtype == "int64" for t in tensors) and all(type(v) is int for v in plain):
        return TensorType(_broadcast(t.shape for t in tensors), "int64")
    return elementwise(args)


def elementwise(args: Args) -> TensorType:
    """Real tensors of one element type, and numbers."""
    tensors = _real(*(v for v in args.values() if isinstance(v, TensorType)))
    for value in args.values():
        plain = _plain(value)
        number = isinstance(plain, (bool, int, float)) or plain in _MODES
        _certain(isinstance(value, TensorType) or number)
    return TensorType(_broadcast(t.shape for t in tensors), tensors[0].dtype)


def dropout(args: Args) -> TensorType:
    """The input's type."""
    _certain(0 <= _number(args, "p", None, float) <= 1)
    return _real(args.get("input"))[0]


def batch_norm(args: Args) -> TensorType:
    """The input's type; weights and statistics are as long as it has channels."""
    (x,) = _real(args.get("input"))
    _certain(len(x.shape) >= 2)
    _positive(x.shape[1:])
    names = ("weight", "bias", "running_mean", "running_var")
    _optional(args, names, x.shape[1:2], x.dtype)
    statistics = [isinstance(args.get(name), TensorType) for name in names[2:]]
    training = _number(args, "training", None, bool)
    for name in ("momentum", "eps"):
        _number(args, name, None, float)
    _certain(all(statistics) or (training and not any(statistics)))
    _certain(any(size != 1 for size in (x.shape[0], *x.shape[2:])))  # no statistics of one number
    return x


def layer_norm(args: Args) -> TensorType:
    """The input's type; weights have the shape of its last dimensions."""
    (x,) = _real(args.get("input"))
    stated = args.get("normalized_shape")
    _certain(type(stated) is tuple, stated)
    shape = tuple(map(_plain, stated or ()))
    _certain(len(shape) <= len(x.shape), x.shape[len(x.shape) - len(shape) :] == shape)
    _positive(shape)
    _optional(args, ("weight", "bias"), shape, x.dtype)
    return x


def linear(args: Args) -> TensorType:
    """[…, in] and [out, in] give […, out]."""
    x, w = _real(args.get("input"), args.get("weight"))
    _certain(len(w.shape) == 2, x.shape)
    _certain(x.shape[-1] == w.shape[1])
    _optional(args, ("bias",), w.shape[:1], x.dtype)
    return TensorType((*x.shape[:-1], w.shape[0]), x.dtype)


def matmul(args: Args) -> TensorType:
    """[…, a, b] and […, b, c] give […, a, c]."""
    a, b = _real(args.get("self"), args.get("other"))
    _certain(min(len(a.shape), len(b.shape)) >= 2)
    _certain(a.shape[-1] == b.shape[-2])
    return TensorType(
        (*_broadcast([a.shape[:-2], b.shape[:-2]]), a.shape[-2], b.shape[-1]), a.dtype
    )


def attention(args: Args) -> TensorType:
    """[n, heads, a, d], [n, heads, b, d] and [n, heads, b, e] give [n, heads, a, e]."""
    q, k, v = _real(*map(args.get, ("query", "key", "value")))
    _certain(len(q.shape) == len(k.shape) == len(v.shape) == 4, "enable_gqa" not in args)
    _certain(q.shape[:2] == k.shape[:2] == v.shape[:2])
    _certain(q.shape[-1] == k.shape[-1], k.shape[-2] == v.shape[-2])
    _certain(0 <= _number(args, "dropout_p", 0.0, float) < 1)
    mask = args.get("attn_mask")
    if isinstance(mask, TensorType):
        scores = (*q.shape[:3], k.shape[-2])
        _certain(mask.dtype in ("bool", q.dtype), len(mask.shape) <= 4, "is_causal" not in args)
        _certain(_broadcast([scores, mask.shape]) == scores)
    else:
        _certain(mask is None or _plain(mask) is None)
    return TensorType((*q.shape[:3], v.shape[-1]), q.dtype)


def _slid(
    sizes: Sequence[int],
    kernels: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[int],
    dilations: Sequence[int],
    ceil: bool = False,
) -> list[int]:
    """How often a window fits into each dimension."""
    result = []
    for n, k, s, p, d in zip(sizes, kernels, strides, paddings, dilations, strict=True):
        _certain(min(k, s, d) >= 1, p >= 0)
        room = n + 2 * p - d * (k - 1) - 1
        count = (room + (s - 1 if ceil else 0)) // s + 1
        if ceil and (count - 1) * s >= n + p:  # the last window starts inside
            count -= 1
        _certain(room >= 0, count >= 1)
        result.append(count)
    return result


def convolution(args: Args) -> TensorType:
    """[n, in, …] and [out, in / groups, …] give [n, out, …]."""
    x, w = _real(args.get("input"), args.get("weight"))
    rank = len(x.shape) - 2
    _certain(len(x.shape) == len(w.shape), rank >= 1)
    groups = _number(args, "groups", 1, int)
    (inside, *sizes), (out, each, *kernel) = _positive(x.shape[1:]), _positive(w.shape)
    _certain(groups >= 1)
    _certain(inside == each * groups, out % groups == 0)
    _optional(args, ("bias",), (out,), x.dtype)
    options = (("stride", 1), ("padding", 0), ("dilation", 1))
    stride, padding, dilation = (_ints(args, name, rank, one) for name, one in options)
    spatial = _slid(sizes, kernel, stride, padding, dilation)
    return TensorType((x.shape[0], out, *spatial), x.dtype)


def pooling(rank: int) -> Callable[[Args], TensorType]:
    """[n, c, …]: windows of a size slide over the last dimensions."""

    def rule(args: Args) -> TensorType:
        (x,) = _real(args.get("self"))
        _certain(len(x.shape) == rank + 2, 0 not in x.shape)
        _certain(_plain(args.get("divisor_override", Scalar(type(None), None))) is None)
        _, *sizes = _positive(x.shape[1:])
        kernel = _ints(args, "kernel_size", rank, 0)
        strides = kernel if not args.get("stride") else _ints(args, "stride", rank, 0)
        padding, dilation = _ints(args, "padding", rank, 0), _ints(args, "dilation", rank, 1)
        _certain(*(2 * p <= k for p, k in zip(padding, kernel, strict=True)))
        ceil = _number(args, "ceil_mode", False, bool)
        spatial = _slid(sizes, kernel, strides, padding, dilation, ceil)
        return TensorType((*x.shape[:2], *spatial), x.dtype)

    return rule


def adaptive_pooling(args: Args) -> TensorType:
    """[n, c, h, w] to a given size."""
    (x,) = _real(args.get("self"))
    size = _ints(args, "output_size", 2, -1)
    _certain(len(x.shape) == 4, min(size) >= 1, len(args) == 2)
    _positive(x.shape[1:])
    return TensorType((*x.shape[:2], *size), x.dtype)


def embedding(args: Args) -> TensorType:
    """[rows, width] and indices […] give […, width]."""
    (table,) = _real(args.get("weight"))
    indices = args.get("indices")
    _certain(len(table.shape) == 2, set(args) <= {"weight", "indices", "padding_idx"})
    if not isinstance(indices, TensorType) or indices.dtype not in ("int64", "int32"):
        raise Uncertain
    return TensorType((*indices.shape, table.shape[1]), table.dtype)


def mean(args: Args) -> TensorType:
    """Some dimensions vanish, or have the size one."""
    (x,) = _real(args.get("self"))
    dims, keep = args.get("dim"), _number(args, "keepdim", False, bool)
    _certain(type(dims) is tuple, dims, "dtype" not in args)
    rank, places = len(x.shape), [_plain(d) for d in dims or ()]
    _certain(*(type(d) is int and -rank <= d < rank for d in places))
    gone = {d % rank for d in places}
    _certain(len(gone) == len(places))
    shape = [1 if i in gone else s for i, s in enumerate(x.shape) if keep or i not in gone]
    return TensorType(tuple(shape), x.dtype)


def cat(args: Args) -> TensorType:
    """Shapes that agree but for one dimension, which is added up."""
    parts, dim = args.get("tensors"), _number(args, "dim", 0, int)
    _certain(type(parts) is tuple, parts)
    tensors = _real(*(parts or ()))
    rank = len(tensors[0].shape)
    _certain(rank >= 2, -rank <= dim < rank, *(len(t.shape) == rank for t in tensors))
    dim %= rank
    _certain(len({t.shape[:dim] + t.shape[dim + 1 :] for t in tensors}) == 1)
    sizes = [t.shape[dim] for t in tensors if type(t.shape[dim]) is int]
    _certain(len(sizes) == len(tensors))
    first = tensors[0]
    total: Any = sum(sizes)
    return TensorType((*first.shape[:dim], total, *first.shape[dim + 1 :]), first.dtype)


def recurrent(gates: int) -> Callable[[Args], tuple[TensorType, ...]]:
    """One layer over a sequence in one direction: what it gives at each step, its last states."""

    def rule(args: Args) -> tuple[TensorType, ...]:
        states = args.get("hx")
        states = states if type(states) is tuple else (states,)
        (x, *states) = _real(args.get("input"), *states)
        first, biased = (_number(args, name, None, bool) for name in ("batch_first", "has_biases"))
        one_way = not _number(args, "bidirectional", None, bool)
        _certain(one_way, _number(args, "num_layers", None, int) == 1, len(x.shape) == 3)
        batch, inside = x.shape[0 if first else 1], x.shape[2]
        hidden, units = _positive((states[0].shape[-1], states[-1].shape[-1]))
        _certain(*(s.shape[:-1] == (1, batch) for s in states), len(states) == 1 + (gates == 4))
        rows = gates * units
        shapes: list[SymbolicShape] = [(rows, inside), (rows, hidden), *[(rows,)] * (2 * biased)]
        shapes += [(hidden, units)] if hidden != units else []
        params = args.get("params")
        _certain(type(params) is tuple)
        weights = _real(x, *(params or ()))[1:]
        _certain([w.shape for w in weights] == shapes)
        return (TensorType((*x.shape[:2], hidden), x.dtype), *states)

    return rule
