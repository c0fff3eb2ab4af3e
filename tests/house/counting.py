"""Count statements, hard functions, density of the writing, circles of imports."""

from __future__ import annotations

import ast
import functools
import importlib.util
import io
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import networkx as nx
from radon.complexity import cc_visit
from radon.visitors import Class

HOUSE = Path(__file__).parents[2]
PACKAGE = ("archgraph", "strategies")
# What is delivered beside Python and YAML: pages, their scripts, templates of files.
TEMPLATES = frozenset({".css", ".html", ".js", ".md", ".txt"})


@dataclass(frozen=True)
class File:
    """A Python file of the house.

    Attributes:
        path: From the root of the project.
        text: What it holds.
    """

    path: Path
    text: str

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @property
    def module(self) -> str:
        """Its name for who imports it."""
        parts = self.path.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources(
    *roots: str, house: Path = HOUSE, suffixes: frozenset[str] = frozenset({".py"})
) -> Iterator[File]:
    """Yield the files of some folders; archgraph/strategies is a link to one of its own."""
    for root in roots:
        for path in sorted((house / root).rglob("*")):
            inside = path.relative_to(house)
            if path.suffix in suffixes and inside.parts[:2] != ("archgraph", "strategies"):
                yield File(inside, path.read_text(encoding="utf-8"))


def room_of(path: Path) -> str:
    """Return the room of a file: a folder of archgraph, what lies beside them, or another root.

    >>> room_of(Path("archgraph/ops/norms.py")), room_of(Path("archgraph/plain.py"))
    ('ops', 'top')
    >>> room_of(Path("strategies/fedfa.py"))
    'strategies'
    """
    root, *folders, _ = path.parts
    if root != "archgraph":
        return root
    return folders[0] if folders else "top"


def statements(tree: ast.AST) -> int:
    """Count statements; a bare constant (a docstring, an ellipsis) is none.

    >>> statements(ast.parse("'''Say so.'''; x = 1; y = 2"))
    2
    """
    return sum(
        isinstance(node, ast.stmt)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in ast.walk(tree)
    )


def complexities(text: str) -> list[int]:
    """Return the cyclomatic complexity of each function, with those inside it."""
    return [
        block.complexity + sum(inner.complexity for inner in block.closures)
        for block in cc_visit(text)
        if not isinstance(block, Class)
    ]


@dataclass(frozen=True)
class Room:
    """What one room holds.

    Attributes:
        statements: Statements of Python.
        above_15: Functions of a complexity above 15.
        above_25: Functions of a complexity above 25.
        lines: Lines of JavaScript and templates.
    """

    statements: int = 0
    above_15: int = 0
    above_25: int = 0
    lines: int = 0

    def __add__(self, other: Room) -> Room:
        return Room(
            self.statements + other.statements,
            self.above_15 + other.above_15,
            self.above_25 + other.above_25,
            self.lines + other.lines,
        )


def rooms(*roots: str, house: Path = HOUSE) -> dict[str, Room]:
    """Return what each room of some folders holds, by its name."""
    contents: dict[str, Room] = defaultdict(Room)
    for file in sources(*roots, house=house):
        values = complexities(file.text)
        hard, harder = (sum(value > most for value in values) for most in (15, 25))
        contents[room_of(file.path)] += Room(statements(file.tree), hard, harder)
    for file in sources(*roots, house=house, suffixes=TEMPLATES):
        contents[room_of(file.path)] += Room(lines=file.text.count("\n"))
    return dict(sorted(contents.items()))


def _code_and_comments(file: File) -> tuple[int, int]:
    """Count the lines of code, docstrings apart, and the comments."""
    apart = {
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
        tokenize.ENDMARKER,
    }  # fmt: skip
    lines, comments = set[int](), 0
    for token in tokenize.generate_tokens(io.StringIO(file.text).readline):
        comments += token.type == tokenize.COMMENT
        if token.type not in apart:
            lines.update(range(token.start[0], token.end[0] + 1))
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(file.tree):
        if isinstance(node, documented) and ast.get_docstring(node):
            first = node.body[0]
            lines.difference_update(range(first.lineno, (first.end_lineno or 0) + 1))
    return len(lines), comments


def density(files: Sequence[File]) -> dict[str, float]:
    """Return how densely files are written: expressions per statement, comments, ``Any``."""
    nodes = [node for file in files for node in ast.walk(file.tree)]
    total = sum(statements(file.tree) for file in files)
    counted = [_code_and_comments(file) for file in files]
    code = sum(lines for lines, _ in counted)
    loose = sum(isinstance(node, ast.Name) and node.id == "Any" for node in nodes)
    return {
        "expressions per statement": sum(isinstance(node, ast.expr) for node in nodes) / total,
        "comments per 1,000 lines of code": 1000 * sum(said for _, said in counted) / code,
        "Any per 1,000 lines of code": 1000 * loose / code,
    }


def twice(files: Sequence[File]) -> dict[str, list[str]]:
    """Return the public classes that occur in several places, by name."""
    places = defaultdict(list)
    for file in files:
        for node in ast.walk(file.tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{file.path}:{node.lineno}")
    return {name: at for name, at in places.items() if len(at) > 1}


def circles(files: Sequence[File]) -> list[list[str]]:
    """Return the groups of modules that import one another, wherever the imports stand.

    Those inside functions and under TYPE_CHECKING count: who reads one file must read them all.
    A name that a room lends (its ``__init__.pyi``) is an import of where it comes from.
    """
    known = {file.module for file in files}
    graph = nx.DiGraph()
    for file in files:
        graph.add_edges_from((file.module, module) for module in _imported(file, known))
    groups = nx.strongly_connected_components(graph)
    return sorted(sorted(group) for group in groups if len(group) > 1)


def _imported(file: File, known: set[str]) -> Iterator[str]:
    package = file.module if file.path.stem == "__init__" else file.module.rpartition(".")[0]
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        if isinstance(node, ast.ImportFrom):
            name = f"{'.' * node.level}{node.module or ''}"
            module = importlib.util.resolve_name(name, package)
            lent = _lent(module)
            for alias in node.names:
                inside = f"{module}.{alias.name}"
                source = inside if inside in known else lent.get(alias.name, module)
                yield from {source} & known


def _lent(module: str) -> Mapping[str, str]:
    """Return where the names come from that a room's stub lists."""
    stub = HOUSE.joinpath(*module.split("."), "__init__.pyi")
    if not stub.is_file():
        return {}
    return {
        alias.asname or alias.name: f"{module}.{node.module}" if node.level else str(node.module)
        for node in ast.walk(ast.parse(stub.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
