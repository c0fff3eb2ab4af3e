"""The application, which converts errors to messages and exit codes."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import click
import typer
from typer.core import TyperCommand, TyperGroup

from archgraph.cli.output import complain, message, say
from archgraph.errors import ArchGraphError, TraceWarning, raised_in
from archgraph.hints import version as running_version
from archgraph.language.elsewhere import GONE

# Exit codes, as used by diff(1) and shells.
DIFFERENT, BAD_INPUT, INTERRUPTED = 1, 2, 130
# Options of every command, accepted at any position.
ANYWHERE = ("--debug", "--python")


class Commands(TyperGroup):
    """The group of all commands, which converts errors to messages."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments; accept the options of every command at any position."""
        end = args.index("--") if "--" in args else len(args)  # file names follow
        words, names = args[:end], args[end:]
        # Move them to the front, where the application expects its options.
        first = [word for word in ANYWHERE if word in words]
        words = [word for word in words if word not in first]
        return super().parse_args(ctx, [*first, *words, *names])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command. The error about a removed command names its replacement."""
        if args[0] in GONE and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"No such command '{args[0]}'; {GONE[args[0]]}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; convert errors to one message and an exit code."""
        try:
            with _terminable(), _notes():
                return super().invoke(ctx)
        except BrokenPipeError:
            # The reader has closed the pipe (`| head`); Python would report an error at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except KeyboardInterrupt:
            say("stopped", error=True)
            raise typer.Exit(INTERRUPTED) from None
        # Other errors are bugs in archgraph, whose report needs a traceback, or in code that a file
        # names.
        except (ArchGraphError, OSError, RecursionError) as error:
            if ctx.params.get("debug"):
                traceback.print_exc()
            complain(message(error))
            raise typer.Exit(BAD_INPUT) from None
        except Exception as error:
            code = raised_in(error)
            if not code or ctx.params.get("debug"):
                raise
            said = "; ".join((f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())))
            complain(f"{code}: {said}; --debug shows the traceback")
            raise typer.Exit(BAD_INPUT) from None


class NotePrinter(logging.Handler):
    """Prints each note about a model once, next to a command's output."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._said: set[object] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print a note unless it was printed before."""
        file, note = record.args if isinstance(record.args, tuple) else ("", "")
        key = (Path(str(file)).absolute(), note)  # a family names its model differently
        if key not in self._said:
            self._said.add(key)
            text = record.getMessage()
            # Names in untrusted files may contain control characters that move the cursor or change
            # colours.
            printable = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
            say(f"note: {printable}", error=True)


@contextlib.contextmanager
def _notes() -> Iterator[None]:
    """Print notes about graphs that differ from their models, instead of Python warnings."""
    log, printer = logging.getLogger("archgraph.notes"), NotePrinter()
    level = log.level
    log.addHandler(printer)
    log.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TraceWarning)
            yield
    finally:
        log.removeHandler(printer)
        log.setLevel(level)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Treat SIGTERM like SIGINT, so that partly written files are removed."""
    main = threading.current_thread() is threading.main_thread()  # only this receives signals
    if not main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


# Thresholds of Python's garbage collector. Importing torch creates a million objects but hardly any
# cycles; with the default of 700 allocations, collections take a fifth of a short command's time.
SELDOM = (1_000_000, 10, 10)


class Command(TyperCommand):
    """A command with plain-text help and rare garbage collections."""

    thresholds = SELDOM

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        before = gc.get_threshold()
        gc.set_threshold(*self.thresholds)
        try:
            return super().invoke(ctx)
        finally:
            gc.set_threshold(*before)

    def get_help(self, ctx: click.Context) -> str:
        """Return the help without the escapes that typer adds to brackets for rich."""
        text = super().get_help(ctx).replace("\\[", "[")
        return f"{text}\n\nOptions of all commands: {', '.join(ANYWHERE)}; see archgraph --help."


class Training(Command):
    """A command that trains, with normal garbage collection, since cycles may keep activations."""

    thresholds = gc.get_threshold()


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # rich would double the time of --help.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Describe, rewrite and train models for federated learning in which clients have "
    "different models.",
)

command = functools.partial(app.command, cls=Command)
training = functools.partial(app.command, cls=Training)


def _version(requested: bool) -> None:
    if requested:
        say(f"archgraph {running_version()}")
        raise typer.Exit


@app.callback()
def _options(
    ctx: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", help="Print the traceback of an error.")
    ] = False,
    python: Annotated[
        bool, typer.Option("--python", help="Run the Python code that files name (`python:`).")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if python:  # withdrawn when the command ends
        ctx.with_resource(consent())


@contextlib.contextmanager
def consent() -> Iterator[None]:
    """Allow files to name Python code, including code in the current folder, inside this context.

    The current folder is searched after all installed packages. Without consent, it is not
    searched, since a module in it could replace a package that is not installed, and package
    metadata in it could register a strategy.
    """
    from archgraph.language.consent import allowed

    # At the end of the path, and for every command again: the folder may have changed.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    with allowed():
        yield
