"""Commands about runs: run, report, references, study, demo."""

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
from archgraph.tables import plural

if TYPE_CHECKING:
    from archgraph.reports.runs import Log
    from archgraph.studies.study import StudyResult

flower = typer.Typer(no_args_is_help=True, help="Experiments on machines that Flower connects.")
app.add_typer(flower, name="flower")


@training()
def run(
    experiment: ExperimentFile,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; default: the experiment's, or runs/NAME.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on after the last round.")] = False,
    resume_from: Annotated[
        int | None,
        typer.Option(
            metavar="ROUND", help="Go on after this round; what the run did later is removed."
        ),
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
    """Run an experiment, or go on with one."""
    import archgraph

    # As a setting: it is checked as one, and the command that resumes repeats it.
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
    """Write what is left of a stopped run, and the command that resumes it."""
    from archgraph.record.folder import saved_rounds

    last = max(saved_rounds(folder), default=None)  # 0: the state before the first round
    if last is None:
        return "nothing was saved"
    # Consent is given for each call, and is written down nowhere.
    consent = click.get_current_context().find_root().params.get("python")
    python = ["--python"] if consent else []
    again = shlex.join(["archgraph", "run", *words, *python, "--resume"])
    done = f"saved until round {last}" if last else "no round is saved yet"
    return f"{done}, `{again}` goes on"


@command()
def report(
    folders: RunFolders,
    output: OutputFile = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Write it after each round, until the run ends.")
    ] = False,
) -> None:
    """Make a page of a run, or of several.

    Table, curves, architectures and settings in one HTML file that loads nothing. Of several runs
    those that differ in the seed only are one curve with a band. Without --output the page goes
    into the folder of the first run.

    With --follow the page reloads itself while the run goes on, and shows its architectures at the
    end. Ctrl-C ends this; the run goes on.
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


@command()
@training()
def references(
    experiment: ExperimentFile,
    gate: Annotated[
        int | None,
        typer.Option(
            metavar="SEED",
            help="Train the largest model centrally, too: with this seed, on held-out examples.",
        ),
    ] = None,
    data: DataFolder = None,
    settings: Settings = None,
) -> None:
    """Say what trivial models reach on the data of an experiment.

    The most frequent class, softmax regression, nearest neighbours; of text unigram and bigram
    tables. Each is fitted to the training examples of all clients, and to those of each client
    alone. A method below them shows nothing about methods.

    With --gate the largest model is trained on the examples of all clients, with the experiment's
    optimiser for as many passes as clients make (at most 50), and compared with the best reference
    on examples that are held out of training. Exit code 1 if it is not better.
    """
    from archgraph.engine.world import prepare
    from archgraph.studies.references import gate as judged
    from archgraph.studies.references import gate_setting
    from archgraph.studies.references import references as fitted

    spec = experiment_of(experiment, settings)
    if gate is None:
        show_item(fitted(prepare(spec, data_root=data)).table())
        return
    result = judged(prepare(gate_setting(spec, gate), data_root=data))
    show_tables([result.references.table(), result.table()])
    if not result.passed:
        raise typer.Exit(DIFFERENT)


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
        bool, typer.Option("--only-read", help="Run nothing: the table of what is there.")
    ] = False,
    only: Annotated[
        Words,
        typer.Option(metavar="CELL", help="Run this row, column or 'ROW | COLUMN' (* and ?)."),
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(metavar="N", help="Run this seed of the study only.")
    ] = None,
    gate: Annotated[
        int | None,
        typer.Option(metavar="SEED", help="Judge the settings without a gate by this seed first."),
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="What finished runs leave; default: OUT/records."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Write a page for each paper, too."),
    ] = None,
) -> None:
    """Run published tables and put what was measured beside them.

    Every cell is an ordinary run for each seed. A run that is done leaves a line in a file of
    --records, named after what decides its figures; all tables are computed from these lines, and
    no study runs it again, whether or not its folder is still there. Stopped in whatever way, the
    same command goes on where it was. --only and --seed, each repeatable, run a part; tables hold
    all that is done.

    Primary claims are judged by a paired t test over at least five seeds, corrected for their
    number: each holds, does not (against), is equivalent within its margin, or is undecided. Other
    claims are printed with interval and p. Tables are printed and written as text, Markdown,
    LaTeX, CSV and a page. Exit code 1 if a run failed or lacks its data set, 2 if nothing can begin
    without the data sets that are named.

    --gate trains the largest model of each setting centrally, and runs methods until one is better
    than trivial models, all on held-out training examples and with a seed that the study does not
    use. Cells of a setting that does not pass are not run, and claims without a gate have no
    verdict.

    Pages are Markdown: a summary in index.md, and a page for each paper (the `page` of a study,
    or the first word of its name).
    """
    import archgraph
    from archgraph.studies.gates import judge_gates
    from archgraph.studies.spec import load_study
    from archgraph.studies.studies import studies, without_part
    from archgraph.studies.study import chosen_cells
    from archgraph.studies.study_tables import study_tables, write_study

    asked = bool(only or seed) and not only_read
    # Of several studies, those that have none of the cells asked for are read, not refused.
    others = without_part(paths, size, only or (), seed or ()) if asked else frozenset()

    def one(file: Path) -> StudyResult:
        part = asked and file not in others
        if gate is not None and not only_read and file not in others:
            spec = load_study(file)
            judge_gates(
                spec,
                gate,
                size=size,
                records=records or out / "records",
                chosen=chosen_cells(spec, size, only or (), ()),
                data_root=data,
                notify=progress,
            )
        result = archgraph.study(
            file,
            size=size,
            workers=workers,
            out=out,
            data_root=data,
            only_read=only_read or file in others,
            only=only or () if part else (),
            seeds=seed or () if part else (),
            records=records,
            notify=progress,
        )
        # After each study: what is done is written, whatever becomes of the next one.
        show_tables(study_tables(result))
        for path in write_study(result, file.stem, out):
            wrote(path)
        return result

    try:
        done = studies(paths, one, size=size)
    except KeyboardInterrupt:
        say("stopped; the same command goes on where it was", error=True)
        raise typer.Exit(INTERRUPTED) from None
    if len(done.results) > 1 or done.others:  # of one study its own table says it
        show_tables([t for t in (done.summary(), done.left()) if t.rows])
    for path in done.write(output) if output is not None else ():
        wrote(path)
    if done.lacking or any(result.failed for result in done.results.values()):
        raise typer.Exit(DIFFERENT)


@flower.command(cls=Command)
def init(
    experiment: ExperimentFile,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    own_rows: Annotated[
        bool, typer.Option("--own-rows", help="Each node has its client's rows alone.")
    ] = False,
    data: DataFolder = None,
    settings: Settings = None,
) -> None:
    """Write a Flower app from an experiment.

    Project, server, client, the experiment as resolved and a page with the commands that start a
    SuperLink, its SuperNodes and the run. Needs the extra `flower` where it is started only.
    """
    from archgraph.flower.starter import write_app

    spec = experiment_of(experiment, settings)
    for path in write_app(spec, folder, data_root=data, own_rows=own_rows):
        wrote(path)


@flower.command(cls=Command)
def doctor(
    folder: Annotated[Path, typer.Argument(metavar="APP", help="The app's folder.")],
    node: Annotated[
        str | None, typer.Option(metavar="CONFIG", help="A node's --node-config.")
    ] = None,
    link: Annotated[str, typer.Option(metavar="HOST:PORT", help="The SuperLink.")] = "",
    ca: Annotated[Path | None, typer.Option(help="The authority's certificate.")] = None,
    fleet: Annotated[
        str, typer.Option(metavar="NAME", help="Ask all nodes of this SuperLink.")
    ] = "",
) -> None:
    """Say what is wrong with a machine of a Flower deployment, before the first round.

    Whether it has the version that wrote the app, and data of the app's form; with `--node` those
    of its client, with `--link` whether it reaches the SuperLink. `--fleet` asks all nodes that
    are connected. Exits with 2 if something is wrong.
    """
    from archgraph.flower.doctor import Machine, diagnoses

    machine = Machine(folder, link, ca, node, fleet)
    wrong = False
    for one in diagnoses(machine):
        say(f"{'FAIL' if one.wrong else 'ok'} {one.check}: {one.text}", 5)
        wrong |= one.wrong
    if wrong:
        raise typer.Exit(2)


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
