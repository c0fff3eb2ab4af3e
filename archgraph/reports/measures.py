"""The columns of a comparison: name, values and format of each measure.

All columns are computed from one data frame of the runs (:func:`archgraph.reports.runs.together`).
Metrics use the tested rounds to average over. Costs use all rounds up to the last common test.

``worst`` and ``average`` cover the models that clients run, each with equal weight; ``global`` is
the server's model. :func:`of_models` selects models by a pattern, and can weight them by their
number of clients.
"""

from __future__ import annotations

import fnmatch
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from archgraph.fields import GLOBAL
from archgraph.record.points import ALL_CLIENTS, CLIENTS
from archgraph.record.right import RIGHT, unpacked
from archgraph.record.traffic import DOWN, UP
from archgraph.reports.runs import RUN, Log, rows_where, seconds
from archgraph.tables import count, significant

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pandas import DataFrame, Series
    from pandas.core.groupby import SeriesGroupBy

# Metrics that tables show in per cent.
SHARES = ("accuracy", "matched")


@dataclass(frozen=True, eq=False)
class Measure:
    """A column: names, format and values of a measure.

    Attributes:
        key: Name in JSON and CSV.
        title: Title in tables.
        show: Function that formats a value.
        values: Value for each run; NaN or missing if the run does not have the measure.
        absent: Value for a run without the measure, if other runs of its group have the measure.
            Default: if a run lacks the measure, the whole group lacks the measure.
    """

    key: str
    title: str
    show: Callable[[float], str]
    values: Series
    absent: float | None = None


def tested(figures: DataFrame, names: Mapping[str, bool]) -> Iterator[Measure]:
    """Yield the columns of metrics: worst tier, average, global model, and clients.

    With validation examples, there are also columns for the metrics on these examples.

    Args:
        figures: Data frame of the tested rounds to average over.
        names: Dict from metric to whether higher is better.
    """
    for name, more in names.items():
        yield from _of_all(figures, name, more)
    for name, more in names.items():
        yield from _of_clients(figures, name, more)
    for name, more in names.items():
        yield from _of_all(figures, name, more, "validation")
    for part in ("test", "validation"):
        yield from _of_mixtures(figures, part)


def _of_all(figures: DataFrame, name: str, more: bool, part: str = "test") -> Iterator[Measure]:
    rows = rows_where(figures, part=part, metric=name)
    of = "" if part == "test" else f"{part} "
    submodels = rows_where(rows, submodel=True)
    values = {
        "worst": _averaged(figures, submodels, np.min if more else np.max),
        "average": _averaged(figures, submodels, statistics.fmean),
        "global": _averaged(figures, rows_where(rows, model=True, group=GLOBAL)),
    }
    for which, value in values.items():
        yield _column(f"{of.strip()}_{which}_{name}".lstrip("_"), f"{of}{which}", name, value)


def _of_mixtures(figures: DataFrame, part: str) -> Iterator[Measure]:
    """Yield the means over all clients and over the worst tenth, on their class distributions."""
    of = "" if part == "test" else f"{part} "
    for which, title in {"local": "", "tenth": ", worst tenth"}.items():
        rows = rows_where(figures, part=f"{part} {which}", group=ALL_CLIENTS, metric="matched")
        key = f"{of}{'worst ' if title else ''}{which} matched".replace(" ", "_")
        yield Measure(key, f"{of}own mixture{title} %", _percent, _averaged(figures, rows))


def _of_clients(figures: DataFrame, name: str, more: bool) -> Iterator[Measure]:
    local = rows_where(figures, metric=name, part="test local")
    trained = rows_where(figures, metric=name, part="test trained")
    # NaN stands for a value that was not finite. A model with NaN cannot be the best.
    best = np.nanmax if more else np.nanmin
    values = {
        "local": _averaged(figures, rows_where(local, group=ALL_CLIENTS)),
        "trained": _averaged(figures, trained),
        "best local": _averaged(figures, rows_where(local, submodel=True), best),
    }
    for which, value in values.items():
        yield _column(f"{which.replace(' ', '_')}_{name}", which, name, value)


