"""Result types in closed form, for the common case of the operators that most networks consist of.

The first call of many meta kernels imports PyTorch's compiler and a computer algebra system, which
takes longer than everything else that is done to a small network. Each function gives the type
that the meta kernel would give, or None in any case that it is not certain about: then the kernel
decides, and says what is wrong. Arguments are patterns (:func:`archgraph.ops.infer.pattern`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from archgraph.graph.ir import Size, TensorType

Args = Mapping[str, Any]
SymbolicShape = tuple[Size, ...]
_REAL = frozenset({"float32", "float64", "float16", "bfloat16"})
_MODES = ("none", "tanh")  # of gelu


def _tensor(value: Any) -> TensorType | None:
    """A tensor of real numbers."""
    return value if isinstance(value, TensorType) and value.dtype in _REAL else None


def _plain(value: Any) -> Any:
    """A plain argument (:class:`archgraph.ops.infer.Scalar`); Ellipsis for all others."""
    is_scalar = isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], type)
    return value[1] if is_scalar else ...


def _number(args: Args, name: str, default: Any) -> Any:
    return _plain(args[name]) if name in args else default


def _ints(args: Args, name: str, count: int, default: int) -> tuple[int, ...] | None:
    """One integer for each of some dimensions, from a list of one for all or one for each."""
    value = args.get(name)
    if value is None:
        return (default,) * count
    values = [_plain(v) for v in value] if type(value) is tuple else []
    if not all(type(v) is int for v in values) or len(values) not in (1, count):
        return None
    return tuple(values * count if len(values) == 1 else values)


def _leaf(args: Args, name: str, shape: SymbolicShape, dtype: str) -> bool:
    """Whether an optional tensor is absent, or has the shape and element type."""
    value = args.get(name)
    return value is None or _plain(value) is None or value == TensorType(shape, dtype)


def broadcast(shapes: Iterable[SymbolicShape]) -> SymbolicShape | None:
    """Shape of several together; None where they do not fit.

    >>> broadcast([(2, 1, 3), (4, 1)]), broadcast([(2,), (3,)])
    ((2, 4, 3), None)
    """
    result: list[Size] = []  # last dimension first
    for shape in shapes:
        result += [1] * (len(shape) - len(result))
        for i, size in enumerate(reversed(shape)):
            if result[i] == 1:
                result[i] = size
            elif size not in (1, result[i]):
                return None
    return tuple(reversed(result))


def arithmetic(args: Args) -> TensorType | None:
    """Sums and products: as :func:`elementwise`; integers stay integers."""
    integers = all(v.dtype == "int64" for v in args.values() if isinstance(v, TensorType))
    plain = [_plain(v) for v in args.values() if not isinstance(v, TensorType)]
    if not integers or not all(type(v) is int for v in plain):
        return elementwise(args)
    shape = broadcast(v.shape for v in args.values() if isinstance(v, TensorType))
    return TensorType(shape, "int64") if shape is not None else None


def elementwise(args: Args) -> TensorType | None:
    """Real tensors of one element type, and numbers."""
    dtype = ""
    shapes = []
    for value in args.values():
        if isinstance(value, TensorType):
            if value.dtype not in _REAL or dtype not in ("", value.dtype):
                return None
            dtype = value.dtype
            shapes.append(value.shape)
        else:
            plain = _plain(value)
            if not (isinstance(plain, (bool, int, float)) or plain in _MODES):
                return None
    shape = broadcast(shapes)
    return TensorType(shape, dtype) if dtype and shape is not None else None


def dropout(args: Args) -> TensorType | None:
    """The input's type."""
    rate = _number(args, "p", None)
    return _tensor(args.get("input")) if isinstance(rate, float) and 0 <= rate <= 1 else None


def linear(args: Args) -> TensorType | None:
    """[…, in] and [out, in] give […, out]."""
    x, w = _tensor(args.get("input")), _tensor(args.get("weight"))
    if x is None or w is None or x.dtype != w.dtype or len(w.shape) != 2 or not x.shape:
        return None
    if x.shape[-1] != w.shape[1] or not _leaf(args, "bias", w.shape[:1], x.dtype):
        return None
    return TensorType((*x.shape[:-1], w.shape[0]), x.dtype)


