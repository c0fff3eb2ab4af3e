"""A training step of a built network against the network's own, and clients' work against torch.

``step``: one step of SGD of LeNet-5 and of three of torchvision's networks, on 16 images of
32 × 32; ``copy``: a second build of the graph against a copy of the network. ``round``: the local
work of a round of FedAvg, HeteroFL and FedFA as the engine runs it (parts of the model, data,
isolation, checks, copies), against the same steps of the same networks written out with torch. The
networks are small: what surrounds a step weighs more than it would beside larger ones. All in
processor time, so that other processes do not count; the two take turns.
"""

from __future__ import annotations

import copy
import dataclasses
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

import archgraph as ag
import tests.conftest  # noqa: F401 - makes torchvision importable beside a CPU torch
from archgraph.engine import rounds
from archgraph.engine.local import execute
from archgraph.engine.world import prepare
from archgraph.language import load_experiment
from benchmarks.bench_transfer import keep_freed_memory, seconds

SPECS = Path(__file__).parents[1] / "specs"
# Experiments, with the greatest number of training examples, and the aim.
ROUNDS = {
    "FedAvg": ("small/fedavg_fashion.yaml", 600, 1.15),
    "HeteroFL": ("small/heterofl_fashion.yaml", 600, 1.3),
    "FedFA": ("fedfa_digits.yaml", None, 1.45),
}
BATCH = 16


def step(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """One step of SGD, to be repeated."""
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    loss = nn.CrossEntropyLoss()

    def run() -> None:
        optimiser.zero_grad(set_to_none=True)
        loss(model(images), labels).backward()
        optimiser.step()

    return run


def written_out(setup: Any) -> Callable[[], None]:
    """The local work of a round with torch alone: each client's steps on its part of the model."""
    strategy, world, local = setup.strategy, setup.world, setup.local
    state = strategy.init(world)
    tasks = [strategy.send(world, state, client.id, 1) for client in world.clients]
    modules = [ag.build(task.graph, task.state).train() for task in tasks]
    shards = [setup.data.train.examples(share) for share in setup.shares]
    loss = nn.CrossEntropyLoss()

    def run() -> None:
        for task, module, ((images, *_), labels) in zip(tasks, modules, shards, strict=True):
            module.load_state_dict(task.state)
            optimiser = local.chosen.make({"params": list(module.parameters())})
            for _ in range(local.epochs):
                for ids in torch.randperm(len(labels)).split(local.batch):
                    optimiser.zero_grad(set_to_none=True)
                    loss(module(images[ids]), labels[ids]).backward()
                    optimiser.step()

    return run


def clients(name: str, limit: int | None, repeat: int) -> float:
    """Seconds of the engine's local work in a round over those of torch alone, the median."""
    spec = load_experiment(SPECS / "experiments" / name)
    if limit is not None:
        spec = spec.model_copy(update={"data": spec.data.model_copy(update={"limit": limit})})
    setup = prepare(spec)
    setup = dataclasses.replace(setup, world=dataclasses.replace(setup.world, rounds=1))
    plain, engine = written_out(setup), cast(Any, rounds)
    engine.time = SimpleNamespace(perf_counter=time.process_time)
    try:
        return statistics.median(
            execute(setup, progress=False).seconds["local"] / seconds(plain, repeat=1)[0]
            for _ in range(repeat)
        )
    finally:
        engine.time = time


class LeNet(nn.Sequential):
    """LeNet-5 for three channels."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
            nn.Linear(84, 10),
        )  # fmt: skip


def networks() -> dict[str, nn.Module]:
    """Networks whose steps are compared with those of what is built of them."""
    from torchvision.models import VisionTransformer, mobilenet_v3_small, resnet18

    tiny = {"num_layers": 6, "num_heads": 3, "hidden_dim": 192, "mlp_dim": 768}
    return {
        "LeNet-5": LeNet(),
        "ResNet-18": resnet18(num_classes=10),
        "MobileNetV3-S": mobilenet_v3_small(num_classes=10),
        "ViT-tiny": VisionTransformer(image_size=32, patch_size=4, num_classes=10, **tiny),
    }


def built(name: str, net: nn.Module, repeat: int) -> dict[str, float]:
    """A step and a copy of what is built of a network, over those of the network."""
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))
    graph, state = ag.trace(net.train(), images)
    runs = step(ag.build(graph, state), images, labels), step(net, images, labels)
    ours, own = seconds(*runs, repeat=10 * repeat if name == "LeNet-5" else repeat)
    again, copied = seconds(
        lambda: ag.build(graph, state), lambda: copy.deepcopy(net), repeat=repeat
    )
    return {
        f"{name}: step of the built network / its own": ours / own,
        f"{name}: building again / copying the network": again / copied,
    }


def figures(repeat: int = 15) -> dict[str, float]:
    """Ratios, by name."""
    keep_freed_memory()
    torch.manual_seed(0)
    steps: dict[str, float] = {}
    for name, net in networks().items():
        steps |= built(name, net, repeat)
    return {
        **steps,
        **{
            f"{name}: clients of a round / the same steps with torch (aim: {aim})": clients(
                file, limit, max(repeat // 3, 1)
            )
            for name, (file, limit, aim) in ROUNDS.items()
        },
    }


def main() -> None:
    """Print all figures."""
    torch.set_num_threads(1)
    for name, value in figures().items():
        print(f"{name:<72} {value:6.3f}")


if __name__ == "__main__":
    main()
