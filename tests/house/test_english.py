"""Texts for readers are plain English: no wording of ``english.csv`` occurs in them.

``english_rooms.csv`` has the number of hits that rooms still have; a room without a row is clean.
``english_exempt.csv`` has texts in which a wording is right, each with its reason.
"""

from __future__ import annotations

import ast
import csv
import functools
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.counting import HOUSE, PACKAGE, room_of, sources

HERE = Path(__file__).parent
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef


def rows(name: str) -> list[dict[str, str]]:
    """Read a table of this folder."""
    with (HERE / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


PATTERNS = {re.compile(row["pattern"]): row for row in rows("english.csv")}


def paragraphs(text: str) -> Iterator[str]:
    """Yield paragraphs, list items and fields of a text on one line each, without code blocks.

    >>> list(paragraphs("One\\ntwo.\\n\\nArgs:\\n    size: Of\\n        all.\\n    >>> f(1)"))
    ['One two.', 'Args:', 'size: Of all.']
    """
    text = re.sub(r"^( *)(```|~~~).*?^\1\2", "", text, flags=re.M | re.S)
    text = re.sub(r"^ *(?:>>>|\.\.\. ).*", "", text, flags=re.M)
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*#|]|\d+\.|\w+:) ?)|(?<=:)\n(?=\s+\w+: )", text):
        if line := " ".join(part.split()):
            yield line


def of_python(tree: ast.Module) -> Iterator[str]:
    """Yield docstrings, and strings of three words or more: errors, help, descriptions, notes."""
    inside = set[ast.expr]()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node, clean=False)):
            inside.add(node.body[0].value)  # type: ignore[attr-defined]
            yield from paragraphs(inspect.cleandoc(text))
    for node in ast.walk(tree):  # breadth first: a formatted string comes before its parts
        match node:
            case ast.JoinedStr(values=values):
                inside.update(values)
                text = "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "{}" for part in values
                )
            case ast.Constant(value=str(text)) if node not in inside:
                pass
            case _:
                continue
        if text.count(" ") >= 2:
            yield from paragraphs(text)


def texts() -> Iterator[tuple[str, Path, str]]:
    """Yield the texts of the project for readers: room, file, paragraph."""
    pages = [HOUSE / "README.md", HOUSE / "CHANGELOG.md", *sorted((HOUSE / "docs").rglob("*.md"))]
    for path in pages:
        inside = path.relative_to(HOUSE)
        if not {"_generated", "_build"} & set(inside.parts):
            room = inside.parts[0]
            yield from ((room, inside, text) for text in paragraphs(path.read_text("utf-8")))
    for file in sources(*PACKAGE, "docs/examples"):
        yield from ((room_of(file.path), file.path, text) for text in of_python(file.tree))


@functools.cache
def hits() -> list[tuple[str, str]]:
    """Return all hits: room, and a line with the file, the words around it, and a suggestion."""
    exempt = [(Path(row["file"]), row["text"]) for row in rows("english_exempt.csv")]
    return [
        (
            room,
            f"{path}: … {text[max(found.start() - 40, 0) : found.end() + 40]} … → {row['instead']}",
        )
        for room, path, text in texts()
        for pattern, row in PATTERNS.items()
        for found in pattern.finditer(text)
        if not any(path == file and words in text for file, words in exempt)
    ]


@pytest.mark.parametrize(("pattern", "row"), PATTERNS.items(), ids=lambda value: "")
def test_a_pattern_finds_its_example(pattern: re.Pattern[str], row: dict[str, str]):
    assert pattern.search(row["example"])


@pytest.mark.parametrize(
    "source",
    [
        '"""Draw it anew."""',
        'class A:\n    """A.\n\n    Attributes:\n        size: Drawn\n            anew.\n    """',
        'raise RunError("is drawn anew", where="x")',
        'raise RunError(f"{x} is drawn anew")',
        'Field(description="Draw it anew.")',
    ],
)
def test_texts_of_python_are_read(source: str):
    assert [text.count("anew") for text in of_python(ast.parse(source))].count(1) == 1


def test_rooms_have_no_more_hits_than_their_number():
    allowed = Counter({row["room"]: int(row["hits"]) for row in rows("english_rooms.csv")})
    counts = Counter(room for room, _ in hits())
    over = counts - allowed
    assert not over, "\n".join([f"{dict(over)}", *(line for room, line in hits() if room in over)])


def test_exemptions_are_few_and_needed():
    exempt = rows("english_exempt.csv")
    assert len(exempt) <= 20
    for row in exempt:
        lines = [text for _, path, text in texts() if path == Path(row["file"])]
        assert any(row["text"] in text for text in lines), row
        assert row["reason"]
