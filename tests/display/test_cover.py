"""Coverage: a share for every leaf, from counts and transfers alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archgraph import Transfer, take, trace
from archgraph.analysis.cost import cost
from archgraph.display import coverage, draw_family
from archgraph.display.cover import Cover
from archgraph.errors import ArchGraphError
from archgraph.federation import Family, Tier
from archgraph.graph.ir import ArchGraph
from archgraph.tables import count


@pytest.fixture(scope="module")
def graph() -> ArchGraph:
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    return trace(net, torch.zeros(2, 3)).graph


@given(whole=st.integers(0, 5), half=st.integers(0, 5), quarter=st.integers(0, 5))
def test_the_share_is_the_mean_over_positions_and_clients(
    graph: ArchGraph, whole: int, half: int, quarter: int
):
    counts = {1.0: whole, 0.5: half, 0.25: quarter}
    if not sum(counts.values()):
        return
    pairs = [(take(graph, share).transfer, many) for share, many in counts.items() if many]
    found = coverage(pairs)
    mean = sum(share * many for share, many in counts.items()) / sum(counts.values())
    assert found.keys() == set(graph.state_names)
    assert found["0.weight"] == pytest.approx(mean, rel=1e-12)
    assert found["2.weight"] == pytest.approx(mean, rel=1e-12)
    assert found["2.bias"] == 1.0


def test_a_family_counts_its_members(graph: ArchGraph):
    small = take(graph, 0.5)
    whole = Transfer.identity(graph)
    weak = Tier("weak", small.graph, small.transfer, count=3)
    strong = Tier("strong", graph, whole)
    family = Family(graph, None, (weak, strong))
    assert coverage(family) == coverage([(small.transfer, 3), (Transfer.identity(graph), 1)])


def test_what_makes_no_sense_is_refused(graph: ArchGraph):
    with pytest.raises(ArchGraphError, match="coverage needs at least one client"):
        coverage([])
    smaller = take(graph, 0.5).graph
    with pytest.raises(ArchGraphError, match="start from different global models"):
        coverage([(Transfer.identity(graph), 1), (Transfer.identity(smaller), 1)])


def test_a_family_is_drawn_with_its_weak_points(graph: ArchGraph, tmp_path):
    small = take(graph, 0.5)
    member = Tier("tiny/one", small.graph, small.transfer, count=3)
    family = Family(graph, None, (member,), "both")
    paths = draw_family(family, tmp_path / "all", form="dot")
    assert [p.name for p in paths] == ["global.dot", "client-tiny-one.dot"]
    text = paths[0].read_text()
    assert "3 of 3 clients" in text and "50 % of the weights" in text
    assert "50 %" not in paths[1].read_text()


def test_a_family_is_drawn_as_its_options_say(graph: ArchGraph, tmp_path):
    member = Tier("all", graph, Transfer.identity(graph), count=3)
    family = Family(graph, None, (member,), "both")
    options: Any = {"title": "Mine", "legend": False, "width": "3.3in", "font": "Courier"}
    for path in draw_family(family, tmp_path, form="dot", **options):
        text = path.read_text()
        assert float(text.partition('size="')[2].partition(",")[0]) <= 3.3
        assert "fontname=Courier" in text and "Mine: " in text
        assert "both" not in text and "share of the weights" not in text
    bare = draw_family(family, tmp_path, form="dot", title="")[0].read_text()
    assert "3 clients" not in bare.replace("3 of 3 clients", "")


@given(whole=st.integers(1, 5), half=st.integers(0, 5), without=st.integers(0, 5))
def test_two_numbers_tell_depth_from_width(whole: int, half: int, without: int):
    cover = Cover((whole, half, without), {"a": (1.0, 0.5, 0.0), "b": (1.0, 1.0, 0.0)})
    found = cover.reach({"a": 30, "b": 10})
    assert found is not None
    assert (found.clients, found.total) == (whole + half, whole + half + without)
    assert found.weights == pytest.approx((whole + half * 25 / 40) / found.total, rel=1e-12)
    mean = (30 * cover["a"] + 10 * cover["b"]) / 40
    assert found.weights == pytest.approx(mean, rel=1e-12)


def test_the_legend_names_each_client_with_the_figures_of_the_library(graph: ArchGraph, tmp_path):
    small = take(graph, 0.5)
    kinds = (
        Tier("weak", small.graph, small.transfer, count=3),
        Tier("strong", graph, Transfer.identity(graph), count=2),
    )
    family = Family(graph, None, kinds, "pair")
    head, *_ = (p.read_text() for p in draw_family(family, tmp_path, form="dot"))
    assert ">pair: 5 clients<" in head
    for kind in kinds:
        spent = cost(kind.graph)
        for figure in (kind.name, str(kind.count), count(spent.parameters), count(spent.macs)):
            assert f">{figure}<" in head
    whole, held = (sum(math.prod(p.shape) for p in g.params) for g in (graph, small.graph))
    weak = sum(part * math.prod(graph.param[n].shape) for n, part in _parts(family).items())
    assert weak == held < whole


def _parts(family: Family) -> dict[str, float]:
    return {name: parts[0] for name, parts in coverage(family).parts.items()}
