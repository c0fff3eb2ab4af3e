"""Small networks for the rewrites."""

from __future__ import annotations

from torch import nn

from tests.nets import captured


def mlp(hidden=4):
    return nn.Sequential(nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, 2))


def traced(net, *args):
    return captured(net, *args, train=False)
