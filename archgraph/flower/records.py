"""Tasks and what comes back as Flower's records: architectures as text, weights as safetensors.

What a node receives or returns is data from another machine: it is read into plain values and
tensors, and nothing of it is executed.
"""

from __future__ import annotations

import functools
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from archgraph.federation import Model, Outcome, Result, Task
from archgraph.flower.programs import Trusted, as_plain, as_program
from archgraph.graph.ir import ArchGraph
from archgraph.language import flat
from archgraph.language.yaml import parse_document
from archgraph.record.client import KeptByClient
from archgraph.states import wire

# Version of the messages; server and nodes must agree.
FORMAT = 2
# A record holds one message (archgraph.states.wire), as one array: Flower sends arrays in pieces.
BODY = "message"


def packed(value: Any) -> ArrayRecord:
    """Write plain values and tensors as a record.

    Example:
        >>> import torch
        >>> unpacked(packed({"w": torch.ones(2, dtype=torch.bfloat16)}))
        {'w': tensor([1., 1.], dtype=torch.bfloat16)}
    """
    message = wire.encode(value)
    return ArrayRecord({BODY: Array("uint8", (len(message),), "safetensors", message)})


def unpacked(record: ArrayRecord) -> Any:
    """Read a record of :func:`packed`.

    Raises:
        RejectedUpdate: If it is not such a record.
    """
    return wire.decode(record[BODY].data)


def task_record(task: Task, round: int, kept: KeptByClient | None, confirmed: int) -> RecordDict:
    """Build the record that a node is sent.

    Args:
        task: What its client is to do.
        round: Counted from 1; 0 for the survey.
        kept: What the client kept, if the server holds it; None if the node does.
        confirmed: The last round in which the server accepted an update of the client; -1 if none.
    """
    body = {
        "round": round,
        "confirmed": confirmed,
        "private": None if kept is None else kept.flat(),
        "graph": _text(task.graph),
        "state": task.state,
        "program": as_plain(task.program),
        "kept": sorted(task.kept),
        "others": {name: [_text(m.graph), m.state] for name, m in task.others.items()},
        "extras": task.extras,
        "values": task.values,
        "tier": task.tier,
    }
    said = ConfigRecord({"format": FORMAT, "client": task.client})
    return RecordDict({"task": said, "body": packed(body)})


def read_task(content: RecordDict, trusted: Trusted) -> tuple[Task, int, KeptByClient | None, int]:
    """Read the arguments of :func:`task_record` back from its record.

    Raises:
        RunError: If it is of another version of archgraph, or names a program that is not trusted.
    """
    said, body = content["task"], unpacked(content["body"])
    task = Task(
        client=int(said["client"]),
        graph=_graph(body["graph"]),
        state=body["state"],
        program=as_program(body["program"], trusted),
        kept=frozenset(body["kept"]),
        others={name: Model(_graph(text), own) for name, (text, own) in body["others"].items()},
        extras=body["extras"],
        values=body["values"],
        tier=body["tier"],
    )
    private = body["private"]
    kept = None if private is None else KeptByClient.from_flat(private)
    return task, body["round"], kept, body["confirmed"]


def result_record(result: Result, kept: KeptByClient | None) -> RecordDict:
    """Build the record that a node returns for a client's work.

    Args:
        result: What the server may see.
        kept: What the client keeps, if the server holds it; None if the node does.
    """
    own = KeptByClient() if kept is None else kept
    state = {**result.state, **own.state}
    outcome = Outcome(state, own.keep, result.others, result.extras, result.metrics)
    said = ConfigRecord({"client": result.client, "reason": "", "refused": False})
    return RecordDict({"result": said, "body": packed(outcome)})


def loss_record(client: int, reason: str, *, refused: bool) -> RecordDict:
    """Build the record of a missing result: why, and whether the node's own checks refused it."""
    said = {"client": client, "reason": reason, "refused": refused}
    return RecordDict({"result": ConfigRecord(said)})


def read_outcome(content: RecordDict) -> Any:
    """Return what a reply holds in place of an outcome, without checking it.

    Raises:
        RejectedUpdate: If it cannot be read.
    """
    return unpacked(content["body"])


# A run has few architectures, and sends each of them often.
@functools.lru_cache(maxsize=64)
def _text(graph: ArchGraph) -> str:
    return flat.dump(graph)


@functools.lru_cache(maxsize=64)
def _graph(text: str) -> ArchGraph:
    return flat.read_flat(parse_document(text, "the server's message"))
