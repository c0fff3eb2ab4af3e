"""Several runs side by side: seeds of one experiment as one row, and what the rows differ in."""

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

# Facts that do not tell experiments apart: the version of the language, and the seed.
COMMON = frozenset({"archgraph", "seed"})
# Signs of a value in the table of differences.
BRIEF = 48
# Settings in a label.
DETAILS = 2
_DECIMALS = re.compile(r"-?\d+\.(\d+)")
# Columns whose titles are abbreviations.
LEGENDS = {
    "mace": "MACE: multiply–accumulates of an epoch, mean over the clients (largest of the rounds)",
    "epochs": "T·E: rounds × local epochs",
    "tmac": "TMAC: MACE × T·E",
}


@dataclass(frozen=True)
class Figure:
    """One figure of runs that differ in the seed only.

    Attributes:
        values: One per run.
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the runs."""
        return statistics.fmean(self.values)

    @property
    def std(self) -> float | None:
        """Standard deviation of the sample (n - 1). None for a single run."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True, eq=False)
class Figures(Mapping[str, Figure]):
    """Figures of a group of runs, by the key of the measure.

    Attributes:
        listed: Those of the columns, which iterating yields.
        find: Computes one that names its models (:func:`archgraph.reports.measures.of_models`):
            there are as many of them as patterns, so none is a column.
    """

    listed: Mapping[str, Figure]
    find: Callable[[str], Figure | None]

    def __getitem__(self, key: str) -> Figure:
        """Return a listed figure, or the one that the key describes."""
        figure = self.listed[key] if key in self.listed else self.find(key)
        if figure is None:
            raise KeyError(key)
        return figure

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys of the listed figures."""
        return iter(self.listed)

    def __len__(self) -> int:
        """Return the number of listed figures."""
        return len(self.listed)


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ in the seed only.

    Attributes:
        label: Unlike that of any other group of the comparison.
        settings: What decides the figures, as plain values, without the seed.
        runs: In the order of their seeds.
        seeds: Of the runs.
        tests: The rounds after which tests count.
        figures: By the key of the measure; what not every run measured is missing. Measures that
            name their models, such as ``clients.*.accuracy``, are computed when asked for.
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
        """The last round after which all of them were tested."""
        return self.tests[-1]

    @property
    def planned(self) -> int:
        """Rounds that were asked for."""
        return int(self.settings["rounds"])


