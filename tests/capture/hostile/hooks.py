"""Hooks: on modules, parameters, activations, and nodes of the autograd graph."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.autograd import graph
from torch.nn.modules import module as global_hooks

from tests.capture.hostile.table import PLACE, body, net


@net(refused=rf"layer: has a backward hook, which may change results or gradients.*{PLACE}")
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


@body(refused=r"layer\.weight: the gradients of the model and its graph differ")
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


@body(refused=r"layer\.weight: the gradients of the model and its graph differ")
def hook_on_a_node(net, x):
    y = net.layer(x)
    if y.grad_fn is not None:
        y.grad_fn.register_hook(
            lambda before, after: tuple(g if g is None else g * 2 for g in before)
        )
    return net.head(y)


@body(refused=r"layer\.weight: the gradients of the model and its graph differ")
def pre_hook_on_a_node(net, x):
    y = net.layer(x).relu()
    if y.grad_fn is not None:
        y.grad_fn.register_prehook(lambda after: (after[0] * 2,))
    return net.head(y)


def _accumulator(parameter: torch.Tensor) -> Any:
    view = parameter.expand_as(parameter)
    assert view.grad_fn is not None
    return view.grad_fn.next_functions[0][0]


@net(refused=r"layer\.weight: the gradients of the model and its graph differ")
def hook_on_an_accumulator(net):
    def double(before: Any, after: Any) -> None:
        net.layer.weight.grad.mul_(2)

    net.held = _accumulator(net.layer.weight)
    net.held.register_hook(double)


@net(refused=r"layer\.weight: the gradients of the model and its graph differ")
def pre_hook_on_an_accumulator(net):
    net.held = _accumulator(net.layer.weight)
    net.held.register_prehook(lambda after: (after[0] * 2,))


@net(refused=None)
def hook_on_an_accumulator_removed_again(net):
    net.held = _accumulator(net.layer.weight)
    net.held.register_hook(lambda before, after: None).remove()


@body()
def hook_on_several_gradients(net, x):
    y = net.layer(x)
    z = y.relu()
    if y.requires_grad:
        graph.register_multi_grad_hook((y, z), lambda gradients: None)
    return net.head(z)


@body(refused=r"layer\.weight: the gradients of the model and its graph differ")
def saved_tensors_rounded(net, x):
    with graph.saved_tensors_hooks(lambda t: t.round(), lambda t: t):
        return net.head(net.layer(x).tanh())


@body(refused=r"layer\.weight: the gradients of the model and its graph differ")
def saved_tensors_of_half_precision(net, x):
    with graph.saved_tensors_hooks(
        lambda t: (t.dtype, t.half()), lambda saved: saved[1].to(saved[0])
    ):
        return net.head(net.layer(x).tanh())


@body()
def saved_tensors_elsewhere(net, x):
    with graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        return net.head(net.layer(x).tanh())


@body()
def saved_tensors_on_the_processor(net, x):
    with graph.save_on_cpu():
        return net.head(net.layer(x).tanh())


@net(refused=rf"has a forward hook of all modules.*{PLACE}")
def forward_hook_of_all_modules(net):
    global_hooks.register_module_forward_hook(lambda module, given, result: result * 2)


@net(refused=rf"has a forward pre-hook of all modules.*{PLACE}")
def forward_pre_hook_of_all_modules(net):
    def add(module: Any, given: Any) -> Any:
        return (given[0] + 1,)

    global_hooks.register_module_forward_pre_hook(add)


@net(refused=rf"has a backward hook of all modules.*{PLACE}")
def backward_hook_of_all_modules(net):
    def double(module: Any, before: Any, after: Any) -> Any:
        return (before[0] * 2,)

    global_hooks.register_module_full_backward_hook(double)


@net(refused=rf"has a backward pre-hook of all modules.*{PLACE}")
def backward_pre_hook_of_all_modules(net):
    def double(module: Any, after: Any) -> Any:
        return (after[0] * 2,)

    global_hooks.register_module_full_backward_pre_hook(double)


@net(refused=rf"layer: has a backward hook.*{PLACE}")
def old_backward_hook(net):
    net.layer.register_backward_hook(lambda module, before, after: None)


@net(refused=None)
def hooks_on_states(net):
    net._register_state_dict_hook(lambda module, state, prefix, local: state)
    net.register_state_dict_pre_hook(lambda module, prefix, keep: None)
    net.register_load_state_dict_pre_hook(lambda module, state, *rest: None)
    net.register_load_state_dict_post_hook(lambda module, keys: None)


@net(refused=None)
def hook_that_only_looks(net):
    net.layer.register_forward_hook(lambda module, given, result: None)


@net(refused=None)
def forward_hook_that_is_always_called(net):
    net.layer.register_forward_hook(lambda module, given, result: result + 1, always_call=True)


@net(lambda net, x: net.head(net.layer(input=x)), refused=None)
def hook_with_named_arguments(net):
    net.layer.register_forward_pre_hook(
        lambda module, given, named: (given, {"input": named["input"] * 2}), with_kwargs=True
    )
