"""A client whose numbers are not finite leaves no trace in the later methods, as if absent."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from archgraph.engine.local import Run, execute
from archgraph.engine.world import prepare
from archgraph.federation import Outcome, Program, ServerState, Task, Work, World
from tests.engine.families import DIGITS, STRATEGIES

BAD = 1
# The engine does the same for all methods; these send, keep or train something of their own.
METHODS = ("clusteredfl", "depthfl", "fedgkt", "fedrolex", "fjord", "inclusivefl", "scalefl")


def absent(work: Work, program: Program) -> Outcome:
    raise ConnectionError


def spoilt(work: Work, program: Program) -> Outcome:
    """Everything that it sends, by whatever way."""
    outcome = program(work)

    def nan(tensors: Any) -> dict[str, torch.Tensor]:
        return {
            k: torch.full_like(v, torch.nan) if v.is_floating_point() else v
            for k, v in tensors.items()
        }

    return dataclasses.replace(outcome, state=nan(outcome.state), extras=nan(outcome.extras))


@dataclass(frozen=True)
class Instead:
    """A program that does something with the one that was sent."""

    program: Program
    fault: Callable[[Work, Program], Outcome]

    def __call__(self, work: Work) -> Outcome:
        return self.fault(work, self.program)


def with_fault(strategy: Any, fault: Callable[[Work, Program], Outcome]) -> Any:
    """The strategy, one of whose clients does something else."""

    def send(self: Any, world: World, state: ServerState, client: int, round: int) -> Task:
        task = type(strategy).send(self, world, state, client, round)
        if client != BAD:
            return task
        return dataclasses.replace(task, program=Instead(task.program, fault))

    made = type(type(strategy).__name__, (type(strategy),), {"send": send})
    return made(
        **{f.name: getattr(strategy, f.name) for f in dataclasses.fields(strategy) if f.init}
    )


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", METHODS)
def test_a_client_that_is_not_finite_is_as_if_absent(name: str, tmp_path: Path):
    clients, options = STRATEGIES[name]
    file = tmp_path / "experiment.yaml"
    file.write_text(f"""\
archgraph: 1
name: spoilt
family: {{archgraph: 1, name: spoilt, model: {DIGITS}, {clients}}}
data: {{dataset: digits, limit: 90, partition: {{scheme: dirichlet, min_size: 5}}}}
strategy: {{{name}: {options}}}
rounds: 2
local: {{batch: 16, lr: 0.05}}
evaluate: {{every: 2}}
engine: {{workers: 1}}
""")
    setup = prepare(file)

    def run(fault: Callable[[Work, Program], Outcome]) -> Run:
        return execute(dataclasses.replace(setup, strategy=with_fault(setup.strategy, fault)))

    bad, gone = run(spoilt), run(absent)
    for line in bad.rounds:
        assert {who["client"] for who in line["rejected"] + line["failed"]} == {BAD}
    torch.testing.assert_close(gone.server.tensors, bad.server.tensors, rtol=0, atol=0)
