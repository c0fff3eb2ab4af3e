"""A run folder as its pictures need it: what was asked and what was measured."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archgraph.engine.lines import parsed
from archgraph.engine.progress import judge_of
from archgraph.errors import RunError
from archgraph.tables import Table

RoundLine = Mapping[str, Any]


@dataclass(frozen=True)
class Log:
    """What a run left behind.

    Attributes:
        folder: The run folder.
        config: The experiment as resolved, YAML.
        rounds: The lines of `metrics.jsonl`, one per round.
    """

    folder: Path
    config: str
    rounds: tuple[RoundLine, ...]

    @property
    def name(self) -> str:
        """What to call the run: its experiment's name, else its folder's."""
        named = re.search(r"^name: *['\"]?(.+?)['\"]? *$", self.config, re.MULTILINE)
        return named[1] if named else self.folder.resolve().name


def read_run(folder: str | os.PathLike[str]) -> Log:
    """Read a run folder, finished or not; a last line that a crash cut off is left out.

    Raises:
        RunError: If the folder is not a run folder, or a line is damaged.
    """
    place = Path(folder)
    try:
        config = (place / "run.yaml").read_text(encoding="utf-8", errors="replace")
        raw = (place / "metrics.jsonl").read_bytes()
    except OSError as error:
        raise RunError(
            "not a run folder",
            where=str(place),
            found=f"{error.strerror}: {Path(error.filename or place).name}",
            expected="run.yaml and metrics.jsonl",
        ) from error
    rounds = parsed(raw, place / "metrics.jsonl")
    return Log(place, config, tuple(rounds))


def judge(rounds: Sequence[RoundLine]) -> str:
    """The figure by which the run's models are judged."""
    return judge_of(next(filter(None, map(_evaluation, rounds)), {}))


def better(rounds: Sequence[RoundLine], figure: str) -> bool:
    """Whether more of a figure is better.

    >>> line = {"round": 1, "evaluation": {"better": {"mse": False, "r2": True}}}
    >>> better([line], "mse"), better([line], "r2")
    (False, True)
    """
    for line in rounds:
        told = _evaluation(line).get("better", {})
        if told.get(figure) is not None:
            return bool(told[figure])
    return figure not in ("perplexity", "loss")


def series(
    rounds: Sequence[RoundLine], *path: str, part: str = "evaluation"
) -> tuple[list[int], list[float]]:
    """Rounds and values of one figure of the evaluation (or validation), where it was measured.

    >>> line = {"round": 3, "evaluation": {"global": {"accuracy": 0.5}}}
    >>> series([line, {"round": 4}], "global", "accuracy")
    ([3], [0.5])
    """
    numbers, values = [], []
    for line in rounds:
        value: Any = line.get(part) or {}
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, int | float):
            numbers.append(int(line["round"]))
            values.append(float(value))
    return numbers, values


def models(rounds: Sequence[RoundLine]) -> tuple[str, ...]:
    """Names of the models that were tested, in the order of their first test."""
    names = (name for line in rounds for name in _evaluation(line).get("models", {}))
    return tuple(dict.fromkeys(names))


def submodels(line: RoundLine) -> list[Mapping[str, Any]]:
    """Figures of what the clients use; of the global model where there is nothing else."""
    named = _evaluation(line).get("models", {})
    return [row for name, row in named.items() if name != "global"] or list(named.values())


def seconds(rounds: Sequence[RoundLine]) -> dict[str, float]:
    """Seconds of all rounds together, by purpose; `other` is what is left of their total.

    >>> seconds([{"round": 1, "seconds": {"local": 3.0, "server": 1.0, "total": 5.0}}])
    {'local': 3.0, 'server': 1.0, 'other': 1.0}
    """
    sums: dict[str, float] = {}
    for line in rounds:
        for purpose, value in line.get("seconds", {}).items():
            sums[purpose] = sums.get(purpose, 0.0) + float(value)
    total = sums.pop("total", None)
    # Recording is measured after a round ends, so it is not part of the total.
    inside = sum(value for purpose, value in sums.items() if purpose != "record")
    if total is not None:
        sums["other"] = max(total - inside, 0.0)
    return sums


def tiers(log: Log) -> Table:
    """A row per model: its last test on all data and on its clients' own, and its best one."""
    figure = judge(log.rounds)
    best_of = max if better(log.rounds, figure) else min
    rows: list[tuple[str, ...]] = []
    strong: set[int] = set()
    last = next((line for line in reversed(log.rounds) if _evaluation(line)), {})
    worst = _evaluation(last).get("worst", {}).get("name")
    for name in models(log.rounds):
        numbers, values = series(log.rounds, "models", name, figure)
        _, own = series(log.rounds, "models", name, "local", figure)
        if not values:
            continue
        best = best_of(values)
        if name == "global":
            strong.add(len(rows))
        rows.append(
            (
                name,
                shown(figure, values[-1]),
                shown(figure, own[-1]) if own else "–",
                f"{shown(figure, best)} in round {numbers[values.index(best)]}",
                "worst" if name == worst and len(models(log.rounds)) > 1 else "",
            )
        )
    last_round = log.rounds[-1]["round"] if log.rounds else 0
    done = f"{last_round or 'no'} round{'s' * (last_round != 1)}"
    return Table(
        title=log.name,
        columns=("model", figure, "on own classes", "best", ""),
        rows=tuple(rows),
        right=frozenset({1, 2, 3}),
        strong=frozenset(strong),
        note=done + "".join(_incidents(log.rounds)),
    )


def shown(figure: str, value: float) -> str:
    """An accuracy in per cent, anything else as a number.

    >>> shown("accuracy", 0.5), shown("perplexity", 205.5)
    ('50.00 %', '205.5')
    """
    return f"{100 * value:.2f} %" if figure == "accuracy" else f"{value:.4g}"


def _incidents(rounds: Sequence[RoundLine]) -> Iterator[str]:
    for key, word in (("rejected", "update"), ("failed", "client")):
        many = sum(len(line.get(key) or ()) for line in rounds)
        if many:
            yield f", {many} {word}{'s' * (many != 1)} {key}"


def _evaluation(line: RoundLine) -> Mapping[str, Any]:
    return line.get("evaluation") or {}
