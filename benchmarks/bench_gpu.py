"""Rounds on a GPU beside a bare PyTorch loop on the same GPU: ``python -m benchmarks.bench_gpu``.

For ResNet-18 and a vision transformer: seconds of a round of FedAvg over those of a loop that
trains the same network on as many batches that already lie on the GPU; the share of a round outside
of training; bytes that travel for a client; how often a step waits for the GPU (synchronisations);
how much longer a round is if examples are copied in each; copies of a state as one buffer and entry
by entry; a mean on the GPU and on the processor; and how much faster several processes, or several
GPUs, are. Last a hypernetwork on both. It takes minutes. ``--dry`` makes all of it small and on the
processor, in seconds, as a trial of itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import archgraph as ag
from archgraph.federation import Train, Work
from archgraph.federation.shard import Shard
from archgraph.hypernet import GraphHypernetwork
from archgraph.language.local import LocalOptions
from archgraph.states import Merger, Transfer
from archgraph.states.copies import state_to_device
from benchmarks.bench_workers import MODELS, experiment, of_round, outside, resized
from benchmarks.others import Job

REPEATS = 5


@dataclass(frozen=True)
class Scale:
    """How much is measured, and where.

    Attributes:
        device: Where clients train.
        networks: File of each network.
        hypernet: File of the network that a hypernetwork generates.
        work: Clients, examples of each, examples of a step, rounds.
        processes: How many there are on one GPU.
    """

    device: str
    networks: dict[str, str]
    hypernet: str
    work: tuple[int, int, int, int]
    processes: tuple[int, ...]


FULL = Scale(
    "cuda",
    {"ResNet-18": "resnet18.yaml", "small ViT": "small_vit.yaml"},
    "recipfl_resnet18.yaml",
    (20, 500, 50, 3),
    (2, 4),
)
DRY = Scale("cpu", {"small CNN": "small_cnn.yaml"}, "recipfl_lenet5.yaml", (2, 8, 4, 2), ())


def figures(scale: Scale, job: Job) -> Iterator[tuple[str, float]]:
    """Figures of one network."""
    loop = bare(scale, job)
    one = rounds(scale, job)
    yield "round / bare loop (aim: 1.1)", of_round(one) / loop
    yield "outside of training", outside(one)
    yield "waits for the device in a step (aim: 0)", waits(scale, job)
    yield "weights there and back, MB per client", 2 * _bytes(job.module()) / 1e6
    yield from states(scale, job)
    for processes in scale.processes:
        several = of_round(rounds(scale, job, workers=processes))
        yield f"1 process / {processes} processes", of_round(one) / several
    devices = [f"cuda:{n}" for n in range(torch.cuda.device_count())]
    if scale.device == "cuda" and len(devices) > 1:
        several = of_round(rounds(scale, job, device=devices))
        yield f"1 GPU / {len(devices)} GPUs", of_round(one) / several
    yield "bare loop, s per round", loop


def bare(scale: Scale, job: Job) -> float:
    """Seconds in which a loop trains every client's batches; the data lie on the device."""
    images, labels = (x.to(scale.device) for x in job.data())
    module = job.module().to(scale.device)
    loss, spent = nn.CrossEntropyLoss(), []
    for _ in range(job.rounds):
        began = _now()
        for client in range(job.clients):
            own = job.own(client)
            optimiser = torch.optim.SGD(module.parameters(), 0.01, momentum=0.9)
            order = torch.randperm(job.examples).to(scale.device)
            for at in order.split(job.batch):
                optimiser.zero_grad(set_to_none=True)
                loss(module(images[own][at]), labels[own][at]).backward()
                optimiser.step()
        spent.append(_now() - began)
    return statistics.median(spent[1:])


def rounds(scale: Scale, job: Job, **engine: object) -> list[dict[str, float]]:
    """Seconds of each round but the first, by purpose."""
    spec = experiment(job.model, 1, job.rounds, job.clients, job.clients)
    spec["local"]["batch"] = job.batch
    spec["engine"] = {"device": scale.device, **engine}
    train = job.data()
    run = ag.run(spec, data=(train, (train[0][:100], train[1][:100])), progress=False)
    assert all(len(line["clients"]) == job.clients for line in run.rounds)
    return [line["seconds"] for line in run.rounds][1:]


