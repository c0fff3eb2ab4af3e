"""Generate pages from the code when the documentation is built.

They are written to `docs/_generated/` before Sphinx reads the pages that include them. Nothing here
is typed by hand: public names come from stubs, keys and operators from schemas and registries,
commands from the application, and options of strategies and fields of types from docstrings.
"""

from __future__ import annotations

import ast
import csv
import dataclasses
import html
import importlib
import inspect
import json
import pkgutil
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import typer
from sphinx.application import Sphinx

import archgraph
import archgraph.language.help as language
from archgraph import federation
from archgraph.cli import app
from archgraph.data.source import DATASETS, source
from archgraph.federation.catalogue import strategy_table
from archgraph.hints import EXTRAS, FEATURES
from archgraph.language.aggregate import rule_table
from archgraph.rewrites.registry import rewrite_table

HERE = Path(__file__).parent
OUT = HERE / "_generated"
# Types that methods of a strategy take and return, in the order in which readers meet them.
STRATEGY_TYPES = ("World", "Client", "Tier", "ServerState", "Task", "Result", "Evaluated")
CLIENT_TYPES = ("Work", "Outcome")
# The examinations of many models: one file each, and the columns that the summary adds up.
EXAMS = {
    "zoo": ("free axes", "removable blocks"),
    "growth": ("free axes", "exact axes", "deepened sections"),
    "hypernet": ("generated tensors",),
    "onnx-zoo": ("file operators",),
}
# The public names of archgraph, grouped by task. A test compares them with the stub.
TASKS = {
    "See": "view draw explain outline",
    "Read and write models": "trace load build state_of state_dict load_state initial_state save"
    " export from_transformers to_transformers to_timm from_peft to_peft",
    "Inspect a graph": "ArchGraph Node Param parse check structure axes layers Layer exits frozen"
    " label_rows layer_weights with_features fix_sizes",
    "Cut": "take narrow skip shorten ends_after split chain rank nested widths",
    "Cut to a budget": "fit cost importance Importance",
    "Grow": "widen deepen graft add_adapters add_lora add_exits add_step_sizes add_scaler",
    "Combine rewrites": "rewrite Rewritten Transfer fold train_only",
    "Merge": "Merger align Alignment join meet match PositionMatch squares_between",
    "Run": "load_family resolve load_experiment run load_study study",
    "Errors": "ArchGraphError AxisError DataError GraphError Inexpressible RejectedUpdate"
    " RewriteError RunError SpecError TraceError TraceWarning",
}

# Pages about what each extra is for.
PAGES = {
    "data": "{doc}`data </data>`",
    "hf": "{doc}`hugging-face </hugging-face>`",
    "onnx": "{doc}`onnx </onnx>`",
    "metrics": "{doc}`tasks </tasks>`",
    "tensorboard": "{doc}`tasks </tasks>`",
    "privacy": "{doc}`privacy </trust/privacy>`",
    "stats": "{doc}`unrelated networks </rewrites/unrelated>`, {doc}`studies </studies>`",
    "hypernet": "{doc}`hypernetwork </hypernetwork>`",
    "flower": "{doc}`simulation </running/flower>`, {doc}`machines </running/machines>`",
}


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages at the start of a build."""
    app.connect("builder-inited", lambda app: write(Path(app.outdir)))
    # Before napoleon, which rewrites the sections of a docstring.
    app.connect("autodoc-process-docstring", plain_signs, priority=400)
    return {"parallel_read_safe": True}


def write(out: Path) -> None:
    """Write all generated pages for a site in `out`; unchanged files are not rewritten."""
    pages = {
        "by-task.md": by_task(),
        "commands.md": commands(),
        "fields-client.md": fields(CLIENT_TYPES),
        "fields-strategy.md": fields(STRATEGY_TYPES),
        "gallery.md": gallery(out),
        "language.md": language.markdown(),
        "methods.md": methods(),
        "measured.md": measured(),
        "data-sets.md": data_sets(),
        "extras.md": extras(),
        "rewrites.md": rewrite_table().markdown() + "\n",
        "rooms.md": rooms(),
        "rules.md": rule_table().markdown() + "\n",
        "strategies.md": strategies(),
        "strategy-table.md": strategy_table().markdown() + "\n",
        **reference(),
        **notebooks(),
    }
    OUT.mkdir(exist_ok=True)
    for old in OUT.glob("*.md"):
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        file = OUT / name
        if not file.exists() or file.read_text() != text:
            file.write_text(text)


def plain_signs(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Escape `|A|` and `[rows, *shape]` in docstrings, so that they are not read as markup."""
    example = False
    for number, line in enumerate(lines):
        example = line.lstrip().startswith(">>>") or (example and bool(line.strip()))
        if not example:
            line = re.sub(r"\|(\w+)\|", r"\\|\1\\|", line)
            lines[number] = re.sub(r", \*(?=\w+[\],])", r", \\*", line)


