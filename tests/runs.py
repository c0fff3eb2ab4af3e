"""Two runs side by side: the figures of each round, and every tensor of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

from archgraph.plain import Json
from archgraph.record.checkpoint import Checkpoint, read_checkpoint
from archgraph.record.folder import identity, read_metrics


def checkpoint_of(folder: Path, number: int) -> Checkpoint:
    """Read the checkpoint of a round."""
    facts = json.loads((folder / "facts.json").read_bytes())
    return read_checkpoint(folder / f"checkpoints/round-{number:06d}", identity(facts))[0]


def same_bits(one: Path, two: Path) -> set[str]:
    """Check that two runs have equal facts, figures and last tensors; return the tensors' files."""
    assert (one / "facts.json").read_bytes() == (two / "facts.json").read_bytes()
    lines, others = ([_timeless(line) for line in read_metrics(run)] for run in (one, two))
    assert lines == others
    last = f"checkpoints/round-{len(lines):06d}/SHA256SUMS"
    # What stands in server.json tells of times, too: its values follow from lines and tensors.
    sums, theirs = (
        {line for line in (run / last).read_text().splitlines() if "server.json" not in line}
        for run in (one, two)
    )
    assert sums == theirs
    return sums


def _timeless(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _timeless(inner) for key, inner in value.items() if key != "seconds"}
    return [_timeless(inner) for inner in value] if isinstance(value, list) else value
