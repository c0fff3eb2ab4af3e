"""Several runs side by side: seeds of one experiment as one row, and what the rows differ in."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archgraph.errors import RunError
from archgraph.view.inspect import Table
from archgraph.view.runs import Line, Log, read_run, seconds, submodels

GLOBAL = "global"
# What stands in no file of facts, or decides no figure.
UNTOLD = frozenset({"archgraph", "seed"})
# Signs of a value in the table of differences.
BRIEF = 48
# Settings in a label.
TOLD = 2
NOTHING = "–"


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
        """Standard deviation of the sample (n - 1); None: one run has none."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Measure:
    """How a figure is called, read and shown.

    Attributes:
        key: In JSON and CSV.
        title: In tables.
        read: From the rounds until the last common test, and that test; None: not measured.
        show: A value as text.
        absent: What a run counts that did not measure it, where another did; None: then nobody has
            the figure.
    """

    key: str
    title: str
    read: Callable[[Sequence[Line], Mapping[str, Any]], float | None]
    show: Callable[[float], str]
    absent: float | None = None


@dataclass(frozen=True)
class Group:
    """Runs that differ in the seed only.

    Attributes:
        label: Unlike that of any other group of the comparison.
        strategy: Name of the strategy.
        settings: What decides the figures, as plain values, without the seed.
        runs: In the order of their seeds.
        seeds: Of the runs.
        at: The last round after which all of them were tested.
        planned: Rounds that were asked for.
        figures: By the key of the measure; what not every run measured is missing.
    """

    label: str
    strategy: str
    settings: Mapping[str, Any]
    runs: tuple[Log, ...]
    seeds: tuple[int, ...]
    at: int
    planned: int
    figures: Mapping[str, Figure]


