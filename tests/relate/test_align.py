"""Alignment, join and meet of models that nobody derived from one another."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import archgraph as ag
from archgraph.errors import ArchGraphError, GraphError, RewriteError
from archgraph.graph.ir import ArchGraph

# Layers per stage (Simonyan, Zisserman, Table 1; 14, 15, 17, 18: one layer more each).
VGG = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    14: (2, 2, 3, 2, 2),
    15: (2, 2, 3, 3, 2),
    16: (2, 2, 3, 3, 3),
    17: (2, 2, 4, 3, 3),
    18: (2, 2, 4, 4, 3),
    19: (2, 2, 4, 4, 4),
}
WIDTHS, WIDER = (2, 3, 4, 5, 5), (2, 3, 6, 7, 7)


@functools.cache
def vgg(depths: Sequence[int], widths: Sequence[int] = WIDTHS, norm: bool = False) -> ArchGraph:
    """A narrow VGG on images of 32 × 32, numbered as torchvision does."""
    layers: list[nn.Module] = []
    before = 3
    for depth, width in zip(depths, widths, strict=True):
        for _ in range(depth):
            layers += [nn.Conv2d(before, width, 3, padding=1), *[nn.BatchNorm2d(width)] * norm]
            layers += [nn.ReLU()]
            before = width
        layers += [nn.MaxPool2d(2)]
    net = nn.Sequential()
    net.features = nn.Sequential(*layers)
    net.flat = nn.Flatten()
    size = before * (32 // 2 ** len(depths)) ** 2
    net.classifier = nn.Sequential(nn.Linear(size, 6), nn.ReLU(), nn.Dropout(), nn.Linear(6, 5))
    return trace(net)


def trace(net: nn.Module, size: int = 32) -> ArchGraph:
    return ag.trace(net, torch.zeros(1, 3, size, size), train=False).graph


def shapes(graph: ArchGraph) -> list[tuple[int, ...]]:
    return sorted(p.shape for p in graph.params if p.role != "constant")


def stages(graph: ArchGraph) -> list[tuple[str, int]]:
    return [(s.kind, len(s.blocks)) for s in ag.structure(graph).sections]


def linear(*widths: int, prefix: str = "") -> ArchGraph:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise((3, *widths)):
        layers += [nn.Linear(a, b), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(widths[-1], 2))
    return ag.trace(net, torch.zeros(1, 3)).graph


class Unit(nn.Module):
    """A residual block as torchvision does not write it: shortcut first, layers in any order."""

    def __init__(self, c: int, out: int, stride: int) -> None:
        super().__init__()
        self.norm_b, self.conv_b = nn.BatchNorm2d(out), nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.conv_a = nn.Conv2d(c, out, 3, stride, 1, bias=False)
        self.norm_a = nn.BatchNorm2d(out)
        self.side = None
        if stride > 1:
            self.side = nn.Sequential(nn.Conv2d(c, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        rest = x if self.side is None else self.side(x)
        x = self.norm_b(self.conv_b(F.relu(self.norm_a(self.conv_a(x)))))
        return F.relu(rest + x)


class Mine(nn.Module):
    """ResNet by another user: other names, other order of definition, a dropout more."""

    def __init__(self, depths: Sequence[int], widths: Sequence[int]) -> None:
        super().__init__()
        self.classify = nn.Linear(widths[-1], 10)
        before = [widths[0], *widths]
        self.stages = nn.ModuleList(
            nn.ModuleList(
                Unit(w if i else before[k], w, 1 if i or not k else 2) for i in range(depth)
            )
            for k, (depth, w) in enumerate(zip(depths, widths, strict=True))
        )
        self.start = nn.Sequential(
            nn.Conv2d(3, widths[0], 7, 2, 3, bias=False), nn.BatchNorm2d(widths[0])
        )
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        x = F.max_pool2d(torch.relu(self.start(x)), 3, 2, 1)
        for stage in self.stages:
            assert isinstance(stage, nn.ModuleList)
            for unit in stage:
                x = unit(x)
        return self.classify(self.drop(F.adaptive_avg_pool2d(x, 1).view(x.size(0), -1)))


@functools.cache
def resnet(*depths: int) -> ArchGraph:
    """A ResNet of torchvision's."""
    models = pytest.importorskip("torchvision.models")
    return trace(models.ResNet(models.resnet.BasicBlock, list(depths), num_classes=10))


