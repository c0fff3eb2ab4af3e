"""What acts only after many calls: counters and containers, wherever they are kept."""

from __future__ import annotations

import contextvars
import itertools
import math
import random
import threading
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.capture.hostile.table import body, net

AFTER = 10  # of the twenty calls of a comparison


def refused(name: str) -> str:
    """The refusal of something that forward changes."""
    return rf"forward changes {name}, and a later call computes something else"


def _attribute(use: Any) -> Any:
    """A forward that counts, and whose factor goes by the count."""

    def forward(net: Any, x: torch.Tensor) -> Any:
        net.calls += 1
        return net.layer(x) * (2 if use(net.calls) else 1)

    return forward


def _counter(net: Any) -> None:
    net.calls = 0


for title, use in {
    "counter_beside_its_limit": lambda calls: calls > AFTER,
    "counter_in_a_range": lambda calls: calls in range(AFTER, 30),
    "counter_of_bits": lambda calls: calls & 256,
    "counter_divided_with_rest": lambda calls: divmod(calls, AFTER)[1] == 0,
    "counter_as_a_logarithm": lambda calls: math.log(calls) > 5,
    "counter_as_a_share": lambda calls: calls / 100 > 0.07,
    "counter_rounded": lambda calls: int(calls / 7) > 20,
    "counter_as_an_index": lambda calls: ([0] * 100 + [1])[min(calls, 100)],
}.items():
    _counter.__name__ = title
    net(_attribute(use), refused=refused(r"Net\.calls"))(_counter)


def _two_stages(net: Any, x: torch.Tensor) -> Any:
    net.calls += 1
    if net.calls > AFTER:
        net.warm = True
    return net.layer(x) * (2 if net.warm else 1)


@net(_two_stages, refused=refused(r"Net\.calls"))
def counter_behind_a_flag(net):
    net.calls, net.warm = 0, False


def _toggled(net: Any, x: torch.Tensor) -> Any:
    net.even = not net.even
    return net.layer(x) * (2 if net.even else 1)


@net(_toggled, refused=refused(r"Net\.even"))
def flag_that_toggles(net):
    net.even = False


def _decayed(net: Any, x: torch.Tensor) -> Any:
    net.rate *= 0.9
    return net.layer(x) * (2 if net.rate < 0.5 else 1)


@net(_decayed, refused=refused(r"Net\.rate"))
def rate_that_decays(net):
    net.rate = 1.0


def _tensor(net: Any, x: torch.Tensor) -> Any:
    net.calls = net.calls + 1
    return net.layer(x) * torch.where(net.calls > AFTER, 2.0, 1.0)


@net(_tensor, refused=refused(r"Net\.calls"))
def tensor_that_counts(net):
    net.calls = torch.zeros(())


def _buffer(net: Any, x: torch.Tensor) -> Any:
    net.calls.add_(1)
    return net.layer(x) * torch.where(net.calls > AFTER, 2.0, 1.0)


@net(_buffer)
def buffer_that_counts(net):
    net.register_buffer("calls", torch.zeros(()))


def _number_of_numpy(net: Any, x: torch.Tensor) -> Any:
    net.calls = net.calls + np.int64(1)
    return net.layer(x) * (2 if net.calls > AFTER else 1)


@net(_number_of_numpy, refused=refused(r"Net\.calls"))
def number_of_numpy_that_counts(net):
    net.calls = np.int64(0)


def _array(net: Any, x: torch.Tensor) -> Any:
    net.calls[0] += 1
    return net.layer(x) * (2 if net.calls[0] > AFTER else 1)


@net(_array, refused=refused(r"Net\.calls"))
def array_that_counts(net):
    net.calls = np.zeros(1, dtype=int)


def _iterator(net: Any, x: torch.Tensor) -> Any:
    return net.layer(x) * (2 if next(net.calls) > AFTER else 1)


@net(_iterator, refused=refused(r"Net\.calls"))
def iterator_that_counts(net):
    net.calls = itertools.count()


@net(
    lambda net, x: net.layer(x) * float(net.generator.random()),
    refused=refused(r"Net\.generator"),
)
def generator_of_numpy(net):
    net.generator = np.random.default_rng(0)


@net(lambda net, x: net.layer(x) * net.generator.random(), refused=refused(r"Net\.generator"))
def generator_of_python(net):
    net.generator = random.Random(0)


# -- containers that grow -------------------------------------------------------------------------


def _set(net: Any, x: torch.Tensor) -> Any:
    net.seen.add(len(net.seen))
    return net.layer(x) * (2 if len(net.seen) > AFTER else 1)


@net(_set, refused=refused(r"Net\.seen"))
def set_that_grows(net):
    net.seen = set()


def _dict(net: Any, x: torch.Tensor) -> Any:
    net.seen[len(net.seen)] = 1
    return net.layer(x) * (2 if len(net.seen) > AFTER else 1)


@net(_dict, refused=refused(r"Net\.seen"))
def dict_that_grows(net):
    net.seen = {}


