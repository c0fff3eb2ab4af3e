"""What a strategy's server does for ResNet-18 and ten clients, against one pass of ``torch.add_``.

``pull``: everything that is sent to the ten clients of a round; ``examine``: what the strategy
finds in what comes back, which a run computes in the clients' processes; ``merge``: the results
made into the next server state. All are divided by adding every client's tensors, laid out in one
piece, to a sum of their size once: the same bytes in the same run. Clients return their weights
moved a little, and what else their program would send, as if they had trained.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import torch

import archgraph as ag
import tests.conftest  # noqa: F401 - makes torchvision importable beside a CPU torch
from archgraph.engine.world import WAIT
from archgraph.federation import (
    Client,
    Outcome,
    Result,
    Strategy,
    Task,
    Tier,
    World,
    configure,
)
from benchmarks.bench_transfer import added, keep_freed_memory, seconds

CLIENTS, CLASSES = 10, 10
Make = Callable[[ag.ArchGraph], Sequence[ag.Rewritten]]


def whole(graph: ag.ArchGraph) -> list[ag.Rewritten]:
    """One architecture."""
    return [ag.take(graph, 1.0)]


def widths(graph: ag.ArchGraph) -> list[ag.Rewritten]:
    """Five widths, nested (HeteroFL's a to e)."""
    return [ag.take(graph, rate) for rate in (1.0, 0.5, 0.25, 0.125, 0.0625)]


def depths(graph: ag.ArchGraph) -> list[ag.Rewritten]:
    """The whole, and the whole without the last blocks of some stages."""
    sections = [s for s in ag.structure(graph).sections if len(s.blocks) > 1]
    blocks = [s.blocks[-1].name for s in sections][::-1]
    return [ag.take(graph, 1.0), *(ag.skip(graph, blocks[:n]) for n in (1, 2, 3, 4))]


def both(graph: ag.ArchGraph) -> list[ag.Rewritten]:
    """Narrower and less deep at once."""
    found = []
    for less, rate in zip(depths(graph), (1.0, 0.875, 0.75, 0.625, 0.5), strict=True):
        found.append(less >> ag.take(less.graph, rate))
    return found


# Strategy, its options, and the architectures of its clients.
CASES: dict[str, tuple[str, Make]] = {
    "fedavg": ("fedavg", whole),
    "heterofl": ("heterofl", widths),
    "fedfa": ("fedfa", widths),
    "nefl, widths": ("nefl", widths),
    "nefl, both": ("nefl", both),
    "fedadp": ("fedadp", widths),
    "flexifed": ("flexifed", depths),
    "standalone": ("standalone", depths),
}


def world(graph: ag.ArchGraph, state: dict[str, torch.Tensor], make: Make) -> World:
    """Ten clients with architectures in turn."""
    made = make(graph)
    tiers = tuple(Tier(f"t{i}", r.graph, r.transfer, state) for i, r in enumerate(made))
    clients = tuple(
        Client(i, t.name, 100 + i, (10 + i,) * CLASSES)
        for i, t in ((i, tiers[i * len(tiers) // CLIENTS]) for i in range(CLIENTS))
    )
    return World(graph, state, clients, tiers, CLASSES, rounds=10, seed=0, wait=WAIT)


def returned(task: Task) -> Result:
    """What a client gives back that moved its weights a little."""
    # Each by another amount, as in a run: equal updates are merged in another way.
    by = 1.01 + task.client / 1000
    moved = {k: v * by if v.is_floating_point() else v.clone() for k, v in task.state.items()}
    others = {k: dict(m.state) for k, m in task.others.items()}
    return task.result(Outcome(moved, others=others), 100)


def examine_all(strategy: Strategy, world: World, results: Sequence[Result]) -> list[Result]:
    """What is found in what comes back, client by client."""
    return [strategy.examined(world, result) for result in results]


def figures(repeat: int = 9) -> Iterator[tuple[str, float]]:
    """Ratios to the baseline, by strategy and reading."""
    import torchvision

    keep_freed_memory()
    torch.manual_seed(0)
    net = torchvision.models.resnet18(num_classes=CLASSES)
    graph, state = ag.trace(net, torch.randn(2, 3, 64, 64))
    for label, (name, make) in CASES.items():
        strategy: Strategy = configure(name)
        around = world(graph, state, make)
        held = strategy.init(around)
        held = strategy.surveyed(around, held, ())
        held = strategy.begin(around, held, 0, range(CLIENTS))

        def send(
            strategy: Strategy = strategy, around: World = around, held: object = held
        ) -> list[Task]:
            return [strategy.send(around, held, i, 0) for i in range(CLIENTS)]  # type: ignore[arg-type]  # bound above

        tasks = send()
        results = [returned(task) for task in tasks]
        examine = functools.partial(examine_all, strategy, around, results)
        receive = functools.partial(strategy.receive, around, held, examine(), 0)
        bound, pull, found, merge = seconds(
            added([task.state for task in tasks]), send, examine, receive, repeat=repeat
        )
        yield f"{label}: pull / add_", pull / bound
        yield f"{label}: examine / add_", found / bound
        yield f"{label}: merge / add_", merge / bound


def main() -> None:
    """Print all figures."""
    torch.set_num_threads(1)
    for name, value in figures():
        print(f"{name:<50} {value:6.2f}", flush=True)


if __name__ == "__main__":
    main()
