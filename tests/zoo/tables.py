"""The reports of every examination as text: a line on the terminal, rows of a CSV file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tests import sheets
from tests.zoo.collection import Entry
from tests.zoo.report import Findings

Found = Sequence[tuple[Entry, Any]]  # with reports of one kind
Row = dict[str, object]


def rows(found: Found, figures: Callable[[Any], Row]) -> list[Row]:
    """Return a row per model: its name, the figures of its examination, verdict and remarks."""
    return [
        {
            "group": entry.group,
            "model": entry.name,
            "parameters": report.parameters,
            **figures(report),
            "verdict": report.verdict,
            "remarks": remarks(report),
        }
        for entry, report in found
    ]


def write(
    file: Path,
    found: Found,
    figures: Callable[[Any], Row],
    also: tuple[str, Callable[[Found], Iterable[Row]]] | None = None,
    *,
    keep: bool,
) -> None:
    """Write a row per model and, next to it, what another function counts over all models.

    Args:
        file: A CSV file.
        found: The models with their reports.
        figures: Returns the columns of an examination.
        also: The end of the second file's name, and what returns its rows.
        keep: Models that were not examined keep their rows; there is no second file then.
    """
    if keep:
        sheets.update(file, rows(found, figures), "group", "model")
        return
    sheets.write(file, rows(found, figures))
    if also is not None:
        sheets.write(file.with_stem(f"{file.stem}-{also[0]}"), also[1](found))


def remarks(report: Findings) -> str:
    """Return failures, refusals, checks that were not run, and notes."""
    texts = [
        *(f"{failure.check}: {failure.error}" for failure in report.failures),
        *(f"{what} refused: {why}" for what, why in report.refused),
        *(f"no {check}: {reason}" for check, reason in report.left_out),
        *report.notes,
    ]
    return re.sub(r"\S*/site-packages/", "", "; ".join(texts))  # the path depends on the machine


def told(report: Findings, *lines: str) -> str:
    """Lines about a model, its failures below."""
    return "\n".join([*lines, *(f"        {f.check}: {f.error}" for f in report.failures)])


def rounded(value: float | None) -> str:
    """Return a difference with one digit; empty if there is none."""
    return "" if value is None else f"{value:.0e}"
