"""What pages of studies say about those whose runs are no longer there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

BEGIN, END = "<!-- measured {size} {stamp} -->", "<!-- /measured -->"
# A section ends before the next heading, whatever an edited page lacks between its comments.
_SECTION = re.compile(
    r"^## (?P<name>[^\n]+)\n(?:(?!^## ).)*?"
    r"^<!-- measured (?P<size>\w+) (?P<stamp>\w+) -->\n\n"
    r"(?P<body>(?:(?!^## ).)*?)\n\n<!-- /measured -->$",
    re.MULTILINE | re.DOTALL,
)
_DONE = re.compile(r"(?P<done>\d+) of \d+ cells? done")


@dataclass(frozen=True)
class EarlierStudy:
    """What the pages say about a study.

    Attributes:
        size: In which size.
        stamp: Stands for the runs and the claims that the study had then.
        body: The tables, in Markdown.
        row: Its line of the summary.
    """

    size: str
    stamp: str
    body: str
    row: tuple[str, ...]

    @property
    def done(self) -> int:
        """Cells that were done."""
        line = _DONE.search(self.body)
        return int(line["done"]) if line else 0

    @property
    def minutes(self) -> float:
        """Minutes that its runs took; 0 where the summary does not say."""
        text = self.row[3] if len(self.row) > 3 else ""
        return float(text) if text.isdecimal() else 0


def earlier_studies(pages: str) -> Mapping[str, EarlierStudy]:
    """Return the studies of pages that :meth:`Studies.pages` made, by name; of other text none.

    Args:
        pages: Their text, one after the other, the summary first.

    Example:
        >>> text = "## One|<!-- measured small 12ab -->|3 of 3 cells done.|<!-- /measured -->"
        >>> earlier_studies(text.replace("|", 2 * chr(10)))["One"].done
        3
    """
    lines = (line for line in pages.splitlines() if line.startswith("| "))
    cells = (tuple(part.strip() for part in line.strip("| ").split(" | ")) for line in lines)
    rows: dict[str, tuple[str, ...]] = {}
    for row in cells:
        rows.setdefault(row[0], row)  # the summary comes first
    return {
        one["name"]: EarlierStudy(one["size"], one["stamp"], one["body"], rows.get(one["name"], ()))
        for one in _SECTION.finditer(pages)
    }
