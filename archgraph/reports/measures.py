"""The columns of a comparison: how a figure of several runs is called, read and shown."""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from archgraph.fields import GLOBAL
from archgraph.record.traffic import DOWN, UP, traffic
from archgraph.reports.runs import RoundLine, better, judge, seconds, submodels
from archgraph.tables import count

Test = Mapping[str, Any]  # the evaluation of a round
ReadFigure = Callable[[Sequence[RoundLine], Sequence[Test]], float | None]

# Shares, which tables show in per cent.
SHARES = ("accuracy", "matched")


@dataclass(frozen=True)
class Measure:
    """How a figure is called, read and shown.

    Attributes:
        key: In JSON and CSV.
        title: In tables.
        read: From the rounds until the last common test, and the tests that count; None: not
            measured.
        show: A value as text.
        absent: Value of a run that did not measure it where others did; None: then no run has
            the figure.
    """

    key: str
    title: str
    read: ReadFigure
    show: Callable[[float], str]
    absent: float | None = None


def figures_of(tests: Sequence[Test]) -> dict[str, bool]:
    """The figures by which runs are compared, and whether more is better.

    >>> figures_of([{"better": {"mse": False, "r2": True}, "models": {"all": {"mse": 1.0}}}])
    {'mse': False}
    """
    found: dict[str, bool] = {}
    for test in tests:
        line = {"evaluation": test}
        named = (judge([line]), "accuracy")
        models = submodels(line)
        found |= {n: better([line], n) for n in named if any(n in row for row in models)}
    return dict(sorted(found.items(), key=lambda item: item[0] != "accuracy"))


def tested(figures: Mapping[str, bool]) -> tuple[Measure, ...]:
    """Columns of figures: of the worst tier, of all on average, of the global model, of clients.

    The first three on test data, and on validation examples where a run has some.
    """
    of_all = [measure for name, more in figures.items() for measure in _of_all(name, more)]
    of_clients = [measure for name, more in figures.items() for measure in _of_clients(name, more)]
    return (*of_all, *of_clients, *map(_on_validation, of_all))


def _of_all(name: str, more: bool) -> tuple[Measure, ...]:
    reads = {
        "worst": _of_submodels(name, min if more else max),
        "average": _of_submodels(name, statistics.fmean),
        "global": _averaged(lambda test: test["models"].get(GLOBAL, {}).get(name)),
    }
    return tuple(_column(f"{of}_{name}", of, name, read) for of, read in reads.items())


def _on_validation(measure: Measure) -> Measure:
    """The same figure on validation examples, after the rounds whose tests count."""

    def read(rounds: Sequence[RoundLine], tests: Sequence[Test]) -> float | None:
        counted = {id(test) for test in tests}  # two tests may have found the same
        tested = [line for line in rounds if id(line.get("evaluation")) in counted]
        held = [line["validation"] for line in tested if "validation" in line]
        return measure.read(rounds, held) if len(held) == len(tests) else None

    key, title = f"validation_{measure.key}", f"validation {measure.title}"
    return dataclasses.replace(measure, key=key, title=title, read=read)


def _of_clients(name: str, more: bool) -> tuple[Measure, ...]:
    best_of = max if more else min

    def local(test: Test) -> float | None:
        return (test.get("local") or {}).get(name)

    def best(test: Test) -> float | None:
        own = [(row.get("local") or {}).get(name) for row in submodels({"evaluation": test})]
        return best_of((value for value in own if value is not None), default=None)

    def trained(test: Test) -> float | None:
        return (test.get("trained") or {}).get(name)

    return (
        _column(f"local_{name}", "local", name, _averaged(local)),
        _column(f"trained_{name}", "trained", name, _averaged(trained)),
        _column(f"best_local_{name}", "best local", name, _averaged(best)),
    )


def _column(key: str, of: str, name: str, read: ReadFigure) -> Measure:
    share = name in SHARES
    return Measure(key, f"{of} {'%' if share else name}", read, _percent if share else _number)


def tier_measure(tier: str, name: str) -> Measure:
    """The column of a tier: the mean of a figure over its clients, each on its own test data."""
    read = _averaged(lambda test: by_tier(test).get(tier, {}).get(name))
    return _column(f"tier.{tier}.{name}", tier, name, read)


def by_tier(test: Test) -> dict[str, Mapping[str, float]]:
    """Figures of the tiers that have clients, each on its clients' own test data."""
    named = {name: row.get("local") for name, row in test["models"].items() if name != GLOBAL}
    return {name: row for name, row in named.items() if row}


def _averaged(read: Callable[[Test], float | None]) -> ReadFigure:
    """The mean of a figure over tests that all have it."""

    def average(_: Sequence[RoundLine], tests: Sequence[Test]) -> float | None:
        values = [read(test) for test in tests]
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if len(known) == len(values) else None

    return average


def _of_submodels(key: str, reduce: Callable[[Iterable[float]], float]) -> ReadFigure:
    def read(test: Test) -> float | None:
        values = [row.get(key) for row in submodels({"evaluation": test})]
        return reduce(v for v in values if v is not None) if None not in values else None

    return _averaged(read)


def _spent(purposes: Sequence[str], rounds: Sequence[RoundLine], _: Sequence[Test]) -> float | None:
    parts = seconds(rounds)
    return sum(parts.get(p, 0.0) for p in purposes or parts) if parts else None


def _lost(rounds: Sequence[RoundLine], _: Sequence[Test]) -> float | None:
    """Clients whose update was rejected or never arrived; None: there were none."""
    many = sum(len(line.get(key) or ()) for line in rounds for key in ("rejected", "failed"))
    return float(many) or None


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


def _travelled(way: str, rounds: Sequence[RoundLine], _: Sequence[Test]) -> float | None:
    """Millions of bytes, one way; None: some round does not say."""
    sums = [traffic(line).get(way) for line in rounds]
    known = [one for one in sums if one is not None]
    return sum(known) / 1e6 if sums and len(known) == len(sums) else None


def _computed(key: str, reduce: Callable[[Sequence[float]], float]) -> ReadFigure:
    """Of the rounds' MACs (or epochs); None: some round does not say."""

    def read(rounds: Sequence[RoundLine], _: Sequence[Test]) -> float | None:
        values = [float(line["macs"][key]) for line in rounds if "macs" in line]
        return reduce(values) if values and len(values) == len(rounds) else None

    return read


def _tmac(rounds: Sequence[RoundLine], tests: Sequence[Test]) -> float | None:
    epoch, epochs = (read(rounds, tests) for read in (_MACE, _EPOCHS))
    return None if epoch is None or epochs is None else epoch * epochs


_MACE, _EPOCHS = _computed("epoch", max), _computed("epochs", sum)

_seconds, _number = "{:.2f}".format, "{:.4g}".format

SPENT: tuple[Measure, ...] = (
    Measure("seconds", "seconds", functools.partial(_spent, ()), _seconds),
    Measure("server_seconds", "server s", functools.partial(_spent, ("server",)), _seconds),
    Measure("megabytes_down", "MB down", functools.partial(_travelled, DOWN), _number),
    Measure("megabytes_up", "MB up", functools.partial(_travelled, UP), _number),
    Measure("macs", "MACs", _computed("round", sum), count),
    Measure("mace", "MACE", _MACE, count),
    Measure("epochs", "T·E", _EPOCHS, _number),
    Measure("tmac", "TMAC", _tmac, count),
    Measure("lost", "lost updates", _lost, _number, absent=0.0),
)
