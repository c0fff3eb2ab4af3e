"""Run operators on meta tensors, to infer result types and to detect invalid arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from archgraph.errors import GraphError
from archgraph.graph.ir import Atom, Polynomial, Size, TensorType
from archgraph.ops.schema import from_atom, op_schema, torch_dtype
from archgraph.ops.types import Scalar


def run_kernel(
    op: str, args: tuple[tuple[str, object], ...], size: Callable[[Size], Any]
) -> object:
    """Run an operator on tensors without data.

    Args:
        op: The operator.
        args: Its arguments, converted by :func:`archgraph.ops.infer.pattern`.
        size: Function from a size to its value in the call: a number or a symbol.

    Raises:
        NotImplementedError: If the operator does not have a meta kernel.
        GraphError: If the arguments do not fit.
    """
    schema = op_schema(op)
    try:
        values = {k: _lowered(v, size) for k, v in args}
        if schema.makes_tensor:
            values["device"] = torch.device("meta")
        positional, keyword = schema.call_args(values)
        with torch.no_grad():
            return schema.overload(*positional, **keyword)
    except NotImplementedError:  # no meta kernel: not a fault of the arguments, so pass it on
        raise
    except Exception as error:  # any kernel error about arguments that do not fit
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        shapes = ", ".join(f"{k} {t}" for k, v in args for t in tensor_types([v]))
        message = f"{op} does not fit its arguments: {reason}"
        raise GraphError(message, found=shortened(shapes, 120) or None) from error


def _lowered(value: object, size: Callable[[Size], Any]) -> object:
    """Convert an argument for a kernel: types become tensors without data."""
    match value:
        case TensorType():
            shape = [size(s) for s in value.shape]
            return torch.empty(shape, dtype=torch_dtype(value.dtype), device="meta")
        case Scalar():  # itself a tuple, so match it first
            return value.value
        case tuple():
            return [_lowered(item, size) for item in value]
        case Polynomial():
            return size(value)
        case Atom():
            return from_atom(value)
        case _:
            return value


def tensor_types(values: Iterable[object]) -> Iterator[TensorType]:
    """Yield the tensor types that occur in patterns."""
    for value in values:
        if isinstance(value, TensorType):
            yield value
        elif isinstance(value, tuple) and not isinstance(value, Scalar):
            yield from tensor_types(value)


def shortened(text: str, limit: int = 60) -> str:
    """Shorten a text for an error to at most ``limit`` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
