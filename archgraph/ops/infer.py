"""Types from operators: what a graph's results are, computed on meta tensors.

Meta tensors have shapes and no memory. Two batch sizes tell a multiple of the batch from a number.
The common case of common operators has a closed form instead (:mod:`archgraph.ops.types`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import torch

from archgraph.errors import GraphError
from archgraph.graph.ir import (
    ArchGraph,
    Atom,
    Batch,
    Leaf,
    Node,
    Ref,
    TensorType,
    Value,
    in_mode,
    size_at,
)
from archgraph.limits import LIMITS
from archgraph.ops.schema import from_atom, schema, torch_dtype
from archgraph.ops.table import row
from archgraph.ops.types import Scalar, Uncertain

ResultType: TypeAlias = TensorType | tuple[TensorType, ...]

_PROBES = (2, 3)  # two batch sizes tell a multiple of the batch from a constant


# -- graphs and operators in them --------------------------------------------------------------
def infer(graph: ArchGraph) -> ArchGraph:
    """Return the graph with every type recomputed from inputs and leaves.

    Raises:
        GraphError: Names the operator whose arguments do not fit and their shapes.
    """
    types: dict[str, ResultType] = {}
    leaves = {p.name: p.type for p in graph.params}
    for node in graph.nodes:
        types[node.name] = node.type if node.op == "input" else infer_call(node, types, leaves)
    nodes = tuple(dataclasses.replace(n, type=types[n.name]) for n in graph.nodes)
    return graph.replace(nodes=nodes)


def infer_call(
    node: Node, results: Mapping[str, ResultType], leaves: Mapping[str, TensorType]
) -> ResultType:
    """Return the type of one operator from the types of what it uses, by name.

    Raises:
        GraphError: If its arguments do not fit.
    """
    types: dict[Ref | Leaf, ResultType] = {Ref(name): results[name] for name in node.uses()}
    types |= {Leaf(name): leaves[name] for name in node.leaves()}
    args = tuple((k, pattern(in_mode(v, True), types)) for k, v in node.args)
    if node.op == "getitem":
        given = dict(args)
        source, (_, index) = given["source"], given["index"]
        if type(source) is not tuple or not -len(source) <= index < len(source):
            raise GraphError("no such result", where=place(node), found=index)
        return source[index]
    try:
        found = result_type(node.op, args)
    except GraphError as error:
        raise error.within(place(node)) from error
    if found is None:
        raise GraphError(f"{node.op} gives no type without data", where=place(node))
    return found


def place(node: Node) -> str:
    """Return an operator as errors name it."""
    return f"%{node.name}" + (f" in {node.scope}" if node.scope else "")


# -- one operator -----------------------------------------------------------------------------
def pattern(value: Value, types: Mapping[Ref | Leaf, ResultType]) -> Any:
    """Return a value with tensors replaced by their types, as a key: 1, 1.0 and True stay apart."""
    match value:
        case Ref() | Leaf():
            return types[value]
        case tuple():
            return tuple(pattern(item, types) for item in value)
        case Batch() | Atom():
            return value
        case _:
            return Scalar(type(value), value)


def tensor_types(values: Iterable[Any]) -> Iterator[TensorType]:
    """Return the types among patterns."""
    for value in values:
        if isinstance(value, TensorType):
            yield value
        elif isinstance(value, tuple) and not isinstance(value, Scalar):
            yield from tensor_types(value)


@functools.lru_cache(maxsize=1 << 14)
def result_type(op: str, args: tuple[tuple[str, Any], ...]) -> ResultType | None:
    """Return the type of an operator's result; None where it cannot be computed without data.

    Args:
        op: The operator.
        args: Its arguments by name, as :func:`pattern` makes them.

    Raises:
        GraphError: If the arguments do not fit.
    """
    rule = row(op).type
    if rule is not None:
        with contextlib.suppress(Uncertain):
            return rule(dict(args))
    return kernel_type(op, args)


def kernel_type(op: str, args: tuple[tuple[str, Any], ...]) -> ResultType | None:
    """Return the type of an operator's result, from its meta kernel."""
    _check_count(op, args)
    results = []
    for batch in _PROBES:
        try:
            results.append(_run(op, args, batch))
        except NotImplementedError:  # the operator has no meta kernel
            return None
    return _symbolic(results[0], results[1])