def notebooks() -> dict[str, str]:
    """Return a page for each notebook, with its text and code."""
    pages = {}
    for path in sorted((HERE / "notebooks").glob("*.ipynb")):
        # The first cell has the title; the link to the file follows.
        parts = [_block(cell) for cell in json.loads(path.read_text())["cells"]]
        link = f"{{download}}`{path.name} <../notebooks/{path.name}>`"
        pages[f"notebook-{path.stem}.md"] = "\n\n".join([parts[0], link, *parts[1:]]) + "\n"
    return pages


def _block(cell: dict[str, Any]) -> str:
    text = "".join(cell["source"])
    return text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"


def data_sets() -> str:
    """Return the table of data sets, one row each."""
    rows = ["| name | what it is | classes | files |", "|---|---|---|---|"]
    for known in map(source, DATASETS):
        files = "with archgraph" if known.shipped else f"`{known.folders[0]}/`"
        rows.append(f"| `{known.name}` | {known.about} | {len(known.labels) or ''} | {files} |")
    return "\n".join(rows) + "\n"


def extras() -> str:
    """Return the table of extras: what each is needed for, and the modules that it brings."""
    rows = ["| extra | needed for | brings | page |", "|---|---|---|---|"]
    for extra, use in FEATURES.items():
        modules = ", ".join(f"`{module}`" for module, name in EXTRAS.items() if name == extra)
        rows.append(f"| `{extra}` | {use} | {modules} | {PAGES[extra]} |")
    return "\n".join(rows) + "\n"


def methods() -> str:
    """Return the table of methods and requirements, marked where a method's class has one."""
    facts: dict[str, Callable[[type[federation.Strategy]], bool]] = {
        "one network only": lambda cls: cls.serves == ("one",),
        "narrower parts": lambda cls: "width" in cls.serves,
        "shallower parts": lambda cls: bool({"depth", "exits"} & {*cls.serves}),
        "needs exits": lambda cls: "exits" in cls.serves,
        "same stem and head, or first part": lambda cls: "split" in cls.serves,
        "adapters of any rank": lambda cls: "rank" in cls.serves,
        "any networks": lambda cls: "any" in cls.serves,
        "needs a global model": lambda cls: cls.needs_global,
        "needs public data": lambda cls: cls.public,
        "classes only": lambda cls: "values" in cls.unlearnable,
        "`aggregate`, `server`": lambda cls: cls.averages,
    }
    rows = [f"| method | {' | '.join(facts)} |", "|---" + "|:-:" * len(facts) + "|"]
    for name in language.strategy_names():
        cls = federation.find_strategy(name)
        marks = ("●" if holds(cls) else "" for holds in facts.values())
        rows.append(f"| `{name}` | {' | '.join(marks)} |")
    return "\n".join(rows) + "\n"


def measured() -> str:
    """Return the number of models that pass each examination, one row per group of models."""
    rows = ["| file | models from | models | pass | in total |", "|---|---|---|---|---|"]
    for name, columns in EXAMS.items():
        with (HERE / "measured" / f"{name}.csv").open(newline="") as file:
            models = list(csv.DictReader(file))
        for group in dict.fromkeys(model["group"] for model in models):
            of = [model for model in models if model["group"] == group]
            sums = ((sum(int(model[c] or 0) for model in of), c) for c in columns)
            total = ", ".join(f"{number:,} {column}" for number, column in sums)
            passed = sum(model["verdict"] == "pass" for model in of)
            rows.append(f"| `{name}` | {group} | {len(of)} | {passed} | {total} |")
    return "\n".join(rows) + "\n"


