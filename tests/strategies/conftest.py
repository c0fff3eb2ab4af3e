"""Small worlds: a residual net without preparation, its tiers, and toy data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import archgraph as ag
from archgraph.federation import (
    Client,
    Examples,
    LocalOptions,
    Outcome,
    Strategy,
    Task,
    Tier,
    Work,
    World,
    seeded,
)

CLASSES = 5


class Block(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.short = nn.Conv2d(inputs, width, 1, stride) if inputs != width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + self.short(x)).relu()


class Net(nn.Module):
    """Two sections, each with a transition and two more blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.layer1 = nn.Sequential(Block(4, 8), Block(8, 8), Block(8, 8))
        self.layer2 = nn.Sequential(Block(8, 12, 2), Block(12, 12), Block(12, 12))
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layer2(self.layer1(self.stem(x).relu())).mean((2, 3)))


@dataclass(frozen=True, eq=False)
class Data:
    """Toy data of one client."""

    inputs: Tensor
    targets: Tensor

    @property
    def examples(self) -> int:
        return len(self.targets)

    @property
    def histogram(self) -> tuple[int, ...]:
        return tuple(torch.bincount(self.targets.flatten(), minlength=CLASSES).tolist())

    def batches(self, generator: torch.Generator | None, size: int) -> Iterator[Examples]:
        count = len(self.targets)
        order = (
            torch.arange(count) if generator is None else torch.randperm(count, generator=generator)
        )
        for ids in order.split(size):
            yield Examples((self.inputs[ids],), self.targets[ids], ids)


def toy(seed: int, examples: int = 12, labels: Sequence[int] = range(CLASSES)) -> Data:
    draw = seeded(seed, "toy")
    targets = torch.tensor([labels[i % len(labels)] for i in range(examples)])
    return Data(torch.randn(examples, 1, 8, 8, generator=draw), targets)


def random_state(state: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """A state of the same shapes with other values."""
    draw = seeded(seed, "state")
    return {
        k: torch.randn(v.shape, generator=draw, dtype=v.dtype)
        if v.is_floating_point()
        else torch.randint(9, v.shape, generator=draw, dtype=v.dtype)
        for k, v in state.items()
    }


def make_world(
    graph: ag.ArchGraph,
    state: Mapping[str, Tensor],
    tiers: Mapping[str, ag.Rewritten],
    clients: Sequence[str],
    *,
    histograms: Sequence[Sequence[int]] = (),
    examples: Sequence[int] = (),
    seed: int = 0,
) -> World:
    """A world of clients by tier name."""
    offered = {name: Tier(name, r.graph, r.transfer, state) for name, r in tiers.items()}
    return World(
        graph=graph,
        state=state,
        clients=tuple(
            Client(
                id=i,
                name=name,
                examples=examples[i] if examples else 10,
                histogram=tuple(histograms[i]) if histograms else (2,) * CLASSES,
            )
            for i, name in enumerate(clients)
        ),
        tiers=tuple(offered.values()),
        classes=CLASSES,
        rounds=10,
        seed=seed,
    )


def work_of(task: Task, data: Data, local: LocalOptions | None = None, seed: int = 0) -> Work:
    """A task at its client."""
    return Work(
        client=task.client,
        round=1,
        rounds=10,
        graph=task.graph,
        state=task.state,
        data=data,
        local=local or LocalOptions(),
        generator=seeded(seed, "work", task.client),
        others=task.others,
        extras=task.extras,
        values=task.values,
    )


def one_round(
    strategy: Strategy,
    world: World,
    update: Callable[[Task], Mapping[str, Tensor]],
    *,
    order: Sequence[int] | None = None,
    round: int = 1,
) -> tuple[Mapping[str, Tensor], dict[int, Task]]:
    """Global state after one round in which clients return ``update(task)``; the tasks too."""
    state = strategy.init(world)
    sampled = list(order if order is not None else range(len(world.clients)))
    state = strategy.begin(world, state, round, sampled)
    tasks = {c: strategy.send(world, state, c, round) for c in sampled}
    results = (
        tasks[c].result(Outcome(state=dict(update(tasks[c]))), world.clients[c].examples)
        for c in sampled
    )
    return strategy.receive(world, state, results, round).group("global"), tasks


@dataclass(frozen=True)
class Lab:
    """What the fixtures hand to tests."""

    graph: ag.ArchGraph
    state: Mapping[str, Tensor]

    def __repr__(self) -> str:
        return f"Lab({len(self.graph.nodes)} nodes)"

    make_world = staticmethod(make_world)
    one_round = staticmethod(one_round)
    random_state = staticmethod(random_state)
    toy = staticmethod(toy)
    work_of = staticmethod(work_of)
    replace = staticmethod(dataclasses.replace)

    def uniform(self, clients: int, *, seed: int = 0, examples: Sequence[int] = ()) -> World:
        """All clients run the global architecture."""
        same = ag.Rewritten.identity(self.graph)
        return make_world(
            self.graph, self.state, {"all": same}, ["all"] * clients, seed=seed, examples=examples
        )


@pytest.fixture(scope="session")
def lab() -> Lab:
    torch.manual_seed(0)
    traced = ag.trace(Net(), torch.randn(2, 1, 8, 8))
    return Lab(traced.graph, traced.state)


@pytest.fixture(scope="session")
def tiny() -> Lab:
    """One linear layer: closed forms by hand."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES))
    traced = ag.trace(model, torch.randn(2, 1, 8, 8))
    return Lab(traced.graph, traced.state)
