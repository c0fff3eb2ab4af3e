"""Summaries of a run: a table of the tiers, and a list of problems."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from archgraph.analysis.cost import cost
from archgraph.federation import GLOBAL, World
from archgraph.hints import listed
from archgraph.plain import Json
from archgraph.tables import Table, count, per_cent, significant


def table(world: World, evaluation: Mapping[str, Json], title: str = "") -> Table:
    """Return a table of the tiers: size, clients, and metrics on all and on local test data."""
    models: Mapping[str, Mapping[str, Json]] = evaluation.get("models", {})
    judge = judge_of(evaluation)
    graphs = {GLOBAL: world.graph, **{tier.name: tier.graph for tier in world.tiers}}
    rows = []
    for name, figures in models.items():
        size = cost(graphs[name]) if name in graphs else None
        members = sum(client.name == name for client in world.participants)
        rows.append(
            (
                name,
                str(len(world.participants) if name == GLOBAL else members or "-"),
                "-" if size is None else count(size.parameters),
                "-" if size is None else count(size.macs),
                measured(judge, figures.get(judge)),
                measured(judge, (figures.get("local") or {}).get(judge)),
            )
        )
    worst = evaluation.get("worst", {}).get("name")
    return Table(
        title,
        ("model", "clients", "parameters", "MACs", judge, "local"),
        tuple(rows),
        right=frozenset(range(1, 6)),
        strong=frozenset(i for i, row in enumerate(rows) if row[0] == GLOBAL),
        note=f"worst: {worst}" if worst is not None and len(rows) > 1 else "",
    )


# Maximum number of clients or metrics that a line about problems names.
NAMED = 4


def troubles(lines: Iterable[Mapping[str, Json]]) -> Iterator[str]:
    """Describe the problems of a run, one line per kind of problem.

    Args:
        lines: Lines of ``metrics.jsonl``, in which None stands for a number that was not finite.

    Example:
        >>> who = {"client": 1, "name": "small", "reason": "loss is not finite"}
        >>> list(troubles([{"round": n, "rejected": [who]} for n in (1, 2, 3, 5)]))
        ['updates rejected: client 1, small (rounds 1–3, 5); the first: loss is not finite']
    """
    kinds: dict[str, dict[str, list[int]]] = {}
    first: dict[str, str] = {}
    for line in lines:
        number = line.get("round", 0)
        tested = line.get("evaluation", {})
        for kind, lost in (
            ("updates rejected", line.get("rejected", ())),
            ("clients failed", line.get("failed", ())),
            ("tested without fine-tuning", tested.get("untuned", ())),
        ):
            for who in lost:
                name = f"client {who['client']}, {who['name']}"
                kinds.setdefault(kind, {}).setdefault(name, []).append(number)
                first.setdefault(kind, f"; the first: {who['reason']}")
        for figure in _not_finite(line):
            kinds.setdefault("not finite", {}).setdefault(figure, []).append(number)
        # A Poisson sample may be empty, which is not a problem.
        if "clients" in line and idle(line):
            read = line.get("rejected") or line.get("failed")
            why = "all were rejected or failed" if read else "the strategy did not read the results"
            kinds.setdefault("no update was accepted", {}).setdefault(why, []).append(number)
    for kind, names in kinds.items():
        rounds = (f"{name} ({_rounds(numbers)})" for name, numbers in names.items())
        yield f"{kind}: {listed(rounds, NAMED)}{first.get(kind, '')}"


def _not_finite(line: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the metrics that are not finite, with their model or client."""
    rows = [(f"client {row['client']}, {row['name']}", row) for row in line.get("clients", ())]
    rows += line.get("evaluation", {}).get("models", {}).items()
    for name, row in rows:
        local = {f"local {k}": v for k, v in (row.get("local") or {}).items()}
        yield from (f"{k} of {name}" for k, v in {**row, **local}.items() if v is None)


def idle(line: Mapping[str, Json]) -> bool:
    """Return whether clients were sampled in a round, but no update was accepted."""
    return not line["clients"] and line.get("privacy", {}).get("sampled") != 0


def _rounds(numbers: Iterable[int]) -> str:
    """Format numbers of rounds as text, with ranges for consecutive rounds.

    >>> _rounds([1, 2, 3, 5])
    'rounds 1–3, 5'
    """
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return f"round{'s' * (len(set(numbers)) > 1)} {', '.join(texts)}"


def judge_of(evaluation: Mapping[str, Json]) -> str:
    """Return the metric that compares models: the first metric of the task."""
    return next(iter(evaluation.get("better") or ()), "accuracy")


def measured(name: str, value: float | None) -> str:
    """Format a metric for a table: an accuracy in per cent, another metric as a number.

    >>> measured("accuracy", 0.5), measured("mse", 0.5), measured("r2", None)
    ('50.00 %', '0.5', '-')
    """
    if value is None:
        return "-"
    return per_cent(value) if name == "accuracy" else significant(value)
