"""Complex numbers: Fourier operators, rotary embeddings, writes, and numbers like ``1j``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import archgraph as ag
from tests.capture.faithful import assert_faithful

X = torch.randn(2, 3, 8)


class Net(nn.Module):
    """Channels made and read by convolutions of width one, and what lies between them."""

    def __init__(self, body: Callable[[Net, torch.Tensor], torch.Tensor], out: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.make, self.read = nn.Conv1d(3, 4, 1), nn.Conv1d(out, 2, 1)
        self.weight = nn.Parameter(torch.randn(4, 4, 3, dtype=torch.cfloat))
        self.pairs = nn.Parameter(torch.randn(5, 2))
        self.body = [body]

    def forward(self, x):
        return self.read(self.body[0](self, self.make(x)))


def fourier(net, x):
    """A Fourier neural operator: low frequencies are mixed, all others are dropped."""
    f = torch.fft.rfft(x, norm="ortho")
    y = torch.zeros(x.shape[0], 4, 5, dtype=torch.cfloat)
    y[..., :3] = torch.einsum("bik,iok->bok", f[..., :3], net.weight)
    y[:, :, -1] = f[..., 1].conj()
    return torch.fft.irfft(y, n=x.shape[-1], norm="ortho")


def filtered(_net, x):
    f = torch.fft.fft2(x.unflatten(-1, (2, 4)))
    return torch.fft.ifft2(f * torch.view_as_complex(_net.pairs[:4])).real.flatten(2)


def components(_net, x):
    y = torch.complex(x, -x)
    y.real[..., 1:] = x[..., :-1]
    y.imag.mul_(2)
    y[:, :, ::2] += 1
    torch.view_as_real(y)[:, :, 0] = 3.0
    y.mul_(y.conj() * 0.1)
    return y.abs()


def numbers(_net, x):
    y = (x * 1j).exp() + (2 + 1j) * x
    y = torch.where(x > 0, y, 1j * y)
    return y.angle() + (x.double() * 0.1j).imag.float()


def products(net, x):
    y = torch.matmul(x.to(torch.cfloat).mT, net.weight[..., 0]).mT
    return torch.polar(y.abs(), y.imag).real + F.linear(y.mT, net.weight[..., 1]).mT.imag


@pytest.mark.sample(3)
@pytest.mark.parametrize("body", [fourier, filtered, components, numbers, products])
def test_channels_of_complex_numbers_are_free(body):
    graph, _ = assert_faithful(Net(body), X, tolerance=1e-5)
    assert ag.axes(graph).free
    ag.take(graph, 0.5, verify=True)


def turned(_net, x):
    """Pairs whose second number lies apart until they are made contiguous."""
    pairs = x.unflatten(1, (2, 2)).permute(0, 3, 2, 1).contiguous() * 1.0
    return torch.view_as_real(torch.view_as_complex(pairs) * 1j).flatten(2).mT


def test_what_is_viewed_as_complex_is_contiguous():
    graph = assert_faithful(Net(turned), X).graph
    assert "aten.contiguous" not in {n.op for n in graph.nodes}


def test_a_stated_number_of_repetitions_follows_a_cut():
    net = Net(lambda _, x: x.repeat_interleave(2, 1, output_size=8), out=8)
    ag.take(assert_faithful(net, X).graph, 0.5, verify=True)


@pytest.mark.parametrize("body", [fourier, products])
def test_complex_weights_start_at_random(body):
    graph = ag.trace(Net(body), X).graph
    weight = ag.build(graph, seed=1).state_dict()["weight"]
    assert weight.real.abs().min() > 0 and weight.imag.abs().min() > 0
    assert torch.equal(weight, ag.build(graph, seed=1).state_dict()["weight"])
    linear = ag.trace(nn.Linear(3, 2, dtype=torch.cfloat), torch.randn(2, 3, dtype=torch.cfloat))
    assert ag.build(linear.graph).state_dict()["weight"].imag.abs().min() > 0


def test_a_complex_number_that_no_tensor_can_stand_for_is_refused_with_its_line():
    def power(_net, x):
        return (x**2j).real

    place = power.__code__.co_firstlineno + 1
    with pytest.raises(ag.TraceError, match=rf"test_complex.py:{place}: .*found 2j"):
        ag.trace(Net(power), X)
