"""The clients of one round: their work as a stream of results."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import statistics
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from archgraph.analysis.roles import frozen
from archgraph.engine.clientwork import Assignment, ClientWork, copies, malicious
from archgraph.engine.computed import MACS, of_client
from archgraph.engine.experiment import Experiment
from archgraph.errors import RejectedUpdate, RunError
from archgraph.federation import Outcome, Result, State, Task
from archgraph.plain import Json
from archgraph.processes.isolation import one_thread
from archgraph.processes.process import Died, attempted
from archgraph.processes.reasons import printable, reason
from archgraph.processes.workers import Workers
from archgraph.record.client import KeptByClient
from archgraph.record.progress import Bars
from archgraph.record.traffic import DOWN, UP, sent
from archgraph.states.clipping import UpdateSize, clipped
from archgraph.states.spill import Spill

# A task with a function that returns its outcome, or raises what became of it.
Working: TypeAlias = tuple[Task, Callable[[], Outcome]]
LocalTest: TypeAlias = Callable[[Task, State], Mapping[str, float]]


class Elsewhere(Protocol):
    """Where clients work, if not on this machine."""

    private: Literal["server", "node"]
    """Who holds what clients keep. At a node it never comes back: ``Task.kept`` is missing in the
    outcomes, and models that need it are not tested."""

    def __call__(
        self, round: int, tasks: Iterable[Task], kept: Mapping[int, KeptByClient]
    ) -> Iterable[Working]:
        """The tasks of a round in their order, each with what waits for its outcome."""


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


class _Arrival(NamedTuple):
    """The work of a client after all checks of a single update.

    Attributes:
        task: What the client was to do.
        who: Whose it is, for the record.
        outcome: What came of it.
        result: What the strategy sees of that.
        seconds: How long the client worked.
        change: The size of the change in what is merged; None: nothing limits it.
        clipped: Factor by which the change was scaled down.
    """

    task: Task
    who: dict[str, Json]
    outcome: Outcome
    result: Result
    seconds: float
    change: UpdateSize | None = None
    clipped: float = 1.0

    def spilled(self, spill: Spill) -> Callable[[], _Arrival]:
        """Write the tensors to disk, and return a function that reads this arrival back."""
        sent, back = spill.put(self.task.state), spill.put(self.outcome.state)
        findings, names = spill.put(self.result.findings), tuple(self.result.state)
        bare = self._having({}, {}, (), {})
        return lambda: bare._having(spill.get(sent), spill.get(back), names, spill.get(findings))

    def _having(
        self, sent: State, state: State, returned: Iterable[str], findings: State
    ) -> _Arrival:
        """This arrival with other tensors; the result has those of some names."""
        own = {name: state[name] for name in returned}
        result = dataclasses.replace(self.result, state=own, findings=findings)
        return self._replace(
            task=dataclasses.replace(self.task, state=sent),
            outcome=dataclasses.replace(self.outcome, state=state),
            result=result,
        )


@dataclass(eq=False)
class Turn:
    """One round's clients: their work as a stream of results, and what became of each.

    Attributes:
        work: What clients do with what they are assigned.
        round: Counted from 1; 0 for the survey.
        kept: What clients kept; replaced client by client as results are accepted.
        watch: Progress bars.
        workers: Where the clients work.
        clock: Seconds of local training and server work.
        accepted: A report for each client whose update was accepted.
        rejected: Client, name and reason of each update that was refused.
        failed: The same for clients that did not get that far.
        test: Figures of a client's model as it is after local training; None: it is not tested.
        elsewhere: Where the clients work; None: on this machine.
        spare: Clients that were drawn to take the places of others.
    """

    work: ClientWork
    round: int
    kept: dict[int, KeptByClient]
    watch: Bars
    workers: Workers = field(default_factory=Workers)
    clock: Clock = field(default_factory=Clock)
    accepted: list[dict[str, Json]] = field(default_factory=list)
    rejected: list[dict[str, Json]] = field(default_factory=list)
    failed: list[dict[str, Json]] = field(default_factory=list)
    test: LocalTest | None = None
    elsewhere: Elsewhere | None = None
    spare: frozenset[int] = frozenset()
    _first: BaseException | None = None

    @property
    def experiment(self) -> Experiment:
        """What is run."""
        return self.work.experiment

    def results(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """The work of one client after the other; one update is alive at a time for each worker.

        Their order is that of the tasks, whoever is ready first. With a bound relative to the
        round's median they wait on disk: the median comes first.

        To be iterated inside ``clock.measure("server")``: local work is taken out of it.
        """
        for arrival in self._limited(self._arrived(tasks)):
            task, outcome, result = arrival.task, arrival.outcome, arrival.result
            changing = task.kept - frozen(task.graph)
            own = {name: outcome.state[name] for name in changing if name in outcome.state}
            if own or outcome.keep or task.client in self.kept:
                # Copies: else the memory of all that has come back would stay for a part of it.
                self.kept[task.client] = KeptByClient(copies(own), copies(outcome.keep))
            attacks = malicious(self.experiment, self.round, task.client)
            more: dict[str, Json] = {"malicious": True} if attacks else {}
            more |= {"clipped": arrival.clipped} if arrival.clipped < 1 else {}
            if "seen" in outcome.metrics:
                more[MACS] = of_client(task, outcome.metrics["seen"])
            if self.test is not None:
                with self.clock.measure("evaluate"):
                    more["trained"] = dict(self.test(task, outcome.state))
            self.accepted.append(
                {**arrival.who, "examples": result.examples, **more, "seconds": arrival.seconds}
                | {**outcome.metrics}
            )
            del arrival, task, outcome, own
            yield result
            del result

    def _arrived(self, tasks: Iterable[Task]) -> Iterator[_Arrival]:
        """What comes back and is not refused."""
        with contextlib.closing(self._calls(map(self._announced, tasks))) as calls:
            for task, found in calls:
                arrival = self._arrival(task, found)
                self.watch.client_done()
                if arrival is not None:
                    yield arrival
                del task, found, arrival

    def _calls(self, tasks: Iterable[Task]) -> Generator[tuple[Task, dict[str, Any] | Died]]:
        """What came of each task, in their order."""
        if self.elsewhere is None:
            yield from self.workers.calls(
                self.work,
                tasks,
                begin=self._assignment,
                key=lambda task: task.client,
                progress=self.watch.step,
                waiting=lambda: self.clock.measure("local"),
                again=True,
            )
            return
        for task, work in self.elsewhere(self.round, tasks, self.kept):
            with self.clock.measure("local"):
                found = attempted(functools.partial(self.work.checked, self.round, task, work))
            yield task, found
            del found

    def _assignment(self, task: Task) -> Assignment:
        """What a client begins with, now."""
        return Assignment(self.round, task, self.kept.get(task.client, KeptByClient()))

    def _announced(self, task: Task) -> Task:
        self.watch.client(self._name(task))
        return task

    def _name(self, task: Task) -> str:
        return task.tier or self.experiment.world.clients[task.client].name

    def _arrival(self, task: Task, found: dict[str, Any] | Died) -> _Arrival | None:
        """What came of an attempt; None if the client failed or its update was refused."""
        who: dict[str, Json] = {"client": task.client, "name": self._name(task)}
        who |= {"spare": True} if task.client in self.spare else {}
        who[DOWN] = sent(task, self.kept.get(task.client, KeptByClient()))
        if isinstance(found, Died):
            if self._first is None:
                self._first = found.error
            if self._first is None:  # it was in another process
                self._first = ChildProcessError(found.reason)
                self._first.add_note(found.trace)
            self.failed.append({**who, "reason": printable(found.reason)})
            return None
        who |= {UP: found[UP]} if UP in found else {}
        if "rejected" in found:
            self.rejected.append({**who, "reason": found["rejected"]})
            return None
        outcome = Outcome(**found["outcome"])
        result = dataclasses.replace(self.work.result(task, outcome), findings=found["findings"])
        size = UpdateSize(*found["change"]) if "change" in found else None
        return _Arrival(task, who, outcome, result, found["seconds"], size)

    def _limited(self, arrived: Iterator[_Arrival]) -> Iterator[_Arrival]:
        """Arrivals whose change `bound` allows, scaled down as far as `clip` says."""
        if not self.work.limits(self.round):
            yield from arrived
            return
        bound, rules, median = self.experiment.bound, self.work.clip(self.round), 0.0
        sized = ((arrival, arrival.change or UpdateSize(0.0, 0)) for arrival in arrived)
        if bound is not None or (rules is not None and rules.clip == "median"):
            spill = Spill()
            waiting = [(arrival.spilled(spill), size) for arrival, size in sized]
            median = statistics.median(size.rms for _, size in waiting) if waiting else 0.0
            sized = ((read(), size) for read, size in waiting)
        for arrival, size in sized:
            try:
                if bound is not None and size.rms > bound * median > 0:
                    raise RejectedUpdate(
                        "the update is too large",
                        found=f"a change of {size.rms:.3g} per value",
                        expected=f"at most {bound * median:.3g}, "
                        f"{bound:g} times the round's median",
                    )
                if rules is not None:
                    arrival = self._times(arrival, rules.factor(size, median))
            except RejectedUpdate as error:
                self.rejected.append({**arrival.who, "reason": reason(error)})
            else:
                yield arrival
            del arrival

    def _times(self, arrival: _Arrival, factor: float) -> _Arrival:
        """An arrival with its update scaled by a factor, and examined as it is then."""
        if factor == 1:
            return arrival
        result = arrival.result
        state = clipped(arrival.task.state, result.state, factor, result.skip)
        with one_thread():
            result = self.work.examined(dataclasses.replace(result, state=state))
        return arrival._replace(result=result, clipped=factor)

    def settle(self) -> None:
        """After the stream has ended.

        Raises:
            RunError: If every client failed: then it is not the clients.
        """
        if self._first is not None and not self.accepted and not self.rejected:
            reasons = Counter(str(who["reason"]) for who in self.failed)
            said = (
                reason
                if number == len(self.failed)
                else f"{reason} ({number} of {len(self.failed)} clients)"
                for reason, number in reasons.most_common(3)
            )
            raise RunError(
                "every client failed",
                where=f"round {self.round}",
                found="; ".join(said),
                hint="the first failure is this error's cause (`--debug` shows it)",
            ) from self._first

    def report(self) -> dict[str, Json]:
        """What became of the clients, as the record has it."""
        return {"clients": self.accepted, "rejected": self.rejected, "failed": self.failed}
