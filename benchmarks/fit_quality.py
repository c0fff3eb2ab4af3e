"""Submodels of equal cost after equal training: one share of every axis, of the best, and fits.

``python -m benchmarks.fit_quality --seeds 3 --out FILE``: ten networks on Fashion-MNIST at 14 × 14
pixels are trained, cut to .5 and .25 of their multiply–accumulates in six ways, and trained on
alike. One line of JSON per network, seed, budget and way is appended as soon as it is measured;
lines that are there are not made again. ``--seeds 0`` prints the tables of the lines alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import archgraph as ag
from archgraph.data import load_dataset
from archgraph.tables import Table

EXAMPLES, TESTS, EPOCHS, AFTER = 8000, 4000, 4, 2
BATCH, RATE, LATER = 64, 0.05, 0.02
BUDGETS = (0.5, 0.25)
WAYS = (
    "uniform, first",
    "uniform, best by weights",
    "uniform, best by taylor",
    "free, by weights",
)


class Sum(nn.Module):
    """A residual branch."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Add what the branch makes."""
        return torch.relu(self.body(x) + self.shortcut(x))


def conv(a: int, b: int, stride: int = 1, kernel: int = 3, groups: int = 1) -> list[nn.Module]:
    """Layers of a convolution with batch norm."""
    layer = nn.Conv2d(a, b, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(b), nn.ReLU()]


def residual(a: int, b: int, stride: int = 1, inner: int | None = None, groups: int = 1) -> Sum:
    """A residual block of two convolutions, or with depthwise ones in between."""
    m = inner or b
    body = [*conv(a, m, stride if groups == 1 else 1, 3 if groups == 1 else 1)]
    if groups > 1:
        body += conv(m, m, stride, 3, m)
    body += conv(m, b, 1, 3 if groups == 1 else 1)[:2]
    plain = stride == 1 and a == b
    return Sum(nn.Sequential(*body), None if plain else nn.Sequential(*conv(a, b, stride, 1)[:2]))


def head(c: int) -> list[nn.Module]:
    """A classifier behind a mean over places."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 10)]


def plain(w: int, depth: int) -> nn.Module:
    """Convolutions with pooling between the stages."""
    layers, a = list[nn.Module](), 1
    for stage in range(3):
        for _ in range(depth):
            layers += conv(a, w << stage)
            a = w << stage
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, *head(a))


def resnet(w: int, depth: int, groups: int = 1, expand: int = 1, stride: int = 1) -> nn.Module:
    """Three stages of residual blocks, behind a convolution of a stride."""
    layers, a = [*conv(1, w, stride)], w
    for stage in range(3):
        for block in range(depth):
            b = w << stage
            layers.append(residual(a, b, 2 if stage and not block else 1, b * expand, groups))
            a = b
    return nn.Sequential(*layers, *head(a))


class Mixer(nn.Module):
    """A transformer on patches of 2 × 2 pixels."""

    def __init__(self, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, 2)
        self.place = nn.Parameter(torch.randn(1, 49, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Classify images."""
        return self.head(self.layers(self.patch(x).flatten(2).transpose(1, 2) + self.place).mean(1))