# First part of the name of a measure in which each model has equal weight.
MODELS = "models"


def of_models(figures: DataFrame, name: str) -> Measure | None:
    """Return the mean over the models that clients run and whose names match a pattern.

    ``models.PATTERN.METRIC`` gives each model equal weight. ``clients.PATTERN.METRIC`` weights each
    model by its number of clients. The prefix ``validation_`` selects tests on validation examples.
    For example, FedGKT tests its clients' models as ``edge``, and together with the server's part
    as ``edge+server``; a pattern can select one of the two.

    Args:
        figures: Data frame of the tested rounds to average over.
        name: Name of the measure. The pattern may contain ``*`` and ``?``.

    Returns:
        The measure, or None if the name does not have this form.
    """
    first, _, rest = name.partition(".")
    pattern, _, metric = rest.rpartition(".")
    counted = first.removeprefix("validation_")
    if counted not in (MODELS, CLIENTS) or not pattern:
        return None
    tests = rows_where(figures, part="test" if counted == first else "validation", submodel=True)
    tests = tests[[fnmatch.fnmatchcase(group, pattern) for group in tests["group"]]]
    rows = rows_where(tests, metric=metric)
    if counted == MODELS:
        values = _averaged(figures, rows)
    else:
        counts = rows_where(figures, part="test", metric=CLIENTS)
        values = _over_tests(figures, _by_clients(rows, counts))
    return _column(name, f"{pattern}, by {first}", metric, values)


def right_answers(log: Log, tests: Collection[int], name: str) -> NDArray[np.float64] | None:
    """Return the fraction of models that classify each example correctly.

    1. The models of each test are selected and weighted as for the measure ``name``: ``worst``,
       ``average``, ``global``, ``models.PATTERN`` or ``clients.PATTERN``.
    2. The fractions are averaged over the tests. Their mean is the accuracy.

    Args:
        log: A run with `evaluate.answers`.
        tests: Tested rounds to average over.
        name: Name of the measure.

    Returns:
        ``[example]``; None if the run has no answers, or the measure is not an accuracy.
    """
    averaged = []
    for line in log.rounds:
        test = line.get("evaluation") or {}
        if line["round"] in tests:
            weights = _weights(log, test.get("models", {}), name)
            if not weights or not weights.keys() <= test.get(RIGHT, {}).keys():
                return None
            shares = [weight * unpacked(test[RIGHT][of]) for of, weight in weights.items()]
            averaged.append(np.sum(shares, 0) / sum(weights.values()))
    return np.mean(averaged, 0) if averaged else None


def _weights(log: Log, models: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, float]:
    """Return the weights of a test's models in an accuracy; empty for other measures."""
    used = {of: figures for of, figures in models.items() if of in log.submodels}
    counted, _, rest = name.partition(".")
    pattern, _, metric = rest.rpartition(".")
    if counted in (MODELS, CLIENTS) and metric == "accuracy":
        chosen = {of: row for of, row in used.items() if fnmatch.fnmatchcase(of, pattern)}
        return {of: 1 if counted == MODELS else row.get(CLIENTS, 0) for of, row in chosen.items()}
    if name == "worst_accuracy" and used:
        return {min(used, key=lambda of: used[of]["accuracy"]): 1}
    if name == "average_accuracy":
        return dict.fromkeys(used, 1)
    return {GLOBAL: 1} if name == "global_accuracy" and GLOBAL in models else {}


def _by_clients(rows: DataFrame, counts: DataFrame) -> Series:
    """Return the mean over each round's models, weighted by their numbers of clients.

    Models that no client uses are ignored. Older runs did not record the numbers of clients, and
    have no weighted mean.
    """
    model = [*RUN, "round", "group"]
    both = rows.merge(counts[[*model, "value"]], on=model, suffixes=("", "_clients"))
    both["value"] *= both["value_clients"]
    rounds = both.groupby([*RUN, "round"])
    return _each(rounds["value"], sum) / _each(rounds["value_clients"], sum)


