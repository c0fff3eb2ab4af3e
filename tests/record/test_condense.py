"""A condensed run says the same as the run itself, test by test and in its sums."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archgraph.record.condense import condensed
from archgraph.record.points import frame

SHARE = st.floats(0, 1).map(lambda x: float(f"{x:.6g}"))
SECONDS = st.floats(0.001, 100)


@st.composite
def rounds(draw: st.DrawFn) -> list[dict[str, Any]]:
    lines = []
    for number in range(1, draw(st.integers(1, 9)) + 1):
        clients = draw(st.integers(0, 4))
        line: dict[str, Any] = {
            "round": number,
            "clients": [
                {"client": c, "name": "a", "bytes_down": 3 * c, "bytes_up": c, "loss": 1.0}
                for c in range(clients)
            ],
            "rejected": [{"client": 7, "bytes_down": 5}] * draw(st.integers(0, 1)),
            "failed": [{"client": 8, "bytes_down": 0}],
            "seconds": {"local": draw(SECONDS), "total": draw(SECONDS)},
            "macs": {"round": draw(st.integers(1, 99)), "epoch": draw(st.integers(1, 99)),
                     "epochs": 2},
        }  # fmt: skip
        if draw(st.booleans()):
            line["evaluation"] = {
                "better": {"accuracy": True},
                "models": {m: {"accuracy": draw(SHARE), "local": {"matched": draw(SHARE)}}
                           for m in ("small", "global")},
                "local": {"accuracy": draw(SHARE)},
            }  # fmt: skip
        lines.append(line)
    return lines


@given(rounds())
def test_every_test_and_every_sum_is_there(lines: list[dict[str, Any]]):
    whole, short = frame(lines, clients=False), frame(condensed(lines), clients=False)
    tests = [f[f["part"] != "run"].reset_index(drop=True) for f in (whole, short)]
    assert tests[0].equals(tests[1])
    of_run = [f[f["part"] == "run"].groupby("metric")["value"] for f in (whole, short)]
    sums = [values.sum().drop("mace").to_dict() for values in of_run]
    assert sums[1] == pytest.approx(sums[0], rel=1e-5)  # six digits
    assert of_run[1].max()["mace"] == of_run[0].max()["mace"]
    assert short["round"].max() == whole["round"].max()


@given(rounds())
def test_condensing_twice_changes_nothing(lines: list[dict[str, Any]]):
    once = list(condensed(lines))
    assert list(condensed(once)) == once
