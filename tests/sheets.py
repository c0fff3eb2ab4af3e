"""Measured figures as CSV files: the first line names the columns."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

Rows = Iterable[Mapping[str, object]]


def write(file: Path, rows: Rows) -> None:
    """Write rows with the columns of all of them; a missing value is an empty cell."""
    rows = list(rows)
    columns = dict.fromkeys(name for row in rows for name in row)
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read(file: Path) -> list[dict[str, str]]:
    """Return the rows of a file, each a value per column."""
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def update(file: Path, rows: Rows, *keys: str) -> None:
    """Replace the rows of a file that have the same keys as new ones; the others stay."""
    by_key: dict[tuple[str, ...], Mapping[str, object]] = {}
    for row in [*(read(file) if file.exists() else ()), *rows]:
        by_key[tuple(str(row[key]) for key in keys)] = row
    write(file, by_key.values())