# -- align --------------------------------------------------------------------------------------


def test_a_shallower_vgg_lacks_the_last_layers_of_its_stages() -> None:
    found = ag.align(vgg(VGG[13]), vgg(VGG[19]))
    names = dict(found.blocks)
    assert names["features.15"] == "features.19"  # the fourth stage begins later in VGG-19
    assert names["features.17"] == "features.21"
    assert names["features.22"] == "features.30"
    assert names["classifier.3"] == "classifier.3"
    assert found.score == pytest.approx(2 * 24 / (24 + 36))
    assert [(u.part, u.side) for u in found.unmatched] == [
        (f"features.{i}", "whole") for i in (14, 16, 23, 25, 32, 34)
    ]
    assert all("fewer blocks of this form (conv2d > relu)" in u.reason for u in found.unmatched)
    state = ag.initial_state(vgg(VGG[19]))
    pulled = found.transfer.pull(state)
    assert torch.equal(pulled["features.17.weight"], state["features.21.weight"])
    ag.build(vgg(VGG[13]), pulled)(torch.zeros(2, 3, 32, 32))


def test_another_users_resnet_is_the_same_network() -> None:
    mine, whole = trace(Mine((1, 1, 1, 1), (64, 128, 256, 512))), resnet(1, 1, 1, 1)
    found = ag.align(mine, whole)
    assert found.score == 1 and not found.unmatched
    assert set(dict(found.leaves)) == set(mine.state_names)
    assert (
        dict(found.leaves)["stages.1.0.side.1.running_var"] == "layer2.0.downsample.1.running_var"
    )
    assert dict(found.sections)["stages.1"] == "layer2"
    state = {k: torch.rand_like(v) for k, v in ag.initial_state(whole).items() if v.dim()}
    state |= {k: v for k, v in ag.initial_state(whole).items() if not v.dim()}
    image = torch.rand(2, 3, 32, 32)
    nets = ag.build(whole, state).eval(), ag.build(mine, found.transfer.pull(state)).eval()
    torch.testing.assert_close(nets[0](image), nets[1](image), rtol=0, atol=0)


def test_counters_follow_their_norms() -> None:
    whole = ag.trace(Mine((1, 1), (4, 4)), torch.zeros(1, 3, 32, 32)).graph
    net = nn.ModuleDict({"inner": Mine((1, 1), (4, 4))})
    net.forward = lambda x: net["inner"](x)
    found = ag.align(ag.trace(net, torch.zeros(1, 3, 32, 32)).graph, whole)
    assert dict(found.leaves)["inner.start.1.num_batches_tracked"] == "start.1.num_batches_tracked"
    assert found.score == 1 and found.transfer


def test_without_a_common_form_there_is_a_reason() -> None:
    plain, normed = vgg(VGG[11]), vgg(VGG[11], WIDTHS, True)
    found = ag.align(plain, normed)
    assert [a for a, _ in found.blocks] == ["classifier.0", "classifier.3"]
    assert found.score == pytest.approx(2 * 4 / (20 + 8 * 7 + 4))
    reasons = {u.part: u.reason for u in found.unmatched if u.side == "client"}
    assert reasons["features.0"] == (
        "no block of the other graph has this form (conv2d > relu vs conv2d > batch_norm > relu)"
    )
    with pytest.raises(
        RewriteError, match=r"features\.0: has no counterpart in the larger graph; no block .*vs"
    ):
        _ = found.transfer
    strided = trace(nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.Flatten(), nn.Linear(900, 2)))
    other = trace(nn.Sequential(nn.Conv2d(3, 4, 5, 2), nn.Flatten(), nn.Linear(784, 2)))
    (first, *_) = ag.align(strided, other).unmatched
    assert first.reason == "dimension 2 is 0.kernel[3] in 0.weight and 0.kernel[5] in 0.weight"
    unstrided = trace(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(3600, 2)))
    (first, *_) = ag.align(strided, unstrided).unmatched
    assert "(conv2d with stride=(2, 2) vs default)" in first.reason


