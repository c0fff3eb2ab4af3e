"""Commands about runs: run, report, study, demo."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import click
import typer

from archgraph.cli.app import DIFFERENT, INTERRUPTED, Command, app, command, training
from archgraph.cli.arguments import (
    DataFolder,
    ExperimentFile,
    OutputFile,
    RunFolders,
    Settings,
    Words,
    experiment_of,
)
from archgraph.cli.output import (
    complain,
    progress,
    say,
    show_item,
    show_tables,
    wrote,
)
from archgraph.errors import ArchGraphError
from archgraph.tables import Table, plural

if TYPE_CHECKING:
    from archgraph.reports.runs import Log

flower = typer.Typer(no_args_is_help=True, help="Run experiments on several machines with Flower.")
app.add_typer(flower, name="flower")


@training()
def run(
    experiment: ExperimentFile,
    out: Annotated[
        Path | None,
        typer.Option(help="Run folder; default: `out` in the experiment file, else runs/NAME."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume after the last saved round.")
    ] = False,
    resume_from: Annotated[
        int | None,
        typer.Option(metavar="ROUND", help="Resume after this round; later rounds are removed."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing run in the run folder.")
    ] = False,
    data: DataFolder = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Number of processes that train clients in parallel."
        ),
    ] = None,
    settings: Settings = None,
) -> None:
    """Run or resume an experiment."""
    import archgraph

    # As a setting, so that it is checked, and so that the command that resumes repeats it.
    if workers is not None:
        settings = [*(settings or ()), f"engine.workers={workers}"]
    spec = experiment_of(experiment, settings)
    folder = out or (Path(spec.out) if spec.out else Path("runs") / (spec.name or experiment.stem))
    try:
        done = archgraph.run(
            spec,
            out=folder,
            resume=resume,
            resume_from=resume_from,
            overwrite=overwrite,
            data_root=data,
        )
    except KeyboardInterrupt:
        options = [("--out", out), ("--data", data), *(("--set", s) for s in settings or ())]
        words = [experiment, *(word for option in options if option[1] for word in option)]
        say(f"stopped; {_saved(folder, map(str, words))}", error=True)
        raise typer.Exit(INTERRUPTED) from None
    show_item(done.table())
    rounds = plural(len(done.rounds), "round")
    say(f"{folder}: {rounds}; `archgraph report {folder}` makes a page of it")
    if not done.sound:
        complain(f"the run had problems: {'; '.join(done.troubles)}")
        raise typer.Exit(DIFFERENT)


def _saved(folder: Path, words: Iterable[str]) -> str:
    """Describe the saved part of a stopped run, and the command that resumes it."""
    from archgraph.record.folder import saved_rounds

    last = max(saved_rounds(folder), default=None)  # 0: the state before the first round
    if last is None:
        return "nothing was saved"
    # Consent is for one call, and never recorded.
    consent = click.get_current_context().find_root().params.get("python")
    python = ["--python"] if consent else []
    again = shlex.join(["archgraph", "run", *words, *python, "--resume"])
    done = f"saved through round {last}" if last else "no round is saved yet"
    return f"{done}; resume with `{again}`"


@command()
def report(
    folders: RunFolders,
    output: OutputFile = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Update the report after each round until the run ends."),
    ] = False,
) -> None:
    """Write a report of one or more runs.

    The report is one HTML file that loads no other files, with a table, curves, architectures and
    settings. Runs that differ only in their seed are shown as one curve with a band. Without
    --output, the report is written to the folder of the first run.

    With --follow, the page reloads itself until the run ends, and then shows the architectures.
    Ctrl-C ends this command; the run continues.
    """
    from archgraph.reports import read_run
    from archgraph.reports import report as page
    from archgraph.reports.comparison import run_folders
    from archgraph.reports.run_tables import tiers

    if follow:
        say(f"{output or folders[0] / 'report.html'} follows the run; Ctrl-C ends this")
    path = page(folders, output, viewer=_viewer, follow=follow)
    if len(runs := run_folders(folders)) == 1:
        show_item(tiers(read_run(runs[0])))
    wrote(path)


def _viewer(log: Log) -> str:
    """Return the page of a run's architectures; empty if its folder lacks them."""
    from archgraph.viewer import view

    try:
        return view(log)
    except ArchGraphError:  # write the report without it
        return ""


