"""The server on Flower: tasks go out as messages, replies come back in the order of the clients.

The round loop, its strategy, checks, tests and run folder are those of the local engine. Which node
is which client is asked once of every node; a node that comes later is asked when it is there.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from archgraph.engine.experiment import Experiment
from archgraph.engine.returned import outcome_of
from archgraph.engine.turn import Working
from archgraph.errors import ArchGraphError, RejectedUpdate, RunError
from archgraph.federation import Outcome, Task
from archgraph.flower.records import FORMAT, read_reply, task_record
from archgraph.processes.process import Died
from archgraph.processes.reasons import LONGEST
from archgraph.record.client import CONFIRMED, ClientState

# Seconds between two looks for a reply: at first, and at most.
SOON, LATE = 0.005, 0.25
# Seconds within which nodes must say who they are, and in which they may still join at the start.
ASKED, JOIN = 600.0, 120.0


class NodeError(ArchGraphError):
    """A node failed, or did not answer."""


@dataclass(eq=False)
class Nodes:
    """The clients of an experiment on the nodes of a grid.

    Attributes:
        grid: Where the nodes are.
        clients: Number of clients of the experiment.
        holder: Who holds what clients keep.
        deadline: Seconds after which a client of a round is left out; None: any.
        join: Seconds that a run waits for its nodes at the start.
    """

    grid: Grid
    clients: int
    holder: Literal["server", "node"] = "server"
    deadline: float | None = None
    join: float = JOIN
    _node: dict[int, int] = field(default_factory=dict)
    _asked: set[int] = field(default_factory=set)
    _trouble: str = ""

    @classmethod
    def of(cls, grid: Grid, experiment: Experiment) -> Self:
        """Return the nodes that an experiment asks for."""
        clients, deadline = len(experiment.world.clients), experiment.engine.deadline
        return cls(grid, clients, deadline=deadline)

    def __call__(
        self, round: int, tasks: Iterable[Task], private: Mapping[int, ClientState]
    ) -> Iterator[Working]:
        """Send all tasks, then wait for each in turn."""
        self._meet()
        # All at once: nodes work side by side while the replies are read one by one.
        sent = [(task, self._send(task, round, private), time.monotonic()) for task in tasks]
        for task, message, since in sent:
            yield task, functools.partial(self._outcome, task, message, since, round)

    def _send(
        self, task: Task, round: int, private: Mapping[int, ClientState]
    ) -> Message | NodeError:
        """Send a task to its node; return the message, or the reason why none was sent."""
        node = self._node.get(task.client)
        if node is None:
            return NodeError("no node is this client", expected=f"partition-id={task.client}")
        state = private.get(task.client, ClientState())
        confirmed = int(state.keep[CONFIRMED]) if CONFIRMED in state.keep else -1
        content = task_record(task, round, state if self.holder == "server" else None, confirmed)
        message = Message(content, node, MessageType.TRAIN, ttl=self.deadline, group_id=str(round))
        if [*self.grid.push_messages([message])]:
            return message
        return NodeError("the message was not taken", where=f"node {node}")

    def _outcome(
        self, task: Task, message: Message | NodeError, since: float, round: int
    ) -> Outcome:
        """Return what came back for a task.

        Raises:
            NodeError: If the node failed, or there is no reply in time.
            RejectedUpdate: If the reply is not one to this task.
        """
        if isinstance(message, NodeError):
            raise message
        came = read_reply(self._reply(message, since), task.client)
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

    def _reply(self, message: Message, since: float) -> RecordDict:
        """Wait for the reply to a message and return its content."""
        identity, pause = message.metadata.message_id, SOON
        while True:
            for reply in self.grid.pull_messages([identity]):
                if reply.has_error():
                    raise NodeError("the node failed", found=reply.error.reason)
                return reply.content
            if self.deadline is not None and time.monotonic() - since > self.deadline:
                raise NodeError("no reply in time", expected=f"one within {self.deadline:g} s")
            time.sleep(pause)
            # Fast clients are not kept waiting, and slow ones are not asked too often.
            pause = min(pause * 1.5, LATE)

    def _meet(self) -> None:
        """Ask new nodes which client they are; at the start, wait until all clients are there."""
        first, until = not self._asked, time.monotonic() + self.join
        while True:
            new = sorted(set(self.grid.get_node_ids()) - self._asked)
            self._ask(new)
            if not first or len(self._node) == self.clients or time.monotonic() > until:
                break
            time.sleep(LATE)
        if not self._node:
            raise RunError(
                "no node is a client of this experiment",
                where="engine: flower",
                found=self._trouble or f"{len(self._asked)} nodes",
                expected=f"nodes with partition-id 0...{self.clients - 1}",
                hint="start nodes with --node-config 'partition-id=0'",
            )

    def _ask(self, nodes: Iterable[int]) -> None:
        asked = {}
        for node in nodes:
            self._asked.add(node)
            content = RecordDict({"who": ConfigRecord({"format": FORMAT})})
            message = Message(content, node, MessageType.QUERY, ttl=ASKED, group_id="who")
            if [*self.grid.push_messages([message])]:
                asked[message.metadata.message_id] = node
        until, pause = time.monotonic() + ASKED, SOON
        while asked and time.monotonic() < until:
            for reply in self.grid.pull_messages(list(asked)):
                node = asked.pop(reply.metadata.reply_to_message_id)
                self._introduce(node, reply)
            time.sleep(pause if asked else 0)
            pause = min(pause * 1.5, LATE)

    def _introduce(self, node: int, reply: Message) -> None:
        """Note which client a node is; of two nodes that say the same, the later one is it."""
        if reply.has_error():
            self._trouble = reply.error.reason
            self._asked.discard(node)  # it may be able to say so later
            return
        who = reply.content["who"]
        client, version = (who.get(key) for key in ("client", "format"))
        if version == FORMAT and isinstance(client, int) and client in range(self.clients):
            # A node that was started anew takes its client over.
            self._node[client] = node
