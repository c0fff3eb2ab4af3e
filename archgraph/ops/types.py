"""Formulas for the result types of frequent operators in common cases.

The first call of many meta kernels imports PyTorch's compiler and a computer algebra system. For a
small network, this takes longer than all other work. Each rule returns the type that the meta
kernel would return, or raises :class:`Uncertain`. In this case the kernel computes the type and
reports errors. Arguments are patterns (:func:`archgraph.ops.infer.pattern`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from archgraph.graph.ir import Size, TensorType

Args: TypeAlias = Mapping[str, object]
ResultType: TypeAlias = TensorType | tuple[TensorType, ...]
SymbolicShape: TypeAlias = tuple[Size, ...]
_REAL = frozenset({"float32", "float64", "float16", "bfloat16"})


class Scalar(NamedTuple):
    """An argument that is not a tensor, with its class, so that 1 and 1.0 differ."""

    kind: type
    value: Any


class Uncertain(Exception):
    """Raised if no formula covers a case, so that the kernel must compute the type."""


def certain(*facts: object) -> None:
    """Raise :class:`Uncertain` if one of the conditions does not hold."""
    if not all(facts):
        raise Uncertain


def real(*values: object) -> list[TensorType]:
    """Require floating-point tensors of one dtype."""
    tensors = [v for v in values if isinstance(v, TensorType) and v.dtype in _REAL]
    certain(len(tensors) == len(values), len({t.dtype for t in tensors}) == 1)
    return tensors


def plain_value(value: object) -> Any:
    """Return the value of an argument that is not a tensor; Ellipsis for other arguments."""
    return value.value if isinstance(value, Scalar) else ...


def number(args: Args, name: str, default: object, kind: type) -> Any:
    """Return an argument of exactly the type ``kind``, or the default if it is missing."""
    value = plain_value(args[name]) if name in args else default
    # Exactly this class: isinstance(True, int) holds, but kernels treat bools differently.
    certain(type(value) is kind)
    return value


def listed(args: Args, name: str) -> tuple[object, ...]:
    """Return a list argument, which may be empty; raise :class:`Uncertain` if it is not a list."""
    value = args.get(name)
    # A Scalar is also a tuple.
    if type(value) is not tuple:
        raise Uncertain
    return value


def ints(args: Args, name: str, count: int, default: int) -> tuple[int, ...]:
    """Return an integer for each dimension; a list of one integer applies to all dimensions."""
    if name not in args:
        return (default,) * count
    values = [plain_value(v) for v in listed(args, name)]
    certain(len(values) in (1, count), *(type(v) is int for v in values))
    return tuple(values * count if len(values) == 1 else values)


def optional(args: Args, names: Iterable[str], shape: SymbolicShape, dtype: str) -> None:
    """Require tensors to be missing, or to have the given shape and dtype."""
    for value in map(args.get, names):
        certain(value is None or plain_value(value) is None or value == TensorType(shape, dtype))


def positive(sizes: Sequence[Size]) -> list[int]:
    """Require sizes to be positive numbers."""
    plain = [s for s in sizes if type(s) is int and s > 0]
    certain(len(plain) == len(sizes))
    return plain


def broadcast(shapes: Iterable[SymbolicShape]) -> SymbolicShape:
    """Return the shape to which several shapes are broadcast."""
    result: list[Size] = []  # last dimension first
    for shape in shapes:
        result += [1] * (len(shape) - len(result))
        for i, size in enumerate(reversed(shape)):
            # A batch of one would also broadcast, so sizes that depend on it must be equal.
            certain(size in (1, result[i]) or result[i] == 1)
            result[i] = size if result[i] == 1 else result[i]
    return tuple(reversed(result))


def slid(
    sizes: Sequence[int],
    kernels: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[int],
    dilations: Sequence[int],
    ceil: bool = False,
) -> list[int]:
    """Return the number of window positions along each dimension."""
    result = []
    for n, k, s, p, d in zip(sizes, kernels, strides, paddings, dilations, strict=True):
        certain(min(k, s, d) >= 1, p >= 0)
        room = n + 2 * p - d * (k - 1) - 1
        count = (room + (s - 1 if ceil else 0)) // s + 1
        # PyTorch drops a last window that would start in the padding after the image.
        if ceil and (count - 1) * s >= n + p:
            count -= 1
        certain(room >= 0, count >= 1)
        result.append(count)
    return result
