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

flower = typer.Typer(no_args_is_help=True, help="Experiments on machines that Flower connects.")
app.add_typer(flower, name="flower")


@training()
def run(
    experiment: ExperimentFile,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; default: the experiment's, or runs/NAME.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume after the last round.")] = False,
    resume_from: Annotated[
        int | None,
        typer.Option(metavar="ROUND", help="Resume after this round; later rounds are removed."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run in the folder.")
    ] = False,
    data: DataFolder = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Processes that train clients side by side."),
    ] = None,
    settings: Settings = None,
) -> None:
    """Run or resume an experiment."""
    import archgraph

    # As a setting: it is checked like one, and the command that resumes repeats it.
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
        complain(f"the run did not end well: {'; '.join(done.troubles)}")
        raise typer.Exit(DIFFERENT)


def _saved(folder: Path, words: Iterable[str]) -> str:
    """Describe the saved part of a stopped run, and the command that resumes it."""
    from archgraph.record.folder import saved_rounds

    last = max(saved_rounds(folder), default=None)  # 0: the state before the first round
    if last is None:
        return "nothing was saved"
    # Consent is given for each call, and never recorded.
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
        bool, typer.Option("--follow", help="Write it after each round, until the run ends.")
    ] = False,
) -> None:
    """Make a page of a run, or of several.

    Table, curves, architectures and settings in one HTML file that loads nothing. Runs that differ
    only in their seed are one curve with a band. Without --output the page is written to the folder
    of the first run.

    With --follow the page reloads itself while the run continues, and shows its architectures at
    the end. Ctrl-C ends this; the run continues.
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
    except ArchGraphError:  # a page without it is better than none
        return ""


@training()
def study(
    paths: Annotated[
        list[Path], typer.Argument(metavar="STUDY...", help="Study files, or folders of them.")
    ],
    size: Annotated[
        Literal["paper", "small"], typer.Option(help="As published, or for two cores.")
    ] = "small",
    workers: Annotated[
        int, typer.Option(min=1, metavar="N", help="Processes of one thread each.")
    ] = 1,
    out: Annotated[Path, typer.Option(help="Folder of runs and tables.")] = Path("runs/studies"),
    data: DataFolder = None,
    only_read: Annotated[
        bool, typer.Option("--only-read", help="Run nothing: show the table of the existing runs.")
    ] = False,
    only: Annotated[
        Words,
        typer.Option(metavar="CELL", help="Run this row, column or 'ROW | COLUMN' (* and ?)."),
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(metavar="N", help="Run only this seed of the study.")
    ] = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Repeat cells recorded with another BITS, torch or numpy."),
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Run nothing new: repeat round 1 of one cell per row."),
    ] = False,
    records: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder of the records of finished runs; default: OUT/records."
        ),
    ] = None,
) -> None:
    """Run tables of experiments, and show measured next to published figures.

    Every cell is an ordinary run for each seed. A finished run leaves a line in a file of
    --records, named after everything that determines its figures; all tables are computed from
    these lines, and no study runs it again, even if its folder was deleted. After any stop, the
    same command resumes. --only and --seed, each repeatable, run a part; tables include all
    finished runs.

    Tables have mean and standard deviation, and the differences that the study names with 95 %
    interval, p (corrected for their number) and the detectable difference. They are printed and
    written as text, LaTeX and CSV. Exit code 1 if a run failed or lacks its data set or a first
    round does not repeat, 2 if nothing can begin without the named data sets.
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
        # After each study: its tables are written, even if the next one fails.
        show_tables(study_tables(result))
        for path in write_study(result, file.stem, out):
            wrote(path)

    try:
        left, lacking = studies(paths, one, size)
    except KeyboardInterrupt:
        say("stopped; the same command resumes", error=True)
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
        bool, typer.Option("--own-rows", help="Each node has only its client's rows.")
    ] = False,
    data: DataFolder = None,
    settings: Settings = None,
) -> None:
    """Write a Flower app from an experiment.

    Project, server, client, the experiment as resolved and a page with the commands that start a
    SuperLink, its SuperNodes and the run. Needs the extra `flower` only where it is started.
    """
    from archgraph.flower.starter import write_app

    spec = experiment_of(experiment, settings)
    for path in write_app(spec, folder, data_root=data, own_rows=own_rows):
        wrote(path)


@training()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for runs and pictures.")] = Path("demo-out"),
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of each run.")] = None,
) -> None:
    """Run every step of a study in two minutes.

    Models from YAML and from plain Python, FedFA over several architectures of each, pictures.
    """
    from archgraph.demo import demo as shown

    for item in shown(out, rounds=rounds):
        if isinstance(item, str):
            say(item)
        else:
            show_item(item)
