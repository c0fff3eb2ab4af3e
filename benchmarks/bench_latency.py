"""Predicted against measured milliseconds of submodels that a profile did not see.

A profile of each network by itself: random submodels, with axes of a tenth of their size and more
and some with blocks left out, run in turns; every fourth is held out of the fit. Figures are errors
relative to medians of what the held-out ones took in the same rounds. ``by MACs``: the same if time
were proportional to multiply–accumulates. ``noise``: how far the medians of the odd and of the even
rounds are apart, on average over submodels. Forward passes of one image or text, training steps of
eight; with ``onnxruntime`` as the first word, forward passes there. Other words choose networks.

``python -m benchmarks.bench_latency [onnxruntime] [NETWORK…]``
"""

from __future__ import annotations

import logging
import statistics
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

import archgraph as ag
import tests.conftest  # noqa: F401 - makes torchvision importable beside a CPU torch
from archgraph.budgets.latency import Runtime
from archgraph.budgets.profiling import HELD_OUT
from archgraph.budgets.timing import WARM_UP, Timing, TorchTimer
from archgraph.graph.ir import ArchGraph
from tests.zoo.collection import entry

NETWORKS = (
    "pre_resnet", "vgg", "efficientnet_v2", "resnet56", "lstm", "transformer",
    "torchvision/resnet18", "torchvision/mobilenet_v2", "torchvision/squeezenet1_1",
    "torchvision/densenet121",
)  # fmt: skip
SMALL = ("digits_cnn", "tiny_vit", "small_unet", "transformers/bert")  # below a millisecond
SECONDS = 30.0
STEP = 8  # examples of a training step


@dataclass
class Noted:
    """A timer that keeps the medians of every second round beside those of all."""

    timer: TorchTimer
    noise: list[float] = field(default_factory=list)
    rows: list[tuple[int, float]] = field(default_factory=list)

    def __call__(self, graphs: Sequence[ArchGraph]) -> list[Timing]:
        """Time networks in turns."""
        runs = self.timer.runs(graphs)
        for run in runs:
            odd, even = (statistics.median(run.totals[WARM_UP + n :: 2]) for n in (0, 1))
            self.noise.append(abs(odd / even - 1))
        timings = [run.timing() for run in runs]
        self.rows = [(ag.cost(g).macs, t.total) for g, t in zip(graphs, timings, strict=True)]
        return timings

    def by_macs(self) -> float:
        """Mean error of held-out submodels if time followed the multiply–accumulates."""
        (macs, seconds), *_ = self.rows
        held_out = self.rows[HELD_OUT - 1 :: HELD_OUT]
        return statistics.mean(abs(seconds * m / macs / s - 1) for m, s in held_out)


def network(name: str) -> ArchGraph:
    """A shipped model by its name, or one of the zoo by ``group/name``."""
    if "/" not in name:
        graph = ag.load(f"specs/models/{name}.yaml")
        assert isinstance(graph, ArchGraph)
        return graph
    foreign = entry(name).make()
    return ag.trace(foreign.model, *foreign.args, **foreign.kwargs, verify=False).graph


def row(name: str, *, training: bool = False, runtime: Runtime = "torch") -> str:
    """A line of the table."""
    graph, batch = network(name), STEP if training else 1
    if runtime == "onnxruntime":
        (error,) = ag.profile(graph, runtime=runtime, seconds=SECONDS).errors
        rest = ""
    else:
        timer = Noted(TorchTimer(batch, 1, training, "cpu", SECONDS))
        (error,) = ag.profile(graph, batch=batch, training=training, timer=timer).errors
        rest = f"{timer.by_macs():>9.1%}{statistics.mean(timer.noise):>8.1%}"
    return f"{name:<28}{error.milliseconds:>9.2f}{error.mean:>8.1%}{error.worst:>8.1%}{rest}"


def main() -> None:
    """Print a table for each kind of work."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # what export logs on the way
    warnings.simplefilter("ignore")
    words = sys.argv[1:]
    runtime: Runtime = "onnxruntime" if words[:1] == ["onnxruntime"] else "torch"
    names = [w for w in words if w != "onnxruntime"] or [*NETWORKS, *SMALL]
    for training in (False, True) if runtime == "torch" else (False,):
        work = f"a training step of {STEP}" if training else "a forward pass of one example"
        print(f"{runtime}: {work}")
        print(f"{'network':<28}{'ms':>9}{'mean':>8}{'worst':>8}{'by MACs':>9}{'noise':>8}")
        for name in names:
            print(row(name, training=training, runtime=runtime), flush=True)


if __name__ == "__main__":
    main()
