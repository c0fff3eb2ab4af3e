"""A summary of the results: the best model, its margin, and the worst clients."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass

from archgraph.fields import GLOBAL
from archgraph.record.progress import measured
from archgraph.reports.charts import (
    worst_clients,
    worst_series,
)
from archgraph.reports.comparison import Comparison, Figure, RunGroup
from archgraph.reports.header import data
from archgraph.reports.runs import Log, better, judge, rows_where, series
from archgraph.tables import plural, significant

# Measures that rank groups of runs, with descriptions. The first measure that all groups have is
# used.
RANKING = {"average": "mean over the models that clients use", "global": "global model"}


def context(log: Log) -> str:
    """Summarise a run in one line."""
    spec = log.experiment
    parts = [] if spec is None else [spec.strategy_name, data(spec)]
    if log.participants:
        parts.append(plural(len(log.participants), "client"))
    parts.append(plural(log.done, "round"))
    if spec is not None:
        parts.append(f"seed {spec.seed}")
    return " · ".join(parts)


def run_headline(log: Log) -> str:
    """Return the result of a run as HTML, or an empty string if nothing was tested."""
    what = judge([log])
    tested = rows_where(log.figures, part="test", metric=what)
    last = {name: series(tested, group=name) for name in (*log.models, GLOBAL)}
    values = {name: float(of.iloc[-1]) for name, of in last.items() if len(of)}
    if not values:
        return ""
    at = int(tested["round"].max())
    more = better([log], what)
    ranked = sorted((n for n in log.submodels if n in values), key=values.__getitem__, reverse=more)
    tiles = []
    if GLOBAL in values:
        of = "global model" if GLOBAL in log.models else "mean of all models"
        tiles.append((of, measured(what, values[GLOBAL]), "all test data"))
    # Without a global model, its value is the mean over all models.
    first = measured(what, values.get(GLOBAL, next(iter(values.values()))))
    of = "the global model has" if GLOBAL in log.models else "the mean over all models is"
    sentence = f"After round {at}, {of} {first} {what}."
    if len(ranked) > 1:
        best, worst = ranked[0], ranked[-1]
        tiles.append((f"best model: {best}", measured(what, values[best]), "all test data"))
        tiles.append((f"worst model: {worst}", measured(what, values[worst]), "all test data"))
        gap = apart(what, values[best], values[worst])
        sentence += f" {best} is the best of {len(ranked)} models, {gap} ahead of {worst}."
    tenth = worst_series(log, what)
    if len(tenth):
        tiles.append((worst_clients(log), measured(what, float(tenth.iloc[-1])), "own test data"))
    return headline(sentence) + _tiles(tiles)


def headline(sentence: str) -> str:
    """Return the first sentence of a page as HTML, without line breaks before units."""
    return f'<p class="headline">{html.escape(sentence).replace(" %", "&nbsp;%")}</p>'


def _tiles(tiles: list[tuple[str, str, str]]) -> str:
    rows = (
        f"<div><dt>{html.escape(name)}</dt><dd><b>{html.escape(value)}</b> "
        f"<small>{html.escape(note)}</small></dd></div>"
        for name, value, note in tiles
    )
    return f'<dl class="tiles">{"".join(rows)}</dl>'


def apart(what: str, a: float, b: float) -> str:
    """Format the difference between two values; for accuracies, in percentage points.

    >>> apart("accuracy", 0.95, 0.9), apart("loss", 1.5, 2.0)
    ('5.00 points', '0.5')
    """
    gap = abs(a - b)
    return f"{100 * gap:.2f} points" if what == "accuracy" else significant(gap)


@dataclass(frozen=True)
class Ranking:
    """Groups of runs sorted by one metric, the best first.

    Attributes:
        what: Name of the metric.
        of: Description of the models whose metric is compared.
        rows: Pairs of group and value, the best first.
    """

    what: str
    of: str
    rows: tuple[tuple[RunGroup, Figure], ...]

    @classmethod
    def by(cls, compared: Comparison) -> Ranking | None:
        """Rank the groups.

        Return None for a single group, or without a measure that all groups have.
        """
        logs = [log for group in compared.groups for log in group.runs]
        what = judge(logs)
        for which, of in RANKING.items():
            figures = [(g, g.figures.get(f"{which}_{what}")) for g in compared.groups]
            rows = [(group, figure) for group, figure in figures if figure is not None]
            if len(rows) == len(figures) > 1:
                sign = -1 if better(logs, what) else 1
                return cls(what, of, tuple(sorted(rows, key=lambda one: sign * one[1].mean)))
        return None

    def sentences(self) -> Iterator[str]:
        """Yield sentences on the best group: its margin, its worst model and its worst clients."""
        (first, best), (second, next_one), *_ = self.rows
        of = _with_deviation(self.what, best)
        gap = apart(self.what, best.mean, next_one.mean)
        yield (
            f"{first.label} is best: {of} {self.what} ({self.of}), {gap} ahead of {second.label} "
            f"({_with_deviation(self.what, next_one)})."
        )
        spreads = [figure.std for figure in (best, next_one) if figure.std is not None]
        if len(spreads) < 2:
            yield "With one seed, this gap may be chance."
        elif abs(best.mean - next_one.mean) <= max(spreads):
            yield "This gap is smaller than the deviation over the seeds."
        worst = first.figures.get(f"worst_{self.what}")
        tenth = first.figures.get("worst_tenth_matched")
        if worst is not None:
            yield f"Its worst model: {_with_deviation(self.what, worst)}."
        if tenth is not None:
            yield f"Its worst tenth of clients: {_with_deviation('accuracy', tenth)}."


def _with_deviation(what: str, figure: Figure) -> str:
    """Format a mean and its standard deviation, with one unit for both.

    >>> _with_deviation("accuracy", Figure((0.5, 0.52)))
    '51.00 ± 1.41 %'
    """
    if figure.std is None:
        return measured(what, figure.mean)
    return f"{measured(what, figure.mean).removesuffix(' %')} ± {measured(what, figure.std)}"
