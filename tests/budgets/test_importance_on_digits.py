"""On a trained network: what the best half of the positions is worth beside the first half."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.data import load_dataset
from tests.budgets.test_importance import METHODS
from tests.nets import captured


def network() -> nn.Sequential:
    layers: list[nn.Module] = []
    for inside, out, pool in ((1, 16, False), (16, 32, True), (32, 32, True)):
        layers += [nn.Conv2d(inside, out, 3, padding=1), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if pool else []
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 10))


def trained(net: nn.Module, x: torch.Tensor, y: torch.Tensor, seed: int, epochs: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=generator).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
            optimiser.step()
    return net


@pytest.mark.full
def test_the_best_half_loses_less_than_the_first():
    data = load_dataset("digits")
    (x,), y = data.train.examples(torch.arange(len(data.train)))
    (u,), v = data.test.examples(torch.arange(len(data.test)))
    batches = [*zip(x[:512].split(128), y[:512].split(128), strict=True)]
    accuracy: dict[str, list[float]] = {}
    for seed in range(3):
        torch.manual_seed(seed)
        graph, state = captured(trained(network(), x, y, seed, epochs=8), x[:2])
        scores = {m: ag.importance(graph, state, batches, m) for m in METHODS}
        cuts = {m: ag.take(graph, 0.5, importance=scores[m]) for m in METHODS}
        for name, cut in (cuts | {"first": ag.take(graph, 0.5)}).items():
            net = ag.build(cut.graph, cut.transfer.pull(state))
            for when, epochs in (("cut", 0), ("tuned", 1)):
                trained(net, x, y, seed, epochs)
                right = (net(u).argmax(1) == v).double().mean()
                accuracy.setdefault(f"{name} {when}", []).append(float(right))
    means = {name: sum(values) / 3 for name, values in accuracy.items()}
    for method in METHODS:
        assert means[f"{method} cut"] > means["first cut"] + 0.1, means
        assert means[f"{method} tuned"] > means["first tuned"], means
