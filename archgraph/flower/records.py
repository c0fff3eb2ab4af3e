"""Conversion of tasks and replies to Flower records, and back.

Messages come from another machine. They are converted to JSON values and tensors, and nothing in
them is executed.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Mapping
from typing import Any

import flwr
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from archgraph.engine.clientwork import Returned
from archgraph.errors import RejectedUpdate, RunError
from archgraph.federation import Model, Task
from archgraph.flower.programs import Trusted, as_plain, as_program
from archgraph.graph.ir import ArchGraph
from archgraph.hints import install_command, version
from archgraph.language import flat
from archgraph.language.yaml import parse_document
from archgraph.plain import Json
from archgraph.processes.process import Died
from archgraph.record.client import ClientState
from archgraph.states import wire

# Version of the message format, which must be equal on server and nodes.
FORMAT = 4
# A record contains one message as an array, since Flower sends arrays in chunks.
BODY = "message"


def installed_here() -> dict[str, Json]:
    """Return the versions of the message format and of installed packages."""
    installed = {"archgraph": version(), "flwr": flwr.__version__}
    torches = {"torch": str(torch.__version__), "python": platform.python_version()}
    return {"format": FORMAT, **installed, **torches}


def versions_apart(theirs: Mapping[str, Json]) -> str:
    """Return the version conflict that excludes a node; empty if its versions are accepted.

    Example:
        >>> versions_apart(installed_here())
        ''
        >>> versions_apart({**installed_here(), "archgraph": "0.0.1"}).startswith(
        ...     "other versions; found arch"
        ... )
        True
    """
    ours = installed_here()
    for key, name in (("archgraph", "archgraph"), ("format", "messages of format")):
        if theirs.get(key) != ours[key]:
            actual = theirs.get(key, "none stated")
            release = ours["archgraph"]
            return str(
                RunError(
                    "other versions",
                    found=f"{name} {actual}",
                    expected=f"{name} {ours[key]}, as on the server",
                    hint=f"{install_command('flwr', release)} there, then start the node again",
                )
            )
    return ""


def as_record(value: object) -> ArrayRecord:
    """Convert JSON values and tensors to a record.

    Example:
        >>> import torch
        >>> of_record(as_record({"w": torch.ones(2, dtype=torch.bfloat16)}))
        {'w': tensor([1., 1.], dtype=torch.bfloat16)}
    """
    message = wire.encode(value)
    return ArrayRecord({BODY: Array("uint8", (len(message),), "safetensors", message)})


def of_record(record: ArrayRecord) -> Any:
    """Convert a record of :func:`as_record` back.

    Raises:
        RejectedUpdate: If the record is malformed.
    """
    return wire.decode(record[BODY].data)


def task_record(task: Task, round: int, private: ClientState | None, confirmed: int) -> RecordDict:
    """Build the record of a task for a node.

    Args:
        task: The task for the node's client.
        round: Number of the round, from 1; 0 for tasks before the first round.
        private: The private state of the client; None if the node stores it.
        confirmed: Last round in which the server accepted an update of the client; -1 if there is
            none.
    """
    body = {
        "round": round,
        "confirmed": confirmed,
        "client_state": None if private is None else private.flat(),
        "graph": _text(task.graph),
        "state": task.state,
        "program": as_plain(task.program),
        "private": sorted(task.private),
        "others": {name: [_text(m.graph), m.state] for name, m in task.others.items()},
        "extras": task.extras,
        "values": task.values,
        "tier": task.tier,
        "indexed": sorted(task.indexed),
        "known": sorted(task.known),
    }
    said = ConfigRecord({"format": FORMAT, "client": task.client})
    return RecordDict({"task": said, "body": as_record(body)})


def read_task(content: RecordDict, trusted: Trusted) -> tuple[Task, int, ClientState | None, int]:
    """Return the arguments of :func:`task_record` from its record.

    Raises:
        RunError: If the record is from another version of archgraph, or names an untrusted program.
    """
    said, body = content["task"], of_record(content["body"])
    task = Task(
        client=int(said["client"]),
        graph=_graph(body["graph"]),
        state=body["state"],
        program=as_program(body["program"], trusted),
        private=frozenset(body["private"]),
        others={name: Model(_graph(text), state) for name, (text, state) in body["others"].items()},
        extras=body["extras"],
        values=body["values"],
        tier=body["tier"],
        indexed=frozenset(body["indexed"]),
        known=frozenset(body["known"]),
    )
    state = body["client_state"]
    private = None if state is None else ClientState.from_flat(state)
    return task, body["round"], private, body["confirmed"]


def reply_record(client: int, came: Returned | Died) -> RecordDict:
    """Build the record that a node returns: the result of its client, or an error."""
    if isinstance(came, Died):
        came = Died(came.reason)  # the traceback stays on the node
    return RecordDict({"result": ConfigRecord({"client": client}), "body": as_record(came)})


def read_reply(content: RecordDict, client: int) -> Returned | Died:
    """Read a record of :func:`reply_record`, without checking the client's outcome.

    Raises:
        RejectedUpdate: If the record is not a reply of this client.
    """
    try:
        said, came = content["result"]["client"], of_record(content["body"])
    except (KeyError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise RejectedUpdate("not a reply to a task", found=what) from error
    if said != client:
        raise RejectedUpdate("reply of another client", found=said, expected=client)
    if not isinstance(came, Returned | Died):
        raise RejectedUpdate("not a reply to a task", found=type(came).__name__)
    return came


# A run sends few different architectures, each of them often.
@functools.lru_cache(maxsize=64)
def _text(graph: ArchGraph) -> str:
    return flat.dump(graph)


@functools.lru_cache(maxsize=64)
def _graph(text: str) -> ArchGraph:
    return flat.read_flat(parse_document(text, "the server's message"))
