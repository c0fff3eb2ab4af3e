"""What commands print: words, facts as JSON, tables, errors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from archgraph.errors import RunError, SpecError
from archgraph.plain import Json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from archgraph.tables import Table


def message(error: Exception) -> str:
    """Return one line about an error."""
    # All mistakes read alike, wherever they come from.
    if isinstance(error, OSError):
        error = RunError(error.strerror or str(error), where=error.filename)
    if isinstance(error, RecursionError):  # YAML, or a graph's text
        error = SpecError("is nested too deeply")
    return str(error)


def say(text: str, *, error: bool = False) -> None:
    """Print words; errors go to standard error behind a red `error:`."""
    if error and not text.startswith("stopped"):  # by the user: not a mistake
        typer.secho("error: ", fg=typer.colors.RED, bold=True, nl=False, err=True)
    typer.echo(text, err=error)


def wrote(path: Path) -> None:
    """Print which file was written."""
    say(f"wrote {path}")


def say_json(value: Mapping[str, Json]) -> None:
    """Print facts as JSON."""
    say(json.dumps(value, indent=2, ensure_ascii=False))


def show_item(item: RenderableType) -> None:
    """Print something that rich draws."""
    from archgraph.tables import console

    console().print(item)


def show_tables(tables: Iterable[Table]) -> None:
    """Print tables with a blank line between them."""
    for number, table in enumerate(tables):
        if number:
            say("")
        show_item(table)
