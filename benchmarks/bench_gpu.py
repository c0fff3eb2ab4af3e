"""Rounds on a GPU beside a bare PyTorch loop on the same GPU: ``python -m benchmarks.bench_gpu``.

For ResNet-18 and a vision transformer: seconds of a round of FedAvg over those of a loop that
trains the same network on as many batches that already lie on the GPU; the share of a round outside
of training; bytes that are copied for a client; how often a client's work waits for the GPU
(synchronisations) per step; and how much faster several processes are on one GPU. Without a GPU it
makes the same measurements of small networks on the processor, as a trial of itself.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import archgraph as ag
from archgraph.federation import Train, Work
from archgraph.federation.shard import Shard
from archgraph.language.local import LocalOptions
from benchmarks.bench_workers import experiment, of_round, outside, resized
from benchmarks.others import Job

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
# File, examples of a client, examples of a step.
NETWORKS = (
    {"ResNet-18": ("resnet18.yaml", 500, 50), "small ViT": ("small_vit.yaml", 500, 50)}
    if GPU
    else {"small ResNet": ("small_resnet.yaml", 40, 20)}
)
CLIENTS, ROUNDS = (20, 3) if GPU else (4, 2)
PROCESSES = (2, 4) if GPU else (2,)


def figures(job: Job) -> Iterator[tuple[str, float]]:
    """Ratios of one network."""
    loop = bare(job)
    one = rounds(job, None)
    yield "round / bare loop (aim: 1.1)", of_round(one) / loop
    yield "outside of training", outside(one)
    yield "synchronisations per step", synchronisations(job)
    yield "weights there and back, MB per client", 2 * _bytes(job.module()) / 1e6
    for processes in PROCESSES:
        several = of_round(rounds(job, processes))
        yield f"1 process / {processes} processes", of_round(one) / several
    yield "bare loop, s per round", loop


def bare(job: Job) -> float:
    """Seconds in which a loop trains every client's batches; the data lie on the device."""
    images, labels = (x.to(DEVICE) for x in job.data())
    module = job.module().to(DEVICE, memory_format=torch.channels_last)
    loss, spent = nn.CrossEntropyLoss(), []
    for _ in range(job.rounds):
        _wait()
        began = time.perf_counter()
        for client in range(job.clients):
            own = job.own(client)
            optimiser = torch.optim.SGD(module.parameters(), 0.01, momentum=0.9)
            order = torch.randperm(job.examples).to(DEVICE)
            for at in order.split(job.batch):
                optimiser.zero_grad(set_to_none=True)
                loss(module(images[own][at]), labels[own][at]).backward()
                optimiser.step()
        _wait()
        spent.append(time.perf_counter() - began)
    return statistics.median(spent[1:])


def rounds(job: Job, processes: int | None) -> list[dict[str, float]]:
    """Seconds of each round but the first, by purpose."""
    spec = experiment(job.model, 1, job.rounds, job.clients, job.clients)
    spec["local"]["batch"] = job.batch
    spec["engine"] = {"device": DEVICE} | ({"workers": processes} if processes else {})
    train = job.data()
    run = ag.run(spec, data=(train, (train[0][:100], train[1][:100])), progress=False)
    assert all(len(line["clients"]) == job.clients for line in run.rounds)
    return [line["seconds"] for line in run.rounds][1:]


def synchronisations(job: Job) -> float:
    """How often one client's training waits for the device, per step; 0 on a processor."""
    graph = ag.load(job.model)
    state = ag.state_of(job.module())
    images, labels = job.data()
    own = job.own(0)
    work = Work(
        client=0,
        round=1,
        rounds=1,
        graph=graph,
        state=state,
        data=Shard((images[own].to(DEVICE),), labels[own].to(DEVICE), (1,) * 10),
        local=LocalOptions(batch=job.batch, lr=0.01, momentum=0.9),
        generator=torch.Generator().manual_seed(0),
        device=DEVICE,
    )
    if not GPU:
        Train()(work)
        return 0.0
    counts = []
    for epochs in (1, 3):  # what two epochs add is the steps' own
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            Train(epochs=epochs)(work)
        torch.cuda.set_sync_debug_mode("default")
        counts.append(sum("synchroniz" in str(one.message) for one in said))
    return (counts[1] - counts[0]) / (2 * job.examples / job.batch)


def _bytes(module: nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in module.state_dict().values())


def _wait() -> None:
    if GPU:
        torch.cuda.synchronize()


def main() -> None:
    """Print all figures."""
    print(torch.cuda.get_device_name() if GPU else "no GPU: a trial on the processor")
    for name, (network, examples, batch) in NETWORKS.items():
        with tempfile.TemporaryDirectory() as folder:
            model = resized(Path(folder) / "model.yaml", network, "CIFAR-10")
            job = Job(model, (3, 32, 32), CLIENTS, CLIENTS, examples, batch, ROUNDS)
            for what, value in figures(job):
                print(f"{name:<13} {what:<40} {value:8.3f}", flush=True)


if __name__ == "__main__":
    main()
