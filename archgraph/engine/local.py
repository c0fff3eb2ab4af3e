"""The local engine: all clients in this process, one after the other.

One client's model and update are in memory at a time, whatever the number of clients: the strategy
asks for tasks and is handed results as a stream. All randomness is drawn from generators seeded by
(seed, purpose, round, client), so that a run that goes on after a crash ends with the same bits.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from archgraph.analysis.roles import frozen
from archgraph.engine.attack import Attack
from archgraph.engine.evaluate import Evaluator
from archgraph.engine.experiment import Experiment
from archgraph.engine.progress import Bars, bars, table
from archgraph.engine.record import Checkpoint, Record, reserved, resumable
from archgraph.engine.shard import Kept, isolated
from archgraph.engine.world import prepare
from archgraph.errors import RejectedUpdate, RunError
from archgraph.federation import (
    Evaluated,
    Outcome,
    Result,
    ServerState,
    State,
    Task,
    Work,
    World,
    seeded,
)
from archgraph.graph.ir import ArchGraph
from archgraph.language import ExperimentSpec, load_experiment
from archgraph.language.flat import dump
from archgraph.plain import Json, finite
from archgraph.states import check_update


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run.

    Attributes:
        experiment: What was run.
        server: State of the server after the last round.
        rounds: A line per round, as in ``metrics.jsonl``.
        folder: The run folder, if there is one.
    """

    experiment: Experiment
    server: ServerState
    rounds: tuple[Mapping[str, Json], ...]
    folder: Path | None = None

    @property
    def evaluation(self) -> Mapping[str, Json]:
        """The last evaluation."""
        return next((r["evaluation"] for r in reversed(self.rounds) if r.get("evaluation")), {})

    @property
    def models(self) -> tuple[Evaluated, ...]:
        """The models that the strategy answers for, as trained."""
        return tuple(self.experiment.strategy.evaluated(self.experiment.world, self.server))

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of all rounds together: local training, server work, evaluation, record."""
        names = ("local", "server", "evaluate", "record", "total")
        return {name: sum(r["seconds"].get(name, 0.0) for r in self.rounds) for name in names}

    def table(self) -> Any:
        """A rich table with a row per tier."""
        return table(self.experiment.world, self.evaluation)


class Clock:
    """Seconds by purpose; time inside an inner purpose does not count for the outer one.

    Example:
        >>> clock = Clock()
        >>> with clock.measure("server"):
        ...     with clock.measure("local"):
        ...         pass
        >>> sorted(clock.seconds)
        ['local', 'server']
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    @contextlib.contextmanager
    def measure(self, purpose: str) -> Iterator[None]:
        """Count for a purpose."""
        self._lap()
        self._open.append(purpose)
        try:
            yield
        finally:
            self._lap()
            self._open.pop()

    def _lap(self) -> None:
        now = time.perf_counter()
        if self._open:
            purpose = self._open[-1]
            self.seconds[purpose] = self.seconds.get(purpose, 0.0) + now - self._since
        self._since = now


def sample(clients: int, count: int | None, seed: int, round: int) -> tuple[int, ...]:
    """Clients of a round, ascending: drawn from (seed, round) only.

    >>> sample(3, None, seed=0, round=1), len(sample(10, 4, seed=0, round=7))
    ((0, 1, 2), 4)
    """
    if count is None or count >= clients:
        return tuple(range(clients))
    order = torch.randperm(clients, generator=seeded(seed, "sample", round))
    return tuple(sorted(order[:count].tolist()))