def _text(net: Any, x: torch.Tensor) -> Any:
    net.log += "."
    return net.layer(x) * (2 if len(net.log) > AFTER else 1)


@net(_text, refused=refused(r"Net\.log"))
def text_that_grows(net):
    net.log = ""


def _tuple(net: Any, x: torch.Tensor) -> Any:
    net.log = (*net.log, 1)
    return net.layer(x) * (2 if len(net.log) > AFTER else 1)


@net(_tuple, refused=refused(r"Net\.log"))
def tuple_that_grows(net):
    net.log = ()


def _sum(net: Any, x: torch.Tensor) -> Any:
    net.log.append(1)
    return net.layer(x) * (2 if sum(net.log) > AFTER else 1)


@net(_sum, refused=refused(r"Net\.log"))
def list_whose_sum_grows(net):
    net.log = []


# -- other places ---------------------------------------------------------------------------------


class Slotted:
    """An object without a dictionary."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0


def _held(net: Any, x: torch.Tensor) -> Any:
    net.held.calls += 1
    return net.layer(x) * (2 if net.held.calls > AFTER else 1)


@net(_held, refused=refused(r"Slotted\.calls"))
def counter_in_a_slot(net):
    net.held = Slotted()


class Counting:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    @property
    def calls(self) -> int:
        """Reading counts."""
        self.asked += 1
        return self.asked


class Outer:
    """Holds what counts."""

    def __init__(self) -> None:
        self.inner = Counting()


@net(
    lambda net, x: net.layer(x) * (2 if net.held.inner.calls > AFTER else 1),
    refused=refused(r"Counting\.asked"),
)
def counter_behind_a_property_of_an_object_in_another(net):
    net.held = Outer()


class Counted(nn.Module):
    """A layer that counts, from a number of its class on."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * (2 if self.calls > AFTER else 1)


@net(lambda net, x: net.counted(net.layer(x)), refused=refused(r"Counted\.calls"))
def counter_in_a_layer(net):
    net.counted = Counted()


@net(lambda net, x: net.parts[0](net.layer(x)), refused=refused(r"Counted\.calls"))
def counter_in_a_layer_in_a_list(net):
    net.parts = [Counted()]


def _default(net: Any, x: torch.Tensor, memory: list[int] = [0]) -> Any:  # noqa: B006  # the point
    memory[0] += 1
    return net.layer(x) * (2 if memory[0] > AFTER else 1)


@net(_default, refused=refused(r"_default\.memory"))
def counter_in_a_default_value(net):
    pass


def _function(net: Any, x: torch.Tensor) -> Any:
    _function.calls += 1  # type: ignore[attr-defined]  # set below
    return net.layer(x) * (2 if _function.calls > AFTER else 1)  # type: ignore[attr-defined]


_function.calls = 0  # type: ignore[attr-defined]


@net(_function, refused=refused(r"_function\.calls"))
def counter_of_a_function(net):
    pass


_THREAD = threading.local()


@body(refused=refused(r"_?local\.calls"))
def counter_of_a_thread(net, x):
    _THREAD.calls = getattr(_THREAD, "calls", 0) + 1
    return net.layer(x) * (2 if _THREAD.calls > AFTER else 1)


_CONTEXT = contextvars.ContextVar("calls", default=0)


@body(refused=refused("calls"))
def counter_of_a_context(net, x):
    _CONTEXT.set(_CONTEXT.get() + 1)
    return net.layer(x) * (2 if _CONTEXT.get() > AFTER else 1)


# -- what forward asks ----------------------------------------------------------------------------


@body(refused=r"hostile/\w+\.py:\d+: forward computes something else each time")
def random_bytes_of_the_system(net, x):
    import os

    return net.layer(x) * (1 + os.urandom(1)[0])


@body(refused=r"hostile/\w+\.py:\d+: forward computes something else while it is captured")
def asks_whether_it_is_captured(net, x):
    return net.layer(x) * (2 if torch.compiler.is_exporting() else 1)


@body(refused=r"hostile/\w+\.py:\d+: forward computes something else while it is captured")
def asks_for_the_class_of_its_input(net, x):
    return net.layer(x) * (2 if type(x) is torch.Tensor else 1)


@body(refused=r"hostile/\w+\.py:\d+: forward changes the gradients of parameters or goes by them")
def asks_for_gradients_of_the_step_before(net, x):
    return net.layer(x) * (1 if net.layer.weight.grad is None else 2)


@body(refused=r"hostile/\w+\.py:\d+: forward changes the gradients of parameters or goes by them")
def gradient_set_in_forward(net, x):
    y = net.layer(x)
    if net.training and y.requires_grad:
        net.layer.weight.grad = torch.ones(3, 3)
    return y


@body()
def asks_for_steps_in_memory(net, x):
    return net.layer(x) * (2 if x.stride(0) == 3 else 1)


@body()
def gradients_off_by_hand(net, x):
    recorded = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    y = net.layer(x)
    torch.set_grad_enabled(recorded)
    return net.head(y)
