"""Commands about files: check and explain them, print their schema, write the shipped ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from archgraph.cli.app import BAD_INPUT, DIFFERENT, command
from archgraph.cli.arguments import OutputFile
from archgraph.cli.output import message, say, show_item, wrote


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
    """Check files, or compare published figures.

    Models, families, experiments and published figures.

    Folders stand for all YAML files in them. Exit code 2 if any file cannot be used; 1 if a
    published figure differs from ours and its file does not say why (--figures).
    """
    if figures:
        from archgraph.papers.published import figures as compared
        from archgraph.papers.published import figures_table

        findings = compared(paths, python=python)
        show_item(figures_table(findings))
        if not all(finding.good for finding in findings):
            raise typer.Exit(DIFFERENT)
        return
    from archgraph.engine.verdicts import verdicts

    bad = total = 0
    for verdict in verdicts(paths, python=python):
        total += 1
        if verdict.error is None:
            say(f"ok    {verdict.path}  {verdict.kind}: {verdict.note}")
        else:
            bad += 1
            say(f"FAIL  {verdict.path}  {verdict.kind}")
            say(f"      {message(verdict.error)}", error=True)
    say(f"{total - bad} of {total} files are good")
    if bad:
        raise typer.Exit(BAD_INPUT)


@command()
def schema(
    kind: Annotated[
        Literal["model", "family", "experiment", "figures"], typer.Argument(help="Kind of file.")
    ],
    output: OutputFile = None,
) -> None:
    """Print the JSON schema of a kind of file.

    Editors complete and check YAML with it.
    """
    import json

    from archgraph.files import write
    from archgraph.language import schema as described

    text = json.dumps(described(kind), indent=2, ensure_ascii=False)
    if output is None:
        say(text)
    else:
        wrote(write(output, text + "\n"))


@command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
) -> None:
    """Write the shipped specs into a folder.

    Models, families and experiments to start from, with a short README.
    """
    from archgraph.demo.start import start

    say(f"wrote {start(folder)}; its README.md says how to begin")


@command("help")
def explain_word(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="E.g. conv, take, local.lr.")
    ] = None,
) -> None:
    """Explain a word of the files: a step, a rewrite or a key.

    Its sentence, options with defaults, and an example. Without NAME all topics are listed; the
    page "The spec language" of the documentation shows the same.
    """
    from archgraph.language.help import overview, topic

    say(overview() if name is None else str(topic(name)))
