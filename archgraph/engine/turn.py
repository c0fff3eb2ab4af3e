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
from typing import Literal, Protocol, TypeAlias

from archgraph.engine.clientwork import Assignment, ClientWork, Returned, private_part
from archgraph.engine.computed import MACS, of_client
from archgraph.engine.experiment import Experiment
from archgraph.errors import RejectedUpdate, RunError
from archgraph.federation import Outcome, Result, State, Task
from archgraph.plain import Json
from archgraph.processes.isolation import one_thread
from archgraph.processes.process import Died, attempted
from archgraph.processes.reasons import printable, reason
from archgraph.processes.workers import Workers
from archgraph.record.client import ClientState
from archgraph.record.progress import Bars
from archgraph.record.traffic import DOWN, UP, sent
from archgraph.states.clipping import UpdateSize, clipped
from archgraph.states.spill import Spill

# A task with a function that returns its outcome, or raises what became of it.
Working: TypeAlias = tuple[Task, Callable[[], Outcome]]
# A task with what the record says of its client so far, and what came back.
Arrival: TypeAlias = tuple[Task, dict[str, Json], Returned]
LocalTest: TypeAlias = Callable[[Task, State], Mapping[str, float]]


class Elsewhere(Protocol):
    """Where clients work, if not on this machine."""

    holder: Literal["server", "node"]
    """Who holds what clients keep. At a node it never comes back: ``Task.private`` is missing in
    the outcomes, and models that need it are not tested."""

    def __call__(
        self, round: int, tasks: Iterable[Task], private: Mapping[int, ClientState]
    ) -> Iterable[Working]:
        """Return the tasks of a round in their order, each with what waits for its outcome."""

    def events(self) -> list[dict[str, Json]]:
        """Return what is new of the machines since it was asked for last: late or refused ones."""


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


