"""Read run folders: the settings and metrics from which tables and plots are made.

The metrics of a run are one data frame (:func:`archgraph.record.points.frame`). Frames of several
runs are concatenated. Tables and plots select rows of a frame.
"""

from __future__ import annotations

import functools
import html
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from archgraph.analysis.cost import Cost, cost
from archgraph.data.validation import Selection
from archgraph.engine.clients import ClientFacts, read_clients
from archgraph.errors import ArchGraphError, RunError, os_reason
from archgraph.fields import GLOBAL
from archgraph.notebook import framed, page_text
from archgraph.plain import Json
from archgraph.record.lines import parsed
from archgraph.record.points import REPORTS, frame
from archgraph.record.progress import judge_of, measured
from archgraph.record.traffic import DOWN, UP
from archgraph.tables import plural

if TYPE_CHECKING:
    from pandas import DataFrame, Series

    from archgraph.graph.ir import ArchGraph
    from archgraph.language import ExperimentSpec

RoundLine = Mapping[str, Json]
# Metrics for which lower is better, unless a test states the direction; prefix of metrics in
# seconds.
LESS, SECONDS = ("perplexity", "loss"), "seconds_"
RUN = ["experiment", "seed"]
"""Columns that identify a run in a frame of several runs."""


@dataclass(frozen=True, repr=False)
class Log:
    """The record of a run: its settings, metrics and models.

    Attributes:
        folder: The run folder.
        config: The resolved experiment, as YAML.
        rounds: The lines of `metrics.jsonl`, one per round.
        settings: All settings that affect the results. Default: read from the folder.
    """

    folder: Path
    config: str
    rounds: tuple[RoundLine, ...]
    settings: Mapping[str, Json] | None = None

    @functools.cached_property
    def experiment(self) -> ExperimentSpec | None:
        """The resolved experiment; None if it is damaged or from another version."""
        from archgraph.language.experiment import ExperimentSpec
        from archgraph.language.yaml import read_document

        try:
            return read_document(self.folder / "run.yaml").validate(ExperimentSpec)
        except ArchGraphError:
            return None

    @functools.cached_property
    def figures(self) -> DataFrame:
        """Data frame with a row per measured value, without values of single clients' training."""
        return frame(self.rounds, clients=False)

    @functools.cached_property
    def updates(self) -> DataFrame:
        """Data frame with a row per sampled client and round, with outcome and bytes."""
        import pandas

        def unsent(row: RoundLine) -> dict[str, int]:
            # A lost update has no bytes up. Older runs did not record bytes.
            return {UP: 0} if DOWN in row else {}

        rows = [
            {"round": line["round"], "what": what, "name": "", **unsent(row), **row}
            for line in self.rounds
            for what in REPORTS
            for row in line.get(what) or ()
        ]
        columns = ("round", "what", "client", "name", "reason", "macs", DOWN, UP)
        # dtype object, since integers with gaps would become floats.
        return pandas.DataFrame(rows, columns=columns, dtype=object)

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models that were tested, in the order of their first test."""
        names = (name for test in tests(self) for name in test.get("models", {}))
        return tuple(dict.fromkeys(names))

    @property
    def submodels(self) -> tuple[str, ...]:
        """The models that clients use, or the global model if there are no others."""
        return tuple(name for name in self.models if name != GLOBAL) or self.models

    @property
    def done(self) -> int:
        """Number of the last round that has finished."""
        return int(self.rounds[-1]["round"]) if self.rounds else 0

    @property
    def stopped(self) -> str:
        """The reason why the run stopped early; empty if it did not."""
        return str(self.rounds[-1].get("stopped") or "") if self.rounds else ""

    @property
    def lost(self) -> dict[str, int]:
        """Number of rejected updates and of failed clients."""
        many = self.updates.groupby("what").size()
        return {key: int(many.get(key, 0)) for key in ("rejected", "failed")}

    @functools.cached_property
    def clients(self) -> tuple[ClientFacts, ...]:
        """All clients, and the extra models that some clients train; empty for older folders."""
        return read_clients(self.folder)

    @property
    def participants(self) -> tuple[ClientFacts, ...]:
        """The clients, without the extra models that some clients train."""
        return tuple(client for client in self.clients if client.of is None)

    @functools.cached_property
    def graphs(self) -> Mapping[str, ArchGraph | str]:
        """Dict from model to its graph, or to the error message of a damaged file.

        The global model is first.
        """
        from archgraph.engine.loading import load

        paths = sorted(self.folder.glob("models/*.yaml"), key=lambda p: (p.stem != GLOBAL, p.stem))
        graphs: dict[str, ArchGraph | str] = {}
        for path in paths:
            try:
                graphs[path.stem] = load(path)
            except ArchGraphError as error:  # a page can show the other models
                graphs[path.stem] = str(error)
        return graphs

    def cost(self, name: str) -> Cost | None:
        """Return the cost of one of the models; None if its file is missing or damaged."""
        graph = self.graphs.get(name)
        return None if graph is None or isinstance(graph, str) else cost(graph)

    @property
    def best(self) -> int | None:
        """The best round on validation examples; None without such examples."""
        spec = self.experiment.validation if self.experiment else None
        if spec is None:
            return None
        figure = spec.metric or judge([self])
        try:
            return Selection(spec, figure, better([self], figure)).best(self.rounds)
        except RunError:
            return None

    def __repr__(self) -> str:
        what = judge([self])
        last = series(self.figures, part="test", group=GLOBAL, metric=what)
        figure = f", {what} {measured(what, float(last.iloc[-1]))}" if len(last) else ""
        return f"<Log {self.name}: {plural(self.done, 'round')}{figure}, {self.folder}>"

    def _repr_html_(self) -> str:
        """Return the page of the run."""
        return framed(page_text("run", self), html.escape(repr(self)), self.name, 700)

    @property
    def name(self) -> str:
        """The name of the experiment, or else of the folder."""
        # Not from `experiment`, which is slow to read and may be damaged.
        line = re.search(r"^name: *['\"]?(.+?)['\"]? *$", self.config, re.MULTILINE)
        return line[1] if line else self.folder.resolve().name


def read_run(folder: str | os.PathLike[str]) -> Log:
    """Read the folder of a run, which need not be finished.

    If the last line of ``metrics.jsonl`` is incomplete, this line is ignored.

    Raises:
        RunError: If the folder is not a run folder, or a line of ``metrics.jsonl`` is damaged.
    """
    path = Path(folder)
    try:
        config = (path / "run.yaml").read_text(encoding="utf-8", errors="replace")
        raw = (path / "metrics.jsonl").read_bytes()
    except OSError as error:
        raise RunError(
            "not a run folder",
            where=str(path),
            found=f"no {Path(error.filename or path).name} in it"
            if path.is_dir()
            else os_reason(error),
            expected="run.yaml and metrics.jsonl",
        ) from error
    return Log(path, config, tuple(parsed(raw, path / "metrics.jsonl")))


def tests(log: Log) -> Iterator[Mapping[str, Json]]:
    """Yield the evaluations of a run."""
    return filter(None, (line.get("evaluation") for line in log.rounds))


def judge(logs: Iterable[Log]) -> str:
    """Return the name of the metric by which models are compared, such as ``accuracy``."""
    return judge_of(next((test for log in logs for test in tests(log)), {}))


def better(logs: Iterable[Log], figure: str) -> bool:
    """Return whether higher values of a metric are better.

    >>> line = {"round": 1, "evaluation": {"better": {"mse": False, "r2": True}}}
    >>> log = Log(Path("run"), "", (line,))
    >>> better([log], "mse"), better([log], "r2")
    (False, True)
    """
    said = (test.get("better", {}).get(figure) for log in logs for test in tests(log))
    return bool(next((more for more in said if more is not None), figure not in LESS))


def together(groups: Mapping[str, Sequence[Log]], seeds: Mapping[str, Sequence[int]]) -> DataFrame:
    """Concatenate the frames of runs.

    Args:
        groups: Dict from the label of a group to its runs, which differ only in the seed.
        seeds: Dict from the label of a group to the seeds of its runs.

    Returns:
        The rows of all frames with four further columns. ``experiment`` is the label of the group,
        and ``seed`` is the seed of the run. ``model`` is True if the value belongs to a tested
        model. ``submodel`` is True if clients use this model.
    """
    import pandas

    frames = [
        log.figures.assign(
            experiment=name,
            seed=seed,
            model=log.figures["group"].isin(log.models),
            submodel=log.figures["group"].isin(log.submodels),
        )
        for name, logs in groups.items()
        for seed, log in zip(seeds[name], logs, strict=True)
    ]
    return pandas.concat(frames, ignore_index=True)


def rows_where(figures: DataFrame, **columns: object) -> DataFrame:
    """Return the rows whose columns have the given values.

    >>> line = {"round": 3, "evaluation": {"global": {"accuracy": 0.5, "loss": 1.0}}}
    >>> log = Log(Path("run"), "", (line,))
    >>> rows_where(log.figures, part="test", metric="loss")["value"].tolist()
    [1.0]
    """
    for column, value in columns.items():
        figures = figures[figures[column] == value]
    return figures


def series(figures: DataFrame, **columns: object) -> Series:
    """Return the values of a metric by round, without rounds that did not measure the metric.

    >>> line = {"round": 3, "evaluation": {"global": {"accuracy": 0.5}}}
    >>> log = Log(Path("run"), "", (line, {"round": 4}))
    >>> series(log.figures, part="test", group="global", metric="accuracy").to_dict()
    {3: 0.5}
    """
    return rows_where(figures, **columns).set_index("round")["value"].dropna()


def within_budget(log: Log, macs: float) -> Log:
    """Truncate a run to a budget of MACs.

    The last test within the budget then counts. No rounds remain if the run does not reach the
    budget.
    """
    spent = list(
        itertools.accumulate(line.get("macs", {}).get("round", 0.0) for line in log.rounds)
    )
    within = sum(total <= macs for total in spent)
    # A run may end slightly below the budget, since clients are sampled.
    rounds = log.rounds[:within] if spent and spent[-1] >= 0.98 * macs else ()
    return replace(log, rounds=rounds)


def seconds(figures: DataFrame) -> dict[str, float]:
    """Return the seconds of all rounds by phase; `other` is the rest of the total.

    >>> line = {"round": 1, "seconds": {"local": 3.0, "server": 1.0, "total": 5.0}}
    >>> seconds(Log(Path("run"), "", (line,)).figures)
    {'local': 3.0, 'server': 1.0, 'other': 1.0}
    """
    timed = figures[figures["metric"].str.startswith(SECONDS)]
    by_purpose = timed.groupby("metric", sort=False)["value"]
    sums = {name.removeprefix(SECONDS): sum(values) for name, values in by_purpose}
    total = sums.pop("total", None)
    # Recording is measured after a round ends, so it is not part of the total.
    inside = sum(value for purpose, value in sums.items() if purpose != "record")
    if total is not None:
        sums["other"] = max(total - inside, 0.0)
    return sums
