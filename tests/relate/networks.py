"""Networks that were not derived from one another."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from archgraph.graph.ir import ArchGraph
from tests.nets import captured, with_parts

# Layers per stage (Simonyan, Zisserman, Table 1; 14, 15, 17, 18: one layer more each).
VGG = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    14: (2, 2, 3, 2, 2),
    15: (2, 2, 3, 3, 2),
    16: (2, 2, 3, 3, 3),
    17: (2, 2, 4, 3, 3),
    18: (2, 2, 4, 4, 3),
    19: (2, 2, 4, 4, 4),
}


WIDTHS, WIDER = (2, 3, 4, 5, 5), (2, 3, 6, 7, 7)


@functools.cache
def vgg(depths: Sequence[int], widths: Sequence[int] = WIDTHS, norm: bool = False) -> ArchGraph:
    """A narrow VGG on images of 32 × 32, numbered as torchvision does."""
    layers: list[nn.Module] = []
    before = 3
    for depth, width in zip(depths, widths, strict=True):
        for _ in range(depth):
            layers += [nn.Conv2d(before, width, 3, padding=1), *[nn.BatchNorm2d(width)] * norm]
            layers += [nn.ReLU()]
            before = width
        layers += [nn.MaxPool2d(2)]
    net = nn.Sequential()
    net.features = nn.Sequential(*layers)
    net.flat = nn.Flatten()
    size = before * (32 // 2 ** len(depths)) ** 2
    net.classifier = nn.Sequential(nn.Linear(size, 6), nn.ReLU(), nn.Dropout(), nn.Linear(6, 5))
    return trace(net)


def trace(net: nn.Module, size: int = 32) -> ArchGraph:
    return captured(net, torch.zeros(1, 3, size, size), train=False).graph


def shapes(graph: ArchGraph) -> list[tuple[int, ...]]:
    return sorted(p.shape for p in graph.params if p.role != "constant")


def linear(*widths: int, prefix: str = "") -> ArchGraph:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise((3, *widths)):
        layers += [nn.Linear(a, b), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(widths[-1], 2))
    return captured(net, torch.zeros(1, 3)).graph


@with_parts(
    lambda c, out, stride: {
        "norm_b": nn.BatchNorm2d(out),
        "conv_b": nn.Conv2d(out, out, 3, 1, 1, bias=False),
        "conv_a": nn.Conv2d(c, out, 3, stride, 1, bias=False),
        "norm_a": nn.BatchNorm2d(out),
        "side": nn.Sequential(nn.Conv2d(c, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        if stride > 1
        else None,
    }
)
def Unit(self, x):
    """A residual block as torchvision does not write it: shortcut first, layers in any order."""
    rest = x if self.side is None else self.side(x)
    x = self.norm_b(self.conv_b(F.relu(self.norm_a(self.conv_a(x)))))
    return F.relu(rest + x)


class Mine(nn.Module):
    """ResNet by another user: other names, other order of definition, a dropout more."""

    def __init__(self, depths: Sequence[int], widths: Sequence[int]) -> None:
        super().__init__()
        self.classify = nn.Linear(widths[-1], 10)
        before = [widths[0], *widths]
        self.stages = nn.ModuleList(
            nn.ModuleList(
                Unit(w if i else before[k], w, 1 if i or not k else 2) for i in range(depth)
            )
            for k, (depth, w) in enumerate(zip(depths, widths, strict=True))
        )
        self.start = nn.Sequential(
            nn.Conv2d(3, widths[0], 7, 2, 3, bias=False), nn.BatchNorm2d(widths[0])
        )
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        x = F.max_pool2d(torch.relu(self.start(x)), 3, 2, 1)
        for stage in self.stages:
            assert isinstance(stage, nn.ModuleList)
            for unit in stage:
                x = unit(x)
        return self.classify(self.drop(F.adaptive_avg_pool2d(x, 1).view(x.size(0), -1)))


@functools.cache
def resnet(*depths: int) -> ArchGraph:
    """A ResNet of torchvision's."""
    models = pytest.importorskip("torchvision.models")
    return trace(models.ResNet(models.resnet.BasicBlock, list(depths), num_classes=10))


def flat(net: nn.Module) -> ArchGraph:
    return captured(net, torch.zeros(2, 6), train=False).graph


@with_parts(
    lambda depth, unused=False: {
        "a": nn.Linear(6, 8),
        "b": nn.Linear(8, 2),
        "m": nn.ModuleList(nn.Linear(8, 8) for _ in range(depth)),
        **({"extra": nn.Parameter(torch.ones(3))} if unused else {}),
    }
)
def Run(self, x):
    """Layers between two others; of one layer a section is made with the first."""
    x = torch.relu(self.a(x))
    for layer in self.m:
        x = torch.relu(layer(x))
    return self.b(x)