def test_a_wider_client_is_aligned_but_not_contained() -> None:
    found = ag.align(linear(8, 8), linear(8, 4))
    assert found.score == 1 and not found.unmatched
    with pytest.raises(
        RewriteError, match=r"2\.out: axis is wider than the larger graph's; found 8; .* at most 4"
    ):
        _ = found.transfer


def test_classes_do_not_shrink() -> None:
    few = ag.trace(nn.Linear(3, 2), torch.zeros(1, 3)).graph
    found = ag.align(few, ag.trace(nn.Linear(3, 5), torch.zeros(1, 3)).graph)
    assert "dimension 0 is weight.out[2] in weight and weight.out[5] in weight" in str(found)
    with pytest.raises(RewriteError, match="has no counterpart"):
        _ = found.transfer


def test_the_last_layer_is_no_hidden_one() -> None:
    # Without activations all layers have one form, but for what they make.
    deep = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    flat = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    found = ag.align(*(ag.trace(n, torch.zeros(1, 3)).graph for n in (flat, deep)))
    assert found.blocks == (("0", "0"), ("1", "2"))


def test_names_break_ties_where_sections_have_one_name() -> None:
    whole = resnet(3, 1, 1, 1)
    for gone in ("layer1.0", "layer1.1", "layer1.2"):
        small = ag.skip(whole, gone)
        assert ag.align(small.graph, whole).transfer == small.transfer
    cut = ag.take(ag.skip(whole, "layer1.1").graph, 0.5)
    assert dict(ag.align(cut.graph, whole).blocks)["layer1.2"] == "layer1.2"


def test_stages_are_told_apart_by_resolution() -> None:
    # By the number of layers alone, the client's third stage is like the fourth.
    found = ag.align(vgg((1, 1, 3), (2, 3, 4)), vgg((1, 1, 1, 3), (2, 3, 4, 4)))
    assert dict(found.blocks)["features.6"] == "features.6"


def test_one_run_where_sections_differ() -> None:
    found = ag.align(linear(8, 8, 8), linear(10, 9, 8, 7))  # one section here, four there
    assert [b for _, b in found.blocks] == ["0", "2", "4", "8"]


def test_weights_are_shared_in_both_or_in_neither() -> None:
    class Twice(nn.Module):
        def __init__(self, again: bool) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
            self.d = nn.Linear(3, 2)
            self.again = again

        def forward(self, x):
            x = torch.tanh(self.b(torch.relu(self.a(torch.sin(x)))))
            return self.d(torch.relu((self.a if self.again else self.c)(x)))

    graphs = [ag.trace(Twice(again), torch.zeros(1, 3)).graph for again in (True, False)]
    for pair in (graphs, graphs[::-1]):
        found = ag.align(*pair)
        assert len(set(dict(found.leaves).values())) == len(found.leaves)
        assert any("shares a.weight" in u.reason for u in found.unmatched)


def test_blocks_may_be_cut_elsewhere() -> None:
    models = pytest.importorskip("torchvision.models")
    nets = (models.VisionTransformer(32, 16, n, 2, 8, 8, num_classes=3) for n in (1, 2))
    one, two = (ag.trace(net, torch.zeros(1, 3, 32, 32)).graph for net in nets)
    assert len(ag.structure(one).blocks[0].nodes) != len(ag.structure(two).blocks[0].nodes)
    found = ag.align(one, two)
    assert all(u.side == "whole" for u in found.unmatched)
    ag.build(one, found.transfer.pull(ag.initial_state(two)))(torch.zeros(2, 3, 32, 32))


def test_a_dense_block_goes_with_what_it_appends() -> None:
    models = pytest.importorskip("torchvision.models")
    net = models.DenseNet(4, (3, 2), 8, num_classes=3)
    whole = trace(net)
    small = ag.shorten(whole, {"features.denseblock1": 2})
    found = ag.align(small.graph, whole)
    assert found.transfer == small.transfer
    other = trace(models.DenseNet(4, (2, 2), 8, num_classes=3))
    assert len(ag.align(other, whole).blocks) == len(ag.structure(other).blocks)


# -- what is not to be confused -----------------------------------------------------------------


