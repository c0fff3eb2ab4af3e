"""The page of several runs. Runs that differ only in the seed are one curve with a band."""

from __future__ import annotations

import html
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from archgraph.fields import GLOBAL
from archgraph.reports.charts import Picture, curve_chart, time_chart
from archgraph.reports.comparison import Comparison, RunGroup
from archgraph.reports.group_tables import each_run, sent_sheet, shared_sheet
from archgraph.reports.header import header
from archgraph.reports.headline import Ranking, headline, run_headline
from archgraph.reports.parts import (
    closed_page,
    definition_list,
    embedded,
    expandable,
    section,
    viewer_frame,
)
from archgraph.reports.plots import Reduce, by_cost, by_seed, reduced
from archgraph.reports.run_tables import client_sheet, lost_sheet, model_sheet, setting_sheet
from archgraph.reports.runs import RUN, Log, better, judge, rows_where, seconds
from archgraph.reports.sheets import Sheet, SheetColumn, as_csv, download, wide
from archgraph.tables import Table, plural

if TYPE_CHECKING:
    from pandas import DataFrame

    # Values by round and seed for each curve of a panel.
    Curves = Mapping[str, DataFrame]

# Maximum number of groups side by side.
FEW = 4
# Maximum number of tiers with their own panel.
TIERS = 8


def runs_page(compared: Comparison, viewer: Callable[[Log], str | None]) -> str:
    """Return the page of several runs as HTML text.

    Args:
        compared: The runs.
        viewer: Function that returns an HTML page of a run's architectures, which is embedded.
    """
    groups = compared.groups
    title = " and ".join(dict.fromkeys(log.name for group in groups for log in group.runs))
    first, *rest = compared.tables()
    first_chart, *figures = map(embedded, runs_charts(compared))
    body = [
        f"<h1>{html.escape(title)}</h1>",
        *_headline(compared, first_chart),
        "<h2>Runs</h2>",
        f"{wide(_upright(first).html(), 'runs')}<p>{html.escape(first.note)}</p>",
        f"<p>{download('runs', compared.csv())}</p>",
        *(part for table in rest for part in section(table.title, _differences(table))),
        "<h2>Over the rounds</h2>",
        f'<div class="charts">{"".join(figures)}</div>',
        f"<p>{download('rounds', rounds_sheet(compared).csv())}</p>",
        *section("Communication and computation", sent_sheet(compared).html()),
        *section("Architectures", "".join(_architectures(compared, viewer))),
        *section("Settings of all runs", shared_sheet(compared).html()),
        "<h2>Each run</h2>",
        *(_run(*each) for each in each_run(compared)),
    ]
    return closed_page(title, body)


def _differences(table: Table) -> str:
    link = download("differences", as_csv(table.columns, table.rows))
    return f"{wide(table.html(), table.title)}<p>{link}</p>"


def _headline(compared: Comparison, curves: str) -> Iterator[str]:
    """Yield a summary of the best group, or of the first run of a single group, and a chart."""
    ranking = Ranking.by(compared)
    if ranking is not None:
        yield headline(" ".join(ranking.sentences()))
    else:
        for _, seed, log in itertools.islice(each_run(compared), 1):
            yield f"<p>{plural(len(_logs(compared)), 'run')}; results for seed {seed}:</p>"
            yield run_headline(log)
    yield f'<div class="charts">{curves}</div>'


def _upright(table: Table) -> Table:
    """Transpose a table with few groups, so that it fits a phone."""
    if len(table.rows) > FEW:
        return table
    first, *rows = zip(table.columns, *table.rows, strict=True)
    right = frozenset(range(1, len(first)))
    return Table(table.title, ("", *first[1:]), tuple(rows), right=right)


def _architectures(compared: Comparison, viewer: Callable[[Log], str | None]) -> Iterator[str]:
    """Yield the models of each family once, with the labels of its runs; the first is expanded."""
    users: dict[tuple[tuple[str, bytes], ...], tuple[Log, list[str]]] = {}
    for group, _, log in each_run(compared):
        paths = sorted(log.folder.glob("models/*.yaml"))
        if paths:
            family = tuple((path.name, path.read_bytes()) for path in paths)
            # Families are compared by content: seeds, and most experiments, share models.
            users.setdefault(family, (log, []))[1].append(group.label)
    for number, (log, labels) in enumerate(users.values()):
        name = html.escape(", ".join(dict.fromkeys(labels)))
        if text := viewer(log):
            opened = "" if number else " open"
            yield f"<details{opened}><summary>{name}</summary>{viewer_frame(text)}</details>"


