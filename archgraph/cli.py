"""The command line: arguments only, each command is one call into the library.

Every mistake ends in one message on standard error and exit code 2; `--debug` adds where it was
raised. Nothing heavy is imported before a command needs it: `archgraph --help` answers at once.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperCommand, TyperGroup

from archgraph.errors import ArchGraphError, RunError, SpecError

if TYPE_CHECKING:
    from archgraph.graph.ir import ArchGraph
    from archgraph.language import ExperimentSpec
    from archgraph.language.family import Rewrites

BAD_INPUT = 2
DIFFERENT = 1
INTERRUPTED = 130


class Commands(TyperGroup):
    """The commands, with one place where errors become messages."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take `--debug` wherever it stands."""
        if "--debug" in args:
            args = ["--debug", *(word for word in args if word != "--debug")]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; turn what may go wrong into one message and an exit code."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Whoever reads has had enough (`| head`); Python would complain at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except KeyboardInterrupt:
            _say("stopped", error=True)
            raise typer.Exit(INTERRUPTED) from None
        except (ArchGraphError, OSError, RecursionError) as error:
            if ctx.params.get("debug"):
                traceback.print_exc()
            _say(_message(error), error=True)
            raise typer.Exit(BAD_INPUT) from None


class Command(TyperCommand):
    """A command whose help is plain text."""

    def get_help(self, ctx: click.Context) -> str:
        """The help; typer escapes brackets for rich even where rich does not print."""
        return super().get_help(ctx).replace("\\[", "[")


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # rich would double the time of --help.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Architectures as values, for federated learning over different models.",
)

command = functools.partial(app.command, cls=Command)

Model = Annotated[Path, typer.Argument(metavar="FILE", help="A model file (YAML).")]
Choose = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=N", help="A choice of the model, e.g. stage1.depth=4. Repeatable."),
]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Where to write.")]
Weighted = Annotated[
    str, typer.Argument(metavar="MODEL", help="A model (YAML), a run folder, or RUN:MODEL.")
]
States = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="Weights of a model (safetensors). One per model, in order."),
]


class Detail(enum.StrEnum):
    """How much a picture shows."""

    block = "block"
    node = "node"


class Matching(enum.StrEnum):
    """How weight maps are matched."""

    greedy = "greedy"
    assignment = "assignment"


class Direction(enum.StrEnum):
    """Where a picture runs to."""

    down = "TB"
    right = "LR"


class Kind(enum.StrEnum):
    """Kinds of files."""

    model = "model"
    family = "family"
    experiment = "experiment"
    figures = "figures"


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        _say(f"archgraph {version('archgraph')}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error was raised.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    # Models written in Python are found from where the user stands, after all installed packages.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


@command()
def trace(
    target: Annotated[
        str, typer.Argument(metavar="python:MODULE:CALLABLE", help="What makes the nn.Module.")
    ],
    given: Annotated[
        list[str],
        typer.Option(
            "--input",
            metavar="NAME=N,SIZE,…[:DTYPE]",
            help="An input of forward with its batch axis, e.g. x=2,3,224,224. Repeatable.",
        ),
    ],
    arg: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An argument of the callable. Repeatable."),
    ] = None,
    output: Output = None,
    weights: Annotated[
        Path | None, typer.Option(help="Write the weights, too (safetensors).")
    ] = None,
) -> None:
    """Capture a PyTorch module as a graph.

    Prints the graph, or writes it as YAML.
    """
    from archgraph.language import load_model, save
    from archgraph.language.document import Document

    kind, _, name = target.partition(":")
    if kind != "python" or ":" not in name:
        raise SpecError("is no model", where=target, expected="python:package.module:callable")
    inputs = dict(_input(text) for text in given)
    data = {"python": name, "inputs": inputs, "args": _settings(arg), "name": name.split(":")[1]}
    with _spoken(target, f"{target}: "):
        graph, state = load_model(Document(target, data, dict.fromkeys(_places(data), 1)))
    if weights is not None:
        from safetensors.torch import save as pack

        from archgraph.files import write

        write(weights, pack({k: v.contiguous() for k, v in (state or {}).items()}))
    if output is None:
        _say(str(graph))
    else:
        save(graph, output)
        _wrote(output)


