"""Export: a model with its weights in the form of another program, by the file's ending."""

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
    """Write a model with its weights in the format of the path's ending.

    - ``.onnx``: model and weights for evaluation. The batch size stays free, initializers have the
      names of the state's entries, and :func:`archgraph.load` restores the same graph and state.
    - ``.pt2``: the program of evaluation with its weights, for ``torch.export.load``.
    - ``.safetensors``: only the weights, under the names of the traced model.
    - none: a folder, as :func:`archgraph.save` writes it.

    Args:
        graph: Any graph: a global one, a client's, a part of a split.
        state: Its weights, by leaf name.
        path: Where to write; an existing file is replaced.
        weights: For ONNX: in the same file, or in one of the same name with ``.data`` next to it,
            which models of 2 GiB and more need.
        optimize: For ONNX: fold constants and merge operators for deployment. Weights then lose
            their names, and the file cannot be loaded as the same graph.
        verify: For ONNX: run the file in onnxruntime for two batch sizes before it gets its name,
            and compare the results with PyTorch's.

    Raises:
        GraphError: If the graph cannot be expressed in ONNX, or the file computes something else,
            or the state is not one of the graph; nothing is written then.
        SpecError: If the path has another ending.
        RunError: If the extra ``onnx`` is not installed, or the file cannot be written.

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
