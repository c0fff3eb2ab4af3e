"""Tables of values: text to read, and the same values unrounded as CSV."""

from __future__ import annotations

import csv
import html
import io
import json
import urllib.parse
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from archgraph.plain import Json
from archgraph.tables import Table, count

# What stands in a cell without a value.
NOTHING = "–"
# What browsers are told of a file inside a page.
KINDS = {"csv": "text/csv", "svg": "image/svg+xml"}
# Rows of a table on a page.
MOST = 200


def in_bytes(value: float) -> str:
    """Write bytes, short, in powers of ten.

    >>> in_bytes(73_856), in_bytes(0)
    ('73.9 kB', '0 B')
    """
    text = count(value)
    return f"{text[:-1]} {text[-1]}B" if text[-1].isalpha() else f"{text} B"


@dataclass(frozen=True)
class SheetColumn:
    """A column of a sheet.

    Attributes:
        key: Its name in CSV.
        title: Its head in the table.
        show: A value as text.
        right: Whether it holds numbers.
        hidden: Whether it is in CSV only.
    """

    key: str
    title: str
    show: Callable[[Json], str] = str
    right: bool = False
    hidden: bool = False


@dataclass(frozen=True)
class Sheet:
    r"""A table of values.

    Attributes:
        name: What it is about; of its file, too.
        columns: The columns.
        rows: Values by row and column; None: there is none.
        strong: Rows that sum.
        note: What to know for reading it.

    Example:
        >>> sizes = Sheet("sizes", (SheetColumn("bytes", "size", in_bytes, True),), ((73_856,),))
        >>> sizes.table().rows, sizes.csv()
        ((('73.9 kB',),), 'bytes\n73856\n')
    """

    name: str
    columns: tuple[SheetColumn, ...]
    rows: tuple[tuple[Json, ...], ...]
    strong: frozenset[int] = frozenset()
    note: str = ""

    def table(self, title: str = "") -> Table:
        """Return the table as text, without columns that are empty."""
        used = [
            (i, column)
            for i, column in enumerate(self.columns)
            if not column.hidden and any(row[i] is not None for row in self.rows)
        ]
        titles = tuple(column.title for _, column in used)
        rows = tuple(
            tuple(NOTHING if row[i] is None else column.show(row[i]) for i, column in used)
            for row in self.rows
        )
        right = frozenset(at for at, (_, column) in enumerate(used) if column.right)
        return Table(title, titles, rows, right, self.strong, self.note)

    def csv(self) -> str:
        """Return all values as they are, those of hidden and empty columns, too."""
        return as_csv([column.key for column in self.columns], self.rows)

    def html(self) -> str:
        """Return the table, its note and a link to its values; empty without rows."""
        if not self.rows:
            return ""
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        more = f", with {len(self.rows) - MOST} more rows" if len(self.rows) > MOST else ""
        link = download(self.name, self.csv())
        short = replace(self, rows=self.rows[:MOST]).table().html()
        return f"{wide(short, self.name)}{note}<p>{link}{more}</p>"


def wide(table: str, name: str) -> str:
    """Return a table in a frame that is moved sideways where it is wider than the page."""
    label = html.escape(f"table: {name}")
    return f'<div class="wide" tabindex="0" role="group" aria-label="{label}">{table}</div>'


def as_csv(heads: Iterable[str], rows: Iterable[Iterable[Json]]) -> str:
    """Write lines of values; None is empty, lists and mappings are JSON."""
    plain = ([json.dumps(v) if isinstance(v, list | dict) else v for v in row] for row in rows)
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([heads, *plain])
    return stream.getvalue()


def download(name: str, text: str, kind: str = "csv", label: str = "") -> str:
    """Return a link to a file that is inside the page: CSV, or the SVG of a plot."""
    # A page is one file that loads nothing: what can be saved from it is inside.
    source = f"data:{KINDS[kind]};charset=utf-8," + urllib.parse.quote(text)
    file = f"{html.escape(name)}.{kind}"
    return f'<a class="file" download="{file}" href="{html.escape(source)}">{label or file}</a>'
