"""One capture is enough where only norms and dropouts of torch's read the mode."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.capture.modes import Readers, reading_modes
from tests.capture.faithful import assert_faithful
from tests.capture.hostile.table import Net, X
from tests.capture.hostile.wrappers import AlwaysEvaluating, EvaluatingForward, ModeByOneself


def _dropped(net: Any, x: torch.Tensor) -> Any:
    return nn.functional.dropout(net.layer(x), 0.5, net.training)


def _hidden(net: Any) -> None:
    net.parts = [nn.Dropout(0.5).eval()]


class Own(nn.BatchNorm1d):
    """A norm of the user's that asks for the mode itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (2 if self.training else 1)


ONE: dict[str, Callable[[], nn.Module]] = {
    "nothing": Net,
    "norm and dropout": lambda: nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.3), nn.Linear(4, 2)
    ),
    "norm without statistics": lambda: nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False, affine=False)
    ),
    "norm without momentum": lambda: nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 2)
    ),
    "one norm twice": lambda: nn.Sequential(*[nn.Sequential(nn.BatchNorm1d(3))] * 2),
    "other dropouts": lambda: nn.Sequential(nn.AlphaDropout(0.2), nn.FeatureAlphaDropout(0.2)),
}
TWO: dict[str, Callable[[], nn.Module]] = {
    "a flag given on": lambda: Net(_dropped),
    "a norm of the user's": lambda: nn.Sequential(Own(3)),
    "a mode of its own": ModeByOneself,
    "another train()": AlwaysEvaluating,
    "a mode set in forward": EvaluatingForward,
    "instance norm": lambda: nn.Sequential(
        nn.Unflatten(1, (3, 1)), nn.Flatten(2), nn.Unflatten(2, (1, 1)), nn.Flatten(2),
        nn.Linear(1, 4), nn.InstanceNorm1d(3, track_running_stats=True),
    ),
    "a dropout in a plain list": lambda: Net(lambda net, x: net.parts[0](net.layer(x)), _hidden),
    "random leaky ReLU": lambda: nn.Sequential(nn.RReLU()),
}  # fmt: skip


@pytest.mark.sample(10)
@pytest.mark.parametrize(("name", "count"), [*((n, 1) for n in ONE), *((n, 2) for n in TWO)])
def test_a_second_capture_is_made_where_it_can_differ(name, count, monkeypatch):
    room, exports = importlib.import_module("archgraph.capture.trace"), []

    def counted(*args: Any) -> Any:
        exports.append(args)
        return export(*args)

    export = room.export_program
    monkeypatch.setattr(room, "export_program", counted)
    torch.manual_seed(0)
    net = (ONE | TWO)[name]()
    graph, _ = ag.trace(net, X)
    assert len(exports) == count
    assert "training" not in vars(nn.Module)
    monkeypatch.setattr(Readers, "follow_flags", lambda *_: False)
    assert ag.trace(net, X).graph == graph
    assert len(exports) == 2 + count


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", ONE)
def test_one_capture_is_right_in_both_modes(name):
    assert_faithful(ONE[name](), X, batches=(2, 5))


def test_what_reads_a_mode_is_noted():
    norm, net = nn.BatchNorm1d(3), Net(_dropped)
    with reading_modes() as readers:
        norm(X)
    assert readers.flagged == {id(vars(norm))} and not readers.others
    with reading_modes() as readers:
        net(X)
    assert readers.others
    with reading_modes() as readers:
        net.eval()
    assert readers.others and not net.training and vars(net)["training"] is False
    with reading_modes(), pytest.raises(AttributeError, match="training"):
        vars(net).pop("training")
        assert net.training
