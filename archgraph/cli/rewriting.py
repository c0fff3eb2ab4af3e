"""Commands that rewrite a model. The options of `rewrite` are the rows of the rewrite registry."""

from __future__ import annotations

import inspect
import itertools
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from archgraph.budgets.amounts import MEASURES
from archgraph.cli.app import Command, command
from archgraph.cli.arguments import (
    Choose,
    ModelFile,
    OutputFile,
    Words,
    check_weights_file,
    choices_of,
    read_graph,
    settings_of,
    typed,
    value_of,
)
from archgraph.cli.output import put, say, show_item, wrote
from archgraph.errors import SpecError
from archgraph.plain import Json
from archgraph.rewrites.registry import rewrite_rows

if TYPE_CHECKING:
    from archgraph.graph.ir import ArchGraph
    from archgraph.language.family import Rewrites
    from archgraph.states import Rewritten, State

_NO_POSITIONS = (
    "the file contains only sizes; to also save the weights at the selected "
    "positions, add --state FILE --weights FILE"
)

StateFile = Annotated[
    Path | None, typer.Option("--state", metavar="FILE", help="Weights of the model (safetensors).")
]
WeightsFile = Annotated[
    Path | None,
    typer.Option(
        "--weights",
        metavar="FILE",
        help="Also write the weights of the new model (safetensors), which are selected from "
        "the weights in --state or in the model file.",
    ),
]


def _budget(measure: str) -> Any:
    """Return the option for a budget, with the units of its measure."""
    row = MEASURES[measure]
    units = ", ".join(filter(None, row.units))
    text = (
        f"Budget for {row.text}: a fraction of the model (0.5 or 50%), or a number such as "
        f"{row.example} (units: {units})."
    )
    return typer.Option(metavar="BUDGET", help=text)


def rewrite(
    file: ModelFile,
    output: OutputFile = None,
    verify: Annotated[
        bool,
        typer.Option(
            help="Also check numerically that each rewrite has the effect that "
            "`archgraph help NAME` guarantees."
        ),
    ] = False,
    details: Annotated[bool, typer.Option("--details", help="Print a line per tensor.")] = False,
    state: StateFile = None,
    weights: WeightsFile = None,
    choose: Choose = None,
    **asked: Words,
) -> None:
    """Rewrite a model to another architecture.

    Each rewrite has an option; the options below are in the order in which rewrites are applied.
    The value of an option is written as in a family file, e.g. --take 0.5. KEY=VALUE sets one key
    of a mapping, e.g. --take layer1.*=0.5 or --take 'sizes={heads: 4}'. `archgraph help NAME`
    explains a rewrite.

    Prints the new sizes next to the old sizes. --output writes the new architecture. This file
    contains the new sizes, but not which positions (indices along an axis, such as channels) were
    kept. If a rewrite selects positions, for example by importance, use --weights to write the
    weights at these positions.

    For a folder saved by transformers, --output FOLDER writes a new folder. The weights are copied
    from file to file, and --verify does not check them.
    """
    import archgraph
    from archgraph.language.loading import check_ending
    from archgraph.language.rewriting import rewritten
    from archgraph.language.saved import is_transformers

    if output is not None:
        check_ending(output)  # before anything is printed
    requested = _rewrites(asked)
    if is_transformers(file):
        if state or weights:
            option = "--state" if state else "--weights"
            raise SpecError(
                "cannot be combined with a folder, which always contains the weights", where=option
            )
        _rewrite_folder(file, requested, output, verify, details)
        return
    graph, full = _with_state(file, choose, state, weights)
    result = rewritten(graph, requested, verify=verify, where=_flag)
    _show_rewritten(graph, result, details)
    if output is not None:
        archgraph.save(result.graph, output)
        wrote(output)
        if weights is None and _chooses_positions(requested):
            say(_NO_POSITIONS)
    if weights is not None and full is not None:
        wrote(archgraph.export(result.graph, result.transfer.pull(full), weights))


