"""Commands about weights: their order, and files of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from archgraph.cli.app import command
from archgraph.cli.arguments import DataFolder, OutputFile, is_run
from archgraph.cli.output import show_item, wrote
from archgraph.errors import SpecError

if TYPE_CHECKING:
    from torch import Tensor

    from archgraph.graph.ir import ArchGraph
    from archgraph.states import State

WithState: TypeAlias = "tuple[ArchGraph, State]"

WithWeights = Annotated[
    str, typer.Argument(metavar="MODEL", help="A model (YAML or ONNX), a run folder, or RUN:MODEL.")
]

States = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="Weights of a model (safetensors). One per model, in order."),
]


@command()
def match(
    model: WithWeights,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="A network of the same form.")],
    state: States = None,
    restarts: Annotated[int, typer.Option(min=1, help="Random orders of the axes to try.")] = 1,
    seed: Annotated[int, typer.Option(help="Of these orders.")] = 0,
    data: DataFolder = None,
    output: OutputFile = None,
) -> None:
    """Bring the weights of a network into the order of another one.

    Networks that were trained apart have their positions in different orders, and an order changes
    no result. Prints how many positions of each axis move, and how alike the weights are before and
    after; --output writes the weights of OTHER in the order of MODEL (safetensors). OTHER may be
    narrower.
    """
    import archgraph

    if output is not None:
        check_weights_file(output)
    (graph, a), (second, b) = (one_model(n, data, s) for n, s in with_states([model, other], state))
    result = archgraph.match(graph, a, b, other=second, restarts=restarts, seed=seed)
    show_item(result.table())
    if output is not None:
        wrote(archgraph.export(second, result.order.pull(b), output))


@command()
def export(
    model: WithWeights,
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", help="Where to write: FILE.onnx, .pt2 or .safetensors, or a folder."
        ),
    ],
    state: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Weights of the model (safetensors).")
    ] = None,
    beside: Annotated[
        bool, typer.Option("--beside", help="Weights in a file of their own beside it.")
    ] = False,
    optimize: Annotated[
        bool, typer.Option("--optimize", help="For deployment; weights lose their names.")
    ] = False,
    verify: Annotated[
        bool, typer.Option(help="Run it in onnxruntime and compare before it is written.")
    ] = True,
    data: DataFolder = None,
) -> None:
    """Write a model with its weights for another program, or its weights alone.

    The ending says which: .onnx, .pt2 (torch.export), .safetensors (weights alone); without an
    ending it is a folder, which every command takes as a model.

    In ONNX the batch size stays free and weights keep their names, so that every command takes the
    file as a model again. The weights are those of --state, of the run (RUN:MODEL), of the ONNX
    file, or of a model written in Python; any other model file has none and is written with the
    weights that a run with seed 0 starts from. A run's model has the running statistics that it is
    tested with. Weights in a .safetensors file are what --state and an experiment's `weights` take.
    """
    import archgraph

    for option, asked in (("--beside", beside), ("--optimize", optimize)):
        if asked and output.suffix.lower() != ".onnx":
            raise SpecError("applies to ONNX files only", where=option, found=str(output))
    graph, weights = one_model(model, data, state, tested=True)
    where: Literal["beside", "inside"] = "beside" if beside else "inside"
    wrote(archgraph.export(graph, weights, output, weights=where, optimize=optimize, verify=verify))


def check_weights_file(output: Path, option: str = "--output") -> None:
    """Check that a file for weights ends as one, before anything is printed."""
    if output.suffix.lower() != ".safetensors":
        expected = "a .safetensors file"
        raise SpecError("unknown suffix", where=option, found=str(output), expected=expected)


def read_weights(graph: ArchGraph, file: Path) -> dict[str, Tensor]:
    """Read the weights of a model; ones that diverged can be looked at."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from archgraph.states import check_update

    try:
        state = load_file(file)
    except SafetensorError as error:
        raise SpecError("is not a safetensors file", where=str(file), found=error) from error
    check_update(graph, state, finite=False)
    return state


def with_states(
    names: Sequence[str], files: Sequence[Path] | None
) -> Iterable[tuple[str, Path | None]]:
    """Yield the models and the files of their weights, one each in the order of the models."""
    weights = list(files or ())
    if len(weights) > len(names):
        raise SpecError("more files than models", where="--state", found=str(weights[len(names)]))
    return zip(names, itertools.chain(weights, itertools.repeat(None)), strict=False)


def with_weights(
    files: Sequence[str],
    subjects: Sequence[object],
    states: Sequence[Path] | None,
    data: Path | None,
) -> tuple[object, dict[str, State]]:
    """Return what a page shows by the names of its weights, and these weights."""
    pairs = list(with_states(files, states))
    if len(files) == 1 and is_run(Path(files[0])):
        models = _models(files[0], data, pairs[0][1])
        return subjects[0], {name: model[1] for name, model in models.items()}
    # One file with several states stands there as often.
    names = [f"{f} ({i + 1})" if f in files[:i] else f for i, f in enumerate(files)]
    weights = {name: one_model(f, data, s)[1] for name, (f, s) in zip(names, pairs, strict=True)}
    return dict(zip(names, subjects, strict=True)), weights


def _models(
    name: str, data: Path | None, file: Path | None, tested: bool = False
) -> Mapping[str, WithState]:
    """Read architectures with weights: of a run, of one of its models, or of a model file.

    A model without a file of weights has its own, if it is written in Python, else untrained ones.
    """
    import archgraph
    from archgraph.engine.trained import trained
    from archgraph.language import load_model
    from archgraph.language.yaml import read_document

    # A file whose name holds a colon is that file.
    folder, mark, chosen = (name, "", "") if Path(name).exists() else name.rpartition(":")
    if is_run(Path(folder or name)):
        if file is not None:
            raise SpecError("has weights of its own", where=name, found=f"--state {file}")
        models = trained(folder or name, data_root=data, tested=tested)
        if mark and chosen not in models:
            expected = ", ".join(models)
            raise SpecError("has no such model", where=name, found=chosen, expected=expected)
        return {chosen: models[chosen]} if mark else models
    graph, state = load_model(read_document(name))
    if file is not None:
        state = read_weights(graph, file)
    return {"": (graph, state or archgraph.initial_state(graph, 0))}


def one_model(name: str, data: Path | None, file: Path | None, tested: bool = False) -> WithState:
    """Return an architecture with weights; of a run folder its global model."""
    from archgraph.fields import GLOBAL  # with pydantic: not before a command needs it

    models = _models(name, data, file, tested)
    if len(models) > 1 and GLOBAL not in models:
        raise SpecError(
            "holds several models", where=name, found=", ".join(models), expected=f"{name}:MODEL"
        )
    return models.get(GLOBAL) or next(iter(models.values()))