class Branches(nn.Module):
    """Two layers of one form, brought together in one way or another."""

    def __init__(self, a: int, b: int, names: str = "ab", *, flip: bool = False, product=False):
        super().__init__()
        self.names, self.flip, self.product = names[::-1] if flip else names, flip, product
        for name, width in zip(names, (a, b), strict=True):
            self.add_module(
                name, nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 6))
            )
        self.last = nn.Linear(6, 2)

    def forward(self, x):
        one, other = (getattr(self, name)(x) for name in self.names)
        return self.last(torch.relu(one * other if self.product else one + other))


def flat(net: nn.Module) -> ArchGraph:
    return ag.trace(net, torch.zeros(2, 6), train=False).graph


@pytest.mark.parametrize("product", [False, True])
def test_operands_of_one_form_are_told_apart_by_name_then_by_width(product: bool) -> None:
    whole = flat(Branches(4, 16, product=product))
    flipped = flat(Branches(4, 16, flip=True, product=product))
    same = {name: name for name in whole.state_names}
    assert dict(ag.align(flipped, whole).leaves) == same
    assert {e.source for e in ag.align(flipped, whole).transfer.entries.values()} == set(same)
    assert shapes(ag.join([whole, flipped]).graph) == shapes(whole)
    wider = flat(Branches(20, 2, flip=True, product=product))  # names come before widths
    assert dict(ag.align(wider, whole).leaves) == same
    stranger = flat(nn.Sequential(Branches(3, 12, "zy", flip=True, product=product)))
    found = ag.align(stranger, whole)  # no name in common
    assert dict(found.leaves)["0.z.0.weight"] == "a.0.weight" and found.transfer


def test_the_tenth_branch_comes_after_the_ninth() -> None:
    class Net(nn.Module):
        def __init__(self, begin: int) -> None:
            super().__init__()
            self.names = [str(begin), str(begin + 1)]
            self.part = nn.ModuleDict({name: nn.Linear(6, 4) for name in self.names})
            self.last = nn.Linear(4, 2)

        def forward(self, x):
            one, other = (self.part[name](x) for name in self.names)
            return self.last(torch.relu(one + other))

    found = ag.align(flat(Net(9)), flat(Net(10)))
    assert dict(found.leaves)["part.9.weight"] == "part.10.weight"


class Scaled(nn.Module):
    """A sum in which the second operand counts more or less than the first."""

    def __init__(self, alpha: float, flip: bool = False) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 4), nn.Sequential(nn.Linear(6, 4), nn.Tanh())
        self.last, self.alpha, self.flip = nn.Linear(4, 2), alpha, flip

    def forward(self, x):
        one, other = (self.b(x), self.a(x)) if self.flip else (self.a(x), self.b(x))
        return self.last(torch.relu(torch.add(one, other, alpha=self.alpha)))


def test_operands_of_a_weighted_sum_are_not_exchanged() -> None:
    for alpha in (2, 0.5, -1):
        found = ag.align(flat(Scaled(alpha)), flat(Scaled(alpha, flip=True)))
        assert found.unmatched and ag.align(flat(Scaled(alpha)), flat(Scaled(alpha))).score == 1
    for alpha in (0.5, -1.0):
        assert "add with alpha=" in str(ag.align(flat(Scaled(alpha)), flat(Scaled(1))))
    assert ag.align(flat(Scaled(1)), flat(Scaled(1, flip=True))).score == 1


@pytest.mark.parametrize(
    "one, other, reason",
    [
        (nn.Hardtanh(-1.0, 1.0), nn.Hardtanh(0.0, 6.0), "min_val=-1, max_val=1 vs min_val=0"),
        (nn.ELU(1.0), nn.ELU(3.0), "elu with alpha=1 vs alpha=3"),
        (nn.LeakyReLU(0.01), nn.LeakyReLU(0.9), "leaky_relu with default vs negative_slope=0.9"),
        (nn.Threshold(0.5, 0.0), nn.Threshold(-3.0, 0.0), "threshold=0.5 vs threshold=-3"),
    ],
)
def test_numbers_belong_to_a_form(one: nn.Module, other: nn.Module, reason: str) -> None:
    graphs = [flat(nn.Sequential(nn.Linear(6, 4), a, nn.Linear(4, 2))) for a in (one, other)]
    found = ag.align(*graphs)
    assert found.score < 1 and reason in str(found)
    with pytest.raises(RewriteError, match="has no counterpart"):
        _ = found.transfer


