"""The line of a round as single figures: for data frames, CSV files and trackers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from archgraph.fields import GLOBAL
from archgraph.record.traffic import traffic

if TYPE_CHECKING:
    from pandas import DataFrame

# Names of the tests of a round, by their key in its line.
TESTS = {"evaluation": "test", "validation": "validation"}
_NAMES = ("client", "name", "malicious")  # of a client's row: these are not figures
# MACs of a line, by key: FedFA's MACE and E, and the MACs of the round.
_MACS = {"round": "macs", "epoch": "mace", "epochs": "epochs"}
ALL_CLIENTS = "all clients"
CLIENTS = "clients"
"""Number of clients that run a tested model, among the figures of that model."""
REPORTS = ("clients", "rejected", "failed")
"""The lists of a line with a row for each client: taken, refused, without an answer."""


class Point(NamedTuple):
    """One measured value of a round.

    Attributes:
        round: Number of the round, from 1.
        part: ``test``, ``validation``: on all examples of these; with suffix `` local``: on each
            client's own, the mean over clients; with `` tenth``: over the worst tenth of clients;
            with `` trained``: of the models that clients send, before they are averaged. ``train``:
            of a client's training. ``run``: of the round itself.
        group: The model (``global``, or a tier), ``client 3``, ``all clients``, or ``run``.
        metric: Name of the measured quantity.
        value: The measured value; NaN if it was not finite.
    """

    round: int
    part: str
    group: str
    metric: str
    value: float

    @property
    def tag(self) -> str:
        """A name for all fields except the round.

        >>> Point(1, "test", "global", "accuracy", 0.5).tag
        'test/global/accuracy'
        """
        return "/".join((self.part.replace(" ", "_"), self.group.replace(" ", "_"), self.metric))


def points(line: Mapping[str, Any], *, clients: bool = True) -> Iterator[Point]:
    """Yield all figures of a round's line.

    Args:
        line: As in ``metrics.jsonl``.
        clients: Whether to include figures of single clients' training (``train``).

    Example:
        >>> figures = {"accuracy": 0.5, "local": {"accuracy": 0.7}}
        >>> line = {"round": 3, "evaluation": {"models": {"global": figures}}}
        >>> [point.tag for point in points(line)][:2]
        ['test/global/accuracy', 'test_local/global/accuracy']
    """
    number = int(line["round"])
    for key, part in TESTS.items():
        yield from _tested(number, part, line.get(key) or {})
    rows = line.get("clients") or ()
    for row in rows if clients and not isinstance(rows, int) else ():
        figures = {metric: value for metric, value in row.items() if metric not in _NAMES}
        yield from _figures(number, "train", f"client {row['client']}", figures)
    # Always present, so that every round has a row.
    of_run: dict[str, Any] = {key: row_count(line.get(key)) for key in REPORTS}
    of_run |= traffic(line)
    macs = {name: line["macs"][key] for key, name in _MACS.items()} if "macs" in line else {}
    spent = {"epsilon": line["privacy"].get("epsilon")} if "privacy" in line else {}
    seconds = {f"seconds_{purpose}": value for purpose, value in line.get("seconds", {}).items()}
    yield from _figures(number, "run", "run", {**of_run, **macs, **spent, **seconds})


def _tested(number: int, part: str, block: Mapping[str, Any]) -> Iterator[Point]:
    """Yield the figures of one test: those of each model, and those over all clients."""
    models = dict(block.get("models", {}))
    # Without a global model, its figures are the mean over all.
    if GLOBAL not in models and GLOBAL in block:
        models[GLOBAL] = block[GLOBAL]
    for group, figures in models.items():
        yield from _figures(number, part, group, figures)
        yield from _figures(number, f"{part} local", group, figures.get("local") or {})
    for of in ("local", "tenth", "trained"):
        yield from _figures(number, f"{part} {of}", ALL_CLIENTS, block.get(of) or {})


def row_count(rows: Sequence[object] | int | None) -> int:
    """Count the rows of a list; a condensed line has their number instead."""
    return rows if isinstance(rows, int) else len(rows or ())


def _figures(number: int, part: str, group: str, figures: Mapping[str, Any]) -> Iterator[Point]:
    for metric, value in figures.items():
        if value is None:
            yield Point(number, part, group, metric, math.nan)
        elif isinstance(value, int | float):
            yield Point(number, part, group, metric, float(value))


def frame(lines: Iterable[Mapping[str, Any]], *, clients: bool = True) -> DataFrame:
    """Return a data frame with a row for each figure of a run's lines.

    Args:
        lines: As in ``metrics.jsonl``.
        clients: Whether to include figures of single clients' training (most figures).
    """
    import pandas  # takes half a second

    rows = [point for line in lines for point in points(line, clients=clients)]
    return pandas.DataFrame(rows, columns=list(Point._fields))
