"""Which blocks of two graphs belong together."""

from __future__ import annotations

import pytest
import torch

import archgraph as ag
from tests.nets import captured
from tests.relate.networks import Run, flat, linear, resnet, shapes, vgg


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


@pytest.mark.full
def test_blocks_may_be_cut_elsewhere() -> None:
    models = pytest.importorskip("torchvision.models")
    nets = (models.VisionTransformer(32, 16, n, 2, 8, 8, num_classes=3) for n in (1, 2))
    one, two = (captured(net, torch.zeros(1, 3, 32, 32)).graph for net in nets)
    assert len(ag.structure(one).blocks[0].nodes) != len(ag.structure(two).blocks[0].nodes)
    found = ag.align(one, two)
    assert all(u.side == "whole" for u in found.unmatched)
    ag.build(one, found.transfer.pull(ag.initial_state(two)))(torch.zeros(2, 3, 32, 32))


@pytest.mark.parametrize("depth", [2, 3])
def test_a_layer_is_found_among_several_whatever_its_section(depth: int) -> None:
    one, more = flat(Run(1)), flat(Run(depth))
    found = ag.align(one, more)
    assert found.transfer and dict(found.blocks)["m.0"] == "m.0"
    assert {u.side for u in found.unmatched} == {"whole"}
    assert ag.join([one, more]).graph == more and shapes(ag.meet([more, one]).graph) == shapes(one)