@command()
def show(file: Model, choose: Choose = None) -> None:
    """Sections and blocks with shapes, parameters and MACs."""
    from archgraph.display import summary

    _print(summary(_graph(file, choose)))


@command()
def explain(
    file: Model,
    name: Annotated[
        str | None,
        typer.Argument(
            help="An axis, section, block, leaf, operator, role, module or pattern (layer1.*); "
            "default: everything."
        ),
    ] = None,
    choose: Choose = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Which axes and blocks can change, or why not.

    Tells what would free a pinned axis, and what halving an axis or skipping a block saves. Runs of
    parts alike share a row; NAME tells them one by one, and of one axis all that moves with it.
    """
    from archgraph.display import explain as explained

    found = explained(_graph(file, choose), name)
    if as_json:
        _json(found.plain())
    else:
        for number, table in enumerate(found.tables()):
            if number:
                _say("")
            _print(table)


@command()
def draw(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A model or a family (YAML).")],
    output: Output = None,
    cover: Annotated[
        Path | None,
        typer.Option(metavar="FAMILY", help="Colour the share of clients that feed each part."),
    ] = None,
    detail: Annotated[Detail, typer.Option(help="Blocks, or every operator.")] = Detail.block,
    direction: Annotated[
        Direction, typer.Option(help="From top to bottom or left to right.")
    ] = Direction.down,
    choose: Choose = None,
) -> None:
    """Draw a model, or every model of a family.

    A model goes into a file (.svg .png .pdf .dot), a family into a folder. Without --output the
    DOT text of a model is printed, and a family goes into a folder of its name. A family's global
    model shows the share of clients that feed each part: weak points stand out.
    """
    from archgraph.display import coverage, draw_family
    from archgraph.display import draw as drawn

    look: dict[str, Any] = {"detail": detail.value, "direction": direction.value}
    family = _family(file) if cover is None else None
    if family is not None and (output is None or not output.suffix):
        folder = output or Path(file.stem)
        for path in draw_family(family, folder, **look):
            _wrote(path)
        return
    if family is not None:
        if not family.has_global:
            raise SpecError(
                "has no global model to draw",
                where=str(file),
                hint="give --output a folder: every client's model is drawn",
            )
        graph, shares = family.graph, coverage(family)
    elif cover is not None:
        whole = _family(cover)
        if whole is None:
            raise SpecError("is no family", where=str(cover), expected="a file with clients")
        graph = _graph(file, choose)
        shares = coverage(whole)
        if graph.state_names != whole.graph.state_names:
            raise SpecError(
                "is another model than the family's global one",
                where=str(file),
                hint=f"`archgraph draw {cover}` draws that",
            )
    else:
        graph, shares = _graph(file, choose), None
    text = drawn(graph, output, cover=shares, **look)
    if output is None:
        _say(text)
    else:
        _wrote(output)


@command()
def rewrite(
    file: Model,
    output: Output = None,
    take: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SHARE|AXIS=N",
            help="Keep a share of every free axis (0.5), or of some (layer1.*=32, heads=0.5, "
            "fc1.out=0,2,5). Repeatable.",
        ),
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="BLOCK", help="Leave out a block. Repeatable.")
    ] = None,
    shorten: Annotated[
        list[str] | None,
        typer.Option(metavar="SECTION=N", help="Keep a section's first N blocks. Repeatable."),
    ] = None,
    graft: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SECTION=N", help="Repeat a section's last block up to N. Repeatable."
        ),
    ] = None,
    deepen: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SECTION=N", help="Lengthen a section by identity blocks up to N. Repeatable."
        ),
    ] = None,
    narrow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SHARE|AXIS=N",
            help="As --take, but what stays gets the part of what goes. Repeatable.",
        ),
    ] = None,
    widen: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FACTOR|AXIS=N",
            help="Widen every free axis by a factor (1.5), or some (layer1.*=96), and keep the "
            "function. Repeatable.",
        ),
    ] = None,
    add_step_sizes: Annotated[
        bool, typer.Option("--add-step-sizes", help="Give every residual branch a step size.")
    ] = False,
    add_adapters: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Give every residual branch an adapter N wide."),
    ] = None,
    add_exits: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SECTION=N", help="Answer behind a section, too, in N classes. Repeatable."
        ),
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(
            "--split-after", metavar="BLOCK", help="Cut behind a block or section. Repeatable."
        ),
    ] = None,
    before: Annotated[
        list[str] | None,
        typer.Option("--split-before", metavar="BLOCK", help="Cut in front of one. Repeatable."),
    ] = None,
    verify: Annotated[bool, typer.Option(help="Run each rewrite's law on the spot.")] = False,
    choose: Choose = None,
) -> None:
    """Make another architecture of a model.

    Leaves out blocks (skip), shortens and lengthens sections (shorten, graft, deepen), narrows and
    widens axes (take, narrow, widen), adds step sizes, adapters and exits, in this order; the
    parts of a split go into numbered files. Without --output it tells what would become of it.
    """
    import archgraph
    from archgraph.federation.family import rewritten

    asked = {
        "skip": tuple(skip or ()),
        "shorten": _numbers(shorten or ()),
        "graft": _numbers(graft or ()),
        "deepen": _numbers(deepen or ()),
        "take": _widths(take or (), "--take"),
        "narrow": _widths(narrow or (), "--narrow"),
        "widen": _widths(widen or (), "--widen"),
        "add_step_sizes": add_step_sizes,
        "add_adapters": add_adapters,
        "add_exits": _numbers(add_exits or ()),
    }
    result = rewritten(_graph(file, choose), _rewrites(asked), verify=verify)
    _say(result.transfer.describe())
    if after or before:
        parts = archgraph.split(result.graph, after=after or (), before=before or ())
        for number, part in enumerate(parts, 1):
            size = archgraph.cost(part.graph).parameters
            _say(f"part {number}: {len(part.graph.state_names)} entries, {size:,} parameters")
            if output is not None:
                place = output.with_stem(f"{output.stem}-{number}")
                archgraph.save(part.graph, place)
                _wrote(place)
    elif output is not None:
        archgraph.save(result.graph, output)
        _wrote(output)


@command()
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A model file.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
) -> None:
    """How two models differ.

    Leaf by leaf and operator by operator; exit code 1 if they differ.
    """
    from archgraph.display import diff as differences

    found = differences(_graph(a), _graph(b))
    for table in found.tables():
        _print(table)
    if found:
        raise typer.Exit(DIFFERENT)
    _say("the same architecture")


@command()
def align(
    a: Annotated[Path, typer.Argument(metavar="A", help="A model file.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
) -> None:
    """Which parts of two models belong together, whatever their names.

    Block by block, with the reason for each part without a counterpart.
    """
    from archgraph.display.alignment import alignment_tables
    from archgraph.relate.align import align as aligned

    for number, table in enumerate(alignment_tables(aligned(_graph(a), _graph(b)))):
        if number:
            _say("")
        _print(table)


@command()
def check(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH…", help="Files or folders.")],
    python: Annotated[
        bool, typer.Option("--python", help="Import models that are Python callables, too.")
    ] = False,
    figures: Annotated[
        bool, typer.Option("--figures", help="Compare the files' published figures with ours.")
    ] = False,
) -> None:
    """Check files of models, families, experiments and published figures.

    Folders stand for all YAML files in them. Exit code 2 if any file cannot be used; 1 if a
    published figure differs from ours and its file does not say why (--figures).
    """
    if figures:
        from archgraph.papers.published import figures as compared
        from archgraph.papers.published import figures_table

        found = compared(paths, python=python)
        _print(figures_table(found))
        if not all(finding.good for finding in found):
            raise typer.Exit(DIFFERENT)
        return
    from archgraph.display.verdicts import verdicts

    bad = total = 0
    for verdict in verdicts(paths, python=python):
        total += 1
        if verdict.error is None:
            _say(f"ok    {verdict.path}  {verdict.kind}: {verdict.note}")
        else:
            bad += 1
            _say(f"FAIL  {verdict.path}  {verdict.kind}")
            _say(f"      {_message(verdict.error)}", error=True)
    _say(f"{total - bad} of {total} files are good")
    if bad:
        raise typer.Exit(BAD_INPUT)


@command()
def run(
    experiment: Annotated[Path, typer.Argument(metavar="EXPERIMENT", help="An experiment file.")],
    out: Annotated[
        Path | None, typer.Option(help="Run folder; default: the experiment's, or runs/NAME.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on after the last round.")] = False,
    data: Annotated[Path | None, typer.Option(metavar="ROOT", help="Folder of the data.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a setting, e.g. local.lr=0.1. Repeatable."
        ),
    ] = None,
) -> None:
    """Run an experiment, or go on with one."""
    import archgraph

    spec = _experiment(experiment, settings)
    folder = out or (Path(spec.out) if spec.out else Path("runs") / (spec.name or experiment.stem))
    done = archgraph.run(spec, out=folder, resume=resume, data_root=data)
    _print(done.table())
    _say(f"{folder}: {len(done.rounds)} rounds; `archgraph report {folder}` makes a page of it")


@command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    output: Output = None,
) -> None:
    """Make a page of a run.

    Table, curves, architectures and settings in one HTML file, without a script.
    """
    from archgraph.display import read_run
    from archgraph.display import report as page
    from archgraph.display.runs import tiers

    path = page(folder, output)
    _print(tiers(read_run(folder)))
    _wrote(path)


@command()
def compare(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Run folders, or folders of some.")
    ],
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Take runs as far as they are.")
    ] = False,
    by_tier: Annotated[
        bool,
        typer.Option("--tiers", help="A column for each tier, on test data like its clients' own."),
    ] = False,
    last: Annotated[
        float | None,
        typer.Option(
            metavar="PART",
            help="Average over the tests of the last rounds: 0.2 of them all, or 5 of them.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Draw curves, too (.svg .png .pdf)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """Put runs side by side.

    Runs that differ in the seed only share a row: mean ± standard deviation of the worst and the
    average submodel on all test data, of the clients on their own, and of the time. Below stands
    what the rows differ in.

    Each figure is that of the last test, or with --last the mean over several. With --tiers the
    clients of each tier are told apart: each is tested on as much of every class as it has.
    """
    from archgraph.display.comparison import comparison

    if as_json + as_csv + as_markdown > 1:
        raise SpecError("can be one only", where="--json, --csv, --markdown")
    found = comparison(folders, unfinished=unfinished, tiers=by_tier, last=last)
    if output is not None:
        from archgraph.display.plots import save, spread

        save(
            spread({group.label: [log.rounds for log in group.runs] for group in found.groups}),
            output,
        )
    if as_json:
        _json(found.plain())
    elif as_csv or as_markdown:
        typer.echo(found.csv() if as_csv else found.markdown(), nl=False)
    else:
        for number, table in enumerate(found.tables()):
            if number:
                _say("")
            _print(table)
    if output is not None and not (as_json or as_csv or as_markdown):
        _wrote(output)


@command()
def similarity(
    model: Weighted,
    other: Annotated[
        str | None,
        typer.Argument(metavar="[OTHER]", help="Another one; default: blocks of the first."),
    ] = None,
    state: States = None,
    section: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this section. Repeatable.")
    ] = None,
    matching: Annotated[
        Matching, typer.Option(help="How maps and filters are matched: as published, or at best.")
    ] = Matching.greedy,
    filters: Annotated[
        int, typer.Option(min=0, help="Filters of a layer to compare, drawn at random; 0: all.")
    ] = 32,
    data: Annotated[Path | None, typer.Option(metavar="ROOT", help="Folder of the data.")] = None,
    output: Output = None,
) -> None:
    """How alike the weights of blocks are.

    Mean Pearson correlation of weight maps, matched one to one (FedFA, appendix B.3), between the
    blocks of each section, or between two models. Random weights reach more than half: chance is
    told beside.
    """
    from archgraph.display.plots import save
    from archgraph.papers.similarity import block_similarity
    from archgraph.papers.weights import heat, similarity_tables

    names = [model] if other is None else [model, other]
    (graph, weights), *second = [_one(name, data, s) for name, s in _with_states(names, state)]
    found = block_similarity(
        graph,
        weights,
        second[0] if second else None,
        matching=matching.value,
        filters=filters or None,
        sections=section or (),
    )
    if not found:
        raise SpecError(
            "no blocks to compare",
            where=" and ".join(names),
            expected="a section with two blocks whose weights have the same shapes",
        )
    for number, table in enumerate(similarity_tables(found)):
        if number:
            _say("")
        _print(table)
    if output is not None:
        _wrote(save(heat(found, title=" and ".join(Path(n).name for n in names)), output))


@command()
def scales(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL…", help="Models (YAML), a run folder, or RUN:MODEL."),
    ],
    state: States = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What to compare with; default: the smallest."),
    ] = None,
    data: Annotated[Path | None, typer.Option(metavar="ROOT", help="Folder of the data.")] = None,
    output: Output = None,
) -> None:
    """How the scale of weights differs between models.

    Average magnitude of each layer's weight maps, and their average distance, on the filters that
    two models have in common (FedFA, appendix F).
    """
    from archgraph.display.plots import save
    from archgraph.papers.similarity import scale_variation
    from archgraph.papers.weights import scale_plot, scale_table

    found: dict[str, Any] = {}
    for name, file in _with_states(models, state):
        for key, weighted in _models(name, data, file).items():
            inside = key and len(models) > 1 and not name.endswith(f":{key}")
            label = key if len(models) == 1 else f"{name}:{key}" if inside else name
            if label in found:  # one architecture with several states
                label = f"{label} ({file or len(found) + 1})"
            found[label] = weighted
    compared = scale_variation(found, baseline)
    _print(scale_table(compared))
    if output is not None:
        _wrote(save(scale_plot(compared), output))


@command()
def schema(
    kind: Annotated[Kind, typer.Argument(help="Kind of file.")],
    output: Output = None,
) -> None:
    """Print the JSON schema of a kind of file.

    Editors complete and check YAML with it.
    """
    import json

    from archgraph.files import write
    from archgraph.language import schema as described

    text = json.dumps(described(kind.value), indent=2, ensure_ascii=False)
    if output is None:
        _say(text)
    else:
        _wrote(write(output, text + "\n"))


@command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for runs and pictures.")] = Path("demo-out"),
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of each run.")] = None,
) -> None:
    """The whole way in two minutes.

    Models from YAML and from plain Python, FedFA over several architectures of each, pictures.
    """
    from archgraph.demo import demo as shown

    for item in shown(out, rounds=rounds):
        if isinstance(item, str):
            _say(item)
        else:
            _print(item)


@command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
) -> None:
    """Write the shipped models, families and experiments into a folder, to start from."""
    from archgraph.demo.start import start

    _say(f"wrote {start(folder)}; its README.md says how to begin")


# ------------------------------------------------------------------------------- arguments


def _graph(file: Path, choose: Sequence[str] | None = None) -> ArchGraph:
    import archgraph

    return archgraph.load(file, _numbers(choose or ()) or None)


def _with_states(
    names: Sequence[str], files: Sequence[Path] | None
) -> Iterable[tuple[str, Path | None]]:
    """Models and the files of their weights, one each in the order of the models."""
    given = list(files or ())
    if len(given) > len(names):
        raise SpecError("is one too many", where="--state", found=str(given[len(names)]))
    return zip(names, [*given, *[None] * (len(names) - len(given))], strict=True)


def _models(name: str, data: Path | None, file: Path | None) -> dict[str, Any]:
    """Architectures with weights: all of a run folder, one of it (RUN:MODEL), or a model file's.

    A model without a file of weights has its own, if it is written in Python, else untrained ones.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    import archgraph
    from archgraph.engine.trained import trained
    from archgraph.language import load_model
    from archgraph.language.document import read_document
    from archgraph.states.merge import check_update

    folder, mark, chosen = (name, "", "") if Path(name).exists() else name.rpartition(":")
    if Path(folder or name).is_dir():
        if file is not None:
            raise SpecError("has weights of its own", where=name, found=f"--state {file}")
        found: dict[str, Any] = dict(trained(folder or name, data_root=data))
        if not mark:
            return found
        if chosen not in found:
            raise SpecError("no such model", where=name, found=chosen, expected=", ".join(found))
        return {chosen: found[chosen]}
    graph, state = load_model(read_document(name))
    if file is not None:
        try:
            state = load_file(file)
        except SafetensorError as error:
            raise SpecError("is no safetensors file", where=str(file), found=error) from error
        check_update(graph, state, finite=False)
    return {"": (graph, state or archgraph.initial_state(graph, 0))}


def _one(name: str, data: Path | None, file: Path | None) -> Any:
    """An architecture with weights; of a run folder its global model."""
    found = _models(name, data, file)
    if len(found) > 1 and "global" not in found:
        raise SpecError(
            "holds several models", where=name, found=", ".join(found), expected=f"{name}:MODEL"
        )
    return found.get("global") or next(iter(found.values()))


def _family(file: Path) -> Any:
    """The family in a file, resolved; None if the file holds no family."""
    import archgraph
    from archgraph.language.document import read_document

    data = read_document(file).data
    if not (isinstance(data, dict) and "clients" in data):
        return None
    return archgraph.resolve(archgraph.load_family(file))


def _pair(text: str) -> tuple[str, str]:
    key, mark, value = text.partition("=")
    if not (mark and key.strip() and value.strip()):
        raise SpecError("is no setting", where=repr(text), expected="key=value")
    return key.strip(), value.strip()


def _numbers(texts: Iterable[str]) -> dict[str, int]:
    found = {}
    for text in texts:
        key, value = _pair(text)
        if not value.isdecimal():
            raise SpecError("is no number", where=repr(text), found=value, expected=f"{key}=N")
        found[key] = int(value)
    return found


def _rewrites(asked: dict[str, Any]) -> Rewrites:
    """Rewrites as a file would ask for them; a mistake names the option."""
    from archgraph.language.document import Document
    from archgraph.language.family import Rewrites

    with _spoken("rewrite", "--"):
        try:
            return Document("rewrite", asked, dict.fromkeys(_places(asked), 1)).validate(Rewrites)
        except SpecError as error:
            error.where = (error.where or "").replace("_", "-")
            raise


def _widths(texts: Sequence[str], option: str) -> float | dict[str, Any]:
    """`0.5` for all axes, or `axis=0.5`, `axis=32`, `axis=0,2,5` by axis."""

    def choice(text: str) -> float | int | tuple[int, ...]:
        try:
            if "," in text:
                return tuple(int(part) for part in text.split(",") if part.strip())
            return int(text) if text.isdecimal() else float(text)
        except ValueError:
            raise SpecError(
                "is no share, size or list of positions",
                where=option,
                found=repr(text),
                expected="0.5, 32 or 0,2,5",
            ) from None

    if len(texts) == 1 and "=" not in texts[0]:
        share = choice(texts[0])
        if isinstance(share, float):
            return share
        raise SpecError(
            "needs an axis", where=option, found=texts[0], expected="a share like 0.5, or axis=32"
        )
    return {key: choice(value) for key, value in map(_pair, texts)}


def _input(text: str) -> tuple[str, dict[str, Any]]:
    """`x=2,3,224,224:float32` as name and input; the batch axis comes first and is implied."""
    name, value = _pair(text)
    sizes, _, dtype = value.partition(":")
    parts = [part.strip() for part in sizes.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) for part in parts):
        raise SpecError(
            "is no input", where=repr(text), expected="name=batch,size,… e.g. x=2,3,224,224"
        )
    given: dict[str, Any] = {"shape": tuple(int(part) for part in parts[1:])}
    return name, {**given, "dtype": dtype} if dtype else given