def convolution(args: Args) -> TensorType | None:
    """[n, in, …] and [out, in / groups, …] give [n, out, …]."""
    x, w = _tensor(args.get("input")), _tensor(args.get("weight"))
    if x is None or w is None or x.dtype != w.dtype or len(x.shape) != len(w.shape):
        return None
    rank = len(x.shape) - 2
    options = [
        _ints(args, name, rank, default)
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
    ]
    groups = _number(args, "groups", 1)
    sizes = (*x.shape[1:], *w.shape)
    if None in options or type(groups) is not int or groups < 1 or rank < 1:
        return None
    if not all(isinstance(s, int) and s > 0 for s in sizes):
        return None
    if x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:  # type: ignore[operator]  # plain sizes
        return None
    if not _leaf(args, "bias", w.shape[:1], x.dtype):
        return None
    spatial = _slid(x.shape[2:], w.shape[2:], *options)  # type: ignore[arg-type]  # plain sizes
    return TensorType((x.shape[0], w.shape[0], *spatial), x.dtype) if spatial else None


def _slid(
    sizes: Sequence[int],
    kernels: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[int],
    dilations: Sequence[int],
    ceil: bool = False,
) -> SymbolicShape | None:
    """How often a window fits into each dimension; None where it does not."""
    result = []
    for n, k, s, p, d in zip(sizes, kernels, strides, paddings, dilations, strict=True):
        if min(k, s, d) < 1 or p < 0:
            return None
        room = n + 2 * p - d * (k - 1) - 1
        count = (room + (s - 1 if ceil else 0)) // s + 1
        if ceil and (count - 1) * s >= n + p:  # the last window starts inside
            count -= 1
        if room < 0 or count < 1:
            return None
        result.append(count)
    return tuple(result)


def pooling(rank: int) -> Callable[[Args], TensorType | None]:
    """[n, c, …]: windows of a size slide over the last dimensions."""

    def rule(args: Args) -> TensorType | None:
        x = _tensor(args.get("self"))
        if x is None or len(x.shape) != rank + 2 or not all(type(s) is int for s in x.shape[1:]):
            return None
        kernel = _ints(args, "kernel_size", rank, 0)
        ceil = _number(args, "ceil_mode", False)
        divisor = _number(args, "divisor_override", None)
        if kernel is None or not isinstance(ceil, bool) or divisor is not None:
            return None
        strides = kernel if args.get("stride") == () else _ints(args, "stride", rank, 0)
        if "stride" not in args:
            strides = kernel
        padding, dilation = _ints(args, "padding", rank, 0), _ints(args, "dilation", rank, 1)
        if strides is None or padding is None or dilation is None or 0 in x.shape:
            return None
        if any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
            return None
        sizes: Any = x.shape[2:]
        spatial = _slid(sizes, kernel, strides, padding, dilation, ceil)
        return TensorType((*x.shape[:2], *spatial), x.dtype) if spatial else None

    return rule


def adaptive_pooling(args: Args) -> TensorType | None:
    """[n, c, h, w] to a given size."""
    x = _tensor(args.get("self"))
    size = _ints(args, "output_size", 2, -1)
    if x is None or size is None or len(x.shape) != 4 or min(size) < 1 or len(args) != 2:
        return None
    if not all(type(s) is int and s > 0 for s in x.shape[1:]):
        return None
    return TensorType((*x.shape[:2], *size), x.dtype)


def batch_norm(args: Args) -> TensorType | None:
    """The input's type; weights and statistics are as long as it has channels."""
    x = _tensor(args.get("input"))
    if x is None or len(x.shape) < 2:
        return None
    names = ("weight", "bias", "running_mean", "running_var")
    if not all(_leaf(args, name, x.shape[1:2], x.dtype) for name in names):
        return None
    statistics = [isinstance(args.get(name), TensorType) for name in names[2:]]
    training = _number(args, "training", None)
    numbers = (_number(args, "momentum", None), _number(args, "eps", None))
    if not all(isinstance(n, float) for n in numbers) or type(training) is not bool:
        return None
    if not (all(statistics) or (training and not any(statistics))):
        return None
    if not all(type(s) is int and s > 0 for s in x.shape[1:]):
        return None
    single = all(size == 1 for size in (x.shape[0], *x.shape[2:]))  # no statistics of one number
    return None if single else x


