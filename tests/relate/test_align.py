"""Alignment of models that were not derived from one another."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import archgraph as ag
from tests.nets import captured, with_parts
from tests.relate.networks import VGG, WIDTHS, Mine, linear, resnet, trace, vgg


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


@pytest.mark.full
def test_without_a_common_form_there_is_a_reason() -> None:
    plain, normed = vgg(VGG[11]), vgg(VGG[11], WIDTHS, True)
    found = ag.align(plain, normed)
    assert [a for a, _ in found.blocks] == ["classifier.0", "classifier.3"]
    assert found.score == pytest.approx(2 * 4 / (20 + 8 * 6 + 4))  # without counters
    reasons = {u.part: u.reason for u in found.unmatched if u.side == "client"}
    assert reasons["features.0"] == (
        "no block of the other graph has this form (conv2d > relu vs conv2d > batch_norm > relu)"
    )
    with pytest.raises(
        ag.RewriteError, match=r"features\.0: has no counterpart in the larger graph; no block .*vs"
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
        ag.RewriteError, match=r"2\.out: axis is wider than the larger graph's, of 4; found 8"
    ):
        _ = found.transfer


def test_a_dense_block_goes_with_what_it_appends() -> None:
    models = pytest.importorskip("torchvision.models")
    net = models.DenseNet(4, (3, 2), 8, num_classes=3)
    whole = trace(net)
    small = ag.shorten(whole, {"features.denseblock1": 2})
    found = ag.align(small.graph, whole)
    assert found.transfer == small.transfer
    other = trace(models.DenseNet(4, (2, 2), 8, num_classes=3))
    assert len(ag.align(other, whole).blocks) == len(ag.structure(other).blocks)


def test_a_section_without_any_counterpart_is_listed_once() -> None:
    def net(depth: int) -> ag.ArchGraph:
        blocks = (nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(depth))
        return captured(
            nn.Sequential(nn.Linear(3, 6), nn.Sequential(*blocks), nn.Linear(6, 2)),
            torch.zeros(2, 3),
        ).graph

    assert [(u.part, u.side) for u in ag.align(net(2), net(0)).unmatched] == [("1", "client")]
    assert [(u.part, u.side) for u in ag.align(net(0), net(2)).unmatched] == [("1", "whole")]
    assert [(u.part, u.side) for u in ag.align(net(0), net(1)).unmatched] == [("1.0.0", "whole")]


def test_reasons_name_what_is_there() -> None:
    def net(groups: int) -> ag.ArchGraph:
        norm = nn.GroupNorm(groups, 8)
        return trace(nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1)), 8)

    found = ag.align(net(1), net(4))
    assert "default" not in str(found)


@with_parts(
    lambda form, steps=0: {
        "form": form,
        "first": nn.Linear(3, 8),
        "last": nn.Linear(8, 2),
        "bn0": nn.BatchNorm1d(8),
        "bn1": nn.BatchNorm1d(8),
        **{f"step{k}": torch.tensor(0) for k in range(steps)},
    }
)
def Counted(self, x):
    """Norms of the same names in blocks of other forms, and counters of its own."""
    if self.training:
        for step in self.buffers(recurse=False):
            step.add_(1)
    x = self.first(x)
    if self.form == "relu":
        return self.last(self.bn1(self.bn0(x).relu()).relu())
    return self.last(self.bn1(self.bn0(x * x).sin()) * x).exp()


def test_counters_are_no_reason_to_belong_together() -> None:
    a, b = (captured(Counted(form), torch.randn(4, 3)).graph for form in ("relu", "exp"))
    found = ag.align(a, b)
    assert not any("bn" in name for pair in found.leaves for name in pair)
    alone = ag.align(a, a)
    assert ("bn0.num_batches_tracked",) * 2 in alone.leaves and alone.score == 1


@pytest.mark.sample(4)
@pytest.mark.parametrize("steps", [(0, 4), (4, 0), (4, 4), (4, 2)])
def test_counters_do_not_move_the_score(steps) -> None:
    graphs = [captured(Counted("relu", k), torch.randn(4, 3)).graph for k in steps]
    found = ag.align(*graphs)
    assert found.score == 1
    assert sum("step" in name for name, _ in found.leaves) == min(steps)


def test_nothing_in_common_is_zero() -> None:
    def net(*layers: nn.Module) -> ag.ArchGraph:
        return captured(nn.Sequential(*layers), torch.randn(2, 3, 8, 8)).graph

    a = net(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.BatchNorm2d(2))
    b = net(nn.Conv2d(3, 4, 5), nn.BatchNorm2d(4), nn.Tanh(), nn.Conv2d(4, 2, 1), nn.BatchNorm2d(2))
    assert ag.align(a, b).score == 0
