"""The hypernetwork's round for ten clients of one architecture, against doing it piece by piece.

``generate``: all clients' weights, without gradients; ``pull_back``: their forward pass and the
vector–Jacobian product. Both are divided by the same for one client after the other. ``sweeps``:
the graph network's part of either, divided by a loop over nodes. Memory is that of a process of its
own: at its peak, and how much of it the architecture's ten states took before.

Processor seconds of one thread.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import archgraph as ag
from archgraph.graph.ir import ArchGraph
from archgraph.hypernet import GatedGNN, GraphHypernetwork, sweeps, to_batch
from benchmarks.bench_transfer import resident, seconds

CLIENTS = 10
SPECS = Path(__file__).parents[1] / "specs" / "models"
MODELS = ("recipfl_resnet18", "recipfl_densenet121", "recipfl_lenet5")


class Round:
    """Ten clients of one architecture, each with weights of its own, and their hypernetwork."""

    def __init__(self, name: str) -> None:
        self.graph = ag.load(SPECS / f"{name}.yaml")
        self.states = [ag.initial_state(self.graph, seed) for seed in range(CLIENTS)]
        self.network = GraphHypernetwork.for_graphs([self.graph])

    def generate(self, at_once: int = CLIENTS) -> None:
        """All clients' weights, of so many clients at once."""
        with torch.no_grad():
            for i in range(0, CLIENTS, at_once):
                states = self.states[i : i + at_once]
                self.network.generate([self.graph] * len(states), states)

    def pull_back(self, at_once: int = CLIENTS) -> None:
        """φ's gradient, of so many clients at once."""
        self.network.zero_grad()
        for i in range(0, CLIENTS, at_once):
            states = self.states[i : i + at_once]
            self.network.pull_back([self.graph] * len(states), states, states)

    def sweep(self, backward: bool, loop: bool) -> Callable[[], None]:
        """Both traversals of all clients' graphs, with the gradient or without."""
        gnn = self.network.gnn
        batch = to_batch([self.graph] * CLIENTS, self.network.vocabulary)
        width = self.network.norm.normalized_shape[0]
        features = torch.randn(batch.num_nodes, width, requires_grad=backward)

        def run() -> None:
            with torch.set_grad_enabled(backward):
                if loop:
                    parts = features.split(len(self.graph.nodes))
                    found = torch.cat([one_by_one(gnn, part, self.graph) for part in parts])
                else:
                    found = gnn(features, *sweeps(batch))
            if backward:
                found.sum().backward()

        return run


def one_by_one(gnn: GatedGNN, features: Tensor, graph: ArchGraph) -> Tensor:
    """The graph network as its equations say, node by node: the baseline."""
    place = {node.name: i for i, node in enumerate(graph.nodes)}
    before = [sorted({place[name] for name in node.uses()}) for node in graph.nodes]
    after: list[list[int]] = [[] for _ in before]
    for i, senders in enumerate(before):
        for j in senders:
            after[j].append(i)
    h = list(features[:, None])
    nodes = range(len(h))
    for order, senders_of in ((nodes, before), (reversed(nodes), after)):
        for v in order:
            received = torch.zeros_like(h[v])
            for u in senders_of[v]:
                received = received + gnn.message(h[u])
            h[v] = gnn.cell(received, h[v])
    return torch.cat(h)


def figures(name: str, repeat: int = 3) -> dict[str, float]:
    """Sizes, seconds and ratios for one architecture."""
    around = Round(name)
    count = sum(p.numel() for p in around.network.parameters())
    generate, one_generate, pull, one_pull = seconds(
        around.generate,
        lambda: around.generate(1),
        around.pull_back,
        lambda: around.pull_back(1),
        repeat=repeat,
    )
    sweep, loop, sweep_back, loop_back = seconds(
        *(around.sweep(back, loop) for back in (False, True) for loop in (False, True)),
        repeat=repeat,
    )
    return {
        "parameters of a client, M": ag.cost(around.graph).parameters / 1e6,
        "parameters of the hypernetwork, M": count / 1e6,
        "generate, s": generate,
        "pull_back (forward + VJP), s": pull,
        "generate / one client at a time": generate / one_generate,
        "pull_back / one client at a time": pull / one_pull,
        "sweeps / node by node": sweep / loop,
        "sweeps, forward + VJP / node by node": sweep_back / loop_back,
    }


def memory(name: str) -> tuple[float, float]:
    """GiB of this process after a round, at its peak and beyond what there was before."""
    around = Round(name)
    before = resident("VmRSS")
    around.generate()
    around.pull_back()
    peak = resident("VmHWM")
    return peak / 2**30, (peak - before) / 2**30


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory", choices=MODELS, help="only this model's peak memory")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.memory:
        print(*(f"{size:.2f}" for size in memory(chosen.memory)))
        return
    for name in MODELS:
        print(f"{name}, {CLIENTS} clients")
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.bench_hypernet", "--memory", name],
            check=True,
            capture_output=True,
            text=True,
        )
        for what, value in figures(name).items():
            print(f"  {what:<40} {value:8.3f}", flush=True)
        print(
            f"  {'GiB at the peak, of which the round':<40} {done.stdout.strip():>13}", flush=True
        )


if __name__ == "__main__":
    main()