def shortened(text: str, limit: int = 60) -> str:
    """Return a text as an error shows it, at most so many characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _check_count(op: str, args: tuple[tuple[str, Any], ...]) -> None:
    """Bound the number of results before they are made: by sizes given, else by the dimension."""
    if schema(op).returns != -1:
        return
    given = dict(args)
    tensors = list(tensor_types(given.values()))
    dim = given.pop("dim", None)
    axis = dim.value if isinstance(dim, Scalar) else 0
    listed = [len(v) for v in given.values() if type(v) is tuple]
    counts = [v.value for v in given.values() if isinstance(v, Scalar) and v.kind is int]
    if tensors and not listed and isinstance(axis, int):
        shape = tensors[0].shape
        counts += [size_at(shape[axis], 1)] if -len(shape) <= axis < len(shape) else []
    if (count := max([*listed, *counts], default=0)) > LIMITS.results:
        raise GraphError("too many results", found=count, expected=f"at most {LIMITS.results}")


def _run(op: str, args: tuple[tuple[str, Any], ...], batch: int) -> Any:
    def lower(value: Any) -> Any:
        match value:
            case TensorType():
                shape = [size_at(s, batch) for s in value.shape]
                return torch.empty(shape, dtype=torch_dtype(value.dtype), device="meta")
            case Scalar():
                return value.value
            case tuple():
                return [lower(item) for item in value]
            case Batch():
                return value.at(batch)
            case Atom():
                return from_atom(value)
            case _:
                return value

    found = schema(op)
    try:
        given = {k: lower(v) for k, v in args}
        if found.makes_tensor:
            given["device"] = torch.device("meta")
        positional, named = found.call_args(given)
        with torch.no_grad():
            return found.overload(*positional, **named)
    except NotImplementedError:  # no meta kernel: the caller's to answer, no fault of arguments
        raise
    except Exception as error:  # whatever a kernel says about arguments that do not fit
        lines = str(error).strip().splitlines() or [type(error).__name__]
        shapes = ", ".join(f"{k} {t}" for k, v in args for t in tensor_types([v]))
        raise GraphError(
            f"{op} does not fit its arguments: {lines[0]}", found=shortened(shapes, 120) or None
        ) from error


def _symbolic(a: Any, b: Any) -> ResultType:
    """Type from results at two batch sizes: sizes that grow with the batch become symbolic."""
    if not isinstance(a, (torch.Tensor, list, tuple)):
        raise GraphError("an operator that does not return a tensor", found=type(a).__name__)
    if not isinstance(a, torch.Tensor):
        kinds = tuple(_symbolic(x, y) for x, y in zip(a, b, strict=True))
        if not all(isinstance(k, TensorType) for k in kinds):
            raise GraphError("results are not tensors", found=str(kinds))
        return kinds  # type: ignore[return-value]  # tested on the line before
    if a.dim() != b.dim():
        raise GraphError("a number of dimensions depends on the batch size")
    shape: list[Any] = []
    for x, y in zip(map(int, a.shape), map(int, b.shape), strict=True):
        low, high = _PROBES
        powers = range(1, LIMITS.batch_power + 1)
        power = 0 if x == y else next((p for p in powers if x * high**p == y * low**p), None)
        if power is None or x % low**power:
            raise GraphError("a size is not a multiple of the batch size", found=f"{x} and {y}")
        shape.append(Batch(x // low**power, power) if power else x)
    return TensorType(tuple(shape), str(a.dtype).removeprefix("torch."))
