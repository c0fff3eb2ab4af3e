"""Alignment, join and meet of models that nobody derived from one another."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import archgraph as ag
from archgraph.errors import RewriteError
from archgraph.ir import ArchGraph

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
    assert "dimension 0 is bias.out[2] in weight and bias.out[5] in weight" in str(found)
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
    small = ag.shallow(whole, {"features.denseblock1": 2})
    found = ag.align(small.graph, whole)
    assert found.transfer == small.transfer
    other = trace(models.DenseNet(4, (2, 2), 8, num_classes=3))
    assert len(ag.align(other, whole).blocks) == len(ag.structure(other).blocks)


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