def _settings(texts: Sequence[str] | None) -> dict[str, Any]:
    """`key=value` with values as YAML writes them: numbers, true, [1, 2], text."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    found = {}
    for text in texts or ():
        key, value = _pair(text)
        try:
            found[key] = YAML(typ="safe", pure=True).load(value)
        except YAMLError as error:
            raise SpecError("is no value", where=repr(text), expected="YAML") from error
    return found


def _experiment(file: Path, settings: Sequence[str] | None) -> ExperimentSpec:
    """The experiment in a file, with some settings changed."""
    import archgraph
    from archgraph.language import ExperimentSpec
    from archgraph.language.document import Document

    spec = archgraph.load_experiment(file)
    changes = _settings(settings)
    if not changes:
        return spec
    data = spec.model_dump(mode="python", by_alias=True, exclude_unset=True, exclude={"family"})
    for key, value in changes.items():
        at: Any = data
        *path, last = key.split(".")
        for part in path:
            if not isinstance(at, dict):
                break
            if at.get(part) is None:
                at[part] = {}
            at = at[part]
        if not isinstance(at, dict) or path[:1] == ["family"] or key == "family":
            raise SpecError("cannot be set", where=f"--set {key}", expected="a key of the file")
        at[last] = tuple(value) if isinstance(value, list) else value
    with _spoken("--set", "--set "):
        places = dict.fromkeys(_places(data), 1)
        changed = Document("--set", {**data, "family": ""}, places).validate(ExperimentSpec)
    return changed.model_copy(update={"family": spec.family})


@contextlib.contextmanager
def _spoken(name: str, place: str) -> Iterator[None]:
    """Say where a mistake on the command line is: there is no file and no line, only a key."""
    try:
        yield
    except SpecError as error:
        where = (error.where or "").replace(f"{name}:1: ", place).replace(f"{name}:1", place)
        error.where = where.removesuffix(": python").rstrip(": ")
        raise


def _places(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Keys that lead to every value inside plain data."""
    yield place
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _places(item, (*place, key))


# ---------------------------------------------------------------------------------- output


def _message(error: Exception) -> str:
    """One line about an error."""
    if isinstance(error, OSError):
        error = RunError(error.strerror or str(error), where=error.filename)
    if isinstance(error, RecursionError):
        error = SpecError("is nested too deeply")
    return str(error)


def _say(text: str, *, error: bool = False) -> None:
    if error and text != "stopped" and not text.startswith(" "):
        typer.secho("error: ", fg=typer.colors.RED, bold=True, nl=False, err=True)
    typer.echo(text, err=error)


def _wrote(path: Path) -> None:
    _say(f"wrote {path}")


def _json(value: Mapping[str, Any]) -> None:
    import json

    _say(json.dumps(value, indent=2, ensure_ascii=False))


def _print(item: Any) -> None:
    """Print something that rich draws."""
    from archgraph.tables import console

    console().print(item)


def main() -> None:
    """Entry point of the command."""
    app()
