"""Whom the server waits for, what it says of it, and what the record has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import Message

from archgraph.engine import prepare
from archgraph.engine.experiment import Experiment
from archgraph.engine.local import execute
from archgraph.errors import RunError
from archgraph.flower import server
from archgraph.flower.client import client_app
from archgraph.flower.server import SLOW, Nodes

from .process_grid import ProcessGrid

Change = Callable[[int, Message], Message]


class SlowGrid(ProcessGrid):
    """Nodes that answer messages after so many seconds of a clock that runs by itself."""

    seconds: dict[tuple[int, str], float]
    change: Change = staticmethod(lambda node, reply: reply)

    def __init__(self, *arguments: Any, seconds: dict[tuple[int, str], float]) -> None:
        super().__init__(*arguments)
        self.seconds, self.now = seconds, 0.0
        self.sent: dict[str, float] = {}
        self.gone: set[int] = set()

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1.0)

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in super().get_node_ids() if node not in self.gone]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = [*super().push_messages(messages)]
        self.sent |= dict.fromkeys(names, self.now)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        for name in message_ids:
            message = self._waiting.get(name)
            if message is None:
                continue
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            if self.now - self.sent[name] >= self.seconds.get((node, kind), 0.0):
                yield from (self.change(node, r) for r in super().pull_messages([name]))


@pytest.fixture
def run(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A round of two clients: its line, and what was said."""

    def run(
        seconds: dict[tuple[int, str], float],
        change: Change | None = None,
        gone: Iterable[int] = (),
        join: float = 120.0,
        clients: int = 2,
    ) -> tuple[Any, list[str]]:
        family = {"model": "model.yaml", "clients": [{"name": "all", "count": 2}]}
        setup: Experiment = prepare(write("fedavg", family=family, rounds=1))
        grid, said = SlowGrid(client_app(lambda context: setup), clients, seconds=seconds), []
        grid.change = change or grid.change
        clock = SimpleNamespace(monotonic=lambda: grid.now, sleep=grid.sleep)
        monkeypatch.setattr(server, "time", clock)

        def tell(text: str) -> None:
            said.append(text)
            grid.gone |= {*gone} if "waiting for client" in text else set()

        nodes = Nodes(grid, 2, join=join, tell=tell)
        return execute(setup, progress=False, elsewhere=nodes).rounds[0], said

    return run


def test_a_late_reply_is_waited_for_by_name(run):
    line, said = run({(2, "train"): 45.0})
    assert [text for text in said if "waiting" in text] == [
        f"round 1: waiting for client 1 (node 2) for {seconds} s" for seconds in (10, 20, 40)
    ]
    assert "round 1: client 1 has answered after 45 s" in said
    (waited,) = [event for event in line["nodes"] if event["event"] == "waited"]
    assert waited == {"event": "waited", "client": 1, "node": "2", "seconds": 45.0}


def test_a_node_that_is_gone_is_said_to_be(run):
    _, said = run({(2, "train"): 25.0}, gone=[2])
    assert "for 20 s: it is no longer connected, and is dropped after" in said[-2]


def test_a_node_that_never_gets_ready_is_said_to_be_and_why_it_may(run):
    line, said = run({(2, "query"): 50.0}, join=30.0)
    assert "node 2 is connected, but has not answered for 10 s" in said
    assert f"node 2 is connected, but has not answered for 40 s; {SLOW}" in said
    assert said.index("client 1 is on node 2") > 0
    assert len(line["clients"]) == 2  # after the time to join: the node was there


def test_a_run_says_without_whom_it_begins(run):
    line, said = run({}, clients=1, join=25.0)
    assert said[1:4] == [
        "waiting for 1 client of 2: 1; 15 s left (join=25)",
        "waiting for 1 client of 2: 1; 5 s left (join=25)",
        "starts without 1 client: 1; they join when they connect",
    ]
    assert said[4] == "round 1: client 1 failed: no node is this client; expected partition-id=1"
    assert [event["event"] for event in line["nodes"]] == ["joined", "missing"]


@pytest.mark.parametrize(
    "key, value, expected",
    [
        ("archgraph", "0.0.1", "other versions; found archgraph 0.0.1; expected archgraph "),
        ("format", 3, "other versions; found messages of format 3; expected"),
        ("trouble", "rows.csv: does not exist", "rows.csv: does not exist"),
    ],
)
def test_a_node_that_cannot_take_part_is_named_at_once_and_in_the_record(run, key, value, expected):
    def change(node: int, reply: Message) -> Message:
        if node == 2 and "who" in reply.content:
            reply.content["who"][key] = value
        return reply

    line, said = run({}, change)
    assert said[1].startswith(f"node 2 (client 1) cannot take part: {expected}")
    (refused,) = [event for event in line["nodes"] if event["event"] == "refused"]
    assert refused["client"] == 1 and expected in refused["reason"]
    (failed,) = line["failed"]
    assert failed["client"] == 1 and expected in failed["reason"]


def test_two_nodes_of_one_client_and_another_pytorch_are_said(run):
    def change(node: int, reply: Message) -> Message:
        if "who" in reply.content:
            reply.content["who"]["client"], reply.content["who"]["torch"] = 0, "0.9"
        return reply

    _, said = run({}, change, join=0.0)
    assert "; both are connected: start each with its own partition-id" in said[1]
    assert "; it has PyTorch 0.9, the server " in said[1]


def test_a_partition_that_there_is_not_ends_the_run_with_what_to_do(run):
    def change(node: int, reply: Message) -> Message:
        if "who" in reply.content:
            reply.content["who"]["client"] = 7
        return reply

    with pytest.raises(RunError, match=r"partition-id: not a client of this run; found 7; exp"):
        run({}, change, join=0.0)
