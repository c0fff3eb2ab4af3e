"""Widening keeps the function, or says why not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import archgraph as ag
from archgraph.rewrites.laws import same_function
from tests.nets import captured, with_parts
from tests.rewrites.networks import traced, traced_mlp
from tests.structures import graph_of, refusals


def test_copies_share_what_goes_out():
    graph, state = traced_mlp()
    wide = ag.widen(graph, positions={"0.out": [0, 1, 2, 3, 1, 1]})
    found = wide.transfer.pull(state)
    torch.testing.assert_close(
        found["0.weight"], state["0.weight"][[0, 1, 2, 3, 1, 1]], rtol=0, atol=0
    )
    parts = torch.tensor([1, 1 / 3, 1, 1, 1 / 3, 1 / 3])
    expected = state["2.weight"][:, [0, 1, 2, 3, 1, 1]] * parts
    torch.testing.assert_close(found["2.weight"], expected, rtol=1e-6, atol=0)  # thirds in float32


def test_copies_depend_on_seed_and_sizes_alone():
    graph = traced_mlp().graph
    one, two = (ag.widen(graph, sizes={"0.out": 7}).transfer for _ in range(2))
    assert one == two
    assert one != ag.widen(graph, sizes={"0.out": 7}, seed=1).transfer


@with_parts(
    lambda: {
        "stem": nn.Conv2d(3, 4, 1),
        "style": nn.Linear(5, 4),
        "kernel": nn.Parameter(torch.randn(6, 4, 1, 1)),
        "head": nn.Conv2d(6, 2, 1),
    }
)
def PerExample(self, x, style):
    """A normalised kernel per example: the batch becomes groups of one convolution."""
    x = self.stem(x)
    b, c, h, w = x.shape
    kernels = self.kernel * self.style(style)[:, None, :, None, None]
    kernels = (kernels * kernels.norm(dim=(3, 4), keepdim=True)).reshape(b * 6, c, 1, 1)
    x = torch.conv2d(x.reshape(1, b * c, h, w), kernels, groups=b)
    return self.head(x.view(b, 6, h, w))


def test_channels_that_lie_in_one_dimension_with_the_batch_are_not_widened():
    graph = traced(PerExample(), torch.randn(2, 3, 5, 5), torch.randn(2, 5)).graph
    assert "stem.out" in refusals(graph)


def _packed(bias: bool = True) -> dict[str, nn.Module | nn.Parameter]:
    return {
        "qkv": nn.Linear(6, 36, bias=bias),
        "out": nn.Linear(12, 6),
        "offset": nn.Parameter(torch.randn(1, 3, 1, 4)),
    }


@with_parts(_packed)
def Packed(self, x):
    """Queries, keys and values in one projection; scores written out."""
    q, k, v = self.qkv(x).view(*x.shape[:2], 3, 3, 4).permute(2, 0, 3, 1, 4)
    scores = (q + self.offset) @ k.transpose(-2, -1) * 0.5
    y = scores.softmax(-1) @ v
    return x + self.out(y.transpose(1, 2).reshape(*x.shape[:2], 12))


def test_heads_and_their_size_widen():
    graph = traced(Packed(), torch.randn(2, 5, 6)).graph
    assert refusals(graph) == {}
    wide = ag.widen(graph, sizes={"heads": 5, "head_dim": 6}, verify=True)
    assert wide.graph.param["qkv.weight"].shape == (3 * 5 * 6, 6)


def test_a_norm_over_an_axis_needs_as_many_copies_of_each():
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    graph = traced(net, torch.zeros(1, 3)).graph
    with pytest.raises(
        ag.RewriteError, match=r"0\.out: cannot be widened exactly.*layer_norm in 1"
    ):
        ag.widen(graph, 1.5)
    assert same_function(graph, ag.widen(graph, 3.0), tolerance=1e-12) <= 1e-12
    assert ag.widen(graph, 1.5, approximate=True).graph.param["1.weight"].shape == (6,)


@with_parts(lambda between: {"embed": nn.Embedding(7, 4), "norm": between})
def Tied(self, x):
    """The table that makes the stream also reads it."""
    return nn.functional.linear(self.norm(self.embed(x)), self.embed.weight)


def test_a_tied_head_is_made_up_for_in_front_of_it():
    words = torch.randint(0, 7, (2, 5))
    graph = traced(Tied(nn.LayerNorm(4)), words).graph
    wide = ag.widen(graph, 2.0, verify=True)
    assert wide.graph.param["embed.weight"].shape == (7, 8)
    graph = traced(Tied(nn.Tanh()), words).graph
    assert list(refusals(graph)) == ["embed.out"]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"sizes": {"0.out": 3}}, r"size out of range; found 3; .* from 4; take and narrow make"),
        ({"positions": {"0.out": [0, 1, 2]}}, r"every old position must occur; found 3 is missing"),
        ({"positions": {"0.out": [0, 1, 2, 3, 4]}}, r"position outside the axis; found 4"),
        ({"factors": {"0.out": 0}}, r"not a factor; found 0; expected a number from 1 to 16"),
        ({"factors": {"0.out": 0.5}}, r"not a factor; found 0\.5; expected a number from 1 to 16"),
        (
            {"factors": {"0.out": 192}},
            r"found 192; .*; to set numbers of positions, pass sizes=\{'0\.out': 192\}",
        ),
        ({"factors": 192}, r"not a factor; found 192; .*; to set numbers of .* sizes=\{axis: 4\}"),
        ({"factors": {"0.out": 16.5}}, r"found 16\.5; .*; to set numbers of .* sizes=\{axis: 4\}"),
        ({"factors": {"0.out": "6"}}, r"not a factor; found 6"),
        ({"factors": {"0.out": float("nan")}}, r"not a factor"),
        ({"positions": {"0.out": [0.0, 1.0, 2.0, 3.0]}}, r"list of whole numbers"),
        ({"positions": {"0.out": [[0], [1, 2]]}}, r"list of whole numbers"),
        (
            {"factors": True},
            r"cannot choose axes; found True; expected a factor, or a dict from axis to a factor",
        ),
        ({"factors": "0.out"}, r"cannot choose axes"),
        ({"sizes": {"2.out": 5}}, r"output"),
        ({"sizes": {"0.aut": 5}}, r"did you mean '0\.out'"),
        ({}, r"no axes are chosen"),
    ],
)
def test_impossible_growth(spec, message):
    graph = traced_mlp().graph
    with pytest.raises((ag.RewriteError, ag.AxisError), match=message):
        ag.widen(graph, **spec)


def test_a_number_that_is_taken_for_a_factor_is_a_size_in_its_own_spelling():
    graph = traced_mlp().graph
    assert ag.widen(graph, {"0.out": 16}).graph.param["0.weight"].shape == (64, 3)
    wide = ag.widen(graph, sizes={"0.out": 192}, verify=True)  # what the refusal of 192 says
    assert wide.graph.param["0.weight"].shape == (192, 3)


@with_parts(
    lambda function: {
        "a": nn.Linear(3, 4),
        "b": nn.Linear(4, 2),
        "c": nn.Linear(4, 4),
        "p": nn.Parameter(torch.randn(4)),
        "w": nn.Parameter(torch.randn(2, 4)),
        "function": function,
    }
)
def Between(self, x):
    """Something of a test's own between two layers."""
    return self.function(self, self.a(x))


