"""Tables whose values are formatted in HTML and text, and unrounded in CSV."""

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

# Text of a cell without a value.
NOTHING = "–"
# Media types of files inside a page.
KINDS = {"csv": "text/csv", "svg": "image/svg+xml"}
# Maximum number of rows of a table on a page.
MOST = 200


def in_bytes(value: float) -> str:
    """Format a number of bytes with a decimal prefix.

    >>> in_bytes(73_856), in_bytes(0)
    ('73.9 kB', '0 B')
    """
    text = count(round(value))
    return f"{text[:-1]} {text[-1]}B" if text[-1].isalpha() else f"{text} B"


@dataclass(frozen=True)
class SheetColumn:
    """A column of a sheet: its titles, and how to format its values.

    Attributes:
        key: Title in CSV files.
        title: Title in the table.
        show: Function that formats a value.
        right: Whether to align right, for numbers.
        hidden: Whether the column appears only in CSV.
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
        name: Name of the table and of its file.
        columns: The columns.
        rows: Rows of values. None stands for an empty cell.
        strong: Indices of the rows in bold, which contain sums.
        note: Explanation shown below the table.

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
        """Return a text table with formatted values, without empty columns."""
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
        """Return all values unformatted, including hidden and empty columns."""
        return as_csv([column.key for column in self.columns], self.rows)

    def html(self) -> str:
        """Return the table as HTML, with its note and a link to its values; empty without rows."""
        if not self.rows:
            return ""
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        more = f", with {len(self.rows) - MOST} more rows" if len(self.rows) > MOST else ""
        link = download(self.name, self.csv())
        short = replace(self, rows=self.rows[:MOST]).table().html()
        return f"{wide(short, self.name)}{note}<p>{link}{more}</p>"


def wide(table: str, name: str) -> str:
    """Wrap a table in an element that scrolls sideways."""
    label = html.escape(f"table: {name}")
    return f'<div class="wide" tabindex="0" role="group" aria-label="{label}">{table}</div>'


def as_csv(heads: Iterable[str], rows: Iterable[Iterable[Json]]) -> str:
    """Format rows as CSV: None as an empty cell, lists and mappings as JSON."""
    plain = ([json.dumps(v) if isinstance(v, list | dict) else v for v in row] for row in rows)
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([heads, *plain])
    return stream.getvalue()


def download(name: str, text: str, kind: str = "csv", label: str = "") -> str:
    """Return a link that saves a file (CSV or SVG) whose text is in the link itself."""
    source = f"data:{KINDS[kind]};charset=utf-8," + urllib.parse.quote(text)
    file = f"{html.escape(name)}.{kind}"
    return f'<a class="file" download="{file}" href="{html.escape(source)}">{label or file}</a>'
