"""The page of the zoo read back, so that a few models can be examined and the others stay."""

from __future__ import annotations

import re
import statistics

from tests.zoo.collection import GROUPS, entries
from tests.zoo.table import COLUMNS
from tests.zoo.tables import grid

Rows = dict[tuple[str, str], str]  # a line by group and model
LISTS = ("Failures", "Left out and noted")
SHARE = COLUMNS.index("share")


def merged(old: str, new: str) -> str:
    """A page with the models of another in place of its own, and the summary counted again.

    Args:
        old: The page as it was.
        new: A page of some models.
    """
    before, after = _sections(old), _sections(new)
    changed = _rows(after)
    rows = {**_rows(before), **changed}
    order = [(e.group, e.name) for e in entries() if (e.group, e.name) in rows]
    parts = [before[""].partition("| group |")[0].strip(), _summary({k: rows[k] for k in order})]
    for group in GROUPS:
        head = before.get(group, after.get(group, "")).splitlines()[:4]
        lines = [rows[key] for key in order if key[0] == group]
        parts += ["\n".join([f"## {head[0]}", *head[1:], *lines])] if lines else []
    for title in LISTS:
        items = [item for item in _items(before, title) if _model(item) not in changed]
        items += _items(after, title)
        parts += ["\n".join([f"## {title}\n", *items])] if items else []
    return "\n\n".join(parts) + "\n"


def _sections(page: str) -> dict[str, str]:
    """What stands under each heading, the heading included; under none what comes first."""
    first, *others = re.split(r"^## ", page, flags=re.MULTILINE)
    return {"": first, **{text.partition("\n")[0]: text.strip() for text in others}}


def _rows(sections: dict[str, str]) -> Rows:
    found = {}
    for group in GROUPS:
        for line in sections.get(group, "").splitlines()[4:]:
            found[group, line.split(" | ")[0].removeprefix("| ")] = line
    return found


def _items(sections: dict[str, str], title: str) -> list[str]:
    """Items of a list, each with the lines below it."""
    text = sections.get(title, "").partition("\n\n")[2]
    return re.split(r"\n(?=- )", text) if text else []


def _model(item: str) -> tuple[str, str]:
    group, _, name = item.removeprefix("- ").splitlines()[0].partition(":")[0].partition("/")
    return group, name


def _summary(rows: Rows) -> str:
    """Pass rate and median share by group, from the columns of the tables."""
    lines = []
    for group in (*GROUPS, "all"):
        own = [row.split(" | ") for key, row in rows.items() if group in (key[0], "all")]
        if own:
            passed = sum(row[-1] == "pass |" for row in own)
            shares = [float(row[SHARE].rstrip("%")) for row in own if row[SHARE]]
            share = f"{statistics.median(shares):.2f}%" if shares else ""
            lines.append((group, str(len(own)), str(passed), f"{passed / len(own):.1%}", share))
    return grid(("group", "models", "pass", "rate", "median share"), lines)
