"""Compare runs: a row per experiment, averaged over seeds, and the settings that differ."""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import statistics
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from archgraph.errors import RunError
from archgraph.hints import unknown
from archgraph.language import ExperimentSpec
from archgraph.plain import Json, digest
from archgraph.reports.measures import Measure, cost_measures, of_models, of_tiers, tested
from archgraph.reports.runs import Log, better, judge, read_run, rows_where, together
from archgraph.reports.settings import differing
from archgraph.reports.sheets import NOTHING, as_csv
from archgraph.tables import Table, plural

if TYPE_CHECKING:
    from pandas import DataFrame

# Facts that do not distinguish experiments: the version of the spec language, and the seed.
COMMON = frozenset({"archgraph", "seed"})
# Characters per value in the table of differences.
BRIEF = 48
# Maximum number of settings in a label.
DETAILS = 2
_DECIMALS = re.compile(r"-?\d+\.(\d+)")
# Explanations of column titles that are abbreviations.
LEGENDS = {
    "mace": "MACE: multiply–accumulates of an epoch, mean over the clients (largest of the rounds)",
    "epochs": "T·E: rounds × local epochs",
    "tmac": "TMAC: MACE × T·E",
}


@dataclass(frozen=True)
class Figure:
    """The values of one measure in runs that differ only in the seed.

    Attributes:
        values: One value per run.
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the runs."""
        return statistics.fmean(self.values)

    @property
    def std(self) -> float | None:
        """Sample standard deviation (n - 1). None for a single run."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True, eq=False)
class Figures(Mapping[str, Figure]):
    """A mapping from the key of each measure to its values in a group of runs.

    Attributes:
        listed: Dict from key to the measures that are columns. Iteration covers only these.
        find: Function that computes a measure whose key contains a pattern of model names
            (:func:`archgraph.reports.measures.of_models`). These measures are not columns.
    """

    listed: Mapping[str, Figure]
    find: Callable[[str], Figure | None]

    def __getitem__(self, key: str) -> Figure:
        """Return the values of a measure."""
        figure = self.listed[key] if key in self.listed else self.find(key)
        if figure is None:
            raise KeyError(key)
        return figure

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys of the measures that are columns."""
        return iter(self.listed)

    def __len__(self) -> int:
        """Return the number of measures that are columns."""
        return len(self.listed)


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ only in the seed.

    Attributes:
        label: Label, unique in the comparison.
        settings: All settings that affect the results, as plain values, without the seed.
        runs: The runs, ordered by seed.
        seeds: The seeds of the runs.
        tests: Tested rounds to average over.
        figures: Dict from the key of a measure to its values. Measures that some run does not have
            are missing. Keys with patterns, such as ``clients.*.accuracy``, are computed on access.
    """

    label: str
    settings: Mapping[str, Json]
    runs: tuple[Log, ...]
    seeds: tuple[int, ...]
    tests: tuple[int, ...]
    figures: Mapping[str, Figure]

    @property
    def strategy(self) -> str:
        """Name of the strategy."""
        return _strategy(self.settings)

    @property
    def at(self) -> int:
        """The last round after which all runs were tested."""
        return self.tests[-1]

    @property
    def planned(self) -> int:
        """Number of rounds in the experiment."""
        return int(self.settings["rounds"])


@dataclass(frozen=True)
class Comparison:
    """Groups of runs, in the order in which the runs were passed.

    Attributes:
        groups: Groups of runs, one per row.
        measures: Measures to show as columns, if at least one group has them.
        last: Fraction or number of the last rounds over whose tests values are averaged. Default:
            only the last test.
        mixed: True if each client's model was tested with the client's class distribution, False if
            on all test examples of the client's classes. None if tiers are not columns.
        chosen: Keys of the columns after the first, in order. Default: all.
    """

    groups: tuple[RunGroup, ...]
    measures: tuple[Measure, ...]
    last: float | None = None
    mixed: bool | None = None
    chosen: tuple[str, ...] = ()

    @functools.cached_property
    def frame(self) -> DataFrame:
        """Data frame with the values of all runs, identified by experiment and seed."""
        groups = {group.label: group.runs for group in self.groups}
        return together(groups, {group.label: group.seeds for group in self.groups})

    @property
    def differences(self) -> dict[str, tuple[str, ...]]:
        """Dict from each setting in which the groups differ to its value in each group, as text.

        Settings are omitted if every group that has them uses the default value, for example the
        options of a partition scheme that only one group uses.
        """
        return _differences([(group.runs[0], group.settings) for group in self.groups])

    def tables(self) -> tuple[Table, ...]:
        """Return the table with a row per group and, if all columns are shown, the differences."""
        columns = self._columns()
        keys = self.chosen or tuple(columns)
        labels = tuple(group.label for group in self.groups)
        rows = zip(labels, *(columns[key][1] for key in keys), strict=True)
        titles = ("experiment", *(columns[key][0] for key in keys))
        right = frozenset(i for i, key in enumerate(keys, 1) if key != "strategy")
        first = Table("Runs", titles, tuple(rows), right=right, note=self._note(keys))
        differences = tuple((key, *texts) for key, texts in self.differences.items())
        second = Table("Differences", ("setting", *labels), differences)
        return (first, second) if differences and not self.chosen else (first,)

    def choose(self, rows: Sequence[str], columns: Sequence[str]) -> Comparison:
        """Select rows and columns of the comparison.

        Args:
            rows: Names of experiments, or patterns. Empty selects all.
            columns: Keys or titles of columns, or patterns, in order. Empty selects all.

        Raises:
            RunError: If a name or pattern matches nothing.
        """
        labels = {group.label: group.label for group in self.groups}
        chosen = _matching(rows, labels, "rows") or labels
        groups = tuple(group for group in self.groups if group.label in chosen)
        titles = {key: title for key, (title, _) in self._columns().items()}
        return replace(self, groups=groups, chosen=_matching(columns, titles, "columns"))

    def _columns(self) -> dict[str, tuple[str, list[str]]]:
        """Return a dict from the key of each column after the first to its title and texts."""
        columns = {
            "strategy": ("strategy", [group.strategy for group in self.groups]),
            "seeds": ("seeds", [str(len(group.seeds)) for group in self.groups]),
            "rounds": ("rounds", [_rounds(group) for group in self.groups]),
        }
        if self.last is not None:
            columns["tests"] = ("tests", [str(len(group.tests)) for group in self.groups])
        for m in self._measures():
            texts = [_spread(group.figures.get(m.key), m.show) for group in self.groups]
            columns[m.key] = (m.title, texts)
        return columns

    def plain(self) -> dict[str, Json]:
        """Return the comparison as plain values for JSON."""
        return {
            "groups": [
                {
                    "label": group.label,
                    "strategy": group.strategy,
                    "runs": [str(log.folder) for log in group.runs],
                    "seeds": list(group.seeds),
                    "round": group.at,
                    "tests": list(group.tests),
                    "rounds": group.planned,
                    "figures": {
                        key: {"mean": f.mean, "std": f.std, "values": list(f.values)}
                        for key, f in group.figures.items()
                    },
                }
                for group in self.groups
            ],
            "differences": {key: list(texts) for key, texts in self.differences.items()},
        }

    def csv(self) -> str:
        """Return CSV with a line per group: mean and standard deviation of each measure."""
        keys = [m.key for m in self._measures() if not self.chosen or m.key in self.chosen]
        heads = [name for key in keys for name in (key, f"{key}_std")]
        rows = []
        for group in self.groups:
            figures = [group.figures.get(key) for key in keys]
            cells = [cell for f in figures for cell in ((f.mean, f.std) if f else (None, None))]
            counted = [] if self.last is None else [len(group.tests)]
            rows.append([group.label, group.strategy, len(group.seeds), group.at, *counted, *cells])
        tests = [] if self.last is None else ["tests"]
        return as_csv(["experiment", "strategy", "seeds", "round", *tests, *heads], rows)

    def markdown(self) -> str:
        """Return the tables as Markdown."""
        return "\n\n".join(table.markdown() for table in self.tables()) + "\n"

    def latex(self) -> str:
        """Return the tables for LaTeX (booktabs)."""
        return "\n\n".join(table.latex() for table in self.tables()) + "\n"

    def _measures(self) -> tuple[Measure, ...]:
        """Return the measures that at least one group has."""
        return tuple(m for m in self.measures if any(m.key in g.figures for g in self.groups))

    def _note(self, keys: Iterable[str]) -> str:
        note = "mean ± standard deviation over the seeds"
        if self.last is None:
            note += ", last test"
        else:
            share = f"{100 * self.last:g} % of the rounds"
            part = share if self.last < 1 else plural(int(self.last), "round")
            note += f", each averaged over the tests of the last {part}"
        if self.mixed is not None:
            share = "its own mixture of classes" if self.mixed else "its own classes"
            note += f"; tiers: mean over their clients, each on test data of {share}"
        return "; ".join((note, *(LEGENDS[key] for key in keys if key in LEGENDS)))


def comparison(
    paths: Iterable[str | os.PathLike[str]],
    *,
    unfinished: bool = False,
    tiers: bool = False,
    last: float | None = None,
) -> Comparison:
    """Read runs and group those that differ only in the seed.

    Args:
        paths: Run folders, or folders that contain run folders.
        unfinished: Include unfinished runs, up to their last round.
        tiers: Add a column for each tier. Each client is tested on test data with its own class
            distribution (``matched``), and the column shows the mean accuracy of the tier's
            clients. If some run lacks this metric, clients are instead tested on all test examples
            of their classes.
        last: Average over the tests of the last rounds instead of using only the last test: a
            fraction (< 1) of all rounds, or a number (≥ 1) of rounds. RecipFL, Table 3: 0.2.

    Raises:
        RunError: If there are no runs, or a run is unfinished, was never tested, or is listed
            twice.
    """
    logs = [read_run(folder) for folder in run_folders(paths)]
    return compare_logs(logs, unfinished=unfinished, tiers=tiers, last=last)


def compare_logs(
    logs: Iterable[Log],
    *,
    unfinished: bool = False,
    tiers: bool = False,
    last: float | None = None,
) -> Comparison:
    """Group runs that differ only in the seed; see :func:`comparison`.

    Raises:
        RunError: If a run is unfinished, was never tested, or is listed twice.
    """
    if last is not None and not last > 0:
        raise RunError(
            "does not select any rounds",
            where="last",
            found=last,
            expected="a fraction of all rounds (below 1), or a number of rounds",
        )
    by_settings: dict[str, list[tuple[int, Log, dict[str, Json]]]] = {}
    for log in logs:
        settings = settings_of(log)
        if not unfinished:
            _check_finished(log, settings["rounds"])
        # Runs in which all remaining settings are equal form a group.
        seed = settings.pop("seed")
        key = json.dumps(settings, sort_keys=True)
        by_settings.setdefault(key, []).append((seed, log, settings))
    labels = _labels([(of[0][1], of[0][2]) for of in by_settings.values()])
    groups = tuple(_group(*row, last) for row in zip(labels, by_settings.values(), strict=True))
    # Measures are computed from one data frame of all groups, so groups are built first.
    compared = Comparison(groups, (), last)
    until, counted = _until(compared)
    logs = [log for group in groups for log in group.runs]
    there = set(counted.loc[counted["submodel"], "metric"])
    names = {n: better(logs, n) for n in ("accuracy", judge(logs)) if n in there}
    columns, mixed = of_tiers(counted, next(iter(names))) if tiers else ([], False)
    measures = (*tested(counted, names), *columns, *cost_measures(until))
    measured = tuple(replace(group, figures=_figures(group, measures, counted)) for group in groups)
    return replace(compared, groups=measured, measures=measures, mixed=mixed if columns else None)


def _until(compared: Comparison) -> tuple[DataFrame, DataFrame]:
    """Return the values up to each group's last common test, and those of the tests that count."""
    import pandas

    groups = compared.groups
    frames = [(of, rows_where(compared.frame, experiment=of.label)) for of in groups]
    until = pandas.concat([rows[rows["round"] <= of.at] for of, rows in frames])
    counted = pandas.concat([rows[rows["round"].isin(of.tests)] for of, rows in frames])
    return until, counted


