"""A run folder as its pictures need it: what was asked and what was measured."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archgraph.analysis.cost import Cost, cost
from archgraph.data.validation import Selection
from archgraph.engine.clients import ClientFacts, read_clients
from archgraph.errors import ArchGraphError, RunError
from archgraph.fields import GLOBAL
from archgraph.record.lines import parsed
from archgraph.record.progress import judge_of

if TYPE_CHECKING:
    from archgraph.graph.ir import ArchGraph
    from archgraph.language import ExperimentSpec

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

    @functools.cached_property
    def experiment(self) -> ExperimentSpec | None:
        """The experiment as resolved; None: it is damaged, or of another version."""
        from archgraph.language.experiment import ExperimentSpec
        from archgraph.language.yaml import read_document

        try:
            return read_document(self.folder / "run.yaml").validate(ExperimentSpec)
        except ArchGraphError:
            return None

    @functools.cached_property
    def clients(self) -> tuple[ClientFacts, ...]:
        """Who takes part; none where the folder is from before that was recorded."""
        return read_clients(self.folder)

    @functools.cached_property
    def graphs(self) -> Mapping[str, ArchGraph | str]:
        """The models, the global one first; for a damaged file, its error message."""
        from archgraph.language import load

        paths = sorted(self.folder.glob("models/*.yaml"), key=lambda p: (p.stem != GLOBAL, p.stem))
        found: dict[str, ArchGraph | str] = {}
        for path in paths:
            try:
                found[path.stem] = load(path)
            except ArchGraphError as error:
                found[path.stem] = str(error)
        return found

    def cost(self, name: str) -> Cost | None:
        """Cost of one of the models; None: its file is missing or damaged."""
        graph = self.graphs.get(name)
        return None if graph is None or isinstance(graph, str) else cost(graph)

    @property
    def best(self) -> int | None:
        """The best round on validation examples; None: there are none. Test data selects none."""
        spec = self.experiment.validation if self.experiment else None
        if spec is None:
            return None
        figure = spec.metric or judge(self.rounds)
        try:
            return Selection(spec, figure, better(self.rounds, figure)).best(self.rounds)
        except RunError:
            return None

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
    return judge_of(next(filter(None, map(evaluation, rounds)), {}))


def better(rounds: Sequence[RoundLine], figure: str) -> bool:
    """Whether more of a figure is better.

    >>> line = {"round": 1, "evaluation": {"better": {"mse": False, "r2": True}}}
    >>> better([line], "mse"), better([line], "r2")
    (False, True)
    """
    for line in rounds:
        told = evaluation(line).get("better", {})
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
    names = (name for line in rounds for name in evaluation(line).get("models", {}))
    return tuple(dict.fromkeys(names))


def submodels(line: RoundLine) -> list[Mapping[str, Any]]:
    """Figures of what the clients use; of the global model where there is nothing else."""
    named = evaluation(line).get("models", {})
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


def evaluation(line: RoundLine) -> Mapping[str, Any]:
    """The test of a round; empty where there was none."""
    return line.get("evaluation") or {}
