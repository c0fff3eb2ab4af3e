"""Storage of a client's private state in a file on its node.

Flower creates an empty context for each new process or run. Without the file, a resumed run would
not find the private state.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import ConfigRecord, Context

from archgraph.files import write
from archgraph.flower.records import as_record, of_record
from archgraph.states import wire

# Keys of the context for the private state that the server confirmed, and for the pending one.
KEPT, PENDING = "archgraph-kept", "archgraph-pending"


def restore(context: Context, file: Path) -> None:
    """Load the records in the file into the context, unless the context already contains some."""
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
    """Return the round of a record in the context; -1 if the context does not contain it."""
    said = context.state.get(f"{record}-round")
    return int(said["round"]) if isinstance(said, ConfigRecord) else -1
