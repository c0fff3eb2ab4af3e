"""The laws that rewrites promise, run on the spot: two forwards in float64 on random weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from archgraph.analysis.axes import axes
from archgraph.analysis.positions import Kept, positions
from archgraph.errors import RewriteError
from archgraph.graph.ir import (
    ArchGraph,
    Atom,
    Constant,
    Node,
    Param,
    Record,
    Ref,
    TensorType,
    Value,
    replace,
    size_at,
)
from archgraph.module.build import build
from archgraph.ops.constants import tensor_of
from archgraph.ops.schema import canonical_args, schema, torch_dtype
from archgraph.rewrite.cut import cut
from archgraph.states import Rewritten, State, Transfer

NOTHING = 1e-100  # its square is still a float64
_WIDE = dict.fromkeys(("float32", "float16", "bfloat16"), "float64")
_WIDE |= dict.fromkeys(("complex64", "complex32"), "complex128")


def in_float64(graph: ArchGraph) -> ArchGraph:
    """The graph with every floating-point type replaced by float64, complex ones by complex128."""

    def wide(type_: TensorType) -> TensorType:
        return dataclasses.replace(type_, dtype=_WIDE.get(type_.dtype, type_.dtype))

    def wide_value(value: Value) -> Value:
        return Atom(_WIDE.get(value.name, value.name)) if isinstance(value, Atom) else value

    def wide_param(param: Param) -> Param:
        if param.dtype not in _WIDE:
            return param
        value = param.value
        if value is not None:
            dtype = _WIDE[param.dtype]
            data = tensor_of(value).to(torch_dtype(dtype)).numpy().tobytes()
            value = Constant(dtype, value.shape, data)
        return dataclasses.replace(param, type=wide(param.type), value=value)

    def wide_node(node: Node) -> Node:
        type_ = tuple(map(wide, node.type)) if isinstance(node.type, tuple) else wide(node.type)
        args = tuple((k, replace(v, wide_value)) for k, v in node.args)
        makes = node.op.startswith("aten.") and schema(node.op).makes_tensor
        if makes and node.arg("dtype") is None and node.dtype in _WIDE:
            args = canonical_args(node.op, dict(args) | {"dtype": Atom(_WIDE[node.dtype])})
        return dataclasses.replace(node, type=type_, args=args)

    return graph.replace(
        params=tuple(map(wide_param, graph.params)), nodes=tuple(map(wide_node, graph.nodes))
    )


def random_state(graph: ArchGraph, seed: int = 0) -> dict[str, torch.Tensor]:
    """Float64 weights of natural scale without zeros, so that no law holds by accident."""
    generator = torch.Generator().manual_seed(seed)
    state: dict[str, torch.Tensor] = {}
    for param in graph.params:
        if param.role == "constant":
            continue
        if param.value is not None:
            state[param.name] = tensor_of(param.value)
            continue
        dtype = torch_dtype(param.dtype)
        if not (dtype.is_floating_point or dtype.is_complex):
            state[param.name] = torch.zeros(param.shape, dtype=dtype)
            continue
        fan_in = max(int(np.prod(param.shape[1:])), 1)
        wide = torch.complex128 if dtype.is_complex else torch.float64
        tensor = torch.randn(param.shape, generator=generator, dtype=wide)
        if len(param.shape) > 1:
            tensor *= (1.5 / fan_in) ** 0.5
        else:  # norm weights, biases, means and variances: around one, never below a half
            tensor = 1 + 0.25 * tensor.tanh()
        state[param.name] = tensor
    return state


def random_inputs(graph: ArchGraph, batch: int = 2, seed: int = 0) -> dict[str, Any]:
    """Inputs of the graph's types by argument name; whole numbers are 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for node in graph.nodes:
        if node.op != "input":
            continue
        shape = [size_at(s, batch) for s in node.shape]
        dtype = torch_dtype(node.dtype)
        if dtype.is_floating_point or dtype.is_complex:
            wide = torch.complex128 if dtype.is_complex else torch.float64
            tensors[node.name] = torch.randn(shape, generator=generator, dtype=wide).to(dtype)
        else:
            tensors[node.name] = torch.randint(0, 2, shape, generator=generator).to(dtype)

    def real(value: Value) -> Any:
        match value:
            case Ref(name):
                return tensors[name]
            case tuple():
                return tuple(real(v) for v in value)
            case Record():
                return {k: real(v) for k, v in value.fields}
            case _:
                return value

    return {k: real(v) for k, v in graph.inputs}


def outputs(module: torch.nn.Module, inputs: Mapping[str, Any]) -> list[torch.Tensor]:
    """All output tensors of a module, in order, without gradients."""
    with torch.no_grad():
        result = module(**inputs)
    return [t.detach() for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]


