"""Find which tensors of a training step share memory, and which operands must be copied."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from archgraph.graph.ir import (
    ArchGraph,
    Atom,
    Leaf,
    Node,
    Polynomial,
    Ref,
    TensorType,
    Value,
    size_at,
)
from archgraph.graph.sizes import example_sizes
from archgraph.ops.schema import from_atom, op_schema, torch_dtype
from archgraph.ops.table import backward

Storage: TypeAlias = "tuple[str, int] | Leaf"
"""The tensor for which memory was allocated: a result (operator and index) or a leaf."""


@dataclass(frozen=True)
class Storages:
    """The memory of every value of a graph.

    Attributes:
        tensors: Dict from operator, parameter or buffer to its meta tensors.
        owners: Dict from the address of memory to the tensor for which it was allocated.
    """

    tensors: dict[Ref | Leaf, tuple[Tensor, ...]] = dataclasses.field(default_factory=dict)
    owners: dict[int, Storage] = dataclasses.field(default_factory=dict)

    def of(self, value: Ref | Leaf, index: int = 0) -> Storage:
        """Return the tensor for which the memory of a value was allocated."""
        return self.owners[_address(self.tensors[value][index])]

    def copied(self, value: Ref | Leaf, trailing: int) -> bool:
        """Return whether flattening all but the last ``trailing`` dimensions copies a value."""
        (tensor, *_) = self.tensors[value]
        if tensor.dim() <= trailing + 1:
            return False
        return _address(tensor.flatten(0, -1 - trailing)) != _address(tensor)


def storages(graph: ArchGraph, batch: int) -> Storages:
    """Return the memory of every value of a graph in training or evaluation.

    1. Operators that may return views, and elementwise operators, are called on meta tensors, which
       have sizes and strides but no data. PyTorch then decides whether the result is a view, and
       which memory format it has.
    2. Other results are contiguous, unless the operator table names an operand whose memory format
       they have.
    """
    result, sizes = Storages(), example_sizes(graph, batch)
    for param in graph.params:
        tensor = _empty(param.type, sizes)
        result.tensors[Leaf(param.name)] = (tensor,)
        result.owners[_address(tensor)] = Leaf(param.name)
    for node in graph.nodes:
        tensors = _results(result, node, sizes)
        for index, tensor in enumerate(tensors):
            result.owners.setdefault(_address(tensor), (node.name, index))
        result.tensors[Ref(node.name)] = tensors
    return result


def _results(result: Storages, node: Node, sizes: Mapping[str, int]) -> tuple[Tensor, ...]:
    """Return a node's results as meta tensors."""
    known = backward(node)
    operands = [value for value in node.operands() if value in result.tensors]
    if node.op == "getitem":
        index = node.arg("index")
        assert isinstance(index, int)
        return (result.tensors[operands[0]][index],)
    if known.same:
        return result.tensors[operands[0]][:1]
    if node.op != "input" and _follows(node.op):  # 1
        tensors = _run(result, node, sizes)
        if tensors is not None:
            return tensors
    if known.order and isinstance(value := node.arg(known.order), (Ref, Leaf)):  # 2
        return (_ordered(result.tensors[value][0], _empty(node.types[0], sizes)),)
    return tuple(_empty(type_, sizes) for type_ in node.types)


def _follows(op: str) -> bool:
    """Return whether an operator may return views, or keeps the memory format of its operands."""
    overload = op_schema(op).overload
    arguments = overload._schema.arguments
    view = bool(arguments) and arguments[0].alias_info is not None
    return view or torch.Tag.pointwise in overload.tags


def _run(result: Storages, node: Node, sizes: Mapping[str, int]) -> tuple[Tensor, ...] | None:
    """Call an operator on meta tensors; None if it needs data."""

    def lower(value: Value) -> Any:
        match value:
            case Ref() | Leaf():
                return result.tensors[value][0]
            case tuple():
                return [lower(item) for item in value]
            case Polynomial():
                return value.value(sizes)
            case Atom():
                return from_atom(value)
            case _:
                return value

    schema = op_schema(node.op)
    positional, keyword = schema.call_args({name: lower(value) for name, value in node.args})
    try:
        with torch.no_grad():
            results = schema.overload(*positional, **keyword)
    except (RuntimeError, NotImplementedError):
        return None
    tensors = tuple(results) if isinstance(results, Sequence) else (results,)
    expected = [[size_at(s, sizes) for s in t.shape] for t in node.types]
    return tensors if [list(t.shape) for t in tensors] == expected else None


def _empty(type_: TensorType, sizes: Mapping[str, int]) -> Tensor:
    shape = [size_at(size, sizes) for size in type_.shape]
    return torch.empty(shape, dtype=torch_dtype(type_.dtype), device="meta")


def _ordered(model: Tensor, tensor: Tensor) -> Tensor:
    """Return a tensor with the memory format of another one."""
    order = sorted(range(model.dim()), key=model.stride().__getitem__, reverse=True)
    inverse = sorted(range(model.dim()), key=order.__getitem__)
    return tensor.permute(order).clone(memory_format=torch.contiguous_format).permute(inverse)


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
