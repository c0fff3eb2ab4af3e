"""Comparison of ONNX files in onnxruntime with modules."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.utils import _pytree as pytree

from archgraph.errors import GraphError
from archgraph.graph.ir import ArchGraph
from archgraph.graph.sizes import other_sizes
from archgraph.module.build import ArchModule
from archgraph.rewrites.laws import outputs, random_inputs, relative_difference

if TYPE_CHECKING:
    import onnxruntime

# Tolerance relative to the largest value of each result, by the least precise type of a graph.
TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 5e-3, "bfloat16": 4e-2}
BATCHES = (1, 3)  # neither is that of the example


def tolerance(graph: ArchGraph) -> float:
    """Return the largest allowed relative difference between a file's and its graph's results."""
    types = [p.dtype for p in graph.params] + [n.dtype for n in graph.nodes if n.op == "input"]
    return max((TOLERANCES[t] for t in types if t in TOLERANCES), default=TOLERANCES["float32"])


def open_session(path: Path, name: str | None = None) -> onnxruntime.InferenceSession:
    """Open a session of onnxruntime on the CPU, which only logs errors.

    Args:
        path: The file.
        name: Name of the file in errors. Default: its path.

    Raises:
        GraphError: If onnxruntime refuses the file.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # errors only
    with _refusing(name or str(path)):
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@contextlib.contextmanager
def _refusing(where: str) -> Iterator[None]:
    """Convert errors of onnxruntime to a GraphError."""
    try:
        yield
    except Exception as error:  # its classes, defined in C++, do not have a common base
        reason, hint = str(error).split("\n")[0], "verify=False writes it for other programs"
        raise GraphError(
            "cannot be run by onnxruntime", where=where, found=reason, hint=hint
        ) from error


def run_session(
    session: onnxruntime.InferenceSession, tensors: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Run a session on input tensors; inputs and results are in the file's order."""
    results = session.run(
        None,
        {
            item.name: tensor.numpy()
            for item, tensor in zip(session.get_inputs(), tensors, strict=True)
        },
    )
    return [torch.from_numpy(result) for result in results]


def distance(results: list[torch.Tensor], expected: list[torch.Tensor], allowed: float) -> float:
    """Return the largest difference, relative to the largest value of each result.

    Absolute differences up to a hundredth of ``allowed`` are ignored: onnxruntime's sigmoid is
    exact to 1e-7, and all values of a result may be this small.
    """
    gap = relative_difference(results, expected)
    if gap <= allowed:
        return gap
    far = [
        (a, b)
        for a, b in zip(results, expected, strict=True)
        if a.shape != b.shape
        or not torch.allclose(a.double(), b.double(), rtol=0.0, atol=allowed / 100, equal_nan=True)
    ]
    return relative_difference([a for a, _ in far], [b for _, b in far])


def check_file(path: Path, module: ArchModule, name: str) -> float:
    """Measure the difference between a file and a module, for two batch sizes and random inputs.

    Raises:
        GraphError: If rounding does not explain the difference.
    """
    session, allowed = open_session(path, name), tolerance(module.arch)
    worst = 0.0
    for batch, sizes in zip(BATCHES, ({}, other_sizes(module.arch)), strict=True):
        inputs = random_inputs(module.arch, batch, sizes=sizes)
        tensors = [t for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
        expected = outputs(module, inputs)
        with _refusing(name):
            results = run_session(session, tensors)
        gap = distance(results, expected, allowed)
        # Compare the module with itself: one that draws random numbers differs from itself, too.
        if gap > allowed and distance(outputs(module, inputs), expected, allowed) > allowed:
            raise GraphError(
                "draws random numbers in evaluation; verify=False skips the comparison", where=name
            )
        worst = max(worst, gap)
    if not worst <= allowed:  # NaN is not
        raise GraphError(
            "computes something else in onnxruntime",
            where=name,
            found=f"relative difference {worst:.1e}",
            expected=f"at most {allowed:.0e}",
        )
    return worst
