"""Three of ten clients are faulty, in every way that a process survives: the run goes on.

Faults leave no trace: the server's weights are, bit for bit, those of a run in which these clients
are absent, or honest. What no process survives, an endless loop and a crash, is in
:mod:`tests.processes.test_workers`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from archgraph.engine.experiment import Experiment
from archgraph.engine.local import Run, execute
from archgraph.federation import Outcome, Program, ServerState, Task, Work, World
from archgraph.language.experiment import EngineSpec, EvaluateSpec
from archgraph.record.folder import read_metrics
from archgraph.strategies.fedfa import FedFA
from tests.engine.faulty import KINDS, Faulty, Kind

CLIENTS, ROUNDS, BAD = 10, 5, (0, 4, 9)

# Said once in each process, by the first client there that makes one.
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


@pytest.fixture(scope="module")
def wrong(experiment: Callable[..., Experiment], mean: Any) -> Callable[..., Experiment]:
    """The experiment in which some clients do something else."""

    def make(program: Program | None, rounds: int = ROUNDS, **changes: Any) -> Experiment:
        programs = {} if program is None else dict.fromkeys(BAD, program)
        last = EvaluateSpec(batch=100, every=ROUNDS)
        return experiment(
            mean(programs), clients=CLIENTS, rounds=rounds, sampled=None, evaluate=last, **changes
        )

    return make


def absent(work: Work) -> Outcome:
    raise ConnectionError


@pytest.fixture(scope="module")
def references(wrong) -> dict[str, dict[str, Tensor]]:
    """The server's weights at the end where these clients are honest, and where they are absent."""
    return {
        "harmless": execute(wrong(None)).server.group("global"),
        "refused": execute(wrong(absent)).server.group("global"),
    }


def same(run: Run, reference: dict[str, Tensor]) -> bool:
    weights = run.server.group("global")
    return weights.keys() == reference.keys() and all(
        type(v) is Tensor and not v.requires_grad and torch.equal(v, reference[k])
        for k, v in weights.items()
    )


@pytest.mark.sample(20)
@pytest.mark.parametrize("name", KINDS)
def test_a_run_survives_three_of_ten_clients_of_a_kind(wrong, references, name, tmp_path):
    kind = KINDS[name]
    refused = kind.verdict != "harmless"
    bound = 5.0 if kind.verdict == "taken" else None
    run = execute(wrong(Faulty(kind), bound=bound), out=tmp_path / "run")
    assert len(run.rounds) == ROUNDS
    for line in run.rounds:
        lost = {who["client"]: who["reason"] for who in line["rejected"] + line["failed"]}
        assert set(lost) == (set(BAD) if refused else set())
        assert all(kind.reason in reason and len(reason) < 2000 for reason in lost.values()), lost
        assert len(line["clients"]) == CLIENTS - len(lost)
    assert len(read_metrics(tmp_path / "run")) == ROUNDS
    assert same(run, references["refused" if refused else "harmless"])


def several(kinds: list[Kind], count: int) -> list[dict[int, Kind]]:
    return [dict(enumerate(kinds[i : i + count])) for i in range(0, len(kinds), count)]


# Where a bound refuses what is far off, more than half of the clients are honest.
TAKEN = several([kind for kind in KINDS.values() if kind.verdict == "taken"], 4)
OTHERS = several([kind for kind in KINDS.values() if kind.verdict != "taken"], 9)


@pytest.mark.full
def test_in_processes_every_kind_of_client_is_dealt_with_in_the_same_way(experiment, mean):
    """Several kinds at a time among ten clients, each of which has a process."""
    crowd = {"clients": CLIENTS, "sampled": None, "rounds": 1}
    engine = EngineSpec(workers=2, deadline=60)
    for kinds in (*TAKEN, *OTHERS):
        programs = {client: Faulty(kind) for client, kind in kinds.items()}
        bound = 5.0 if kinds in TAKEN else None
        run = execute(experiment(mean(programs), bound=bound, engine=engine, **crowd))
        (line,) = run.rounds
        lost = {who["client"]: who["reason"] for who in line["rejected"] + line["failed"]}
        refused = {client: kind for client, kind in kinds.items() if kind.verdict != "harmless"}
        assert set(lost) == set(refused), lost
        assert all(kind.reason in lost[client] for client, kind in refused.items()), lost
        without = execute(experiment(mean(dict.fromkeys(refused, absent)), **crowd))
        assert same(run, without.server.group("global"))


def steep(work: Work) -> Outcome:
    state = {name: torch.full_like(value, 1e-20) for name, value in work.state.items()}
    for value in state.values():
        value.view(-1)[:1] = 1
    return Outcome({**work.state, **state})


@dataclass(frozen=True)
class Steep(FedFA):
    """FedFA whose first client's layers have one weight of 1 and a vanishing inner norm."""

    def send(self, world: World, state: ServerState, client: int, round: int) -> Task:
        task = super().send(world, state, client, round)
        return task if client else dataclasses.replace(task, program=steep)


def test_a_client_that_fedfa_would_scale_up_is_refused_and_the_run_goes_on(experiment):
    run = execute(experiment(Steep(norm="local"), rounds=1, sampled=None))
    (refused,) = run.rounds[0]["rejected"]
    assert refused["client"] == 0
    assert "a few weights exceed all others" in refused["reason"]
    assert len(run.rounds[0]["clients"]) == 3
    weights = run.server.group("global")
    assert all(value.abs().max() < 100 for value in weights.values())


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.verdict == "taken"])
def test_without_a_bound_what_training_can_lead_to_is_taken(wrong, name):
    run = execute(wrong(Faulty(KINDS[name]), rounds=1))
    assert len(run.rounds[0]["clients"]) == CLIENTS
    assert all(value.isfinite().all() for value in run.server.group("global").values())


def test_there_are_as_many_kinds_as_the_docs_say():
    assert len(KINDS) == 103