def waits(scale: Scale, job: Job) -> float:
    """How often one client's training waits for the device, per step; 0 on a processor."""
    images, labels = (x[job.own(0)].to(scale.device) for x in job.data())
    work = Work(
        client=0,
        round=1,
        rounds=1,
        graph=ag.load(job.model),
        state=ag.state_of(job.module().to(scale.device)),
        data=Shard((images,), labels, (1,) * 10),
        local=LocalOptions(batch=job.batch, lr=0.01, momentum=0.9),
        generator=torch.Generator().manual_seed(0),
        device=scale.device,
    )
    counts = []
    for parts in (1, 2):  # what a pass of half as many steps does not have is the steps' own
        local = work.local.model_copy(update={"batch": job.batch * parts})
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            if scale.device == "cuda":
                torch.cuda.set_sync_debug_mode("warn")
            Train()(dataclasses.replace(work, local=local))
            if scale.device == "cuda":
                torch.cuda.set_sync_debug_mode("default")
        counts.append(sum("synchroniz" in str(one.message) for one in said))
    return (counts[0] - counts[1]) / (job.examples / job.batch / 2)


def states(scale: Scale, job: Job) -> Iterator[tuple[str, float]]:
    """What a client's state costs on its way there, and in a mean."""
    graph, state = ag.load(job.model), ag.state_of(job.module())
    each = seconds(lambda: {n: t.to(scale.device, copy=True) for n, t in state.items()})
    yield (
        "state entry by entry / as one buffer",
        each / seconds(lambda: state_to_device(state, scale.device, copy=True)),
    )
    identity, spent = Transfer.identity(graph), {}
    for device in ("cpu", scale.device):
        there = state_to_device(state, device)

        def mean(there: dict[str, torch.Tensor] = there) -> None:
            merger = Merger(graph, there)
            for _ in range(REPEATS):
                merger.add(identity, there)
            merger.result()

        spent[device] = seconds(mean)
    yield "mean on the processor / on the device", spent["cpu"] / spent[scale.device]


def hypernetwork(scale: Scale) -> Iterator[tuple[str, float]]:
    """What the hypernetwork of four clients costs on the processor, over the same there."""
    graph = ag.load(MODELS / scale.hypernet)
    graphs, weights = [graph] * 4, [ag.initial_state(graph, seed) for seed in range(4)]
    network = GraphHypernetwork.for_graphs([graph])
    spent: dict[str, list[float]] = {}
    for device in ("cpu", scale.device):
        network = network.to(device)

        def generated(network: GraphHypernetwork = network) -> None:
            with torch.no_grad():
                network.generate(graphs, weights)

        def pulled(network: GraphHypernetwork = network) -> None:
            network.zero_grad()
            network.pull_back(graphs, weights, weights)

        spent[device] = [seconds(generated), seconds(pulled)]
    for number, what in enumerate(("generate", "pull back")):
        ratio = spent["cpu"][number] / spent[scale.device][number]
        yield f"{what}: processor / device", ratio


def seconds(call: Callable[[], object]) -> float:
    """Median seconds of a call, after a first one."""
    spent = []
    for _ in range(REPEATS):
        began = _now()
        call()
        spent.append(_now() - began)
    return statistics.median(spent[1:])


def _bytes(module: nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in module.state_dict().values())


def _now() -> float:
    """The time when the device has done all that it was asked for."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry", action="store_true", help="small, on the processor")
    scale = DRY if parser.parse_args(arguments).dry else FULL
    if scale.device == "cuda":
        print(torch.cuda.get_device_name(), flush=True)
    clients, examples, batch, count = scale.work
    for name, network in scale.networks.items():
        with tempfile.TemporaryDirectory() as folder:
            model = resized(Path(folder) / "model.yaml", network, "CIFAR-10")
            job = Job(model, (3, 32, 32), clients, clients, examples, batch, count)
            for what, value in figures(scale, job):
                print(f"{name:<13} {what:<42} {value:8.3f}", flush=True)
    for what, value in hypernetwork(scale):
        print(f"{'hypernetwork':<13} {what:<42} {value:8.3f}", flush=True)


if __name__ == "__main__":
    main()