@training()
def study(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="STUDY...", help="Study files, or folders that contain study files."
        ),
    ],
    size: Annotated[
        Literal["paper", "small"],
        typer.Option(help="paper: the published settings; small: for two CPU cores."),
    ] = "small",
    workers: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of processes, each with one thread.")
    ] = 1,
    out: Annotated[Path, typer.Option(help="Folder for runs and tables.")] = Path("runs/studies"),
    data: DataFolder = None,
    only_read: Annotated[
        bool, typer.Option("--only-read", help="Only show the tables of finished runs.")
    ] = False,
    only: Annotated[
        Words,
        typer.Option(
            metavar="CELL",
            help="Only run this row, column or 'ROW | COLUMN'; * and ? are wildcards. Repeatable.",
        ),
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(metavar="N", help="Only run this seed. Repeatable.")
    ] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Repeat runs that were recorded with other versions of torch or numpy, or with "
            "a version of archgraph that gives other results.",
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Only check reproducibility: repeat the first round of one recorded run per "
            "row, and compare the results with the record.",
        ),
    ] = False,
    records: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder for the records of finished runs; default: OUT/records."
        ),
    ] = None,
) -> None:
    """Reproduce published tables of experiments.

    A study is a table of experiments. For each cell of the table, the command performs one run per
    seed. It writes the results of each finished run as a line of text into a file in the folder
    --records. This line (the record) also contains everything that affects the results: the
    settings, the seed, the versions of torch and numpy, and a number that increases whenever a new
    version of archgraph gives other results. All tables are computed from records. A recorded run
    is not repeated, even if its run folder was deleted. If the command was stopped, the same
    command resumes the study. --only and --seed select the cells and seeds to run; the tables
    include all finished runs.

    Tables show the mean and the standard deviation of the measured values, next to the published
    values. For each difference that the study lists under `compare`, the tables also show the 95 %
    confidence interval, the p-value (corrected for multiple comparisons) and the smallest
    difference that this number of seeds can detect. Tables are printed and written as text, LaTeX
    and CSV.

    The exit code is 1 if a run failed, if a data set is missing, or if --check could not reproduce
    a first round. The exit code is 2 if all data sets are missing, so that no run could start.
    """
    import archgraph
    from archgraph.studies.studies import studies
    from archgraph.studies.study_tables import study_tables, write_study

    failed: list[object] = []

    def one(file: Path) -> None:
        result = archgraph.study(
            file,
            size=size,
            workers=workers,
            out=out,
            data_root=data,
            only_read=only_read,
            only=only or (),
            seeds=seed or (),
            again=again,
            check=check,
            records=records,
            notify=progress,
        )
        failed.extend((*result.failed, *filter(None, result.repeated.values())))
        # After each study: so that its tables are written even if the next one fails.
        show_tables(study_tables(result))
        for path in write_study(result, file.stem, out):
            wrote(path)

    try:
        left, lacking = studies(paths, one, size)
    except KeyboardInterrupt:
        say("stopped; run the same command to resume", error=True)
        raise typer.Exit(INTERRUPTED) from None
    if rows := tuple({**left, **lacking}.items()):
        show_tables([Table(f"Not run in size {size}", ("study", "why"), rows)])
    if failed or lacking:
        raise typer.Exit(DIFFERENT)


@flower.command(cls=Command)
def init(
    experiment: ExperimentFile,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    own_rows: Annotated[
        bool,
        typer.Option(
            "--own-rows",
            help="Every node stores only the rows of its own client; by default, every node "
            "stores the whole data set.",
        ),
    ] = False,
    data: DataFolder = None,
    settings: Settings = None,
) -> None:
    """Write an experiment as a Flower app.

    Writes the files pyproject.toml, server_app.py and client_app.py, the experiment with all
    defaults filled in, and a README with the commands that start a SuperLink, its SuperNodes and
    the run. The extra `flower` is only needed on the machines that run the app.
    """
    from archgraph.flower.starter import write_app

    spec = experiment_of(experiment, settings)
    for path in write_app(spec, folder, data_root=data, own_rows=own_rows):
        wrote(path)


@training()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for runs and drawings.")] = Path("demo-out"),
    rounds: Annotated[int | None, typer.Option(min=1, help="Number of rounds of each run.")] = None,
) -> None:
    """Show all steps from models to a report, in two minutes.

    Runs FedFA with several architectures that are derived from two models, one in YAML and one in
    plain Python. The command also draws the architectures.
    """
    from archgraph.demo import demo as shown

    for item in shown(out, rounds=rounds):
        if isinstance(item, str):
            say(item)
        else:
            show_item(item)
