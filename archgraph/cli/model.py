"""Commands about one architecture: trace, show, explain, draw, view."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from archgraph.cli.app import command, consent
from archgraph.cli.arguments import (
    AsJson,
    Choose,
    ModelOrFamily,
    OutputFile,
    Words,
    by_key,
    read_graph,
    settings_of,
    typed,
)
from archgraph.cli.output import progress, put, say, say_json, show_item, show_tables, wrote
from archgraph.errors import SpecError


@command()
def trace(
    target: Annotated[
        str,
        typer.Argument(
            metavar="python:MODULE:CALLABLE", help="A callable that returns the nn.Module."
        ),
    ],
    shapes: Annotated[
        list[str],
        typer.Option(
            "--input",
            metavar="NAME=N,SIZE,…[:DTYPE]",
            help="Shape of an input of forward, batch axis first, e.g. x=2,3,224,224. Repeatable.",
        ),
    ],
    arg: Annotated[
        Words,
        typer.Option(metavar="KEY=VALUE", help="An argument of the callable. Repeatable."),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            help="Raise an error if the graph does not reproduce the module's results, gradients "
            "and training steps. With --no-strict, only print a note."
        ),
    ] = True,
    output: OutputFile = None,
    weights: Annotated[
        Path | None, typer.Option(help="Also write the weights (safetensors).")
    ] = None,
) -> None:
    """Capture a PyTorch module as a graph.

    Prints the graph, or writes the graph as YAML (--output). The command imports MODULE and calls
    CALLABLE, so it runs this Python code even without --python.
    """
    from archgraph.language import load_model, save

    kind, _, name = target.partition(":")
    if kind != "python" or ":" not in name:
        raise SpecError("is not a model", where=target, expected="python:package.module:callable")
    # As in a model file, so that files and this command accept the same.
    data = {
        "python": name,
        "inputs": {key: _input(key, value) for key, value in by_key(shapes).items()},
        "args": settings_of(arg),
        "name": name.split(":")[1],
        "strict": strict,
    }
    with typed(target, data, f"{target}: ") as document, consent():
        graph, state = load_model(document)
    if weights is not None:
        from safetensors.torch import save as pack

        from archgraph.files import write

        # safetensors refuses views that are not contiguous.
        write(weights, pack({k: v.contiguous() for k, v in (state or {}).items()}))
    if output is None:
        put(str(graph))
    else:
        save(graph, output)
        wrote(output)


def _input(name: str, value: str) -> dict[str, object]:
    """Parse `2,3,224,224:float32` as an input; the first axis is the batch."""
    sizes, _, dtype = value.partition(":")
    parts = [part.strip() for part in sizes.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) for part in parts):
        expected = "name=batch,size,… e.g. x=2,3,224,224"
        raise SpecError("is not an input", where=repr(f"{name}={value}"), expected=expected)
    return {"shape": tuple(map(int, parts[1:])), **({"dtype": dtype} if dtype else {})}


@command()
def show(file: ModelOrFamily, choose: Choose = None) -> None:
    """Show the layers of a model with shapes, parameters and MACs.

    Consecutive blocks, such as residual blocks, form a section (a stage). For a family, the command
    shows the models with their sizes; FAMILY:NAME shows one model.
    """
    from archgraph.display import summary_table
    from archgraph.engine.address import Address

    address = Address.of(file)
    if address.member is None and not address.is_run and (family := address.family) is not None:
        show_item(family.table())
        say(f"FILE:NAME shows one of them: {', '.join(family.models)}")
    else:
        show_item(summary_table(read_graph(file, choose)))


@command()
def explain(
    file: ModelOrFamily,
    name: Annotated[
        str | None,
        typer.Argument(
            help="The part to explain: a module, parameter, buffer, block, section or axis, a role "
            "(a kind of axes, such as heads), or a pattern (layer1.*); default: the whole model."
        ),
    ] = None,
    choose: Choose = None,
    as_json: AsJson = False,
) -> None:
    """Explain which axes can be resized and which blocks can be removed.

    An axis is a dimension of tensors, such as the channels of a layer; tensors that must have the
    same size share an axis. An axis that cannot be resized is pinned. For each pinned axis, the
    command shows the reason and how to make the axis resizable. It also shows the savings from
    halving each axis and from removing each block. Similar consecutive parts share a row.

    With NAME, the command lists every matching part in its own row. For an axis, the command also
    lists the parameters and buffers that are resized with the axis. For a family, the global model
    is explained; FAMILY:NAME selects another model.
    """
    from archgraph.display import explain as explained

    explanation = explained(read_graph(file, choose), name)
    if as_json:
        say_json(explanation.plain())
    else:
        show_tables(explanation.tables())


@command()
def draw(
    file: ModelOrFamily,
    output: OutputFile = None,
    detail: Annotated[
        Literal["section", "block", "node"],
        typer.Option(
            help="Level of detail. section: one box for each block; block: one box for each layer; "
            "node: one box for each operator."
        ),
    ] = "block",
    fold: Annotated[
        bool, typer.Option(help="Show equal consecutive blocks once, with a count.")
    ] = True,
    width: Annotated[
        str | None,
        typer.Option(
            metavar="LENGTH",
            help="Printed width (3.3in, 84mm). Omits details that are too small to read in print.",
        ),
    ] = None,
    font: Annotated[str | None, typer.Option(help="Name of an installed font.")] = None,
    title: Annotated[
        str | None, typer.Option(help="Heading; '' for no heading; default: the model's name.")
    ] = None,
    legend: Annotated[
        bool, typer.Option(help="Add a legend that explains marks and colours.")
    ] = True,
    form: Annotated[
        Literal["svg", "png", "pdf", "dot"],
        typer.Option("--format", help="File format for the models of a family."),
    ] = "svg",
    choose: Choose = None,
) -> None:
    """Draw a model, or every model of a family.

    A model is drawn into a file (.svg .png .pdf .dot), a family into a folder. Without --output,
    the DOT text of a model is printed, and a family is drawn into a folder named after it. If
    --output is a file, only the family's global model is drawn. The drawing of the global model
    shows how many clients train each part, and which fraction of its weights they train.
    """
    from archgraph.display import coverage, draw_family
    from archgraph.display import draw as drawn
    from archgraph.engine.address import Address

    address = Address.of(file)
    family = address.family if address.member is None else None
    if family is not None and (output is None or not output.suffix):
        folder = output or Path(file.stem)
        pictures = draw_family(
            family, folder, detail=detail, fold=fold, form=form,
            title=title, legend=legend, width=width, font=font,
        )  # fmt: skip
        for path in pictures:
            wrote(path)
        return
    text = drawn(
        read_graph(file, choose),
        output,
        cover=None if family is None else coverage(family),
        detail=detail,
        fold=fold,
        title=title,
        legend=legend,
        width=width,
        font=font,
    )
    if output is None:
        put(text)
    else:
        wrote(output)


@command()
def view(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE…",
            help="Models (YAML, ONNX), families, experiments or run folders. FAMILY:NAME or "
            "RUN:NAME selects one model of a family or run.",
        ),
    ],
    output: OutputFile = None,
    title: Annotated[
        str | None, typer.Option(help="Heading; default: the name of the first FILE.")
    ] = None,
    importance: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Importance scores saved by `ag.importance(…).save`, which the page shows as "
            "colours.",
        ),
    ] = None,
) -> None:
    """Write an HTML page to explore architectures in a browser.

    The page is one HTML file that opens from disk and loads no other files. Sections, blocks and
    operators open on a click. Each part shows its shapes, parameters and MACs, and why an axis
    cannot be resized. For a family or run, each part also shows which positions (indices) along an
    axis each client has. Several models are shown side by side. Without --output, the page is named
    after the first file.
    """
    from archgraph.engine.address import Address
    from archgraph.states.importance import Importance
    from archgraph.viewer import view as page
    from archgraph.viewer.subjects import subject_at

    # Resolved: `.` has no name; the colon of RUN:NAME is not allowed in file names everywhere.
    path = output or Path(f"{Path(files[0]).resolve().stem.replace(':', '-')}.html")
    page(
        [subject_at(Address.of(file)) for file in files],
        path,
        title=title,
        importance=None if importance is None else Importance.load(importance),
        notify=progress,
    )
    wrote(path)
