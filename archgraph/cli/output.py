"""Output of commands: text, JSON, tables, errors."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from archgraph.errors import RunError, SpecError, os_reason
from archgraph.plain import Json
from archgraph.tables import wrapped

if TYPE_CHECKING:
    from rich.console import RenderableType

    from archgraph.tables import Table

T = TypeVar("T")

# Colours of messages by their first words.
COLOURS = {
    **dict.fromkeys(("error:", "FAIL", "different:"), "red"),
    **dict.fromkeys(("note:", "form"), "yellow"),
    "ok": "green",
}
# Seconds between two progress messages in a file or a pipe.
SECONDS = 10.0


def message(error: Exception) -> str:
    """Describe an error in one line."""
    # Errors of all libraries are printed in the same form.
    if isinstance(error, OSError):
        error = RunError("cannot be used", where=error.filename, found=os_reason(error))
    if isinstance(error, RecursionError):  # YAML, or a graph's text
        error = SpecError("is nested too deeply")
    return str(error)


def say(text: str, indent: int = 0, *, error: bool = False) -> None:
    """Print a text, wrapped at the width of the terminal.

    Args:
        text: The text. Some first words are coloured (:data:`COLOURS`).
        indent: Number of blanks before continuation lines.
        error: Whether to print to standard error. That text is wrapped only on a terminal.
    """
    stream = sys.stderr if error else sys.stdout
    if not error or stream.isatty():
        text = wrapped(text, indent)
    first = re.split(r"\s", text, maxsplit=1)[0]
    # `echo` removes colours if there is no terminal.
    if first in COLOURS and "NO_COLOR" not in os.environ:
        text = typer.style(first, fg=COLOURS[first], bold=True) + text.removeprefix(first)
    typer.echo(text, err=error)


def complain(text: str) -> None:
    """Print an error."""
    say(f"error: {text}", error=True)


def progress(text: str) -> None:
    """Print the progress of a command on standard error."""
    say(text, error=True)


def with_progress(items: Iterable[T], total: int, noun: str) -> Iterator[T]:
    """Yield items and print progress on standard error.

    1. On a terminal, print a line at the bottom, which the next output replaces.
    2. Otherwise, print a line every ten seconds.

    Args:
        items: The items.
        total: Their number.
        noun: Plural noun for the items.
    """
    terminal, last = sys.stderr.isatty(), time.monotonic()
    for done, item in enumerate(items, 1):
        if terminal:
            typer.echo("\r\x1b[K", nl=False, err=True)  # case 1
        yield item
        line = f"{done} of {total} {noun}"
        if terminal and done < total:
            typer.echo(line, nl=False, err=True)
        elif not terminal and time.monotonic() - last >= SECONDS:
            progress(line)  # case 2
            last = time.monotonic()


def put(text: str) -> None:
    """Print a text unchanged, such as YAML or DOT for other programs, or the name of a file."""
    typer.echo(text)


def wrote(path: Path) -> None:
    """Print the path of a written file."""
    put(f"wrote {path}")


def say_json(value: Mapping[str, Json]) -> None:
    """Print facts as JSON."""
    put(json.dumps(value, indent=2, ensure_ascii=False))


def show_item(item: RenderableType) -> None:
    """Print an object of rich."""
    from archgraph.tables import console

    console().print(item)


def show_tables(tables: Iterable[Table]) -> None:
    """Print tables with a blank line between them."""
    for number, table in enumerate(tables):
        if number:
            say("")
        show_item(table)