def layer_norm(args: Args) -> TensorType | None:
    """The input's type; weights have the shape of its last dimensions."""
    x = _tensor(args.get("input"))
    given = args.get("normalized_shape")
    if x is None or type(given) is not tuple or not given:
        return None
    shape = tuple(map(_plain, given))
    if x.shape[len(x.shape) - len(shape) :] != shape or len(shape) > len(x.shape):
        return None
    if not all(type(s) is int and s > 0 for s in shape):
        return None
    return x if all(_leaf(args, name, shape, x.dtype) for name in ("weight", "bias")) else None


def embedding(args: Args) -> TensorType | None:
    """[rows, width] and indices […] give […, width]."""
    table, indices = _tensor(args.get("weight")), args.get("indices")
    if table is None or not isinstance(indices, TensorType) or len(table.shape) != 2:
        return None
    if indices.dtype not in ("int64", "int32") or not set(args) <= {
        "weight",
        "indices",
        "padding_idx",
    }:
        return None
    return TensorType((*indices.shape, table.shape[1]), table.dtype)


def mean(args: Args) -> TensorType | None:
    """Some dimensions vanish, or have the size one."""
    x, dims = _tensor(args.get("self")), args.get("dim")
    keep = _number(args, "keepdim", False)
    if x is None or type(dims) is not tuple or not dims or not isinstance(keep, bool):
        return None
    rank = len(x.shape)
    places = [_plain(d) for d in dims]
    if not all(type(d) is int and -rank <= d < rank for d in places) or "dtype" in args:
        return None
    gone = {d % rank for d in places}
    if len(gone) != len(places):
        return None
    shape = [1 if i in gone else s for i, s in enumerate(x.shape) if keep or i not in gone]
    return TensorType(tuple(shape), x.dtype)


def cat(args: Args) -> TensorType | None:
    """Shapes that agree but for one dimension, which is added up."""
    parts, dim = args.get("tensors"), _number(args, "dim", 0)
    if type(parts) is not tuple or not parts or type(dim) is not int:
        return None
    tensors = [t for t in map(_tensor, parts) if t is not None]
    if len(tensors) != len(parts) or len({(t.dtype, len(t.shape)) for t in tensors}) != 1:
        return None
    rank = len(tensors[0].shape)
    if rank < 2 or not -rank <= dim < rank:
        return None
    dim %= rank
    sizes = [t.shape[dim] for t in tensors]
    if len({t.shape[:dim] + t.shape[dim + 1 :] for t in tensors}) != 1:
        return None
    if not all(type(s) is int for s in sizes):
        return None
    total: Any = sum(sizes)
    first = tensors[0]
    return TensorType((*first.shape[:dim], total, *first.shape[dim + 1 :]), first.dtype)


def matmul(args: Args) -> TensorType | None:
    """[…, a, b] and […, b, c] give […, a, c]."""
    a, b = _tensor(args.get("self")), _tensor(args.get("other"))
    if a is None or b is None or a.dtype != b.dtype or min(len(a.shape), len(b.shape)) < 2:
        return None
    lead = broadcast([a.shape[:-2], b.shape[:-2]])
    if lead is None or a.shape[-1] != b.shape[-2]:
        return None
    return TensorType((*lead, a.shape[-2], b.shape[-1]), a.dtype)


def attention(args: Args) -> TensorType | None:
    """[n, heads, a, d], [n, heads, b, d] and [n, heads, b, e] give [n, heads, a, e]."""
    q, k, v = (_tensor(args.get(name)) for name in ("query", "key", "value"))
    if q is None or k is None or v is None or len({q.dtype, k.dtype, v.dtype}) != 1:
        return None
    if not len(q.shape) == len(k.shape) == len(v.shape) == 4 or "enable_gqa" in args:
        return None
    if len({q.shape[:2], k.shape[:2], v.shape[:2]}) != 1:
        return None
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        return None
    rate = _number(args, "dropout_p", 0.0)
    mask = args.get("attn_mask")
    if mask is not None and _plain(mask) is not None:
        scores = (*q.shape[:3], k.shape[-2])
        if not isinstance(mask, TensorType) or mask.dtype not in ("bool", q.dtype):
            return None
        if len(mask.shape) > 4 or broadcast([scores, mask.shape]) != scores or "is_causal" in args:
            return None
    if not isinstance(rate, float) or not 0 <= rate < 1:
        return None
    return TensorType((*q.shape[:3], v.shape[-1]), q.dtype)