def _run(group: RunGroup, seed: int, log: Log) -> str:
    """Return a run as a collapsed element."""
    name = f"{group.label}, seed {seed}: {log.folder}"
    sheets = {
        "model": model_sheet(log),
        "client": client_sheet(log),
        "update": lost_sheet(log),
        "setting": setting_sheet(log),
    }
    # Browsers save all files to one folder, so names must be distinct.
    inside = definition_list(header(log))
    for noun, sheet in sheets.items():
        inside += expandable(replace(sheet, name=f"{sheet.name}_{log.folder.name}"), noun)
    return f"<details><summary>{html.escape(name)}</summary>{inside}</details>"


def rounds_sheet(compared: Comparison) -> Sheet:
    """Return a table of the metric that compares models, by run, model and round."""
    what = judge(_logs(compared))
    rows = rows_where(compared.frame, part="test", metric=what, model=True).dropna(subset=["value"])
    keys = ("experiment", "seed", "round", "model", what)
    # Sorted by model within a run, not by round.
    runs = [of.groupby("group", sort=False) for _, of in rows.groupby(RUN, sort=False)]
    ordered = [rows for models in runs for _, rows in models]
    values = [row for of in ordered for row in of[[*RUN, "round", "group", "value"]].values]
    return Sheet("rounds", tuple(SheetColumn(key, key) for key in keys), tuple(map(tuple, values)))


def runs_charts(compared: Comparison) -> Iterator[Picture]:
    """Yield charts of means over seeds, with deviations as bands, and a chart of the time."""
    logs, figures = _logs(compared), compared.frame
    what = judge(logs)
    worst: Reduce = np.min if better(logs, what) else np.max
    for title, curves in _curves(compared, what, worst):
        yield curve_chart(f"{title} over the rounds", title, curves, what, logs)
    of = {group.label: rows_where(figures, experiment=group.label) for group in compared.groups}
    average = {label: reduced(rows, what, np.mean) for label, rows in of.items()}
    title = f"average submodel: {what}"
    for axis, spent in by_cost(figures).items():
        yield curve_chart(f"{title} over {axis}", title, average, what, logs, axis, spent)
    if seconds(figures):
        yield time_chart(of)


def _curves(compared: Comparison, what: str, worst: Reduce) -> Iterator[tuple[str, Curves]]:
    """Yield titles and curves: the models of a single group; else worst, average and tiers."""
    tested = rows_where(compared.frame, part="test", metric=what, model=True)
    of = {group.label: rows_where(tested, experiment=group.label) for group in compared.groups}
    tiers = list(dict.fromkeys(name for log in _logs(compared) for name in log.models))
    if len(of) == 1:
        (rows,) = of.values()
        last = sorted(tiers, key=lambda name: name == GLOBAL)
        yield f"{what} on all test data", {name: _of(rows, name) for name in last}
        return
    for title, reduce in (("average", np.mean), ("worst", worst)):
        curves = {label: reduced(rows, what, reduce) for label, rows in of.items()}
        yield f"{title} submodel: {what}", curves
    for tier in tiers[:TIERS]:
        curves = {label: _of(rows, tier) for label, rows in of.items()}
        # Only if all runs have the tier, because other seeds have other data.
        everywhere = {group.label: len(group.runs) for group in compared.groups}
        title = f"{tier} model: {what}" if tier == GLOBAL else f"{tier}: {what}"
        yield title, {n: runs for n, runs in curves.items() if runs.shape[1] == everywhere[n]}


def _of(rows: DataFrame, model: str) -> DataFrame:
    """Return the values of a model by round and seed."""
    return by_seed(rows_where(rows, group=model).set_index(["round", "seed"])["value"])


def _logs(compared: Comparison) -> list[Log]:
    return [log for _, _, log in each_run(compared)]
