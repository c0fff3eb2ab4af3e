"""The rounds of a run, step by step.

1. **Draw.** A sample of the clients is drawn, which depends only on seed and round. If a drawn
   client trains additional models, these take part as separate clients.
2. **Begin.** The strategy returns the state at the beginning of the round (``Strategy.begin``).
3. **Merge.** The strategy creates the next state from the clients' results (``Strategy.receive``,
   most often by :func:`archgraph.federation.covered_mean`). It reads the results from an iterator,
   and reading one result triggers steps 4 to 6 for one client. Memory therefore holds only a few
   updates per worker.
4. **Send.** The strategy creates the client's task (``Strategy.send``): an architecture, its
   weights, and a program, most often :class:`archgraph.federation.Train`. An error here ends the
   run.
5. **Work.** A worker process (or another machine, :class:`Elsewhere`) runs the program, and its
   outcome is checked (:mod:`archgraph.engine.clientwork`). A client fails if its work raises an
   error, exceeds a limit or dies. It is rejected if its update cannot be merged. A failed or
   rejected client gets no second task and is not replaced, and its private tensors stay unchanged.
6. **Accept.** Updates that are too large, absolutely or relative to the median of the round, are
   rejected or scaled down. For each accepted client, its metrics are recorded, and its private
   tensors are stored.
7. **Test.** If a test is due, the strategy's models (``Strategy.evaluated``) are tested on the test
   examples, and on held-out examples if there are any.
8. **Record.** The record of the round is written to the run folder, with a checkpoint, and sent to
   the trackers. The best round is remembered. A run may end early (``validation: {patience: …}``).
   It fails if all clients of a round fail, or no update is accepted for ``patience`` rounds.

A :class:`RoundPlan` holds the clients of one round (step 1) and the result of each (steps 5 and 6).
The :class:`Loop` holds everything that outlives a round: the server's state, private tensors of
clients, and the records of rounds. :func:`archgraph.engine.local.execute` creates the loop, or
restores it from a checkpoint. A survey before the first round (:meth:`Loop.start`) runs steps 5 and
6 with its own tasks. All random numbers follow from seed, purpose, round and client, so a resumed
run has bit-identical results. The only exception is the noise of ``privacy: {entropy: system}``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import statistics
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import torch

from archgraph.engine.after_training import LocalTest, local_test, trained_together
from archgraph.engine.clientwork import Assignment, ClientWork, Returned, private_part
from archgraph.engine.computed import MACS, computed, of_client
from archgraph.engine.evaluate import Evaluator
from archgraph.engine.experiment import Experiment
from archgraph.engine.privacy import dp_world, privacy_spent, weights_alone
from archgraph.engine.returned import each_returned, fitting, noted, received, returned
from archgraph.engine.stream import ResultStream
from archgraph.engine.world import testable
from archgraph.errors import RejectedUpdate, RunError
from archgraph.federation import (
    Evaluated,
    Outcome,
    Result,
    ServerState,
    Task,
    private_models,
    private_task,
    seeded,
)
from archgraph.plain import Json, json_safe
from archgraph.processes.isolation import one_thread
from archgraph.processes.process import Died, attempted
from archgraph.processes.reasons import printable, reason
from archgraph.processes.workers import Workers
from archgraph.record.changes import Changes
from archgraph.record.checkpoint import Checkpoint
from archgraph.record.client import ClientState
from archgraph.record.folder import RunRecord
from archgraph.record.trackers import Trackers
from archgraph.record.traffic import DOWN, UP, sent
from archgraph.states.clipping import UpdateSize, clipped
from archgraph.states.spill import Spill
from archgraph.states.updates import unsummable
from archgraph.tables import plural

# A task, and a function that returns its outcome or raises its error.
Working: TypeAlias = tuple[Task, Callable[[], Outcome]]
# A task, the values recorded for its client so far, and its result.
Arrival: TypeAlias = tuple[Task, dict[str, Json], Returned]


class Elsewhere(Protocol):
    """Remote machines that do the clients' work."""

    holder: Literal["server", "node"]
    """Whether the server or the node (a client's machine) stores a client's private tensors.

    With ``node``, outcomes lack the tensors in ``Task.private``, and the server does not test
    models that need these tensors.
    """

    def __call__(
        self, round: int, tasks: Iterable[Task], private: Mapping[int, ClientState]
    ) -> Iterable[Working]:
        """Yield the tasks in order, each with a function that waits for the task's outcome."""

    def events(self) -> list[dict[str, Json]]:
        """Return events since the last call, such as late or rejected machines."""


