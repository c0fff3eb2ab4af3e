"""Commands about one architecture or two: trace, show, explain, draw, view, diff, align."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from archgraph.cli.app import DIFFERENT, command, consent
from archgraph.cli.arguments import (
    AsJson,
    Choose,
    DataFolder,
    Member,
    ModelOrFamily,
    OutputFile,
    Words,
    by_key,
    is_run,
    numbers_by_name,
    page_subject,
    read_family,
    read_graph,
    settings_of,
    two_graphs,
    typed,
)
from archgraph.cli.output import progress, put, say, say_json, show_item, show_tables, wrote
from archgraph.cli.weights import States, one_model, with_states, with_weights
from archgraph.errors import SpecError
from archgraph.plain import Json

if TYPE_CHECKING:
    from archgraph.relate.match import PositionMatch

# Differences of two runs that are printed.
MOST = 20


@command()
def trace(
    target: Annotated[
        str, typer.Argument(metavar="python:MODULE:CALLABLE", help="What makes the nn.Module.")
    ],
    shapes: Annotated[
        list[str],
        typer.Option(
            "--input",
            metavar="NAME=N,SIZE,…[:DTYPE]",
            help="An input of forward with its batch axis, e.g. x=2,3,224,224. Repeatable.",
        ),
    ],
    arg: Annotated[
        Words,
        typer.Option(metavar="KEY=VALUE", help="An argument of the callable. Repeatable."),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            help="Refuse a module whose results, gradients or training steps the graph would not "
            "have; --no-strict notes the difference instead."
        ),
    ] = True,
    output: OutputFile = None,
    weights: Annotated[
        Path | None, typer.Option(help="Write the weights, too (safetensors).")
    ] = None,
) -> None:
    """Capture a PyTorch module as a graph.

    Prints the graph, or writes it as YAML. To name the callable here is consent to run it.
    """
    from archgraph.language import load_model, save

    kind, _, name = target.partition(":")
    if kind != "python" or ":" not in name:
        raise SpecError("is not a model", where=target, expected="python:package.module:callable")
    # As a model file would say it, so that files and this command accept the same.
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
    """Parse `2,3,224,224:float32` as an input; the batch axis comes first and is implied."""
    sizes, _, dtype = value.partition(":")
    parts = [part.strip() for part in sizes.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) for part in parts):
        expected = "name=batch,size,… e.g. x=2,3,224,224"
        raise SpecError("is not an input", where=repr(f"{name}={value}"), expected=expected)
    return {"shape": tuple(map(int, parts[1:])), **({"dtype": dtype} if dtype else {})}


@command()
def show(file: ModelOrFamily, member: Member = None, choose: Choose = None) -> None:
    """Show sections and blocks with shapes, parameters and MACs.

    Of a family: its models with their sizes; --member shows one of them.
    """
    from archgraph.display import summary_table

    if member is None and (family := read_family(file)) is not None:
        show_item(family.table())
        say(f"--member NAME shows one of them: {', '.join(family.models)}")
    else:
        show_item(summary_table(read_graph(file, choose, member)))


@command()
def explain(
    file: ModelOrFamily,
    name: Annotated[
        str | None,
        typer.Argument(
            help="An axis, section, block, leaf, operator, role, module or pattern (layer1.*); "
            "default: everything."
        ),
    ] = None,
    member: Member = None,
    choose: Choose = None,
    as_json: AsJson = False,
) -> None:
    """Explain which axes and blocks can change, or why not.

    Of a family, the global model unless --member names another one.

    Tells what would free a pinned axis, and what halving an axis or skipping a block saves. Runs of
    similar parts share a row; NAME shows them one by one, and everything that changes with an axis.
    """
    from archgraph.display import explain as explained
    from archgraph.fields import GLOBAL

    family = read_family(file) if member is None else None
    if family is not None and family.has_global:
        member = GLOBAL
    explanation = explained(read_graph(file, choose, member), name)
    if as_json:
        say_json(explanation.plain())
    else:
        show_tables(explanation.tables())


@command()
def draw(
    file: ModelOrFamily,
    output: OutputFile = None,
    cover: Annotated[
        Path | None,
        typer.Option(metavar="FAMILY", help="Colour the share of clients that feed each part."),
    ] = None,
    detail: Annotated[
        Literal["section", "block", "node"],
        typer.Option(help="A box per block, per layer, or per operator."),
    ] = "block",
    direction: Annotated[
        Literal["TB", "LR"], typer.Option(help="From top to bottom or left to right.")
    ] = "TB",
    fold: Annotated[
        bool, typer.Option(help="Show equal neighbouring blocks once, with their number.")
    ] = True,
    width: Annotated[
        str | None,
        typer.Option(
            metavar="LENGTH",
            help="Width in print (3.3in, 84mm): as much detail as can be read on a page.",
        ),
    ] = None,
    font: Annotated[str | None, typer.Option(help="A font that the computer has.")] = None,
    title: Annotated[
        str | None, typer.Option(help="Heading, '' for none; default: the model's name.")
    ] = None,
    legend: Annotated[bool, typer.Option(help="Explain marks and colours.")] = True,
    form: Annotated[
        Literal["svg", "png", "pdf", "dot"],
        typer.Option("--format", help="Of the pictures of a family."),
    ] = "svg",
    choose: Choose = None,
) -> None:
    """Draw a model, or every model of a family.

    A model goes into a file (.svg .png .pdf .dot), a family into a folder. Without --output the
    DOT text of a model is printed, and a family goes into a folder of its name; into a file goes
    its global model. A family's global model shows how many clients feed each part and with how
    much of its weights: weak points stand out. `clients` has all clients side by side.
    """
    from archgraph.display import coverage, draw_family
    from archgraph.display import draw as drawn

    family = read_family(file if cover is None else cover)
    if cover is None and family is not None and (output is None or not output.suffix):
        folder = output or Path(file.stem)
        pictures = draw_family(
            family, folder, detail=detail, direction=direction, fold=fold, form=form
        )
        for path in pictures:
            wrote(path)
        return
    if cover is not None:
        if family is None:
            raise SpecError("is not a family", where=str(cover), expected="a file with clients")
        graph = read_graph(file, choose)
        # Coverage goes by the names of leaves: another model would take the colours of this one.
        if graph.state_names != family.graph.state_names:
            hint = f"`archgraph draw {cover}` draws that"
            raise SpecError("differs from the family's global model", where=str(file), hint=hint)
    elif family is None:
        graph = read_graph(file, choose)
    elif family.has_global:
        graph = family.graph
    else:
        hint = "give --output a folder: every client's model is drawn"
        raise SpecError("has no global model to draw", where=str(file), hint=hint)
    shares = None if family is None else coverage(family)
    text = drawn(
        graph,
        output,
        cover=shares,
        detail=detail,
        direction=direction,
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
            help="Models (YAML, ONNX), families, experiments, run folders; FAMILY:NAME or RUN:NAME "
            "for one of their models.",
        ),
    ],
    output: OutputFile = None,
    title: Annotated[str | None, typer.Option(help="Heading; default: the first name.")] = None,
    importance: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Numbers that colour leaves, axes and operators: a JSON object, or lines of CSV, "
            "a name and its number or one for each position; or scores that `ag.importance` saved.",
        ),
    ] = None,
    weights: Annotated[
        bool,
        typer.Option(
            "--weights",
            help="Show weights: the values of each parameter. Of a run its last ones, of a model "
            "its own or those of --state.",
        ),
    ] = False,
    state: States = None,
    budgets: Annotated[
        bool,
        typer.Option(
            "--budgets", help="Fit submodels to 5 % to 95 % of the MACs, shown at a slider."
        ),
    ] = False,
    data: DataFolder = None,
) -> None:
    """Write a page that shows architectures in a browser.

    One HTML file that opens from disk and loads nothing. Sections, blocks and operators open on a
    click; each part tells its shapes, parameters and MACs, and why an axis is pinned. Of a family
    or a run also which clients have which positions. Several models stand side by side. Without
    --output the page is called after the first file.
    """
    from archgraph.viewer import view as page

    if state and not weights:
        raise SpecError("needs --weights", where="--state")
    subject: Json = [page_subject(file) for file in files]
    numbers = None if importance is None else numbers_by_name(importance)
    states = None
    if weights:
        subject, states = with_weights(files, subject, state, data)
    # Resolved: `.` has no name; of RUN:NAME, the colon is not part of a file name everywhere.
    path = output or Path(f"{Path(files[0]).resolve().stem.replace(':', '-')}.html")
    page(
        subject,
        path,
        title=title,
        importance=numbers,
        states=states,
        budgets=budgets,
        notify=progress,
    )
    wrote(path)


@command()
def diff(
    a: Annotated[
        str, typer.Argument(metavar="A", help="A model, FAMILY:NAME, RUN:NAME or a run folder.")
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    details: Annotated[
        bool, typer.Option("--details", help="Every leaf and operator, matched by name, too.")
    ] = False,
    match: Annotated[
        bool,
        typer.Option("--match", help="Compare the weights, too, in one order of their positions."),
    ] = False,
    state: States = None,
    data: DataFolder = None,
    as_json: AsJson = False,
) -> None:
    """Compare two models, or check whether two runs are the same.

    A row for each part that is missing, new or copied, each axis that is narrower or wider, each
    operator with other arguments. Two models of one family are compared through the transfers of
    the family, any others by structure, whatever their names.

    --match says whether the weights are equal but for the order of positions, which changes no
    result, or how near they are: those of --state, of runs, or of the model files.

    Of two run folders: where their settings, figures or tensors differ, bit by bit; times and
    numbers of workers do not count. Exit code 1 if they differ.
    """
    if state and not match:
        raise SpecError("needs --match", where="--state")
    # Of runs their bits are compared; RUN:NAME compares architectures.
    if is_run(Path(a)) and is_run(Path(b)):
        _diff_runs(Path(a), Path(b), as_json, _matched((a, b), state, data) if match else None)
        return
    from archgraph.display import diff as differences
    from archgraph.display.difference import correspondence_table
    from archgraph.relate.correspond import correspond

    # Through the transfers of a family it is known which part comes from which, not guessed.
    one, two, way = two_graphs(a, b)
    matched, difference = correspond(one, two, way), differences(one, two)
    order = _matched((a, b), state, data) if match else None
    if as_json:
        say_json(matched.plain() | _weights_as_json(order))
    elif matched.differences:
        show_item(correspondence_table(matched))
    # Correspondence goes by structure, the difference by names: only the second is exact.
    elif difference:
        say("the same architecture, other names or order; --details lists them")
    else:
        say("the same architecture")
    if details and not as_json:
        show_tables(difference.tables())
    if order is not None and not as_json:
        say(_weights_in_words(order))
    if difference or (order is not None and not order.equal):
        raise typer.Exit(DIFFERENT)


def _matched(
    models: Sequence[str], state: Sequence[Path] | None, data: Path | None
) -> PositionMatch:
    """Bring the weights of two models into one order."""
    import archgraph

    (graph, a), (second, b) = (one_model(n, data, s) for n, s in with_states(models, state))
    return archgraph.match(graph, a, b, other=second)


def _weights_in_words(order: PositionMatch) -> str:
    moved, total = sum(order.moved.values()), sum(map(len, order.positions.values()))
    if order.equal:
        return f"weights: equal{f' in another order of {moved} positions' if moved else ''}"
    return (
        f"weights: similarity {order.before:.3f}, in one order {order.after:.3f} "
        f"({moved} of {total} positions move); `archgraph match` shows it by axis"
    )


def _weights_as_json(order: PositionMatch | None) -> dict[str, Json]:
    if order is None:
        return {}
    facts = {"equal": order.equal, "moved": dict(order.moved)}
    return {"weights": {**facts, "similarity": order.before, "in_one_order": order.after}}


def _diff_runs(a: Path, b: Path, as_json: bool, order: PositionMatch | None) -> None:
    from archgraph.record.equal import run_differences

    differing, compared = run_differences(a, b)
    if as_json:
        say_json({"differences": differing, "compared": compared, **_weights_as_json(order)})
    else:
        for text in differing[:MOST]:
            say(text)
        if len(differing) > MOST:
            say(f"and {len(differing) - MOST} more; --json lists all")
        say(f"{'different' if differing else 'the same bits'}: {', '.join(compared)} compared")
        if order is not None:
            say(_weights_in_words(order))
    if differing:
        raise typer.Exit(DIFFERENT)


@command()
def align(
    a: Annotated[Path, typer.Argument(metavar="A", help="A model file.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
) -> None:
    """Align the parts of two models.

    Whatever their names, block by block, with the reason for each part without a counterpart.
    """
    from archgraph.relate.align import align as aligned

    show_tables(aligned(read_graph(a), read_graph(b)).tables())
