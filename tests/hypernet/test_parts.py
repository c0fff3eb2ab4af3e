"""The parameter encoder and the decoders in closed form."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archgraph.errors import GraphError
from archgraph.hypernet import LowRank, ParameterEncoder, Tiled, bin_means
from archgraph.hypernet.decoders import crop, decoder, stretch

SHAPES = st.lists(st.integers(1, 9), max_size=4).map(tuple)


@given(
    sizes=st.lists(st.integers(0, 700), min_size=1, max_size=4), bins=st.sampled_from([1, 8, 128])
)
def test_summary_is_the_mean_of_equally_long_runs(sizes, bins):
    tensors = [torch.arange(n, dtype=torch.float64) ** 2 for n in sizes]
    means, counts = bin_means(tensors, bins)
    for tensor, row, count in zip(tensors, means, counts.tolist(), strict=True):
        step = max(math.ceil(len(tensor) / bins), 1)
        runs = [tensor[i : i + step].mean() for i in range(0, len(tensor), step)]
        assert count == len(runs) <= bins
        torch.testing.assert_close(row[:count], torch.tensor(runs, dtype=torch.float64))
        assert not row[count:].any()


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    return ParameterEncoder(2, 16, bins=32).double()


def test_a_tensors_code_does_not_depend_on_longer_ones_beside_it(encoder):
    small, large = torch.randn(5), torch.randn(40, 50)
    slots = torch.tensor([0, 0])
    both = encoder([small, large], slots)
    alone = torch.cat([encoder([t], slots[:1]) for t in (small, large)])
    torch.testing.assert_close(both, alone, rtol=0, atol=1e-12)


def test_a_code_depends_on_every_run_and_on_the_slot(encoder):
    tensor = torch.randn(64)
    code = encoder([tensor], torch.tensor([0]))
    for i in range(64):
        changed = tensor.clone()
        changed[i] += 1
        assert not torch.allclose(encoder([changed], torch.tensor([0])), code, atol=1e-6)
    assert not torch.allclose(encoder([tensor], torch.tensor([1])), code, atol=1e-6)


def test_what_lies_beyond_a_tensors_runs_is_masked(encoder):
    """Nine values are two pieces of four; the code is the mean over these alone."""
    held: dict[str, torch.Tensor] = {}
    encoder.layer.register_forward_hook(lambda m, a, out: held.update(out=out))
    tensor = torch.randn(9)
    code = encoder([tensor], torch.tensor([0]))
    torch.testing.assert_close(code, held["out"][:, :2].mean(1))
    with torch.no_grad():
        encoder.position[2:] += torch.randn(16).double()  # of pieces that are masked
    torch.testing.assert_close(encoder([tensor], torch.tensor([0])), code)


def test_pieces_of_one_number_each_are_a_token_a_run():
    encoder = ParameterEncoder(1, 16, bins=32, piece=1).double()
    assert encoder.position.shape == (32, 16)
    held: dict[str, torch.Tensor] = {}
    encoder.layer.register_forward_hook(lambda m, a, out: held.update(given=a[0]))
    encoder([torch.randn(9)], torch.tensor([0]))
    assert held["given"].shape == (1, 9, 16)


@pytest.mark.parametrize(("bins", "piece"), [(32, 5), (32, 0), (0, 8), (32, -1), (4, 8)])
def test_a_summary_is_whole_pieces(bins, piece):
    with pytest.raises(GraphError, match="cannot be split into pieces"):
        ParameterEncoder(1, 16, bins=bins, piece=piece)


def test_no_gradient_reaches_the_parameters(encoder):
    tensor = torch.randn(8, requires_grad=True)
    encoder([tensor], torch.tensor([0])).sum().backward()
    assert tensor.grad is None and encoder.embed.weight.grad is not None


def test_an_empty_tensor_has_a_finite_code(encoder):
    assert encoder([torch.zeros(0)], torch.tensor([0])).isfinite().all()


@given(own=SHAPES, data=st.data())
def test_stretch_repeats_and_crops(own, data):
    wanted = tuple(data.draw(st.integers(0, 12)) for _ in own)
    tensor = torch.randn(own)
    found = stretch(tensor, wanted)
    assert tuple(found.shape) == wanted
    for index in itertools.product(*map(range, wanted)):
        assert found[index] == tensor[tuple(i % n for i, n in zip(index, own, strict=True))]
    cut = crop(tensor, wanted)
    assert tuple(cut.shape) == tuple(map(min, own, wanted))


@pytest.mark.parametrize(
    ("largest", "tile"),
    [
        ((512, 256, 3, 3), (64, 64, 3, 3)),
        ((10, 512), (10, 64)),
        ((512,), (512,)),
        ((9000,), (4096,)),
        ((), ()),
        ((64, 64, 7, 7), (16, 32, 7, 7)),
    ],
)
def test_tiles_are_bounded(largest, tile):
    made = Tiled(8, 4, largest, tile=64)
    assert made.shape == tile and made.size == math.prod(tile) <= 9 * 64 * 64


def test_a_tile_is_repeated_in_form():
    made = Tiled(8, 4, (4, 4), tile=2)
    code = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    found = made.tensors(code, (3, 5), lambda p: 10 * p)[0]
    assert found.tolist() == [[10, 20] * 2 + [10], [30, 40] * 2 + [30], [10, 20] * 2 + [10]]


@pytest.mark.parametrize("kind", ["tiled", "low_rank"])
def test_as_much_of_a_code_as_is_needed_makes_the_same_tensor(kind):
    made = decoder(kind, 8, 4, (12, 10, 3, 3), 5, 2).double()
    features = torch.randn(3, 8, dtype=torch.float64)
    for shape in ((12, 7, 3, 3), (3, 10, 1, 1), (4, 2, 3, 1)):
        whole, part = made(features, (12, 10, 3, 3)), made(features, shape)
        assert tuple(part.shape) == (3, *made.part(shape))
        gradients = []
        for codes in (whole, part):
            found = made.tensors(codes, shape, torch.tanh)
            weights = torch.arange(found.numel(), dtype=torch.float64).view_as(found)
            loss = (found * weights).sum()
            gradients.append([loss, *torch.autograd.grad(loss, list(made.parameters()))])
        for a, b in zip(*gradients, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_small_kernels_need_a_small_part_of_a_tile():
    made = Tiled(8, 4, (64, 64, 3, 3), tile=64)
    assert made.part((64, 500, 1, 1)) == (64, 64, 1, 1)
    assert made(torch.randn(2, 8), (5, 500, 1, 1)).shape == (2, 5, 64, 1, 1)


def test_low_rank_is_the_sum_of_outer_products():
    made = LowRank(8, 4, (6, 5, 3, 2), rank=3, longest=100)
    codes = torch.randn(2, made.size, dtype=torch.float64)
    expected = torch.stack(
        [
            torch.einsum(
                "ro,ri,rhw->oihw", c[:18].view(3, 6), c[18:33].view(3, 5), c[33:].view(3, 3, 2)
            )
            for c in codes
        ]
    )
    expected = torch.tanh(expected / math.sqrt(3))
    torch.testing.assert_close(made.tensors(codes, (6, 5, 3, 2), torch.tanh), expected)
    smaller = made.tensors(codes, (4, 2, 1, 1), torch.tanh)
    torch.testing.assert_close(smaller, expected[:, :4, :2, :1, :1])


def test_low_rank_repeats_beyond_its_longest_side():
    made = LowRank(8, 4, (100, 5, 9, 9), rank=2, longest=20)
    assert made.sides == (20, 5) and made.kernel == (3, 5)
    found = made.tensors(torch.randn(1, made.size), (100, 5, 9, 9), lambda p: p)[0]
    assert torch.equal(found[20:40], found[:20])


@pytest.mark.parametrize("kind", ["tiled", "low_rank"])
def test_features_of_variance_one_give_tensors_of_variance_one(kind):
    made = decoder(kind, 64, 256, (32, 32, 3, 3), 16, 8)
    codes = made(torch.randn(50, 64), (32, 32, 3, 3))
    found = made.tensors(codes, (32, 32, 3, 3), lambda p: p).detach()
    assert abs(float(found.mean())) < 0.05
    assert float(found.var()) == pytest.approx(1, abs=0.15)


def test_vectors_are_never_low_rank():
    assert isinstance(decoder("low_rank", 8, 4, (5,), 16, 8), Tiled)
    assert isinstance(decoder("low_rank", 8, 4, (5, 5), 16, 8), LowRank)
