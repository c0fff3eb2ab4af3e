"""Type inference: the types of operators' results, computed on meta tensors.

Meta tensors have shapes but no memory. Running an operator at two batch sizes shows which sizes are
multiples of the batch size. For common cases of frequent operators, formulas are used instead
(:mod:`archgraph.ops.types`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import torch

from archgraph.errors import GraphError
from archgraph.graph.ir import (
    BATCH,
    BATCH_WORD,
    ArchGraph,
    Atom,
    Leaf,
    Node,
    Polynomial,
    Ref,
    Size,
    TensorType,
    Value,
    in_mode,
    size_at,
)
from archgraph.graph.polynomial import as_size
from archgraph.graph.sizes import probed_sizes
from archgraph.limits import LIMITS
from archgraph.ops.kernels import run_kernel, tensor_types
from archgraph.ops.schema import op_schema
from archgraph.ops.table import row
from archgraph.ops.types import Args, ResultType, Scalar, Uncertain

# Arguments by name, as the key of a cache.
_Key: TypeAlias = tuple[tuple[str, object], ...]
_Values: TypeAlias = tuple[tuple[str, int], ...]
# Two sizes distinguish a multiple of the batch from a constant; not 1, which broadcasts.
_PROBES = (2, 3)
_NONE: Mapping[str, int] = MappingProxyType({})  # no open sizes except the batch


# -- graphs and their operators -----------------------------------------------------------------
def infer(graph: ArchGraph) -> ArchGraph:
    """Return the graph with all types computed again from inputs, parameters and buffers.

    Raises:
        GraphError: If an operator's arguments do not fit. The error names the operator and their
            shapes.
    """
    types: dict[str, ResultType] = {}
    leaves, sizes = {p.name: p.type for p in graph.params}, probed_sizes(graph)
    for node in graph.nodes:
        known = node.op == "input"
        types[node.name] = node.type if known else infer_call(node, types, leaves, sizes)
    nodes = tuple(dataclasses.replace(n, type=types[n.name]) for n in graph.nodes)
    return graph.replace(nodes=nodes)


def infer_call(
    node: Node,
    results: Mapping[str, ResultType],
    leaves: Mapping[str, TensorType],
    sizes: Mapping[str, int] = _NONE,
) -> ResultType:
    """Return the type of an operator's result, from the types of its operands.

    Args:
        node: The operator.
        results: Dict from nodes to the types of their results.
        leaves: Dict from parameters, buffers and constants to their types.
        sizes: Dict from open sizes, except the batch, to the values for running kernels.

    Raises:
        GraphError: If the arguments do not fit.
    """
    types: dict[Ref | Leaf, ResultType] = {Ref(name): results[name] for name in node.uses()}
    types |= {Leaf(name): leaves[name] for name in node.leaves()}
    args = {k: pattern(in_mode(v, True), types) for k, v in node.args}
    if node.op == "getitem":
        source, (_, index) = args["source"], args["index"]
        if type(source) is not tuple or not -len(source) <= index < len(source):
            raise GraphError("no such result", where=place(node), found=index)
        return source[index]
    result = call_type(node, args, sizes)
    if result is None:
        raise GraphError(f"{node.op} needs data to infer its type", where=place(node))
    return result


def call_type(node: Node, args: Args, sizes: Mapping[str, int]) -> ResultType | None:
    """Return the type of an operator's result, from patterns of its arguments.

    Args:
        node: The operator.
        args: Its arguments, converted by :func:`pattern`.
        sizes: Dict from open sizes, except the batch, to the values for running kernels.

    Raises:
        GraphError: If the arguments do not fit.
    """
    try:
        return result_type(node.op, tuple(args.items()), tuple(sizes.items()))
    except GraphError as error:
        raise error.within(place(node)) from error


def place(node: Node) -> str:
    """Return the text for an operator in errors."""
    return f"%{node.name}" + (f" in {node.scope}" if node.scope else "")


# -- one operator -----------------------------------------------------------------------------
def pattern(value: Value, types: Mapping[Ref | Leaf, ResultType]) -> Any:
    """Replace tensors in a value by their types.

    The result can be a key of a cache: it distinguishes 1, 1.0 and True.
    """
    match value:
        case Ref() | Leaf():
            return types[value]
        case tuple():
            return tuple(pattern(item, types) for item in value)
        case Polynomial() | Atom():
            return value
        case _:
            return Scalar(type(value), value)


def _sizes(values: Iterable[object]) -> Iterator[Size]:
    """Yield the sizes that occur in patterns."""
    for value in values:
        if isinstance(value, TensorType):
            yield from value.shape
        elif isinstance(value, Polynomial):
            yield value
        elif isinstance(value, tuple) and not isinstance(value, Scalar):
            yield from _sizes(value)


@functools.lru_cache(maxsize=1 << 14)
def result_type(op: str, args: _Key, sizes: _Values = ()) -> ResultType | None:
    """Return the type of an operator's result; None if it cannot be computed without data.

    Args:
        op: The operator.
        args: Names and values of its arguments, converted by :func:`pattern`.
        sizes: Open sizes, except the batch, and the values for running kernels.

    Raises:
        GraphError: If the arguments do not fit.
    """
    rule = row(op).type
    if rule is not None:
        with contextlib.suppress(Uncertain):
            return rule(dict(args))
    return kernel_type(op, args, sizes)


def kernel_type(op: str, args: _Key, sizes: _Values = ()) -> ResultType | None:
    """Compute the type of an operator's result with its meta kernel.

    1. If all sizes are numbers or multiples of the batch, run the operator at two batch sizes. This
       suffices if the sizes of the result are also numbers or multiples of the batch.
    2. Otherwise run the operator with symbolic sizes, which takes longer.
    """
    _check_count(op, dict(args))
    try:
        if all(map(_is_multiple, _sizes(v for _, v in args))):  # 1.
            low, high = (_run(op, args, batch) for batch in _PROBES)
            with contextlib.suppress(GraphError):
                return _symbolic(low, high)
        from archgraph.ops.symbols import symbolic_type  # loads a computer algebra system

        return symbolic_type(op, args, dict(sizes))  # 2.
    except NotImplementedError:  # the operator has no meta kernel
        return None


def _is_multiple(size: Size) -> bool:
    """Return whether a size is a number, or a multiple of the batch."""
    return isinstance(size, int) or (len(size.terms) == 1 and size.names == {BATCH_WORD})


def _check_count(op: str, args: dict[str, object]) -> None:
    """Check the number of results before they are created."""
    if op_schema(op).returns != -1:
        return
    tensors = list(tensor_types(args.values()))
    dim = args.pop("dim", None)
    axis = dim.value if isinstance(dim, Scalar) else 0
    sizes = [len(v) for v in args.values() if type(v) is tuple]
    counts = [v.value for v in args.values() if isinstance(v, Scalar) and v.kind is int]
    if tensors and not sizes and isinstance(axis, int):
        shape = tensors[0].shape
        counts += [s for s in shape[axis:][:1] if isinstance(s, int)]
    if (count := max([*sizes, *counts], default=0)) > LIMITS.results:
        raise GraphError("too many results", found=count, expected=f"at most {LIMITS.results}")


def _run(op: str, args: _Key, batch: int) -> object:
    return run_kernel(op, args, lambda size: size_at(size, {BATCH_WORD: batch}))


def _symbolic(low: object, high: object) -> ResultType:
    """Infer a type from results at two batch sizes: sizes that grow with the batch become open."""
    if isinstance(low, (list, tuple)) and isinstance(high, (list, tuple)):
        return tuple(_tensor_type(x, y) for x, y in zip(low, high, strict=True))
    return _tensor_type(low, high)


def _tensor_type(low: object, high: object) -> TensorType:
    if not isinstance(low, torch.Tensor) or not isinstance(high, torch.Tensor):
        raise GraphError("results are not tensors", found=type(low).__name__)
    if low.dim() != high.dim():
        raise GraphError("the number of dimensions depends on the batch size")
    shape: list[Size] = []
    for x, y in zip(map(int, low.shape), map(int, high.shape), strict=True):
        # x = factor · 2^power and y = factor · 3^power; a power of 0 is a constant.
        for power in range(LIMITS.size_degree + 1):
            factor, rest = divmod(x, _PROBES[0] ** power)
            if rest == 0 and y == factor * _PROBES[1] ** power:
                shape.append(as_size(math.prod([BATCH] * power, start=factor)))
                break
        else:
            raise GraphError("a size is not a multiple of the batch size", found=f"{x} and {y}")
    return TensorType(tuple(shape), str(low.dtype).removeprefix("torch."))
