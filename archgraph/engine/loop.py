"""The round loop: sample, send, train, receive, test, record."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

from archgraph.engine.before import local_test, trained_together
from archgraph.engine.clientwork import ClientWork
from archgraph.engine.computed import computed
from archgraph.engine.evaluate import Evaluator
from archgraph.engine.experiment import Experiment
from archgraph.engine.privacy import privacy_spent, private_world, weights_alone
from archgraph.engine.returned import each_returned, fitting, received, returned
from archgraph.engine.stream import ResultStream
from archgraph.engine.turn import Elsewhere, Turn
from archgraph.engine.world import testable
from archgraph.errors import RunError
from archgraph.federation import (
    Evaluated,
    Result,
    ServerState,
    Task,
    private_models,
    private_task,
    seeded,
)
from archgraph.federation.class_heads import class_task
from archgraph.plain import Json, json_safe
from archgraph.processes.workers import Workers
from archgraph.record.changes import Changes
from archgraph.record.checkpoint import Checkpoint
from archgraph.record.client import ClientState
from archgraph.record.folder import RunRecord
from archgraph.record.progress import Bars
from archgraph.record.trackers import Trackers
from archgraph.states.updates import unsummable
from archgraph.tables import plural


def sample(
    clients: int,
    count: int | None,
    seed: int,
    round: int,
    *,
    poisson: bool = False,
    spare: int = 0,
) -> tuple[int, ...]:
    """Draw the clients of a round, ascending, and then the spare ones: from (seed, round) only.

    Args:
        clients: All clients.
        count: How many. Default: all.
        seed: Of the run.
        round: Counted from 1.
        poisson: Whether each is drawn by itself; ``count`` then is the expected number.
        spare: How many more, in the order in which they are drawn.

    >>> sample(3, None, seed=0, round=1), len(sample(10, 4, seed=0, round=7))
    ((0, 1, 2), 4)
    """
    if count is None or count >= clients:
        return tuple(range(clients))
    if poisson:  # amplification by sampling is accounted for independent draws only
        drawn = torch.rand(clients, generator=seeded(seed, "sample", round), dtype=torch.float64)
        return tuple((drawn < count / clients).nonzero().flatten().tolist())
    order = torch.randperm(clients, generator=seeded(seed, "sample", round))
    # Ascending: results are merged in this order, whoever is drawn first.
    return (*sorted(order[:count].tolist()), *order[count : count + spare].tolist())


@dataclass(eq=False)
class Loop:
    """The round loop over one experiment, and what changes while it runs.

    Attributes:
        experiment: What is run.
        record: Where it is recorded; None: nowhere.
        watch: Progress bars.
        server: State of the server.
        private: What each client keeps from round to round.
        lines: The lines of the rounds so far.
        done: Rounds that are done.
        trackers: Where the figures of every round go.
        best: The checkpoint of the best round on held-out examples; None: there is none yet.
        elsewhere: Where the clients work; None: on this machine.
    """

    experiment: Experiment
    record: RunRecord | None = None
    watch: Bars = field(default_factory=Bars)
    server: ServerState = field(default_factory=ServerState)
    private: dict[int, ClientState] = field(default_factory=dict)
    lines: list[dict[str, Json]] = field(default_factory=list)
    done: int = 0
    trackers: Trackers = field(default_factory=lambda: Trackers(()))
    best: Checkpoint | None = None
    elsewhere: Elsewhere | None = None
    _recording: float = 0.0

    def start(self, state: ServerState) -> None:
        """Do what comes before the first round: the survey, from the strategy's first state."""
        world, strategy = self.experiment.world, self.experiment.strategy
        turn = self._turn(0)
        with turn.clock.measure("server"):
            asked = each_returned(Task, strategy.survey(world, state), strategy, "survey")
            tasks = (class_task(world, task) for task in asked)
            results = ResultStream(turn.results(tasks), f"{type(strategy).__name__}.surveyed")
            after = strategy.surveyed(world, state, results)
            chosen = returned(ServerState, after, strategy, "surveyed")
        turn.settle()
        if chosen is not state:  # only now does the strategy have its models
            testable(self.experiment, chosen)
        self.server = chosen
        self._save()

    def go_on(self, checkpoint: Checkpoint, lines: list[dict[str, Json]]) -> None:
        """Take up a run after its last checkpoint."""
        self.server = ServerState(checkpoint.tensors, checkpoint.values)
        self.private = {
            client: ClientState.from_flat(flat) for client, flat in checkpoint.private.items()
        }
        self.lines = lines
        self.done = checkpoint.round
        number = self._best_round()
        if number is not None and self.record is not None:
            # Older than the last checkpoints, it must outlive them.
            self.record.pinned = number
            self.best = checkpoint.copy() if number == self.done else self.record.at(number)

    def round(self) -> dict[str, Json]:
        """One round: sample, begin, send, train, receive, test, record."""
        setup, number = self.experiment, self.done + 1
        world, strategy = setup.world, setup.strategy
        began = time.perf_counter()
        turn = self._turn(number)
        drawn = sample(
            len(world.participants),
            setup.sampled,
            world.seed,
            number,
            poisson=setup.privacy is not None and setup.privacy.sampling == "poisson",
            spare=setup.spare,
        )
        needed = len(drawn) - setup.spare
        # A client's further models come with it; where there are spare clients, there are none.
        sampled = (*world.with_further(drawn[:needed]), *drawn[needed:])
        turn.spare = frozenset(drawn[needed:])
        self.watch.round(number, len(sampled) - setup.spare)
        with turn.clock.measure("server"):
            before = strategy.begin(world, self.server, number, sampled)
            state = returned(ServerState, before, strategy, "begin")
            trained = setup.evaluate.trained and not self._at_nodes
            due = setup.evaluate.due(number, world.rounds)
            if trained and due:
                turn.test = local_test(self._evaluator, state)
            # With privacy, what single clients changed is not on record.
            if due and self.record is not None and setup.privacy is None:
                turn.moved = self._changes.moved
            # Generators from here on: a client works when the strategy asks for its result.
            arriving = self._changes.noted(self._filled(turn, state, sampled))
            if setup.privacy is not None:
                world, arriving = private_world(setup, state, number), weights_alone(arriving)
            results = ResultStream(arriving, f"{type(strategy).__name__}.receive")
            state = received(
                strategy,
                lambda: strategy.receive(world, state, results, number),
                state,
                world.graph,
                number,
            )
            change = self._changes.line(number, before, state) if self.record else None
        turn.settle()
        self.server, self.done = state, number
        line: dict[str, Json] = {
            "round": number,
            **turn.report(),
            **privacy_spent(setup, number, len(sampled)),
            "macs": computed(setup, turn.accepted),
        }
        if self.elsewhere is not None and (events := self.elsewhere.events()):
            line["nodes"] = events
        if strategy.reports:
            line["server"] = {name: state.values[name] for name in strategy.reports}
        if due:
            with turn.clock.measure("evaluate"):
                line["evaluation"] = self._tested(self._evaluator)
                if turn.test is not None:
                    line["evaluation"] |= trained_together(turn.accepted, world.learning)
                if self._validator is not None:
                    line["validation"] = self._tested(self._validator)
        line["seconds"] = {
            "local": 0.0,
            **turn.clock.seconds,
            "record": self._recording,
            "total": time.perf_counter() - began,
        }
        line = json_safe(line)  # as it will be read: selection and trackers see no NaN
        self.lines.append(line)
        self._select(line)
        if self.record is not None:
            began = time.perf_counter()
            self.record.line(line, change)
            self._save()
            # In the next line: this one is written before it is known.
            self._recording = time.perf_counter() - began
        self.trackers.round(line)
        self.watch.round_done(line.get("evaluation", {}))
        self._give_up()
        return line

    def _turn(self, number: int) -> Turn:
        workers, elsewhere = self._workers, self.elsewhere
        return Turn(self._work, number, self.private, self.watch, workers, elsewhere=elsewhere)

    def _give_up(self) -> None:
        """End a run whose last rounds changed nothing, since every client was refused or failed."""
        last = self.lines[-self.experiment.patience :]
        lost = [line["rejected"] + line["failed"] for line in last if not line["clients"]]
        if len(lost) == self.experiment.patience and all(lost):
            raise RunError(
                f"no update was accepted in {plural(len(lost), 'round')} in a row",
                where=f"round {self.done}",
                found="; ".join(f"client {one['client']}: {one['reason']}" for one in lost[-1][:3]),
                hint="the rounds are recorded; `patience:` says how many such rounds are allowed",
            )

    @property
    def stopped(self) -> bool:
        """True if the run ends before its last round."""
        return bool(self.lines and self.lines[-1].get("stopped"))

    def _select(self, line: dict[str, Json]) -> None:
        """Remember the best round, and say where the run ends before its last one."""
        selection = self.experiment.selection
        if selection is None:
            return
        reason = selection.exhausted(self.lines)
        if reason:
            line["stopped"] = reason
        if self._best_round() == self.done:
            self.best = self._checkpoint().copy()
            if self.record is not None:
                self.record.pinned = self.done

    def _best_round(self) -> int | None:
        selection = self.experiment.selection
        return None if selection is None else selection.chosen(self.lines)

    def close(self) -> None:
        """End the processes in which clients worked."""
        self._workers.close()

    @functools.cached_property
    def _work(self) -> ClientWork:
        """The work of clients; one object for all rounds, so that processes can go on with it."""
        return ClientWork(self.experiment)

    @functools.cached_property
    def _workers(self) -> Workers:
        """The processes in which clients work."""
        setup = self.experiment
        most, asked = len(setup.world.clients), setup.engine
        count = self._testers.count
        if asked.places:
            count = asked.workers or len(asked.places)
        # More than take part in a round would never have anything to do.
        return dataclasses.replace(
            self._testers,
            count=min(count, setup.sampled or most),
            always=asked.workers is not None,
            deadline=asked.deadline,
            memory=asked.memory,
            devices=asked.places,
        )

    @functools.cached_property
    def _testers(self) -> Workers:
        """The processes that test models; devices are left to one process."""
        engine = self.experiment.engine
        # A device is used by one process.
        if torch.device(self.experiment.world.device).type != "cpu":
            return Workers()
        return Workers(engine.workers or torch.get_num_threads())

    @functools.cached_property
    def _changes(self) -> Changes:
        return Changes(self.experiment.world.graph)

    @functools.cached_property
    def _validator(self) -> Evaluator | None:
        setup = self.experiment
        return None if setup.selection is None else Evaluator(setup.validating, self._testers)

    @functools.cached_property
    def _evaluator(self) -> Evaluator:
        return Evaluator(self.experiment, self._testers)

    def _filled(self, turn: Turn, state: ServerState, sampled: tuple[int, ...]) -> Iterator[Result]:
        """Yield the work of a round's clients, and of spare ones as far as others are missing."""
        rest, needed = iter(sampled), len(sampled) - self.experiment.spare
        # All that are needed side by side; then as many spare ones as are still missing.
        while clients := tuple(itertools.islice(rest, needed - len(turn.accepted))):
            yield from turn.results(self._task(state, client, turn.round) for client in clients)

    def _tested(self, evaluator: Evaluator) -> dict[str, Json]:
        """Test the models that the strategy answers for after the last round."""
        setup = self.experiment
        # Asked anew for each test: models may be made one at a time, as they are tested.
        models = setup.strategy.evaluated(setup.world, self.server)
        each = each_returned(Evaluated, models, setup.strategy, "evaluated")
        each = private_models(setup.strategy, setup.world, each)
        return evaluator(self._announced(each), private=self.private, round=self.done)

    def _task(self, state: ServerState, client: int, number: int) -> Task:
        strategy = self.experiment.strategy
        sent = strategy.send(self.experiment.world, state, client, number)
        task = private_task(strategy, self.experiment.world, returned(Task, sent, strategy, "send"))
        fitting(task.graph, task.state, strategy, "send")
        if task.client != client:
            where = f"{type(strategy).__name__}.send"
            raise RunError(
                "returned a task for another client",
                where=where,
                found=task.client,
                expected=client,
            )
        # Masks of −∞ have no mean: they come back as they were sent, and are left out.
        unmerged = task.unmerged.union(unsummable(task.graph, task.state))
        return dataclasses.replace(task, unmerged=unmerged)

    @property
    def _at_nodes(self) -> bool:
        """True if what clients keep is not here: models that need it cannot be tested."""
        return self.elsewhere is not None and self.elsewhere.holder == "node"

    def _announced(self, models: Iterable[Evaluated]) -> Iterator[Evaluated]:
        for model in models:
            if model.private and self._at_nodes:
                continue
            fitting(model.graph, model.state, self.experiment.strategy, "evaluated")
            self.watch.testing(model.name)
            yield model

    def _save(self) -> None:
        if self.record is not None:
            self.record.save(self._checkpoint())

    def _checkpoint(self) -> Checkpoint:
        private = {client: state.flat() for client, state in self.private.items()}
        return Checkpoint(self.done, self.server.tensors, self.server.values, private)
