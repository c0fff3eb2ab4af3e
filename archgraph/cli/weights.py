"""The command `export`, which writes a model with its weights for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from archgraph.cli.app import command
from archgraph.cli.arguments import DataFolder, WithWeights, with_states
from archgraph.cli.output import wrote
from archgraph.errors import SpecError


@command()
def export(
    model: WithWeights,
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", help="File to write (.onnx, .pt2 or .safetensors), or folder."
        ),
    ],
    state: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Weights of the model (safetensors).")
    ] = None,
    beside: Annotated[
        bool,
        typer.Option(
            "--beside", help="ONNX: store the weights in a second file next to the ONNX file."
        ),
    ] = False,
    optimize: Annotated[
        bool,
        typer.Option(
            "--optimize", help="ONNX: optimise the file for deployment; renames the weights."
        ),
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(help="ONNX: compare the results with onnxruntime before writing the file."),
    ] = True,
    data: DataFolder = None,
) -> None:
    """Export a model with its weights for another program, or only its weights.

    The suffix of --output determines the format: .onnx, .pt2 (torch.export) or .safetensors (only
    weights). Without a suffix, a folder is written, which every command accepts as a model.

    In an ONNX file, the batch size is variable and the weights keep their names, so that every
    command accepts the file as a model. The weights are taken from --state, the run (RUN:MODEL),
    the ONNX file, or the Python module. Other model files do not contain weights. Such models are
    exported with the initial weights that a run with seed 0 would have. A model from a run is
    exported with the running statistics (of batch norm) with which it is tested. A .safetensors
    file can be used for --state and for the key `weights` of an experiment.
    """
    import archgraph

    for option, asked in (("--beside", beside), ("--optimize", optimize)):
        if asked and output.suffix.lower() != ".onnx":
            raise SpecError("applies to ONNX files only", where=option, found=str(output))
    ((address, file),) = with_states([model], [state] if state else [])
    graph, weights = address.model(file, data_root=data, tested=True)
    where: Literal["beside", "inside"] = "beside" if beside else "inside"
    wrote(archgraph.export(graph, weights, output, weights=where, optimize=optimize, verify=verify))
