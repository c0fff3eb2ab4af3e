"""Every snippet of the README and of the documentation is true: it runs, or the library reads it.

Blocks of a page share one namespace and one scratch folder, in which `specs` and `docs` are those
of the repository. Python is executed, with the output of doctests compared. YAML is read as a
model, a family or an experiment; what is only a part of one completes a small whole one first.
Lines `$ archgraph …` are executed where that is quick or where output is shown, else their
arguments are parsed; lines `$ make …` name targets that exist.
"""

from __future__ import annotations

import doctest
import functools
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from click.testing import CliRunner
from ruamel.yaml import YAML
from sybil import Example
from sybil.document import Document
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser
from sybil.typing import Parser

from archgraph.cli import app
from archgraph.cli.app import ANYWHERE
from archgraph.engine.loading import load
from archgraph.language import load_experiment, load_family
from archgraph.studies import load_study
from archgraph.studies.spec import cells

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(file for file in (ROOT / "docs").rglob("*.md") if "_" not in file.parts[-2][:1]),
    ]
)
SNIPPETS = [page for page in PAGES if "```" in page.read_text()]
# Pages that take longest; other pages of their areas show most of the same commands.
LONG = {
    "docs/data-images.md",
    "docs/data-python.md",
    "docs/data-text.md",
    "docs/data-tokens.md",
    "docs/fine-tune.md",
    "docs/first-steps.md",
    "docs/graph.md",
    "docs/hugging-face.md",
    "docs/onnx.md",
    "docs/peft.md",
    "docs/rewrites/larger.md",
    "docs/rewrites/unrelated.md",
    "docs/running/start.md",
    "docs/seeing.md",
    "docs/strategies.md",
    "docs/tasks-regression.md",
    "docs/tasks-segmentation.md",
    "docs/training-loop.md",
}
FOLDERS = ("archgraph", "benchmarks", "docs", "specs", "strategies", "tests")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# Commands that take seconds at most; the arguments of the others are only parsed.
QUICK = set("check draw explain fit help init rewrite schema show".split())
# What completes a part of a file; a part is what names some keys of one of them and nothing else.
WHOLE: dict[str, dict[str, Any]] = {
    "model": {
        "archgraph": 1,
        "name": "part",
        "inputs": {"image": [1, 8, 8]},
        "sections": [
            {"name": "stem", "steps": [{"conv": {"out": 8}}]},
            {"name": "head", "steps": ["relu", "global_avg_pool", "flatten", {"linear": 10}]},
        ],
    },
    "family": {
        "archgraph": 1,
        "name": "part",
        "model": "specs/models/digits_cnn.yaml",
        "clients": [{"name": "all", "count": 2}],
    },
    "experiment": {
        "archgraph": 1,
        "name": "part",
        "family": "specs/families/fedfa_digits.yaml",
        "data": {"dataset": "digits"},
        "strategy": {"fedfa": {}},
        "rounds": 1,
        "local": {"lr": 0.1},
    },
}
# By which keys a file is known.
KEYS = {
    "study": {"study"},
    "experiment": {
        "family", "data", "strategy", "rounds", "sample", "local", "attack", "evaluate",
        "engine", "seed", "out", "task", "validation", "trackers", "weights",
    },
    "family": {"clients", "choose", "change"},
    "model": {"inputs", "params", "blocks", "sections", "choices", "python", "args"},
}  # fmt: skip


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def read_study(path: Path) -> None:
    for size in (study := load_study(path)).sizes:
        cells(study, size)


READ: dict[str, Callable[[Path], Any]] = {
    "model": functools.partial(load, python=True),
    "family": load_family,
    "experiment": load_experiment,
    "study": read_study,
}


