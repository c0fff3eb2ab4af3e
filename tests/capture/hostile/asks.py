"""What forward asks beside its inputs: how it is run, earlier gradients, random bytes."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import torch

from tests.capture.hostile.table import body, net

OTHER = r"hostile/\w+\.py:\d+: the model and its graph compute different results"


def _toggled(net: Any, x: torch.Tensor) -> Any:
    net.even = not net.even
    return net.layer(x) * (2 if net.even else 1)


@net(_toggled, refused=OTHER)
def flag_that_toggles(net):
    net.even = False


@net(lambda net, x: net.layer(x) * float(net.generator.random()), refused=OTHER)
def generator_of_numpy(net):
    net.generator = np.random.default_rng(0)


@net(lambda net, x: net.layer(x) * net.generator.random(), refused=OTHER)
def generator_of_python(net):
    net.generator = random.Random(0)


@net(
    lambda net, x: net.layer(x) * (1 if net.lock.acquire(blocking=False) else 2),
    refused=OTHER,
)
def lock_that_stays_locked(net):
    net.lock = threading.Lock()


def _results_kept(net: Any, x: torch.Tensor) -> Any:
    y = net.layer(x)
    net.last = {"pair": (y, y.shape[1]), "all": [[[[y]]]]}
    return net.head(y)


@net(_results_kept)
def results_kept_in_nested_containers(net):
    net.last = None


def _buffer(net: Any, x: torch.Tensor) -> Any:
    net.calls.add_(1)
    return net.layer(x) * torch.where(net.calls > 10, 2.0, 1.0)


@net(_buffer)
def buffer_that_counts(net):
    net.register_buffer("calls", torch.zeros(()))


@body(refused=OTHER)
def random_bytes_of_the_system(net, x):
    import os

    return net.layer(x) * (1 + int.from_bytes(os.urandom(4)))


@body(refused=OTHER)
def asks_whether_it_is_captured(net, x):
    return net.layer(x) * (2 if torch.compiler.is_exporting() else 1)


@body(refused=OTHER)
def asks_for_the_class_of_its_input(net, x):
    return net.layer(x) * (2 if type(x) is torch.Tensor else 1)


@body(refused=OTHER)
def asks_for_gradients_of_the_step_before(net, x):
    return net.layer(x) * (1 if net.layer.weight.grad is None else 2)


@body(refused=r"layer\.weight: the gradients of the model and its graph differ")
def gradient_set_in_forward(net, x):
    y = net.layer(x)
    if net.training and y.requires_grad:
        net.layer.weight.grad = torch.ones(3, 3)
    return y


@body(refused=OTHER)
def asks_whether_autocast_is_on(net, x):
    return net.layer(x) * (2 if torch.is_autocast_enabled("cpu") else 1)


@body()
def casts_as_autocast_would(net, x):
    y = net.layer(x)
    if torch.is_autocast_enabled("cpu"):
        y = y.to(torch.get_autocast_dtype("cpu"))
    return net.head(y)


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
