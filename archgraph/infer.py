"""Types from operators: what a graph's results are, computed on meta tensors.

Meta tensors have shapes and no memory. Two batch sizes tell a multiple of the batch from a number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from archgraph.errors import GraphError
from archgraph.ir import (
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
from archgraph.ops.schema import from_atom, schema, torch_dtype

_PROBES = (2, 3)  # two batch sizes tell a multiple of the batch from a constant


def infer(graph: ArchGraph) -> ArchGraph:
    """The graph with every type recomputed from inputs and leaves, on meta tensors.

    Raises:
        GraphError: Names the operator whose arguments do not fit and their shapes.
    """
    types = [_infer_at(graph, batch) for batch in _PROBES]
    nodes = tuple(
        dataclasses.replace(n, type=_symbolic(types[0][n.name], types[1][n.name]))
        for n in graph.nodes
    )
    return graph.replace(nodes=nodes)


def infer_node(graph: ArchGraph, node: Node) -> TensorType | tuple[TensorType, ...]:
    """Type of one operator appended to a graph whose types are known.

    Raises:
        GraphError: If its arguments do not fit.
    """
    # Looked up from the end: on a graph that grows by appending, an index would be made anew each
    # time, which is quadratic in its length.
    missing = set(node.uses())
    types: dict[str, Any] = {}
    for other in reversed(graph.nodes):
        if not missing:
            break
        if other.name in missing:
            missing.remove(other.name)
            types[other.name] = other.type
    if missing:
        raise GraphError(
            "uses a result that no operator makes", where=f"%{node.name}", found=f"%{min(missing)}"
        )
    used = set(node.leaves())
    leaves = {p.name: p.type for p in graph.params if p.name in used} if used else {}
    return infer_call(node, types, leaves)


def infer_call(
    node: Node,
    results: Mapping[str, TensorType | tuple[TensorType, ...]],
    leaves: Mapping[str, TensorType],
) -> TensorType | tuple[TensorType, ...]:
    """Type of one operator from the types of what it uses, by name.

    Raises:
        GraphError: If its arguments do not fit.
    """
    found = []
    for batch in _PROBES:
        env = {name: _meta(results[name], batch) for name in node.uses()}
        found.append(_run_meta(leaves, node, env, batch))
    return _symbolic(found[0], found[1])


def _meta(type_: TensorType | tuple[TensorType, ...], batch: int) -> Any:
    if isinstance(type_, tuple):
        return [_meta(t, batch) for t in type_]
    shape = [size_at(s, batch) for s in type_.shape]
    return torch.empty(shape, dtype=torch_dtype(type_.dtype), device="meta")


def _infer_at(graph: ArchGraph, batch: int) -> dict[str, Any]:
    env: dict[str, Any] = {}
    leaves = {p.name: p.type for p in graph.params}
    for node in graph.nodes:
        if node.op == "input":
            env[node.name] = _meta(node.type, batch)
        else:
            env[node.name] = _run_meta(leaves, node, env, batch)
    return env


def _run_meta(
    leaves: Mapping[str, TensorType], node: Node, env: Mapping[str, Any], batch: int
) -> Any:
    def lower(value: Value) -> Any:
        match value:
            case Ref(name):
                return env[name]
            case Leaf(name):
                return _meta(leaves[name], batch)
            case Batch():
                return value.at(batch)
            case Atom():
                return from_atom(value)
            case tuple():
                return [lower(v) for v in value]
            case _:
                return value

    given = {k: lower(in_mode(v, True)) for k, v in node.args}
    if node.op == "getitem":
        try:
            return given["source"][given["index"]]
        except (IndexError, TypeError):
            raise GraphError(
                "no such result", where=f"%{node.name}", found=given["index"]
            ) from None
    row = schema(node.op)
    if row.makes_tensor:
        given["device"] = torch.device("meta")
    positional, named = row.call_args(given)
    try:
        with torch.no_grad():
            return row.overload(*positional, **named)
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
        shapes = {
            k: list(v.shape) if isinstance(v, torch.Tensor) else [list(t.shape) for t in v]
            for k, v in given.items()
            if isinstance(v, torch.Tensor)
            or (isinstance(v, list) and v and all(isinstance(t, torch.Tensor) for t in v))
        }
        raise GraphError(
            f"{node.op} does not fit its arguments: {str(error).splitlines()[0]}",
            where=f"%{node.name}" + (f" in {node.scope}" if node.scope else ""),
            found=", ".join(f"{k} {v}" for k, v in shapes.items()),
        ) from error


def _symbolic(a: Any, b: Any) -> Any:
    """Type from results at two batch sizes: sizes that grow with the batch become symbolic."""
    if isinstance(a, (list, tuple)):
        return tuple(_symbolic(x, y) for x, y in zip(a, b, strict=True))
    shape: list[Any] = []
    for x, y in zip(a.shape, b.shape, strict=True):
        if x == y:
            shape.append(int(x))
            continue
        power = next((p for p in (1, 2, 3) if x * _PROBES[1] ** p == y * _PROBES[0] ** p), None)
        if power is None or x % _PROBES[0] ** power:
            raise GraphError("a size is no multiple of the batch size", found=f"{x} and {y}")
        shape.append(Batch(int(x) // _PROBES[0] ** power, power))
    return TensorType(tuple(shape), str(a.dtype).removeprefix("torch."))


__all__ = ["infer", "infer_call", "infer_node"]
