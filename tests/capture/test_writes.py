"""In-place writes: to tensors, to views of them, to buffers, through regions without gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import archgraph as ag
from tests.capture.faithful import assert_faithful


class Net(nn.Module):
    """A layer, two buffers, and a forward to be written in one line."""

    row: torch.Tensor
    table: torch.Tensor
    count: torch.Tensor

    def __init__(self, body: Callable[[Net, torch.Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 4)
        self.register_buffer("row", torch.zeros(3))
        self.register_buffer("table", torch.zeros(4, 3))
        self.register_buffer("count", torch.tensor(0))
        self.body = [body]

    def forward(self, x: torch.Tensor) -> Any:
        return self.body[0](self, x)


X = torch.randn(2, 3)


def slices(net, x):
    y = net.layer(x)
    y[:, :3] = x
    y[:, 1:3] *= 2
    y[..., ::2] += 1
    return y.relu()


def columns(net, x):
    y = net.layer(x)
    for i in range(3):
        y[:, i] += x[:, i]
    return y


def views_of_views(net, x):
    y = net.layer(x).view(-1, 2, 2)
    y[:, 0][:, 1] = 5.0
    y[:, 1].t()[0].sub_(1)
    y.permute(2, 0, 1)[0].mul_(2)
    y.flatten(1).relu_()
    return y


def a_view_taken_before_the_write(net, x):
    y = net.layer(x)
    first = y[:, 0]
    y.mul_(3)
    second = y[:, 0]
    second.add_(first)
    return first, second, y


def filled_from_zeros(net, x):
    y = torch.zeros(x.shape[0], 7)
    y[:, :3] = x
    y[:, 3:] = net.layer(x)
    return y


def a_constant_written_to(net, x):
    y = torch.zeros(2, 4)
    y[0] = net.layer(x).mean(0)
    y[1, 1:] = 2.0
    return y + 1


def casts(net, x):
    y = torch.ones(x.shape[0], 3, dtype=torch.float64)
    y[:, :2] = x[:, :2]
    y.gt_(0.5)
    mask = torch.zeros(3, dtype=torch.bool)
    mask |= x[0] > 0
    return y * mask


def diagonals(net, x):
    y = net.layer(x)[:, :, None] * net.layer(x)[:, None]
    y.diagonal(dim1=1, dim2=2).zero_()
    return y


def indices(net, x):
    y = net.layer(x).clone()
    y[:, [0, 2]] = 1.0
    y[y < 0] = 0.1
    return y


def shapes_in_place(net, x):
    y = net.layer(x).clone()
    y.unsqueeze_(1).add_(1)
    y.squeeze_(1)
    y[:, 0] = 0
    return y.t_().relu_()


def parts(net, x):
    x = x.clone()
    a, b = x.split([1, 2], 1)
    a.add_(b[:, :1])
    p, q, _ = x.unbind(1)
    p.mul_(q)
    return net.layer(x)


def a_bias_cloned_and_cut(net, x):
    bias = net.layer.bias.clone()
    bias[1:3].zero_()
    return nn.functional.linear(x, net.layer.weight, bias)


def copies_stay(net, x):
    y = net.layer(x)
    z = y[:, :, None].expand(-1, -1, 3).contiguous()
    z[:, :, 0] = 0
    return z + y[..., None]


def results_given(net, x):
    y = torch.empty(x.shape[0], 3)
    torch.add(x, 1, out=y)
    return net.layer(y)


def powers(net, x):
    y = net.layer(x).abs() + 1
    y **= 2
    y **= net.layer(x).detach()
    steps = y.detach().clone()
    steps //= steps[:, :1].clone()
    steps.add_(1).polygamma_(1)
    return steps, nn.functional.dropout(y * 2, 0.0, True, inplace=True)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "body",
    [
        slices, powers, columns, views_of_views, a_view_taken_before_the_write, filled_from_zeros,
        a_constant_written_to, casts, diagonals, indices, shapes_in_place, parts,
        a_bias_cloned_and_cut, copies_stay, results_given,
    ],
)  # fmt: skip
def test_writes_through_views_are_what_they_are_in_torch(body):
    assert_faithful(Net(body), X)


def test_defaults_of_an_operator_in_place_are_those_of_its_functional_form():
    graph = ag.trace(Net(lambda net, x: net.layer(x).detach().clone().bernoulli_()), X).graph
    assert graph.nodes[-1].op == "aten.bernoulli.p" and graph.nodes[-1].arg("p") == 0.5


def test_a_written_slice_is_one_operator():
    def body(net, x):
        y = net.layer(x)
        y[:, 1:3] = x[:, :2]
        return y

    ops = [n.op for n in ag.trace(Net(body), X).graph.nodes]
    assert ops == ["input", "aten.linear", "aten.slice.Tensor", "aten.slice_scatter"]


def moving_average(net, x):
    if net.training:
        net.row.mul_(0.9).add_(x.mean(0).detach(), alpha=0.1)
    return net.layer(x - net.row)


def assigned(net, x):
    if net.training:
        net.row = 0.9 * net.row + x.mean(0).detach()
    return net.layer(x - net.row)


def copied(net, x):
    net.row.copy_(x.mean(0).detach())
    return net.layer(x - net.row)


def parts_of_a_buffer(net, x):
    if net.training:
        net.table[0].mul_(0.5)
        net.table[1:3] = x.mean(0).detach()
        net.table.view(-1)[0] = 7.0
        net.count += 1
    return net.layer(x) + net.table.sum()


def without_gradient(net, x):
    with torch.no_grad():
        net.row.lerp_(net.layer.weight.mean(0), 0.5)
        net.table[:2] += net.layer.weight[:2]
    return net.layer(x) * net.row.sum() + net.table.sum()


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "body", [moving_average, assigned, copied, parts_of_a_buffer, without_gradient]
)
def test_buffers_move_as_in_torch(body):
    net = Net(body)
    graph = assert_faithful(net, X).graph
    built = ag.build(graph, net.state_dict()).train()
    net.train()
    for _ in range(3):
        torch.testing.assert_close(built(X), net(X), rtol=1e-6, atol=1e-6)
    for name, tensor in net.state_dict().items():
        torch.testing.assert_close(built.state_dict()[name], tensor, rtol=1e-6, atol=1e-6)


def test_an_argument_that_forward_changes_is_left_alone_and_noted():
    def body(net, x):
        y = net.layer(x.clone())
        x += 1
        return y + net.layer(x)

    net = Net(body).eval()
    traced = ag.trace(net, X)
    assert "changes its argument x in place" in traced.notes[0]
    given = X.clone()
    found = ag.build(*traced).eval()(given)
    assert torch.equal(given, X)
    torch.testing.assert_close(found, net(X.clone()), rtol=1e-6, atol=1e-6)


def test_writing_to_a_parameter_is_refused():
    def body(net, x):
        with torch.no_grad():
            net.layer.weight.clamp_(-1, 1)
        return net.layer(x)

    with pytest.raises(
        ag.TraceError, match=r"test_writes.*forward writes to the parameter layer.weight"
    ):
        ag.trace(Net(body), X)


def test_overlapping_views_are_refused():
    def body(net, x):
        y = net.layer(x)
        y.unfold(1, 2, 1)[:, 0].add_(1)
        return y

    with pytest.raises(ag.TraceError, match=r"cannot be written back, aten.unfold of linear"):
        ag.trace(Net(body), X)


def test_a_buffer_outside_the_state_that_changes_is_refused_or_noted():
    def body(net, x):
        net.row.add_(1)
        return net.layer(x - net.row)

    net = Net(body)
    net.register_buffer("row", torch.zeros(3), persistent=False)
    with pytest.raises(
        ag.TraceError, match=r"row: forward changes in place a tensor that is not p"
    ):
        ag.trace(net, X)
    with pytest.warns(UserWarning, match="row: forward changes in place a tensor"):
        ag.trace(net, X, strict=False)
    assert not net.row.any()  # the model itself is not changed
