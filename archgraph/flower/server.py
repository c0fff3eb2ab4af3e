"""The server on Flower: tasks go out as messages, replies come back in the order of the clients.

The round loop, its strategy, checks, tests and run folder are those of the local engine. Which node
is which client is asked once of every node; a node that comes later is asked when it is there.
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

# Seconds between two looks for a reply: at first, and at most.
SOON, LATE = 0.005, 0.25
# Seconds within which nodes must say who they are, and in which they may still join at the start.
ASKED, JOIN = 600.0, 120.0
# Seconds of waiting before it is said; then it is said whenever they have doubled.
PATIENCE = 10.0
# Flower forgets a node's process that is not ready in time, and starts the next one: for ever on a
# machine that is too slow. Nothing of that reaches the server.
SLOW = (
    "Flower starts a process there for every message and gives it 30 s: on a busy machine it is "
    "never ready, and the node's log says `task-token authentication failed`"
)


class NodeError(ArchGraphError):
    """A node failed, or did not answer."""


class Reminder:
    """Says when a wait is worth a line: after `PATIENCE` seconds, and whenever these double."""

    def __init__(self) -> None:
        self.since, self._next = time.monotonic(), PATIENCE

    def due(self) -> float:
        """Return the seconds of waiting if they are worth a line, else 0."""
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
        grid: Where the nodes are.
        clients: Number of clients of the experiment.
        holder: Who holds what clients keep.
        deadline: Seconds after which a client of a round is left out; None: any.
        join: Seconds that a run waits for its nodes at the start.
        tell: Where it is said whom the server waits for, and which nodes it cannot use.
        rows: What each client's node has said of its rows, where these are its own.
    """

    grid: Grid
    clients: int
    holder: Literal["server", "node"] = "server"
    deadline: float | None = None
    join: float = JOIN
    tell: Callable[[str], None] = _aloud
    rows: dict[int, ClientRows] = field(default_factory=dict)
    _node: dict[int, int] = field(default_factory=dict)
    # Nodes that were asked who they are; those that have not answered yet, by message; the clients
    # that others would be, and why they are not.
    _asked: set[int] = field(default_factory=set)
    _silent: dict[str, tuple[int, Reminder]] = field(default_factory=dict)
    _refused: dict[int, tuple[Json, str]] = field(default_factory=dict)
    _events: list[dict[str, Json]] = field(default_factory=list)

    @classmethod
    def of(cls, grid: Grid, experiment: Experiment) -> Self:
        """Return the nodes that an experiment asks for."""
        clients, deadline = len(experiment.world.clients), experiment.engine.deadline
        return cls(grid, clients, deadline=deadline)

    def __call__(
        self, round: int, tasks: Iterable[Task], private: Mapping[int, ClientState]
    ) -> Iterator[Working]:
        """Send all tasks, then wait for each in turn."""
        self.meet()
        # All at once: nodes work side by side while the replies are read one by one.
        sent = [(task, self._send(task, round, private), Reminder()) for task in tasks]
        for task, message, wait in sent:
            yield task, functools.partial(self._outcome, task, message, wait, round)

    def events(self) -> list[dict[str, Json]]:
        """Return what is new of nodes since it was asked for last, for the record of a round."""
        new, self._events = self._events, []
        return new

    def _note(self, event: str, text: str, **facts: Json) -> None:
        """Say what happened to a node, and record it."""
        self.tell(text)
        self._events.append({"event": event, **facts})

    def _send(
        self, task: Task, round: int, private: Mapping[int, ClientState]
    ) -> Message | NodeError:
        """Send a task to its node; return the message, or the reason why none was sent."""
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
        return NodeError("the message was not taken", where=f"node {node}")

    def _outcome(
        self, task: Task, message: Message | NodeError, wait: Reminder, round: int
    ) -> Outcome:
        """Return what came back for a task, and say what did not.

        Raises:
            NodeError: If the node failed, or there is no reply in time.
            RejectedUpdate: If the reply is not one to this task.
        """
        try:
            return self._received(task, message, wait, round)
        except (NodeError, RejectedUpdate) as error:
            text = printable(str(error))
            kind = "refused" if isinstance(error, RejectedUpdate) else "failed"
            self.tell(f"round {round}: client {task.client} {kind}: {text}")  # its row records it
            raise

    def _received(
        self, task: Task, message: Message | NodeError, wait: Reminder, round: int
    ) -> Outcome:
        if isinstance(message, NodeError):
            raise message
        came = read_reply(self._reply(task.client, message, wait, round), task.client)
        # A node writes these texts: what it says may be long, or not text at all.
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
        """Wait for the reply to a message and return its content; say how long it takes."""
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
            # Fast clients are not kept waiting, and slow ones are not asked too often.
            pause = min(pause * 1.5, LATE)

    def _waiting(self, round: int, client: int, node: int, seconds: float) -> str:
        text = f"round {round}: waiting for client {client} (node {node}) since {seconds:.0f} s"
        if node in set(self.grid.get_node_ids()):
            return text
        end = "" if self.deadline is None else f"; the deadline is {self.deadline:g} s"
        return f"{text}: it is not connected any more, and is given up after a minute or two{end}"

    def meet(self, *, every: bool = False) -> None:
        """Ask new nodes which client they are; at the start, wait until all clients are there.

        1. A node is asked once; it may answer at any time.
        2. The start ends when every client has a node (or, unless all are needed, has one that
           cannot take part), or when the time to join is over and every connected node has
           answered, at the latest after `ASKED` seconds.
        3. Before a later round, nodes that have not answered yet join a later one.

        Args:
            every: Whether all clients are needed.

        Raises:
            RunError: If no node is a client, or one is missing of which all are needed.
        """
        first, wait = not self._asked, Reminder()
        if not first:
            self._asked -= self._refused.keys()  # what a node lacked may be there now
        while True:
            self._ask(sorted(set(self.grid.get_node_ids()) - self._asked))  # 1
            self._hear()
            seconds, missing = time.monotonic() - wait.since, self._missing(every)
            over = seconds > (ASKED if self._silent else self.join)
            if not first or not missing or over:  # 2, 3
                break
            if wait.due():
                self.tell(self._awaited(missing, seconds))
                # A node that has died without a word may answer the next time.
                self._asked -= {node for node, (who, _) in self._refused.items() if who is None}
            time.sleep(LATE)
        absent = self._missing()
        if not self._node or (every and absent):
            raise self._unmet(absent)
        if first and absent:
            text = f"begins without {plural(len(absent), 'client')}: {listed(absent)}"
            self._note("missing", f"{text}; they join when they come", clients=absent)

    def _missing(self, every: bool = True) -> list[int]:
        """Return the clients without a node; unless all are needed, those that may still come."""
        lost = set() if every else {client for client, _ in self._refused.values()}
        return [i for i in range(self.clients) if i not in self._node and i not in lost]

    def _awaited(self, missing: list[int], seconds: float) -> str:
        """Say whom the start waits for, and for how long."""
        left = f"{self.join - seconds:.0f} s are left (join={self.join:g})"
        if seconds > self.join:
            left = f"nodes that are connected have {ASKED - seconds:.0f} s to answer"
        count = f"{plural(len(missing), 'client')} of {self.clients}"
        return f"waiting for {count}: {listed(missing)}; {left}"

    def _unmet(self, absent: list[int]) -> RunError:
        """Return the error of a run that lacks clients, with what their nodes say."""
        reasons = [f"node {node}: {why}" for node, (_, why) in self._refused.items()]
        reasons += [f"node {node}: no answer; {SLOW}" for node, _ in self._silent.values()]
        missing_ids = listed(absent) if self._node else f"0...{self.clients - 1}"
        return RunError(
            "clients without a node" if self._node else "no node is a client of this experiment",
            where="engine: flower",
            found="; ".join(reasons) or plural(len(self._asked), "node"),
            expected=f"nodes with partition-id {missing_ids}",
            hint="a node whose key or certificate is wrong never arrives here: its own log says so",
        )

    def _ask(self, nodes: Iterable[int]) -> None:
        """Ask nodes who they are."""
        for node in nodes:
            self._asked.add(node)
            content = RecordDict({"who": ConfigRecord(installed_here())})
            message = Message(content, node, MessageType.QUERY, ttl=ASKED, group_id="who")
            if [*self.grid.push_messages([message])]:
                self._silent[message.metadata.message_id] = node, Reminder()

    def _hear(self) -> None:
        """Read the answers of nodes that were asked who they are."""
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
        """Note which client a node is, or why it is not one; of two that say the same, the later.

        1. It must be of this version, be a client of this run, and have what it needs.
        2. Another version of PyTorch may round otherwise: that is said.
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
            self._refuse(node, client, "its rows have changed: begin the run anew to use them")
            return
        self._refused.pop(node, None)
        before, self._node[client] = self._node.get(client), node
        text, facts = f"client {client} is on node {node}", {"client": client, "node": str(node)}
        if rows is not None:
            text += f", with {plural(rows.examples, 'example')}{rows.by_label}"
        if before is not None:  # a node that was started anew takes its client over
            text += f", no longer on node {before}"
            if before in set(self.grid.get_node_ids()):
                text += "; both are connected: start each with a partition-id of its own"
        ours = installed_here()["torch"]
        if who["torch"] != ours:  # step 2
            text += f"; it has PyTorch {who['torch']}, the server {ours}: figures may differ"
        self._note("joined", text, **facts)

    def _refuse(self, node: int, client: Json, reason: str) -> None:
        if self._refused.get(node) != (client, reason):  # said once
            self._refused[node] = client, reason
            who = f"node {node}" if client in (None, -1) else f"node {node} (client {client})"
            text = f"{who} cannot take part: {reason}"
            self._note("refused", text, client=client, node=str(node), reason=reason)


def _unknown(who: Mapping[str, Json], clients: int) -> str:
    """Return what is wrong with the number of a node's client; empty if nothing is."""
    client = who.get("client")
    if isinstance(client, int) and client in range(clients):
        return ""
    return str(
        RunError(
            "not a client of this run",
            where="partition-id",
            found="none" if client == -1 else client,
            expected=f"0...{clients - 1}",
            hint="start the node with --node-config 'partition-id=0', say",
        )
    )