def rooms() -> str:
    """Return the table of rooms in import order, each with its first sentence."""
    settings = tomllib.loads((HERE.parent / "pyproject.toml").read_text())
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    described = {name.removesuffix(".md") for name in reference()}
    rows = ["| room | what is inside |", "|---|---|"]
    for name in re.findall(r"\w+(?=\s|$)", "\n".join(layers)):
        module = importlib.import_module(full := f"archgraph.{name}")
        if hasattr(module, "__path__"):
            about = (inspect.getdoc(module) or "").split("\n\n")[0]
            link = f"{{doc}}`{name} </_generated/{full}>`" if full in described else name
            rows.append(f"| {link} | {_cell(_inline(about))} |")
    return "\n".join(rows) + "\n"


def gallery(out: Path) -> str:
    """Return the models of the gallery; a picture links to the page written by `make gallery`.

    Without a page, it links to the picture in full size.
    """
    with (HERE / "gallery.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    cards = []
    for row in rows:
        model = row["model"].replace("/", "-")
        picture, page = f"_static/gallery/{model}.svg", f"gallery/{model}.html"
        name, about = html.escape(row["name"]), html.escape(row["look at"])
        cards.append(
            f'<a href="{page if (out / page).exists() else picture}">'
            f'<img src="{picture}" alt="{name}: its blocks and what flows between them">'
            f"<strong>{name}</strong> {about}</a>"
        )
    return "\n".join(["```{raw} html", '<div class="gallery">', *cards, "</div>", "```"]) + "\n"


def by_task() -> str:
    """Return the table of public names of archgraph, one row per task."""
    rows = ["| to | |", "|---|---|"]
    for task, names in TASKS.items():
        links = (f"{{py:obj}}`{name} <archgraph.{name}>`" for name in names.split())
        rows.append(f"| {task} | {', '.join(links)} |")
    return "\n".join(rows) + "\n"


def commands() -> str:
    """Return all commands of `archgraph` with their arguments and options."""
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    lines = []
    with click.Context(group, info_name="archgraph") as context:
        for name, command, inner in _leaves(group, context):
            usage = command.get_usage(inner).removeprefix("Usage: ")
            about = re.sub(r"(?<![`\w])--[a-z-]+", r"`\g<0>`", inspect.cleandoc(command.help or ""))
            lines += [f"## `{name}`", "", about, "", "```text", usage, "```", ""]
            rows = [r for p in command.get_params(inner) if (r := _parameter(p, inner))]
            lines += ["| | |", "|---|---|", *(f"| `{_cell(a)}` | {b} |" for a, b in rows), ""]
    return "\n".join(lines)


def _leaves(
    group: click.Group, context: click.Context, prefix: str = ""
) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Yield the commands of a group and its subgroups by name."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _leaves(command, inner, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command, inner


def _parameter(parameter: click.Parameter, context: click.Context) -> tuple[str, str] | None:
    """Return name and help of an argument or option; None for `--help`."""
    if parameter.name == "help":
        return None
    record = parameter.get_help_record(context)
    if record is not None:
        return record[0], _cell(record[1])
    return parameter.make_metavar(context), _cell(getattr(parameter, "help", None) or "")


def strategies() -> str:
    """Return all built-in strategies, each with its description and a table of its options."""
    names = language.strategy_names()
    return "\n\n".join(language.topic(name).markdown(level=2) for name in names) + "\n"


def fields(names: tuple[str, ...]) -> str:
    """Return a table of fields for each of some types of the strategy interface."""
    lines = []
    for name in names:
        cls = getattr(federation, name)
        about = " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())
        lines += [f"### `{name}`", "", _inline(about), ""]
        lines += ["| field | type | default | |", "|---|---|---|---|"]
        told = _attributes(cls)
        for field in dataclasses.fields(cls):
            default = _default(field)
            shown = getattr(default, "__name__", repr(default))
            shown = "" if default is dataclasses.MISSING else f"`{shown}`"
            cells = f"`{field.name}`", f"`{field.type}`", shown, _inline(told.get(field.name, ""))
            lines.append(f"| {' | '.join(map(_cell, cells))} |")
        lines.append("")
    return "\n".join(lines)


def _attributes(cls: type) -> dict[str, str]:
    """Return the descriptions in the `Attributes` section of a docstring, by name."""
    _, _, section = (inspect.getdoc(cls) or "").partition("\nAttributes:\n")
    section = re.split(r"^\S", section, maxsplit=1, flags=re.M)[0]
    told = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.M)
    return {name: " ".join(sentence.split()) for name, sentence in told}