@dataclass(frozen=True)
class Comparison:
    """Groups of runs, in the order in which they were named.

    Attributes:
        groups: The rows.
        measures: The columns, as far as a row has them.
        last: Of which part of the rounds tests are averaged; None: the last test counts alone.
        mixed: Whether tiers were tested on each client's own mixture of classes; else on test
            examples of its classes; None: tiers are not columns.
        chosen: Keys of the columns after the first, in this order; empty: all.
    """

    groups: tuple[RunGroup, ...]
    measures: tuple[Measure, ...]
    last: float | None = None
    mixed: bool | None = None
    chosen: tuple[str, ...] = ()

    @functools.cached_property
    def frame(self) -> DataFrame:
        """Frame of all figures of all runs, the runs by experiment and seed."""
        groups = {group.label: group.runs for group in self.groups}
        return together(groups, {group.label: group.seeds for group in self.groups})

    @property
    def differences(self) -> dict[str, tuple[str, ...]]:
        """Settings in which the groups differ: a text for each group.

        Left out is what every group has at its default, or does not have: it follows from another
        setting, such as the options of a scheme that only one of them uses.
        """
        return _differences([(group.runs[0], group.settings) for group in self.groups])

    def tables(self) -> tuple[Table, ...]:
        """Return a table with a row per group, and unless columns are chosen, the differences."""
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
        """Return some rows and columns of the comparison.

        Args:
            rows: Names of experiments or patterns; empty: all.
            columns: Keys or titles of columns or patterns, in their order; empty: all.

        Raises:
            RunError: If there is no row or column of such a name.
        """
        labels = {group.label: group.label for group in self.groups}
        chosen = _matching(rows, labels, "rows") or labels
        groups = tuple(group for group in self.groups if group.label in chosen)
        titles = {key: title for key, (title, _) in self._columns().items()}
        return replace(self, groups=groups, chosen=_matching(columns, titles, "columns"))

    def _columns(self) -> dict[str, tuple[str, list[str]]]:
        """Return the columns after the names by their keys: title, and a text for each group."""
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
        """Return the comparison as values that JSON can write."""
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
        """Return a line per group: mean and standard deviation of every figure."""
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
        """Return what at least one group measured."""
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
    """Read runs and put those that differ only in the seed together.

    Args:
        paths: Run folders, or folders that hold some.
        unfinished: Take runs that are not done, too, as far as they are.
        tiers: Measure every tier that has clients, too: the mean over them of the accuracy on test
            data of each client's own mixture of classes (``matched``). Where a run does not have
            it, of all runs that on test examples of each client's own classes.
        last: Average over the tests of the last rounds instead of taking the last one: a fraction
            (< 1) of all rounds, or a number (≥ 1) of rounds. RecipFL, Table 3: 0.2.

    Raises:
        RunError: If there are no runs, or a run is unfinished, untested or named twice.
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
    """Put runs together that differ only in the seed; see :func:`comparison`.

    Raises:
        RunError: If a run is unfinished, untested or named twice.
    """
    if last is not None and not last > 0:
        raise RunError(
            "no part of the rounds",
            where="last",
            found=last,
            expected="a fraction of all rounds (below 1), or a number of rounds",
        )
    by_settings: dict[str, list[tuple[int, Log, dict[str, Json]]]] = {}
    for log in logs:
        settings = settings_of(log)
        if not unfinished:
            _check_finished(log, settings["rounds"])
        # What is left decides all figures but for chance: equal settings are seeds of one group.
        seed = settings.pop("seed")
        key = json.dumps(settings, sort_keys=True)
        by_settings.setdefault(key, []).append((seed, log, settings))
    labels = _labels([(of[0][1], of[0][2]) for of in by_settings.values()])
    groups = tuple(_group(*row, last) for row in zip(labels, by_settings.values(), strict=True))
    # Measures are columns of one frame of all groups, so it comes before they are known.
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
    """Return the figures until each group's last common test, and those of the tests that count."""
    import pandas

    groups = compared.groups
    frames = [(of, rows_where(compared.frame, experiment=of.label)) for of in groups]
    until = pandas.concat([rows[rows["round"] <= of.at] for of, rows in frames])
    counted = pandas.concat([rows[rows["round"].isin(of.tests)] for of, rows in frames])
    return until, counted


def run_folders(paths: Iterable[str | os.PathLike[str]]) -> tuple[Path, ...]:
    """Return run folders, each once, in the order in which they were named."""
    folders: dict[Path, Path] = {}
    for path in map(Path, paths):
        # A folder that holds none is left for reading to refuse.
        inside = [] if (path / "run.yaml").is_file() else sorted(path.rglob("run.yaml"))
        for folder in [file.parent for file in inside] or [path]:
            folders.setdefault(folder.resolve(), folder)
    if not folders:
        raise RunError("no runs to compare: name at least one run folder")
    return tuple(folders.values())


