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
from torch.nn.utils import parametrize

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Hostile:
    """One entry: how to make the module, what refuses it (None: equal), its example input."""

    make: Callable[[], nn.Module]
    refused: str | None = None
    example: torch.Tensor = X
    batches: tuple[int, ...] = (2, 4, 5)


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


HOSTILE: dict[str, Hostile] = {}


def net(body: Any = _plain, refused: str | None = None, **given: Any) -> Callable[[Any], Any]:
    """Enter a :class:`Net` with this preparation."""

    def enter(prepare: Callable[[Any], Any]) -> Callable[[Any], Any]:
        HOSTILE[prepare.__name__] = Hostile(functools.partial(Net, body, prepare), refused, **given)
        return prepare

    return enter


def body(refused: str | None = None, **given: Any) -> Callable[[Any], Any]:
    """Enter a :class:`Net` with this forward."""

    def enter(forward: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        HOSTILE[forward.__name__] = Hostile(functools.partial(Net, forward), refused, **given)
        return forward

    return enter


def module(refused: str | None = None, **given: Any) -> Callable[[Any], Any]:
    """Enter a class, or a function that makes a module."""

    def enter(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        HOSTILE[make.__name__] = Hostile(make, refused, **given)
        return make

    return enter


# -- hooks on gradients ---------------------------------------------------------------------------

PLACE = r"found \S*hostile\.py:\d+"


@net(refused=rf"layer: has a backward hook, which may change gradients.*{PLACE}")
def full_backward_hook(net):
    net.layer.register_full_backward_hook(lambda module, before, after: (before[0] * 2,))


@net(refused=rf"layer: has a backward pre-hook.*{PLACE}")
def full_backward_pre_hook(net):
    net.layer.register_full_backward_pre_hook(lambda module, after: (after[0] * 2,))


@net(refused=rf"layer\.weight: has a hook on its gradient.*{PLACE}")
def hook_on_a_parameter(net):
    net.layer.weight.register_hook(lambda gradient: gradient * 2)


@net(refused=rf"layer\.weight: has a hook after its gradient is accumulated.*{PLACE}")
def hook_after_accumulation(net):
    def halve(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)

    net.layer.weight.register_post_accumulate_grad_hook(halve)


@net(refused=rf"layer\.weight: has a hook on its gradient.*{PLACE}")
def hook_that_is_a_partial_function(net):
    def times(factor: float, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * factor

    net.layer.weight.register_hook(functools.partial(times, 2.0))


@body(refused=rf"hostile\.py:\d+: has a hook on its gradient.*{PLACE}")
def hook_on_an_activation(net, x):
    y = net.layer(x)
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * 2)
    return net.head(y)


@net(refused=None)
def hook_that_changes_outputs(net):
    net.layer.register_forward_hook(lambda module, given, result: result * 2)


@net(refused=None)
def hook_that_changes_inputs(net):
    net.layer.register_forward_pre_hook(lambda module, given: (given[0] + 1,))


@body(refused=None)
def retained_gradient(net, x):
    y = net.layer(x)
    if y.requires_grad:
        y.retain_grad()
    return net.head(y)


@net(refused=None)
def hook_removed_again(net):
    net.layer.register_full_backward_hook(lambda module, before, after: None).remove()


# -- memory shared without sharing the parameter --------------------------------------------------

SHARED = "shares memory with a leaf that changes"


@net(refused=rf"head\.weight: {SHARED}.*found the memory of layer\.weight")
def two_parameters_on_one_memory(net):
    net.head.weight = nn.Parameter(net.layer.weight.data)


@net(refused=rf"{SHARED}.*found the memory of (layer|head)\.weight")
def parameter_that_is_a_transposed_view(net):
    net.head.weight = nn.Parameter(net.layer.weight.data.t())


@net(refused=rf"{SHARED}.*found the memory of (layer\.weight|head\.bias)")
def parameter_that_is_a_part(net):
    net.head.bias = nn.Parameter(net.layer.weight.data[1])


@net(
    lambda net, x: net.head(net.layer(x)) + net.scale,
    refused=rf"{SHARED}.*found the memory of (layer\.bias|scale)",
)
def buffer_on_the_memory_of_a_parameter(net):
    net.register_buffer("scale", net.layer.bias.data)


@net(
    lambda net, x: net.head(net.layer(x)) + net.part,
    refused=rf"part: {SHARED}.*found the memory of layer\.weight",
)
def attribute_on_the_memory_of_a_parameter(net):
    net.part = net.layer.weight.data[0]


@net(
    lambda net, x: net.head(net.layer(x)) @ net.twice,
    refused=r"twice: was computed from parameters before forward",
)
def attribute_computed_from_a_parameter(net):
    net.twice = net.layer.weight * 2


@net(refused=rf"{SHARED}.*found the memory of (layer|head)\.weight")
def parameters_from_one_numpy_array(net):
    array = torch.ones(3, 3).numpy()
    net.layer.weight = nn.Parameter(torch.from_numpy(array))
    net.head.weight = nn.Parameter(torch.from_numpy(array))


@net(refused=None)
def parameters_side_by_side_in_one_memory(net):
    flat = torch.randn(6, 3)
    net.layer.weight = nn.Parameter(flat[:3])
    net.head.weight = nn.Parameter(flat[3:])


@net(refused=None)
def parameters_interleaved_in_one_memory(net):
    flat = torch.randn(3, 6)
    net.layer.weight = nn.Parameter(flat[:, ::2])
    net.head.weight = nn.Parameter(flat[:, 1::2])


@net(refused=None)
def tied_across_submodules(net):
    net.head.weight, net.head.bias = net.layer.weight, net.layer.bias


@net(refused=None)
def frozen_parameters_on_one_memory(net):
    net.head.weight = nn.Parameter(net.layer.weight.data)
    net.layer.weight.requires_grad_(False)
    net.head.weight.requires_grad_(False)


def _write(net: Any, x: torch.Tensor) -> Any:
    net.first.add_(1)
    return net.head(net.layer(x)) * net.second


@net(_write, refused=r"in place through another tensor.*found b_second")
def two_buffers_on_one_memory_of_which_one_is_written(net):
    net.register_buffer("first", torch.ones(3))
    net.register_buffer("second", net.first.view(3))


@net(lambda net, x: net.head(net.layer(x)) * net.second + net.first, refused=None)
def two_buffers_on_one_memory_that_stay(net):
    net.register_buffer("first", torch.ones(3))
    net.register_buffer("second", net.first.view(3))


# -- attributes that forward changes --------------------------------------------------------------

LATER = "and a later call computes something else"


def _running(net: Any, x: torch.Tensor) -> Any:
    net.t = net.t + x.detach().mean()
    return net.head(net.layer(x)) * net.t


@net(_running, refused=rf"hostile\.py:\d+: forward changes Net\.t, {LATER}.*register_buffer")
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


@net(_in_place, refused=r"t: forward changes a tensor in place that is not part of the state")
def tensor_attribute_written_in_place(net):
    net.t = torch.ones(3)


@net(_in_place, refused=r"t: forward changes a tensor in place that is not part of the state")
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


# -- state that is not a tensor -------------------------------------------------------------------


@module(refused=rf"Extra: has extra state \(get_extra_state\).*{PLACE}")
class Extra(Net):
    """Extra state beside the tensors."""

    def get_extra_state(self) -> Any:
        return {"step": 3}

    def set_extra_state(self, state: Any) -> None:
        pass


# -- functions with a gradient of their own -------------------------------------------------------


class Reversed(torch.autograd.Function):
    """Gradient reversal."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return -gradient


class Straight(torch.autograd.Function):
    """Rounding, whose gradient passes straight through; in the newer style."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient


class Squared(torch.autograd.Function):
    """The gradient of its forward, with another input that has none."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x * factor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * gradient * ctx.factor, None


class SquaredOnce(Squared):
    """The same without a second derivative."""

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * gradient * ctx.factor, None


@body(refused=r"hostile\.py:\d+: Reversed has a gradient of its own")
def gradient_reversal(net, x):
    return net.head(Reversed.apply(net.layer(x)))


@body(refused=r"hostile\.py:\d+: Straight has a gradient of its own")
def straight_through_function(net, x):
    return net.head(Straight.apply(net.layer(x)))


@body()
def straight_through_by_detach(net, x):
    y = net.layer(x)
    return net.head(y + (y.round() - y).detach())


@body()
def function_with_the_gradient_of_its_forward(net, x):
    return net.head(Squared.apply(net.layer(x), 0.5))


@body()
def function_without_double_backward(net, x):
    return net.head(SquaredOnce.apply(net.layer(x), 0.5))


# -- a batch that capture fixes -------------------------------------------------------------------


@body(batches=(4,))
def branch_on_the_size_of_the_batch(net, x):
    return net.layer(x) * (2 if x.shape[0] > 3 else 1)


@body(batches=(4,))
def branch_on_the_parity_of_the_batch(net, x):
    return net.layer(x) * (2 if x.shape[0] % 2 else 1)


@body(refused=r"hostile\.py:\d+.*depends on the batch size in a way")
def rows_appended(net, x):
    return net.layer(torch.cat([x, x[:1]]))


# -- random numbers -------------------------------------------------------------------------------


@body(refused=r"draws from Python's random numbers")
def random_numbers_of_python(net, x):
    import random

    return net.layer(x) * random.random()


@body()
def random_numbers_in_evaluation(net, x):
    return net.layer(x) + torch.rand_like(x)


@body()
def random_numbers_in_both_modes(net, x):
    return nn.functional.dropout(net.layer(x), 0.5, training=True)


# -- writes, regions, numbers ---------------------------------------------------------------------


@body()
def input_written_in_place(net, x):
    y = x * 1
    y += 1
    return net.layer(y.mul_(2))


@body()
def where_beside_nan(net, x):
    y = net.layer(x)
    return net.head(torch.where(y > 0, y.clamp(min=1e-3).log(), y))


@body()
def fourier_transform(net, x):
    return net.head(torch.fft.irfft(torch.fft.rfft(net.layer(x)), n=3))


@body()
def autocast_inside(net, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = net.layer(x)
    return net.head(y.float())


@body()
def nested_calls(net, x):
    return net.head(net.layer(net.layer(net.layer(x).tanh()).tanh()).tanh())


@body(refused=r"hostile\.py:\d+.*branches on the values")
def branch_on_values(net, x):
    return net.layer(x) if x.sum() > 0 else net.layer(-x)


@net(refused=None)
def frozen_part_way(net):
    net.layer.requires_grad_(False)
    net.head.bias.requires_grad_(False)


class Symmetric(nn.Module):
    """A parametrisation."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu() + weight.triu(1).mT


@net(refused=None)
def parametrised(net):
    parametrize.register_parametrization(net.layer, "weight", Symmetric())


@module(refused=r"0\.weight: a lazy module has no weights yet")
def lazy() -> nn.Module:
    """No weights yet."""
    return nn.Sequential(nn.LazyLinear(4))


@module()
def quantisation_stubs() -> nn.Module:
    """Stubs pass through."""
    return nn.Sequential(nn.Identity(), nn.Linear(3, 3), nn.Identity())


@module()
def data_parallel() -> nn.Module:
    """DataParallel on a machine without several devices runs its module."""
    return nn.DataParallel(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), device_ids=[])


@module()
def recurrent() -> nn.Module:
    """Weights of a recurrent layer may lie in one memory."""
    return nn.GRUCell(3, 3)
