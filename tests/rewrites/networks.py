"""Small networks for the rewrites."""

from __future__ import annotations

from torch import nn

import archgraph as ag


def mlp(hidden=4):
    return nn.Sequential(nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, 2))


def traced(net, *args):
    return ag.trace(net, *args, train=False)
