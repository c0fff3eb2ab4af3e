"""Functions for one call of a capture: source line, memory, region, writes, canonical form."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor, fx
from torch.fx.node import Argument

from archgraph.capture.places import users_line
from archgraph.capture.tape import INSERTED, PLAIN, REGION, CapturedSizes, Region, View
from archgraph.graph.ir import Value
from archgraph.ops import table
from archgraph.ops.operator import Spelling
from archgraph.ops.schema import op_name

Reader: TypeAlias = Callable[[Argument, str], Value]  # from an argument and its schema type
# Errors of operators for arguments that do not match, or that no kernel supports.
KERNEL_ERRORS = (IndexError, RuntimeError, TypeError, ValueError)


def arguments(node: fx.Node, read: Reader) -> dict[str, Value]:
    """Return the arguments of a call as a dict from names to values of a graph."""
    assert isinstance(node.target, torch._ops.OpOverload)
    formal = node.target._schema.arguments
    args = {a.name: read(v, str(a.type)) for a, v in zip(formal, node.args, strict=False)}
    for a in formal:
        if a.name in node.kwargs:
            args[a.name] = read(node.kwargs[a.name], str(a.type))
    return args


def canonical_call(
    node: fx.Node, args: Mapping[str, Value], sizes: CapturedSizes
) -> tuple[str, dict[str, Value]]:
    """Return a call in canonical form, with explicit sizes; the operator's name may be empty."""
    value, line = node.meta.get("val"), where(node)
    results = [value] if isinstance(value, Tensor) else value
    shapes = tuple(sizes.shape(v, line) for v in results or () if v is not None)
    shape_of = {}
    assert isinstance(node.target, torch._ops.OpOverload)
    for argument, item in zip(node.target._schema.arguments, node.args, strict=False):
        source = fake_tensor(item)
        if source is not None:
            shape_of[argument.name] = sizes.shape(source, line)
    op = operator_name(node.target)
    return table.canonical(Spelling(op, dict(args), shape_of, shapes))


def returns_unchanged(op: str, args: Mapping[str, Value], node: fx.Node) -> bool:
    """Return whether a call returns its first argument unchanged."""
    if not table.is_identity(op, args):
        return False
    before = fake_tensor(next((a for a in node.args if isinstance(a, fx.Node)), None))
    after = fake_tensor(node)
    if before is None or after is None or before.dtype != after.dtype:
        return False
    return tuple(map(str, before.shape)) == tuple(map(str, after.shape))


def where(node: fx.Node) -> str:
    """Return the line of a call in the user's code, or its name in the capture."""
    line = users_line(node.meta.get("stack_trace"))
    return f"{line[0]}:{line[1]}" if line else node.name


def fake_tensor(node: Argument) -> Tensor | None:
    """Return the fake tensor of a result; None if the result is not a tensor."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, Tensor) else None


def memory(node: fx.Node) -> int | None:
    """Return the identity of a result's storage, which a view shares with its source."""
    # Fake tensors have no memory, hence no data_ptr(), but their views share storages.
    value = fake_tensor(node)
    return None if value is None else value.untyped_storage()._cdata


def path(node: fx.Node, views: Mapping[fx.Node, View]) -> list[fx.Node]:
    """Return a result, the tensor of which it is a view, and so on to the owner of the memory."""
    nodes = [node]
    while nodes[-1] in views:
        nodes.append(views[nodes[-1]].parent)
    return nodes


def region(node: fx.Node) -> Region:
    """Return the settings with which a call runs: gradients and autocast."""
    return node.meta.get(REGION, PLAIN)


def is_operator(node: fx.Node) -> bool:
    """Return whether a node calls an operator that returns tensors (not sizes or assertions)."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    value = node.meta.get("val")
    return isinstance(value, Tensor) or isinstance(value, (tuple, list))


def writes(node: fx.Node) -> bool:
    """Return whether a call changes values of a tensor (``unsqueeze_`` and the like do not)."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    return target._schema.is_mutable and torch.Tag.inplace_view not in target.tags


def written(node: fx.Node) -> fx.Node | None:
    """Return the tensor that a call changes; None if there are several."""
    assert isinstance(node.target, torch._ops.OpOverload)
    arguments = node.target._schema.arguments
    names = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    by_name = dict(zip([a.name for a in arguments], node.args, strict=False)) | node.kwargs
    goal = by_name.get(names[0]) if len(names) == 1 else None
    return goal if isinstance(goal, fx.Node) else None


@functools.cache
def operator_name(target: torch._ops.OpOverload) -> str:
    """Return the name of an operator in graphs, e.g. ``unsqueeze`` for ``unsqueeze_``."""
    op = op_name(target)
    if torch.Tag.inplace_view not in target.tags:
        return op
    namespace, packet, *overload = op.split(".")
    return ".".join((namespace, packet.removesuffix("_"), *overload))


def insert(
    graph: fx.Graph,
    target: Callable[..., object],
    args: tuple[Argument | Value, ...],
    kwargs: Mapping[str, Argument | Value],
    *,
    like: fx.Node,
    val: object,
    **flags: object,
) -> fx.Node:
    """Insert a call that has the source line, module and region of the call ``like``.

    ``val`` is the fake result of the new call, and ``flags`` are further items of its ``meta``.
    """
    # Sizes may already be those of a graph: :mod:`spell` accepts both.
    node = graph.call_function(target, args, dict(kwargs))  # type: ignore[arg-type]
    keep = ("stack_trace", "nn_module_stack", REGION)
    node.meta = {k: like.meta[k] for k in keep if k in like.meta}
    node.meta |= {"val": val, INSERTED: True, **flags}
    return node
