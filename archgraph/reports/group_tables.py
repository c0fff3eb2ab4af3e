"""The tables of several runs: what travelled, and the settings in common."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from archgraph.record.traffic import DOWN, UP
from archgraph.reports.comparison import Comparison, RunGroup
from archgraph.reports.run_tables import setting_sheet, traffic_sheet
from archgraph.reports.runs import Log
from archgraph.reports.sheets import Sheet, SheetColumn, as_csv, in_bytes
from archgraph.tables import count


def each_run(compared: Comparison) -> Iterator[tuple[RunGroup, int, Log]]:
    """Yield every run with its group and its seed."""
    for group in compared.groups:
        for seed, log in zip(group.seeds, group.runs, strict=True):
            yield group, seed, log


def sent_sheet(compared: Comparison) -> Sheet:
    """Tabulate groups and models: tasks, bytes and MACs as means over the seeds; all models."""
    rows: list[tuple[object, ...]] = []
    note = ""
    for group in compared.groups:
        sheets = [traffic_sheet(log) for log in group.runs]
        note = next((sheet.note for sheet in sheets if sheet.rows), note)
        of_runs = [{str(row[0]): row[1:] for row in sheet.rows} for sheet in sheets]
        # A tier that no client of a run was drawn from has neither tasks nor bytes there.
        nothing = (0, 0, 0, 0)
        # The sum last, wherever the first run with the tier has it.
        names = dict.fromkeys(name for of in of_runs for name in of)
        for name in sorted(names, key=lambda name: name == "all"):
            values = zip(*(of.get(name, nothing) for of in of_runs), strict=True)
            rows.append((group.label, name, *map(_mean, values)))
    strong = frozenset(i for i, row in enumerate(rows) if row[1] == "all")
    columns = (
        SheetColumn("experiment", "experiment"),
        SheetColumn("tier", "model"),
        SheetColumn("tasks", "tasks", _short, right=True),
        SheetColumn(DOWN, "bytes down", _bytes, right=True),
        SheetColumn(UP, "bytes up", _bytes, right=True),
        SheetColumn("macs", "MACs of training", count, right=True),
    )
    return Sheet("communication", columns, tuple(rows), strong, f"Means over the seeds. {note}")


def shared_sheet(compared: Comparison) -> Sheet:
    """Return the settings that are not the defaults and are the same in all runs."""
    first, *others = [setting_sheet(log) for _, _, log in each_run(compared)]
    rows = (row for row in first.rows if row[0] != "seed")  # the head says it
    shared = tuple(row for row in rows if all(row in other.rows for other in others))
    return Sheet("shared_settings", first.columns, shared)


def differences_csv(compared: Comparison) -> str:
    """Return what the groups differ in: a line per setting, a column per group."""
    labels = (group.label for group in compared.groups)
    rows = ((key, *texts) for key, texts in compared.differences.items())
    return as_csv(("setting", *labels), rows)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _bytes(value: float) -> str:
    return in_bytes(round(value))
