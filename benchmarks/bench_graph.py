"""Capture and analysis against the model's own work: trace, axes, structure, a training step."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

import archgraph as ag
import tests.conftest  # noqa: F401 - makes torchvision importable beside a CPU torch
from archgraph.analysis import axes as axes_module
from archgraph.analysis import structure as structure_module
from tests.nets import FOREIGN, Foreign

MODELS = ("resnet18", "mobilenet_v2", "densenet121", "vit_b_16", "swin_t", "bert")
REPEATS = 9


def best(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Least wall time over some repeats, in seconds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def paired(a: Callable[[], object], b: Callable[[], object], repeats: int = REPEATS) -> float:
    """Ratio a/b of least wall times, the two run in turn so that drift hits both."""
    a()
    b()
    first, second = [], []
    for _ in range(repeats):
        first.append(best(a, 1))
        second.append(best(b, 1))
    return min(first) / min(second)


def step(model: torch.nn.Module, foreign: Foreign) -> Callable[[], object]:
    """One training step (forward, backward, SGD) of a model on its example."""
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), 1e-6)

    def run() -> None:
        optimiser.zero_grad(set_to_none=True)
        outputs = model(*foreign.args, **foreign.kwargs)
        tensors = [t for t in torch.utils._pytree.tree_leaves(outputs) if torch.is_tensor(t)]
        torch.stack([t.float().square().mean() for t in tensors]).sum().backward()
        optimiser.step()

    return run


def figures(name: str) -> dict[str, float]:
    """Seconds of trace, axes and structure, and the training step's ratio to the original's."""
    foreign = FOREIGN[name]()
    traced = ag.trace(foreign.model, *foreign.args, **foreign.kwargs)
    graph = traced.graph
    return {
        "nodes": len(graph.nodes),
        "trace, s": best(lambda: ag.trace(foreign.model, *foreign.args, **foreign.kwargs), 2),
        "axes, s": best(lambda: axes_module.axes(graph.replace())),
        "structure, s": best(lambda: structure_module.structure(graph.replace())),
        "take 0.5, s": best(lambda: ag.take(graph.replace(), 0.5)),
        "step / original's": paired(
            step(ag.build(graph, traced.state), foreign), step(foreign.model, foreign)
        ),
    }


def main() -> None:
    """Print all figures."""
    for index, name in enumerate(MODELS):
        row = figures(name)
        if not index:
            print(f"{'model':<14}" + "".join(f"{k:>18}" for k in row))
        print(f"{name:<14}" + "".join(f"{v:>18.3f}" for v in row.values()), flush=True)


if __name__ == "__main__":
    main()
