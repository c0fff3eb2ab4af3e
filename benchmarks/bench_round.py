"""A round against its local training: what distribution, merging and bookkeeping add."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from archgraph.engine.local import execute
from archgraph.engine.world import prepare

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
        "round without evaluation / local training": work / seconds["local"],
    }


def main() -> None:
    """Print all figures."""
    torch.set_num_threads(1)
    for name, value in figures().items():
        print(f"{name:<66} {value:6.3f}")


if __name__ == "__main__":
    main()
