"""A client's private state in a file of its node, which outlives the processes of node and server.

Flower gives a new run an empty context: without the file, a resumed run would not find the state.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import ConfigRecord, Context

from archgraph.files import write
from archgraph.flower.records import as_record, of_record
from archgraph.states import wire

# Records of a client's private state in its node's context: confirmed by the server, and pending.
KEPT, PENDING = "archgraph-kept", "archgraph-pending"


def restore(context: Context, file: Path) -> None:
    """Read the records that the context lacks from the file."""
    if round_of(context, PENDING) >= 0 or round_of(context, KEPT) >= 0 or not file.is_file():
        return
    for record, stored in wire.decode(file.read_bytes()).items():
        context.state[record] = as_record(stored["tensors"])
        context.state[f"{record}-round"] = ConfigRecord({"round": stored["round"]})


def store(context: Context, file: Path) -> None:
    """Write the records of the context to the file."""
    rounds = {record: round_of(context, record) for record in (KEPT, PENDING)}
    content = {
        record: {"round": number, "tensors": of_record(context.state[record])}
        for record, number in rounds.items()
        if number >= 0
    }
    write(file, wire.encode(content))


def round_of(context: Context, record: str) -> int:
    """Return the round of a record in the context, or -1 if there is none."""
    said = context.state.get(f"{record}-round")
    return int(said["round"]) if isinstance(said, ConfigRecord) else -1
