"""Batches of a size that a file does not state: is each example computed alone?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from archgraph.errors import SpecError
from archgraph.graph.ir import ArchGraph, Ref
from archgraph.graph.values import Batch, TensorType, walk
from archgraph.module.build import build
from archgraph.onnx.memory import check_memory
from archgraph.onnx.session import tolerance
from archgraph.rewrites.laws import outputs, random_inputs

if TYPE_CHECKING:
    from archgraph.onnx.network import OnnxModule


def check_batches(
    graph: ArchGraph,
    state: Mapping[str, torch.Tensor],
    module: OnnxModule,
    where: str,
    *,
    stated: bool,
) -> None:
    """Refuse a graph that computes for two examples something else than the file says.

    A file for a batch of one (or one that says so in a reshape) is taken for any batch, which is
    right only if examples do not meet: two of them then give what each gives alone.

    Args:
        graph: What became of the file.
        state: Its weights.
        module: The file's nodes.
        where: The file's name, for errors.
        stated: Whether the file is not for a batch of one, so that its nodes say what two examples
            give (of an axis of time, say); where they take no two, examples must not meet either.

    Raises:
        SpecError: If it does.
    """
    if not any(_axes(graph.node[name].type) for name in _inputs(graph)):
        return
    built = build(graph, state).eval()
    both = random_inputs(graph, 2)
    check_memory(built, both, lambda: where)
    results = _computed(built, both, where)
    alone = _said(module, both, where) if stated else None
    if alone is not None:
        same = _all_close(results, alone, graph)
    else:
        first, _ = _halves(graph, both)
        same = _apart(graph, built, both, results, where)
        if same and not stated:
            same = not _differs(module, first, built, graph, where)
        if same and (other := _larger(graph, both)) is not None:
            with contextlib.suppress(SpecError):  # numbers that a table does not have
                results = _computed(built, other, where)
                same = _apart(graph, built, other, results, where)
    if not same:
        raise SpecError(
            "is a file for one batch size, and its examples meet: no other size is computed right",
            where=where,
            found="two examples give something else than each of them alone",
            hint="export it with an open batch, and without sizes of a batch in reshapes",
        )


def _computed(module: torch.nn.Module, inputs: Mapping[str, Any], where: str) -> list[torch.Tensor]:
    """Compute the results of a graph.

    Raises:
        SpecError: If they cannot be computed: an axis beyond the last one, say.
    """
    try:
        return outputs(module, inputs)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise SpecError("cannot be computed", where=where, found=str(error)[:200]) from error


def _apart(
    graph: ArchGraph,
    built: torch.nn.Module,
    both: Mapping[str, Any],
    results: list[torch.Tensor],
    where: str,
) -> bool:
    """Return whether two examples together give what each of them gives alone."""
    parts = [_computed(built, one, where) for one in _halves(graph, both)]
    types = [graph.node[ref.name].type for ref in walk(graph.outputs) if isinstance(ref, Ref)]
    return all(
        _close(whole, _joined(one, type_), graph)
        for whole, one, type_ in zip(results, zip(*parts, strict=True), types, strict=True)
    )


def _differs(
    module: OnnxModule,
    one: Mapping[str, Any],
    built: torch.nn.Module,
    graph: ArchGraph,
    where: str,
) -> bool:
    """Return whether the file's nodes give another result for the one example it is for."""
    said = _said(module, one, where)
    return said is not None and not _all_close(_computed(built, one, where), said, graph)


def _larger(graph: ArchGraph, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Other inputs, a hundred times as large, and whole numbers up to seven."""
    generator = torch.Generator().manual_seed(1)
    made = {
        name: x * 100
        if x.is_floating_point()
        else torch.randint(0, 8, x.shape, generator=generator).to(x.dtype)
        for name, x in inputs.items()
        if isinstance(x, torch.Tensor) and x.dtype != torch.bool
    }
    return {**inputs, **made} if made else None


def _all_close(found: list[torch.Tensor], expected: list[torch.Tensor], graph: ArchGraph) -> bool:
    return len(found) == len(expected) and all(
        _close(a, b, graph) for a, b in zip(found, expected, strict=True)
    )


def _inputs(graph: ArchGraph) -> list[str]:
    return [node.name for node in graph.nodes if node.op == "input"]


def _axes(type_: Any) -> list[int]:
    shape = type_.shape if isinstance(type_, TensorType) else ()
    return [axis for axis, size in enumerate(shape) if isinstance(size, Batch)]


def _said(module: OnnxModule, both: Mapping[str, Any], where: str) -> list[torch.Tensor] | None:
    """Compute what the file's nodes give for the sizes as they are; None if they reject them.

    Raises:
        SpecError: If what they compute on the way is too large; the graph may have none of it.
    """
    check_memory(module, both, lambda: f"{where}: {module.at}")
    try:
        return outputs(module.eval(), both)
    except (RuntimeError, SpecError):
        return None


def _halves(graph: ArchGraph, both: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the inputs of each example alone; an input without a batch axis goes with both."""
    for half in range(2):
        yield {
            name: value.chunk(2, _axes(graph.node[value_name].type)[0])[half]
            if _axes(graph.node[value_name].type)
            else value
            for (name, value), value_name in zip(both.items(), _inputs(graph), strict=True)
        }


def _joined(parts: tuple[torch.Tensor, ...], type_: Any) -> torch.Tensor:
    """One result for two examples; where it has no batch, both examples give the same."""
    axes = _axes(type_)
    if axes:
        return torch.cat(parts, axes[0])
    return parts[0] if torch.equal(*parts) else parts[0].new_empty(0)


def _close(a: torch.Tensor, b: torch.Tensor, graph: ArchGraph) -> bool:
    if a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    allowed = tolerance(graph)
    scale = b.double().nan_to_num(0, 0, 0).abs().max().item() if b.numel() else 0.0
    return torch.allclose(a.double(), b.double(), rtol=0, atol=allowed * scale, equal_nan=True)