def perceptron(*widths: int) -> nn.Module:
    """Linear layers."""
    layers = list[nn.Module]([nn.Flatten()])
    for a, b in zip((196, *widths), widths, strict=False):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 10))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "perceptron": lambda: perceptron(256, 128),
    "deep perceptron": lambda: perceptron(128, 128, 128, 128),
    "plain": lambda: plain(16, 1),
    "plain, deep": lambda: plain(12, 2),
    "resnet": lambda: resnet(12, 1),
    "resnet, deep": lambda: resnet(8, 3),
    "inverted": lambda: resnet(12, 2, groups=2, expand=4),
    "bottleneck": lambda: resnet(16, 2, groups=2, expand=1),
    "transformer": lambda: Mixer(32, 3, 4),
    "transformer, wide": lambda: Mixer(48, 2, 4),
}


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images of 14 × 14 pixels and classes, for training and for tests."""
    read = load_dataset("fashion_mnist", os.environ.get("ARCHGRAPH_DATA", "../shared/data"))

    def images(part: object, count: int) -> tuple[Tensor, Tensor]:
        x = part.inputs[:count].reshape(-1, 1, 28, 28).float() / 255  # type: ignore[attr-defined]
        return F.avg_pool2d((x - 0.286) / 0.353, 2), part.targets[:count].long()  # type: ignore[attr-defined]

    return (*images(read.train, EXAMPLES), *images(read.test, TESTS))


def train(net: nn.Module, x: Tensor, y: Tensor, epochs: int, rate: float, seed: int) -> nn.Module:
    """Train with momentum and a rate that falls to 0."""
    draw = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.SGD(
        net.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    steps = epochs * (len(x) // BATCH)
    decay = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / steps)
    net.train()
    for _ in range(epochs):
        for index in torch.randperm(len(x), generator=draw).split(BATCH)[: len(x) // BATCH]:
            optimiser.zero_grad()
            F.cross_entropy(net(x[index]), y[index]).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            optimiser.step()
            decay.step()
    return net.eval()


@torch.no_grad()
def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """Share of right answers, in percent."""
    right = sum(
        int((net(a).argmax(1) == b).sum()) for a, b in zip(x.split(500), y.split(500), strict=True)
    )
    return 100 * right / len(y)


def lines(
    name: str, seed: int, there: Collection[tuple[object, ...]]
) -> Iterator[dict[str, object]]:
    """Yield what every way gives for a network and a seed, but for the budgets and ways there."""
    x, y, u, v = data()
    torch.manual_seed(seed)
    graph, state = ag.trace(NETWORKS[name](), x[:2])
    net = train(ag.build(graph, state), x, y, EPOCHS, RATE, seed)
    state = ag.state_of(net)
    full = ag.cost(graph)
    batches = list(zip(x[:1024].split(256), y[:1024].split(256), strict=True))
    weights = ag.importance(graph, state)
    taylor = ag.importance(graph, state, batches, method="taylor")
    whole = accuracy(net, u, v)
    for budget in BUDGETS:
        submodels = {
            "uniform, first": ag.fit(graph, macs=budget, shape="uniform"),
            "uniform, best by weights": ag.fit(
                graph, macs=budget, shape="uniform", importance=weights
            ),
            "uniform, best by taylor": ag.fit(
                graph, macs=budget, shape="uniform", importance=taylor
            ),
            "free, by weights": ag.fit(graph, macs=budget, importance=weights),
        }
        for label, small in submodels.items():
            if (name, seed, budget, label) in there:
                continue
            client = ag.build(small.graph, small.transfer.pull(state))
            after = train(client, x, y, AFTER, LATER, seed + 100)
            yield {
                "network": name, "seed": seed, "budget": budget, "way": label, "whole": whole,
                "macs": ag.cost(small.graph).macs / full.macs,
                "parameters": ag.cost(small.graph).parameters / full.parameters,
                "accuracy": accuracy(after, u, v),
            }  # fmt: skip


def summary(records: list[dict[str, object]]) -> Iterator[Table]:
    """Yield wins and mean differences from one share of the first positions, per budget."""
    by = {(r["network"], r["seed"], r["budget"], r["way"]): float(r["accuracy"]) for r in records}  # type: ignore[arg-type]
    for budget in BUDGETS:
        rows = []
        for way in WAYS:
            apart: dict[object, list[float]] = defaultdict(list)
            for (network, seed, b, w), value in by.items():
                base = by.get((network, seed, budget, WAYS[0]))
                if (b, w) == (budget, way) and base is not None:
                    apart[network].append(value - base)
            means = np.array([np.mean(values) for values in apart.values()])
            if not len(means):
                continue
            spread = 0.0
            if len(means) > 1:
                from scipy.stats import t

                spread = t.ppf(0.975, len(means) - 1) * means.std(ddof=1) / math.sqrt(len(means))
            every = [by[key] for key in by if key[2:] == (budget, way)]
            wins = int((means > 0).sum())
            rows.append(
                (
                    way, f"{np.mean(every):.2f}",
                    f"{means.mean():+.2f} ± {spread:.2f}", f"{wins} of {len(means)}",
                )
            )  # fmt: skip
        columns = ("submodel", "accuracy", "difference, 95 % over networks", "networks better")
        yield Table(f"Budget {budget} of the multiply–accumulates", columns, tuple(rows))


def main() -> None:
    """Make what is missing, and print the tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--out", type=Path, default=Path("docs/measured/fit_quality.jsonl"))
    options.add_argument("--part", default="0/1", help="K/N: every N-th network from the K-th")
    asked = options.parse_args()
    torch.set_num_threads(1)
    part, parts = map(int, asked.part.split("/"))
    text = asked.out.read_text() if asked.out.exists() else ""
    records = [json.loads(line) for line in text.splitlines()]
    there = {(r["network"], r["seed"], r["budget"], r["way"]) for r in records}
    for seed in range(asked.seeds):
        for name in [*NETWORKS][part::parts]:
            if all((name, seed, budget, way) in there for budget in BUDGETS for way in WAYS):
                continue
            for record in lines(name, seed, there):
                with asked.out.open("a") as file:
                    file.write(json.dumps(record) + "\n")
                records.append(record)
    for table in summary(records):
        print(table)


if __name__ == "__main__":
    main()