def _rewrite_folder(
    folder: Path, requested: Rewrites, output: Path | None, verify: bool, details: bool
) -> None:
    """Rewrite a transformers folder to another folder, or to an architecture file."""
    import archgraph
    from archgraph.foreign.transformers_folder import check_new
    from archgraph.language.loading import load_folder
    from archgraph.language.rewriting import rewritten

    as_folder = output is not None and output.suffix not in (".yaml", ".yml")
    if output is not None and as_folder:
        check_new(output, folder)
    graph, state = load_folder(folder)
    if verify:
        say("note: --verify is ignored, because the weights of a folder are not loaded")
    result = rewritten(graph, requested, verify=False, where=_flag)
    _show_rewritten(graph, result, details)
    if output is None:
        return
    if as_folder:
        pulled = state.through(result.transfer)
        for name, value in archgraph.to_transformers(result, pulled, folder, output).items():
            say(f"{name}: {value}")
    else:
        archgraph.save(result.graph, output)
    wrote(output)
    if not as_folder and _chooses_positions(requested):
        say(_NO_POSITIONS)


def _show_rewritten(graph: ArchGraph, result: Rewritten, details: bool) -> None:
    import archgraph
    from archgraph.display import summary_table
    from archgraph.tables import count

    if details:
        put(result.transfer.describe())
        return
    old, new = archgraph.cost(graph), archgraph.cost(result.graph)
    sizes = f"{count(old.parameters)} → {count(new.parameters)} parameters"
    show_item(summary_table(result.graph))
    say(f"{sizes}, {count(old.macs)} → {count(new.macs)} MACs; --details lists all tensors")


@command()
def fit(
    file: ModelFile,
    parameters: Annotated[str | None, _budget("parameters")] = None,
    macs: Annotated[str | None, _budget("macs")] = None,
    bytes: Annotated[str | None, _budget("bytes")] = None,
    activations: Annotated[str | None, _budget("activations")] = None,
    memory: Annotated[str | None, _budget("memory")] = None,
    batch: Annotated[
        int | None, typer.Option(help="Batch size of the training step, for --memory.")
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Optimiser of the training step, for --memory."),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            metavar="SHAPE",
            help="free: the sizes that use the budget best; nested: the submodel of a smaller "
            "budget is part of the submodel of a larger budget; uniform: the same fraction of "
            "every width (default: free).",
        ),
    ] = None,
    importance: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Scores saved by `ag.importance(…).save`: keep the positions (indices along an "
            "axis) with the best scores, not the first positions.",
        ),
    ] = None,
    multiple: Annotated[
        int | None,
        typer.Option(help="Round sizes to multiples of this number, except numbers of heads."),
    ] = None,
    keep: Annotated[
        Words,
        typer.Option(metavar="NAME", help="An axis or block that stays unchanged. Repeatable."),
    ] = None,
    skip: Annotated[
        Words, typer.Option(metavar="BLOCK", help="A block that may be removed. Repeatable.")
    ] = None,
    output: OutputFile = None,
    state: StateFile = None,
    weights: WeightsFile = None,
    choose: Choose = None,
) -> None:
    """Find the largest submodel within a budget.

    A budget is a fraction of the whole model (0.5 or 50%) or a number (10M or 50MB). Several
    budgets can be combined. The command prints the costs of the submodel, and the axes that became
    narrower. --output writes the architecture: the new sizes, but not which positions were kept.
    With --importance, use --weights to also write the weights at the selected positions. In a
    family file, use the key `fit` of a client.
    """
    import archgraph
    from archgraph.budgets.report import fit_tables
    from archgraph.cli.output import show_tables
    from archgraph.language.loading import check_ending
    from archgraph.rewrites.options import FitOptions

    if output is not None:
        check_ending(output)  # before anything is printed
    graph, full = _with_state(file, choose, state, weights)
    values = {
        "parameters": parameters, "macs": macs, "bytes": bytes, "activations": activations,
        "memory": memory, "batch": batch, "optimizer": optimizer,
        "shape": shape, "multiple": multiple, "keep": keep, "skip": skip,
        "importance": None if importance is None else str(importance),
    }  # fmt: skip
    asked = {name: _frozen(value) for name, value in values.items() if value is not None}
    with typed("fit", asked, "--") as document:
        options = document.validate(FitOptions)
    result = rewrite_rows()["fit"].apply(graph, options)
    show_tables(fit_tables(graph, result.graph, options))
    if output is not None:
        archgraph.save(result.graph, output)
        wrote(output)
        if importance is not None and weights is None:
            say(_NO_POSITIONS)
    if weights is not None and full is not None:
        wrote(archgraph.export(result.graph, result.transfer.pull(full), weights))