def between(function):
    return traced(Between(function), torch.randn(5, 3)).graph


@pytest.mark.parametrize(
    ("spread", "exact"),
    [
        (lambda h: h.std(-1, keepdim=True), False),
        (lambda h: h.var(-1, keepdim=True, unbiased=False), True),
        (lambda h: h.var(-1, keepdim=True, correction=1), False),
        (lambda h: torch.std_mean(h, dim=-1, keepdim=True)[0], False),
        (lambda h: torch.var_mean(h, dim=-1, keepdim=True, correction=0)[0], True),
    ],
)
def test_only_a_variance_by_their_number_bears_copies(spread, exact):
    graph = between(lambda m, h: m.b((h - h.mean(-1, keepdim=True)) / (spread(h) + 1)))
    reason = refusals(graph, 2.0).get("a.out", "")
    if exact:
        ag.widen(graph, {"a.out": 2.0}, verify=True)
    assert reason.endswith("runs over this axis") is not exact


TIMES = {
    "einsum": lambda m, h: m.b(h) @ torch.einsum("oi,pi->op", m.w, m.w),
    "dot": lambda m, h: m.b(h) * torch.dot(m.p, m.p),
    "square": lambda m, h: nn.functional.linear(h.tanh(), m.w * m.w),
    "quotient": lambda m, h: h.tanh() @ (m.p / m.p),
    "gram": lambda m, h: h.tanh() @ nn.functional.linear(m.c.weight, m.c.weight),
    "residual": lambda m, h: nn.functional.linear(h + m.c(h), m.w) @ m.w @ m.p,
    "results": lambda m, h: torch.einsum("bi,bi->b", h / h, m.c(h).tanh()),
}


