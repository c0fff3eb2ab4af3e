"""What a node holds of its client in a file, which outlives its process and the server's.

Flower gives a new run an empty context: without the file, a run that is resumed finds nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context
from safetensors import safe_open
from safetensors.torch import save

from archgraph.files import write
from archgraph.flower.records import arrays, tensors

# Names of what a client keeps in its node's context: confirmed by the server, and not yet.
KEPT, PENDING = "archgraph-kept", "archgraph-pending"


def restore(context: Context, file: Path) -> None:
    """Take up what the file holds where the context holds nothing."""
    if round_of(context, PENDING) >= 0 or round_of(context, KEPT) >= 0 or not file.is_file():
        return
    with safe_open(file, "pt") as held:
        for record, number in json.loads(held.metadata()["rounds"]).items():
            own = {n: held.get_tensor(n) for n in held.keys() if n.startswith(f"{record}/")}
            bare = {name.removeprefix(f"{record}/"): tensor for name, tensor in own.items()}
            context.state[record] = arrays(bare)
            context.state[f"{record}-round"] = ConfigRecord({"round": number})


def store(context: Context, file: Path) -> None:
    """Write what the context holds."""
    rounds = {record: round_of(context, record) for record in (KEPT, PENDING)}
    rounds = {record: number for record, number in rounds.items() if number >= 0}
    held = {
        f"{record}/{name}": tensor
        for record in rounds
        for name, tensor in tensors(context.state[record]).items()
    }
    write(file, save(held, {"rounds": json.dumps(rounds)}))


def round_of(context: Context, record: str) -> int:
    """The round of which the context holds a record; -1: it holds none."""
    said: Any = context.state.get(f"{record}-round")
    return -1 if said is None else int(said["round"])