def _with_state(
    file: Path, choose: Sequence[str] | None, state: Path | None, weights: Path | None
) -> tuple[ArchGraph, State | None]:
    """Read a model, and also its weights if --weights is used.

    Raises:
        SpecError: If only one of --state and --weights is used, and the model file has no weights.
    """
    from archgraph.engine.address import weights_in
    from archgraph.language.loading import load_model
    from archgraph.language.yaml import read_document

    if weights is None:
        if state is not None:
            raise SpecError("needs --weights", where="--state")
        return read_graph(file, choose), None
    check_weights_file(weights, "--weights")
    graph, full = load_model(read_document(file), choices_of(choose) or None)
    if state is not None:
        return graph, weights_in(state, graph)
    if full is None:
        raise SpecError("needs --state: the model file has no weights", where="--weights")
    return graph, full


def _chooses_positions(rewrites: Rewrites) -> bool:
    """Return whether rewrites keep other positions than the first."""
    return any(
        getattr(getattr(rewrites, key), name, None)
        for key in ("take", "fit", "widen")
        for name in ("positions", "importance")
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _with_rows() -> Callable[..., None]:
    """Return the command with an option for every row of the registry, before the other options."""
    declared = inspect.signature(rewrite, eval_str=True)
    # typer derives options from the signature. Rewrites of other packages get one, too.
    parameters = [p for p in declared.parameters.values() if p.kind is not p.VAR_KEYWORD]
    for row in rewrite_rows().values():
        text = f"{row.help} Example of VALUE: {row.example}. Repeatable."
        kind = Annotated[Words, typer.Option(_flag(row.name), metavar="VALUE", help=text)]
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(row.name, keyword, default=None, annotation=kind))
    signature = declared.replace(parameters=parameters)
    rewrite.__signature__ = signature  # type: ignore[attr-defined]  # typer reads it
    rewrite.__annotations__ = {p.name: p.annotation for p in parameters}
    return rewrite


class RewriteCommand(Command):
    """The command `rewrite`, in which an option without a value means `true`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the value `true` after options without a value."""
        types = {name: typing.get_args(row.value_type) for name, row in rewrite_rows().items()}
        alone = {_flag(name) for name, kinds in types.items() if bool in kinds}
        words = []
        # An option at the end, before another option or before the model does not have a value.
        for word, following in itertools.pairwise([*args, "--"]):
            bare = following.startswith("-") or Path(following).is_file()
            words += [word, "true"] if word in alone and bare else [word]
        return super().parse_args(ctx, words)


command(cls=RewriteCommand)(_with_rows())


def _rewrites(texts: Mapping[str, Sequence[str] | None]) -> Rewrites:
    """Parse the rewrites as in a file; errors name the option."""
    from archgraph.language.family import Rewrites

    asked = {name: _value(words) for name, words in texts.items() if words}
    with typed("rewrite", asked, "--") as document:
        try:
            return document.validate(Rewrites)
        except SpecError as error:
            error.where = (error.where or "").replace("_", "-")  # keys as options
            raise


def _value(texts: Sequence[str]) -> Json:
    """Parse `KEY=VALUE` texts to a mapping, one value to itself, and several to a list."""
    if all("=" in text for text in texts):
        return _frozen(settings_of(texts))
    values = [_frozen(value_of(text)) for text in texts]
    return values[0] if len(values) == 1 else tuple(values)


def _frozen(value: Json) -> Json:
    """Convert lists to tuples, as readers of files do."""
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
