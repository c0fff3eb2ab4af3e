"""What forward keeps from one call to the next."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.capture.hostile.table import PLACE, Net, module, net

LATER = "and later calls return other results"
OTHER = r"hostile/\w+\.py:\d+: the model and its graph compute different results"


def _running(net: Any, x: torch.Tensor) -> Any:
    net.t = net.t + x.detach().mean()
    return net.head(net.layer(x)) * net.t


@net(_running, refused=rf"hostile/\w+\.py:\d+: forward changes Net\.t, {LATER}.*register_buffer")
def tensor_attribute_that_forward_changes(net):
    net.t = torch.ones(3)


def _running_in_a_dict(net: Any, x: torch.Tensor) -> Any:
    net.state["t"] = net.state["t"] + 1
    return net.head(net.layer(x)) * net.state["t"]


@net(_running_in_a_dict, refused=rf"forward changes Net\.state, {LATER}")
def tensor_in_a_dict_that_forward_changes(net):
    net.state = {"t": torch.ones(3)}


def _history(net: Any, x: torch.Tensor) -> Any:
    net.history.append(1)
    return net.head(net.layer(x)) * len(net.history)


@net(_history, refused=rf"forward changes Net\.history, {LATER}")
def list_that_grows(net):
    net.history = []


def _cached(net: Any, x: torch.Tensor) -> Any:
    if net.mean is None:
        net.mean = x.detach().mean(0)
    return net.head(net.layer(x) - net.mean)


@net(_cached, refused=rf"forward changes Net\.mean, {LATER}")
def result_of_the_first_call_kept(net):
    net.mean = None


def _counted(net: Any, x: torch.Tensor) -> Any:
    net.calls += 1
    return net.head(net.layer(x)) * (2.0 if net.calls > 1 else 1.0)


@net(_counted, refused=rf"forward changes Net\.calls, {LATER}")
def number_that_forward_changes(net):
    net.calls = 0


def _logged(net: Any, x: torch.Tensor) -> Any:
    net.calls += 1
    net.last = net.layer(x)
    net.seen.append(net.last)
    return net.head(net.last)


@net(_logged, refused=None)
def attributes_that_nothing_reads(net):
    net.calls, net.last, net.seen = 0, None, []


def _in_place(net: Any, x: torch.Tensor) -> Any:
    net.t.mul_(0.9)
    return net.head(net.layer(x)) * net.t


@net(_in_place, refused=r"t: forward changes in place a tensor that is not part of the state")
def tensor_attribute_written_in_place(net):
    net.t = torch.ones(3)


@net(_in_place, refused=r"t: forward changes in place a tensor that is not part of the state")
def buffer_outside_the_state_written_in_place(net):
    net.register_buffer("t", torch.ones(3), persistent=False)


@net(_in_place, refused=None)
def buffer_written_in_place(net):
    net.register_buffer("t", torch.ones(3))


def _in_a_loop(net: Any, x: torch.Tensor) -> Any:
    for index in range(3):
        net.t[index] = net.t[index] * 0.5 + x.detach().mean()
    return net.head(net.layer(x)) + net.t


@net(_in_a_loop, refused=None)
def buffer_written_in_a_loop(net):
    net.register_buffer("t", torch.ones(3))


def _assigned(net: Any, x: torch.Tensor) -> Any:
    net.t = net.t * 0.9 + x.detach().mean(0)
    return net.head(net.layer(x)) + net.t


@net(_assigned, refused=None)
def buffer_assigned(net):
    net.register_buffer("t", torch.ones(3))


@module(refused=rf"Extra: has extra state \(get_extra_state\).*{PLACE}")
class Extra(Net):
    """Extra state beside the tensors."""

    def get_extra_state(self) -> Any:
        return {"step": 3}

    def set_extra_state(self, state: Any) -> None:
        pass


def _every_tenth_prints(net: Any, x: torch.Tensor) -> Any:
    net.calls += 1
    if net.calls % 10 == 0:
        net.said = f"call {net.calls}"
    return net.head(net.layer(x))


@net(_every_tenth_prints)
def number_that_only_says_something(net):
    net.calls, net.said = 0, ""


class Settings:
    """An object that is no module."""

    calls = 0


def _in_object(net: Any, x: torch.Tensor) -> Any:
    net.settings.calls += 1
    return net.head(net.layer(x)) * (2 if net.settings.calls > 1 else 1)


@net(_in_object, refused=rf"forward changes Net\.settings\.calls, {LATER}")
def number_in_an_object(net):
    net.settings = Settings()


class Counting(Net):
    """Counts in its class."""

    calls = 0

    def forward(self, x: torch.Tensor) -> Any:
        type(self).calls += 1
        return self.layer(x) * (2 if self.calls > 1 else 1)


@module(refused=OTHER)
def number_in_the_class() -> Net:
    """A counter of all instances."""
    return Counting()


_CALLS = 0


def _global(net: Any, x: torch.Tensor) -> Any:
    global _CALLS
    _CALLS += 1
    return net.head(net.layer(x)) * (2 if _CALLS % 2 else 1)


@net(_global, refused=OTHER)
def global_number(net):
    pass


_SEEN: dict[str, Any] = {}


def _global_dict(net: Any, x: torch.Tensor) -> Any:
    result = net.head(net.layer(x)) + _SEEN.get("last", 0)
    _SEEN["last"] = 1.0
    return result


@net(_global_dict, refused=OTHER)
def global_dict(net):
    pass


_SCALE = 2.0


@net(lambda net, x: net.head(net.layer(x)) * _SCALE)
def global_number_that_is_only_read(net):
    pass


@net(lambda net, x: net.body[1](net, x), refused=OTHER)
def number_in_a_closure(net):
    calls = 0

    def forward(net, x):
        nonlocal calls
        calls += 1
        return net.head(net.layer(x)) * (2 if calls > 1 else 1)

    net.body = (*net.body, forward)


@net(
    lambda net, x: net.layer(x) * next(net.numbers),
    refused=OTHER,
)
def iterator(net):
    net.numbers = itertools.count(1)


@net(
    lambda net, x: net.layer(x) * next(net.numbers),
    refused=OTHER,
)
def generator_function(net):
    net.numbers = (n for n in itertools.count(1))


def _array(net: Any, x: torch.Tensor) -> Any:
    net.array += 1
    return net.layer(x) * float(net.array.sum())


@net(_array, refused=OTHER)
def array_written_in_place(net):
    net.array = np.ones(3)


def _previous(net: Any, x: torch.Tensor) -> Any:
    before, net.before = net.before, x
    return net.layer(x) if before is None else net.layer(x) + before.mean()


@net(_previous, refused=rf"forward changes Net\.before, {LATER}")
def input_kept_for_the_next_call(net):
    net.before = None


def _cache(net: Any, x: torch.Tensor) -> Any:
    if x.shape[1] not in net.cache:
        net.cache[x.shape[1]] = torch.arange(x.shape[1]) * 0.1
    return net.head(net.layer(x)) + net.cache[x.shape[1]]


@net(_cache)
def cache_by_size(net):
    net.cache = {}


_REMEMBERED: dict[int, torch.Tensor] = {}


@functools.cache
def _table(size: int) -> torch.Tensor:
    return torch.arange(size) * 0.1


@net(lambda net, x: net.head(net.layer(x)) + _table(x.shape[1]))
def cached_function(net):
    pass


def _both(net: Any, x: torch.Tensor) -> Any:
    net.count.add_(1)
    net.last = net.count * 2
    return net.head(net.layer(x)) + net.last


@net(_both)
def buffer_written_and_attribute_assigned(net):
    net.register_buffer("count", torch.zeros(1))
    net.last = None


def _both_and_read(net: Any, x: torch.Tensor) -> Any:
    net.count.add_(1)
    result = net.head(net.layer(x)) + net.last
    net.last = net.count * 2
    return result


@net(_both_and_read, refused=rf"forward changes Net\.last, {LATER}")
def buffer_written_and_attribute_assigned_that_is_read(net):
    net.register_buffer("count", torch.zeros(1))
    net.last = torch.zeros(1)


def _in_a_loop_by_mode(net: Any, x: torch.Tensor) -> Any:
    if net.training:
        for step in range(2):
            net.t.mul_(0.5).add_(x.detach().mean() * step)
    return net.head(net.layer(x)) + net.t


@net(_in_a_loop_by_mode)
def buffer_written_in_a_loop_in_training(net):
    net.register_buffer("t", torch.ones(3))


def _registered(net: Any, x: torch.Tensor) -> Any:
    if not hasattr(net, "fresh"):
        net.register_buffer("fresh", torch.full((3,), 2.0))
    return net.layer(x) * net.fresh


@net(_registered, refused=rf"fresh: forward makes or replaces this part.*{PLACE}")
def buffer_registered_in_forward(net):
    pass


def _made(net: Any, x: torch.Tensor) -> Any:
    if not hasattr(net, "late"):
        net.late = nn.Linear(3, 3)
    return net.late(net.layer(x))


@net(_made, refused=rf"late\.bias: forward makes or replaces this part.*{PLACE}")
def layer_made_in_forward(net):
    pass


def _replaced(net: Any, x: torch.Tensor) -> Any:
    net.head = net.layer
    return net.head(x)


@net(_replaced, refused=rf"head\.bias: forward makes or replaces this part.*{PLACE}")
def layer_replaced_in_forward(net):
    pass