def test_rates_do_not() -> None:
    def net(p: float, eps: float = 1e-5, momentum: float = 0.1) -> ArchGraph:
        layers = (nn.Linear(6, 4), nn.BatchNorm1d(4, eps, momentum), nn.ReLU(), nn.Dropout(p))
        return flat(nn.Sequential(*layers, nn.Linear(4, 2)))

    assert ag.align(net(0.1), net(0.5, eps=0.1, momentum=0.5)).transfer


class Masked(nn.Module):
    """A product with a constant and a number."""

    mask: torch.Tensor

    def __init__(self, mask: torch.Tensor, factor: float = 2.0) -> None:
        super().__init__()
        self.a, self.b, self.factor = nn.Linear(6, 6), nn.Linear(6, 2), factor
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        return self.b(torch.relu(self.a(x) * self.factor) * self.mask)


def test_constants_and_factors_are_compared() -> None:
    mask = torch.arange(6.0)
    whole = flat(Masked(mask))
    assert ag.align(flat(Masked(mask)), whole).score == 1
    assert "mask has other numbers" in str(ag.align(flat(Masked(mask.flip(0))), whole))
    found = ag.align(flat(Masked(mask, -3.0)), whole)
    assert "the factor is -3.0 in %mul and 2.0 in %mul" in str(found)
    with pytest.raises(RewriteError, match="the factor is"):
        ag.join([flat(Masked(mask, -3.0)), whole])


@pytest.mark.parametrize("divide", [False, True])
def test_factors_may_be_roots_of_widths(divide: bool) -> None:
    class Attention(nn.Module):
        def __init__(self, size: int, factor: float) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(6, size) for _ in range(3))
            self.last, self.factor = nn.Linear(size, 2), factor

        def forward(self, x):
            q = self.q(x) / self.factor if divide else self.q(x) * self.factor
            return self.last(torch.softmax(q @ self.k(x).mT, -1) @ self.v(x))

    root = 0.5 if divide else -0.5
    client, whole = (flat(Attention(size, size**root)) for size in (4, 9))
    assert ag.align(client, whole).transfer
    assert ag.align(flat(Attention(4, 0.7)), whole).unmatched


class Run(nn.Module):
    """Layers between two others; of one layer a section is made with the first."""

    def __init__(self, depth: int, unused: bool = False) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 2)
        self.m = nn.ModuleList(nn.Linear(8, 8) for _ in range(depth))
        if unused:
            self.extra = nn.Parameter(torch.ones(3))

    def forward(self, x):
        x = torch.relu(self.a(x))
        for layer in self.m:
            x = torch.relu(layer(x))
        return self.b(x)


@pytest.mark.parametrize("depth", [2, 3])
def test_a_layer_is_found_among_several_whatever_its_section(depth: int) -> None:
    one, more = flat(Run(1)), flat(Run(depth))
    found = ag.align(one, more)
    assert found.transfer and dict(found.blocks)["m.0"] == "m.0"
    assert {u.side for u in found.unmatched} == {"whole"}
    assert ag.join([one, more]).graph == more and shapes(ag.meet([more, one]).graph) == shapes(one)


def test_what_evaluation_does_not_use_is_in_no_meet() -> None:
    small, large = flat(Run(1, unused=True)), flat(Run(3))
    met = ag.meet([small, large])
    assert shapes(met.graph) == shapes(flat(Run(1)))
    assert all(set(t.entries) == set(met.graph.state_names) for t in met.transfers)
    assert "extra" in ag.join([small, large]).graph.state_names

    def counted(count: bool, depth: int) -> ArchGraph:
        norm = nn.BatchNorm1d(6)
        if not count:
            norm.num_batches_tracked = None
        layers = [layer for _ in range(depth) for layer in (nn.Linear(6, 6), nn.ReLU())]
        net = nn.Sequential(nn.Linear(6, 6), norm, nn.ReLU(), *layers, nn.Linear(6, 2))
        return ag.trace(net, torch.zeros(2, 6)).graph

    met = ag.meet([counted(True, 0), counted(False, 2)])
    assert "3.weight" in met.graph.state_names  # names are those of the smaller
    assert "1.num_batches_tracked" not in met.graph.state_names
    assert "1.num_batches_tracked" not in dict(met.graph.updates)


