"""What tiles cannot express, in closed form."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import archgraph as ag
from archgraph.hypernet import GraphHypernetwork, beyond_tiles, block_mean, entries
from archgraph.hypernet.decoders import stretch

SHAPES = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6)), max_size=3)


@given(sizes=SHAPES)
def test_the_block_mean_is_the_nearest_tile(sizes):
    """The difference is orthogonal to every tile: least squares in closed form."""
    tile = tuple(n for n, _ in sizes)
    shape = tuple(n + more for n, more in sizes)
    tensor = torch.randn(shape, dtype=torch.float64)
    found = block_mean(tensor, tile)
    assert tuple(found.shape) == tile
    left = tensor - stretch(found, shape)
    for index in itertools.product(*map(range, tile)):
        one = torch.zeros(tile, dtype=torch.float64)
        one[index] = 1
        assert abs(float((left * stretch(one, shape)).sum())) < 1e-12
    torch.testing.assert_close(
        block_mean(stretch(found, shape), tile), found, rtol=1e-12, atol=1e-14
    )


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(3, 20, 3), nn.BatchNorm2d(20), nn.ReLU(), nn.Conv2d(20, 6, 1))
    return ag.trace(made, torch.randn(2, 3, 5, 5))


def test_what_a_hypernetwork_generates_is_a_tile(net):
    graph, state = net
    network = GraphHypernetwork.for_graphs([graph], width=16, hidden=16, tile=4)
    made = network.generate([graph], [state])[0]
    found = beyond_tiles(network, graph, {**state, **made})
    assert list(found) == [e.name for e in entries(graph)]
    assert max(found.values()) <= 1e-6  # rounding of float32


def test_a_large_tile_expresses_everything_and_a_small_one_next_to_nothing(net):
    graph, state = net
    large = GraphHypernetwork.for_graphs([graph], width=16, hidden=16, tile=64)
    assert set(beyond_tiles(large, graph, state).values()) == {0.0}
    small = GraphHypernetwork.for_graphs([graph], width=16, hidden=16, tile=1)
    noise = {k: torch.randn(v.shape) for k, v in state.items()}
    weight = noise["0.weight"].double()
    found = beyond_tiles(small, graph, noise)
    alone = math.sqrt(float((weight - weight.mean()).square().sum() / weight.square().sum()))
    assert found["0.weight"] == pytest.approx(alone, rel=1e-12)
    zero = {k: torch.zeros(v.shape) for k, v in state.items()}
    assert set(beyond_tiles(small, graph, zero).values()) == {0.0}


def test_low_rank_tensors_are_left_out_and_states_must_fit(net):
    graph, state = net
    network = GraphHypernetwork.for_graphs([graph], width=16, hidden=16, decoders="low_rank")
    assert set(beyond_tiles(network, graph, state)) == {"0.bias", "1.weight", "1.bias", "3.bias"}
    with pytest.raises(ag.GraphError, match=r"1\.bias: state does not fit; found nothing"):
        beyond_tiles(network, graph, {k: v for k, v in state.items() if k != "1.bias"})
