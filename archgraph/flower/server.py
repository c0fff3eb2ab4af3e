"""The server on Flower: sends tasks to nodes, and reads replies in the order of the clients.

Round loop, strategy, checks, tests and run folder are those of the local engine. When a node
connects, it is asked once which client it runs.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from archgraph.engine.experiment import Experiment
from archgraph.engine.returned import outcome_of
from archgraph.engine.rounds import Working
from archgraph.engine.rows import ClientRows
from archgraph.errors import ArchGraphError, RejectedUpdate, RunError
from archgraph.federation import Outcome, Task
from archgraph.flower.records import installed_here, read_reply, task_record, versions_apart
from archgraph.hints import listed
from archgraph.plain import Json
from archgraph.processes.process import Died
from archgraph.processes.reasons import LONGEST, printable
from archgraph.record.client import CONFIRMED, ClientState
from archgraph.tables import plural

# Shortest and longest interval of polling for a reply, in seconds.
SOON, LATE = 0.005, 0.25
# Seconds in which nodes must answer which client they are, and in which they may join a run.
ASKED, JOIN = 600.0, 120.0
# Seconds of waiting before the first report. The next report follows when the time has doubled.
PATIENCE = 10.0
# If a process of a node is not ready in time, Flower starts another one. On a machine that is too
# slow, this repeats forever, without an error on the server.
SLOW = (
    "Flower starts a process there for every message and allows it 30 s: on a busy machine it is "
    "never ready, and the node's log has `task-token authentication failed`"
)


class NodeError(ArchGraphError):
    """A node failed or did not answer."""


class Reminder:
    """Schedules reports about a wait: after `PATIENCE` seconds, then whenever the time doubles."""

    def __init__(self) -> None:
        self.since, self._next = time.monotonic(), PATIENCE

    def due(self) -> float:
        """Return the seconds of waiting if a report is due; otherwise 0."""
        seconds = time.monotonic() - self.since
        if seconds < self._next:
            return 0.0
        while self._next <= seconds:
            self._next *= 2
        return seconds


def _aloud(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@dataclass(eq=False)
class Nodes:
    """The clients of an experiment on the nodes of a grid.

    Attributes:
        grid: Flower's grid of nodes.
        clients: Number of clients of the experiment.
        holder: Where the private states of clients are stored: ``node`` or ``server``.
        deadline: Seconds after which a client is skipped in a round; None if there is no deadline.
        join: Seconds that a run waits for its nodes at the start.
        tell: Prints reports about clients for which the server waits, and about nodes.
        rows: Dict from client to facts about its rows that its node sent, if only the node has
            these rows.
    """

    grid: Grid
    clients: int
    holder: Literal["server", "node"] = "server"
    deadline: float | None = None
    join: float = JOIN
    tell: Callable[[str], None] = _aloud
    rows: dict[int, ClientRows] = field(default_factory=dict)
    _node: dict[int, int] = field(default_factory=dict)
    # Nodes that were asked which client they are, messages to nodes that have not answered yet, and
    # rejected nodes with their client and the reason.
    _asked: set[int] = field(default_factory=set)
    _silent: dict[str, tuple[int, Reminder]] = field(default_factory=dict)
    _refused: dict[int, tuple[Json, str]] = field(default_factory=dict)
    _events: list[dict[str, Json]] = field(default_factory=list)

    @classmethod
    def of(cls, grid: Grid, experiment: Experiment) -> Self:
        """Create the object with the settings of an experiment."""
        clients, deadline = len(experiment.world.clients), experiment.engine.deadline
        return cls(grid, clients, deadline=deadline)

    def __call__(
        self, round: int, tasks: Iterable[Task], private: Mapping[int, ClientState]
    ) -> Iterator[Working]:
        """Send all tasks, then wait for each reply in turn."""
        self.meet()
        # Send all tasks first, so that nodes work in parallel.
        sent = [(task, self._send(task, round, private), Reminder()) for task in tasks]
        for task, message, wait in sent:
            yield task, functools.partial(self._outcome, task, message, wait, round)

    def events(self) -> list[dict[str, Json]]:
        """Return the events of nodes since the last call, for the run folder."""
        new, self._events = self._events, []
        return new

    def _note(self, event: str, text: str, **facts: Json) -> None:
        """Print and record an event of a node."""
        self.tell(text)
        self._events.append({"event": event, **facts})

    def _send(
        self, task: Task, round: int, private: Mapping[int, ClientState]
    ) -> Message | NodeError:
        """Send a task to its node; return the message, or the reason why it could not be sent."""
        node = self._node.get(task.client)
        if node is None:
            reasons = [why for client, why in self._refused.values() if client == task.client]
            if reasons:
                return NodeError("its node cannot take part", found=reasons[-1])
            return NodeError("no node is this client", expected=f"partition-id={task.client}")
        state = private.get(task.client, ClientState())
        confirmed = int(state.keep[CONFIRMED]) if CONFIRMED in state.keep else -1
        content = task_record(task, round, state if self.holder == "server" else None, confirmed)
        message = Message(content, node, MessageType.TRAIN, ttl=self.deadline, group_id=str(round))
        if [*self.grid.push_messages([message])]:
            return message
        return NodeError("the message was not accepted", where=f"node {node}")

    def _outcome(
        self, task: Task, message: Message | NodeError, wait: Reminder, round: int
    ) -> Outcome:
        """Return the outcome of a task; print a message if it fails.

        Raises:
            NodeError: If the node failed, or did not reply in time.
            RejectedUpdate: If the reply does not belong to this task.
        """
        try:
            return self._received(task, message, wait, round)
        except (NodeError, RejectedUpdate) as error:
            text = printable(str(error))
            kind = "refused" if isinstance(error, RejectedUpdate) else "failed"
            self.tell(f"round {round}: client {task.client} {kind}: {text}")
            raise

    def _received(
        self, task: Task, message: Message | NodeError, wait: Reminder, round: int
    ) -> Outcome:
        if isinstance(message, NodeError):
            raise message
        came = read_reply(self._reply(task.client, message, wait, round), task.client)
        # The node may have sent long texts, or values that are not texts.
        if isinstance(came, Died):
            raise NodeError(str(came.reason)[:LONGEST])
        if came.refused is not None:
            raise RejectedUpdate(str(came.refused)[:LONGEST])
        outcome = outcome_of(self, came.outcome)
        if self.holder == "node":
            state = {name: t for name, t in outcome.state.items() if name not in task.private}
            note = {CONFIRMED: torch.tensor(round)}
            outcome = dataclasses.replace(outcome, state=state, keep=note)
        return outcome

    def _reply(self, client: int, message: Message, wait: Reminder, round: int) -> RecordDict:
        """Wait for the reply to a message, report long waits, and return the content."""
        identity, pause, late = message.metadata.message_id, SOON, False
        node = message.metadata.dst_node_id
        while True:
            for reply in self.grid.pull_messages([identity]):
                seconds = time.monotonic() - wait.since
                if reply.has_error():
                    raise NodeError("the node failed", found=reply.error.reason)
                if late:
                    text = f"round {round}: client {client} has answered after {seconds:.0f} s"
                    facts: dict[str, Json] = {"client": client, "node": str(node)}
                    self._note("waited", text, **facts, seconds=float(f"{seconds:.1f}"))
                return reply.content
            if self.deadline is not None and time.monotonic() - wait.since > self.deadline:
                raise NodeError("no reply in time", expected=f"one within {self.deadline:g} s")
            if seconds := wait.due():
                late = True
                self.tell(self._waiting(round, client, node, seconds))
            time.sleep(pause)
            # Increase the interval of polling.
            pause = min(pause * 1.5, LATE)

    def _waiting(self, round: int, client: int, node: int, seconds: float) -> str:
        text = f"round {round}: waiting for client {client} (node {node}) for {seconds:.0f} s"
        if node in set(self.grid.get_node_ids()):
            return text
        end = "" if self.deadline is None else f"; the deadline is {self.deadline:g} s"
        return f"{text}: it is no longer connected, and is dropped after a minute or two{end}"

    def meet(self, *, every: bool = False) -> None:
        """Ask new nodes which client they run; at the start, wait for all clients.

        1. Ask each node once. It may answer at any time.
        2. At the start, wait until each client has a node. If some clients may be missing, do not
           wait for clients whose nodes were rejected. Stop when the time to join is over and each
           connected node has answered, or after `ASKED` seconds.
        3. Do not wait before later rounds. Nodes that have not answered yet join a later round.

        Args:
            every: Whether all clients are required.

        Raises:
            RunError: If no node runs a client, or if all clients are required and one is missing.
        """
        first, wait = not self._asked, Reminder()
        if not first:
            self._asked -= self._refused.keys()  # rejected nodes may be ready now
        while True:
            self._ask(sorted(set(self.grid.get_node_ids()) - self._asked))  # 1
            self._hear()
            seconds, missing = time.monotonic() - wait.since, self._missing(every)
            over = seconds > (ASKED if self._silent else self.join)
            if not first or not missing or over:  # 2, 3
                break
            if wait.due():
                self.tell(self._awaited(missing, seconds))
                # A node that crashed before its answer may answer the next time.
                self._asked -= {node for node, (who, _) in self._refused.items() if who is None}
            time.sleep(LATE)
        absent = self._missing()
        if not self._node or (every and absent):
            raise self._unmet(absent)
        if first and absent:
            text = f"starts without {plural(len(absent), 'client')}: {listed(absent)}"
            self._note("missing", f"{text}; they join when they connect", clients=absent)

    def _missing(self, every: bool = True) -> list[int]:
        """Return the clients without a node; if not all are required, without rejected clients."""
        lost = set() if every else {client for client, _ in self._refused.values()}
        return [i for i in range(self.clients) if i not in self._node and i not in lost]

    def _awaited(self, missing: list[int], seconds: float) -> str:
        """Return a text: for which clients the server waits at the start, and how long."""
        left = f"{self.join - seconds:.0f} s left (join={self.join:g})"
        if seconds > self.join:
            left = f"connected nodes have {ASKED - seconds:.0f} s to answer"
        count = f"{plural(len(missing), 'client')} of {self.clients}"
        return f"waiting for {count}: {listed(missing)}; {left}"

    def _unmet(self, absent: list[int]) -> RunError:
        """Return an error about missing clients, with the reasons why nodes were rejected."""
        reasons = [f"node {node}: {why}" for node, (_, why) in self._refused.items()]
        reasons += [f"node {node}: no answer; {SLOW}" for node, _ in self._silent.values()]
        missing_ids = listed(absent) if self._node else f"0...{self.clients - 1}"
        return RunError(
            "clients without a node" if self._node else "no node is a client of this experiment",
            where="engine: flower",
            found="; ".join(reasons) or plural(len(self._asked), "node"),
            expected=f"nodes with partition-id {missing_ids}",
            hint="a node with a wrong key or certificate never connects: check the log of the node",
        )

    def _ask(self, nodes: Iterable[int]) -> None:
        """Ask nodes which client they are."""
        for node in nodes:
            self._asked.add(node)
            content = RecordDict({"who": ConfigRecord(installed_here())})
            message = Message(content, node, MessageType.QUERY, ttl=ASKED, group_id="who")
            if [*self.grid.push_messages([message])]:
                self._silent[message.metadata.message_id] = node, Reminder()

    def _hear(self) -> None:
        """Read the answers of nodes that were asked which client they are."""
        if not self._silent:
            return
        for reply in self.grid.pull_messages(list(self._silent)):
            node, _ = self._silent.pop(reply.metadata.reply_to_message_id)
            self._introduce(node, reply)
        for name, (node, wait) in list(self._silent.items()):
            if seconds := wait.due():
                text = f"node {node} is connected, but has not answered for {seconds:.0f} s"
                self.tell(text if seconds < 4 * PATIENCE else f"{text}; {SLOW}")
            if time.monotonic() - wait.since > ASKED:
                self._silent.pop(name)
                self._asked.discard(node)

    def _introduce(self, node: int, reply: Message) -> None:
        """Register the node of a client, which replaces an earlier node, or reject the node.

        1. The node must have this version, the data and code of the run, and the number of one of
           its clients.
        2. Report another version of PyTorch, which may round differently.
        """
        if reply.has_error():
            self._refuse(node, None, reply.error.reason)
            return
        who = reply.content["who"]
        if (
            trouble := versions_apart(who)
            or _unknown(who, self.clients)
            or str(who.get("trouble", ""))
        ):
            self._refuse(node, who.get("client"), printable(trouble))  # step 1
            return
        client = int(who["client"])
        rows = ClientRows.read(reply.content["rows"]) if "rows" in reply.content else None
        if rows is not None and self.rows.setdefault(client, rows) != rows:
            self._refuse(node, client, "its rows have changed: start a new run to use them")
            return
        self._refused.pop(node, None)
        before, self._node[client] = self._node.get(client), node
        text, facts = f"client {client} is on node {node}", {"client": client, "node": str(node)}
        if rows is not None:
            text += f", with {plural(rows.examples, 'example')}{rows.by_label}"
        if before is not None:  # a restarted node replaces the earlier node
            text += f", no longer on node {before}"
            if before in set(self.grid.get_node_ids()):
                text += "; both are connected: start each with its own partition-id"
        ours = installed_here()["torch"]
        if who["torch"] != ours:  # step 2
            text += f"; it has PyTorch {who['torch']}, the server {ours}: figures may differ"
        self._note("joined", text, **facts)

    def _refuse(self, node: int, client: Json, reason: str) -> None:
        if self._refused.get(node) != (client, reason):  # report each reason once
            self._refused[node] = client, reason
            who = f"node {node}" if client in (None, -1) else f"node {node} (client {client})"
            text = f"{who} cannot take part: {reason}"
            self._note("refused", text, client=client, node=str(node), reason=reason)


def _unknown(who: Mapping[str, Json], clients: int) -> str:
    """Return an error text for an invalid number of a node's client; empty if it is valid."""
    client = who.get("client")
    if isinstance(client, int) and client in range(clients):
        return ""
    return str(
        RunError(
            "not a client of this run",
            where="partition-id",
            found="none" if client == -1 else client,
            expected=f"0...{clients - 1}",
            hint="start the node with, for example, --node-config 'partition-id=0'",
        )
    )
