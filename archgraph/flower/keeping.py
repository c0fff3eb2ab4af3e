"""What a node holds of its client in a file, which outlives its process and the server's.

Flower gives a new run an empty context: without the file, a run that is resumed finds nothing.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import ConfigRecord, Context

from archgraph.files import write
from archgraph.flower.records import as_record, of_record
from archgraph.states import wire

# Names of what a client keeps in its node's context: confirmed by the server, and not yet.
KEPT, PENDING = "archgraph-kept", "archgraph-pending"


def restore(context: Context, file: Path) -> None:
    """Take up what the file holds where the context holds nothing."""
    if round_of(context, PENDING) >= 0 or round_of(context, KEPT) >= 0 or not file.is_file():
        return
    for record, stored in wire.decode(file.read_bytes()).items():
        context.state[record] = as_record(stored["tensors"])
        context.state[f"{record}-round"] = ConfigRecord({"round": stored["round"]})


def store(context: Context, file: Path) -> None:
    """Write what the context holds."""
    rounds = {record: round_of(context, record) for record in (KEPT, PENDING)}
    content = {
        record: {"round": number, "tensors": of_record(context.state[record])}
        for record, number in rounds.items()
        if number >= 0
    }
    write(file, wire.encode(content))


def round_of(context: Context, record: str) -> int:
    """Return the round of which the context holds a record, or -1 if it holds none."""
    said = context.state.get(f"{record}-round")
    return int(said["round"]) if isinstance(said, ConfigRecord) else -1
