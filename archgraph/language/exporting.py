"""Export a model with its weights. The suffix of the file determines the format."""

from __future__ import annotations

import io
import os
from pathlib import Path

from archgraph.errors import SpecError
from archgraph.files import write
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph
from archgraph.language.saved import save_folder
from archgraph.onnx.export import WeightsIn, export_onnx
from archgraph.states import State

ENDINGS = {
    ".onnx": "model and weights for onnxruntime",
    ".pt2": "program and weights for torch.export",
    ".safetensors": "weights alone",
    "": "a folder, which archgraph.load takes",
}


@takes_graph
def export(
    graph: ArchGraph,
    state: State,
    path: str | os.PathLike[str],
    *,
    weights: WeightsIn = "inside",
    optimize: bool = False,
    verify: bool = True,
) -> Path:
    """Export a model with its weights, in the format that the suffix of the path selects.

    - ``.onnx``: model and weights in evaluation mode. The batch size is variable, initializers are
      named like the parameters and buffers, and :func:`archgraph.load` restores the same graph and
      state.
    - ``.pt2``: model and weights in evaluation mode, for ``torch.export.load``.
    - ``.safetensors``: only the weights, under the names of the traced model.
    - no suffix: a folder like that of :func:`archgraph.save`.

    Args:
        graph: Any graph: a global model, a client's model, or one part of a split model.
        state: Dict from name to parameter or buffer.
        path: Path of the file. An existing file is replaced.
        weights: For ONNX, where weights are stored. inside: in the same file; beside: in a second
            file with the suffix ``.data``, which models of 2 GiB and more require.
        optimize: For ONNX: fold constants and merge operators for deployment. Weights then lose
            their names, and the file cannot be loaded as the same graph.
        verify: For ONNX: run the file in onnxruntime with two batch sizes, and compare the results
            with those of PyTorch.

    Raises:
        GraphError: If the graph cannot be expressed in ONNX, the results of the file differ from
            those of PyTorch, or the state does not belong to the graph. An existing file at the
            path is then not replaced.
        SpecError: If the path has another suffix.
        RunError: If the packages of the extra ``onnx`` are not installed, or the file cannot be
            written.

    Example:
        >>> import tempfile, torch
        >>> import archgraph as ag
        >>> graph, state = ag.trace(torch.nn.Linear(3, 2), torch.zeros(1, 3))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = export(graph, state, f"{folder}/linear.pt2")
        ...     torch.export.load(file).module()(torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """
    target = Path(path)
    ending = target.suffix.lower()
    if ending not in ENDINGS:
        expected = ", ".join(f"{e or 'no ending'} ({what})" for e, what in ENDINGS.items())
        raise SpecError("unknown ending", where=str(path), found=ending, expected=expected)
    if ending == ".onnx":
        return export_onnx(graph, state, target, weights=weights, optimize=optimize, verify=verify)
    if not ending:
        return save_folder(graph, state, target)
    return write(target, _program(graph, state) if ending == ".pt2" else _tensors(graph, state))


def _tensors(graph: ArchGraph, state: State) -> bytes:
    from safetensors.torch import save

    from archgraph.module.build import state_dict

    full = state_dict(graph, state)
    # Once for all names of a tied tensor, as PyTorch's libraries write them.
    tensors = {name: full[name].detach().cpu().contiguous() for name in graph.state_names}
    return save(tensors, metadata={"format": "pt"})  # transformers asks for it


def _program(graph: ArchGraph, state: State) -> bytes:
    import torch

    from archgraph.capture.export import export_program
    from archgraph.module.build import build
    from archgraph.rewrites.laws import random_inputs

    inputs = random_inputs(graph)  # by position, as most programs are called
    program = export_program(build(graph, state).eval(), tuple(inputs.values()), {}).program
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()
