"""Tables for several runs: communication, and the settings that all runs share."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from archgraph.record.traffic import DOWN, UP
from archgraph.reports.comparison import Comparison, RunGroup
from archgraph.reports.run_tables import COUNTED, setting_sheet, traffic_sheet
from archgraph.reports.runs import Log
from archgraph.reports.sheets import Sheet, SheetColumn, in_bytes
from archgraph.tables import count


def each_run(compared: Comparison) -> Iterator[tuple[RunGroup, int, Log]]:
    """Yield each run with its group and seed."""
    for group in compared.groups:
        for seed, log in zip(group.seeds, group.runs, strict=True):
            yield group, seed, log


def sent_sheet(compared: Comparison) -> Sheet:
    """Return a table of tasks, bytes and MACs per group and model, as means over the seeds."""
    rows: list[tuple[object, ...]] = []
    for group in compared.groups:
        sheets = [traffic_sheet(log) for log in group.runs]
        of_runs = [{str(row[0]): row[1:] for row in sheet.rows} for sheet in sheets]
        # A run may not have sampled any client of a tier.
        nothing = (0, 0, 0, 0)
        # The row of sums is the last one.
        names = dict.fromkeys(name for of in of_runs for name in of)
        for name in sorted(names, key=lambda name: name == "all"):
            values = zip(*(of.get(name, nothing) for of in of_runs), strict=True)
            rows.append((group.label, name, *map(_mean, values)))
    strong = frozenset(i for i, row in enumerate(rows) if row[1] == "all")
    columns = (
        SheetColumn("experiment", "experiment"),
        SheetColumn("tier", "model"),
        SheetColumn("tasks", "tasks", _short, right=True),
        SheetColumn(DOWN, "bytes down", in_bytes, right=True),
        SheetColumn(UP, "bytes up", in_bytes, right=True),
        SheetColumn("macs", "MACs of training", count, right=True),
    )
    return Sheet("communication", columns, tuple(rows), strong, f"Means over the seeds. {COUNTED}")


def shared_sheet(compared: Comparison) -> Sheet:
    """Return a table of the settings that are equal in all runs and differ from the defaults."""
    first, *others = [setting_sheet(log) for _, _, log in each_run(compared)]
    rows = (row for row in first.rows if row[0] != "seed")  # it is in the header
    shared = tuple(row for row in rows if all(row in other.rows for other in others))
    return Sheet("shared_settings", first.columns, shared)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
