"""Forms of one dimension's map: the most compact one, and the same for equal maps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from archgraph.errors import RewriteError
from archgraph.states import (
    DimMap,
)
from archgraph.states.dimension_map import MAX_RUNS


@pytest.mark.parametrize(
    ("positions", "size", "text", "runs"),
    [
        (range(4), 8, ":4", 1),
        (range(2, 8), 8, "2:", 1),
        (range(1, 8, 3), 8, "1::3", 1),
        ([5], 8, "5:6", 1),
        ([0, 1, 2, 3, 8, 9, 10, 11], 16, "0:4+8:12", 2),
        ([6, 7, 8, 9, 0, 1, 2, 3, 4, 5], 10, "6:10+0:6", 2),
        ([0, 2, 5], 8, "[0, 2, 5]", 0),
        ([3, 2, 1], 4, "[3, 2, 1]", 0),
        ([0, 0, 0], 4, "[0, 0, 0]", 0),
        ([*range(0, 20, 2), 1], 30, "[0, 2, 4, … 11 of 30]", 0),
        ([], 4, "[]", 0),
    ],
)
def test_positions_take_the_most_compact_form(positions, size, text, runs):
    map_ = DimMap.of(positions, size)
    assert map_ is not None
    assert str(map_) == text
    assert len(map_.runs) == runs
    assert map_.positions.tolist() == list(positions)
    assert bool(map_.index) == (runs == 0 and len(positions) > 0)


@pytest.mark.parametrize("size", [0, 1, 7])
def test_all_positions_in_order_are_the_identity(size):
    assert DimMap.of(range(size), size) is None
    assert DimMap.of(range(size), size, weights=[1.0] * size) is None
    assert DimMap.sparse(range(size), range(size), [1.0] * size, size=size, length=size) is None


def test_a_prefix_of_every_head_is_slices():
    heads = (np.arange(12)[:, None] * 64 + np.arange(32)).reshape(-1)
    map_ = DimMap.of(heads, 768)
    assert map_ is not None
    assert len(map_.runs) == 12
    assert not map_.index
    x = torch.arange(768.0)
    small = x.view(12, 64)[:, :32].reshape(-1)
    assert torch.equal(map_.gather(x, 0), small)
    back = torch.ones(768)
    map_.scatter(small, 0, back, alpha=2.0)
    assert torch.equal(back.view(12, 64)[:, :32].reshape(-1), 1 + 2 * small)
    assert torch.equal(back.view(12, 64)[:, 32:], torch.ones(12, 32))
    assert torch.equal(map_.expand(small, 0), (back - 1) / 2)
    fused = np.concatenate([heads, 768 + heads, 1536 + heads])
    assert len((DimMap.of(fused, 2304) or map_).runs) == 36
    assert MAX_RUNS >= 36


def test_slices_compose_to_slices():
    a, b = DimMap.of(range(2, 20, 3), 30), DimMap.of([1, 3, 5], 6)
    assert a is not None
    assert b is not None
    assert a.then(b) == DimMap.of([5, 11, 17], 30)
    assert (a.then(b) or a).window == slice(5, 18, 6)


def test_duplicates_of_a_fold_add_up_and_zeros_go():
    map_ = DimMap.sparse([0, 0, 1, 1], [2, 2, 0, 1], [0.5, 0.25, 1.0, 0.0], size=3, length=2)
    assert map_ == DimMap.of([2, 0], 3, weights=[0.75, 1.0])


def test_only_rounding_errors_are_rounded_to_whole_weights():
    first = DimMap.of([0, 1], 2, weights=[1 / 3, 0.9995])
    second = DimMap.of([0, 1], 2, weights=[3.0, 1.0])
    assert first is not None
    assert second is not None
    both = first.then(second)
    assert both is not None
    assert both.values.tolist() == [1.0, 0.9995]


def test_maps_of_other_lengths_do_not_compose():
    half, third = DimMap.of([0, 1], 4), DimMap.of([0], 3)
    assert half is not None
    assert third is not None
    with pytest.raises(RewriteError, match=r"size of the second map.*; found 3; expected 2"):
        half.then(third)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DimMap.of([0, 4], 4), "position outside the axis; found 4; expected 0 … 3"),
        (lambda: DimMap.of([-1], 4), "position outside the axis; found -1; expected 0 … 3"),
        (lambda: DimMap.of([0], 4, weights=[1, 1]), "2 weights for 1 positions"),
        (lambda: DimMap.sparse([2], [0], [1.0], size=2, length=2), "row outside the map; found 2"),
    ],
)
def test_maps_outside_their_axis_are_refused(make, message):
    with pytest.raises(RewriteError, match=message):
        make()
