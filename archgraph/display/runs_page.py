"""Several runs as one page: those that differ in the seed only are one curve with a band."""

from __future__ import annotations

import html
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from archgraph.display.charts import HEIGHT, WIDTH, legend
from archgraph.display.comparison import Comparison, RunGroup
from archgraph.display.header import header
from archgraph.display.page import chart, facts, folded, html_page, section
from archgraph.display.plots import band, panels, reduced, scale, time_panel
from archgraph.display.run_tables import setting_sheet
from archgraph.display.runs import Log, RoundLine, better, judge, models, seconds, series
from archgraph.display.sheets import Sheet, SheetColumn, download
from archgraph.fields import GLOBAL
from archgraph.tables import Table, plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Curves of a panel: the values of each of its runs, by round.
Curves = Mapping[str, list[dict[int, float]]]
Reduce = Callable[[Iterable[float]], float]
# Groups that stand side by side.
FEW = 4
# Tiers that have a panel of their own.
TIERS = 8


def runs_page(compared: Comparison) -> str:
    """The page of several runs as HTML text."""
    groups = compared.groups
    title = " and ".join(dict.fromkeys(log.name for group in groups for log in group.runs))
    first, *rest = compared.tables()
    figures = "".join(chart(figure, name) for name, figure in runs_charts(compared))
    body = [
        f"<h1>{html.escape(title)}</h1>",
        facts(_facts(groups)),
        "<h2>Runs</h2>",
        f"{_wide(_upright(first).html())}<p>{html.escape(first.note)}</p>",
        f"<p>{download('runs', compared.csv())}</p>",
        *(part for table in rest for part in section(table.title, _wide(table.html()))),
        "<h2>Over the rounds</h2>",
        f'<div class="charts">{figures}</div>',
        f"<p>{download('rounds', rounds_sheet(compared).csv())}</p>",
        "<h2>Each run</h2>",
        *(_run(group, log) for group in groups for log in group.runs),
    ]
    return html_page(title, body)


def _upright(table: Table) -> Table:
    """The table with a column per group if they are few: it fits a telephone."""
    if len(table.rows) > FEW:
        return table
    columns = list(zip(table.columns, *table.rows, strict=True))
    return Table(
        table.title,
        ("", *columns[0][1:]),
        tuple(columns[1:]),
        right=frozenset(range(1, len(columns[0]))),
    )


def _wide(inside: str) -> str:
    return f'<div class="wide">{inside}</div>'


def _facts(groups: tuple[RunGroup, ...]) -> Iterator[tuple[str, str]]:
    """Facts that all runs share, then what there is of the others."""
    logs = [log for group in groups for log in group.runs]
    yield "runs", f"{len(logs)} in {plural(len(groups), 'group')}"
    seeds = dict.fromkeys(str(seed) for group in groups for seed in group.seeds)
    yield "seeds", ", ".join(seeds)
    of = [dict(header(log)) for log in logs]
    for key, text in of[0].items():
        if all(one.get(key) == text for one in of) and key != "seed":
            yield key, text


def _run(group: RunGroup, log: Log) -> str:
    """One of the runs, folded."""
    name = f"{group.label}, seed {group.seeds[group.runs.index(log)]}: {log.folder}"
    inside = facts(header(log)) + folded(setting_sheet(log), "setting")
    return f"<details><summary>{html.escape(name)}</summary>{inside}</details>"


def rounds_sheet(compared: Comparison) -> Sheet:
    """A row per run, round and model: the figure that judges it."""
    what = judge(_lines(compared))
    rows = [
        (group.label, seed, at, name, value)
        for group in compared.groups
        for seed, log in zip(group.seeds, group.runs, strict=True)
        for name in models(log.rounds)
        for at, value in zip(*series(log.rounds, "models", name, what), strict=True)
    ]
    keys = ("experiment", "seed", "round", "model", what)
    return Sheet("rounds", tuple(SheetColumn(key, key) for key in keys), tuple(rows))


def runs_charts(compared: Comparison) -> Iterator[tuple[str, Figure]]:
    """Means over the seeds as lines, standard deviations as bands; then the time of each group."""
    lines = _lines(compared)
    what = judge(lines)
    more = better(lines, what)
    for title, curves in _curves(compared, what, min if more else max):
        figure, (panel,) = panels(WIDTH, 1, height=HEIGHT)
        for number, (name, runs) in enumerate(curves.items()):
            band(panel, runs, name, number, bold=name == GLOBAL)
        scale(panel, what, title, None if what == "accuracy" else more)
        legend(figure, panel)
        yield f"{title} over the rounds", figure
    timed = {
        group.label: [line for log in group.runs for line in log.rounds]
        for group in compared.groups
    }
    if any(seconds(rounds) for rounds in timed.values()):
        figure, (panel,) = panels(WIDTH, 1, height=HEIGHT)
        time_panel(panel, timed)
        yield "seconds per round", figure


def _curves(compared: Comparison, what: str, worst: Reduce) -> Iterator[tuple[str, Curves]]:
    """Of one group each model; of several the worst and average submodel, and each tier's."""
    groups = compared.groups
    tiers = list(
        dict.fromkeys(name for g in groups for log in g.runs for name in models(log.rounds))
    )
    if len(groups) == 1:
        (group,) = groups
        last = sorted(tiers, key=lambda name: name == GLOBAL)
        yield f"{what} on all test data", {name: _of(group, name, what) for name in last}
        return
    for title, reduce in (("average", statistics.fmean), ("worst", worst)):
        yield (
            f"{title} submodel: {what}",
            {g.label: [reduced(log.rounds, what, reduce) for log in g.runs] for g in groups},
        )
    for tier in tiers[:TIERS]:
        curves = {g.label: _of(g, tier, what) for g in groups}
        title = f"{tier} model: {what}" if tier == GLOBAL else f"{tier}: {what}"
        yield title, {label: runs for label, runs in curves.items() if all(runs)}


def _of(group: RunGroup, name: str, what: str) -> list[dict[int, float]]:
    """A figure of a model by round, for each run of a group."""
    found = (series(log.rounds, "models", name, what) for log in group.runs)
    return [dict(zip(*pair, strict=True)) for pair in found]


def _lines(compared: Comparison) -> list[RoundLine]:
    return [line for group in compared.groups for log in group.runs for line in log.rounds]