@dataclass(frozen=True)
class Comparison:
    """Groups of runs, in the order in which they were named."""

    groups: tuple[Group, ...]

    @property
    def differences(self) -> dict[str, tuple[str, ...]]:
        """Settings that are not the same in all groups: a text for each group."""
        return _differences([group.settings for group in self.groups])

    def tables(self) -> tuple[Table, ...]:
        """A row per group; below, what the groups differ in."""
        measures = self._measures()
        rows = tuple(
            (
                group.label,
                group.strategy,
                str(len(group.seeds)),
                str(group.at) if group.at == group.planned else f"{group.at} of {group.planned}",
                *(_spread(group.figures.get(m.key), m.show) for m in measures),
            )
            for group in self.groups
        )
        heads = ("experiment", "strategy", "seeds", "rounds")
        titles = (*heads, *(m.title for m in measures))
        first = Table(
            title="Runs",
            columns=titles,
            rows=rows,
            right=frozenset(range(2, len(titles))),
            note="mean ± standard deviation over the seeds, last test",
        )
        labels = tuple(group.label for group in self.groups)
        found = tuple((key, *texts) for key, texts in self.differences.items())
        second = Table("What they differ in", ("setting", *labels), found)
        return (first, second) if found else (first,)

    def plain(self) -> dict[str, Any]:
        """The comparison as values that JSON can write."""
        return {
            "groups": [
                {
                    "label": group.label,
                    "strategy": group.strategy,
                    "runs": [str(log.folder) for log in group.runs],
                    "seeds": list(group.seeds),
                    "round": group.at,
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
        """A line per group: mean and standard deviation of every figure."""
        keys = [m.key for m in self._measures()]
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        heads = [name for key in keys for name in (key, f"{key}_std")]
        writer.writerow(["experiment", "strategy", "seeds", "round", *heads])
        for group in self.groups:
            cells: list[float | None] = []
            for key in keys:
                figure = group.figures.get(key)
                cells += [figure.mean, figure.std] if figure else [None, None]
            writer.writerow([group.label, group.strategy, len(group.seeds), group.at, *cells])
        return stream.getvalue()

    def markdown(self) -> str:
        """The tables as Markdown."""
        return "\n\n".join(_markdown(table) for table in self.tables()) + "\n"

    def _measures(self) -> tuple[Measure, ...]:
        """What at least one group measured."""
        return tuple(m for m in MEASURES if any(m.key in g.figures for g in self.groups))


def comparison(places: Iterable[str | os.PathLike[str]], *, unfinished: bool = False) -> Comparison:
    """Read runs and put those that differ only in the seed together.

    Args:
        places: Run folders, or folders that hold some.
        unfinished: Take runs that are not done, too, as far as they are.

    Raises:
        RunError: If there is no run, one is not done or was never tested, or one is there twice.
    """
    found: dict[str, list[tuple[int, Log, dict[str, Any]]]] = {}
    for folder in _folders(places):
        log = read_run(folder)
        settings = _settings(log)
        done, planned = (log.rounds[-1]["round"] if log.rounds else 0), settings["rounds"]
        if done < planned and not unfinished:
            raise RunError(
                "the run is not finished",
                where=str(folder),
                found=f"{done} of {planned} rounds",
                hint="go on with it, or take it as it is (--unfinished)",
            )
        seed = settings.pop("seed")
        key = json.dumps(settings, sort_keys=True)
        found.setdefault(key, []).append((seed, log, settings))
    labels = _labels([(of[0][1], of[0][2]) for of in found.values()])
    return Comparison(
        tuple(_group(label, runs) for label, runs in zip(labels, found.values(), strict=True))
    )


def _folders(places: Iterable[str | os.PathLike[str]]) -> tuple[Path, ...]:
    """Run folders, each once, in the order in which they were named."""
    folders: dict[Path, Path] = {}
    for place in map(Path, places):
        # A folder that holds none is left for reading to refuse.
        inside = [] if (place / "run.yaml").is_file() else sorted(place.rglob("run.yaml"))
        for folder in [path.parent for path in inside] or [place]:
            folders.setdefault(folder.resolve(), folder)
    if not folders:
        raise RunError("no runs to compare", expected="at least one run folder")
    return tuple(folders.values())


def _settings(log: Log) -> dict[str, Any]:
    """All that decides the figures of a run: its facts, and how it was tested."""
    path = log.folder / "facts.json"
    try:
        facts = json.loads(path.read_bytes())
        # Facts tell how a run came about, not how it was tested.
        return {**facts, "evaluate": _evaluate(log.config), "seed": int(facts["seed"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError("cannot tell what this run is", where=str(path), found=error) from error


def _evaluate(config: str) -> Any:
    from ruamel.yaml import YAML

    # Of the whole file only these lines: a family may be long.
    part = re.search(r"^evaluate:.*\n(?:[ \t].*\n)*", config, re.MULTILINE)
    return YAML(typ="safe", pure=True).load(part[0])["evaluate"] if part else {}


def _group(label: str, runs: Sequence[tuple[int, Log, dict[str, Any]]]) -> Group:
    runs = sorted(runs, key=lambda run: run[0])
    for (seed, log, _), (other, twin, _) in itertools.pairwise(runs):
        if seed == other:
            raise RunError(
                "the same run twice",
                where=str(twin.folder),
                found=f"seed {seed} of the same experiment, as in {log.folder}",
                expected="another seed",
            )
    tested = [{line["round"]: line["evaluation"] for line in _tested(log)} for _, log, _ in runs]
    common = set.intersection(*map(set, tested))
    if not common:
        folders = ", ".join(str(log.folder) for _, log, _ in runs)
        raise RunError("no round after which all of them were tested", where=folders)
    at = max(common)
    figures = {}
    for measure in MEASURES:
        values = [
            measure.read([line for line in log.rounds if line["round"] <= at], tests[at])
            for (_, log, _), tests in zip(runs, tested, strict=True)
        ]
        if any(value is not None for value in values):
            values = [measure.absent if value is None else value for value in values]
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            figures[measure.key] = Figure(tuple(known))
    settings = runs[0][2]
    return Group(
        label=label,
        strategy=_strategy(settings),
        settings=settings,
        runs=tuple(log for _, log, _ in runs),
        seeds=tuple(seed for seed, _, _ in runs),
        at=at,
        planned=settings["rounds"],
        figures=figures,
    )


def _tested(log: Log) -> Iterator[Line]:
    return (line for line in log.rounds if (line.get("evaluation") or {}).get("models"))


def _labels(named: Sequence[tuple[Log, Mapping[str, Any]]]) -> list[str]:
    """The experiments' names; where several bear one, with what sets them apart."""
    labels = [log.name for log, _ in named]
    for name in _repeated(labels):
        alike = [i for i, label in enumerate(labels) if label == name]
        apart = list(_differences([named[i][1] for i in alike]).items())[:TOLD]
        for place, i in enumerate(alike):
            told = (
                of[place] if key == "strategy" else f"{key.split('.')[-1]}={of[place]}"
                for key, of in apart
                if of[place] != NOTHING
            )
            labels[i] = f"{name} ({', '.join(told)})"
    again = _repeated(labels)
    return [
        f"{label}: {log.folder}" if label in again else label
        for label, (log, _) in zip(labels, named, strict=True)
    ]


def _repeated(labels: Sequence[str]) -> set[str]:
    return {label for label in labels if labels.count(label) > 1}


def _differences(many: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Where plain values differ: a text for each, by the path of its keys.

    Options of a strategy are compared where it is used: those of another mean something else.
    """
    flat = [dict(_flat(value)) for value in many]
    names = [_strategy(value) for value in many]
    found = {}
    for key in dict.fromkeys(key for values in flat for key in values):
        rows = tuple(values.get(key, NOTHING) for values in flat)
        owner = key.split(".")[0]
        pairs = zip(rows, names, strict=True)
        compared = {text for text, name in pairs if name == owner or owner not in names}
        if len(compared) > 1:
            found[key] = rows
    return found


def _strategy(settings: Mapping[str, Any]) -> str:
    return str(next(iter(settings["strategy"])))


def _flat(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Settings as texts by path; what is told by content is one short text."""
    yield "strategy", _strategy(settings)
    for key, value in settings.items():
        if key in UNTOLD:
            continue
        if key == "family":
            kinds = ", ".join(f"{row['count']} {name}" for name, row in value.items())
            yield key, f"{kinds} [{_digest(value)}]"
        elif key in ("graph", "state", "examples"):
            yield key, NOTHING if value is None else _digest(value)
        elif key == "strategy":
            for name, options in value.items():
                yield from _leaves(options, name)
        else:
            yield from _leaves(value, key)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}")
    else:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield path, text if len(text) <= BRIEF else text[: BRIEF - 1] + "…"


def _digest(value: Any) -> str:
    """Eight signs that tell contents apart."""
    import hashlib

    if isinstance(value, str):
        return value[:8]
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


# ------------------------------------------------------------------------------- figures


def _of_submodels(
    key: str, reduce: Callable[[Iterable[float]], float]
) -> Callable[[Sequence[Line], Mapping[str, Any]], float | None]:
    def read(_: Sequence[Line], test: Mapping[str, Any]) -> float | None:
        values = [row.get(key) for row in submodels({"evaluation": test})]
        return reduce(v for v in values if v is not None) if None not in values else None

    return read


def _global(key: str) -> Callable[[Sequence[Line], Mapping[str, Any]], float | None]:
    return lambda _, test: test["models"].get(GLOBAL, {}).get(key)


def _local(_: Sequence[Line], test: Mapping[str, Any]) -> float | None:
    return (test.get("local") or {}).get("accuracy")


def _best_local(_: Sequence[Line], test: Mapping[str, Any]) -> float | None:
    own = [(row.get("local") or {}).get("accuracy") for row in submodels({"evaluation": test})]
    return max((value for value in own if value is not None), default=None)


def _spent(*purposes: str) -> Callable[[Sequence[Line], Mapping[str, Any]], float | None]:
    def read(rounds: Sequence[Line], _: Mapping[str, Any]) -> float | None:
        parts = seconds(rounds)
        return sum(parts.get(p, 0.0) for p in purposes or parts) if parts else None

    return read


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


def _seconds(value: float) -> str:
    return f"{value:.2f}"


def _number(value: float) -> str:
    return f"{value:.4g}"


def _lost(rounds: Sequence[Line], evaluation: Mapping[str, Any]) -> float | None:
    """Clients whose update was refused or never came; None: nobody's."""
    many = sum(len(line.get(key) or ()) for line in rounds for key in ("rejected", "failed"))
    return float(many) or None


MEASURES: tuple[Measure, ...] = (
    Measure("worst_accuracy", "worst %", _of_submodels("accuracy", min), _percent),
    Measure("average_accuracy", "average %", _of_submodels("accuracy", statistics.fmean), _percent),
    Measure("global_accuracy", "global %", _global("accuracy"), _percent),
    Measure("worst_perplexity", "worst perplexity", _of_submodels("perplexity", max), _number),
    Measure(
        "average_perplexity",
        "average perplexity",
        _of_submodels("perplexity", statistics.fmean),
        _number,
    ),
    Measure("global_perplexity", "global perplexity", _global("perplexity"), _number),
    Measure("local_accuracy", "local %", _local, _percent),
    Measure("best_local_accuracy", "best local %", _best_local, _percent),
    Measure("seconds", "seconds", _spent(), _seconds),
    Measure("server_seconds", "server s", _spent("server"), _seconds),
    Measure("lost", "lost updates", _lost, _number, absent=0.0),
)


def _spread(figure: Figure | None, show: Callable[[float], str]) -> str:
    if figure is None:
        return NOTHING
    std = figure.std
    return show(figure.mean) if std is None else f"{show(figure.mean)} ± {show(std)}"


def _markdown(table: Table) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    marks = ("---:" if i in table.right else "---" for i in range(len(table.columns)))
    note = f"\n\n{table.note}" if table.note else ""
    return "\n".join([line(table.columns), line(marks), *map(line, table.rows)]) + note
