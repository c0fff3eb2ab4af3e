"""Modules that are legal and hard to capture: each is equal to its graph, or refused by name.

``HOSTILE`` is the table: a module, and ``None`` where its graph must be equal (values, gradients,
ten training steps, in training and in evaluation) or the words of the refusal.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

MOMENTUM = functools.partial(torch.optim.SGD, momentum=0.9, weight_decay=0.01)
X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Hostile:
    """One entry: how to make the module, what refuses it (None: equal), how to train it."""

    make: Callable[[], nn.Module]
    refused: str | None = None
    example: torch.Tensor = X
    batches: tuple[int, ...] = (2, 4, 5)
    optimiser: Callable[..., torch.optim.Optimizer] = MOMENTUM


class Net(nn.Module):
    """Two layers; ``prepare`` is run once on the module, ``body`` is its forward."""

    def __init__(
        self,
        body: Callable[[Any, torch.Tensor], Any] = lambda net, x: net.head(net.layer(x).relu()),
        prepare: Callable[[Any], Any] = lambda net: None,
    ) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(3, 3), nn.Linear(3, 3)
        self.body = (body,)
        prepare(self)

    def forward(self, x: torch.Tensor) -> Any:
        return self.body[0](self, x)


def _plain(net: Any, x: torch.Tensor) -> Any:
    return net.head(net.layer(x).relu())


PLACE = r"found \S*hostile/\w+\.py:\d+"  # of a function

HOSTILE: dict[str, Hostile] = {}


def _enter(name: str, entry: Hostile) -> None:
    assert name not in HOSTILE, f"{name} is entered twice"
    HOSTILE[name] = entry


def net(body: Any = _plain, refused: str | None = None, **given: Any) -> Callable[[Any], Any]:
    """Enter a :class:`Net` with this preparation."""

    def enter(prepare: Callable[[Any], Any]) -> Callable[[Any], Any]:
        _enter(prepare.__name__, Hostile(functools.partial(Net, body, prepare), refused, **given))
        return prepare

    return enter


def body(refused: str | None = None, **given: Any) -> Callable[[Any], Any]:
    """Enter a :class:`Net` with this forward."""

    def enter(forward: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        _enter(forward.__name__, Hostile(functools.partial(Net, forward), refused, **given))
        return forward

    return enter


def module(refused: str | None = None, **given: Any) -> Callable[[Any], Any]:
    """Enter a class, or a function that makes a module."""

    def enter(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        _enter(make.__name__, Hostile(make, refused, **given))
        return make

    return enter