@pytest.mark.parametrize("shuffle", [False, True])
def test_inputs_are_not_taken_apart_in_different_ways(shuffle: bool) -> None:
    class Net(nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.count, self.last = count, nn.Linear(6 if shuffle else 2, 2)

        def forward(self, x):
            if shuffle:
                return self.last(x.view(-1, self.count, 6 // self.count).mT.reshape(-1, 6))
            return self.last(x[:, self.count : self.count + 2])

    found = ag.align(flat(Net(2)), flat(Net(3)))
    assert not found.leaves and ag.align(flat(Net(2)), flat(Net(2))).transfer
    assert ("shape is 2 in %" if shuffle else "start is 2 in %slice and 3 in %slice") in str(found)


def test_reasons_name_what_is_there() -> None:
    def net(groups: int) -> ArchGraph:
        norm = nn.GroupNorm(groups, 8)
        return trace(nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1)), 8)

    found = ag.align(net(1), net(4))
    assert "default" not in str(found)


def test_only_graphs_are_aligned_and_joined() -> None:
    graph, net = flat(Run(1)), nn.Linear(2, 2)
    for make in (ag.join, ag.meet):
        for wrong in (graph, [net], net, [graph, None], 3):
            with pytest.raises(ArchGraphError, match=r"not graphs to|is not an architecture"):
                make(wrong)  # type: ignore[arg-type]
    for pair in ((torch.zeros(2), graph), (graph, net)):
        with pytest.raises(GraphError, match="is not an architecture"):
            ag.align(*pair)


def test_values_show_themselves_on_one_line() -> None:
    graphs = [linear(4, 4), linear(8)]
    values: list[Any] = [ag.align(*graphs), ag.join(graphs), ag.meet(graphs)]
    for value, kind in zip(values, ("Alignment", "Joined", "Met"), strict=True):
        assert repr(value).startswith(f"<{kind} ") and "\n" not in repr(value)
        assert len(repr(value)) < 160 and value._repr_html_().startswith("<table")


def test_blocks_of_one_form_belong_together_only_if_their_inputs_do() -> None:
    class Net(nn.Module):
        """A chain of residual blocks whose last takes an earlier result as well."""

        def __init__(self, far: int) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
            self.last, self.far = nn.Linear(6, 2), far

        def forward(self, x):
            results = [x]
            for layer in self.layers:
                results.append(results[-1] + layer(results[-1]).relu())
            return self.last(results[-1] + results[self.far])

    found = ag.align(flat(Net(1)), flat(Net(2)))
    assert [u.part for u in found.unmatched] == ["layers.3", "layers.3"]
    assert "takes %add, its counterpart layers.3 takes %add_1" in found.unmatched[0].reason
    assert ag.align(flat(Net(1)), flat(Net(1))).score == 1


# -- join and meet ------------------------------------------------------------------------------


def test_vggs_join_to_the_deepest_and_widest() -> None:
    users = [vgg(d) for d in VGG.values()] + [vgg(VGG[16], WIDER), vgg(VGG[19], WIDER)]
    joined = ag.join(users)
    assert joined.graph == vgg(VGG[19], WIDER)
    state = ag.initial_state(joined.graph)
    for user, transfer in zip(users, joined.transfers, strict=True):
        ag.build(user, transfer.pull(state))(torch.zeros(2, 3, 32, 32))
    without = ag.join([vgg(VGG[19]), vgg(VGG[16], WIDER)])
    assert shapes(without.graph) == shapes(vgg(VGG[19], WIDER))
    assert stages(without.graph) == stages(vgg(VGG[19], WIDER))


def test_each_may_be_deepest_somewhere() -> None:
    a, b = vgg((2, 2, 4, 2, 2)), vgg((2, 1, 2, 4, 3), WIDER)
    for pair in ([a, b], [b, a]):
        joined = ag.join(pair)
        assert shapes(joined.graph) == shapes(vgg((2, 2, 4, 4, 3), WIDER))
        assert stages(joined.graph) == stages(vgg((2, 2, 4, 4, 3), WIDER))
    assert shapes(ag.meet([a, b]).graph) == shapes(vgg((2, 1, 2, 2, 2)))


def test_a_stage_that_only_one_has() -> None:
    def net(*widths: int, pooled: bool = True) -> ArchGraph:
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise((3, *widths)):
            layers += [nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        return trace(
            nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 2))
        )

    joined = ag.join([net(4, 5), net(3, 6, 2)])
    assert shapes(joined.graph) == shapes(net(4, 6, 5))


