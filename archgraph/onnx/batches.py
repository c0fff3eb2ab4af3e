"""Check that a graph from a file is also correct for other sizes of dynamic dimensions."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from archgraph.errors import SpecError
from archgraph.graph.ir import ArchGraph, Node, Ref
from archgraph.graph.polynomial import sizes_in
from archgraph.graph.sizes import open_sizes, other_sizes
from archgraph.graph.values import BATCH_WORD, TensorType, size_at, walk
from archgraph.limits import LIMITS
from archgraph.module.build import build
from archgraph.onnx.session import open_session, run_session, tolerance
from archgraph.rewrites.laws import outputs, random_inputs

if TYPE_CHECKING:
    from archgraph.onnx.network import OnnxModule

TensorsByName: TypeAlias = Mapping[str, Tensor]


def check_batches(
    graph: ArchGraph, state: TensorsByName, module: OnnxModule, path: Path, batch: int | None
) -> None:
    """Raise an error if a graph is wrong for a batch of twice the file's batch size.

    On request, a file for a fixed batch size is read for any batch size. This is correct only if
    the results for an example do not depend on other examples of the batch.

    1. If the file is for any batch size and its nodes accept two examples, compare the results of
       the graph with those of the nodes.
    2. Otherwise, compare the results for the batch with the results for both halves of the batch.
    3. If the file has a fixed batch size, also compare the first half with onnxruntime.
    4. Repeat step 2 with large inputs, since a clamp may only affect large values.

    Args:
        graph: The graph read from the file.
        state: Its weights.
        module: Module that computes the nodes of the file.
        path: The file.
        batch: Batch size of the file; None for any size.

    Raises:
        SpecError: If the results differ.
    """
    if not any(_batch_axes(node.type) for node in _inputs(graph)):
        return
    where, built = str(path), build(graph, state).eval()
    both = random_inputs(graph, 2 * (batch or 1))
    _check_results(graph, where, {BATCH_WORD: 2 * (batch or 1)})
    results = _computed(built, both, where)
    expected = _computed_by_nodes(module, both) if batch is None else None
    if expected is not None:  # 1.
        same = _all_close(results, expected, graph)
    else:
        same = _apart(graph, built, both, results, where)  # 2.
        if same and batch is not None:  # 3.
            first = next(_halves(graph, both))
            expected = run_session(open_session(path), [*first.values()])
            same = _all_close(_computed(built, first, where), expected, graph)
        if same and (large := _large(both)):  # 4.
            with contextlib.suppress(SpecError):  # large indices may be outside a table
                same = _apart(graph, built, large, _computed(built, large, where), where)
    if not same:
        raise SpecError(
            "is for a fixed batch size, and its result for one example depends on other examples",
            where=where,
            hint="export it with a dynamic batch size, and without batch sizes in reshapes",
        )


def are_apart(graph: ArchGraph, state: TensorsByName, where: str) -> bool:
    """Return whether the examples of a batch are computed independently of each other."""
    built, both = build(graph, state).eval(), random_inputs(graph)
    _check_results(graph, where, {BATCH_WORD: 2})
    return _apart(graph, built, both, _computed(built, both, where), where)


def check_sizes(
    graph: ArchGraph, state: TensorsByName, module: OnnxModule, where: str, batch: int | None
) -> None:
    """Raise an error if graph and file compute different results at other sizes of dynamic axes.

    The batch size is that of the file.

    Raises:
        SpecError: If the results differ.
    """
    if not (sizes := other_sizes(graph)):
        return
    inputs = random_inputs(graph, batch or 2, sizes=sizes)
    built = build(graph, state).eval()
    _check_results(graph, where, {**sizes, BATCH_WORD: batch or 2})
    expected = _computed_by_nodes(module, inputs)
    if expected is None or not _all_close(_computed(built, inputs, where), expected, graph):
        message = "the graph and the file compute different results at other sizes"
        raise SpecError(
            message,
            where=where,
            found=str(sizes),
            hint=give_sizes(sizes),
        )


def check_range(
    graph: ArchGraph, module: OnnxModule, where: str, values: Iterable[int], batch: int | None
) -> None:
    """Raise an error if the file accepts a size of a dynamic axis that the graph does not allow.

    A graph allows a range of sizes. A range is not enough if, for example, a feature map is
    downsampled, upsampled and added to the original, so that its height must be a multiple of four.

    Args:
        graph: The graph read from the file.
        module: Module that computes the nodes of the file.
        where: The file.
        values: Sizes of dynamic axes to try.
        batch: Batch size of the file; None for any size.

    Raises:
        SpecError: If the file accepts such a size. The hint names the sizes to set.
    """
    opened = {name: size for name, size in open_sizes(graph).items() if name != BATCH_WORD}
    for value in values:
        outside = [f"{n} {s.range}" for n, s in opened.items() if not s.low <= value <= s.high]
        if not outside:
            continue
        inputs = random_inputs(graph, batch or 2, sizes=dict.fromkeys(opened, value))
        if _computed_by_nodes(module, inputs) is not None:
            holds = ", ".join(outside)
            raise SpecError(
                "the graph is not valid for all open sizes that the file accepts",
                where=where,
                found=f"the graph is valid for {holds}; the file also accepts {value}",
                hint=give_sizes(opened),
            )


def give_sizes(names: Iterable[str]) -> str:
    """Return a hint to set the sizes of the file's dynamic axes."""
    return f"set the open sizes of the file: {', '.join(f'{name}=N' for name in names)}"


