"""Small networks for the rewrites."""

from __future__ import annotations

import functools
from collections import OrderedDict

import torch
from torch import nn

from archgraph.capture.trace import Traced
from tests import structures as nets
from tests.nets import captured


def mlp(hidden=4):
    return nn.Sequential(nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, 2))


def traced(net, *args):
    return captured(net, *args, train=False)


@functools.cache
def traced_mlp(hidden=4):
    return traced(mlp(hidden), torch.zeros(1, 3))


@functools.cache
def sections() -> Traced:
    """Residual blocks in two sections, a convolution in front and a linear head; traced once."""
    layers = {
        "stem": nn.Conv2d(3, 8, 3, padding=1),
        "layer1": nn.Sequential(nets.Basic(8, 8), nets.Basic(8, 8)),
        "layer2": nn.Sequential(nets.Basic(8, 12, 2), nets.Basic(12, 12), nets.Basic(12, 12)),
        "pool": nn.AdaptiveAvgPool2d(1),
        "flat": nn.Flatten(),
        "fc": nn.Linear(12, 10),
    }
    return captured(nn.Sequential(OrderedDict(layers)), torch.randn(2, 3, 8, 8))