@dataclass(eq=False)
class Turn:
    """One round's clients: their work as a stream of results, and what became of each.

    Attributes:
        experiment: What is run.
        round: Counted from 1; 0 for the survey.
        kept: What clients kept; replaced client by client as results are accepted.
        watch: Progress bars.
        clock: Seconds of local training and server work.
        accepted: A report for each client whose update was accepted.
        rejected: Client, name and reason of each update that was refused.
        failed: The same for clients that did not get that far.
    """

    experiment: Experiment
    round: int
    kept: dict[int, Kept]
    watch: Bars
    clock: Clock = field(default_factory=Clock)
    accepted: list[dict[str, Json]] = field(default_factory=list)
    rejected: list[dict[str, Json]] = field(default_factory=list)
    failed: list[dict[str, Json]] = field(default_factory=list)
    _first: Exception | None = None

    def results(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """The work of one client after the other; one update is alive at a time.

        To be iterated inside ``clock.measure("server")``: local work is taken out of it.
        """
        for task in tasks:
            name = task.tier or self.experiment.world.clients[task.client].name
            self.watch.client(name)
            who: dict[str, Json] = {"client": task.client, "name": name}
            began = time.perf_counter()
            try:
                with self.clock.measure("local"):
                    outcome = self._work(task)
                seconds = time.perf_counter() - began
                result = self._accept(task, outcome)
            except RejectedUpdate as error:
                self.rejected.append({**who, "reason": str(error)})
            except Exception as error:  # whatever a client dies of, the others go on
                self._first = self._first or error
                self.failed.append({**who, "reason": f"{type(error).__name__}: {error}"})
            else:
                attacked = {"malicious": True} if self._malicious(task.client) else {}
                self.accepted.append(
                    {**who, "examples": result.examples, **attacked, "seconds": seconds}
                    | {key: float(value) for key, value in outcome.metrics.items()}
                )
                del outcome
                yield result
                del result
            self.watch.client_done()

    def settle(self) -> None:
        """After the stream has ended.

        Raises:
            RunError: If every client failed: then it is not the clients.
        """
        if self._first is not None and not self.accepted and not self.rejected:
            raise RunError(
                "every client failed",
                where=f"round {self.round}",
                found=self.failed[0]["reason"],
                hint="the first failure is shown as the cause",
            ) from self._first

    def report(self) -> dict[str, Json]:
        """What became of the clients, as the record has it."""
        return {"clients": self.accepted, "rejected": self.rejected, "failed": self.failed}

    def _malicious(self, client: int) -> bool:
        return client in self.experiment.malicious and self.round > 0

    def _work(self, task: Task) -> Outcome:
        """What the client does."""
        setup = self.experiment
        world, device = setup.world, setup.options.device
        kept = self.kept.get(task.client, Kept())
        state = kept.over(task.state, task.kept)
        missing = [name for name in task.graph.state_names if name not in state]
        if missing:
            raise RunError(
                "the task lacks entries that the client never kept", found=", ".join(missing[:3])
            )
        program = task.program
        if self._malicious(task.client):
            program = Attack(program, setup.intensity, world.seed)
        generator = seeded(world.seed, "client", self.round, task.client)
        with isolated(generator, device):
            return program(
                Work(
                    client=task.client,
                    round=self.round,
                    rounds=world.rounds,
                    graph=task.graph,
                    state=state,
                    data=setup.shard(task.client),
                    local=setup.local,
                    generator=generator,
                    keep=kept.keep,
                    others=task.others,
                    extras=task.extras,
                    values=task.values,
                    device=device,
                    progress=self.watch.step,
                )
            )

    def _accept(self, task: Task, outcome: Outcome) -> Result:
        """What the server sees of an outcome, if all of it is fit to be seen."""
        check_update(task.graph, outcome.state)
        if set(outcome.others) != set(task.others):
            raise RejectedUpdate(
                "other models than the task's",
                found=", ".join(outcome.others) or "none",
                expected=", ".join(task.others) or "none",
            )
        for name, state in outcome.others.items():
            _check_other(name, task.others[name].graph, state)
        for name, tensor in outcome.extras.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise RejectedUpdate("not finite", where=name, expected="finite numbers")
        result = task.result(outcome, len(self.experiment.shares[task.client]))
        self.experiment.strategy.examine(self.experiment.world, result)
        changing = task.kept - frozen(task.graph)
        own = {name: outcome.state[name] for name in changing if name in outcome.state}
        if own or outcome.keep or task.client in self.kept:
            self.kept[task.client] = Kept(own, outcome.keep)
        return result


def _check_other(name: str, graph: ArchGraph, state: State) -> None:
    """Check one of a client's further models; an error names it."""
    try:
        check_update(graph, state)
    except RejectedUpdate as error:
        raise RejectedUpdate(
            error.message,
            where=f"{name}: {error.where}",
            found=error.found,
            expected=error.expected,
            hint=error.hint,
        ) from None


@dataclass(eq=False)
class Loop:
    """The round loop over one experiment, and what changes while it runs.

    Attributes:
        experiment: What is run.
        record: Where it is recorded; None: nowhere.
        watch: Progress bars.
        server: State of the server.
        kept: What clients kept.
        lines: The lines of the rounds so far.
        done: Rounds that are done.
    """

    experiment: Experiment
    record: Record | None = None
    watch: Bars = field(default_factory=Bars)
    server: ServerState = field(default_factory=ServerState)
    kept: dict[int, Kept] = field(default_factory=dict)
    lines: list[dict[str, Json]] = field(default_factory=list)
    done: int = 0
    _recording: float = 0.0

    def start(self, state: ServerState) -> None:
        """What comes before the first round: the survey, from the strategy's first state."""
        world, strategy = self.experiment.world, self.experiment.strategy
        turn = Turn(self.experiment, 0, self.kept, self.watch)
        with turn.clock.measure("server"):
            tasks = strategy.survey(world, state)
            state = strategy.surveyed(world, state, turn.results(tasks))
        turn.settle()
        self.server = state
        self._save()

    def go_on(self, checkpoint: Checkpoint, lines: list[dict[str, Json]]) -> None:
        """Take up a run after its last checkpoint."""
        self.server = ServerState(checkpoint.tensors, checkpoint.values)
        self.kept = {client: Kept.from_flat(flat) for client, flat in checkpoint.kept.items()}
        self.lines = lines
        self.done = checkpoint.round

    def round(self) -> dict[str, Json]:
        """One round: sample, begin, send, train, receive, test, record."""
        setup, number = self.experiment, self.done + 1
        world, strategy = setup.world, setup.strategy
        began = time.perf_counter()
        before = dict(self.kept)
        turn = Turn(setup, number, self.kept, self.watch)
        sampled = sample(len(world.clients), setup.options.sampled, world.seed, number)
        self.watch.round(number, len(sampled))
        with turn.clock.measure("server"):
            state = strategy.begin(world, self.server, number, sampled)
            tasks = (strategy.send(world, state, client, number) for client in sampled)
            state = strategy.receive(world, state, turn.results(tasks), number)
        turn.settle()
        self.server, self.done = state, number
        line: dict[str, Json] = {"round": number, **turn.report()}
        if setup.options.tests(number, world.rounds):
            with turn.clock.measure("evaluate"):
                models = strategy.evaluated(world, state)
                line["evaluation"] = self._evaluator(
                    self._announced(models), kept=self.kept, round=number
                )
        line["seconds"] = {
            "local": 0.0,
            **turn.clock.seconds,
            "record": self._recording,
            "total": time.perf_counter() - began,
        }
        line = finite(line)
        self.lines.append(line)
        if self.record is not None:
            began = time.perf_counter()
            for client, kept in self.kept.items():
                if before.get(client) is not kept:
                    self.record.changed(client)
            self.record.line(line)
            if setup.options.saves(number, world.rounds):
                self._save()
            self._recording = time.perf_counter() - began
        self.watch.round_done(line.get("evaluation", {}))
        return line

    @functools.cached_property
    def _evaluator(self) -> Evaluator:
        setup, options = self.experiment, self.experiment.options
        return Evaluator(
            world=setup.world,
            data=setup.data,
            shard=setup.shard,
            local=setup.local,
            batch=options.batch,
            examples=options.statistics,
            fine_tune=options.fine_tune,
            device=options.device,
        )

    def _announced(self, models: Iterable[Evaluated]) -> Iterator[Evaluated]:
        for model in models:
            self.watch.testing(model.name)
            yield model

    def _save(self) -> None:
        if self.record is not None:
            kept = {client: kept.flat() for client, kept in self.kept.items()}
            self.record.save(Checkpoint(self.done, self.server.tensors, self.server.values, kept))


def run(
    experiment: str | os.PathLike[str] | ExperimentSpec,
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    data_root: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Run:
    """Run an experiment.

    Args:
        experiment: A file, or what was read from one.
        out: Run folder; None: the one that the experiment names, if any; else nothing is written.
        resume: Go on with the run in that folder, after its last checkpoint.
        data_root: Folder of the data; None: the spec's, else what ``ARCHGRAPH_DATA`` names.
        progress: Show progress where somebody watches.

    Returns:
        The finished run: server state, a line per round, a table.

    Raises:
        ArchGraphError: If the experiment cannot be understood or cannot run as it stands, or the
            folder is in use, cannot be written, or holds another experiment. Nothing is left behind
            then.
    """
    spec = experiment if isinstance(experiment, ExperimentSpec) else load_experiment(experiment)
    folder = None if out is None and spec.out is None else Path(out or spec.out or "")
    if resume:
        if folder is None:
            raise RunError("no run to resume", found="no run folder", hint="say which: out=...")
        resumable(folder)
    with contextlib.nullcontext() if resume or folder is None else reserved(folder):
        prepared = prepare(spec, data_root=data_root)
        return execute(prepared, out=folder, resume=resume, progress=progress)


def execute(
    experiment: Experiment,
    *,
    out: Path | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Run:
    """Run an experiment that is prepared already; see :func:`run`."""
    with contextlib.ExitStack() as stack:
        loop = Loop(experiment)
        # Before anything is written: the strategy may refuse this world.
        first = experiment.strategy.init(experiment.world)
        checkpoint = None
        if out is not None:
            facts, keep = finite(experiment.facts), experiment.options.checkpoints
            if resume:
                loop.record, checkpoint, lines = Record.resume(out, facts, keep=keep)
            else:
                stack.enter_context(reserved(out))
                files = _models(experiment.world)
                loop.record = Record.create(out, experiment.text, facts, files=files, keep=keep)
            stack.enter_context(loop.record)
            if checkpoint is not None:
                loop.go_on(checkpoint, lines)
        rounds = experiment.world.rounds
        loop.watch = stack.enter_context(bars(rounds, loop.done, show=progress))
        if checkpoint is None:
            loop.start(first)
        while loop.done < rounds:
            loop.round()
        return Run(experiment, loop.server, tuple(loop.lines), out)


def _models(world: World) -> dict[str, str]:
    """The architectures as files of the run folder, so that its tensors mean something alone."""
    graphs = {"global": world.graph, **{tier.name: tier.graph for tier in world.tiers}}
    graphs = {name: graph for name, graph in graphs.items() if graph.nodes}
    return {f"models/{name}.yaml": dump(graph) for name, graph in graphs.items()}
