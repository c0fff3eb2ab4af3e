"""What forward keeps is found wherever it is kept, and a capture leaves all of it as it was."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.capture.counting import Asked, counted, growing, plain
from archgraph.capture.held import held
from archgraph.capture.prints import fingerprint
from tests.capture.hostile.table import Net, X

TOTAL = 0
MADE: list[str] = []


class Lazy(collections.OrderedDict[str, Any]):
    """Makes what it is asked for, as tables of activations do."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key)()

    def items(self) -> Any:
        raise AssertionError("a capture looks at what is there")

    values = items


LAZY = Lazy(relu=nn.ReLU)


class Options:
    rate = 1.0


@functools.cache
def table(size: int) -> torch.Tensor:
    return torch.arange(size) * 0.1


def counting(net: Any, x: torch.Tensor) -> torch.Tensor:
    global TOTAL
    TOTAL += 1
    net.history.append({"call": TOTAL})
    net.array += 1
    net.options.rate *= 0.5
    Options.rate = 2.0
    MADE.append("call")
    return LAZY["relu"](net.layer(x)) + table(3)


def prepare(net: Any) -> None:
    net.history = collections.deque([{"call": -1}])
    net.array, net.options = np.zeros(2), Options()


def test_a_capture_leaves_everything_as_it_was():
    net: Any = Net(counting, prepare)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ag.trace(net, X, strict=False)
    text = " ".join(str(warning.message) for warning in said)
    assert all(name in text for name in ("TOTAL", "Net.history", "Options.rate", "Net.array"))
    assert TOTAL == 0 and MADE == [] and table.cache_info().currsize == 0
    assert net.history == collections.deque([{"call": -1}])
    assert net.array.tolist() == [0, 0]
    assert vars(net.options) == {} and Options.rate == 1.0
    assert dict.__getitem__(LAZY, "relu") is nn.ReLU
    net(X)  # nothing of the capture is in what the model holds


def test_what_a_name_leads_to():
    net = Net(counting, prepare)
    found = held(net)
    names = {space.name(key) for space in found.spaces for key in space.read()}
    assert {"TOTAL", "MADE", "LAZY", "Options.rate", "Net.history", "Net.array"} <= names
    assert found.caches == [table]
    assert found.names["history"].startswith(__file__)


class Without(nn.Module):
    """A module that others ask; it has no forward."""


def test_a_module_without_a_forward_is_found_in_its_file():
    (space, *_) = held(Without()).spaces
    assert space.where("size") == __file__


class Namespace:
    pass


@pytest.mark.parametrize(
    "make",
    [
        lambda: 3,
        lambda: float("nan"),
        lambda: [1, [2, {"a": 3}]],
        lambda: {"a": {1, 2}},
        lambda: np.arange(3),
        lambda: np.random.default_rng(0),
        lambda: torch.ones(2),
        lambda: collections.deque([1]),
        lambda: Namespace(),
    ],
)
def test_a_fingerprint_stays_as_long_as_the_value_does(make):
    value = make()
    assert fingerprint(value) == fingerprint(value)


def change_list(value: Any) -> None:
    value[1][1]["a"] = 4


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([1, [2, {"a": 3}]], change_list),
        ({"a": 1}, lambda value: value.update(a=2)),
        ({"a": 1}, lambda value: value.update(b=2)),
        (np.arange(3), lambda value: value.__iadd__(1)),
        (np.random.default_rng(0), lambda value: value.random()),
        (itertools.count(), next),
        (collections.deque([1]), lambda value: value.append(1)),
    ],
)
def test_a_fingerprint_changes_with_the_value(value, change):
    before = fingerprint(value)
    change(value)
    assert fingerprint(value) != before


@pytest.mark.parametrize(
    ("asks", "acts"),
    [
        (lambda n: n > 50, 51),
        (lambda n: 50 <= n, 50),
        (lambda n: n % 10 == 0, 10),
        (lambda n: n // 100 > 3, 400),
        (lambda n: n * 0.01 > 5, 501),
        (lambda n: (n + 1) % 7 == 3, 2),
        (lambda n: 100 - n < 20, 81),
    ],
)
def test_a_counter_is_tried_where_it_could_act(asks, acts):
    asked = Asked()
    assert isinstance(asks(counted(0, asked)), bool)
    assert asks(acts) and not asks(0 if asks(1) else 1)
    assert any(asks(value) for value in asked.probes(1) if value > 1)


def test_numbers_that_note_what_is_asked_stand_for_themselves():
    asked = Asked()
    number = counted(2, asked)
    assert isinstance(number, int) and number + 1 == 3 and -number == -2 and f"{number}" == "2"
    assert ["a", "b", "c"][number] == "c" and (torch.ones(2) * number).tolist() == [2, 2]
    assert number and not asked.otherwise and 0 in asked.limits
    assert plain(number) == 2 and plain("a") == "a" and counted(True, asked) is True


@pytest.mark.parametrize(
    "look_up",
    [
        lambda n: n in {2, 3},
        lambda n: {2: "a"}.get(n),
        int,
        float,
        lambda n: np.isin(n, [2]),
        lambda n: n.bit_length(),
    ],
)
def test_a_number_that_is_looked_up_notes_that(look_up):
    asked = Asked()
    with contextlib.suppress(AttributeError):
        look_up(counted(2, asked))
    assert asked.otherwise


def test_containers_that_note_what_is_asked_stay_what_they_are():
    asked = Asked()
    history = growing([1], asked)
    assert isinstance(history, list) and history and not asked.length
    history.append(2)
    assert list(history) == [1, 2] and len(history) == 2 and asked.length
    assert growing(collections.deque([1], 3), asked).maxlen == 3
    assert growing((1,), asked) == (1,)
