"""Comparison of an ONNX file, run by onnxruntime, with a PyTorch module."""

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

# Tolerance for each dtype, relative to the largest value of a result.
TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 5e-3, "bfloat16": 4e-2}
BATCHES = (1, 3)  # neither is the batch size of the example


def tolerance(graph: ArchGraph) -> float:
    """Return the allowed relative difference between the results of a file and of its graph."""
    types = [p.dtype for p in graph.params] + [n.dtype for n in graph.nodes if n.op == "input"]
    return max((TOLERANCES[t] for t in types if t in TOLERANCES), default=TOLERANCES["float32"])


def open_session(path: Path, name: str | None = None) -> onnxruntime.InferenceSession:
    """Open a file in onnxruntime on the CPU; warnings are not logged.

    Args:
        path: The file.
        name: Name of the file in errors. Default: its path.

    Raises:
        GraphError: If onnxruntime rejects the file.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # log only errors
    with _refusing(name or str(path)):
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@contextlib.contextmanager
def _refusing(where: str) -> Iterator[None]:
    """Convert errors of onnxruntime to a GraphError."""
    try:
        yield
    except Exception as error:  # its error classes do not have a common base class
        reason, hint = str(error).split("\n")[0], "verify=False writes the file without running it"
        raise GraphError(
            "cannot be run by onnxruntime", where=where, found=reason, hint=hint
        ) from error


def run_session(
    session: onnxruntime.InferenceSession, tensors: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Run a file on input tensors, in the order of the file; return the results."""
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

    Absolute differences up to a hundredth of ``allowed`` are ignored. For example, onnxruntime's
    sigmoid has errors of 1e-7, which matter if all values of a result are tiny.
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
    """Compare the results of a file and a module on random inputs with two batch sizes.

    Raises:
        GraphError: If the difference is larger than rounding errors.
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
        # Run the module twice: if it draws random numbers, its own results differ.
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
