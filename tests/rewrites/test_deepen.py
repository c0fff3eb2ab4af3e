"""New blocks start as the identity, or are refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.rewrites.deepen import _covered
from archgraph.rewrites.graft import grafted
from tests import structures as nets
from tests.nets import with_parts
from tests.rewrites.networks import traced


def plain(activation, norm=True):
    layers: list[nn.Module] = [nn.Conv2d(3, 4, 3, padding=1), activation()]
    for _ in range(3):
        layers.append(nn.Conv2d(4, 4, 3, padding=1))
        if norm:
            layers.append(nn.BatchNorm2d(4))
        layers.append(activation())
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 2))


def deepened(net, *args):
    graph = traced(net, *args).graph
    section = max(ag.structure(graph).sections, key=lambda s: len(s.blocks))
    return graph, ag.deepen(graph, {section.name: len(section.blocks) + 2}, verify=True)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.ReLU6])
def test_a_chain_starts_as_the_identity(activation):
    graph, deep = deepened(plain(activation), torch.randn(2, 3, 8, 8))
    made = [e for e in deep.transfer.entries.values() if e.init is not None]
    assert len(made) >= 2 * 6 and len(deep.graph.params) > len(graph.params)


def test_a_residual_block_starts_with_its_last_layer_at_zero():
    _, deep = deepened(nets.Net(nets.Basic, (2, 3), (8, 12)), torch.randn(2, 3, 8, 8))
    made = {k for k, e in deep.transfer.entries.items() if e.init is not None}
    assert made == {f"stage2.{i}.bn2.{k}" for i in (3, 4) for k in ("weight", "bias")} or made == {
        f"stage2.{i}.conv2.weight" for i in (3, 4)
    }


def test_activations_that_do_more_the_second_time_are_refused():
    with pytest.raises(
        ag.RewriteError, match=r"cannot start as the identity; found has aten\.gelu"
    ):
        deepened(plain(nn.GELU), torch.randn(2, 3, 8, 8))


def test_what_stands_in_front_of_the_first_block_is_copied_with_it():
    """The copies of a norm and an activation in front of the first layer are the identity, too."""
    layers = [nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU()]
    _, deep = deepened(nn.Sequential(*layers, nn.Linear(6, 3)), torch.randn(4, 6))
    fresh = {k for k, e in deep.transfer.entries.items() if e.source != k}
    counters = {k for k in fresh if k.endswith("num_batches_tracked")}
    assert fresh - counters == {k for k, e in deep.transfer.entries.items() if e.init is not None}
    net = nn.Sequential(nn.Tanh(), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    with pytest.raises(
        ag.RewriteError, match=r"cannot start as the identity; found has aten\.tanh"
    ):
        deepened(net, torch.randn(4, 6))


def test_nothing_new_may_lie_outside_of_the_new_blocks():
    layers = [nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU()]
    graph = traced(nn.Sequential(*layers, nn.Linear(6, 3)), torch.randn(4, 6)).graph
    deep, blocks = grafted(graph, {"0": 4})
    _covered(graph, deep.graph, blocks, [])
    with pytest.raises(ag.RewriteError, match="a new leaf is outside the new blocks"):
        _covered(graph, deep.graph, (), [])
    with pytest.raises(ag.RewriteError, match=r"2\.weight: a new block shares weights"):
        _covered(graph, deep.graph, blocks, ["2.weight"])


@with_parts(
    lambda function: {
        "a": nn.Linear(6, 6),
        "b": nn.Linear(6, 6),
        "function": function,
    }
)
def Branch(self, x):
    """A residual block that a test writes."""
    return self.function(self, x)


def branched(function):
    blocks = (Branch(function) for _ in range(3))
    return deepened(nn.Sequential(nn.Linear(3, 6), *blocks, nn.Linear(6, 2)), torch.randn(4, 3))


def rms(y):
    return torch.rsqrt(y.square().mean(-1, keepdim=True))


KEPT = {
    "scaled branch": lambda m, x: torch.add(x, m.a(x), alpha=0.5),
    "gate of itself": lambda m, x: (
        x + (lambda y: y * m.b(y.mean(1, keepdim=True) + y).sigmoid())(m.a(x))
    ),
    "numerator": lambda m, x: x + m.a(x) / (1 + x.abs()),
    "norm of a sum": lambda m, x: (lambda y: y + m.b(y * rms(y)))(x + m.a(x)),
}


LOST = {
    "scaled shortcut": (lambda m, x: torch.add(m.a(x), x, alpha=0.5), "multiplies its shortcut"),
    "norm": (lambda m, x: x + (lambda y: y / y.norm(dim=-1, keepdim=True))(m.a(x)), "NaN"),
    "sum": (lambda m, x: x + (lambda y: y / y.sum(-1, keepdim=True))(m.a(x)), "NaN"),
    "root": (lambda m, x: x + (lambda y: y * rms(y))(m.a(x)), "NaN"),
}  # fmt: skip


@pytest.mark.parametrize("function", KEPT.values(), ids=KEPT)
def test_branches_that_can_be_zero(function):
    branched(function)


@pytest.mark.parametrize(("function", "reason"), LOST.values(), ids=LOST)
def test_branches_that_zeros_would_break(function, reason):
    with pytest.raises(ag.RewriteError, match=f"cannot start as the identity; found .*{reason}"):
        branched(function)


@pytest.fixture(scope="module")
def layers() -> ag.ArchGraph:
    return traced(plain(nn.ReLU), torch.randn(2, 3, 8, 8)).graph


@pytest.mark.parametrize("depths", [{"0": 4.5}, {"0": True}, {"0": None}, ["0"], "0", 4])
@pytest.mark.parametrize("rewrite", [ag.deepen, ag.graft, ag.shorten])
def test_depths_are_whole_numbers_by_section(rewrite, depths, layers):
    with pytest.raises(ag.RewriteError, match=r"depth is not an integer|depths must map sections"):
        rewrite(layers, depths)


@with_parts(
    lambda offset=0.0: {
        "norm": nn.LayerNorm(6),
        "offset": offset,
        "a": nn.Linear(6, 6),
        "b": nn.Linear(6, 6),
    }
)
def Side(self, x):
    """Attention and feed-forward side by side: a branch that is a sum."""
    h = self.norm(x)
    return x + (self.a(h) + self.b(h).relu() + self.offset)


def side_by_side(offset=0.0):
    return nn.Sequential(nn.Linear(3, 6), *(Side(offset) for _ in range(3)), nn.Linear(6, 2))


def test_all_parts_of_a_branch_start_at_zero():
    _, deep = deepened(side_by_side(), torch.randn(2, 3))
    zero = {k for k, e in deep.transfer.entries.items() if e.init is not None}
    assert {k.split(".", 1)[1] for k in zero} == {
        f"{n}.{k}" for n in "ab" for k in ("weight", "bias")
    }


def test_a_branch_that_is_not_zero_at_zero_is_refused():
    with pytest.raises(ag.RewriteError, match=r"has aten\.add\.Tensor .* after the last layer"):
        deepened(side_by_side(1.0), torch.randn(2, 3))


@with_parts(
    lambda: {
        "conv": nn.Conv2d(4, 4, 1),
        "scale": nn.Parameter(torch.rand(4)),
    }
)
def Scaled(self, x):
    """A residual branch behind a scale that is reshaped on its way."""
    return x + self.scale.unsqueeze(-1).unsqueeze(-1) * self.conv(x).sigmoid()


def test_a_reshaped_scale_starts_at_zero():
    net = nn.Sequential(nn.Conv2d(3, 4, 1), *(Scaled() for _ in range(3)), nn.Conv2d(4, 2, 1))
    _, deep = deepened(net, torch.randn(2, 3, 4, 4))
    zero = [k for k, e in deep.transfer.entries.items() if e.init is not None]
    assert len(zero) == 2 and all(k.endswith("scale") for k in zero)


def test_blocks_of_a_model_that_a_graph_lacks_come_back():
    """A section with nothing to repeat takes the blocks of the model that it was cut from."""
    large = nets.net_graph(nets.Basic, (2, 2), (8, 12))
    small = ag.skip(large, "stage2.1").graph
    assert ag.deepen(small, {"stage2": 2}, like=large, verify=True).graph == large
