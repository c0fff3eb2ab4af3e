"""The command that times models on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from archgraph.cli.app import command
from archgraph.cli.arguments import models_of
from archgraph.cli.output import show_item, wrote


@command()
def profile(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL…",
            help="Models (YAML, ONNX), families, experiments, run folders; FAMILY:NAME or RUN:NAME "
            "for one of their models.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Where to write the profile (JSON).")
    ],
    batch: Annotated[int, typer.Option(min=1, help="Examples per call.")] = 1,
    training: Annotated[
        bool,
        typer.Option("--training", help="Time a training step, forward and backward."),
    ] = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the processor.")] = 1,
    device: Annotated[str, typer.Option(help="Where the models run: cpu, cuda.")] = "cpu",
    runtime: Annotated[
        Literal["torch", "onnxruntime"], typer.Option(help="What runs the models.")
    ] = "torch",
    seconds: Annotated[
        float, typer.Option(min=0, help="How long to go on, all models together.")
    ] = 60,
    submodels: Annotated[int, typer.Option(min=4, help="How many are timed of each model.")] = 12,
    seed: Annotated[int, typer.Option(help="Which submodels are drawn.")] = 0,
) -> None:
    """Time the operators of models on this machine.

    Random submodels of each model run in turns, operator by operator and as a whole. What is
    written tells the milliseconds of any submodel (`ag.DeviceProfile.load`); what is printed is the
    error on submodels that the fit did not see. Of a family its global model is timed.
    """
    from archgraph.budgets.profiling import profile as profiled

    measured = profiled(
        [graph for model in models for graph in models_of(model)],
        batch=batch,
        threads=threads,
        training=training,
        device=device,
        runtime=runtime,
        seconds=seconds,
        submodels=submodels,
        seed=seed,
    )
    show_item(measured.table())
    wrote(measured.save(output))