@pytest.mark.parametrize("function", TIMES.values(), ids=TIMES)
def test_what_is_multiplied_by_itself_is_not_divided_twice(function):
    graph = between(function)
    refused = refusals(graph, 2.0)
    assert refused
    for axis in ag.axes(graph).free:
        if axis.name not in refused:
            ag.widen(graph, {axis.name: 2.0}, verify=True)


@with_parts(
    lambda: {
        "up": nn.Parameter(torch.randn(8, 4)),
        "down": nn.Parameter(torch.randn(4, 8)),
        "bias": nn.Parameter(torch.randn(4)),
        "last": nn.Parameter(torch.randn(4, 4)),
    }
)
def Transposed(self, x):
    """Layers written as products with a transposed weight, and with the bias first."""
    y = nn.functional.gelu(x @ self.up.T) @ self.down.T
    return torch.addmm(self.bias, y, self.last) @ torch.ones(4, 2)


def test_products_with_transposed_weights_widen():
    graph = traced(Transposed(), torch.randn(3, 4)).graph
    free = [a.name for a in ag.axes(graph).free]
    assert len(free) >= 2 and refusals(graph) == {}
    for name in free:
        ag.widen(graph, {name: 1.5}, verify=True)
    ag.widen(graph, 1.5, verify=True)


def _turned(x, angle):
    half = torch.cat((-x[..., 4:], x[..., :4]), -1)
    return x * angle.cos() + half * angle.sin()


@with_parts(
    lambda shared=False: {
        "qkv": nn.Linear(6, 48),
        "out": nn.Linear(16, 6),
        "shared": shared,
        "angle": torch.randn(5, 4).repeat(1, 2),
    }
)
def Rotated(self, x):
    """Packed queries, keys and values; the first two turned by halves (rotary positions)."""
    q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
    scores = _turned(q, self.angle) @ _turned(k, self.angle).transpose(-2, -1)
    if self.shared:  # queries are wanted elsewhere too
        scores = scores + q.sum(-1, keepdim=True) + k.sum(-1).unsqueeze(-2)
    y = scores.softmax(-1) @ v
    return x + self.out(y.transpose(1, 2).reshape(*x.shape[:2], 16))


def test_rotated_packed_queries_widen():
    graph = traced(Rotated(), torch.randn(2, 5, 6)).graph
    assert refusals(graph) == {}
    assert same_function(graph, ag.widen(graph, 1.5), tolerance=1e-12) <= 1e-12
    reasons = refusals(traced(Rotated(shared=True), torch.randn(2, 5, 6)).graph)
    assert any("head_dim" in axis for axis in reasons)


@with_parts(lambda: {**{n: nn.Linear(6, 8) for n in ("q", "k", "v")}, "out": nn.Linear(8, 6)})
def HalfTied(self, x):
    """Queries and keys with one weight and a bias each, once they are tied."""
    return self.out((self.q(x) @ self.k(x).mT).softmax(-1) @ self.v(x))


def test_a_weight_of_two_layers_is_not_divided_for_one():
    net = HalfTied()
    net.k.weight = net.q.weight
    graph = captured(net, torch.zeros(2, 5, 6)).graph
    assert {axis: why.count("shares its weight") for axis, why in refusals(graph).items()} == {
        "q.out": 2
    }


@with_parts(_packed)
def Watched(self, x):
    """Packed queries and keys whose largest entries are added to the scores they make."""
    q, k, v = self.qkv(x).view(*x.shape[:2], 3, 3, 4).permute(2, 0, 3, 1, 4)
    scores = q @ k.mT + q.amax(-1, keepdim=True) + k.amax(-1).unsqueeze(-2)
    return x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(*x.shape[:2], 12))


def test_what_is_also_used_elsewhere_is_not_divided():
    """A maximum tolerates copies, but not that the queries are divided for the product's sake."""
    graph = traced(Watched(), torch.randn(2, 5, 6)).graph
    (reason,) = (why for axis, why in refusals(graph).items() if "head_dim" in axis)
    assert "is also used elsewhere" in reason


