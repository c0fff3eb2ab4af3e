"""Convert the line of a round to single values, for data frames, CSV files and trackers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from archgraph.fields import GLOBAL
from archgraph.record.traffic import traffic

if TYPE_CHECKING:
    from pandas import DataFrame

# Dict from the key of a test in a line to the name of the test.
TESTS = {"evaluation": "test", "validation": "validation"}
_NAMES = ("client", "name", "malicious")  # values in a client's row that are not metrics
# MACs of a line, by key: FedFA's MACE and E, and the MACs of the round.
_MACS = {"round": "macs", "epoch": "mace", "epochs": "epochs"}
ALL_CLIENTS = "all clients"
CLIENTS = "clients"
"""Key of the number of clients that use a tested model."""
REPORTS = ("clients", "rejected", "failed")
"""Lists of a line with a row per client: accepted, rejected, and failed."""


class Point(NamedTuple):
    """One measured value of a round.

    Attributes:
        round: Number of the round, from 1.
        part: ``test`` or ``validation``, for metrics on all examples of this kind. A suffix marks
            other values: `` local`` is the mean over the clients, each on its own examples; ``
            tenth`` is the mean over the worst tenth of the clients; `` trained`` is for the
            clients' models before aggregation. ``train`` is for the training of a client, and
            ``run`` for the round as a whole.
        group: The measured model (``global`` or a tier), a client (``client 3``), ``all clients``,
            or ``run``.
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
        """A name that combines all fields except the round, for TensorBoard.

        >>> Point(1, "test", "global", "accuracy", 0.5).tag
        'test/global/accuracy'
        """
        return "/".join((self.part.replace(" ", "_"), self.group.replace(" ", "_"), self.metric))


def points(line: Mapping[str, Any], *, clients: bool = True) -> Iterator[Point]:
    """Yield all values of a round's line.

    Args:
        line: A line of ``metrics.jsonl``.
        clients: Whether to include the training metrics of each client (``train``).

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
    """Yield the values of one test: for each model, and over all clients."""
    models = dict(block.get("models", {}))
    # Without a global model, `global` is the mean over all models.
    if GLOBAL not in models and GLOBAL in block:
        models[GLOBAL] = block[GLOBAL]
    for group, figures in models.items():
        yield from _figures(number, part, group, figures)
        yield from _figures(number, f"{part} local", group, figures.get("local") or {})
    for of in ("local", "tenth", "trained"):
        yield from _figures(number, f"{part} {of}", ALL_CLIENTS, block.get(of) or {})


def row_count(rows: Sequence[object] | int | None) -> int:
    """Return the number of rows of a list, or the number that a condensed line has in its place."""
    return rows if isinstance(rows, int) else len(rows or ())


def _figures(number: int, part: str, group: str, figures: Mapping[str, Any]) -> Iterator[Point]:
    for metric, value in figures.items():
        if value is None:
            yield Point(number, part, group, metric, math.nan)
        elif isinstance(value, int | float):
            yield Point(number, part, group, metric, float(value))


def frame(lines: Iterable[Mapping[str, Any]], *, clients: bool = True) -> DataFrame:
    """Return a data frame with a row for each value in the lines of a run.

    Args:
        lines: Lines of ``metrics.jsonl``.
        clients: Whether to include the training metrics of each client, which are most of the rows.
    """
    import pandas  # takes half a second

    rows = [point for line in lines for point in points(line, clients=clients)]
    return pandas.DataFrame(rows, columns=list(Point._fields))
