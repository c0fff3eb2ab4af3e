"""One call in canonical form: arguments by name, one spelling, whether it changes anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from archgraph.capture.tape import CapturedSizes, tensor, where
from archgraph.graph.ir import Value
from archgraph.ops import table
from archgraph.ops.operator import Spelling

Reader = Callable[[Any, str], Value]  # an argument and the type that its schema gives


def arguments(node: torch.fx.Node, read: Reader) -> dict[str, Value]:
    """Arguments of a call by name, as values."""
    assert isinstance(node.target, torch._ops.OpOverload)
    formal = node.target._schema.arguments
    given = {a.name: read(v, str(a.type)) for a, v in zip(formal, node.args, strict=False)}
    for a in formal:
        if a.name in node.kwargs:
            given[a.name] = read(node.kwargs[a.name], str(a.type))
    return given


def canonical(
    op: str, given: Mapping[str, Value], node: torch.fx.Node, sizes: CapturedSizes
) -> tuple[str, dict[str, Value]]:
    """The one spelling of a call, with every silent size written out; the name may be empty."""
    value, place = node.meta.get("val"), where(node)
    results = [value] if isinstance(value, torch.Tensor) else value
    shapes = tuple(sizes.shape(v, place) for v in results or () if v is not None)
    shape_of = {}
    assert isinstance(node.target, torch._ops.OpOverload)
    for argument, item in zip(node.target._schema.arguments, node.args, strict=False):
        held = tensor(item)
        if held is not None:
            shape_of[argument.name] = sizes.shape(held, place)
    return table.canonical(Spelling(op, dict(given), shape_of, shapes))


def is_identity(op: str, given: Mapping[str, Value], node: torch.fx.Node) -> bool:
    """Whether a call returns its first argument unchanged."""
    if not table.is_identity(op, given):
        return False
    before = tensor(next((a for a in node.args if isinstance(a, torch.fx.Node)), None))
    after = tensor(node)
    if before is None or after is None or before.dtype != after.dtype:
        return False
    return tuple(map(str, before.shape)) == tuple(map(str, after.shape))
