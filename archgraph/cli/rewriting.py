"""The command that makes another architecture of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from archgraph.cli.app import command
from archgraph.cli.arguments import Choose, Model, Output, graph_of, located, numbers, pair, places
from archgraph.cli.output import say, wrote
from archgraph.errors import SpecError

if TYPE_CHECKING:
    from archgraph.language.family import Rewrites


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
        "shorten": numbers(shorten or ()),
        "graft": numbers(graft or ()),
        "deepen": numbers(deepen or ()),
        "take": _widths(take or (), "--take"),
        "narrow": _widths(narrow or (), "--narrow"),
        "widen": _widths(widen or (), "--widen"),
        "add_step_sizes": add_step_sizes,
        "add_adapters": add_adapters,
        "add_exits": numbers(add_exits or ()),
    }
    result = rewritten(graph_of(file, choose), _rewrites(asked), verify=verify)
    say(result.transfer.describe())
    if after or before:
        parts = archgraph.split(result.graph, after=after or (), before=before or ())
        for number, part in enumerate(parts, 1):
            size = archgraph.cost(part.graph).parameters
            say(f"part {number}: {len(part.graph.state_names)} entries, {size:,} parameters")
            if output is not None:
                place = output.with_stem(f"{output.stem}-{number}")
                archgraph.save(part.graph, place)
                wrote(place)
    elif output is not None:
        archgraph.save(result.graph, output)
        wrote(output)


def _rewrites(asked: dict[str, Any]) -> Rewrites:
    """Rewrites as a file would ask for them; a mistake names the option."""
    from archgraph.language.document import Document
    from archgraph.language.family import Rewrites

    with located("rewrite", "--"):
        try:
            return Document("rewrite", asked, dict.fromkeys(places(asked), 1)).validate(Rewrites)
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
                "is not a share, a size or a list of positions",
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
    return {key: choice(value) for key, value in map(pair, texts)}