def sample(
    clients: int,
    count: int | None,
    seed: int,
    round: int,
    *,
    poisson: bool = False,
) -> tuple[int, ...]:
    """Draw the clients of a round. They depend only on seed and round.

    The ids are in ascending order.

    Args:
        clients: Number of all clients.
        count: Number of clients to draw. Default: all.
        seed: Seed of the run.
        round: Index of the round, from 1.
        poisson: Whether each client is drawn independently. ``count`` is then the expected number.

    >>> sample(3, None, seed=0, round=1), len(sample(10, 4, seed=0, round=7))
    ((0, 1, 2), 4)
    """
    if count is None or count >= clients:
        return tuple(range(clients))
    if poisson:  # the privacy accounting for samples assumes independent draws
        drawn = torch.rand(clients, generator=seeded(seed, "sample", round), dtype=torch.float64)
        return tuple((drawn < count / clients).nonzero().flatten().tolist())
    order = torch.randperm(clients, generator=seeded(seed, "sample", round))
    # Sorted, so that the order in which results are merged does not depend on the order of drawing.
    return tuple(sorted(order[:count].tolist()))


@dataclass(eq=False)
class RoundPlan:
    """One round, with its accepted, rejected and failed clients.

    Attributes:
        round: Index of the round, from 1; 0 for the survey before round 1.
        clients: Ids of the drawn clients, in the order of their tasks.
        due: Whether models are tested at the end of the round.
        test: Tests a client's model after local training. Default: no such test.
        accepted: The record of each client whose update was accepted.
        rejected: Client, tier and reason of each rejected update.
        failed: Client, tier and reason of each client whose work raised an error, exceeded a limit
            or died.
        seconds: Dict from purpose to seconds. If measurements are nested, time counts only for the
            inner purpose.
        failure: Error of the first client that failed.

    Example:
        >>> plan = RoundPlan(1)
        >>> with plan.measure("server"), plan.measure("local"):
        ...     pass
        >>> sorted(plan.seconds)
        ['local', 'server']
    """

    round: int
    clients: tuple[int, ...] = ()
    due: bool = False
    test: LocalTest | None = None
    accepted: list[dict[str, Json]] = field(default_factory=list)
    rejected: list[dict[str, Json]] = field(default_factory=list)
    failed: list[dict[str, Json]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    failure: BaseException | None = None
    _inner: float = 0.0

    @contextlib.contextmanager
    def measure(self, purpose: str) -> Iterator[None]:
        """Measure the seconds spent for a purpose."""
        began, earlier, self._inner = time.perf_counter(), self._inner, 0.0
        try:
            yield
        finally:
            total = time.perf_counter() - began
            self.seconds[purpose] = self.seconds.get(purpose, 0.0) + total - self._inner
            self._inner = earlier + total

    def fail(self, row: dict[str, Json], died: Died) -> None:
        """Record a client that failed."""
        if self.failure is None:
            self.failure = died.error
        if self.failure is None:  # it was raised in another process
            # Processes send only the text of an error.
            self.failure = ChildProcessError(died.reason)
            self.failure.add_note(died.trace)
        self.failed.append({**row, "reason": printable(died.reason)})

    def settle(self) -> None:
        """Check after the last client that at least one client did not fail.

        Raises:
            RunError: If every client failed, which suggests a common cause.
        """
        if self.failure is None or self.accepted or self.rejected:
            return
        reasons = Counter(str(row["reason"]) for row in self.failed).most_common(3)
        clients = f"of {len(self.failed)} clients"
        if len(reasons) > 1:
            texts = [f"{text} ({number} {clients})" for text, number in reasons]
        else:
            texts = [text for text, _ in reasons]
        raise RunError(
            "every client failed",
            where=f"round {self.round}",
            found="; ".join(texts),
            hint="the error of the first client is the cause of this error (`--debug` shows it)",
        ) from self.failure


@dataclass(eq=False)
class Loop:
    """Runs the rounds of one experiment, and holds the state between rounds.

    Attributes:
        experiment: The experiment.
        record: The run folder. Default: nothing is written.
        server: State of the server.
        private: Dict from client to its private tensors.
        lines: The records of the rounds so far.
        done: Number of finished rounds.
        trackers: Trackers that get the metrics of every round.
        best: Checkpoint of the best round so far, according to held-out examples.
        elsewhere: Remote machines of the clients. Default: this machine.
    """

    experiment: Experiment
    record: RunRecord | None = None
    server: ServerState = field(default_factory=ServerState)
    private: dict[int, ClientState] = field(default_factory=dict)
    lines: list[dict[str, Json]] = field(default_factory=list)
    done: int = 0
    trackers: Trackers = field(default_factory=lambda: Trackers(()))
    best: Checkpoint | None = None
    elsewhere: Elsewhere | None = None
    _recording: float = 0.0

    # ------------------------------------------------------------ before the first round

    def start(self, state: ServerState) -> None:
        """Run the strategy's tasks before round 1 (its survey), starting from its first state."""
        world, strategy, plan = self.experiment.world, self.experiment.strategy, RoundPlan(0)
        with plan.measure("server"):
            tasks = each_returned(Task, strategy.survey(world, state), strategy, "survey")
            where = f"{type(strategy).__name__}.surveyed"
            results = ResultStream(self._results(plan, tasks), where)
            after = strategy.surveyed(world, state, results)
            self.server = returned(ServerState, after, strategy, "surveyed")
        plan.settle()
        if plan.accepted:  # the strategy has its models only after the survey
            testable(self.experiment, self.server)
        self._save()

    def go_on(self, checkpoint: Checkpoint, lines: list[dict[str, Json]]) -> None:
        """Restore a run from its last checkpoint."""
        self.server = ServerState(checkpoint.tensors, checkpoint.values)
        self.private = {
            client: ClientState.from_flat(flat) for client, flat in checkpoint.private.items()
        }
        self.lines = lines
        self.done = checkpoint.round
        number = self._best_round()
        if number is not None and self.record is not None:
            # The best checkpoint may be older than the last ones. It must not be deleted.
            self.record.pinned = number
            self.best = checkpoint.copy() if number == self.done else self.record.at(number)

    # ------------------------------------------------------------ one round: the steps in order

    def round(self) -> dict[str, Json]:
        """Run the next round, and return its record. The module's docstring describes the steps."""
        began, setup = time.perf_counter(), self.experiment
        plan = self._drawn()  # step 1
        with plan.measure("server"):
            state, change = self._merged(plan)  # steps 2 to 6
        plan.settle()
        self.server, self.done = state, plan.round
        line: dict[str, Json] = {
            "round": plan.round,
            "clients": plan.accepted,
            "rejected": plan.rejected,
            "failed": plan.failed,
            **privacy_spent(setup, plan.round, len(plan.clients)),
            "macs": computed(setup, plan.accepted),
        }
        if self.elsewhere is not None and (events := self.elsewhere.events()):
            line["nodes"] = events
        if setup.strategy.reports:
            line["server"] = {name: state.values[name] for name in setup.strategy.reports}
        if plan.due:
            with plan.measure("evaluate"):
                line |= self._figures(plan)  # step 7
        line["seconds"] = {
            "local": 0.0,
            **plan.seconds,
            "record": self._recording,
            "total": time.perf_counter() - began,
        }
        line = json_safe(line)  # as read from the file: no NaN for selection and trackers
        self._keep(line, change)  # step 8
        return line

    def _drawn(self) -> RoundPlan:
        """Draw the clients of the next round (step 1)."""
        setup, world, number = self.experiment, self.experiment.world, self.done + 1
        drawn = sample(
            len(world.participants),
            setup.sampled,
            world.seed,
            number,
            poisson=setup.privacy is not None and setup.privacy.sampling == "poisson",
        )
        clients = world.with_further(drawn)  # a client also trains its additional models
        return RoundPlan(number, clients, setup.evaluate.due(number, world.rounds))

    def _merged(self, plan: RoundPlan) -> tuple[ServerState, dict[str, Json] | None]:
        """Return the server's state after a round, and the size of its change (steps 2 to 6)."""
        setup, world, strategy = self.experiment, self.experiment.world, self.experiment.strategy
        with noted(strategy, "begin", plan.round):
            before = strategy.begin(world, self.server, plan.round, plan.clients)  # step 2
        before = returned(ServerState, before, strategy, "begin")
        if plan.due and setup.evaluate.trained and not self._at_nodes:
            plan.test = local_test(self._evaluator, before)
        # Generators from here on: a client works when the strategy reads its result.
        tasks = (self._task(before, client, plan.round) for client in plan.clients)
        arriving = self._changes.noted(self._results(plan, tasks))
        if setup.privacy is not None:
            world, arriving = dp_world(setup, before, plan.round), weights_alone(arriving)
        results = ResultStream(arriving, f"{type(strategy).__name__}.receive")
        with noted(strategy, "receive", plan.round):
            after = received(  # step 3
                strategy,
                lambda: strategy.receive(world, before, results, plan.round),
                before,
                world.graph,
                plan.round,
            )
        return after, self._changes.line(plan.round, before, after) if self.record else None

    # ------------------------------------------------------------ steps 4 to 6, client by client

    def _task(self, state: ServerState, client: int, number: int) -> Task:
        """Return a client's task after checks (step 4)."""
        strategy, world = self.experiment.strategy, self.experiment.world
        with noted(strategy, "send", number):
            sent = strategy.send(world, state, client, number)
        task = returned(Task, sent, strategy, "send")
        task = private_task(strategy, world, task)
        fitting(task.graph, task.state, strategy, "send")
        if task.client != client:
            raise RunError(
                "returned a task for another client",
                where=f"{type(strategy).__name__}.send",
                found=task.client,
                expected=client,
            )
        # Masks with −∞ cannot be averaged. They are returned unchanged, and not merged.
        return dataclasses.replace(
            task, unmerged=task.unmerged.union(unsummable(task.graph, task.state))
        )

    def _results(self, plan: RoundPlan, tasks: Iterable[Task]) -> Iterator[Result]:
        """Yield the clients' results in the order of the tasks (steps 4 to 6).

        Iterate inside ``measure("server")``; the time of clients' work is not counted there.
        """
        arrivals, median = self._with_median(plan, self._arrivals(plan, tasks))
        for arrival in arrivals:
            result = self._accepted(plan, *arrival, median)
            del arrival  # while the strategy uses the result, nothing else refers to its tensors
            # If all targets of a client are ignored, its result is not merged. A survey uses all
            # results.
            if result is not None and (plan.round == 0 or result.weight("examples") > 0):
                yield result
            del result

    def _arrivals(self, plan: RoundPlan, tasks: Iterable[Task]) -> Iterator[Arrival]:
        """Yield results that are not rejected, and record rejected ones in the plan (step 5)."""
        with contextlib.closing(self._calls(plan, tasks)) as calls:
            for task, came in calls:
                row: dict[str, Json] = {"client": task.client, "name": self._name(task)}
                row[DOWN] = sent(task, self._own(task.client))
                if isinstance(came, Died):
                    plan.fail(row, came)
                    continue
                row |= {} if came.bytes_up is None else {UP: came.bytes_up}
                if came.refused is not None:
                    plan.rejected.append({**row, "reason": came.refused})
                    continue
                yield task, row, came
                del task, came

    def _calls(
        self, plan: RoundPlan, tasks: Iterable[Task]
    ) -> Generator[tuple[Task, Returned | Died]]:
        """Yield the result of each task, in order (step 5)."""
        if self.elsewhere is None:
            yield from self._workers.calls(
                self._work,
                tasks,
                # Called when the client begins: an earlier task may have changed its private
                # tensors.
                begin=lambda task: Assignment(plan.round, task, self._own(task.client)),
                # The second task of a client needs the private tensors of its first task.
                key=lambda task: task.client,
                waiting=lambda: plan.measure("local"),
                again=True,
            )
            return
        for task, work in self.elsewhere(plan.round, tasks, self.private):
            optional = task.private if self._at_nodes else ()
            checked = functools.partial(
                self._work.checked, plan.round, task, work, optional=optional
            )
            with plan.measure("local"):
                came = attempted(checked)
            yield task, came
            del came

    def _with_median(
        self, plan: RoundPlan, arrivals: Iterator[Arrival]
    ) -> tuple[Iterator[Arrival], float]:
        """Return the updates, and the median of their sizes.

        All updates wait on disk until the median is known.

        If no limit depends on the median, it is 0, and updates are not stored.
        """
        rules = self._work.clip(plan.round)
        if self.experiment.bound is None and (rules is None or rules.clip != "median"):
            return arrivals, 0.0
        spill = Spill()
        waiting = [(_size(one[2]).rms, _spilled(spill, one)) for one in arrivals]
        median = statistics.median(rms for rms, _ in waiting) if waiting else 0.0
        return (read() for _, read in waiting), median

    def _accepted(
        self, plan: RoundPlan, task: Task, row: dict[str, Json], came: Returned, median: float
    ) -> Result | None:
        """Return an update as the strategy receives it, and record its client (step 6).

        Returns None if the update is rejected.
        """
        outcome, work = came.outcome, self._work
        assert outcome is not None  # else it was already rejected
        result = dataclasses.replace(work.result(task, outcome), findings=came.findings)
        rules = work.clip(plan.round)
        factor = 1.0 if rules is None else rules.factor(_size(came), median)
        try:
            result = self._limited(task, result, _size(came), factor, median)
        except RejectedUpdate as error:
            plan.rejected.append({**row, "reason": reason(error)})
            return None
        private = private_part(task, outcome, self._own(task.client))
        if private.state or private.keep or task.client in self.private:
            self.private[task.client] = private
        row["examples"] = result.examples
        row |= {"malicious": True} if work.attacks(plan.round, task.client) else {}
        row |= {"clipped": factor} if factor < 1 else {}
        row |= outcome.metrics
        if "seen" in outcome.metrics or MACS in outcome.metrics:
            row[MACS] = of_client(task, outcome.metrics)
        if plan.test is not None:
            with plan.measure("evaluate"):
                row["trained"] = dict(plan.test(task, outcome.state))
        plan.accepted.append({**row, "seconds": came.seconds})
        return result

    def _limited(
        self, task: Task, result: Result, size: UpdateSize, factor: float, median: float
    ) -> Result:
        """Reject an update that is larger than `bound` medians, or scale it down if required.

        Raises:
            RejectedUpdate: If the update is too large.
        """
        bound = self.experiment.bound
        if bound is not None and size.rms > bound * median > 0:
            raise RejectedUpdate(
                "the update is too large",
                found=f"a change of {size.rms:.3g} per value",
                expected=f"at most {bound * median:.3g}, {bound:g} times the round's median",
            )
        if factor == 1:
            return result
        state = clipped(task.state, result.state, factor, result.unmerged)
        with one_thread():  # the same bits as in a worker process
            result = dataclasses.replace(result, state=state)
            return dataclasses.replace(result, findings=self._work.findings(result))

    def _own(self, client: int) -> ClientState:
        return self.private.get(client, ClientState())

    def _name(self, task: Task) -> str:
        return task.tier or self.experiment.world.clients[task.client].name

    @property
    def _at_nodes(self) -> bool:
        """Whether private tensors are stored at nodes, so that the server cannot test with them."""
        return self.elsewhere is not None and self.elsewhere.holder == "node"

    # ------------------------------------------------------------ step 7: test

    def _figures(self, plan: RoundPlan) -> dict[str, Json]:
        """Test the models of the round (step 7)."""
        figures: dict[str, Json] = {"evaluation": self._tested(self._evaluator)}
        if plan.test is not None:
            figures["evaluation"] |= trained_together(plan.accepted, self.experiment.world.learning)
        if self.experiment.selection is not None:
            figures["validation"] = self._tested(self._validator)
        return figures

    def _tested(self, evaluator: Evaluator) -> dict[str, Json]:
        """Test the strategy's evaluated models after the last round."""
        setup = self.experiment
        # Requested again for each test, since models may be created when they are tested.
        models = setup.strategy.evaluated(setup.world, self.server)
        each = each_returned(Evaluated, models, setup.strategy, "evaluated")
        each = private_models(setup.strategy, setup.world, each)
        return evaluator(self._testable(each), private=self.private, round=self.done)

    def _testable(self, models: Iterable[Evaluated]) -> Iterator[Evaluated]:
        for model in models:
            if model.private and self._at_nodes:
                continue
            fitting(model.graph, model.state, self.experiment.strategy, "evaluated")
            yield model

    # ------------------------------------------------------------ step 8: record

    def _keep(self, line: dict[str, Json], change: dict[str, Json] | None) -> None:
        """Record a round, and end a run that stops early or does not progress (step 8)."""
        self.lines.append(line)
        self._select(line)
        if self.record is not None:
            began = time.perf_counter()
            self.record.line(line, change)
            self._save()
            # Recorded with the next round, since this record is written before the time is known.
            self._recording = time.perf_counter() - began
        self.trackers.round(line)
        self._give_up()

    def _select(self, line: dict[str, Json]) -> None:
        """Remember the best round, and note if the run ends before its last round."""
        selection = self.experiment.selection
        if selection is None:
            return
        if exhausted := selection.exhausted(self.lines):
            line["stopped"] = exhausted
        if self._best_round() == self.done:
            self.best = self._checkpoint().copy()
            if self.record is not None:
                self.record.pinned = self.done

    def _best_round(self) -> int | None:
        selection = self.experiment.selection
        return None if selection is None else selection.chosen(self.lines)

    @property
    def stopped(self) -> bool:
        """True if the run ends before its last round."""
        return bool(self.lines and self.lines[-1].get("stopped"))

    def _give_up(self) -> None:
        """End a run if every client of its last rounds was rejected or failed."""
        last = self.lines[-self.experiment.patience :]
        lost = [line["rejected"] + line["failed"] for line in last if not line["clients"]]
        if len(lost) == self.experiment.patience and all(lost):
            raise RunError(
                f"no update was accepted in {plural(len(lost), 'round')} in a row",
                where=f"round {self.done}",
                found="; ".join(f"client {one['client']}: {one['reason']}" for one in lost[-1][:3]),
                hint="the rounds are recorded; `patience:` sets the allowed number of such rounds",
            )

    def _save(self) -> None:
        if self.record is not None:
            self.record.save(self._checkpoint())

    def _checkpoint(self) -> Checkpoint:
        private = {client: state.flat() for client, state in self.private.items()}
        return Checkpoint(self.done, self.server.tensors, self.server.values, private)

    # ------------------------------------------------------------ used in all rounds

    def close(self) -> None:
        """End the worker processes."""
        self._workers.close()

    @functools.cached_property
    def _work(self) -> ClientWork:
        """The work of clients: one object for all rounds, so that processes can reuse it."""
        return ClientWork(self.experiment)

    @functools.cached_property
    def _workers(self) -> Workers:
        """The processes in which clients work."""
        setup, asked = self.experiment, self.experiment.engine
        count = self._testers.count
        if asked.places:
            count = asked.workers or len(asked.places)
        return Workers(
            # More workers than sampled clients would be idle.
            min(count, setup.sampled or len(setup.world.clients)),
            always=asked.workers is not None,
            deadline=asked.deadline,
            memory=asked.memory,
            devices=asked.places,
        )

    @functools.cached_property
    def _testers(self) -> Workers:
        """The processes that test models; each device is used by one process."""
        if torch.device(self.experiment.world.device).type != "cpu":
            return Workers()
        return Workers(self.experiment.engine.workers or torch.get_num_threads())

    @functools.cached_property
    def _changes(self) -> Changes:
        return Changes(self.experiment.world.graph)

    @functools.cached_property
    def _evaluator(self) -> Evaluator:
        return Evaluator(self.experiment, self._testers)

    @functools.cached_property
    def _validator(self) -> Evaluator:
        return Evaluator(self.experiment.validating, self._testers)


def _size(came: Returned) -> UpdateSize:
    return came.change or UpdateSize(0.0, 0)


def _spilled(spill: Spill, arrival: Arrival) -> Callable[[], Arrival]:
    """Write the tensors of an update to disk, and return a function that reads it back."""
    task, row, came = arrival
    assert came.outcome is not None  # else it was rejected
    sent, back, seen = map(spill.put, (task.state, came.outcome.state, came.findings))
    bare_task = dataclasses.replace(task, state={})
    bare = dataclasses.replace(came, outcome=None, findings={})
    bare_outcome = dataclasses.replace(came.outcome, state={})

    def read() -> Arrival:
        outcome = dataclasses.replace(bare_outcome, state=spill.get(back))
        returned = dataclasses.replace(bare, outcome=outcome, findings=spill.get(seen))
        return dataclasses.replace(bare_task, state=spill.get(sent)), row, returned

    return read
