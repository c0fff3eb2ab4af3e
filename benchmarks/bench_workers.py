"""Clients in one process and in two, beside a bare PyTorch loop that trains on the same batches.

One hundred clients, ten in a round, images of random values in the shapes of MNIST and CIFAR-10:
what they show does not change how long training takes. Each figure is a ratio within one run of
this file. The loop trains the same models on as many batches of the same sizes with the same
optimiser, and neither sends nor merges.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import archgraph as ag

MODELS = Path(__file__).parents[1] / "specs" / "models"
NETWORKS = {"LeNet-5": "lenet5.yaml", "small ResNet": "small_resnet.yaml"}
SHAPES = {"MNIST": (1, 28, 28), "CIFAR-10": (3, 32, 32)}
CLIENTS, SAMPLED, EXAMPLES, BATCH = 100, 10, 200, 20
WORKERS = (1, 2)


def experiment(model: Path, workers: int, rounds: int) -> dict[str, Any]:
    """FedAvg with ten of a hundred clients; tested once, after the last round."""
    return {
        "name": "workers",
        "family": {"model": str(model), "clients": [{"name": "all", "count": CLIENTS}]},
        "strategy": {"fedavg": {}},
        "rounds": rounds,
        "sample": SAMPLED,
        "local": {"batch": BATCH, "lr": 0.01, "momentum": 0.9},
        "evaluate": {"every": rounds},
        "engine": {"workers": workers},
    }


def bare(model: Path, data: Any, rounds: int) -> float:
    """Seconds of a round's local training in a loop of PyTorch's own."""
    inputs, targets = data[0]
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        for client in range(SAMPLED):
            module = ag.build(ag.load(model))
            optimiser = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
            own = torch.arange(client * EXAMPLES, (client + 1) * EXAMPLES)
            for at in own[torch.randperm(EXAMPLES)].split(BATCH):
                optimiser.zero_grad()
                nn.functional.cross_entropy(module(inputs[at]), targets[at]).backward()
                optimiser.step()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def figures(network: str, shape: str, rounds: int) -> Iterator[tuple[str, float]]:
    """Seconds of a round as ratios, its part outside of training, bytes of an update."""
    text = (MODELS / NETWORKS[network]).read_text()
    text = re.sub(r"(?m)^inputs:.*", f"inputs: {{image: {list(SHAPES[shape])}}}", text)
    count = CLIENTS * EXAMPLES
    train = torch.rand(count, *SHAPES[shape]), torch.arange(count) % 10
    data = train, (train[0][:100], train[1][:100])
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.yaml"
        model.write_text(text)
        loop = bare(model, data, rounds)
        rows = {}
        for workers in WORKERS:
            run = ag.run(experiment(model, workers, rounds), data=data, progress=False)
            rows[workers] = [line["seconds"] for line in run.rounds]
    spent = {
        workers: statistics.median(s["local"] + s["server"] for s in lines)
        for workers, lines in rows.items()
    }
    for workers in WORKERS:
        yield f"round with {workers} / bare loop", spent[workers] / loop
    yield "1 worker / 2 workers (aim: 1.8)", spent[1] / spent[2]
    for workers, lines in rows.items():
        outside = statistics.median(s["server"] / (s["local"] + s["server"]) for s in lines)
        yield f"outside of training, with {workers} (aim: 0.02)", outside
    up = next(iter(run.rounds[0]["clients"]))["bytes_up"]
    yield "copied for a client, MB", up / 1e6
    yield "bare loop, s per round", loop


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--network", choices=NETWORKS, action="append")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for network in chosen.network or NETWORKS:
        for shape in SHAPES:
            for name, value in figures(network, shape, chosen.rounds):
                print(f"{network + ', ' + shape + ': ' + name:<66} {value:6.3f}", flush=True)


if __name__ == "__main__":
    main()