def test_a_transposed_convolution_does_not_sum_over_its_groups():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 1),
        nn.Conv2d(8, 16, 3, padding=1, groups=4),
        nn.ConvTranspose2d(16, 8, 2, stride=2, groups=4),
        nn.Conv2d(8, 2, 1),
    )
    graph = captured(net, torch.zeros(2, 3, 4, 4)).graph
    for axis in ag.axes(graph).free:
        wide = ag.widen(graph, {axis.name: 2.0})
        assert same_function(graph, wide) <= 1e-10


@with_parts(lambda: {**{name: nn.Linear(3, 8) for name in "abcd"}})
def Products(self, x):
    """A sum over products of two results: what makes up for copies has nowhere to go."""
    return (self.a(x) * self.b(x)) @ (self.c(x) * self.d(x)).mT


def test_a_sum_over_products_is_not_widened():
    graph = graph_of(Products(), torch.zeros(2, 5, 3))
    (axis,) = ag.axes(graph).free
    with pytest.raises(ag.RewriteError, match="multiplies two results"):
        ag.widen(graph, {axis.name: 1.5}, verify=True)


@with_parts(
    lambda offset=0.0: {
        "embed": nn.Embedding(9, 8),
        "scale": nn.Parameter(torch.rand(8) + 0.5),
        "offset": offset,
    }
)
def TiedWeight(self, ids):
    """A head that is the embedding; between them is one weight that can make up for copies."""
    x = self.embed(ids)
    scale = self.scale if not self.offset else self.offset + self.scale
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    return F.linear(x * scale, self.embed.weight)


@with_parts(
    lambda: {
        **{name: nn.Linear(6, 8) for name in ("query", "key", "value")},
        **{f"{name}_scale": nn.Parameter(torch.rand(4) + 0.5) for name in ("query", "key")},
        "out": nn.Linear(8, 3),
    }
)
def Normed(self, x):
    """Attention whose queries and keys are normed head by head."""
    q, k, v = (
        layer(x).unflatten(-1, (2, 4)).transpose(1, 2)
        for layer in (self.query, self.key, self.value)
    )
    q, k = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) for x in (q, k))
    x = F.scaled_dot_product_attention(q * self.query_scale, k * self.key_scale, v)
    return self.out(x.transpose(1, 2).flatten(2))


@with_parts(
    lambda: {
        "route": nn.Linear(6, 4),
        "up": nn.Parameter(torch.randn(4, 10, 6)),
        "down": nn.Parameter(torch.randn(4, 6, 10)),
    }
)
def Experts(self, x):
    """Weights of the expert that each row chooses."""
    chosen = self.route(x).argmax(-1)
    hidden = (self.up[chosen] @ x[..., None]).sigmoid()
    return (self.down[chosen] @ (hidden * hidden)).squeeze(-1)


@with_parts(
    lambda: {"first": nn.Linear(3, 8), "scale": nn.Parameter(torch.rand(8)), "h": nn.Linear(8, 2)}
)
def Returned(self, x):
    """What a weight multiplies is a result, too: the weight cannot make up for copies."""
    x = self.first(x).sigmoid() * self.scale
    return (x @ x.mT), self.h(x)


@pytest.mark.parametrize(
    ("net", "example", "axes"),
    [
        (TiedWeight, torch.zeros(2, 3).long(), 1),
        (Normed, torch.zeros(2, 5, 6), 3),
        (Experts, torch.zeros(5, 6), 1),
    ],
)
def test_the_nearest_weight_makes_up_for_copies(net, example, axes):
    torch.manual_seed(0)
    graph = graph_of(net(), example)
    free = ag.axes(graph).free
    assert len(free) == axes
    for axis in free:
        assert same_function(graph, ag.widen(graph, {axis.name: 2.0})) <= 1e-10


def test_a_weight_that_is_added_to_a_number_makes_up_for_nothing():
    graph = graph_of(TiedWeight(1.0), torch.zeros(2, 3).long())
    (axis,) = ag.axes(graph).free
    message = r"scale is added to a number.*set approximate: true .*; otherwise omit the axis"
    with pytest.raises(ag.RewriteError, match=message):
        ag.widen(graph, {axis.name: 2.0})
    ag.widen(graph, {axis.name: 2.0}, approximate=True, verify=True)


def test_a_weight_whose_product_is_multiplied_by_itself_is_not_divided():
    graph = graph_of(Returned(), torch.zeros(2, 5, 3))
    (axis,) = ag.axes(graph).free
    with pytest.raises(ag.RewriteError, match="cannot be widened exactly"):
        ag.widen(graph, {axis.name: 2.0})