def run_folders(paths: Iterable[str | os.PathLike[str]]) -> tuple[Path, ...]:
    """Return the run folders without repetition, in the order of the paths."""
    folders: dict[Path, Path] = {}
    for path in map(Path, paths):
        # A folder without runs raises an error when it is read.
        inside = [] if (path / "run.yaml").is_file() else sorted(path.rglob("run.yaml"))
        for folder in [file.parent for file in inside] or [path]:
            folders.setdefault(folder.resolve(), folder)
    if not folders:
        raise RunError("no runs to compare: name at least one run folder")
    return tuple(folders.values())


def settings_of(log: Log) -> dict[str, Json]:
    """Return all settings that affect the results of a run, including settings of its tests.

    Raises:
        RunError: If ``facts.json`` is missing or damaged.
    """
    if log.settings is not None:
        return dict(log.settings)
    path = log.folder / "facts.json"
    try:
        facts = json.loads(path.read_bytes())
        # Facts describe the training, but not the tests.
        return {**facts, "evaluate": _evaluate(log.config), "seed": int(facts["seed"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError("cannot identify the run", where=str(path), found=error) from error


def _evaluate(config: str) -> Json:
    from ruamel.yaml import YAML

    # Only these lines are parsed, because the family in the same file may be long.
    part = re.search(r"^evaluate:.*\n(?:[ \t].*\n)*", config, re.MULTILINE)
    return YAML(typ="safe", pure=True).load(part[0])["evaluate"] if part else {}


def _group(
    label: str, runs: Sequence[tuple[int, Log, dict[str, Json]]], last: float | None
) -> RunGroup:
    """Build a group of runs with equal settings and choose the tests that count, without values."""
    runs = sorted(runs, key=lambda run: run[0])
    for (seed, log, _), (other, twin, _) in itertools.pairwise(runs):
        if seed == other:
            # Counting a run twice would reduce the standard deviation.
            raise RunError(
                f"seed {seed} of the same experiment as {log.folder}", where=str(twin.folder)
            )
    tests = [set(rows_where(log.figures, part="test")["round"]) for _, log, _ in runs]
    common = sorted(set.intersection(*tests))
    if not common:
        raise RunError(
            "there is no round after which all of them were tested",
            where=", ".join(str(log.folder) for _, log, _ in runs),
        )
    settings = runs[0][2]
    many = 1 if last is None else last if last >= 1 else last * settings["rounds"]
    # 0.29 of 100 rounds are 29, not 28.999….
    counted = tuple(n for n in common if n > round(common[-1] - many, 9)) or tuple(common[-1:])
    seeds, logs, _ = zip(*runs, strict=True)
    return RunGroup(label, settings, logs, seeds, counted, figures={})


def _figures(group: RunGroup, measures: Iterable[Measure], counted: DataFrame) -> Figures:
    """Return the measures that every run of a group has.

    If only some runs have a measure, the other runs get its value for absence, if it has one.
    """
    runs = [(group.label, seed) for seed in group.seeds]

    def figure(measure: Measure) -> Figure | None:
        values = measure.values.reindex(runs)
        if values.notna().any() and measure.absent is not None:
            values = values.fillna(measure.absent)
        return Figure(tuple(map(float, values))) if values.notna().all() else None

    def find(name: str) -> Figure | None:
        measure = of_models(rows_where(counted, experiment=group.label), name)
        return None if measure is None else figure(measure)

    every = {measure.key: figure(measure) for measure in measures}
    return Figures({key: known for key, known in every.items() if known is not None}, find)


def _labels(experiments: Sequence[tuple[Log, Mapping[str, Json]]]) -> list[str]:
    """Return the experiments' names; repeated names are followed by the settings that differ."""
    labels = [log.name for log, _ in experiments]
    for name in _repeated(labels):
        alike = [i for i, label in enumerate(labels) if label == name]
        apart = list(_differences([experiments[i] for i in alike]).items())[:DETAILS]
        for number, i in enumerate(alike):
            details = (
                of[number] if key == "strategy" else f"{key.split('.')[-1]}={of[number]}"
                for key, of in apart
                if of[number] != NOTHING
            )
            labels[i] = f"{name} ({', '.join(details)})"
    # The first differences may not distinguish all runs, but folders always do.
    again = _repeated(labels)
    return [
        f"{label}: {log.folder}" if label in again else label
        for label, (log, _) in zip(labels, experiments, strict=True)
    ]


def _check_finished(log: Log, planned: int) -> None:
    """Raise an error if a run has rounds left and did not stop early."""
    if log.done < planned and not log.stopped:
        raise RunError(
            f"is not finished, {log.done} of {plural(planned, 'round')}: resume it, or include "
            "unfinished runs (--unfinished)",
            where=str(log.folder),
        )


def _repeated(labels: Sequence[str]) -> set[str]:
    return {label for label in labels if labels.count(label) > 1}


def _differences(many: Sequence[tuple[Log, Mapping[str, Json]]]) -> dict[str, tuple[str, ...]]:
    """Return a dict from each setting that differs (dotted key) to its text per experiment.

    1. Options of a strategy are compared only between experiments that use it.
    2. A setting counts if at least one run does not have it at its default.
    """
    flat = [dict(_flat(settings)) for _, settings in many]
    names = [_strategy(settings) for _, settings in many]
    different = {}
    for key in dict.fromkeys(itertools.chain(*flat)):
        rows = tuple(values.get(key, NOTHING) for values in flat)
        owner = key.split(".")[0]
        pairs = zip(rows, names, strict=True)
        compared = {text for text, name in pairs if name == owner or owner not in names}  # 1
        if len(compared) > 1:
            different[key] = rows
    changed = {key for log, _ in many if different for key in _changed(log, different)}
    return {key: rows for key, rows in different.items() if key in changed}  # 2


def _changed(log: Log, keys: Iterable[str]) -> Iterator[str]:
    """Yield the keys that differ from the defaults; all keys if the experiment is unreadable."""
    if log.experiment is None:
        yield from keys
        return
    fields = ExperimentSpec.model_fields
    changed = [setting.key for setting in differing(log.experiment)]
    for key in keys:
        field = fields.get(key.split(".")[0])  # options of a strategy have no defaults here
        outer = tuple(name for name in changed if f"{key}.".startswith(f"{name}."))
        if field is None or field.is_required() or outer:
            yield key


def _strategy(settings: Mapping[str, Json]) -> str:
    return str(next(iter(settings["strategy"])))


def _flat(settings: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Yield pairs of dotted key and text. Large values are replaced by a digest."""
    yield "strategy", _strategy(settings)
    for key, value in settings.items():
        if key in COMMON:
            continue
        if key == "family":
            kinds = ", ".join(f"{row['count']} {name}" for name, row in value.items())
            yield key, f"{kinds} [{_digest(value)}]"
        elif key in ("graph", "state", "examples", "code"):
            yield key, NOTHING if value is None else _digest(value)
        elif key == "strategy":
            for name, options in value.items():
                yield from _leaves(options, name)
        else:
            yield from _leaves(value, key)


def _leaves(value: Json, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}")
    else:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if len(text) > BRIEF and not isinstance(value, str):
            text = f"{textwrap.shorten(text, BRIEF, placeholder=' …')} [{_digest(value)}]"
        yield path, text


def _digest(value: Json) -> str:
    """Return the first eight characters of a value's digest. A string already is a digest."""
    return (value if isinstance(value, str) else digest(value))[:8]


def _spread(figure: Figure | None, show: Callable[[float], str]) -> str:
    """Format mean and standard deviation with the same number of decimals.

    >>> _spread(Figure((0.35, 0.3636)), "{:.4g}".format)
    '0.3568 ± 0.0096'
    """
    if figure is None or figure.std is None:
        return NOTHING if figure is None else show(figure.mean)
    mean, std = show(figure.mean), show(figure.std)
    decimals = [len(number[1]) for text in (mean, std) if (number := _DECIMALS.fullmatch(text))]
    return f"{mean} ± " + (f"{float(std):.{min(decimals)}f}" if len(decimals) == 2 else std)


def _rounds(group: RunGroup) -> str:
    return str(group.at) + (f" of {group.planned}" if group.at < group.planned else "")


def _matching(patterns: Sequence[str], names: Mapping[str, str], where: str) -> tuple[str, ...]:
    """Return the keys that match the patterns by key or name, in the order of the patterns."""
    chosen: list[str] = []
    for pattern in patterns:
        keys = [k for k, name in names.items() if fnmatchcase(k, pattern) or name == pattern]
        if not keys:
            raise RunError("there is none", where=where, **unknown(pattern, names))
        chosen += [key for key in keys if key not in chosen]
    return tuple(chosen)
