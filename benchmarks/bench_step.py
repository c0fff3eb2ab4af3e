"""A training step of a built network against the network's own, and clients' work against torch.

``step``: one step of SGD of LeNet-5 and of three of torchvision's networks, on 16 images of
32 × 32; ``copy``: a second build of the graph against a copy of the network. ``round``: the local
work of a round of FedFA on the digits as the engine runs it (parts of the model, data, isolation,
checks, copies), against the same steps of the same networks written out with torch. The digits'
networks are small: what surrounds a step weighs more than it would beside larger ones. ``default``:
the step of networks of ``specs/models`` in PyTorch's default memory format, as clients make it,
against the same in channels-last memory (not where AVX2 is the newest extension: oneDNN
overwrites memory there). All in processor time, so that other processes do not count.
"""

from __future__ import annotations

import copy
import dataclasses
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
from archgraph.federation import Model, module_of
from benchmarks.bench_transfer import keep_freed_memory, seconds

SPECS = Path(__file__).parents[1] / "specs"
EXPERIMENT = SPECS / "experiments" / "fedfa_digits.yaml"
BATCH = 16
IMAGES = {
    "small_vgg": (3, 32),
    "small_resnet": (3, 32),
    "small_mobilenet": (1, 28),
    "recipfl_lenet5": (1, 28),
}


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
            optimiser = torch.optim.SGD(
                module.parameters(), local.lr, local.momentum, weight_decay=local.weight_decay
            )
            for _ in range(local.epochs):
                for ids in torch.randperm(len(labels)).split(local.batch):
                    optimiser.zero_grad(set_to_none=True)
                    loss(module(images[ids]), labels[ids]).backward()
                    optimiser.step()

    return run


def clients(repeat: int) -> float:
    """Seconds of the engine's local work in a round over those of torch alone."""
    setup = prepare(EXPERIMENT)
    setup = dataclasses.replace(setup, world=dataclasses.replace(setup.world, rounds=1))
    plain, engine = written_out(setup), cast(Any, rounds)
    engine.time = SimpleNamespace(perf_counter=time.process_time)
    try:
        taken: list[tuple[float, float]] = []
        for _ in range(repeat):
            local = execute(setup, progress=False).seconds["local"]
            taken.append((local, seconds(plain, repeat=1)[0]))
    finally:
        engine.time = time
    return min(a for a, _ in taken) / min(b for _, b in taken)


def default(name: str, repeat: int) -> float:
    """Seconds of a client's step over those in channels-last memory."""
    channels, size = IMAGES[name]
    graph = ag.load(str(SPECS / "models" / f"{name}.yaml"))
    model = Model(graph, ag.initial_state(graph))
    images, labels = torch.randn(32, channels, size, size), torch.randint(0, 10, (32,))
    last = module_of(model, training=True).to(memory_format=torch.channels_last)
    ours, other = seconds(
        step(module_of(model, training=True), images, labels),
        step(last, images, labels),
        repeat=repeat,
    )
    return ours / other


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
    layouts = () if torch.backends.cpu.get_cpu_capability() == "AVX2" else IMAGES
    for name, net in networks().items():
        steps |= built(name, net, repeat)
    return {
        **steps,
        "clients of a round / the same steps with torch": clients(max(repeat // 3, 1)),
        **{f"{name}: a step / in channels-last memory": default(name, repeat) for name in layouts},
    }


def main() -> None:
    """Print all figures."""
    torch.set_num_threads(1)
    for name, value in figures().items():
        print(f"{name:<60} {value:6.3f}")


if __name__ == "__main__":
    main()
