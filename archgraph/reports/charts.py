"""The pictures of a run's page: one panel each, narrow enough for a telephone."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from archgraph.fields import GLOBAL
from archgraph.record.points import ALL_CLIENTS
from archgraph.record.progress import measured
from archgraph.record.traffic import DOWN, UP
from archgraph.reports.line_chart import Line, LineChart
from archgraph.reports.runs import Log, better, judge, rows_where, seconds, series
from archgraph.reports.sheets import in_bytes
from archgraph.reports.time_chart import TimeChart

if TYPE_CHECKING:
    from pandas import Series

# How many times the smallest value the largest one is where curves begin on a logarithmic axis.
WIDE = 50


class Picture(Protocol):
    """A picture of a page."""

    @property
    def name(self) -> str:
        """What it is called; no two pictures of a page are called alike."""
        ...

    def svg(self) -> str:
        """Return it as SVG text."""
        ...


def charts(log: Log) -> Iterator[Picture]:
    """Yield figures on all data and on clients' own over the rounds and bytes; time by purpose."""
    what = judge([log])
    yield curve_chart(
        f"{what} over the rounds", f"{what} on all test data", tested_lines(log), what, [log]
    )
    yield from _own(log, what)
    yield from _over_bytes(log, what)
    if seconds(log.figures):
        yield TimeChart.of({log.name: log.figures})


def curve_chart(
    name: str,
    title: str,
    lines: Iterable[Line],
    what: str,
    logs: Iterable[Log],
    axis: str = "round",
) -> LineChart:
    """Return curves of the figure that judges runs.

    Args:
        name: What the picture is called.
        title: What stands above it; which way is better is added where it is not obvious.
        lines: The curves; those without points are left out.
        what: The figure.
        logs: The runs.
        axis: What the curves are drawn over.
    """
    drawn = tuple(line for line in lines if line.y)
    values = [y for line in drawn for y in line.y]
    # Losses of runs that diverge would flatten all others.
    spread = bool(values) and 0 < WIDE * min(values) < max(values)
    if what != "accuracy":
        title += " (higher is better)" if better(logs, what) else " (lower is better)"
    show = functools.partial(measured, what)
    log_scale = what == "perplexity" or (what != "accuracy" and spread)
    return LineChart(name, title, drawn, what, axis, show, log=log_scale)


def tested_lines(log: Log) -> Iterator[Line]:
    """Yield every model by the figure that judges it, over the rounds."""
    what = judge([log])
    tested = rows_where(log.figures, part="test", metric=what)
    for name in sorted(log.models, key=lambda name: name == GLOBAL):
        yield Line.of(name, series(tested, group=name), bold=name == GLOBAL)
    validated = series(log.figures, part="validation", group=GLOBAL, metric=what)
    yield Line.of("on validation examples", validated)


def _own(log: Log, what: str) -> Iterator[Picture]:
    """Yield tiers on their clients' own test data, the mean over clients and the worst tenth."""
    local = rows_where(log.figures, part="test local", metric=what)
    lines = [Line.of(name, series(local, group=name)) for name in log.models if name != GLOBAL]
    if not any(line.y for line in lines):
        return
    lines.append(Line.of(ALL_CLIENTS, series(local, group=ALL_CLIENTS), bold=True))
    lines.append(Line.of(worst_clients(log), worst_series(log, what)))
    title = f"{what} on clients' own classes"
    yield curve_chart(f"{title} over the rounds", title, lines, what, [log])


def worst_clients(log: Log) -> str:
    """Return what the worst tenth of the clients is called: of ten or less it is one client."""
    return "worst client" if 0 < len(log.participants) <= 10 else "worst tenth of the clients"


def worst_series(log: Log, what: str) -> Series:
    """Return the mean over the worst tenth of the clients, each on its own test data, by round."""
    return series(log.figures, part="test tenth", group=ALL_CLIENTS, metric=what)


def _over_bytes(log: Log, what: str) -> Iterator[Picture]:
    """Yield what the run reached by the bytes that had travelled until then, both ways together."""
    of_run = rows_where(log.figures, part="run")
    sent = of_run[of_run["metric"].isin((DOWN, UP))].groupby("round")["value"].sum().cumsum()
    tested = rows_where(log.figures, part="test", metric=what)
    rows = tested[tested["group"].isin(log.submodels)].groupby("round")["value"]
    values = series(tested, group=GLOBAL)
    # A round before which nothing travelled (the test of the first state) has no place on the axis.
    values = values[values.index.isin(sent[sent > 0].index)]
    worst = (rows.min() if better([log], what) else rows.max())[values.index]
    if len(values) < 2:  # one point is not a curve
        return
    worst.index = values.index = sent[values.index]
    # `global` is a tested model, or else the mean of all.
    name = GLOBAL if GLOBAL in log.models else "mean of all models"
    lines = [Line.of(name, values, bold=True)]
    if not worst.equals(values):
        lines.append(Line.of("worst tier", worst))
    title = f"{what} by bytes sent"
    drawn = curve_chart(title, title, lines, what, [log], "bytes down and up so far")
    yield replace(drawn, show_x=lambda value: in_bytes(round(value)))
