"""What forward keeps in unusual places, and counters that are looked up instead of compared."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import multiprocessing
import queue
import threading
import weakref
from typing import Any

import numpy as np
import torch

from tests.capture.hostile.table import body, net

AFTER = 60  # calls


def refused(name: str) -> str:
    """The refusal of something that forward changes."""
    return rf"forward changes {name}, and a later call computes something else"


# -- counters that are looked up ------------------------------------------------------------------


def _counting(factor: Any, start: Any = 0, step: Any = 1) -> Any:
    """A preparation and a forward that counts, and whose factor goes by the count."""

    def prepare(net: Any) -> None:
        net.calls, net.scale = start, 1.0

    def forward(net: Any, x: torch.Tensor) -> Any:
        net.calls += step
        return net.head(net.layer(x)) * factor(net)

    return prepare, forward


def _halved(net: Any) -> float:
    if net.calls in frozenset((AFTER,)):
        net.scale *= 0.5
    return float(net.scale)


def _scheduled(net: Any) -> float:
    net.scale = {AFTER: 2.0}.get(net.calls, net.scale)
    return float(net.scale)


for title, factor, numbers in (
    ("counter_in_a_set", lambda net: 2 if net.calls in {AFTER, AFTER + 1} else 1, {}),
    ("counter_among_milestones", _halved, {}),
    ("counter_as_a_key", _scheduled, {}),
    (
        "counter_searched_in_an_array",
        lambda net: 0.5 if np.searchsorted([AFTER, AFTER + 10], net.calls) == 1 else 1.0,
        {},
    ),
    ("counter_in_an_array", lambda net: 2 if np.isin(net.calls, [AFTER]) else 1, {}),
    ("counter_as_text_of_bits", lambda net: 2 if net.calls.bit_length() == 6 else 1, {}),
    ("counter_truncated", lambda net: 2 if int(net.calls) == AFTER else 1, {}),
    (
        "complex_counter",
        lambda net: 2 if net.calls.real > AFTER else 1,
        {"start": 0j, "step": 1 + 0j},
    ),
):
    prepare, forward = _counting(factor, **numbers)
    prepare.__name__ = title
    net(forward, refused=refused(r"Net\.calls"))(prepare)


# -- containers ------------------------------------------------------------------------------------


def _deep(net: Any, x: torch.Tensor) -> Any:
    inner = net.state["a"]["b"]["c"]["d"]
    inner["n"] += 1
    return net.layer(x) * (2 if inner["n"] > AFTER else 1)


@net(_deep, refused=refused(r"Net\.state"))
def counter_in_nested_dicts(net):
    net.state = {"a": {"b": {"c": {"d": {"n": 0}}}}}


class Settings(dict):  # type: ignore[type-arg]
    """A dictionary of another class."""


def _settings(net: Any, x: torch.Tensor) -> Any:
    net.settings["n"] += 1
    return net.layer(x) * (2 if net.settings["n"] > AFTER else 1)


@net(_settings, refused=refused(r"Net\.settings"))
def counter_in_a_dict_of_another_class(net):
    net.settings = Settings(n=0)


def _in_a_tuple(net: Any, x: torch.Tensor) -> Any:
    net.pair = (net.pair[0] + 1, None)
    return net.layer(x) * (2 if net.pair[0] > AFTER else 1)


@net(_in_a_tuple, refused=refused(r"Net\.pair"))
def counter_in_a_tuple(net):
    net.pair = (0, None)


@dataclasses.dataclass(frozen=True)
class Progress:
    """Frozen: another one at each call."""

    calls: int = 0


def _replaced(net: Any, x: torch.Tensor) -> Any:
    net.progress = dataclasses.replace(net.progress, calls=net.progress.calls + 1)
    return net.layer(x) * (2 if net.progress.calls > AFTER else 1)


@net(_replaced, refused=refused(r"Net\.progress"))
def counter_in_a_frozen_object(net):
    net.progress = Progress()


class Result(tuple):  # type: ignore[type-arg]
    """A result of another class."""


def _kept(net: Any, x: torch.Tensor) -> Any:
    y = net.layer(x)
    net.last = {"pair": Result((y, y.shape[1])), "all": [[[[y]]]]}
    return net.head(y)


@net(_kept)
def results_kept_in_nested_containers(net):
    net.last = None


class Count:
    """An object that counts."""

    def __init__(self) -> None:
        self.n = 0

    def step(self) -> int:
        """Count in the object."""
        self.n += 1
        return self.n


def _many(net: Any, x: torch.Tensor) -> Any:
    net.counts[140].n += 1
    return net.layer(x) * (2 if net.counts[140].n > AFTER else 1)


@net(_many, refused=refused(r"Count\.n"))
def counter_among_many_objects(net):
    net.counts = [Count() for _ in range(150)]


@net(lambda net, x: net.layer(x) * (2 if net.step() > AFTER else 1), refused=refused(r"Count\.n"))
def counter_behind_a_bound_method(net):
    net.step = Count().step


@net(lambda net, x: net.layer(x) * (2 if net.step() > AFTER else 1), refused=refused(r"Net\.step"))
def counter_behind_a_method_of_an_iterator(net):
    net.step = itertools.count().__next__


_TOTAL = 0


class Everywhere:
    """An object whose method counts in a global."""

    def factor(self) -> float:
        """Two from some call on."""
        global _TOTAL
        _TOTAL += 1
        return 2 if _TOTAL > AFTER else 1


@net(lambda net, x: net.layer(x) * net.held.factor(), refused=refused("_TOTAL"))
def counter_of_a_method_of_an_object(net):
    net.held = Everywhere()


# -- objects of Python's ---------------------------------------------------------------------------


def _value(net: Any, x: torch.Tensor) -> Any:
    net.calls.value += 1
    return net.layer(x) * (2 if net.calls.value > AFTER else 1)


@net(_value, refused=refused(r"Synchronized\._obj"))
def counter_in_shared_memory(net):
    net.calls = multiprocessing.Value("i", 0)


@net(_value, refused=refused(r"Net\.calls"))
def counter_of_c(net):
    net.calls = multiprocessing.RawValue("i", 0)


def _queue(net: Any, x: torch.Tensor) -> Any:
    net.queue.put(1)
    return net.layer(x) * (2 if net.queue.qsize() > AFTER else 1)


@net(_queue, refused=refused(r"Queue\.\w+"))
def queue_that_grows(net):
    net.queue = queue.Queue()


@net(
    lambda net, x: net.layer(x) * (1 if net.semaphore.acquire(blocking=False) else 2),
    refused=refused(r"Semaphore\._value"),
)
def semaphore_that_runs_out(net):
    net.semaphore = threading.Semaphore(AFTER)


@net(
    lambda net, x: net.layer(x) * (1 if net.lock.acquire(blocking=False) else 2),
    refused=refused(r"Net\.lock"),
)
def lock_that_stays_locked(net):
    net.lock = threading.Lock()


def _weak(net: Any, x: torch.Tensor) -> Any:
    net.calls[net.layer] = net.calls.get(net.layer, 0) + 1
    return net.layer(x) * (2 if net.calls[net.layer] > AFTER else 1)


@net(_weak, refused=refused(r"WeakKeyDictionary\.data"))
def counter_in_a_weak_dict(net):
    net.calls = weakref.WeakKeyDictionary()


def _counter(net: Any, x: torch.Tensor) -> Any:
    net.calls.update("n")
    return net.layer(x) * (2 if net.calls["n"] > AFTER else 1)


@net(_counter, refused=refused(r"Net\.calls"))
def counter_of_collections(net):
    net.calls = collections.Counter()


@net(
    lambda net, x: net.layer(x) * (2 if net.lock.acquire(block=False) else 1),
    refused=r"hostile/\w+\.py:\d+: forward uses \w+\.lock, and nothing shows",
)
def lock_of_processes(net):
    net.lock = multiprocessing.get_context().Lock()._semlock  # type: ignore[attr-defined]


# -- globals and attributes of others --------------------------------------------------------------

_COUNT = 0


@body(refused=refused("_COUNT"))
def global_by_its_name(net, x):
    table = globals()
    table["_COUNT"] += 1
    return net.layer(x) * (2 if table["_COUNT"] > AFTER else 1)


@body(refused=refused("archgraph_calls"))
def attribute_of_torch(net, x):
    library: Any = torch
    library.archgraph_calls = getattr(library, "archgraph_calls", 0) + 1
    return net.layer(x) * (2 if library.archgraph_calls > AFTER else 1)


@body(refused=refused(r"weight\.calls"))
def attribute_of_a_parameter(net, x):
    weight = net.layer.weight
    weight.calls = getattr(weight, "calls", 0) + 1
    return net.layer(x) * (2 if weight.calls > AFTER else 1)


@body(refused=r"hostile/\w+\.py:\d+: forward asks whether autocast is on")
def asks_whether_autocast_is_on(net, x):
    return net.layer(x) * (2 if torch.is_autocast_enabled("cpu") else 1)


@body()
def casts_as_autocast_would(net, x):
    y = net.layer(x)
    if torch.is_autocast_enabled("cpu"):
        y = y.to(torch.get_autocast_dtype("cpu"))
    return net.head(y)
