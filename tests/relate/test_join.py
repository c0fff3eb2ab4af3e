"""Join and meet of models that were not derived from one another."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

import archgraph as ag
from tests.nets import captured
from tests.relate.networks import (
    VGG,
    WIDER,
    WIDTHS,
    Mine,
    Run,
    Unit,
    flat,
    linear,
    resnet,
    shapes,
    trace,
    vgg,
)


def stages(graph: ag.ArchGraph) -> list[tuple[str, int]]:
    return [(s.kind, len(s.blocks)) for s in ag.structure(graph).sections]


def test_what_evaluation_does_not_use_is_in_no_meet() -> None:
    small, large = flat(Run(1, unused=True)), flat(Run(3))
    met = ag.meet([small, large])
    assert shapes(met.graph) == shapes(flat(Run(1)))
    assert all(set(t.entries) == set(met.graph.state_names) for t in met.transfers)
    assert "extra" in ag.join([small, large]).graph.state_names

    def counted(count: bool, depth: int) -> ag.ArchGraph:
        norm = nn.BatchNorm1d(6)
        if not count:
            norm.num_batches_tracked = None
        layers = [layer for _ in range(depth) for layer in (nn.Linear(6, 6), nn.ReLU())]
        net = nn.Sequential(nn.Linear(6, 6), norm, nn.ReLU(), *layers, nn.Linear(6, 2))
        return captured(net, torch.zeros(2, 6)).graph

    met = ag.meet([counted(True, 0), counted(False, 2)])
    assert "3.weight" in met.graph.state_names  # names are those of the smaller
    assert "1.num_batches_tracked" not in met.graph.state_names
    assert "1.num_batches_tracked" not in dict(met.graph.updates)


def test_only_graphs_are_aligned_and_joined() -> None:
    graph, net = flat(Run(1)), nn.Linear(2, 2)
    for make in (ag.join, ag.meet):
        for wrong in (graph, [net], net, [graph, None], 3):
            with pytest.raises(ag.ArchGraphError, match=r"not graphs to|is not an architecture"):
                make(wrong)  # type: ignore[arg-type]
    for pair in ((torch.zeros(2), graph), (graph, net)):
        with pytest.raises(ag.GraphError, match="is not an architecture"):
            ag.align(*pair)


def test_values_show_themselves_on_one_line() -> None:
    graphs = [linear(4, 4), linear(8)]
    values: list[Any] = [ag.align(*graphs), ag.join(graphs), ag.meet(graphs)]
    for value, kind in zip(values, ("Alignment", "Joined", "Met"), strict=True):
        assert repr(value).startswith(f"<{kind} ") and "\n" not in repr(value)
        assert len(repr(value)) < 160 and value._repr_html_().startswith("<table")


@pytest.mark.full
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


@pytest.mark.full
def test_each_may_be_deepest_somewhere() -> None:
    a, b = vgg((2, 2, 4, 2, 2)), vgg((2, 1, 2, 4, 3), WIDER)
    for pair in ([a, b], [b, a]):
        joined = ag.join(pair)
        assert shapes(joined.graph) == shapes(vgg((2, 2, 4, 4, 3), WIDER))
        assert stages(joined.graph) == stages(vgg((2, 2, 4, 4, 3), WIDER))
    assert shapes(ag.meet([a, b]).graph) == shapes(vgg((2, 1, 2, 2, 2)))


def test_a_stage_that_only_one_has() -> None:
    def net(*widths: int, pooled: bool = True) -> ag.ArchGraph:
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise((3, *widths)):
            layers += [nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        return trace(
            nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 2))
        )

    joined = ag.join([net(4, 5), net(3, 6, 2)])
    assert shapes(joined.graph) == shapes(net(4, 6, 5))


def test_a_block_of_another_form_is_put_in() -> None:
    def net(mixer: int, depth: int) -> ag.ArchGraph:
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


@pytest.mark.full
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
    def net(a: int, b: int, c: int) -> ag.ArchGraph:
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


@pytest.mark.sample(2)
@pytest.mark.parametrize("make", [ag.join, ag.meet])
def test_strangers_are_refused_with_the_reason(make) -> None:
    models = pytest.importorskip("torchvision.models")
    vit = captured(
        models.VisionTransformer(32, 16, 1, 2, 8, 8, num_classes=5), torch.zeros(1, 3, 32, 32)
    ).graph
    with pytest.raises(
        ag.RewriteError, match=r"conv_proj: graphs .*no block of the other graph has"
    ):
        make([vit, vgg(VGG[11])])
    with pytest.raises(ag.RewriteError, match=r"conv2d > relu vs conv2d > batch_norm > relu"):
        make([vgg(VGG[11]), vgg(VGG[11], WIDTHS, True)])
    with pytest.raises(ag.RewriteError, match="at least one graph"):
        make([])
