"""Coverage: a share for every leaf, from counts and transfers alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archgraph import Transfer, take, trace
from archgraph.display import coverage, draw_family
from archgraph.errors import ArchGraphError
from archgraph.federation import Family, Tier
from archgraph.graph.ir import ArchGraph


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
    with pytest.raises(ArchGraphError, match="coverage of no clients"):
        coverage([])
    smaller = take(graph, 0.5).graph
    with pytest.raises(ArchGraphError, match="start from different global models"):
        coverage([(Transfer.identity(graph), 1), (Transfer.identity(smaller), 1)])


def test_a_family_is_drawn_with_its_weak_points(graph: ArchGraph, tmp_path):
    small = take(graph, 0.5)
    member = Tier("tiny/one", small.graph, small.transfer, count=3)
    family = Family(graph, None, (member,))
    paths = draw_family(family, tmp_path / "all", form="dot")
    assert [p.name for p in paths] == ["global.dot", "client-tiny-one.dot"]
    assert "50 %" in paths[0].read_text() and "fed by 3 clients" in paths[0].read_text()
    assert "50 %" not in paths[1].read_text()
