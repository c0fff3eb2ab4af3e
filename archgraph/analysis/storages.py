"""Which tensors of a training step share memory: views, and copies that their order needs."""

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
"""Memory, by the result that it was made for (operator and number), or by the leaf."""


@dataclass(frozen=True)
class Storages:
    """Which memory the values of a graph are in.

    Attributes:
        tensors: Tensors without memory, by operator or leaf.
        owners: Whose memory each tensor's is, by its address.
    """

    tensors: dict[Ref | Leaf, tuple[Tensor, ...]] = dataclasses.field(default_factory=dict)
    owners: dict[int, Storage] = dataclasses.field(default_factory=dict)

    def of(self, value: Ref | Leaf, index: int = 0) -> Storage:
        """Return the memory of a value."""
        return self.owners[_address(self.tensors[value][index])]

    def copied(self, value: Ref | Leaf, trailing: int) -> bool:
        """Return whether a value must be copied to have one dimension before the trailing ones."""
        (tensor, *_) = self.tensors[value]
        if tensor.dim() <= trailing + 1:
            return False
        return _address(tensor.flatten(0, -1 - trailing)) != _address(tensor)


def storages(graph: ArchGraph, batch: int) -> Storages:
    """Return which memory the values of a graph in one mode are in.

    1. A view shares its operand's memory; which calls are views is for PyTorch to say, with tensors
       that have sizes and strides and no numbers. So is the order in memory of results of
       operators that work position by position.
    2. Other results lie in memory row by row, unless the operator table names an operand whose
       order they have.
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
    """Return a node's results, without numbers."""
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
    """Return whether an operator gives views, or results in its operands' order."""
    overload = op_schema(op).overload
    arguments = overload._schema.arguments
    view = bool(arguments) and arguments[0].alias_info is not None
    return view or torch.Tag.pointwise in overload.tags


def _run(result: Storages, node: Node, sizes: Mapping[str, int]) -> tuple[Tensor, ...] | None:
    """Call an operator with tensors without numbers; None where it needs numbers."""

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
    """Return a tensor whose dimensions lie in memory in the order of another's."""
    order = sorted(range(model.dim()), key=model.stride().__getitem__, reverse=True)
    inverse = sorted(range(model.dim()), key=order.__getitem__)
    return tensor.permute(order).clone(memory_format=torch.contiguous_format).permute(inverse)


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
