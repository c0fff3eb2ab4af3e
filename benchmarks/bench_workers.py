"""Clients in one process and in two, beside a bare PyTorch loop, pfl and Flower's simulation.

One hundred clients, ten in a round, images of random values in the shapes of MNIST and CIFAR-10, as
many for each client as the data sets have for a hundredth: what they show does not change how long
training takes. With ``--short``, a thousand clients of one step each, a hundred in a round: there a
simulator's own work is what is measured. With ``--large``, ResNet-18, and what its rounds cost
beside training; with ``--many``, a server with more and more clients. Each figure is a ratio within
one run of this file, and each measurement has a process of its own. The loop trains the same models
on as many batches of the same sizes with the same optimiser, and neither sends nor merges; pfl and
Flower do the whole round (:mod:`benchmarks.others`), where they are installed. Run it on a quiet
machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import re
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch

import archgraph as ag
from archgraph.flower import ENVIRONMENT
from benchmarks.others import OTHERS, Job, bare

S = TypeVar("S")
T = TypeVar("T")
MODELS = Path(__file__).parents[1] / "specs" / "models"
NETWORKS = {"LeNet-5": "lenet5.yaml", "small ResNet": "small_resnet.yaml"}
SHAPES = {"MNIST": (1, 28, 28), "CIFAR-10": (3, 32, 32)}
# Examples of a client: a hundredth of 60,000 and of 50,000.
EXAMPLES = {"MNIST": 600, "CIFAR-10": 500}
CLIENTS, SAMPLED, BATCH = 100, 10, 20
WORKERS = (1, 2)
REGISTERED = (100, 1000, 3000)
# Clients, those of a round, and the examples of each: one step.
SHORT = (1000, 100, BATCH)
# How many times as long as here a round may take elsewhere, or more.
AIMS = {"pfl": 1, "Flower's simulation": 5}


def experiment(
    model: Path, workers: int, rounds: int, clients: int = CLIENTS, sampled: int = SAMPLED
) -> dict[str, Any]:
    """FedAvg with some of all clients in a round; tested once, after the last one."""
    return {
        "name": "workers",
        "family": {"model": str(model), "clients": [{"name": "all", "count": clients}]},
        "strategy": {"fedavg": {}},
        "rounds": rounds,
        "sample": sampled,
        "local": {"batch": BATCH, "lr": 0.01, "momentum": 0.9},
        "evaluate": {"every": rounds},
        "engine": {"workers": workers},
    }


def figures(
    network: str, shape: str, rounds: int, *, short: bool = False
) -> Iterator[tuple[str, float]]:
    """Seconds of a round as ratios, its part outside of training, bytes of an update."""
    with tempfile.TemporaryDirectory() as folder:
        model = resized(Path(folder) / "model.yaml", NETWORKS[network], shape)
        work = (CLIENTS, SAMPLED, EXAMPLES[shape]) if not short else SHORT
        job = Job(model, SHAPES[shape], *work, BATCH, rounds)
        loop = apart(bare, job, 1)
        rows = {workers: apart(own, job, workers) for workers in WORKERS}
        others = {
            name: (workers, apart(run, job, workers))
            for name, (packages, workers, run) in OTHERS.items()
            if all(map(importlib.util.find_spec, packages))
        }
    spent = {workers: of_round(lines) for workers, (lines, _) in rows.items()}
    for workers in WORKERS:
        yield f"round with {workers} / bare loop", spent[workers] / loop
    yield "1 worker / 2 workers (aim: 1.8)", spent[1] / spent[2]
    for name, (workers, seconds) in others.items():
        aim = AIMS[name]
        yield f"{name} / round with {workers} (aim: {aim})", seconds / spent[workers]
    for workers, (lines, _) in rows.items():
        yield f"outside of training, with {workers} (aim: 0.02)", outside(lines)
    yield "copied for a client, MB", rows[1][1] / 1e6
    yield "bare loop, s per round", loop


def resized(file: Path, network: str, shape: str) -> Path:
    """Write a model for images of another size."""
    text = (MODELS / network).read_text()
    file.write_text(re.sub(r"(?m)^inputs:.*", f"inputs: {{image: {list(SHAPES[shape])}}}", text))
    return file


def of_round(lines: list[dict[str, float]]) -> float:
    """Seconds of a round."""
    return statistics.median(s["local"] + s["server"] for s in lines)


def outside(lines: list[dict[str, float]]) -> float:
    """The share of a round in which nothing is trained."""
    return statistics.median(s["server"] / (s["local"] + s["server"]) for s in lines)


def large(rounds: int) -> Iterator[tuple[str, float]]:
    """What ten clients of ResNet-18 cost beside training."""
    with tempfile.TemporaryDirectory() as folder:
        model = resized(Path(folder) / "model.yaml", "resnet18.yaml", "CIFAR-10")
        work = CLIENTS, SAMPLED, EXAMPLES["CIFAR-10"]
        job = Job(model, SHAPES["CIFAR-10"], *work, BATCH, rounds)
        rows = {workers: apart(own, job, workers) for workers in WORKERS}
    spent = {workers: of_round(lines) for workers, (lines, _) in rows.items()}
    yield "1 worker / 2 workers (aim: 1.8)", spent[1] / spent[2]
    for workers, (lines, _) in rows.items():
        yield f"round with {workers}, s", spent[workers]
        yield f"outside of training, with {workers} (aim: 0.02)", outside(lines)
    yield "copied for a client, MB", rows[1][1] / 1e6


def own(job: Job, workers: int) -> tuple[list[dict[str, float]], int]:
    """Seconds of each round here by purpose, and the bytes of an update."""
    train = job.data()
    data = train, (train[0][:100], train[1][:100])
    spec = experiment(job.model, workers, job.rounds, job.clients, job.sampled)
    run = ag.run(spec, data=data, progress=False)
    return [line["seconds"] for line in run.rounds], run.rounds[0]["clients"][0]["bytes_up"]


def server(registered: int, rounds: int) -> tuple[float, float, float]:
    """Of a server with so many clients, a hundred of them in a round of two workers.

    Returns:
        Its seconds outside of training and its seconds of processor in a round, and its peak
        memory in MB beyond that with the data loaded.
    """
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.yaml"
        model.write_text((MODELS / NETWORKS["LeNet-5"]).read_text())
        count, shape = registered * 20, SHAPES["MNIST"]
        images, classes = torch.rand(count, *shape), torch.arange(count) % 10
        spec = experiment(model, 2, rounds, registered, 100)
        data = (images, classes), (images[:100], classes[:100])
        ag.run({**spec, "rounds": 1}, data=data, progress=False)
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.process_time()
        run = ag.run(spec, data=data, progress=False)
        after = resource.getrusage(resource.RUSAGE_SELF)
    spent = statistics.median(line["seconds"]["server"] for line in run.rounds)
    processor = (time.process_time() - began) / rounds
    return spent, processor, (after.ru_maxrss - before.ru_maxrss) / 1024


def many(rounds: int) -> Iterator[tuple[str, float]]:
    """What a server costs with more and more clients registered."""
    first: tuple[float, ...] = ()
    for registered in REGISTERED:
        found = apart(server, registered, rounds)
        first = first or found
        yield f"{registered} clients, 100 a round: server, s per round", found[0]
        yield f"{registered} clients, 100 a round: ratio to {REGISTERED[0]}", found[0] / first[0]
        yield f"{registered} clients, 100 a round: processor of the server, s", found[1]
        yield f"{registered} clients, 100 a round: peak memory more, MB", found[2]


def apart(measure: Callable[[S, int], T], what: S, number: int) -> T:
    """A measurement in a new process: what another one has imported or kept takes no part."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        1, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        return pool.submit(measure, what, number).result()


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--network", choices=NETWORKS, action="append")
    parser.add_argument("--short", action="store_true", help="a thousand clients of one step")
    parser.add_argument("--large", action="store_true", help="ResNet-18, here alone")
    parser.add_argument("--many", action="store_true", help="how much clients cost the server")
    chosen = parser.parse_args()
    os.environ |= {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}
    if chosen.many or chosen.large:
        for name, value in (many if chosen.many else large)(chosen.rounds):
            print(f"{name:<66} {value:6.3f}", flush=True)
        return
    shapes = ["MNIST"] if chosen.short else [*SHAPES]
    for network in chosen.network or (["LeNet-5"] if chosen.short else NETWORKS):
        for shape in shapes:
            for name, value in figures(network, shape, chosen.rounds, short=chosen.short):
                print(f"{network + ', ' + shape + ': ' + name:<66} {value:6.3f}", flush=True)


if __name__ == "__main__":
    main()