def test_a_block_of_another_form_is_put_in() -> None:
    def net(mixer: int, depth: int) -> ArchGraph:
        layers: list[nn.Module] = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()]
        layers += [Unit(4, 4, 1) for _ in range(mixer)]
        layers += [nn.MaxPool2d(2)]
        for _ in range(depth):
            layers += [nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()]
        return trace(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)))

    a, b = net(1, 1), net(0, 3)
    joined = ag.join([a, b])
    assert shapes(joined.graph) == shapes(net(1, 3))
    for graph, transfer in zip((a, b), joined.transfers, strict=True):
        pulled = transfer.pull(ag.initial_state(joined.graph))
        ag.build(graph, pulled)(torch.zeros(2, 3, 32, 32))
    ag.build(joined.graph)(torch.zeros(2, 3, 32, 32))
    assert shapes(ag.meet([a, b]).graph) == shapes(net(0, 1))


def test_two_users_resnets_join() -> None:
    mine = trace(Mine((1, 3, 1, 1), (80, 64, 8, 8)))
    theirs = resnet(2, 1, 1, 1)
    joined = ag.join([mine, theirs])
    assert stages(joined.graph) == stages(resnet(2, 3, 1, 1))
    assert joined.graph.param["stages.0.0.conv_a.weight"].shape == (80, 80, 3, 3)
    assert joined.graph.param["stages.1.0.conv_a.weight"].shape == (128, 80, 3, 3)
    covered = [t.coverage for t in joined.transfers]
    for name in joined.graph.state_names:
        if not any(part in name for part in ("stages.0.1", "stages.1.1", "stages.1.2")):
            assert all(c.share(name) > 0 for c in covered), name
    met = ag.meet([mine, theirs])
    assert met.graph.param["layer1.0.conv1.weight"].shape == (64, 64, 3, 3)
    assert stages(met.graph) == stages(resnet(1, 1, 1, 1))


def test_lenet_and_its_small_sister() -> None:
    def net(a: int, b: int, c: int) -> ArchGraph:
        return trace(
            nn.Sequential(
                nn.Conv2d(3, a, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(a, b, 5), nn.ReLU(),
                nn.MaxPool2d(2), nn.Flatten(), nn.Linear(b * 25, c), nn.ReLU(), nn.Linear(c, 10),
            )
        )  # fmt: skip

    large, small = net(6, 16, 120), net(3, 5, 130)
    found = ag.align(small, large)
    assert found.score == 1
    joined, met = ag.join([small, large]), ag.meet([small, large])
    assert shapes(joined.graph) == shapes(net(6, 16, 130))
    assert shapes(met.graph) == shapes(net(3, 5, 120))
    weight = joined.transfers[0].entries["7.weight"]
    assert str(weight).endswith("[:, :125]")  # a prefix of channels, all their pixels


@pytest.mark.parametrize("make", [ag.join, ag.meet])
def test_strangers_are_refused_with_the_reason(make) -> None:
    models = pytest.importorskip("torchvision.models")
    vit = ag.trace(
        models.VisionTransformer(32, 16, 1, 2, 8, 8, num_classes=5), torch.zeros(1, 3, 32, 32)
    ).graph
    with pytest.raises(RewriteError, match=r"conv_proj: graphs .*no block of the other graph has"):
        make([vit, vgg(VGG[11])])
    with pytest.raises(RewriteError, match=r"conv2d > relu vs conv2d > batch_norm > relu"):
        make([vgg(VGG[11]), vgg(VGG[11], WIDTHS, True)])
    with pytest.raises(RewriteError, match="at least one graph"):
        make([])
