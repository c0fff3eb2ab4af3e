"""Numbers: batches that capture fixes, random draws, writes, dtypes."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.capture.hostile.table import body, module, net

GENERATOR = r"hostile/\w+\.py:\d+: forward uses an object that is not a tensor; found torch\._C"


@body(batches=(4,))
def branch_on_the_size_of_the_batch(net, x):
    return net.layer(x) * (2 if x.shape[0] > 3 else 1)


@body(batches=(4,))
def branch_on_the_parity_of_the_batch(net, x):
    return net.layer(x) * (2 if x.shape[0] % 2 else 1)


@body()
def rows_appended(net, x):
    return net.layer(torch.cat([x, x[:1]]))


@body(refused=r"draws random numbers from Python or NumPy")
def random_numbers_of_python(net, x):
    return net.layer(x) * random.random()


@body(refused=r"draws random numbers from Python or NumPy")
def random_numbers_of_numpy(net, x):
    return net.layer(x) + torch.from_numpy(np.random.rand(3)).float()  # noqa: NPY002  # as people do


@body(refused=r"draws random numbers from Python or NumPy")
def rare_branch_on_a_random_number(net, x):
    return net.layer(x) if random.random() < 0.999 else net.head(x)


@body(refused=r"draws random numbers from Python or NumPy")
def narrow_branch_on_a_random_number(net, x):
    return net.head(x) if random.randrange(20) == 3 else net.layer(x)


@body(refused=r"draws random numbers from Python or NumPy")
def branch_on_the_order_of_random_numbers(net, x):
    return net.layer(x) if random.random() < random.random() else net.head(x)


@body(refused=r"draws random numbers from Python or NumPy")
def random_numbers_in_training_alone(net, x):
    skips = net.training and random.random() < 0.1
    return net.head(x) if skips else net.head(net.layer(x))


@body()
def random_numbers_that_no_result_needs(net, x):
    random.shuffle([1, 2, 3])
    np.random.randn(2)  # noqa: NPY002  # as people do
    return net.layer(x) if random.gauss(0, 1) < 100 else net.head(x)


@body()
def random_numbers_in_evaluation(net, x):
    return net.layer(x) + torch.rand_like(x)


@body()
def random_numbers_in_both_modes(net, x):
    return nn.functional.dropout(net.layer(x), 0.5, training=True)


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


@body(refused=r"hostile/\w+\.py:\d+.*branches on the values")
def branch_on_values(net, x):
    return net.layer(x) if x.sum() > 0 else net.layer(-x)


@body()
def autocast_in_nested_regions(net, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = net.layer(x)
        with torch.autocast("cpu", enabled=False):
            y = net.layer(y.float())
        return net.head(y).float()


@net()
def half_of_it_in_double(net):
    net.layer.double()
    net.layer.register_forward_pre_hook(lambda module, given: (given[0].double(),))
    net.layer.register_forward_hook(lambda module, given, result: result.float())


@body()
def argument_written_in_place(net, x):
    x.mul_(2)
    return net.layer(x)


@body()
def argument_written_in_place_through_a_view(net, x):
    x[:, 0] = 0
    return net.layer(x)


@body()
def argument_given_back(net, x):
    return net.layer(x), x


@body()
def view_of_the_argument_given_back(net, x):
    return net.layer(x), x.view(-1)


@body()
def parameter_given_back(net, x):
    return net.layer(x), net.layer.weight


@net(lambda net, x: (net.layer(x), net.mean))
def buffer_given_back(net):
    net.register_buffer("mean", torch.ones(3))


@net(lambda net, x: (net.layer(x) + net.count.add_(1), net.count))
def written_buffer_given_back(net):
    net.register_buffer("count", torch.zeros(1))


@body()
def one_result_twice(net, x):
    y = net.layer(x)
    return y, y


@body()
def complex_numbers_inside(net, x):
    return torch.view_as_real(torch.view_as_complex(torch.stack([net.layer(x), x], -1)) ** 2).sum(
        -1
    )


@net(lambda net, x: (net.layer(x).to(torch.complex64) @ net.turn).real)
def complex_weight(net):
    net.turn = nn.Parameter(torch.randn(3, 3, dtype=torch.complex64))


@net(lambda net, x: net.layer(x) * net.scale)
def parameter_without_axes(net):
    net.scale = nn.Parameter(torch.tensor(2.0))


@net(lambda net, x: net.layer(x)[:, net.order])
def parameter_of_integers(net):
    net.order = nn.Parameter(torch.tensor([2, 0, 1]), requires_grad=False)


@net(lambda net, x: net.layer(x)[:, net.order] * net.scale)
def buffers_outside_the_state(net):
    net.register_buffer("order", torch.tensor([2, 0, 1]), persistent=False)
    net.register_buffer("scale", torch.rand(3), persistent=False)


@net(
    lambda net, x: net.layer(x) * net.table[net.row],
    refused=r"hostile/\w+\.py:\d+: a size depends on the values of a tensor",
)
def buffer_of_one_integer(net):
    net.register_buffer("row", torch.tensor(1))
    net.table = nn.Parameter(torch.randn(2, 3))


def _embedded(net: Any, x: torch.Tensor) -> Any:
    return net.embed(x.abs().long().clamp(max=4)).sum(1) + net.layer(x)


@net(_embedded)
def gradient_through_indices(net):
    net.embed = nn.Embedding(5, 3, padding_idx=0)


@net(_embedded, optimiser=torch.optim.SparseAdam)
def sparse_gradient(net):
    net.embed = nn.Embedding(5, 3, sparse=True)
    for part in (net.layer, net.head):
        part.requires_grad_(False)


@net(_embedded, refused=r"hostile/\w+\.py:\d+: forward writes to the parameter embed\.weight")
def embedding_that_renormalises(net):
    net.embed = nn.Embedding(5, 3, max_norm=0.5)


@net(_embedded)
def gradient_scaled_by_frequency(net):
    net.embed = nn.Embedding(5, 3, scale_grad_by_freq=True)


@module(example=torch.randn(4, 3, 4, 4))
def channels_last() -> nn.Module:
    """Weights in another order of memory."""
    made: Any = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    return made.to(memory_format=torch.channels_last)


@body()
def order_of_memory_asked(net, x):
    return net.layer(x) * (2 if x.is_contiguous() else 1)


@body(refused=GENERATOR)
def random_numbers_of_a_generator(net, x):
    generator = torch.Generator().manual_seed(3)
    return net.layer(x) + torch.rand(3, generator=generator)


@net(
    lambda net, x: net.layer(x) + torch.rand(3, generator=net.generator),
    refused=GENERATOR,
)
def generator_that_goes_on(net):
    net.generator = torch.Generator().manual_seed(3)


@body(refused=r"hostile/\w+\.py:\d+: forward seeds torch's random numbers")
def seed_set_in_forward(net, x):
    torch.manual_seed(7)
    return net.layer(x) + torch.rand(3)


@body()
def random_mask_of_all_rows(net, x):
    return net.layer(x) * torch.bernoulli(torch.full_like(x, 0.5))


@body()
def random_order(net, x):
    return net.layer(x[:, torch.randperm(3)])


@body()
def statistics_of_the_batch(net, x):
    return net.head((net.layer(x) - x.mean(0)) / x.shape[0])


@body()
def nan_in_a_branch_not_taken(net, x):
    y = net.layer(x)
    return torch.where(y > 0, (y - 10).clamp(min=0).sqrt(), y)


@body()
def default_dtype_asked(net, x):
    return net.layer(x) + torch.ones(3, dtype=torch.get_default_dtype())


@body(refused=r"hostile/\w+\.py:\d+: the model and its graph compute different results")
def time_of_the_call(net, x):
    return net.layer(x) * (1 + time.time() % 1)


@body()
def a_time_that_is_only_noted(net, x):
    net.since = time.perf_counter()
    return net.layer(x)


@body(refused=r"hostile/\w+\.py:\d+ in float_of_an_item: .*branches on the values")
def float_of_an_item(net, x):
    return net.layer(x) * float(net.layer.weight.sum())


@body(refused=r"hostile/\w+\.py:\d+: a size depends on the values of a tensor")
def size_by_values(net, x):
    return net.layer(x)[x[:, 0] > 0].sum()


@body()
def a_while_loop_by_sizes(net, x):
    total = 0
    while total < x.shape[1]:
        x = net.layer(x)
        total += 1
    return x


@body()
def exception_as_control_flow(net, x):
    try:
        return net.layer(x.view(5, 7, 11))
    except RuntimeError:
        return net.head(x)