def _default(field: dataclasses.Field) -> object:
    """Return a field's default; `MISSING` if it has none."""
    made = field.default_factory is not dataclasses.MISSING
    return field.default_factory() if made else field.default


def _inline(text: str) -> str:
    """Convert inline markup of a docstring to Markdown."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    return text.replace("``", "`").replace("*", r"\*")


def _cell(text: str) -> str:
    """Escape a text for a table cell."""
    return " ".join(text.split()).replace("|", r"\|")


# ------------------------------------------------------------------------------- reference


def reference() -> dict[str, str]:
    """Return one page per room with its public names; the first page is that of `archgraph`.

    Each value is described once: a room that re-exports a name links to its description.
    """
    described: dict[int, str] = {}
    tasks = {task: names.split() for task, names in TASKS.items()}
    pages = {"archgraph.md": _page("archgraph", tasks, described)}
    for room in _rooms():
        names = _stub_names(room) or list(getattr(importlib.import_module(room), "__all__", ()))
        if any(_directive(getattr(importlib.import_module(room), name)) for name in names):
            pages[f"{room}.md"] = _page(room, {"": names}, described)
    return pages


def _rooms() -> list[str]:
    """Return import names of the rooms in alphabetical order; commands have their own page."""
    found = pkgutil.iter_modules(archgraph.__path__, "archgraph.")
    return [m.name for m in found if m.ispkg and m.name != "archgraph.cli"]


def _stub_names(package: str) -> list[str]:
    """Return the names that a package's stub re-exports, in order."""
    stub = Path(importlib.import_module(package).__path__[0]) / "__init__.pyi"
    if not stub.exists():
        return []
    tree = ast.parse(stub.read_text())
    return [
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]


def _page(package: str, groups: dict[str, list[str]], described: dict[int, str]) -> str:
    """Return the page of a package: its docstring, then a table and the names of each group."""
    module = importlib.import_module(package)
    lines = [f"# `{package}`", "", "```{eval-rst}", f".. automodule:: {package}"]
    lines += ["   :no-members:", "```", ""]
    for title, names in groups.items():
        lines += [f"## {title}", ""] if title else []
        lines += ["| name | |", "|---|---|"]
        members = []
        for name in names:
            value = getattr(module, name)
            kind = _directive(value)
            if kind is None:
                continue
            full = f"{package}.{name}"
            if id(value) not in described:
                described[id(value)] = full
                members += ["```{eval-rst}", f".. {kind}:: {full}", "```", ""]
            about = re.split(r"\n\n|(?<=\.) ", inspect.getdoc(value) or "")[0]
            link = f"{{py:obj}}`{name} <{described[id(value)]}>`"
            lines.append(f"| {link} | {_cell(_inline(about))} |")
        lines += ["", *members]
    return "\n".join(lines)


def _directive(value: object) -> str | None:
    """Return the autodoc directive for a value; None if it is not ours or has no docstring."""
    if not (getattr(value, "__module__", None) or "").startswith("archgraph"):
        return None
    if isinstance(value, type):
        return "autoexception" if issubclass(value, BaseException) else "autoclass"
    if callable(value) and getattr(value, "__doc__", None):
        return "autofunction"
    return None
