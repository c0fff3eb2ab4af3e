"""Commands about several models or runs: compare, match."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archgraph.cli.app import DIFFERENT, command
from archgraph.cli.arguments import (
    AsJson,
    DataFolder,
    OutputFile,
    States,
    WithWeights,
    check_weights_file,
    with_states,
)
from archgraph.cli.output import put, say, say_json, show_item, show_tables, wrote
from archgraph.errors import SpecError

if TYPE_CHECKING:
    from archgraph.engine.address import Address


@command()
def compare(
    subjects: Annotated[
        list[str],
        typer.Argument(
            metavar="A B…",
            help="Two models (YAML, ONNX, FAMILY:NAME, RUN:NAME); or run folders, or folders that "
            "contain run folders.",
        ),
    ],
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Include unfinished runs.")
    ] = False,
    by_tier: Annotated[
        bool,
        typer.Option(
            "--tiers",
            help="Add a column for each tier (the clients with one architecture). Each client is "
            "tested on test data with its own class distribution; the column shows the mean over "
            "the tier's clients.",
        ),
    ] = False,
    last: Annotated[
        float | None,
        typer.Option(
            metavar="PART",
            help="Average over the tests in the last rounds: a fraction of all rounds (0.2) or "
            "a number of rounds (5).",
        ),
    ] = None,
    rows: Annotated[
        str,
        typer.Option(metavar="NAMES", help="Rows to show, e.g. 'HeteroFL,NeFL*'; default: all."),
    ] = "",
    columns: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Columns to show, in order, e.g. 'seeds,average_accuracy,mega*'; default: all. "
            "--csv prints the names of all columns.",
        ),
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FOLDER",
            help="Also draw curves, and write a PDF file per plot into this folder.",
        ),
    ] = None,
    width: Annotated[
        str | None,
        typer.Option(metavar="LENGTH", help="Printed width of a plot, e.g. 84mm; default: 3.3in."),
    ] = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    as_latex: Annotated[
        bool, typer.Option("--latex", help="Print LaTeX; a wide table is transposed.")
    ] = False,
) -> None:
    """Compare two models, or several runs.

    For two models: prints a row for each part that is missing, new or copied, each axis that is
    narrower or wider, and each operator whose arguments differ. Two models of a family are matched
    as defined by the family. Other models are matched by structure, independently of names. The
    exit code is 1 if the models differ.

    For runs: prints a row for each experiment. Runs that differ only in their seed share a row,
    which shows the mean ± the standard deviation over the seeds. Two columns show the metric on the
    whole test set: for the worst submodel, and averaged over the submodels. Another column shows
    the mean over the clients, where each client is tested on test data with its own class
    distribution. Further columns show the time and other costs. The settings in which the rows
    differ are listed below the table. The values are from the last test; with --last, they are
    means over several tests.

    With --output, each plot is written at the column width of a paper, with a font size of at least
    7 points and the legend below the axes: FOLDER/average.pdf, FOLDER/worst.pdf, …. `average` and
    `worst` plot the mean and the worst metric of the submodels against the round. `bytes` and
    `macs` plot the mean metric against the bytes sent and the MACs computed. `time` plots the
    seconds per round.
    """
    from archgraph.engine.address import Address

    addresses = [Address.of(subject) for subject in subjects]
    of_models = len(addresses) == 2 and not all(address.is_run for address in addresses)
    forms = {"--csv": as_csv, "--markdown": as_markdown, "--latex": as_latex}
    of_runs = {
        "--unfinished": unfinished, "--tiers": by_tier, "--last": last, "--output": output,
        "--width": width, "--rows": rows, "--columns": columns, **forms,
    }  # fmt: skip
    for option, asked in of_runs.items():
        if asked and of_models:
            raise SpecError("applies to runs only", where=option, found=", ".join(subjects))
    if output is not None and output.suffix:
        raise SpecError("is not a folder", where="--output", found=str(output))
    if as_json + sum(forms.values()) > 1:  # before anything is read
        raise SpecError("are mutually exclusive", where=", ".join(("--json", *forms)))
    if of_models:
        _compare_models(addresses[0], addresses[1], as_json)
        return
    folders = [address.path for address in addresses]
    from archgraph.reports.comparison import comparison

    compared = comparison(folders, unfinished=unfinished, tiers=by_tier, last=last)
    compared = compared.choose(*([n.strip() for n in s.split(",") if s] for s in (rows, columns)))
    written = list[Path]()
    if output is not None:
        from archgraph.reports.paper import paper_figures
        from archgraph.reports.plots import save_figure

        figures = paper_figures(compared, width=width or "3.3in")
        written = [save_figure(one, output / f"{name}.pdf") for name, one in figures.items()]
    if as_json:
        say_json(compared.plain())
    elif any(forms.values()):
        form = compared.csv if as_csv else compared.markdown if as_markdown else compared.latex
        put(form().removesuffix("\n"))
    else:
        show_tables(compared.tables())
        for path in written:
            wrote(path)


def _compare_models(a: Address, b: Address, as_json: bool) -> None:
    from archgraph.display.difference import correspondence_table
    from archgraph.graph.passes import renumber
    from archgraph.relate.correspond import correspond

    # The transfers of a family record exactly which parts correspond.
    way = None
    if a.path == b.path and (first := a.transfer) and (second := b.transfer):
        way = first, second
    one, two = a.graph(), b.graph()
    matched = correspond(one, two, way)
    # Matched by structure; only equal graphs are certain to be the same architecture.
    same = renumber(one) == renumber(two)
    if as_json:
        say_json(matched.plain())
    elif matched.differences:
        show_item(correspondence_table(matched))
    else:
        say("the same architecture" + ("" if same else ", other names or order"))
    if not same:
        raise typer.Exit(DIFFERENT)


@command()
def match(
    a: WithWeights,
    b: Annotated[str, typer.Argument(metavar="OTHER", help="The model to match with MODEL.")],
    weights: Annotated[
        bool,
        typer.Option(
            "--weights", help="Match the positions (indices) along each axis by the weights."
        ),
    ] = False,
    state: States = None,
    data: DataFolder = None,
    output: OutputFile = None,
) -> None:
    """Match the parts or the channels of two models.

    Matches the models block by block, independently of names, and prints why a part has no
    counterpart.

    With --weights, --state or --output, the command matches the positions along each axis, such as
    the channels of a layer. Separately trained networks may store equal channels at different
    positions, which does not affect their results. The command prints how many positions of each
    axis move, and the similarity of the weights before and after the reordering. --output writes
    the weights of OTHER, reordered to match MODEL (safetensors). OTHER may be narrower than MODEL.
    """
    import archgraph

    if output is not None:
        check_weights_file(output)
    (one, file), (other, its_file) = with_states([a, b], state)
    if not (weights or state or output):
        show_tables(archgraph.align(one.graph(), other.graph()).tables())
        return
    graph, mine = one.model(file, data_root=data)
    second, theirs = other.model(its_file, data_root=data)
    result = archgraph.match(graph, mine, theirs, other=second)
    show_item(result.table())
    if output is not None:
        wrote(archgraph.export(second, result.order.pull(theirs), output))