def of_tiers(figures: DataFrame, name: str) -> tuple[list[Measure], bool]:
    """Return a column for each tier: the mean over its clients, on their own test data.

    Args:
        figures: Data frame of the tested rounds to average over.
        name: Metric to use if some run was not tested on its clients' class distributions.

    Returns:
        The columns, and whether clients were tested with their own class distributions.
    """
    rows = rows_where(figures, part="test local", model=True)
    rows = rows[rows["group"] != GLOBAL]
    tests = [rows[key] for key in (*RUN, "round", "group")]
    # All columns use the same metric: class distributions only if every test has them.
    mixed = bool((rows["metric"] == "matched").groupby(tests).any().all())
    metric = "matched" if mixed else name
    columns = [
        _column(f"tier.{tier}.{metric}", tier, metric, _averaged(figures, of))
        for tier in rows["group"].unique()
        for of in [rows_where(rows, group=tier, metric=metric)]
    ]
    return columns, mixed


def cost_measures(figures: DataFrame) -> Iterator[Measure]:
    """Yield the total costs of all rounds. Costs that a round did not record are skipped."""
    of_run = rows_where(figures, part="run")
    # A row per round, with NaN for costs that the round did not record.
    rounds = of_run.pivot(index=[*RUN, "round"], columns="metric", values="value")

    def over(metric: str, reduce: Callable[[np.ndarray], float] = sum) -> Series:
        return _each(rounds.reindex(columns=[metric])[metric].groupby(RUN), reduce)

    times = {run: seconds(rows) for run, rows in of_run.groupby(RUN)}
    lost = rounds["rejected"].groupby(RUN).sum() + rounds["failed"].groupby(RUN).sum()
    mace, epochs = over("mace", np.max), over("epochs")
    yield Measure("seconds", "seconds", _seconds, _timed(times, lambda of: sum(of.values())))
    server = _timed(times, lambda of: of.get("server", 0.0))
    yield Measure("server_seconds", "server s", _seconds, server)
    yield Measure("megabytes_down", "MB down", significant, over(DOWN) / 1e6)
    yield Measure("megabytes_up", "MB up", significant, over(UP) / 1e6)
    yield Measure("macs", "MACs of training", count, over("macs"))
    yield Measure("mace", "MACE", count, mace)
    yield Measure("epochs", "T·E", significant, epochs)
    yield Measure("tmac", "TMAC", count, mace * epochs)
    # No column if no run lost an update; otherwise groups without losses show zero.
    yield Measure("lost", "lost updates", significant, lost[lost > 0], absent=0.0)


def _timed(
    times: Mapping[tuple[str, int], Mapping[str, float]],
    read: Callable[[Mapping[str, float]], float],
) -> Series:
    import pandas

    return pandas.Series({run: read(of) for run, of in times.items() if of}, dtype=float)


def _averaged(
    figures: DataFrame,
    rows: DataFrame,
    reduce: Callable[[np.ndarray], float] = statistics.fmean,
) -> Series:
    """Reduce the rows of each round and average over the tests, which must all have rows."""
    return _over_tests(figures, _each(rows.groupby([*RUN, "round"])["value"], reduce))


def _over_tests(figures: DataFrame, by_round: Series) -> Series:
    tests = figures.groupby(RUN)["round"].nunique()
    runs = by_round.groupby(RUN)
    return _each(runs, statistics.fmean)[runs.size() == tests.reindex(runs.size().index)]


def _each(groups: SeriesGroupBy, reduce: Callable[[np.ndarray], float]) -> Series:
    """Reduce the values of each group, with the same bits as plain Python."""
    # The sum and mean of pandas add in another order, which changes the last bits.
    return groups.agg(lambda values: reduce(values.to_numpy()))


def _column(key: str, of: str, name: str, values: Series) -> Measure:
    share = name in SHARES
    title = f"{of} accuracy %" if share else f"{of} {name}"
    return Measure(key, title, _percent if share else significant, values)


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


_seconds = "{:.2f}".format
