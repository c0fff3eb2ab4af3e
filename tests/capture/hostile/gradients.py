"""Gradients: functions with one of their own, regions without one, frozen parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.capture.hostile.table import PLACE, body, net


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


@body(refused=r"hostile/\w+\.py:\d+: Reversed defines its own gradient")
def gradient_reversal(net, x):
    return net.head(Reversed.apply(net.layer(x)))


@body(refused=r"hostile/\w+\.py:\d+: Straight defines its own gradient")
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


@net(refused=None)
def frozen_part_way(net):
    net.layer.requires_grad_(False)
    net.head.bias.requires_grad_(False)


@body()
def no_gradient_in_a_region(net, x):
    with torch.no_grad():
        y = net.layer(x)
    return net.head(y)


@body()
def detached(net, x):
    return net.head(net.layer(x).detach())


@body(refused=r"hostile/\w+\.py:\d+: .*use \.detach\(\) instead of \.data")
def data_of_a_parameter(net, x):
    return net.head(x @ net.layer.weight.data)


@body()
def gradient_of_half_of_it(net, x):
    y = net.layer(x)
    return net.head(torch.cat([y[:, :1].detach(), y[:, 1:]], 1))


@body(refused=r"(layer|head)\.weight: the gradients of the model and its graph differ")
def frozen_in_forward(net, x):
    net.layer.weight.requires_grad_(False)
    return net.head(net.layer(x))


@body()
def thawed_and_frozen_by_mode(net, x):
    net.layer.weight.requires_grad_(net.training)
    return net.head(net.layer(x))


@body(refused=rf"layer\.weight: forward makes or replaces this part.*{PLACE}")
def parameter_replaced_in_forward(net, x):
    net.layer.weight = nn.Parameter(net.layer.weight * 0.5)
    return net.head(net.layer(x))


@body(refused=r"hostile/\w+\.py:\d+: .*uses the data of a tensor")
def data_replaced_in_forward(net, x):
    net.layer.weight.data = net.layer.weight.data * 0.5
    return net.head(net.layer(x))


@body(refused=r"hostile/\w+\.py:\d+: forward writes to the parameter layer\.weight")
def parameter_clipped_in_forward(net, x):
    with torch.no_grad():
        net.layer.weight.clamp_(-0.1, 0.1)
    return net.head(net.layer(x))


@body(refused=r"hostile/\w+\.py:\d+: .*uses the data of a tensor")
def parameter_clipped_through_its_data(net, x):
    net.layer.weight.data.clamp_(-0.1, 0.1)
    return net.head(net.layer(x))


@body(refused=r"(layer|head)\.weight: the gradients of the model and its graph differ")
def gradient_cleared_in_forward(net, x):
    net.layer.weight.grad = None
    return net.head(net.layer(x))


@body(refused=r"hostile/\w+\.py:\d+: the model and its graph compute different results")
def asks_whether_gradients_are_recorded(net, x):
    return net.layer(x) * (2 if torch.is_grad_enabled() else 1)


@body(refused=r"hostile/\w+\.py:\d+: the model and its graph compute different results")
def asks_whether_a_result_requires_gradients(net, x):
    y = net.layer(x)
    return net.head(y * 2 if y.requires_grad else y)


class ScaledGradient(torch.autograd.Function):
    """A gradient scaled by a number."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * ctx.factor, None


@body(refused=r"hostile/\w+\.py:\d+: ScaledGradient defines its own gradient")
def scaled_gradient(net, x):
    return net.head(ScaledGradient.apply(net.layer(x), 0.1))


class NotDifferentiable(torch.autograd.Function):
    """One of its results lets no gradient through."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        y = x * 2
        ctx.mark_non_differentiable(y)
        return x * 3, y

    @staticmethod
    def backward(ctx: Any, first: torch.Tensor, second: torch.Tensor) -> Any:
        return first * 3


@body(refused=r"hostile/\w+\.py:\d+: NotDifferentiable defines its own gradient")
def result_marked_as_not_differentiable(net, x):
    a, b = NotDifferentiable.apply(net.layer(x))
    return net.head(a + b)


class WritesInPlace(torch.autograd.Function):
    """Writes its argument in place."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * 2


@body()
def function_that_writes_in_place(net, x):
    return net.head(WritesInPlace.apply(net.layer(x) * 1))


class TwiceDifferentiable(torch.autograd.Function):
    """Its second gradient is another than that of its forward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * x.cos()


@body()
def function_with_double_backward(net, x):
    return net.head(TwiceDifferentiable.apply(net.layer(x)))


@torch.library.custom_op("hostile::triple", mutates_args=())
def _triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@_triple.register_fake
def _(x):
    return torch.empty_like(x)


@body(refused=r"operator outside ATen")
def operator_of_ones_own(net, x):
    return net.head(_triple(net.layer(x)))


class Passing(torch.autograd.Function):
    """Returns its argument; subclasses have gradients of their own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.batch = x.shape[0]
        return x.clone()


class ClippedByValue(Passing):
    """A large gradient is clipped."""

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient.clamp(-10, 10)


class ClippedByNorm(Passing):
    """A gradient with a large norm is scaled."""

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * min(1.0, 50.0 / float(gradient.norm()))


class ClampedStraight(torch.autograd.Function):
    """A clamp, whose gradient passes straight through."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(-6, 6)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient


@body(refused=r"hostile/\w+\.py:\d+: ClippedByValue defines its own gradient")
def gradient_clipped_by_value(net, x):
    return net.head(ClippedByValue.apply(net.layer(x)))


@body(refused=r"hostile/\w+\.py:\d+: ClippedByNorm defines its own gradient")
def gradient_clipped_by_norm(net, x):
    return net.head(ClippedByNorm.apply(net.layer(x)))


@body(refused=r"hostile/\w+\.py:\d+: ClampedStraight defines its own gradient")
def clamp_with_a_straight_gradient(net, x):
    return net.head(ClampedStraight.apply(net.layer(x)))


@body(refused=r"(layer|head)\.weight: the gradients of the model and its graph differ")
def saved_tensors_clamped(net, x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clamp(-60, 60), lambda t: t):
        return net.head(net.layer(x).relu().square())
