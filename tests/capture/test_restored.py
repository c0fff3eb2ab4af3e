"""A trace leaves the model and everything around it as it was."""

from __future__ import annotations

import collections
import contextlib
import functools
import random
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.capture.restored import restored
from tests.capture.hostile.table import Net, X


class Lazy(collections.OrderedDict[str, Any]):
    """Makes what it is asked for, as tables of activations do."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key)()

    def items(self) -> Any:
        raise AssertionError("a capture looks at what is there")

    values = items


class Options:
    rate = 1.0


@functools.cache
def table(size: int) -> torch.Tensor:
    return torch.arange(size) * 0.1


def changing(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.history.append({"call": len(net.history)})
    net.nested["a"]["b"].append(net.layer(x))
    net.array += 1
    net.options.rate *= 0.5
    net.tensor.add_(x.mean().detach())
    net.moving.mul_(0.5)
    net.last = net.layer(x)
    net.seen.add(x.shape[1])
    net.layer.calls = getattr(net.layer, "calls", 0) + 1
    net.plain[0].last = x
    return net.lazy["relu"](net.plain[0](net.dropout(net.norm(net.layer(x))))) + table(3)


def prepare(net: Any) -> None:
    net.history = collections.deque([{"call": -1}])
    net.nested = {"a": {"b": []}}
    net.array, net.options, net.tensor = np.zeros(2), Options(), torch.ones(())
    net.register_buffer("moving", torch.ones(3))
    net.last, net.seen, net.lazy = None, set(), Lazy(relu=nn.ReLU)
    net.norm, net.dropout, net.plain = nn.BatchNorm1d(3), nn.Dropout(0.5), [nn.Linear(3, 3)]
    net.norm.eval()
    net.layer.weight.grad = torch.full((3, 3), 2.0)
    net.head.requires_grad_(False)


def frozen(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.layer.weight.requires_grad_(False)
    net.layer.weight.grad = None
    return net.layer(x)


def shown(value: Any, seen: set[int] | None = None) -> Any:
    """Everything that a module holds, as plain values: numbers of tensors, names of objects."""
    seen = set() if seen is None else seen
    if isinstance(value, torch.Tensor):
        gradient = value.grad if value.is_leaf else None
        own = None if gradient is None else gradient.tolist()
        return id(value), value.tolist(), value.requires_grad, own
    if isinstance(value, np.ndarray):
        return id(value), value.tolist()
    if id(value) in seen:
        return id(value)
    if isinstance(value, (dict, list, tuple, set, collections.deque)):
        seen.add(id(value))
        pairs = dict.items(value) if isinstance(value, dict) else enumerate(value)
        return id(value), [(key, shown(item, seen)) for key, item in pairs]
    if isinstance(value, (nn.Module, Options)):
        seen.add(id(value))
        return id(value), shown(vars(value), seen)
    return value


def surroundings() -> tuple[Any, ...]:
    numpy: Any = np.random.get_state()  # noqa: NPY002  # as forward does
    return (
        torch.get_rng_state().tolist(),
        random.getstate(),
        [*map(str, numpy)],
        table.cache_info().currsize,
        torch.is_grad_enabled(),
        torch.backends.mha.get_fastpath_enabled(),
    )


def drawing(net: Any, x: torch.Tensor) -> torch.Tensor:
    return net.layer(x) * random.random() * np.random.rand()  # noqa: NPY002


MODELS: dict[str, Callable[[], nn.Module]] = {
    "everything": lambda: Net(changing, prepare),
    "frozen in forward": lambda: Net(frozen),
    "random numbers of Python": lambda: Net(drawing),
    "random numbers of torch": lambda: Net(lambda net, x: net.layer(x) + torch.rand(3)),
    "fails": lambda: Net(lambda net, x: net.layer(x.view(7, 7))),
    "fails late": lambda: Net(lambda net, x: net.layer(x) if x.sum() > 0 else x),
    "norm and dropout": lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout()),
    "recurrent": lambda: nn.LSTM(3, 3),
    "attention": lambda: nn.TransformerEncoderLayer(4, 2),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("verify", [True, False])
def test_a_trace_leaves_everything_as_it_was(name, verify):
    net = MODELS[name]()
    example = torch.randn(4, 3, 4) if name == "attention" else X
    seen = example.clone()
    before = shown(net), surroundings()
    with warnings.catch_warnings(), contextlib.suppress(ag.TraceError):
        warnings.simplefilter("ignore", ag.TraceWarning)  # what it refuses is not of interest here
        ag.trace(net, example, strict=False, verify=verify)
    assert (shown(net), surroundings()) == before
    assert torch.equal(example, seen)


TABLE: dict[int, tuple[torch.Tensor, int]] = {}


class Rows(nn.Module):
    """Multiplies by a row of numbers that is made once for each width, and kept somewhere."""

    SHARED: ClassVar[dict[int, tuple[torch.Tensor, int]]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.own = functools.cache(lambda width: torch.arange(width) + 1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.row(x.shape[1])

    def row(self, width: int) -> torch.Tensor:
        return self.own(width)

    def kept(self, table: dict[int, tuple[torch.Tensor, int]], width: int) -> torch.Tensor:
        if width not in table:
            table[width] = (torch.arange(width) + 1.0, width)
        return table[width][0]


class OfStatic(Rows):
    row = staticmethod(functools.cache(lambda width: torch.arange(width) + 1.0))


class OfProperty(Rows):
    rows = property(functools.cache(lambda self: torch.arange(3) + 1.0))

    def row(self, width: int) -> torch.Tensor:
        return self.rows


class OfFile(Rows):
    def row(self, width: int) -> torch.Tensor:
        return self.kept(TABLE, width)


class OfClass(Rows):
    def row(self, width: int) -> torch.Tensor:
        return self.kept(self.SHARED, width)


class OfDefault(Rows):
    def row(self, width: int, table: dict[int, Any] = {}) -> torch.Tensor:  # noqa: B006
        return self.kept(table, width)


@pytest.mark.parametrize("kind", [Rows, OfStatic, OfProperty, OfFile, OfClass])
def test_what_forward_keeps_outside_of_the_model_is_taken_back(kind):
    net, x = kind(), torch.randn(4, 3)
    traced = ag.trace(net, x)
    torch.testing.assert_close(ag.build(*traced)(x), net(x))
    assert type(net.row(3)) is torch.Tensor


def test_what_cannot_be_taken_back_is_refused():
    with pytest.raises(ag.TraceError, match=r"where ag\.trace cannot remove it; construct"):
        ag.trace(OfDefault(), X)
    (table,) = OfDefault.row.__defaults__ or ()
    table.clear()
    net = OfDefault()
    torch.testing.assert_close(net(X), ag.build(*ag.trace(net, X))(X))


def test_what_forward_changes_has_a_name():
    net = MODELS["everything"]()
    with restored(net) as changed:
        net(X)
        names = set(changed())
    assert {"Net.last", "Net.history", "Net.nested['a']['b']", "Net.seen"} <= names
    assert {"Net.options.rate", "Net.layer.calls", "Net.plain[0].last"} <= names
    assert not {"Net.training", "Net.array", "Net.lazy"} & names


def test_parts_that_forward_makes_are_taken_away_again():
    net: Any = Net()
    head = net.head
    with restored(net) as changed:
        net.late, net.head = nn.Linear(3, 3), net.layer
        net.register_buffer("fresh", torch.ones(3))
        assert changed() == []  # parts have names of their own
    assert net.head is head and not hasattr(net, "late") and not hasattr(net, "fresh")
