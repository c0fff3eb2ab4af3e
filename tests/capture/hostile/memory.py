"""Memory that leaves share, with or without sharing the parameter."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.capture.hostile.table import net

SHARED = "shares memory with a tensor that changes"


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


@net(_write, refused=r"memory of b_second was written in place through another tensor")
def two_buffers_on_one_memory_of_which_one_is_written(net):
    net.register_buffer("first", torch.ones(3))
    net.register_buffer("second", net.first.view(3))


@net(lambda net, x: net.head(net.layer(x)) * net.second + net.first, refused=None)
def two_buffers_on_one_memory_that_stay(net):
    net.register_buffer("first", torch.ones(3))
    net.register_buffer("second", net.first.view(3))
