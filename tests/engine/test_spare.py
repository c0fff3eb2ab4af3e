"""Spare clients: they train where others fail, and change nothing where none does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import archgraph as ag
from archgraph.engine.local import Run, execute
from archgraph.engine.rounds import sample
from archgraph.errors import RunError
from archgraph.federation import Outcome, Work
from archgraph.language.experiment import EngineSpec

MODEL = Path(__file__).parents[2] / "specs" / "models" / "digits_cnn.yaml"
ROUND = {"clients": 8, "sampled": 3, "rounds": 1}
FIRST, SPARE = sample(8, 3, seed=0, round=1), sample(8, 3, seed=0, round=1, spare=3)[3:]


def absent(work: Work) -> Outcome:
    raise ConnectionError


def endless(work: Work) -> Outcome:
    while True:
        pass


def not_finite(work: Work) -> Outcome:
    return Outcome(
        {k: v * torch.nan if v.dtype == torch.float32 else v for k, v in work.state.items()}
    )


def trained(run: Run) -> list[int]:
    return [who["client"] for who in run.rounds[0]["clients"]]


def same(one: Run, two: Run) -> bool:
    a, b = one.server.group("global"), two.server.group("global")
    return all(torch.equal(a[name], b[name]) for name in a)


def test_spare_clients_are_drawn_after_those_of_a_round_without_them():
    assert sorted({*FIRST, *SPARE}) == sorted((*FIRST, *SPARE))
    for count in range(4):
        assert sample(8, 3, seed=0, round=1, spare=count) == (*FIRST, *SPARE[:count])


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_where_none_fails_a_run_has_the_bits_of_one_without_them(experiment, mean, workers):
    changes = {"clients": 8, "sampled": 3, "rounds": 2}
    plain = execute(experiment(mean(), **changes))
    spare = execute(experiment(mean(), spare=3, engine=EngineSpec(workers=workers), **changes))
    assert same(plain, spare)
    assert trained(plain) == trained(spare) == list(FIRST)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_they_take_the_places_of_those_that_fail_in_the_order_of_the_draw(
    experiment, mean, workers
):
    """One is absent, one refused, and so is the first spare one; the other two train."""
    programs = {FIRST[0]: absent, FIRST[2]: not_finite, SPARE[0]: absent}
    engine = EngineSpec(workers=workers)
    run = execute(experiment(mean(programs), spare=3, engine=engine, **ROUND))
    assert trained(run) == [FIRST[1], SPARE[1], SPARE[2]]
    assert [who["client"] for who in run.rounds[0]["failed"]] == [FIRST[0], SPARE[0]]
    assert [who["client"] for who in run.rounds[0]["rejected"]] == [FIRST[2]]
    line = run.rounds[0]
    asked = [*line["clients"], *line["rejected"], *line["failed"]]
    assert {who["client"] for who in asked if who.get("spare")} == set(SPARE)
    one = execute(experiment(mean(programs), spare=3, **ROUND))
    assert same(run, one)


def test_one_that_exceeds_the_deadline_is_replaced(experiment, mean):
    engine = EngineSpec(workers=2, deadline=2.0)
    run = execute(experiment(mean({FIRST[1]: endless}), spare=1, engine=engine, **ROUND))
    assert trained(run) == [FIRST[0], FIRST[2], SPARE[0]]
    assert "deadline" in run.rounds[0]["failed"][0]["reason"]


def test_a_round_is_smaller_where_there_are_too_few(experiment, mean):
    run = execute(experiment(mean({FIRST[0]: absent, SPARE[0]: absent}), spare=1, **ROUND))
    assert trained(run) == list(FIRST[1:])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"spare": 3}, "spare: more clients in a round than there are; found 3 and 3 spare ones"),
        ({"spare": 1, "bound": 5}, "spare: does not go together with `bound`"),
        (
            {"spare": 1, "aggregate": {"clip": "median"}},
            "spare: does not go together with `aggregate.clip`",
        ),
    ],
    ids=["too_many", "bound", "median"],
)
def test_what_cannot_be_is_refused(more, said):
    with pytest.raises(RunError) as caught:
        ag.run(
            {
                "archgraph": 1,
                "name": "spare",
                "family": {
                    "archgraph": 1,
                    "name": "spare",
                    "model": str(MODEL),
                    "clients": [{"name": "all", "count": 5}],
                },
                "data": {"dataset": "digits", "limit": 100},
                "strategy": {"fedavg": {}},
                "rounds": 1,
                "sample": 3,
                **more,
            },
            progress=False,
        )
    assert said in str(caught.value)
