"""One call of a capture: its place, memory and region, what it writes, its canonical form."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from archgraph.capture.places import users_line
from archgraph.capture.tape import INSERTED, PLAIN, REGION, CapturedSizes, Region
from archgraph.graph.ir import Value
from archgraph.ops import table
from archgraph.ops.operator import Spelling
from archgraph.ops.schema import op_name

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
    node: torch.fx.Node, given: Mapping[str, Value], sizes: CapturedSizes
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
    op = operator_name(node.target)
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


def where(node: torch.fx.Node) -> str:
    """Place of a call in the user's code, or its name in the capture."""
    place = users_line(node.meta.get("stack_trace"))
    return f"{place[0]}:{place[1]}" if place else node.name


def tensor(node: Any) -> torch.Tensor | None:
    """The stand-in tensor of a result; None where the result is something else."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def memory(node: torch.fx.Node) -> int | None:
    """Which storage a result lives in; a copy lives in its own, a view in that of its source."""
    value = tensor(node)
    return None if value is None else value.untyped_storage()._cdata


def region(node: torch.fx.Node) -> Region:
    """The switches that a call runs under."""
    return node.meta.get(REGION, PLAIN)


def is_operator(node: torch.fx.Node) -> bool:
    """Whether a node calls an operator that makes tensors (not sizes, not assertions)."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) or isinstance(value, (tuple, list))


def writes(node: torch.fx.Node) -> bool:
    """Whether a call changes the values of a tensor (``unsqueeze_`` and its like change none)."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    return target._schema.is_mutable and torch.Tag.inplace_view not in target.tags


def written(node: torch.fx.Node) -> torch.fx.Node | None:
    """The one tensor that a call changes; None where there are several."""
    assert isinstance(node.target, torch._ops.OpOverload)
    arguments = node.target._schema.arguments
    places = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    by_name = dict(zip([a.name for a in arguments], node.args, strict=False)) | node.kwargs
    found = by_name.get(places[0]) if len(places) == 1 else None
    return found if isinstance(found, torch.fx.Node) else None


@functools.cache
def operator_name(target: torch._ops.OpOverload) -> str:
    """Graph name of an operator; ``unsqueeze_`` and its like change no value: ``unsqueeze``."""
    op = op_name(target)
    if torch.Tag.inplace_view not in target.tags:
        return op
    namespace, packet, *overload = op.split(".")
    return ".".join((namespace, packet.removesuffix("_"), *overload))


def insert(
    graph: torch.fx.Graph,
    target: torch._ops.OpOverload,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    like: torch.fx.Node,
    val: Any,
    **flags: bool,
) -> torch.fx.Node:
    """A call that a pass makes at the place of another one: its line, module and region."""
    node = graph.call_function(target, args, dict(kwargs))
    keep = ("stack_trace", "nn_module_stack", REGION)
    node.meta = {k: like.meta[k] for k in keep if k in like.meta}
    node.meta |= {"val": val, INSERTED: True, **flags}
    return node
