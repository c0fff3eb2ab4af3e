"""Condense a run to few lines: the metrics of its tests, and the totals since the previous test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from archgraph.plain import Json
from archgraph.record.points import REPORTS, TESTS, row_count
from archgraph.record.traffic import traffic

# Significant digits of a value, which are more than any table shows.
DIGITS = 6


def condensed(lines: Iterable[Mapping[str, Json]]) -> Iterator[dict[str, Json]]:
    """Yield a line for each tested round, with the totals of all rounds since the last test.

    :func:`archgraph.record.points.points` reads these lines like the lines of a run. The metrics of
    tests, and the totals over all rounds (seconds, bytes, MACs, lost updates), are the same.

    1. A list with a row per client is replaced by its length. Bytes are summed.
    2. Rounds up to the next test, or to the end of the run, are summed into one line. For the MACs
       of one epoch (MACE in FedFA), the maximum is used.
    3. Values are rounded to six significant digits.

    Example:
        >>> lines = [
        ...     {"round": 1, "failed": [{"client": 0}], "seconds": {"total": 1.0}},
        ...     {"round": 2, "seconds": {"total": 2.0}, "evaluation": {"models": {}}},
        ... ]
        >>> list(condensed(lines))[0]["seconds"], list(condensed(lines))[0]["failed"]
        ({'total': 3.0}, 1)
    """
    since: list[Mapping[str, Json]] = []
    for line in lines:
        since.append(line)
        if any(line.get(key) for key in TESTS):
            yield rounded(_added(since))
            since = []
    if since:
        yield rounded(_added(since))


def _added(lines: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    last = lines[-1]
    line: dict[str, Json] = {"round": last["round"]}
    line |= {key: sum(row_count(each.get(key)) for each in lines) for key in REPORTS}  # 1
    travelled = [traffic(each) for each in lines]
    if all(travelled):
        line |= {way: sum(each[way] for each in travelled) for way in travelled[0]}
    line["seconds"] = _sums([each.get("seconds") or {} for each in lines])  # 2
    if macs := [each["macs"] for each in lines if each.get("macs")]:
        line["macs"] = _sums(macs) | {"epoch": max(each["epoch"] for each in macs)}
    # Values of an attack or of privacy, and the reason for the end of a run, are in its last line.
    return line | {key: last[key] for key in (*TESTS, "privacy", "stopped") if last.get(key)}


def _sums(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: sum(row.get(key, 0) for row in rows) for row in rows for key in row}


def rounded(value: Json) -> Json:
    """Return a JSON value with its numbers rounded to six significant digits."""
    match value:
        case float():
            return float(f"{value:.{DIGITS}g}")
        case dict():
            return {key: rounded(item) for key, item in value.items()}
        case list() | tuple():
            return [rounded(item) for item in value]
        case _:
            return value