@dataclass(eq=False)
class Turn:
    """One round's clients: their work as a stream of results, and what became of each.

    Attributes:
        work: What clients do with what they are assigned.
        round: Counted from 1; 0 for the survey.
        private: What each client keeps; replaced client by client as results are accepted.
        watch: Progress bars.
        workers: Where the clients work.
        clock: Seconds of local training and server work.
        accepted: A report for each client whose update was accepted.
        rejected: Client, name and reason of each update that was refused.
        failed: The same for clients that did not get that far.
        test: Figures of a client's model as it is after local training; None: it is not tested.
        elsewhere: Where the clients work; None: on this machine.
        spare: Clients that were drawn to take the places of others.
        moved: Called for each accepted update: kind of client, state sent, result.
    """

    work: ClientWork
    round: int
    private: dict[int, ClientState]
    watch: Bars
    workers: Workers = field(default_factory=Workers)
    clock: Clock = field(default_factory=Clock)
    accepted: list[dict[str, Json]] = field(default_factory=list)
    rejected: list[dict[str, Json]] = field(default_factory=list)
    failed: list[dict[str, Json]] = field(default_factory=list)
    test: LocalTest | None = None
    elsewhere: Elsewhere | None = None
    spare: frozenset[int] = frozenset()
    moved: Callable[[str, State, Result], None] | None = None
    _first: BaseException | None = None

    @property
    def experiment(self) -> Experiment:
        """The experiment that is run."""
        return self.work.experiment

    def results(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """Yield the work of one client after the other; one update per worker is alive at a time.

        Their order is that of the tasks, whoever is ready first. With a bound relative to the
        round's median they wait on disk: the median comes first.

        To be iterated inside ``clock.measure("server")``: local work is taken out of it.
        """
        arrivals, median = self._with_median(self._arrivals(tasks))
        for arrival in arrivals:
            result = self._accepted(*arrival, median)
            del arrival  # while the strategy has the result, nothing else refers to its tensors
            # A client without a target that counts has learned nothing; a survey asks all of them.
            if result is not None and (self.round == 0 or result.weight("examples") > 0):
                yield result
            del result

    def _arrivals(self, tasks: Iterable[Task]) -> Iterator[Arrival]:
        """Yield what comes back and is not refused, with what the record says of it so far."""
        with contextlib.closing(self._calls(map(self._announced, tasks))) as calls:
            for task, came in calls:
                row = self._row(task)
                self.watch.client_done()
                if isinstance(came, Died):
                    self._failed(row, came)
                    continue
                row |= {} if came.bytes_up is None else {UP: came.bytes_up}
                if came.refused is not None:
                    self.rejected.append({**row, "reason": came.refused})
                    continue
                yield task, row, came
                del task, came

    def _calls(self, tasks: Iterable[Task]) -> Generator[tuple[Task, Returned | Died]]:
        """Yield what came of each task, in their order."""
        if self.elsewhere is None:
            yield from self.workers.calls(
                self.work,
                tasks,
                # Called when the client begins: an earlier task of its own may have left more.
                begin=lambda task: Assignment(self.round, task, self._own(task.client)),
                # Two tasks of one client: the second needs what the first left behind.
                key=lambda task: task.client,
                progress=self.watch.step,
                waiting=lambda: self.clock.measure("local"),
                again=True,
            )
            return
        at_node = self.elsewhere.holder == "node"
        for task, work in self.elsewhere(self.round, tasks, self.private):
            checked = functools.partial(
                self.work.checked, self.round, task, work, optional=task.private if at_node else ()
            )
            with self.clock.measure("local"):
                came = attempted(checked)
            yield task, came
            del came

    def _own(self, client: int) -> ClientState:
        return self.private.get(client, ClientState())

    def _announced(self, task: Task) -> Task:
        self.watch.client(self._name(task))
        return task

    def _name(self, task: Task) -> str:
        return task.tier or self.experiment.world.clients[task.client].name

    def _row(self, task: Task) -> dict[str, Json]:
        """Return what the record says of a client, whatever came of its work."""
        row: dict[str, Json] = {"client": task.client, "name": self._name(task)}
        row |= {"spare": True} if task.client in self.spare else {}
        return row | {DOWN: sent(task, self._own(task.client))}

    def _failed(self, row: dict[str, Json], died: Died) -> None:
        if self._first is None:
            self._first = died.error
        if self._first is None:  # it was in another process
            # Errors do not travel: only their text does.
            self._first = ChildProcessError(died.reason)
            self._first.add_note(died.trace)
        self.failed.append({**row, "reason": printable(died.reason)})

    def _with_median(self, arrivals: Iterator[Arrival]) -> tuple[Iterator[Arrival], float]:
        """Return the updates with the median of their sizes, for which all of them wait on disk.

        It is 0 where no limit is relative to it; then they pass one by one.
        """
        rules = self.work.clip(self.round)
        relative = self.experiment.bound is not None or (rules and rules.clip == "median")
        if not (relative and self.work.limits(self.round)):
            return arrivals, 0.0
        spill = Spill()
        waiting = [(_size(one[2]).rms, _spilled(spill, one)) for one in arrivals]
        median = statistics.median(rms for rms, _ in waiting) if waiting else 0.0
        return (read() for _, read in waiting), median

    def _accepted(
        self, task: Task, row: dict[str, Json], came: Returned, median: float
    ) -> Result | None:
        """Return an update as the strategy sees it, and record its client; None: it is refused.

        1. A change of more than `bound` medians is refused.
        2. A change that `clip` limits is scaled down, and examined as it is then.
        """
        outcome, size = came.outcome, _size(came)
        assert outcome is not None  # else it was refused where it was checked
        result = dataclasses.replace(self.work.result(task, outcome), findings=came.findings)
        bound, rules = self.experiment.bound, self.work.clip(self.round)
        factor = 1.0 if rules is None else rules.factor(size, median)
        try:
            if bound is not None and size.rms > bound * median > 0:  # step 1
                raise RejectedUpdate(
                    "the update is too large",
                    found=f"a change of {size.rms:.3g} per value",
                    expected=f"at most {bound * median:.3g}, {bound:g} times the round's median",
                )
            if factor != 1:  # step 2
                state = clipped(task.state, result.state, factor, result.unmerged)
                with one_thread():  # the same bits as where an update arrives
                    result = dataclasses.replace(result, state=state)
                    result = dataclasses.replace(result, findings=self.work.findings(result))
        except RejectedUpdate as error:
            self.rejected.append({**row, "reason": reason(error)})
            return None
        private = private_part(task, outcome, self._own(task.client))
        if private.state or private.keep or task.client in self.private:
            self.private[task.client] = private
        row["examples"] = result.examples
        row |= {"malicious": True} if self.work.attacks(self.round, task.client) else {}
        row |= {"clipped": factor} if factor < 1 else {}
        row |= outcome.metrics
        if "seen" in outcome.metrics or MACS in outcome.metrics:
            row[MACS] = of_client(task, outcome.metrics)
        if self.test is not None:
            with self.clock.measure("evaluate"):
                row["trained"] = dict(self.test(task, outcome.state))
        if self.moved is not None:
            self.moved(row["name"], task.state, result)
        self.accepted.append({**row, "seconds": came.seconds})
        return result

    def settle(self) -> None:
        """Check, after the stream has ended, that some client succeeded or was refused.

        Raises:
            RunError: If every client failed: then it is not the clients.
        """
        if self._first is not None and not self.accepted and not self.rejected:
            reasons = Counter(str(who["reason"]) for who in self.failed).most_common(3)
            clients = f"of {len(self.failed)} clients"
            if len(reasons) > 1:
                texts = [f"{reason} ({number} {clients})" for reason, number in reasons]
            else:
                texts = [reason for reason, _ in reasons]
            raise RunError(
                "every client failed",
                where=f"round {self.round}",
                found="; ".join(texts),
                hint="the first failure is this error's cause (`--debug` shows it)",
            ) from self._first

    def report(self) -> dict[str, Json]:
        """Return what became of the clients, as the record has it."""
        return {"clients": self.accepted, "rejected": self.rejected, "failed": self.failed}


def _size(came: Returned) -> UpdateSize:
    return came.change or UpdateSize(0.0, 0)


def _spilled(spill: Spill, arrival: Arrival) -> Callable[[], Arrival]:
    """Write the tensors of an update to disk, and return a function that reads it back."""
    task, row, came = arrival
    assert came.outcome is not None  # else it was refused
    sent, back, seen = map(spill.put, (task.state, came.outcome.state, came.findings))
    bare_task = dataclasses.replace(task, state={})
    bare = dataclasses.replace(came, outcome=None, findings={})
    bare_outcome = dataclasses.replace(came.outcome, state={})

    def read() -> Arrival:
        outcome = dataclasses.replace(bare_outcome, state=spill.get(back))
        returned = dataclasses.replace(bare, outcome=outcome, findings=spill.get(seen))
        return dataclasses.replace(bare_task, state=spill.get(sent)), row, returned

    return read
