"""The model and the module that is built of its graph run side by side: what differs is refused."""

from __future__ import annotations

import contextlib
import functools
import math
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.capture import verify
from archgraph.capture.examples import redrawn
from archgraph.capture.verify import largest_difference, tolerance_of
from archgraph.module.build import filled
from tests.capture.hostile.table import Net, X
from tests.nets import with_parts


class Sign(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.sign(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient


class Swish(torch.autograd.Function):
    """Saves memory, and has the gradient of its forward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return gradient * (s + x * s * (1 - s))


sign, swish = Sign.apply, Swish.apply
WAYS: dict[str, Callable[[Any], Callable[[Any, Any], Any]]] = {
    "its class": lambda kind: lambda net, x: net.head(kind.apply(net.layer(x))),
    "a name": lambda kind: lambda net, x: net.head((sign if kind is Sign else swish)(net.layer(x))),
    "a partial": lambda kind: lambda net, x: net.head(functools.partial(kind.apply)(net.layer(x))),
    "an attribute": lambda kind: lambda net, x: net.head(net.body[1](net.layer(x))),
    "a function": lambda kind: lambda net, x: net.head(_called(kind.apply, net.layer(x))),
}


def _called(function: Any, x: torch.Tensor) -> Any:
    return function(x)


def _net(way: str, kind: Any) -> Any:
    net: Any = Net(WAYS[way](kind))
    net.body = (*net.body, kind.apply)
    return net


@pytest.mark.parametrize("way", WAYS)
def test_a_gradient_of_ones_own_is_found_whatever_its_function_is_bound_to(way):
    with pytest.raises(ag.TraceError, match=r"test_verify.py:\d+: Sign defines its own gradient"):
        ag.trace(_net(way, Sign), X)


@pytest.mark.parametrize("way", WAYS)
def test_a_function_with_the_gradient_of_its_forward_is_captured_and_noted(way):
    net = _net(way, Swish)
    graph, state = ag.trace(net, X)
    (note,) = graph.notes
    assert "Swish defines its own backward, which agreed with autograd in the two calls" in note
    built = ag.build(graph, state)
    for module in (net, built):
        module(X).square().sum().backward()
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(built.get_parameter(name).grad, parameter.grad)


# -- what is compared: outputs, gradients, buffers, in both modes, at both calls ------------------


@with_parts(
    lambda: {
        "layer": nn.Linear(3, 4),
        "norm": nn.BatchNorm1d(4),
        "drop": nn.Dropout(0.5),
        "head": nn.Linear(4, 2),
        "steps": torch.zeros(()),
    }
)
def Chain(self, x: torch.Tensor) -> Any:
    """A norm, a dropout, a counter: it has everything that is compared."""
    if self.training:
        self.steps.add_(1)
    y = self.norm(self.layer(x))
    return {"logits": self.head(self.drop(y).relu()), "hidden": y}


Faulty = Callable[[Any], Any]
FAULTS: dict[str, tuple[Faulty, str]] = {}


def fault(words: str) -> Callable[[Faulty], Faulty]:
    """Enter a change of the built module and the words of the error."""

    def enter(change: Faulty) -> Faulty:
        FAULTS[change.__name__] = change, words
        return change

    return enter


def _result(net: nn.Module, change: Callable[[nn.Module, dict[str, Any]], Any]) -> None:
    """Change what a module gives."""
    net.register_forward_hook(lambda module, given, result: change(module, dict(result)))


def _gradient(net: nn.Module, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    net.get_parameter(name).register_hook(change)


@fault(r"output \['logits'\] differs by 1.0e-02 .* in evaluation")
def another_output_in_evaluation(net):
    _result(net, lambda m, r: r if m.training else {**r, "logits": r["logits"] * 1.01})


@fault(r"output \['logits'\] differs by .* in training")
def another_output_in_training(net):
    _result(net, lambda m, r: {**r, "logits": r["logits"] * 1.01} if m.training else r)


@fault(r"output \['hidden'\] differs by")
def another_second_output(net):
    _result(net, lambda m, r: {**r, "hidden": r["hidden"] + 0.01})


@fault("the second call in evaluation")
def another_output_at_the_second_call(net):
    calls: list[int] = []

    def second(module: Any, result: dict[str, Any]) -> Any:
        calls.append(1)
        return {**result, "logits": result["logits"] * min(len(calls), 2)}

    _result(net, second)


@fault("1 tensors instead of 2")
def one_output_less(net):
    _result(net, lambda m, r: {"logits": r["logits"]})


@fault(r"torch.float64 \(5, 2\) instead of torch.float32 \(5, 2\)|torch.float64 .* instead of")
def another_dtype(net):
    _result(net, lambda m, r: {**r, "logits": r["logits"].double()})


@fault(r"^layer.weight: .* gradient layer.weight differs by")
def another_gradient(net):
    _gradient(net, "layer.weight", lambda g: g * 1.01)


@fault(r"^head.bias: .* gradient head.bias differs by 2.0e\+00")
def a_reversed_gradient(net):
    _gradient(net, "head.bias", lambda g: -g)


@fault("gradient head.weight differs by .* in the second call in training")
def a_gradient_that_is_clipped(net):
    _gradient(net, "head.weight", lambda g: g.clamp(-200, 200))


@fault(r"gradient head.weight differs by \d.\de-0[678] ")
def a_gradient_that_is_off_by_some_bits(net):
    _gradient(net, "head.weight", lambda g: g * (1 + 3e-7))


@fault("gradient head.weight exists only in the model")
def no_gradient(net):
    net.get_parameter("head.weight").requires_grad_(False)


@fault("gradient norm.weight exists only in the graph")
def a_gradient_of_a_frozen_parameter(net):
    net.get_parameter("norm.weight").requires_grad_(True)


def _count(net: nn.Module, name: str, training: bool) -> None:
    """Add to a buffer in one mode."""

    def count(module: nn.Module, _: Any) -> None:
        net.get_buffer(name).add_(module.training == training)

    net.register_forward_pre_hook(count)


@fault("buffer steps differs by .* in training")
def another_counter(net):
    _count(net, "steps", training=True)


@fault("buffer norm.num_batches_tracked differs by .* in evaluation")
def a_buffer_that_counts_in_evaluation(net):
    _count(net, "norm.num_batches_tracked", training=False)


@fault(r"output \['logits'\] differs by .* in the second call in training")
def a_dropout_that_does_not_drop(net):
    forward = net.forward

    def undropped(*args: Any, **kwargs: Any) -> Any:
        with _Undropped() if net.training else contextlib.nullcontext():
            return forward(*args, **kwargs)

    net.forward = undropped


class _Undropped(torch.utils._python_dispatch.TorchDispatchMode):
    """Draws ones."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if "bernoulli" in func.__name__:
            return result.fill_(1)
        return result


@fault("the built module raises in evaluation, but the model does not: ZeroDivisionError")
def an_error(net):
    _result(net, lambda m, r: 1 / 0)


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", FAULTS)
def test_what_differs_is_refused_by_name(name, monkeypatch):
    change, words = FAULTS[name]

    def faulty(*args: Any, **options: Any) -> nn.Module:
        built = filled(*args, **options)
        change(built)
        return built

    monkeypatch.setattr(verify, "filled", faulty)
    torch.manual_seed(0)
    net = Chain()
    net.norm.weight.requires_grad_(False)
    with pytest.raises(ag.TraceError, match=words) as refusal:
        ag.trace(net, X)
    assert refusal.value.where
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ag.TraceWarning)
        graph = ag.trace(net, X, strict=False).graph
    assert any(re.search(words, str(warning.message)) for warning in said)
    assert ag.trace(net, X, verify=False).graph == graph


# -- how the model is called ----------------------------------------------------------------------


@with_parts(lambda: {"layer": nn.Linear(3, 3), "embed": nn.Embedding(9, 3)})
def Counted(self, x: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Notes how it is called."""
    if type(x) is torch.Tensor:
        CALLS.append((self.training, torch.is_grad_enabled(), x.clone(), ids, mask))
    return self.layer(x) * mask[:, None] + self.embed(ids)


CALLS: list[Any] = []


def test_a_model_runs_without_numbers_in_both_modes_and_once_with_numbers():
    CALLS.clear()
    x, ids, mask = torch.rand(1, 3), torch.tensor([5]), torch.tensor([1.0])
    ag.trace(Counted(), x, ids, mask)
    assert [(training, graded) for training, graded, *_ in CALLS] == [
        (False, False), (False, True), (False, True), (True, True), (True, True),
        (False, False), (False, False),
    ]  # fmt: skip
    _check_values(x, *CALLS[1:5])
    CALLS.clear()
    ag.trace(Counted(), x, ids, mask, train=False)
    assert [training for training, *_ in CALLS] == [False] * 5
    CALLS.clear()
    ag.trace(Counted(), x, ids, mask, verify=False)
    assert CALLS == []


def test_a_model_whose_formulas_differ_runs_four_times_with_numbers(monkeypatch):
    monkeypatch.setattr(verify._Verification, "equal_formulas", lambda *_: False)
    CALLS.clear()
    x, ids, mask = torch.rand(1, 3), torch.tensor([5]), torch.tensor([1.0])
    ag.trace(Counted(), x, ids, mask)
    _, *others = CALLS
    assert [(training, graded) for training, graded, *_ in others] == [
        (False, False), (False, False), (True, True), (True, True),
    ]  # fmt: skip
    _check_values(x, *others)
    CALLS.clear()
    ag.trace(Counted(), x, ids, mask, train=False)
    assert [graded for _, graded, *_ in CALLS] == [False, False, True]


def _check_values(x, *calls):
    first, second, third, fourth = (values[2] for values in calls)
    assert torch.equal(first, x.expand(2, 3)) and torch.equal(third, first)  # two at least
    assert second.shape == (3, 3) and torch.equal(second, fourth)  # another batch, other numbers
    assert 0 <= second.min() and second.max() <= x.max() and len(second.unique()) == 9
    assert all(set(values[3].tolist()) == {5} for values in calls)


@pytest.mark.parametrize(
    ("values", "stays"),
    [
        (torch.tensor([[0.0, 1.0], [1.0, 1.0]]), True),  # a mask
        (torch.tensor([[0.0, -torch.inf]]), True),
        (torch.tensor([3, 1, 2]), True),
        (torch.tensor([True, False]), True),
        (torch.zeros(4, 3), False),
        (torch.ones(4, 3), False),
        (torch.randn(4, 3), False),
    ],
)
def test_masks_and_whole_numbers_stay_and_other_numbers_are_drawn(values, stays):
    other = redrawn((values,))[0]
    assert torch.equal(other, values) == stays
    assert other.dtype == values.dtype and other.shape == values.shape


def test_numbers_stay_in_the_range_of_the_example():
    columns = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    assert torch.equal(redrawn(columns), columns.roll(1, 0))
    positive = redrawn(torch.rand(100) * 7)
    assert 0 <= positive.min() and 6 < positive.max() <= 7
    assert redrawn(torch.randn(100)).abs().max() > 20  # outliers
    assert torch.equal(redrawn(columns), redrawn(columns))


# -- what cannot be compared ----------------------------------------------------------------------


def test_a_model_that_raises_in_training_is_noted():
    @with_parts(lambda: {"layer": nn.Linear(3, 3)})
    def Strict(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and type(x) is torch.Tensor:
            raise ValueError("expects more than one value")
        return self.layer(x)

    graph, _ = ag.trace(Strict(), X)
    assert graph.notes == (
        "not verified in training: the model raises ValueError: expects more than one value",
    )


def test_an_input_that_only_the_example_fits_is_used_again():
    @with_parts(lambda: {"layer": nn.Linear(3, 3)})
    def Narrow(self, x: torch.Tensor) -> torch.Tensor:
        if type(x) is torch.Tensor and not torch.equal(x, X):
            raise ValueError("out of range")
        return self.layer(x)

    assert ag.trace(Narrow(), X).graph.notes == ()


def test_a_model_that_is_too_large_for_the_memory_is_noted(monkeypatch):
    monkeypatch.setattr(verify, "_free_memory", lambda: 1000.0)
    assert ag.trace(nn.Linear(30, 20), torch.zeros(2, 30)).notes == ()  # without numbers
    monkeypatch.setattr(verify._Verification, "equal_formulas", lambda *_: False)
    small = ag.trace(nn.Linear(3, 2), X)
    assert small.notes == ()
    (note,) = ag.trace(nn.Linear(30, 20), torch.zeros(2, 30)).notes
    assert note.startswith("not verified: it needs 0.0 GiB of memory")


def test_the_memory_of_this_machine_is_known():
    assert 2**20 < verify._free_memory() < 2**50


def test_random_numbers_in_another_order_are_compared_and_noted():
    @with_parts(lambda: {"layer": nn.Linear(3, 8), "drop": nn.Dropout(0.5)})
    def Drawn(self, x: torch.Tensor) -> torch.Tensor:
        """Draws over memory in an order that a graph does not keep."""
        y: torch.Tensor = self.drop(self.layer(x).T.contiguous())
        return y.T

    graph, _ = ag.trace(Drawn(), X)
    assert graph.notes == (
        "in training random numbers are drawn in another order: with equal seeds, draws differ "
        "from the model's",
    )


# -- how far is too far ---------------------------------------------------------------------------


def test_differences_are_relative_to_the_largest_value():
    ones = torch.ones(3)
    assert largest_difference(ones, ones) == 0
    assert largest_difference(torch.tensor([1.0, 98.0]), torch.tensor([2.0, 100.0])) == 0.02
    assert largest_difference(ones, torch.zeros(3)) == math.inf
    assert largest_difference(ones, torch.zeros(3), floor=lambda: 4.0) == 0.25
    assert largest_difference(2 * ones, ones, floor=lambda: 4.0) == 0.25
    assert largest_difference(torch.tensor([2]), torch.tensor([1])) == 1
    assert largest_difference(torch.tensor([1j]), torch.tensor([2j])) == 0.5
    nan, infinite = torch.tensor([math.nan, 1]), torch.tensor([math.inf, 1])
    assert largest_difference(nan, nan) == largest_difference(infinite, infinite) == 0
    assert largest_difference(nan, ones[:2]) == largest_difference(ones[:2], nan) == math.inf
    assert largest_difference(infinite, -infinite) == math.inf
    sparse = torch.tensor([0.0, 2.0]).to_sparse()
    assert largest_difference(sparse, torch.tensor([0.0, 1.0])) == 1


def test_the_tolerance_goes_by_the_dtype():
    assert tolerance_of(torch.float64) < 1e-7 < tolerance_of(torch.float32) < 1e-3
    assert tolerance_of(torch.complex64) == tolerance_of(torch.float32)
    assert (
        tolerance_of(torch.float32)
        < tolerance_of(torch.float16)
        < tolerance_of(torch.bfloat16)
        < 0.1
    )
    assert tolerance_of(torch.int64) == tolerance_of(torch.bool) == 0


def test_equal_models_draw_equal_numbers_and_have_no_notes():
    assert ag.trace(Chain(), X).notes == ()
    assert ag.trace(nn.LSTM(3, 3, num_layers=2, dropout=0.5), torch.randn(5, 4, 3)).notes == ()
