"""Pages that are written from the code when the documentation is built: language and reference.

Written into `docs/_generated/`, before Sphinx reads the pages that include them. Nothing here is
typed by hand: public names come from the stubs, keys and operators from schemas and registries.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections import defaultdict
from pathlib import Path

from sphinx.application import Sphinx

import archgraph
import archgraph.language.help as language
from archgraph.engine.data.source import DATASETS, source
from archgraph.rewrite.registry import rewrite_table

HERE = Path(__file__).parent
OUT = HERE / "_generated"


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages when a build begins."""
    app.connect("builder-inited", lambda app: write())
    # Before napoleon, which rewrites the sections of a docstring.
    app.connect("autodoc-process-docstring", plain_signs, priority=400)
    return {"parallel_read_safe": True}


def write() -> None:
    """Write every generated page; files that would not change are left alone."""
    pages = {
        "language.md": language.markdown(),
        "data-sets.md": data_sets(),
        "rewrites.md": rewrite_table().markdown() + "\n",
        **reference(),
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
    """Let `|A|` and `[rows, *shape]` in docstrings be what they look like, not markup."""
    example = False
    for number, line in enumerate(lines):
        example = line.lstrip().startswith(">>>") or (example and bool(line.strip()))
        if not example:
            line = re.sub(r"\|(\w+)\|", r"\\|\1\\|", line)
            lines[number] = re.sub(r", \*(?=\w+[\],])", r", \\*", line)


def data_sets() -> str:
    """The table of data sets, a row each."""
    rows = ["| name | what it is | classes | files |", "|---|---|---|---|"]
    for known in map(source, DATASETS):
        files = "with archgraph" if known.shipped else f"`{known.folders[0]}/`"
        rows.append(f"| `{known.name}` | {known.about} | {len(known.labels) or ''} | {files} |")
    return "\n".join(rows) + "\n"


# ------------------------------------------------------------------------------- reference


def reference() -> dict[str, str]:
    """One page per room with its public names; the first page has those of `archgraph` itself."""
    pages = {"archgraph.md": _page("archgraph", _stub_names("archgraph"), own=False)}
    for room in _rooms():
        names = _stub_names(room) or list(getattr(importlib.import_module(room), "__all__", ()))
        if names:
            pages[f"{room}.md"] = _page(room, names)
    return pages


def _rooms() -> list[str]:
    """Import names of the rooms, in alphabetical order."""
    found = pkgutil.iter_modules(archgraph.__path__, "archgraph.")
    return [module.name for module in found if module.ispkg]


def _stub_names(package: str) -> list[str]:
    """Names that a package's stub re-exports, in its order."""
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


def _page(package: str, names: list[str], *, own: bool = True) -> str:
    """The page of a package: its docstring, then every public name under the room it is from."""
    module = importlib.import_module(package)
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        value = getattr(module, name)
        home = getattr(value, "__module__", package) or package
        groups[home if own else ".".join(home.split(".")[:2])].append(name)
    about = ["```{eval-rst}", f".. automodule:: {package}", "   :no-members:", "```", ""]
    lines = [f"# `{package}`", "", *about]
    for group, members in groups.items():
        if not own:
            lines += [f"## {group.removeprefix('archgraph.').capitalize()}", ""]
        for name in members:
            value = getattr(module, name)
            kind = _directive(value)
            if kind is None:
                continue
            lines += ["```{eval-rst}", f".. {kind}:: {package}.{name}"]
            lines += ["   :no-index:", "```", ""] if own else ["```", ""]
    return "\n".join(lines)


def _directive(value: object) -> str | None:
    """The autodoc directive that documents a value, if it has a docstring of its own."""
    if isinstance(value, type):
        return "autoexception" if issubclass(value, BaseException) else "autoclass"
    if callable(value) and getattr(value, "__doc__", None):
        return "autofunction"
    return None
