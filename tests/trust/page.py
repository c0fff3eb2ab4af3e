"""The figures of ``docs/measured/trust.md``, each block written by its command."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Sequence
from pathlib import Path


def write(page: Path, name: str, text: str) -> None:
    """Replace what stands between the marks of a command."""
    begin, end = f"<!-- {name}: written by `python -m tests.trust.{name}` -->", f"<!-- /{name} -->"
    content = page.read_text()
    block = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if len(block.findall(content)) != 1:
        raise ValueError(f"{page}: found no block {begin} … {end}")
    day = datetime.date.today()
    date = f"({day.day} {day:%B %Y})"
    page.write_text(block.sub(lambda _: f"{begin}\n{text.strip()}\n\n{date}\n{end}", content))


def kept_rows(page: Path, name: str) -> dict[str, str]:
    """Lines of a command's table by their first cell, so that a part of it can be written anew.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "page.md")
    ...     marks = "<!-- x: written by `python -m tests.trust.x` -->", "<!-- /x -->"
    ...     _ = path.write_text(f"{marks[0]}{marks[1]}")
    ...     write(path, "x", table(["what", "n"], [["a", 1], ["b", 2]]))
    ...     kept_rows(path, "x")
    {'a': '| a | 1 |', 'b': '| b | 2 |'}
    """
    begin, end = f"<!-- {name}: written by `python -m tests.trust.{name}` -->", f"<!-- /{name} -->"
    block = page.read_text().partition(begin)[2].partition(end)[0]
    lines = [line for line in block.splitlines() if line.startswith("|")]
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines[2:]}


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
