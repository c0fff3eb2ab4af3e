"""Tables of a run: models, clients, communication and settings."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from archgraph.fields import GLOBAL
from archgraph.plain import Json
from archgraph.record.progress import measured
from archgraph.record.traffic import DOWN, UP
from archgraph.reports.runs import Log, judge, rows_where, series, tests
from archgraph.reports.settings import differing, said
from archgraph.reports.sheets import Sheet, SheetColumn, in_bytes
from archgraph.tables import Table, count, plural

if TYPE_CHECKING:
    from pandas import DataFrame

COUNTED = (
    "Bytes: the tensors sent to clients and returned by clients, including lost updates but not "
    "a survey before round 1. MACs: three times the MACs of the forward passes in training "
    "(forward and backward), including frozen layers; only accepted updates count."
)


def tiers(log: Log) -> Table:
    """Return a table of models: size, last test, and test after the best validation round."""
    return model_sheet(log).table(log.name)


def model_sheet(log: Log) -> Sheet:
    """Return a table of the models: size, clients, and last test.

    Tests are on all data and on the clients' own data. With validation examples, the table also
    shows the test after the round that is best on these examples. Test data never selects a round.
    """
    figure, best = judge([log]), log.best
    last = [*tests(log)][-1:]
    worst = (last[0].get("worst") or {}).get("name") if last else None
    show, counts = functools.partial(measured, figure), _members(log)
    of_judge = rows_where(log.figures, metric=figure)
    rows: list[tuple[object, ...]] = []
    for name in log.models:
        tested = series(of_judge, part="test", group=name)
        local = series(of_judge, part="test local", group=name)
        if tested.empty:
            continue
        size = log.cost(name)
        rows.append(
            (
                name,
                float(tested.iloc[-1]),
                None if local.empty else float(local.iloc[-1]),
                float(tested[best]) if best in tested.index else None,
                "worst" if name == worst and len(log.models) > 1 else "",
                counts.get(name),
                size and size.parameters,
                size and size.macs,
            )
        )
    columns = (
        SheetColumn("model", "model"),
        SheetColumn(figure, figure, show, right=True),
        SheetColumn(f"local_{figure}", "on own classes", show, right=True),
        SheetColumn(f"{figure}_at_best", f"in round {best}", show, right=True),
        SheetColumn("worst", ""),
        SheetColumn("clients", "clients", right=True),
        SheetColumn("parameters", "parameters", count, right=True),
        SheetColumn("macs", "MACs", count, right=True),
    )
    strong = frozenset(i for i, row in enumerate(rows) if row[0] == GLOBAL)
    return Sheet("models", columns, tuple(rows), strong, _note(log))


def _note(log: Log) -> str:
    last = rows_where(log.figures, part="test")["round"].max()  # NaN: nothing was tested
    nouns = {"rejected": "update", "failed": "client"}
    parts = [plural(log.done, "round") if log.done else "no rounds"]
    parts += [f"{plural(many, nouns[key])} {key}" for key, many in log.lost.items() if many]
    if last < log.done:
        parts.append(f"tested after round {last}")
    if log.best is not None:
        parts.append(f"round {log.best} is the best on validation examples")
    return ", ".join(parts)


def _members(log: Log) -> Mapping[str, int]:
    """Return the number of clients of each tier; for the global model, of all clients."""
    counts = Counter(client.tier for client in log.participants)
    return {**counts, GLOBAL: counts.total()} if counts else {}


def client_sheet(log: Log) -> Sheet:
    """Return a table of the clients: data, accepted and lost updates, bytes down and up."""
    of_clients = dict(iter(log.updates.groupby("client")))
    other = "" if any(client.malicious for client in log.clients) else None
    rows = []
    for client in log.clients:
        asked = of_clients.get(client.client, log.updates[:0])
        merged = int((asked["what"] == "clients").sum())
        present = sum(many > 0 for many in client.classes) if client.classes else None
        rows.append(
            (
                client.client,
                client.name or None,
                client.tier,
                "malicious" if client.malicious else other,
                client.examples,
                present,
                merged,
                len(asked) - merged or None,
                _sum(asked, DOWN),
                _sum(asked, UP),
                *client.classes,
            )
        )
    classes = max((len(client.classes) for client in log.clients), default=0)
    columns = (
        SheetColumn("client", "client", right=True),
        SheetColumn("name", "name"),
        SheetColumn("tier", "tier"),
        SheetColumn("malicious", ""),
        SheetColumn("examples", "examples", right=True),
        SheetColumn("classes", "classes", right=True),
        SheetColumn("taken", "taken", right=True),
        SheetColumn("lost", "lost", right=True),
        SheetColumn(DOWN, "down", in_bytes, right=True),
        SheetColumn(UP, "up", in_bytes, right=True),
    )
    counts = tuple(SheetColumn(f"class_{i}", "", hidden=True) for i in range(classes))
    width = len(columns) + classes
    # Clients may have counts for fewer classes than others.
    padded = tuple(row + (None,) * (width - len(row)) for row in rows)
    return Sheet("clients", (*columns, *counts), padded)


def traffic_sheet(log: Log) -> Sheet:
    """Return a table of tasks, bytes and MACs of training for each model, with sums."""
    by_tier = log.updates.dropna(subset=[DOWN]).groupby("name", sort=False)
    rows: list[tuple[Json, ...]] = []
    for name, asked in by_tier:
        macs = _sum(asked, "macs")
        counts = len(asked), _sum(asked, DOWN), _sum(asked, UP), None if macs is None else int(macs)
        rows.append((name, *counts))
    if len(rows) > 1:
        _, *totals = zip(*rows, strict=True)
        # No sum if some row has no value.
        rows.append(("all", *(None if None in column else sum(column) for column in totals)))
    columns = (
        SheetColumn("tier", "model"),
        SheetColumn("tasks", "tasks", right=True),
        SheetColumn(DOWN, "bytes down", in_bytes, right=True),
        SheetColumn(UP, "bytes up", in_bytes, right=True),
        SheetColumn("macs", "MACs of training", count, right=True),
    )
    strong = frozenset({len(rows) - 1}) if len(by_tier) > 1 else frozenset()
    return Sheet("communication", columns, tuple(rows), strong, COUNTED)


def setting_sheet(log: Log) -> Sheet:
    """Return a table of settings that differ from the defaults; empty for a damaged file."""
    settings = differing(log.experiment) if log.experiment else ()
    columns = (
        SheetColumn("setting", "setting"),
        SheetColumn("value", "value", said),
        SheetColumn("default", "default", said),
    )
    return Sheet("settings", columns, tuple(map(tuple, settings)))


def lost_sheet(log: Log) -> Sheet:
    """Return a table of rejected updates and failed clients."""
    names = {client.client: client.label for client in log.clients}
    lost = log.updates[log.updates["what"] != "clients"]
    rows = []
    for row in lost.itertuples(index=False):
        # Older folders do not describe their clients.
        client = names.get(row.client, f"client {row.client}, {row.name}")
        rows.append((row.round, client, row.what, str(row.reason)))
    columns = (
        SheetColumn("round", "round", right=True),
        SheetColumn("client", "client"),
        SheetColumn("what", ""),
        SheetColumn("reason", "reason"),
    )
    return Sheet("lost", columns, tuple(rows))


def _sum(asked: DataFrame, key: str) -> int | None:
    """Sum a column of updates; None if no update has a value."""
    values = asked[key].dropna()
    return None if values.empty else sum(values)
