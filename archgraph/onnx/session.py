"""ONNX files in onnxruntime: does a file compute what a module does?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from archgraph.errors import GraphError
from archgraph.module.build import ArchModule
from archgraph.rewrite.laws import difference, outputs, random_inputs

TOLERANCE = 1e-4  # relative to the largest output, in single precision
BATCHES = (2, 3)


def session(path: Path) -> Any:
    """A session of onnxruntime on one thread; it does not report what it optimises.

    Raises:
        GraphError: If onnxruntime does not take the file.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # classes of its own, made in C++
        raise GraphError(
            "cannot be run by onnxruntime", where=str(path), found=str(error).split("\n")[0]
        ) from error


def run(running: Any, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Results of a session on input tensors, both in the file's order."""
    given = zip(running.get_inputs(), tensors, strict=True)
    results = running.run(None, {put.name: tensor.numpy() for put, tensor in given})
    return [torch.from_numpy(result) for result in results]


def compare(path: Path, module: ArchModule, name: str) -> float:
    """How far a file is from a module, for two batch sizes and random inputs.

    Raises:
        GraphError: If it is farther than rounding explains.
    """
    running = session(path)
    worst = 0.0
    for batch in BATCHES:
        inputs = random_inputs(module.arch, batch)
        tensors = [t for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
        for tensor in tensors:
            # A mask: attention that may look at nothing is 0/0, on which the two do not agree.
            if tensor.dim() > 1 and not tensor.is_floating_point():
                tensor[..., 0] = 1
        gap = difference(run(running, tensors), outputs(module, inputs))
        worst = max(worst, gap)
    if not worst <= TOLERANCE:
        raise GraphError(
            "computes something else in onnxruntime",
            where=name,
            found=f"relative difference {worst:.1e}",
            expected=f"at most {TOLERANCE:.0e}",
        )
    return worst