def read_yaml(example: Example) -> str | None:
    """Let the library read a block as what its keys say it is."""
    text = example.parsed.text if hasattr(example.parsed, "text") else str(example.parsed)
    names = re.match(r"# (?P<name>[\w/]+\.yaml)\b", text)
    data = YAML(typ="safe").load(text)
    if not isinstance(data, Mapping):
        return "a block of YAML is a mapping"
    kind = next((kind for kind, keys in KEYS.items() if keys & set(data)), None)
    if kind is None:
        return f"keys of no kind of file: {', '.join(data)}"
    file = Path(names["name"]) if names else Path(f"{kind}.yaml")
    file.parent.mkdir(exist_ok=True, parents=True)
    if "archgraph" in data:
        file.write_text(text)
    else:
        complete = {**WHOLE[kind], **data}
        if "local" in data and "optimiser" not in data["local"]:  # a part of it, too
            complete["local"] = {"lr": 0.1, **data["local"]}
        YAML().dump(complete, buffer := StringIO())
        file.write_text(buffer.getvalue())
    READ[kind](file)
    return None


def run_console(example: Example) -> str | None:
    """Execute or parse the commands of a block, and compare output that it shows."""
    for part in re.split(r"^\$ ", str(example.parsed), flags=re.M)[1:]:
        line, _, shown = part.replace("\\\n", " ").partition("\n")
        words = shlex.split(line, comments=True)
        problem = _command(words, shown) if words else None
        if problem:
            return f"$ {line}\n{problem}"
    return None


def _command(words: list[str], shown: str) -> str | None:
    """What is wrong with a command, if anything."""
    match words:
        case ["archgraph", *arguments]:
            return _archgraph(arguments, shown)
        case ["make", target, *_]:
            known = f"\n{target}:" in (ROOT / "Makefile").read_text()
            return None if known else f"the Makefile has no target {target}"
        case [("pip" | "git" | "pytest" | "python" | "cd"), *_]:
            return None
    return "a command that this test does not know"


def _archgraph(arguments: list[str], shown: str) -> str | None:
    """Run the command line, or parse its arguments only."""
    if shown.strip() or arguments[0] in QUICK:
        result = CliRunner().invoke(typer.main.get_command(app), arguments)
        if result.exit_code != 0 and not shown.startswith("error"):
            return f"exit code {result.exit_code}: {result.output}"
        if shown.strip() and not doctest.OutputChecker().check_output(shown, result.output, FLAGS):
            return f"expected:\n{shown}\nprinted:\n{result.output}"
        return None
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    with click.Context(group) as context:
        name, command, rest = group.resolve_command(context, arguments)
        assert command is not None
        command.make_context(name, [w for w in rest if w not in ANYWHERE], parent=context)
    return None


def plain(example: Example) -> None:
    """Text that nothing reads."""


PARSERS: list[Parser] = [
    SkipParser(),
    PythonCodeBlockParser(doctest_optionflags=FLAGS),
    CodeBlockParser("yaml", read_yaml),
    CodeBlockParser("console", run_console),
    CodeBlockParser("text", plain),
]


# PEFT's own, of the version of transformers beside it.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.full] * (_name(page) in LONG), id=_name(page))
        for page in SNIPPETS
    ],
)
def test_snippets(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("specs", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples"))  # what readers save beside it
    monkeypatch.syspath_prepend(str(tmp_path))
    document = Document.parse(str(page), *PARSERS)
    for example in document.examples():
        example.evaluate()


def test_every_block_is_of_a_language_that_is_checked() -> None:
    for page in SNIPPETS:
        fences = re.findall(r"^\s*```([^\n`]+)$", page.read_text(), re.M)
        words = {word for word in fences if not word.startswith("{")}
        assert words <= {"python", "yaml", "console", "text"}, page


def test_files_that_pages_name_exist() -> None:
    for page in (page for page in PAGES if page.name != "CHANGELOG.md"):  # names files of its time
        for path in re.findall(
            r"`((?:specs|docs|strategies|archgraph|tests)/[\w/.-]+)`", page.read_text()
        ):
            assert (ROOT / path).exists(), f"{page.name}: {path}"
