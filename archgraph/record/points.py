"""The line of a round as single figures: for data frames, CSV files and trackers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from archgraph.errors import RunError
from archgraph.fields import GLOBAL
from archgraph.record.traffic import traffic

# What the tests of a round are called here, by their key in its line.
_TESTS = {"evaluation": "test", "validation": "validation"}
_NAMES = ("client", "name", "malicious", "spare")  # of a client's row: these are not figures
ALL_CLIENTS = "all clients"


class Point(NamedTuple):
    """A figure of a round.

    Attributes:
        round: Counted from 1.
        part: ``test``, ``validation``: on all examples of these; with `` local`` behind it: on each
            client's own, the mean over clients. ``train``: of a client's training. ``run``: of the
            round itself.
        group: The model (``global``, or a tier), ``client 3``, ``all clients``, or ``run``.
        metric: Name of the figure.
        value: NaN where it was not finite.
    """

    round: int
    part: str
    group: str
    metric: str
    value: float

    @property
    def tag(self) -> str:
        """One name for all of it but the round.

        >>> Point(1, "test", "global", "accuracy", 0.5).tag
        'test/global/accuracy'
        """
        return "/".join((self.part.replace(" ", "_"), self.group.replace(" ", "_"), self.metric))


def points(line: Mapping[str, Any]) -> Iterator[Point]:
    """All figures of a round's line.

    Example:
        >>> figures = {"accuracy": 0.5, "local": {"accuracy": 0.7}}
        >>> line = {"round": 3, "evaluation": {"models": {"global": figures}}}
        >>> [point.tag for point in points(line)]
        ['test/global/accuracy', 'test_local/global/accuracy']
    """
    number = int(line["round"])
    for key, part in _TESTS.items():
        block = line.get(key) or {}
        named = dict(block.get("models", {}))
        if GLOBAL not in named and GLOBAL in block:
            named[GLOBAL] = block[GLOBAL]
        for group, figures in named.items():
            yield from _figures(number, part, group, figures)
            yield from _figures(number, f"{part} local", group, figures.get("local") or {})
        yield from _figures(number, f"{part} local", ALL_CLIENTS, block.get("local") or {})
    for row in line.get("clients", ()):
        own = {metric: value for metric, value in row.items() if metric not in _NAMES}
        yield from _figures(number, "train", f"client {row['client']}", own)
    of_run = {key: len(line[key]) for key in ("clients", "rejected", "failed") if key in line}
    of_run |= traffic(line)
    spent = {"epsilon": line["privacy"].get("epsilon")} if "privacy" in line else {}
    seconds = {f"seconds_{purpose}": value for purpose, value in line.get("seconds", {}).items()}
    yield from _figures(number, "run", "run", {**of_run, **spent, **seconds})


def _figures(number: int, part: str, group: str, figures: Mapping[str, Any]) -> Iterator[Point]:
    for metric, value in figures.items():
        if value is None:
            yield Point(number, part, group, metric, math.nan)
        elif isinstance(value, int | float):
            yield Point(number, part, group, metric, float(value))


def frame(lines: Iterable[Mapping[str, Any]]) -> Any:
    """A pandas data frame with a row for each figure.

    Raises:
        RunError: If pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise RunError(
            "needs the package pandas",
            where="to_frame",
            found=str(error),
            hint="pip install 'archgraph[frames]'",
        ) from error
    rows = [point for line in lines for point in points(line)]
    return pandas.DataFrame(rows, columns=list(Point._fields))
