"""What the pages and lines of all examinations have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tests.zoo.collection import GROUPS, Entry
from tests.zoo.report import Findings

Found = Sequence[tuple[Entry, Any]]  # with reports of one kind


def cells(texts: Sequence[str]) -> str:
    """A row of a table."""
    return f"| {' | '.join(escaped(t) for t in texts)} |"


def escaped(text: str) -> str:
    """Text that Markdown leaves as it is."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    return "\n".join([cells(heads), "|" + "---|" * len(heads), *map(cells, rows)])


def each_group(found: Found) -> Iterator[tuple[str, list[Any]]]:
    """The reports of each group that has some, and those of all."""
    for group in (*GROUPS, "all"):
        own = [r for e, r in found if group in (e.group, "all")]
        if own:
            yield group, own


def by_group(
    found: Found, columns: Sequence[str], row: Callable[[Entry, Any], Sequence[str]]
) -> list[str]:
    """A table per group of models."""
    rows = {group: [row(e, r) for e, r in found if e.group == group] for group in GROUPS}
    return [f"## {group}\n\n{grid(columns, own)}" for group, own in rows.items() if own]


def listing(title: str, items: Sequence[str]) -> list[str]:
    """A list under a heading, if it has items."""
    return [f"## {title}\n\n" + "\n".join(map(escaped, items))] if items else []


def failures(found: Found) -> list[str]:
    """The section of the failures."""
    items = [f"- {e.group}/{e.name}: {f.check}: {f.error}" for e, r in found for f in r.failures]
    return listing("Failures", items)


def not_examined(found: Found, models: int) -> list[str]:
    """What is said if models are left."""
    left = models - len(found)
    return [f"{left} of {models} models were not examined for want of time."] if left else []


def told(report: Findings, *lines: str) -> str:
    """Lines about a model, its failures below."""
    return "\n".join([*lines, *(f"        {f.check}: {f.error}" for f in report.failures)])
