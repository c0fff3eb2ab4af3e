"""The tables of a run: its models, clients, bytes and settings."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from archgraph.fields import GLOBAL
from archgraph.record.traffic import DOWN, UP
from archgraph.reports.runs import (
    Log,
    RoundLine,
    evaluation,
    judge,
    models,
    series,
)
from archgraph.reports.settings import differing, said
from archgraph.reports.sheets import Sheet, SheetColumn, in_bytes, quantity
from archgraph.tables import Table, plural


def shown(figure: str, value: float) -> str:
    """An accuracy in per cent, anything else as a number.

    >>> shown("accuracy", 0.5), shown("perplexity", 205.5)
    ('50.00 %', '205.5')
    """
    return f"{100 * value:.2f} %" if figure == "accuracy" else f"{value:.4g}"


def tiers(log: Log) -> Table:
    """A row per model: size, its last test, and that of the best round on validation examples."""
    return model_sheet(log).table(log.name)


def model_sheet(log: Log) -> Sheet:
    """A row per model: size, clients, its last test on all data and on its clients' own.

    Where examples are held out, its test after the round that is best on these, too. No round is
    chosen by test data.
    """
    figure, best = judge(log.rounds), log.best
    last = next((line for line in reversed(log.rounds) if evaluation(line)), {})
    worst = evaluation(last).get("worst") or {}
    show, counts = functools.partial(shown, figure), _members(log)
    rows: list[tuple[Any, ...]] = []
    for name in models(log.rounds):
        tested = dict(zip(*series(log.rounds, "models", name, figure), strict=True))
        own = series(log.rounds, "models", name, "local", figure)[1]
        if not tested:
            continue
        size = log.cost(name)
        rows.append(
            (
                name,
                tested[max(tested)],
                own[-1] if own else None,
                tested.get(best) if best is not None else None,
                "worst" if name == worst.get("name") and len(models(log.rounds)) > 1 else "",
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
        SheetColumn("parameters", "parameters", quantity, right=True),
        SheetColumn("macs", "MACs", quantity, right=True),
    )
    strong = frozenset(i for i, row in enumerate(rows) if row[0] == GLOBAL)
    return Sheet("models", columns, tuple(rows), strong, _note(log, last))


def _note(log: Log, last: RoundLine) -> str:
    done = log.rounds[-1]["round"] if log.rounds else 0
    parts = [plural(done, "round") if done else "no rounds", *_lost(log.rounds)]
    if last and last["round"] != done:
        parts.append(f"tested after round {last['round']}")
    if log.best is not None:
        parts.append(f"round {log.best} is the best on validation examples")
    return ", ".join(parts)


def _lost(rounds: tuple[RoundLine, ...]) -> Iterator[str]:
    for key, word in (("rejected", "update"), ("failed", "client")):
        many = sum(len(line.get(key) or ()) for line in rounds)
        if many:
            yield f"{plural(many, word)} {key}"


def _members(log: Log) -> Mapping[str, int]:
    """Clients of each tier; all of them for the global model."""
    participants = [client for client in log.clients if client.of is None]
    counts = Counter(client.tier for client in participants)
    return {**counts, GLOBAL: len(participants)} if counts else {}


def client_sheet(log: Log) -> Sheet:
    """A row per client: its data, how often its update was taken or lost, its bytes."""
    taken, lost = _by_client(log, "clients"), _by_client(log, "rejected", "failed")
    other = "" if any(client.malicious for client in log.clients) else None
    rows = []
    for client in log.clients:
        mine, gone = taken.get(client.client, []), lost.get(client.client, [])
        present = sum(many > 0 for many in client.classes) if client.classes else None
        rows.append(
            (
                client.client,
                client.name or None,
                client.tier,
                "malicious" if client.malicious else other,
                client.examples,
                present,
                len(mine),
                len(gone) or None,
                _sum(mine + gone, DOWN),
                _sum(mine + gone, UP),
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
    padded = tuple(row + (None,) * (width - len(row)) for row in rows)
    return Sheet("clients", (*columns, *counts), padded)


def traffic_sheet(log: Log) -> Sheet:
    """A row per architecture that clients trained: bytes down and up, MACs forward; all of them."""
    by_tier: dict[str, list[RoundLine]] = {}
    for row in _reports(log, "clients", "rejected", "failed"):
        if DOWN in row:
            by_tier.setdefault(str(row["name"]), []).append(row)
    rows: list[tuple[Any, ...]] = []
    for name, reports in by_tier.items():
        size = log.cost(name)
        seen = [row["seen"] for row in reports if row.get("seen") is not None]
        macs = int(size.macs * sum(seen)) if size and seen else None
        rows.append((name, len(reports), _sum(reports, DOWN), _sum(reports, UP), macs))
    if len(rows) > 1:
        _, *counts = zip(*rows, strict=True)
        rows.append(("all", *(None if None in column else sum(column) for column in counts)))
    columns = (
        SheetColumn("tier", "model"),
        SheetColumn("tasks", "tasks", right=True),
        SheetColumn(DOWN, "bytes down", in_bytes, right=True),
        SheetColumn(UP, "bytes up", in_bytes, right=True),
        SheetColumn("macs", "MACs forward", quantity, right=True),
    )
    strong = frozenset({len(rows) - 1}) if len(by_tier) > 1 else frozenset()
    note = (
        "Bytes of the tensors sent to clients and of those that came back, lost updates included; "
        "a survey before round 1 is not counted. MACs: one forward pass of the client's model over "
        "the examples that it saw."
    )
    return Sheet("communication", columns, tuple(rows), strong, note if rows else "")


def setting_sheet(log: Log) -> Sheet:
    """The settings that are not the defaults; empty where the experiment cannot be read."""
    found = differing(log.experiment) if log.experiment else ()
    columns = (
        SheetColumn("setting", "setting"),
        SheetColumn("value", "value", said),
        SheetColumn("default", "default", said),
    )
    return Sheet("settings", columns, tuple(map(tuple, found)))


def lost_sheet(log: Log) -> Sheet:
    """Every update that was refused, and every client that failed."""
    names = {client.client: client.label for client in log.clients}
    rows = [
        (
            line["round"],
            names.get(item["client"], f"client {item['client']}, {item.get('name', '')}"),
            key,
            str(item["reason"]),
        )
        for line in log.rounds
        for key in ("rejected", "failed")
        for item in line.get(key) or ()
    ]
    columns = (
        SheetColumn("round", "round", right=True),
        SheetColumn("client", "client"),
        SheetColumn("what", ""),
        SheetColumn("reason", "reason"),
    )
    return Sheet("lost", columns, tuple(rows))


def _reports(log: Log, *kinds: str) -> list[RoundLine]:
    return [row for line in log.rounds for kind in kinds for row in line.get(kind) or ()]


def _by_client(log: Log, *kinds: str) -> dict[int, list[RoundLine]]:
    found: dict[int, list[RoundLine]] = {}
    for row in _reports(log, *kinds):
        found.setdefault(row["client"], []).append(row)
    return found


def _sum(rows: list[RoundLine], key: str) -> int | None:
    """None where it was not recorded."""
    known = any(DOWN in row for row in rows)
    return sum(row.get(key, 0) for row in rows) if known else None
