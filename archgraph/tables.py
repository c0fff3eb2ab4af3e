"""Tables of text that can be shown in a terminal, a notebook, Markdown, LaTeX or HTML."""

from __future__ import annotations

import contextlib
import functools
import html
import io
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table as RichTable
    from rich.text import Text

# Width in characters if no terminal reports one.
WIDTH = 80
# Spaces between two columns; one less after the last column.
_GAP = 2
# Minimum width of a column of names that may be elided.
_SHORT = 16


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text.

    ``print(table)`` renders it, a notebook shows it as HTML, and rich can print it directly.

    Attributes:
        title: Title.
        columns: Headers of the columns; if all are empty, there is no header row.
        rows: The texts of each row, one per column.
        right: Indices of columns with numbers, which are right-aligned.
        strong: Indices of rows that are shown in bold, such as totals.
        note: Explanation shown below the table.
        short: Indices of columns with names, which are elided in the middle if space is short.

    Example:
        >>> print(Table("Sizes", ("model", "parameters"), (("small", "12K"),), frozenset({1})))
        Sizes
        model  parameters
        ──────────────────
        small         12K
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()
    strong: frozenset[int] = frozenset()
    note: str = ""
    short: frozenset[int] = frozenset()

    def __str__(self) -> str:
        return self.text(terminal_columns())

    def text(self, width: int) -> str:
        """Render the table as text of the given width."""
        from rich.console import Console

        text = io.StringIO()
        Console(file=text, width=width, color_system=None, legacy_windows=False).print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    def __repr__(self) -> str:
        return f"Table({self.title!r}, {len(self.rows)} × {len(self.columns)})"

    def _repr_html_(self) -> str:
        title = f"<caption>{html.escape(self.title)}</caption>" if self.title else ""
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        return self.html().replace("<table>", f"<table>{title}") + note

    def html(self) -> str:
        """Render the table as an HTML element, without its title and note."""
        sides = ["number" if i in self.right else "" for i in range(len(self.columns))]

        def line(tag: str, texts: Iterable[str]) -> str:
            return "".join(
                f'<{tag} class="{side}">{html.escape(text)}</{tag}>'
                for text, side in zip(texts, sides, strict=True)
            )

        rows = "".join(
            f'<tr class="{"strong" if number in self.strong else ""}">{line("td", row)}</tr>'
            for number, row in enumerate(self.rows)
        )
        # An empty header is not a header: screen readers would announce it.
        head = re.sub(r"<th( [^>]*)></th>", r"<td\1></td>", line("th", self.columns))
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"

    def markdown(self) -> str:
        r"""Render the table as Markdown, with its note below.

        >>> print(Table("", ("a", "b"), (("x|y", "1"),), frozenset({1})).markdown())
        | a | b |
        | --- | ---: |
        | x\|y | 1 |
        """

        def line(cells: Iterable[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

        marks = ("---:" if i in self.right else "---" for i in range(len(self.columns)))
        note = f"\n\n{self.note}" if self.note else ""
        return "\n".join([line(self.columns), line(marks), *map(line, self.rows)]) + note

    def latex(self, across: int = 6) -> str:
        r"""Render the table for LaTeX with the package booktabs, its title and note as comments.

        Args:
            across: Number of columns that fit on a page. A table with more columns is transposed if
                it then has fewer.

        >>> print(Table("", ("run", "mse %"), (("a_1", "1.0 ± 0.1"),), frozenset({1})).latex())
        % \usepackage{booktabs}
        \begin{tabular}{lr}
        \toprule
        run & mse \% \\
        \midrule
        a\_1 & 1.0 $\pm$ 0.1 \\
        \bottomrule
        \end{tabular}
        """
        lines = [self.columns, *self.rows]
        align = ["r" if i in self.right else "l" for i in range(len(self.columns))]
        if len(self.columns) > across and len(lines) < len(self.columns):
            lines = [*zip(*lines, strict=True)]
            align = ["l", *"r" * (len(lines[0]) - 1)]
        head, *body = (" & ".join(map(_latex, line)) + " \\\\" for line in lines)
        said = [f"% {text}" for text in (self.title, self.note, r"\usepackage{booktabs}") if text]
        opening = [f"\\begin{{tabular}}{{{''.join(align)}}}", "\\toprule"]
        return "\n".join(
            [*said, *opening, head, "\\midrule", *body, "\\bottomrule", "\\end{tabular}"]
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the table in the available width without cutting numbers or words.

        1. If possible, each row is on one line.
        2. Otherwise numbers are split (mean, deviation).
        3. Otherwise columns are stacked: each group of columns that fits repeats the first column.

        Before that, text wraps between words; only words longer than two fifths of the width break.
        """
        columns, width = range(len(self.columns)), options.max_width
        apart = " "
        if self._least(columns, apart, width) > width:
            apart = "\n"  # case 2
        *before, last = self._bands(width, apart)  # case 3 where there are several
        title = self.title
        for band in before:
            yield self._rich_table(band, apart, width, title, "")
            yield ""
            title = ""
        yield self._rich_table(last, apart, width, title, self.note)

    def _bands(self, width: int, apart: str) -> list[list[int]]:
        """Split columns into groups that fit side by side."""
        bands: list[list[int]] = [[]]
        for column in range(len(self.columns)):
            band = [*bands[-1], column]
            if len(band) > 2 and self._least(band, apart, width) > width:
                bands.append([0, column])
            else:
                bands[-1] = band
        return bands

    def _least(self, columns: Iterable[int], apart: str, width: int) -> int:
        """Return the minimum total width of some columns."""
        return sum(self._room(i, apart, width)[0] + _GAP for i in columns) - 1

    def _room(self, column: int, apart: str, width: int) -> tuple[int, int]:
        """Return the minimum and maximum useful width of a column."""
        texts = [self._head(column, apart)]
        texts += [self._text(row[column], column, apart) for row in self.rows]
        lines = [line for text in texts for line in text.split("\n")]
        most = max(map(len, lines))
        if column in self.right:  # a number that breaks is misread
            return most, most
        words = (len(word) for line in lines for word in line.split())
        least = _SHORT if column in self.short else max(words, default=0)
        return min(most, least, 2 * width // 5), most

    def _widths(self, columns: Sequence[int], apart: str, width: int) -> dict[int, int]:
        """Return the widths of columns side by side.

        Columns whose names would be elided get spare space first; the others share the rest
        equally.
        """
        rooms = {i: self._room(i, apart, width) for i in columns}
        spare = max(width - self._least(columns, apart, width), 0)
        widths = {}
        order = sorted(columns, key=lambda i: (i not in self.short, rooms[i][1] - rooms[i][0]))
        for i, parts in zip(order, range(len(columns), 0, -1), strict=True):
            least, most = rooms[i]
            more = min(most - least, spare if i in self.short else spare // parts)
            spare -= more
            widths[i] = least + more
        return widths

    def _head(self, column: int, apart: str) -> str:
        head = self.columns[column]
        return head.replace(" ", apart) if column in self.right else head

    def _text(self, text: str, column: int, apart: str) -> str:
        return text.replace(" ± ", f"{apart}± ") if column in self.right else text

    def _rich_table(
        self, columns: Sequence[int], apart: str, width: int, title: str, note: str
    ) -> RichTable:
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        facts = not any(self.columns)  # show texts in full, however long
        drawn = RichTable(
            title=title or None,
            title_justify="left",
            caption=note or None,
            caption_justify="left",
            show_header=not facts,
            box=box.SIMPLE_HEAD,
            show_edge=False,
            padding=(0, 1, 0, 0),
        )
        # `Text` everywhere: in plain strings, rich interprets `[…]`, as in shapes, as markup.
        widths = self._widths(columns, apart, width)
        for i in columns:
            drawn.add_column(
                Text(self._head(i, apart)),
                width=widths[i],
                justify="right" if i in self.right else "left",
                overflow="fold",
                no_wrap=i in self.right,
            )
        names = {
            i: tuple(line for row in self.rows for line in row[i].split("\n")) for i in self.short
        }
        for number, row in enumerate(self.rows):
            cells = [
                Text(self._text(row[i], i, apart))
                if i in self.right or facts
                else _Cell(row[i], names.get(i, ()))
                for i in columns
            ]
            drawn.add_row(*cells, style="bold" if number in self.strong else None)
        return drawn


def count(number: float) -> str:
    """Render a count in a short form with k, M, G or T.

    >>> count(999), count(1000), count(73856), count(11_689_512), count(1.8e9)
    ('999', '1k', '73.9k', '11.7M', '1.8G')
    """
    if number < 1000:
        return f"{number:g}"
    for factor, unit in ((1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T")):
        scaled = number / factor
        if scaled < 999.95 or unit == "T":  # above, it would be rounded to 1000.0
            break
    return f"{scaled:.1f}".removesuffix(".0") + unit


def per_cent(share: float, digits: int = 2) -> str:
    """Render a fraction in per cent, in the format that all tables and pages use.

    >>> per_cent(0.5), per_cent(0.12345, 1), per_cent(1.0, 0)
    ('50.00 %', '12.3 %', '100 %')
    """
    return f"{100 * share:.{digits}f} %"


def significant(value: float) -> str:
    """Render a number with four significant digits.

    Integer parts of up to nine digits are shown in full, without an exponent.

    >>> significant(0.12345), significant(205.51), significant(20560.7), significant(2.5e10)
    ('0.1235', '205.5', '20561', '2.5e+10')
    """
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def plural(number: int, noun: str, several: str | None = None) -> str:
    """Render a number with its noun.

    Args:
        number: The number.
        noun: The singular.
        several: The plural. Default: the noun with an s.

    >>> plural(1, "round"), plural(0, "client"), plural(2, "entry", "entries")
    ('1 round', '0 clients', '2 entries')
    """
    return f"{number} {noun if number == 1 else several or noun + 's'}"


def console() -> Console:
    """Return a rich console on standard output, as wide as the terminal."""
    from rich.console import Console

    return Console(width=terminal_columns())


def terminal_columns() -> int:
    """Return the width of the terminal: COLUMNS, else that of stdout or stderr, else 80."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    for stream in (sys.__stdout__, sys.__stderr__):  # stderr if stdout is a pipe
        with contextlib.suppress(OSError, ValueError):  # not a terminal, or closed
            if stream is not None:  # a program without a console
                return os.get_terminal_size(stream.fileno()).columns or WIDTH
    return WIDTH


def wrapped(text: str, indent: int = 0, width: int | None = None) -> str:
    r"""Wrap lines between words. Words longer than a line, such as paths, are not split.

    Args:
        text: Lines of words; continuation lines are indented like the first line.
        indent: Additional indentation of continuation lines.
        width: Width in characters. Default: that of the terminal.

    >>> wrapped("ok  a file of this name\n  and more of it", 4, width=16).splitlines()
    ['ok  a file of', '    this name', '  and more of it']
    """
    lines = []
    for line in text.split("\n"):
        margin = " " * (len(line) - len(line.lstrip()) + indent)
        broken = textwrap.wrap(
            line,
            width or terminal_columns(),
            subsequent_indent=margin,
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines += broken or [""]
    return "\n".join(lines)


class _Cell:
    """Text of a table cell, which is wrapped or elided if its column is too narrow.

    Args:
        text: Lines of words.
        names: All lines of the column, if lines are elided; empty if lines are wrapped.
    """

    def __init__(self, text: str, names: tuple[str, ...] = ()) -> None:
        self.lines = text.split("\n")
        self.names = names

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        width = options.max_width
        head = head_length(self.names, width)
        for line in self.lines:
            if self.names:
                yield Text(elided(line, width, head), no_wrap=True)
            else:
                yield Text(" ".join(" ".join(split_word(word, width)) for word in line.split(" ")))


def split_word(word: str, width: int) -> list[str]:
    """Split a word into pieces of at most ``width`` characters, after punctuation if possible.

    >>> split_word("fashion_mnist_heterofl", 16), split_word("abcdef", 4)
    (['fashion_mnist_', 'heterofl'], ['abcd', 'ef'])
    """
    pieces = []
    while len(word) > width > 0:
        marks = [position + 1 for position in range(width) if word[position] in "_-./:"]
        end = marks[-1] if marks else width
        pieces.append(word[:end])
        word = word[end:]
    return [*pieces, word]


def elided(text: str, width: int, head: int) -> str:
    """Shorten a text to ``width`` characters: ``…`` replaces its middle after ``head`` characters.

    >>> elided("encoder.layer.11.heads", 12, 3)
    'enc…11.heads'
    """
    if len(text) <= width or width < 1:
        return text
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


@functools.cache  # called for each cell of a column
def head_length(names: tuple[str, ...], width: int) -> int:
    """Return how many characters to keep before the ``…`` so that names stay distinct."""
    half = max(width - 1, 0) // 2
    different = set(names)
    for head in (*range(half, -1, -1), *range(half + 1, width)):
        if len({elided(name, width, head) for name in different}) == len(different):
            return head
    return half


# Characters with a meaning in LaTeX, and characters that its standard fonts lack.
_LATEX: dict[str, str | int | None] = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "–": "--",
    "−": "$-$",
    "<": "$<$",
    ">": "$>$",
    "…": r"\dots{}",
}


def _latex(text: str) -> str:
    return re.sub(r"^-(?=\d)", "$-$", text.translate(str.maketrans(_LATEX)))
