"""Bytes that travel, and the file that says who takes part."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from archgraph.engine.clients import FILE, read_clients
from archgraph.engine.local import execute
from archgraph.errors import RejectedUpdate, RunError
from archgraph.federation import Model, Outcome, Result, Task, Train, Work
from archgraph.language.experiment import AttackSpec
from archgraph.record.client import ClientState
from archgraph.record.points import points
from archgraph.record.traffic import back, sent

# Convolution 36 + 4, batch norm 4 × 4 and a counter of 8 bytes, linear 640 + 10.
WHOLE = 4 * (40 + 16 + 650) + 8
STATISTICS = frozenset({"1.running_mean", "1.running_var"})


def test_bytes_are_those_of_the_tensors_by_hand(experiment, mean, tmp_path):
    run = execute(experiment(mean(private=STATISTICS), rounds=2, sampled=None), out=tmp_path / "r")
    first, second = ([row["bytes_down"] for row in line["clients"]] for line in run.rounds)
    # What a client has kept is not sent to it again, and never comes back.
    assert (first, second) == ([WHOLE] * 4, [WHOLE - 32] * 4)
    assert {row["bytes_up"] for line in run.rounds for row in line["clients"]} == {WHOLE - 32}
    of_run = {p.metric: p.value for p in points(run.rounds[1]) if p.part == "run"}
    assert (of_run["bytes_down"], of_run["bytes_up"]) == (4 * (WHOLE - 32), 4 * (WHOLE - 32))


def test_further_models_and_tensors_count_both_ways(net):
    half, other = torch.zeros(3, dtype=torch.float16), {"w": torch.zeros(5)}
    task = Task(0, net, {"a": torch.zeros(2)}, Train(), others={"big": Model(net, other)})
    task = Task(**{**vars(task), "extras": {"x": half}})
    assert sent(task, ClientState()) == 8 + 20 + 6
    outcome = Outcome({"a": torch.zeros(2)}, others={"big": other}, extras={"x": half})
    assert back(task.result(outcome, 1)) == 8 + 20 + 6


@dataclass(frozen=True)
class Crash:
    """Fails."""

    def __call__(self, work: Work) -> Outcome:
        raise ValueError("gone")


def test_lost_updates_travelled_too(experiment, mean):
    def refuse(result: Result) -> None:
        if result.client == 1:
            raise RejectedUpdate("not wanted")

    run = execute(experiment(mean({2: Crash()}, refuse=refuse), rounds=1, sampled=None))
    (line,) = run.rounds
    (refused,), (failed,) = line["rejected"], line["failed"]
    assert (refused["bytes_down"], refused["bytes_up"]) == (WHOLE, WHOLE)
    assert (failed["bytes_down"], "bytes_up" in failed) == (WHOLE, False)
    of_run = {p.metric: p.value for p in points(line) if p.part == "run"}
    assert (of_run["bytes_down"], of_run["bytes_up"]) == (4 * WHOLE, 3 * WHOLE)


def test_the_folder_says_who_takes_part(experiment, tmp_path):
    setup = experiment(rounds=1, attack=AttackSpec(fraction=0.25))
    execute(setup, out=tmp_path / "r")
    found = read_clients(tmp_path / "r")
    assert [(c.client, c.tier, c.examples, tuple(c.classes)) for c in found] == [
        (c.id, c.name, c.examples, c.histogram) for c in setup.world.clients
    ]
    assert {c.client for c in found if c.malicious} == setup.malicious
    assert found[1].label == "client 1, odd"
    (tmp_path / "r" / FILE).write_text('[{"client": "one"}]')
    with pytest.raises(RunError, match=r"clients\.json: cannot tell which clients took part"):
        read_clients(tmp_path / "r")
    assert read_clients(tmp_path) == ()
