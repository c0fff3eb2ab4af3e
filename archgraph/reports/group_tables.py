"""The tables of several runs: their clients' data, what travelled, attacks, settings in common."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from archgraph.record.traffic import DOWN, UP
from archgraph.reports.comparison import Comparison, RunGroup
from archgraph.reports.run_tables import setting_sheet, traffic_sheet
from archgraph.reports.runs import Log
from archgraph.reports.settings import said
from archgraph.reports.sheets import Sheet, SheetColumn, as_csv, in_bytes
from archgraph.tables import count


def each_run(compared: Comparison) -> Iterator[tuple[RunGroup, int, Log]]:
    """Yield every run with its group and its seed."""
    for group in compared.groups:
        for seed, log in zip(group.seeds, group.runs, strict=True):
            yield group, seed, log


def data_sheet(compared: Comparison) -> Sheet:
    """Tabulate groups and tiers: how many clients there are, and how much data each has."""
    rows = []
    for group in compared.groups:
        everyone = [one for log in group.runs for one in log.participants]
        for tier in dict.fromkeys(one.tier for one in everyone):
            clients = [one for one in everyone if one.tier == tier]
            examples = [one.examples for one in clients]
            present = [sum(many > 0 for many in one.classes) for one in clients if one.classes]
            rows.append(
                (
                    group.label,
                    tier,
                    len(clients) / len(group.runs),
                    sum(one.malicious for one in clients) / len(group.runs)
                    or None,  # None drops the column
                    statistics.fmean(examples),
                    min(examples),
                    max(examples),
                    statistics.fmean(present) if present else None,
                )
            )
    columns = (
        SheetColumn("experiment", "experiment"),
        SheetColumn("tier", "tier"),
        SheetColumn("clients", "clients", _short, right=True),
        SheetColumn("malicious", "malicious", _short, right=True),
        SheetColumn("examples", "examples of one", _short, right=True),
        SheetColumn("least", "least", right=True),
        SheetColumn("most", "most", right=True),
        SheetColumn("classes", "classes of one", _short, right=True),
    )
    note = "Means over the clients of a tier and over the seeds; least and most of any client."
    return Sheet("data", columns, tuple(rows), note=note)


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


def attack_sheet(compared: Comparison) -> Sheet:
    """Tabulate attacked runs: the attack, who attacks, how many of their updates were taken."""
    rows = []
    for group, seed, log in each_run(compared):
        attack = log.experiment.attack if log.experiment else None
        if attack is None:
            continue
        options = attack.model_dump(mode="json", exclude_none=True)
        bad = {client.client: client.label for client in log.clients if client.malicious}
        what = log.updates.loc[log.updates["client"].isin(list(bad)), "what"]
        merged = int((what == "clients").sum())
        rows.append(
            (
                group.label,
                seed,
                ", ".join(f"{key} {said(value)}" for key, value in options.items()),
                len(bad),
                merged,
                len(what) - merged,
                "; ".join(bad.values()),
            )
        )
    columns = (
        SheetColumn("experiment", "experiment"),
        SheetColumn("seed", "seed", right=True),
        SheetColumn("attack", "attack"),
        SheetColumn("malicious", "malicious clients", right=True),
        SheetColumn("taken", "updates taken", right=True),
        SheetColumn("lost", "updates lost", right=True),
        SheetColumn("clients", "", hidden=True),
    )
    return Sheet("attack", columns, tuple(rows))


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
