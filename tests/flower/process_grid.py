"""A grid in this process: every message is handed to the ClientApp directly.

For tests and for finding faults in a debugger: the same messages as between machines, without any.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import uuid4

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from archgraph.flower.client import PARTITION


class ProcessGrid(Grid):  # type: ignore[misc]  # flwr is not followed
    """Nodes of this process, one for each client; a node works when its reply is asked for.

    Args:
        app: What every node runs.
        clients: Number of nodes; node ``i + 1`` is client ``i``.
    """

    def __init__(self, app: ClientApp, clients: int) -> None:
        self.app = app
        self.contexts = {
            client + 1: Context(0, client + 1, {PARTITION: client}, RecordDict(), {})
            for client in range(clients)
        }
        self._waiting: dict[str, Message] = {}
        # Who sends: Flower's own runtimes say so for the whole process.
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 0

    def set_run(self, run: Any) -> None:
        """There is one run only."""

    @property
    def run(self) -> Any:
        """There is one run only."""
        return None

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """All nodes."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Hand messages over; their nodes begin when they are asked for replies."""
        names = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())  # as Flower's own grids do
            self._waiting[message.metadata.message_id] = message
            names.append(message.metadata.message_id)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Compute the replies to messages, each when it is asked for."""
        for name in message_ids:
            message = self._waiting.pop(name, None)
            if message is not None:
                yield self.app(message, self.contexts[message.metadata.dst_node_id])

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push messages and return the replies at once."""
        return [*self.pull_messages(self.push_messages(messages))]