def settings_of(log: Log) -> dict[str, Json]:
    """Return all that decides the figures of a run: its facts, and how it was tested.

    Raises:
        RunError: If the run folder does not say it.
    """
    if log.settings is not None:
        return dict(log.settings)
    path = log.folder / "facts.json"
    try:
        facts = json.loads(path.read_bytes())
        # Facts tell how a run came about, not how it was tested.
        return {**facts, "evaluate": _evaluate(log.config), "seed": int(facts["seed"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError("cannot tell what this run is", where=str(path), found=error) from error


def _evaluate(config: str) -> Json:
    from ruamel.yaml import YAML

    # Of the whole file only these lines: a family may be long.
    part = re.search(r"^evaluate:.*\n(?:[ \t].*\n)*", config, re.MULTILINE)
    return YAML(typ="safe", pure=True).load(part[0])["evaluate"] if part else {}


def _group(
    label: str, runs: Sequence[tuple[int, Log, dict[str, Json]]], last: float | None
) -> RunGroup:
    """Group runs of equal settings and choose which of their tests count, without figures."""
    runs = sorted(runs, key=lambda run: run[0])
    for (seed, log, _), (other, twin, _) in itertools.pairwise(runs):
        if seed == other:
            # Twice the same value would shrink the deviation.
            raise RunError(
                f"seed {seed} of the same experiment as {log.folder}", where=str(twin.folder)
            )
    tests = [set(rows_where(log.figures, part="test")["round"]) for _, log, _ in runs]
    common = sorted(set.intersection(*tests))
    if not common:
        raise RunError(
            "no round after which all of them were tested",
            where=", ".join(str(log.folder) for _, log, _ in runs),
        )
    settings = runs[0][2]
    many = 1 if last is None else last if last >= 1 else last * settings["rounds"]
    # 0.29 of 100 rounds are 29, not 28.999….
    counted = tuple(n for n in common if n > round(common[-1] - many, 9)) or tuple(common[-1:])
    seeds, logs, _ = zip(*runs, strict=True)
    return RunGroup(label, settings, logs, seeds, counted, figures={})


def _figures(group: RunGroup, measures: Iterable[Measure], counted: DataFrame) -> Figures:
    """Return what every run of a group measured.

    Where only some did, the others get the value that stands for none.
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
    """Return the experiments' names; where several share one, with what sets them apart."""
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
    # The first few differences may leave two alike; folders never are.
    again = _repeated(labels)
    return [
        f"{label}: {log.folder}" if label in again else label
        for label, (log, _) in zip(labels, experiments, strict=True)
    ]


def _check_finished(log: Log, planned: int) -> None:
    """Raise if a run lacks rounds that it has neither done nor left out on purpose."""
    if log.done < planned and not log.stopped:
        raise RunError(
            f"is not finished, {log.done} of {plural(planned, 'round')}: resume it, or take it "
            "as it is (--unfinished)",
            where=str(log.folder),
        )


def _repeated(labels: Sequence[str]) -> set[str]:
    return {label for label in labels if labels.count(label) > 1}


def _differences(many: Sequence[tuple[Log, Mapping[str, Json]]]) -> dict[str, tuple[str, ...]]:
    """Return where plain values differ: a text for each, by the path of its keys.

    1. Options of a strategy are compared where it is used: those of another mean something else.
    2. Of the settings that differ, those count that some run does not have at its default.
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
    """Yield the settings that a run does not have at their defaults; all if it cannot be read."""
    if log.experiment is None:
        yield from keys
        return
    fields = ExperimentSpec.model_fields
    changed = [setting.key for setting in differing(log.experiment)]
    for key in keys:
        field = fields.get(key.split(".")[0])  # options of a strategy have none
        outer = tuple(name for name in changed if f"{key}.".startswith(f"{name}."))
        if field is None or field.is_required() or outer:
            yield key


def _strategy(settings: Mapping[str, Json]) -> str:
    return str(next(iter(settings["strategy"])))


def _flat(settings: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Yield settings as texts by path; a setting identified by its content is one short text."""
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
    """Return eight signs that tell contents apart; a text is a digest already."""
    return (value if isinstance(value, str) else digest(value))[:8]


def _spread(figure: Figure | None, show: Callable[[float], str]) -> str:
    """Return mean and deviation, with as many decimals as the mean.

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
    """Return the keys that match, or whose names do, in the order of the patterns."""
    chosen: list[str] = []
    for pattern in patterns:
        keys = [k for k, name in names.items() if fnmatchcase(k, pattern) or name == pattern]
        if not keys:
            raise RunError("there is none", where=where, **unknown(pattern, names))
        chosen += [key for key in keys if key not in chosen]
    return tuple(chosen)
