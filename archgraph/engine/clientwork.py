"""Do a client's work in a round, and check its update, in any process."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from archgraph.analysis.roles import frozen
from archgraph.engine.attack import Attack
from archgraph.engine.experiment import Experiment
from archgraph.engine.precision import performed
from archgraph.engine.ranges import PASSES, check_ranges
from archgraph.engine.returned import detached, returned
from archgraph.errors import RejectedUpdate, RunError
from archgraph.federation import Outcome, Result, State, Task, seeded
from archgraph.hints import listed
from archgraph.language.aggregate import AggregateSpec
from archgraph.processes.isolation import isolated, one_thread
from archgraph.processes.reasons import reason
from archgraph.record.client import ClientState
from archgraph.record.traffic import DOWN, UP, back
from archgraph.states import wire
from archgraph.states.clipping import UpdateSize, change
from archgraph.states.copies import server_copies, state_to_device
from archgraph.states.updates import finite, unsummable

# Recorded values of an accepted client, in addition to the metrics of its program.
RECORDED = frozenset(
    {"client", "name", "examples", "malicious", "clipped", "seconds", "trained"} | {DOWN, UP}
)


class Assignment(NamedTuple):
    """The input of a client's work in a round.

    Attributes:
        round: Index of the round, from 1; 0 for the survey before round 1.
        task: The client's task.
        private: The client's private tensors from earlier rounds.
    """

    round: int
    task: Task
    private: ClientState


@wire.carried
@dataclass(frozen=True, eq=False)
class Returned:
    """The result of a client's work, with the results of all checks.

    A worker process checks its client's update. The server checks the updates of Flower nodes.

    Attributes:
        outcome: Outcome of the program; None if the update is rejected.
        findings: Values that the strategy's ``examine`` computed from the outcome.
        seconds: Duration of the client's work; with Flower, the time that the server waited.
        bytes_up: Number of bytes that the client returned; None if unknown.
        change: Size of the update, over the tensors that are merged; None if no option limits the
            size.
        refused: Reason why the update is rejected; None if it is accepted.
    """

    outcome: Outcome | None = None
    findings: State = field(default_factory=dict)
    seconds: float = 0.0
    bytes_up: int | None = None
    change: UpdateSize | None = None
    refused: str | None = None


@dataclass(frozen=True, eq=False)
class ClientWork:
    """Runs the work of an experiment's clients, and checks their updates."""

    experiment: Experiment

    def on(self, device: str) -> ClientWork:
        """Return a copy that computes on this device."""
        world = dataclasses.replace(self.experiment.world, device=device)
        return ClientWork(dataclasses.replace(self.experiment, world=world))

    def __call__(self, what: Assignment) -> Returned:
        """Do the work of an assignment, and check its update."""
        return self.checked(what.round, what.task, functools.partial(self.outcome, what))

    def checked(
        self,
        round: int,
        task: Task,
        work: Callable[[], Outcome],
        *,
        optional: Collection[str] = (),
    ) -> Returned:
        """Do a client's work, and return its result after all checks of its update.

        Args:
            round: Index of the round, from 1; 0 for the survey before round 1.
            task: The client's task.
            work: Function that does the work and returns the outcome.
            optional: Names of tensors that may be missing, since they never leave the client's
                node.
        """
        up, began = None, time.perf_counter()
        try:
            outcome = work()
            seconds = time.perf_counter() - began
            result = self.result(task, outcome)
            up = back(result)  # before the check, since rejected updates were sent, too
            self.check(task, outcome, optional)
            with one_thread():  # the same bits in any process
                findings = self.findings(result)
                limited = self.limits(round)
                # Computed in the worker, so that the server does not need both states.
                size = change(task.state, result.state, result.unmerged) if limited else None
        except RejectedUpdate as error:
            return Returned(bytes_up=up, refused=reason(error))
        return Returned(outcome, findings, seconds, up, size)

    def result(self, task: Task, outcome: Outcome) -> Result:
        """Return the part of an outcome that the server receives."""
        client = self.experiment.world.clients[task.client]
        return task.result(outcome, len(self.experiment.shares[task.client]), client.counted)

    def findings(self, result: Result) -> State:
        """Return the values that the strategy's ``examine`` computes from a result."""
        strategy, world = self.experiment.strategy, self.experiment.world
        values = strategy.examined(world, result).findings
        # Only the new values: the rest of the result was already checked.
        bare = Result(result.client, {}, result.examples, findings=values)
        # A strategy may compute values on a device, with gradients. Here they are detached tensors.
        return server_copies(detached(returned(Result, bare, strategy, "examine").findings))

    def clip(self, round: int) -> AggregateSpec | None:
        """Return the rules that scale updates down; None if updates are not clipped."""
        rules = self.experiment.world.aggregate
        return None if rules is None or rules.clip is None or round == 0 else rules

    def limits(self, round: int) -> bool:
        """Return whether any option limits the size of updates in a round."""
        return self.experiment.bound is not None or self.clip(round) is not None

    def attacks(self, round: int, client: int) -> bool:
        """Return whether a client attacks in a round. No client attacks before round 1."""
        return client in self.experiment.malicious and round > 0

    def outcome(self, what: Assignment) -> Outcome:
        """Do the client's work, without the checks of :meth:`checked`.

        Raises:
            RejectedUpdate: If a tensor is not dense, or cannot be stored in a checkpoint.
            RunError: If the client lacks a private tensor that it should have from an earlier
                round.
        """
        setup, task, private = self.experiment, what.task, what.private
        world, device = setup.world, setup.world.device
        state = private.over(task.state, task.private)
        missing = [name for name in task.graph.state_names if name not in state]
        if missing:
            raise RunError(
                f"the task lacks entries that the client does not have either: {listed(missing)}"
            )
        program = task.program
        if setup.attack is not None and self.attacks(what.round, task.client):
            labels = setup.exchanged.get(task.client)
            program = Attack(program, setup.attack.intensity, world.seed, labels)
        generator = seeded(world.seed, "client", what.round, task.client)
        with isolated(generator, device):
            work = setup.work(
                task.client,
                what.round,
                task.graph,
                state,
                generator,
                keep=private.keep,
                others=task.others,
                extras=task.extras,
                values=task.values,
            )
            outcome = performed(program, work)
        # Copied, since the program may keep references to these tensors. Contiguous, since results
        # of computations may depend on the memory layout.
        return dataclasses.replace(
            outcome,
            state=server_copies(outcome.state)
            if world.merging == "cpu"
            else state_to_device(
                {name: tensor.contiguous() for name, tensor in outcome.state.items()},
                world.merging,
                copy=True,
            ),
            keep=server_copies(outcome.keep),
            others={name: server_copies(state) for name, state in outcome.others.items()},
            extras=server_copies(outcome.extras),
        )

    def check(self, task: Task, outcome: Outcome, optional: Collection[str] = ()) -> None:
        """Check that a client's result can be merged.

        Raises:
            RejectedUpdate: If the result cannot be merged. The message names the tensor or metric.
        """
        # An upper bound: a program may use each example several times.
        steps = (
            PASSES
            * self.experiment.local_of(task.client).epochs
            * len(self.experiment.shares[task.client])
        )
        sent = {k: v for k, v in task.state.items() if k not in task.private}
        # Private tensors may contain masks of −∞: the server could not compare them with sent ones.
        private = {k: v for k, v in outcome.state.items() if k in task.private}
        sent |= unsummable(task.graph, private)
        check_ranges(task.graph, sent, outcome.state, steps, optional=optional)
        if set(outcome.others) != set(task.others):
            raise RejectedUpdate(
                "other models than the task's",
                found=", ".join(outcome.others) or "none",
                expected=", ".join(task.others) or "none",
            )
        for name, state in outcome.others.items():
            model = task.others[name]
            try:
                check_ranges(model.graph, model.state, state, steps)
            except RejectedUpdate as error:
                raise error.within(name) from None
        for name, tensor in outcome.extras.items():
            if not finite(tensor):
                raise RejectedUpdate("not finite", where=name, expected="finite numbers")
        for name in RECORDED & outcome.metrics.keys():
            raise RejectedUpdate("a metric has the name of a recorded value", where=name)


def private_part(task: Task, outcome: Outcome, before: ClientState) -> ClientState:
    """Return the tensors that a client keeps: its private state and ``Outcome.keep``.

    Frozen tensors are not included: they never change, and every task sends them. Tensors that the
    current model lacks, such as another tier's adapters, stay unchanged.
    """
    names = task.private - frozen(task.graph)
    # In the order of the state, so that equal runs write equal files.
    entries = {name: tensor for name, tensor in outcome.state.items() if name in names}
    # Copies: references would keep the whole result in memory.
    others = {k: v for k, v in before.state.items() if k not in task.graph.param}
    return ClientState({**others, **server_copies(entries)}, server_copies(outcome.keep))