def difference(results: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Largest absolute difference, relative to the largest expected magnitude."""
    worst = 0.0
    for a, b in zip(results, expected, strict=True):
        if a.shape != b.shape:
            return float("inf")
        if not b.numel():
            continue
        wide = torch.complex128 if b.is_complex() else torch.float64
        scale = max(float(b.to(wide).abs().max()), 1e-12)
        gap = float((a.to(wide) - b.to(wide)).abs().max()) / scale
        worst = max(worst, gap if gap == gap else float("inf"))
    return worst


def masked(graph: ArchGraph, state: State, kept: Kept) -> tuple[ArchGraph, dict[str, torch.Tensor]]:
    """The wide graph and state with every dropped position at zero's edge, in constants too.

    Numbers are multiplied by :data:`NOTHING`, not by zero: a direction that is computed from
    dropped weights alone (weight norm's ``v/‖v‖``) stays a number, whatever it is multiplied with
    stays nothing.
    """
    solved = axes(graph)
    values: dict[str, torch.Tensor] = {}
    params: list[Param] = []
    for param in graph.params:
        tensor = tensor_of(param.value) if param.role == "constant" and param.value else None
        tensor = state[param.name].clone() if tensor is None else tensor
        mask = torch.ones(tensor.shape, dtype=torch.bool)
        for d, layout in enumerate(solved.of(param.name)):
            stays = torch.zeros(tensor.shape[d], dtype=torch.bool)
            stays[torch.from_numpy(positions(layout, kept))] = True
            mask &= stays.reshape([-1 if i == d else 1 for i in range(tensor.dim())])
        floating = tensor.is_floating_point() or tensor.is_complex()
        tensor = tensor * (mask.double().clamp(min=NOTHING) if floating else mask)
        if param.role == "constant":
            data = Constant(param.dtype, param.shape, tensor.numpy().tobytes())
            param = dataclasses.replace(param, value=data)
        else:
            values[param.name] = tensor
        params.append(param)
    return graph.replace(params=tuple(params)), values


def mask_equals_take(
    graph: ArchGraph,
    rewritten: Rewritten,
    kept: Kept,
    *,
    tolerance: float = 1e-10,
    seed: int = 0,
) -> float:
    """Law of width: the cut network computes what the wide one does with dropped positions zeroed.

    Axes that a norm, softmax or reduction spans are left whole for the comparison, since such an
    operator counts zeros too; for them only running is checked. Returns the largest relative
    difference.

    Raises:
        RewriteError: If the difference exceeds the tolerance.
    """
    solved = axes(graph)
    spanned = {a.name for a in solved.free if a.spans}
    inputs = random_inputs(in_float64(graph), seed=seed)
    if any(name in spanned for name in kept):
        whole = in_float64(rewritten.graph)
        outputs(build(whole, random_state(whole, seed)).eval(), inputs)
        kept = {k: v for k, v in kept.items() if k not in spanned}
        rewritten = cut(graph, kept)
    wide = in_float64(graph)
    state = random_state(wide, seed)
    return compare(
        masked(wide, state, kept),
        (in_float64(rewritten.graph), rewritten.transfer.pull(state)),
        inputs,
        "mask ≡ take does not hold: a rule of the operator table is wrong",
        tolerance=tolerance,
        hint="please report the model",
    )


def compare(
    before: tuple[ArchGraph, State],
    after: tuple[ArchGraph, State],
    inputs: Mapping[str, Any],
    message: str,
    *,
    tolerance: float = 1e-10,
    hint: str | None = None,
) -> float:
    """Largest relative difference between what two networks compute in evaluation.

    Raises:
        RewriteError: If it exceeds the tolerance.
    """
    expected, results = (
        outputs(build(graph, state).eval(), inputs) for graph, state in (before, after)
    )
    gap = difference(results, expected)
    if not gap <= tolerance:
        raise RewriteError(
            message,
            where=before[0].name or "graph",
            found=f"relative difference {gap:.3g}",
            expected=f"≤ {tolerance:g}",
            hint=hint,
        )
    return gap


def to_float64(transfer: Transfer) -> Transfer:
    """The transfer between float64 states: what it initialises is as exact."""
    source, target = (
        tuple(s._replace(dtype=_WIDE.get(s.dtype, s.dtype)) for s in slots)
        for slots in (transfer.source, transfer.target)
    )
    return Transfer(source, target, transfer.entries)


def same_function(
    graph: ArchGraph, rewritten: Rewritten, *, tolerance: float = 1e-10, seed: int = 0
) -> float:
    """Law of growth: the rewritten network computes what the original does, in evaluation.

    Raises:
        RewriteError: If the largest relative difference, which is returned, exceeds the tolerance.
    """
    before = in_float64(graph)
    state, inputs = random_state(before, seed), random_inputs(before, seed=seed)
    after = in_float64(rewritten.graph), to_float64(rewritten.transfer).pull(state)
    message = "the rewrite changed the function"
    return compare((before, state), after, inputs, message, tolerance=tolerance)
