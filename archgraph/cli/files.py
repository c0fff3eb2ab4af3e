"""Commands about files: check, schema, init, help, strategies."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from archgraph.cli.app import BAD_INPUT, command
from archgraph.cli.arguments import OutputFile, Settings, experiment_of
from archgraph.cli.output import message, put, say, show_item, with_progress, wrote
from archgraph.errors import SpecError
from archgraph.tables import plural


@command()
def check(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH…", help="Files or folders.")],
    settings: Settings = None,
) -> None:
    """Check files for mistakes.

    Checks models, families, experiments and studies. For an experiment, the command finds every
    mistake that a run would report before its first round. It reads your own data files, but not
    the data sets that archgraph knows by name, such as mnist. For a study (a table of experiments),
    it checks the experiment of every cell.

    Python code that files name is run only with your consent (--python). Without --python, only the
    keys and values of such files are checked. --set changes the settings of a single experiment, as
    for `run`.

    In a folder, all YAML files are checked. The exit code is 2 if any file is invalid.
    """
    from archgraph.language import verdicts
    from archgraph.language.checking import yaml_files

    files = list(yaml_files(paths))
    results, total = verdicts(files), len(files)
    if settings:
        from archgraph.engine.files import verdict_of

        if len(paths) != 1:
            raise SpecError(f"applies to one experiment, not to {len(paths)} paths", where="--set")
        results, total = iter([verdict_of(experiment_of(paths[0], settings), paths[0])]), 1
    words: Counter[str] = Counter()
    for verdict in with_progress(results, total, "files"):
        # `form`: the Python code that it names was not run.
        word = "FAIL" if verdict.error else "form" if verdict.unseen else "ok"
        words[word] += 1
        note = "" if verdict.error else f": {verdict.note}"
        say(f"{word:4}  {verdict.path}  {verdict.kind}{note}", 6)
        if verdict.error:
            say(f"      {message(verdict.error)}")
    good = words["ok"] + words["form"]
    say(f"{good} of {plural(total, 'file')} {'is' if total == 1 else 'are'} valid")
    if words["form"]:
        say(
            f"only the form of {words['form']} of them was checked; use --python to run "
            "their Python code and to check sections, axes and inputs, too"
        )
    if words["FAIL"]:
        raise typer.Exit(BAD_INPUT)


@command()
def schema(
    kind: Annotated[str, typer.Argument(help="Kind of file: model, family, experiment or study.")],
    output: OutputFile = None,
) -> None:
    """Print the JSON schema of a kind of file.

    Editors use the schema to complete and check YAML.
    """
    import json

    from archgraph.files import write
    from archgraph.language import schema as described

    text = json.dumps(described(kind), indent=2, ensure_ascii=False)
    if output is None:
        put(text)
    else:
        wrote(write(output, text + "\n"))


@command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
) -> None:
    """Copy the example files into a new folder.

    The folder contains models, families, experiments and studies to start from, with a short
    README.
    """
    from archgraph.demo.start import start

    say(f"wrote {start(folder)}; see its README.md")


@command("help")
def explain_word(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="E.g. conv, take, local.lr.")
    ] = None,
) -> None:
    """Explain a layer, rewrite, strategy or key of the YAML files.

    Prints a description, the options with their defaults, and an example. Without NAME, the command
    lists all topics. With "steps" (the layers and operators of a model file), "rewrites",
    "strategies" or "extras", it lists the topics of this group. The page "Keys and operators" of
    the documentation contains the same information.
    """
    from archgraph.language.help import overview, topic

    groups = overview()
    say("\n\n".join(groups.values()) if name is None else groups.get(name) or str(topic(name)))


@command()
def strategies(
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """List the installed strategies.

    Prints the paper and year of each strategy, how clients may differ, the requirements and the
    presets. `archgraph help NAME` explains a strategy and its options.
    """
    from archgraph.federation import strategy_table

    table = strategy_table()
    if as_markdown:
        put(table.markdown())
    else:
        show_item(table)
