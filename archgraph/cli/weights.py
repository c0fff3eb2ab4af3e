"""The command that writes a model with its weights for other programs."""

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
            "-o", "--output", help="Output path: FILE.onnx, .pt2 or .safetensors, or a folder."
        ),
    ],
    state: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Weights of the model (safetensors).")
    ] = None,
    beside: Annotated[
        bool, typer.Option("--beside", help="Write weights to a separate file next to it.")
    ] = False,
    optimize: Annotated[
        bool, typer.Option("--optimize", help="For deployment; weights lose their names.")
    ] = False,
    verify: Annotated[
        bool, typer.Option(help="Run it in onnxruntime and compare before it is written.")
    ] = True,
    data: DataFolder = None,
) -> None:
    """Write a model with its weights for another program, or only its weights.

    The ending determines the format: .onnx, .pt2 (torch.export), .safetensors (only weights);
    without an ending it is a folder, which every command takes as a model.

    In ONNX the batch size stays free and weights keep their names, so that every command takes the
    file as a model again. The weights are those of --state, of the run (RUN:MODEL), of the ONNX
    file, or of a model written in Python; any other model file has none and is written with the
    initial weights of a run with seed 0. A run's model has the running statistics with which it is
    tested. --state and an experiment's `weights` take weights in a .safetensors file.
    """
    import archgraph

    for option, asked in (("--beside", beside), ("--optimize", optimize)):
        if asked and output.suffix.lower() != ".onnx":
            raise SpecError("applies to ONNX files only", where=option, found=str(output))
    ((address, file),) = with_states([model], [state] if state else [])
    graph, weights = address.model(file, data_root=data, tested=True)
    where: Literal["beside", "inside"] = "beside" if beside else "inside"
    wrote(archgraph.export(graph, weights, output, weights=where, optimize=optimize, verify=verify))