def _check_results(graph: ArchGraph, where: str, sizes: Mapping[str, int]) -> None:
    """Check that no operator's result is too large to be computed for a comparison.

    Raises:
        SpecError: If a result is too large. The error names the module of the operator.
    """
    sizes = {**{name: size.probe for name, size in open_sizes(graph).items()}, **sizes}
    most = LIMITS.onnx_result_elements
    for node in graph.nodes:
        for type_ in node.types:
            if (elements := math.prod(size_at(size, sizes) for size in type_.shape)) > most:
                raise SpecError(
                    "has a result that is too large to compare two examples",
                    where=f"{where}: {node.scope or node.name}",
                    found=f"{elements:,} elements",
                    expected=f"at most {most:,}",
                )


def _computed(module: torch.nn.Module, inputs: TensorsByName, where: str) -> list[Tensor]:
    """Compute the results of a graph.

    Raises:
        SpecError: If PyTorch raises an error.
    """
    try:
        return outputs(module, inputs)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise SpecError("cannot be computed", where=where, found=str(error)[:200]) from error


def _computed_by_nodes(module: OnnxModule, inputs: TensorsByName) -> list[Tensor] | None:
    """Compute the results of the file's nodes; return None if the nodes reject the sizes."""
    try:
        return outputs(module.eval(), inputs)
    except (RuntimeError, SpecError):
        return None


def _apart(
    graph: ArchGraph, built: torch.nn.Module, both: TensorsByName, results: list[Tensor], where: str
) -> bool:
    """Return whether two examples together give the same results as each example alone."""
    parts = [_computed(built, one, where) for one in _halves(graph, both)]
    types = [graph.node[ref.name].type for ref in walk(graph.outputs) if isinstance(ref, Ref)]
    return all(
        _close(together, _joined(alone, type_), graph)
        for together, alone, type_ in zip(results, zip(*parts, strict=True), types, strict=True)
    )


def _large(inputs: TensorsByName) -> dict[str, Tensor]:
    """Return the inputs with floating-point numbers times 100, and integers up to seven."""
    generator = torch.Generator().manual_seed(1)
    large = {
        name: x * 100
        if x.is_floating_point()
        else torch.randint(0, 8, x.shape, generator=generator).to(x.dtype)
        for name, x in inputs.items()
        if x.dtype != torch.bool
    }
    return {**inputs, **large} if large else {}


def _inputs(graph: ArchGraph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "input"]


def _batch_axes(type_: object) -> list[int]:
    return [
        axis
        for axis, size in enumerate(type_.shape if isinstance(type_, TensorType) else ())
        if BATCH_WORD in sizes_in(size)
    ]


def _halves(graph: ArchGraph, both: TensorsByName) -> Iterator[dict[str, Tensor]]:
    """Yield the inputs of each half of a batch; both halves get inputs without a batch axis."""
    axes = [_batch_axes(node.type) for node in _inputs(graph)]
    for half in range(2):
        yield {
            name: value.chunk(2, batch[0])[half] if batch else value
            for (name, value), batch in zip(both.items(), axes, strict=True)
        }


def _joined(parts: tuple[Tensor, ...], type_: object) -> Tensor:
    """Concatenate the results of both halves; without a batch axis, they must be equal."""
    axes = _batch_axes(type_)
    if axes:
        return torch.cat(parts, axes[0])
    return parts[0] if torch.equal(*parts) else parts[0].new_empty(0)  # not close to any result


def _all_close(results: list[Tensor], expected: list[Tensor], graph: ArchGraph) -> bool:
    return len(results) == len(expected) and all(
        _close(a, b, graph) for a, b in zip(results, expected, strict=True)
    )


def _close(a: Tensor, b: Tensor, graph: ArchGraph) -> bool:
    if a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    scale = b.double().nan_to_num(0, 0, 0).abs().max().item() if b.numel() else 0.0
    return torch.allclose(
        a.double(), b.double(), rtol=0, atol=tolerance(graph) * scale, equal_nan=True
    )
