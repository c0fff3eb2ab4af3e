"""A round against its local training: what distribution, merging and bookkeeping add."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import torch

from archgraph.engine.local import execute
from archgraph.engine.world import prepare
from archgraph.federation import GLOBAL, Result, ServerState, World
from archgraph.record.changes import Changes

EXPERIMENT = Path(__file__).parents[1] / "specs" / "experiments" / "fedfa_digits.yaml"
ROUNDS = 3


def figures() -> dict[str, float]:
    """Seconds per round of FedFA on the digits, by purpose, and the server's share."""
    experiment = prepare(EXPERIMENT)
    world = dataclasses.replace(experiment.world, rounds=ROUNDS)
    experiment = dataclasses.replace(experiment, world=world)
    seconds = execute(experiment, out=None, resume=False, progress=False).seconds
    work = seconds["local"] + seconds["server"]
    return {
        "local training, s per round": seconds["local"] / ROUNDS,
        "server work (pull, merge), s per round": seconds["server"] / ROUNDS,
        "server work / (server work + local training) (aim: 0.05)": seconds["server"] / work,
        "line of what a round changed, s per round": changed(world),
        "round without evaluation / local training": work / seconds["local"],
    }


def changed(world: World) -> float:
    """Seconds for the line of a round in ``changes.jsonl``, a client of each tier taking part."""
    state, changes = ServerState().with_group(GLOBAL, world.state), Changes(world.graph)
    results = [Result(i, {}, 1, transfer=one.transfer) for i, one in enumerate(world.tiers)]
    began = time.perf_counter()
    for number in range(ROUNDS):
        list(changes.noted(results))
        changes.line(number, state, state)
    return (time.perf_counter() - began) / ROUNDS


def main() -> None:
    """Print all figures."""
    torch.set_num_threads(1)
    for name, value in figures().items():
        print(f"{name:<66} {value:6.3f}")


if __name__ == "__main__":
    main()
