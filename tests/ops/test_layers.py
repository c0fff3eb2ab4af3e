"""Layers of torch.nn come back with their options; other work stays as operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import archgraph as ag
from tests.nets import captured, with_parts

IMAGE = (2, 4, 9, 9)
LAYERS = [
    (nn.Linear(9, 5), IMAGE),
    (nn.Linear(9, 5, bias=False), IMAGE),
    (nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2), (2, 4, 9)),
    (nn.Conv2d(4, 6, (3, 2), padding=(1, 0), bias=False), IMAGE),
    (nn.Conv2d(4, 4, 3, padding="same", groups=4), IMAGE),
    (nn.Conv2d(4, 4, 3, padding="valid"), IMAGE),
    (nn.Conv2d(4, 4, 3), IMAGE[1:]),
    (nn.Conv3d(4, 2, 2), (2, 4, 3, 3, 3)),
    (nn.ConvTranspose1d(4, 6, 3, groups=2), (2, 4, 9)),
    (nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1), IMAGE),
    (nn.ConvTranspose3d(4, 3, 2, dilation=2, bias=False), (2, 4, 3, 3, 3)),
    (nn.BatchNorm1d(4), (3, 4)),
    (nn.BatchNorm1d(4, eps=1e-3, momentum=0.3), (2, 4, 9)),
    (nn.BatchNorm2d(4, affine=False), IMAGE),
    (nn.BatchNorm2d(4, track_running_stats=False), IMAGE),
    (nn.BatchNorm3d(4), (2, 4, 3, 3, 3)),
    (nn.InstanceNorm1d(4), (2, 4, 9)),
    (nn.InstanceNorm2d(4, affine=True, track_running_stats=True), IMAGE),
    (nn.LayerNorm(9), IMAGE),
    (nn.LayerNorm((9, 9), eps=1e-3), IMAGE),
    (nn.LayerNorm(9, bias=False), IMAGE),
    (nn.LayerNorm(9, elementwise_affine=False), IMAGE),
    (nn.RMSNorm(9, eps=1e-3), IMAGE),
    (nn.RMSNorm(9), IMAGE),
    (nn.GroupNorm(2, 4), IMAGE),
    (nn.GroupNorm(1, 4, affine=False), IMAGE),
    (nn.PReLU(), IMAGE),
    (nn.PReLU(4), IMAGE),
    (nn.ReLU(), IMAGE),
    (nn.ReLU6(), IMAGE),
    (nn.Hardtanh(-2.0, 3.0), IMAGE),
    (nn.GELU(), IMAGE),
    (nn.GELU("tanh"), IMAGE),
    (nn.SiLU(), IMAGE),
    (nn.Tanh(), IMAGE),
    (nn.Sigmoid(), IMAGE),
    (nn.ELU(0.5), IMAGE),
    (nn.CELU(0.5), IMAGE),
    (nn.SELU(), IMAGE),
    (nn.LeakyReLU(0.2), IMAGE),
    (nn.Hardswish(), IMAGE),
    (nn.Hardsigmoid(), IMAGE),
    (nn.Mish(), IMAGE),
    (nn.Softplus(2.0, 10.0), IMAGE),
    (nn.LogSigmoid(), IMAGE),
    (nn.Hardshrink(0.2), IMAGE),
    (nn.Softshrink(0.2), IMAGE),
    (nn.GLU(1), IMAGE),
    (nn.Softmax(1), IMAGE),
    (nn.LogSoftmax(-1), IMAGE),
    (nn.Dropout(0.3), IMAGE),
    (nn.Dropout1d(0.3), (2, 4, 9)),
    (nn.Dropout2d(0.3), IMAGE),
    (nn.Dropout3d(0.3), (2, 4, 3, 3, 3)),
    (nn.AlphaDropout(0.3), IMAGE),
    (nn.MaxPool1d(2), (2, 4, 9)),
    (nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True), IMAGE),
    (nn.MaxPool2d((2, 3)), IMAGE),
    (nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), IMAGE),
    (nn.AdaptiveAvgPool1d(3), (2, 4, 9)),
    (nn.AdaptiveAvgPool2d((3, 2)), IMAGE),
    (nn.AdaptiveAvgPool3d(2), (2, 4, 3, 3, 3)),
    (nn.Flatten(), IMAGE),
    (nn.Flatten(2), IMAGE),
    (nn.Flatten(1, 2), IMAGE),
    (nn.Unflatten(1, (2, 2)), IMAGE),
    (nn.PixelShuffle(2), IMAGE),
    (nn.PixelUnshuffle(3), IMAGE),
    (nn.ChannelShuffle(2), IMAGE),
    (nn.Upsample(scale_factor=2.0), IMAGE),
    (nn.Upsample(scale_factor=2.0, mode="bilinear", align_corners=True), IMAGE),
]


@with_parts(lambda layer: {"layer": layer})
def Wrapped(self, x):
    """A layer beside something else, so that it is not the whole model."""
    return self.layer(x * 1.5)


@pytest.mark.sample(6)
@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=lambda v: str(v)[:60])
def test_a_layer_comes_back_with_its_options(layer: nn.Module, shape: tuple[int, ...]) -> None:
    model, x = Wrapped(layer), torch.randn(shape)
    graph, state = captured(model, x)
    net = ag.build(graph, state)
    assert repr(net.layer) == repr(layer)
    for training in (False, True):
        results = []
        for one in (model, net):
            torch.manual_seed(1)
            results.append(one.train(training)(x))
        torch.testing.assert_close(*results, rtol=0, atol=0)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], tensor, rtol=0, atol=0)
    assert captured(net, x).graph == graph


@with_parts(lambda layer: {"layer": layer})
def Table(self, ids):
    return self.layer(ids)


@pytest.mark.parametrize("options", [{}, {"padding_idx": 0}, {"scale_grad_by_freq": True}])
def test_an_embedding_keeps_what_concerns_its_gradient(options):
    ids = torch.tensor([[0, 2], [2, 2]])
    model = Table(nn.Embedding(5, 3, **options))
    net: Any = ag.build(*captured(model, ids))
    assert repr(net.layer) == repr(model.layer)
    for one in (model, net):
        one(ids).square().sum().backward()
    torch.testing.assert_close(net.layer.weight.grad, model.layer.weight.grad, rtol=0, atol=0)


@with_parts(lambda layer: {"layer": layer})
def Pair(self, x, h):
    return self.layer(x, h)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "layer", [nn.GRUCell(4, 3), nn.RNNCell(4, 3, nonlinearity="relu"), nn.Bilinear(4, 3, 2)]
)
def test_layers_of_two_inputs(layer):
    x, h = torch.randn(5, 4), torch.randn(5, 3)
    graph, state = captured(Pair(layer), x, h)
    net = ag.build(graph, state)
    assert repr(net.layer) == repr(layer)
    torch.testing.assert_close(net(x, h), layer(x, h), rtol=0, atol=0)
    assert captured(net, x, h).graph == graph


@with_parts(lambda: {"cell": nn.LSTMCell(4, 3, bias=False)})
def Cell(self, x):
    h, c = self.cell(x[:, 0])
    for step in range(1, 3):
        h, c = self.cell(x[:, step], (h, c))
    return h


def test_a_cell_of_several_results_and_steps():
    x = torch.randn(5, 3, 4)
    model = Cell()
    graph, state = captured(model, x)
    net = ag.build(graph, state)
    assert repr(net.cell) == repr(model.cell)
    torch.testing.assert_close(net(x), model(x), rtol=0, atol=0)
    assert captured(net, x).graph == graph


def _parts_like_a_layers(kind: str) -> dict[str, Any]:
    matrix, vector = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4))
    kinds: dict[str, dict[str, Any]] = {
        "extra": {"weight": matrix, "bias": vector, "scale": nn.Parameter(torch.ones(1))},
        "scaled": {"weight": vector},
        "shifted": {"bias": vector},
        "buffer": {"weight": matrix, "bias": torch.randn(4)},
    }
    return {"kind": kind, **kinds.get(kind, {"weight": matrix, "bias": vector})}


@with_parts(_parts_like_a_layers)
def Other(self, x):
    """Modules that compute almost what a layer does."""
    if self.kind == "twice unlike":
        return F.linear(F.linear(x, self.weight, self.bias), self.weight)
    if self.kind == "names":
        return F.linear(x, self.weight.T, self.bias)
    if self.kind == "scaled":
        return F.batch_norm(x, None, None, self.weight, training=True)
    if self.kind == "shifted":
        return F.layer_norm(x, (4,), None, self.bias)
    return F.linear(x, self.weight, self.bias)


@pytest.mark.parametrize("kind", ["extra", "buffer", "twice unlike", "names", "scaled", "shifted"])
def test_what_is_not_quite_a_layer_stays_as_it_is(kind):
    model, x = nn.Sequential(Other(kind), nn.ReLU()), torch.randn(3, 4)
    graph, state = captured(model, x)
    net = ag.build(graph, state)
    assert not isinstance(net.get_submodule("0"), nn.Linear | nn.BatchNorm1d | nn.LayerNorm)
    assert list(net.state_dict()) == list(model.state_dict())
    torch.testing.assert_close(net(x), model(x), rtol=0, atol=0)


@with_parts(
    lambda step: {
        "weight": nn.Parameter(torch.ones(4)),
        "bias": nn.Parameter(torch.zeros(4)),
        "running_mean": torch.zeros(4),
        "running_var": torch.ones(4),
        **({} if step is None else {"num_batches_tracked": torch.tensor(0)}),
        "step": step,
    }
)
def Uncounted(self, x):
    """A norm that leaves its counter alone, or advances it in steps of two, or has none."""
    if self.training and self.step:
        self.num_batches_tracked.add_(self.step)
    statistics = self.running_mean, self.running_var
    return F.batch_norm(x, *statistics, self.weight, self.bias, self.training)


@pytest.mark.parametrize("step", [None, 0, 2])
def test_a_norm_that_counts_otherwise_is_not_a_layer(step):
    model, x = nn.Sequential(Uncounted(step), nn.ReLU()), torch.randn(3, 4)
    net: Any = ag.build(*captured(model, x))
    for one in (model, net):
        one.train()(x)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], tensor, rtol=0, atol=0)
    assert net.state_dict().keys() == model.state_dict().keys()
    assert net.state_dict().get("0.num_batches_tracked") == step
    assert isinstance(net[0], nn.BatchNorm1d) == (step is None)


@with_parts(lambda: {"rnn": nn.GRU(3, 4, 2)})
def Stateful(self, x, h):
    return self.rnn(x, h)[0]


def test_first_states_in_another_order_are_not_one_layer():
    model, x, h = Stateful(), torch.randn(5, 2, 3), torch.randn(2, 2, 4)
    graph, state = captured(model, x, h)
    text = str(graph).replace("start=1, end=2", "start=2, end=2").replace("start=0, end=1", "?")
    swapped = ag.parse(
        text.replace("start=2, end=2", "start=0, end=1").replace("?", "start=1, end=2")
    )
    nets = [ag.build(graph, state), ag.build(swapped, state)]
    assert [isinstance(net.rnn, nn.GRU) for net in nets] == [True, False]
    torch.testing.assert_close(nets[1](x, h), model(x, h.flip(0)), rtol=0, atol=0)


@with_parts()
def Softmax(self, x):
    return torch.softmax(x, -1, dtype=torch.float64)


@with_parts()
def AlwaysDropped(self, x):
    return F.dropout(x, 0.5, training=True)


@pytest.mark.parametrize("kind", [Softmax, AlwaysDropped])
def test_options_that_no_layer_has_stay_operators(kind):
    model, x = Wrapped(kind()), torch.randn(3, 4)
    net = ag.build(*captured(model, x))
    assert not isinstance(net.layer, (nn.Softmax, nn.Dropout))
    results = []
    for one in (model.eval(), net.eval()):
        torch.manual_seed(0)
        results.append(one(x))
    torch.testing.assert_close(*results, rtol=0, atol=0)
