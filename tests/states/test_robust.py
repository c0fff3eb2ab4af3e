"""Laws of medians, trimmed means and Krum over updates that cover different parts."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

import archgraph as ag
from archgraph.language.aggregate import MedianOptions, TrimmedMeanOptions
from archgraph.states import DimMap, Entry, Slot, Transfer, Update
from archgraph.states.pool import Pool
from archgraph.states.robust import distances, krum, middle
from archgraph.states.spill import Spill
from tests.examples import at_most
from tests.nets import captured
from tests.states.test_merge import FULL, KINDS, SLOTS, Tensors, client, merge, random, same_bits
from tests.states.test_merge import alone as lone

MEDIAN, NOTHING = MedianOptions().cut, TrimmedMeanOptions(share=0).cut
CUTS = {
    "median": MEDIAN,
    "nothing": NOTHING,
    "a fifth": TrimmedMeanOptions(share=0.2).cut,
    "a third": TrimmedMeanOptions(share=1 / 3).cut,
}
OLD = random(SLOTS, 100)


fleets = st.lists(
    st.builds(client, st.sampled_from(sorted(KINDS)), st.integers(0, 99)), min_size=1, max_size=7
)


def pooled(clients: list[Update], old: Tensors = OLD, slots: Any = SLOTS, **options: Any) -> Pool:
    pool = Pool(slots, old, **options)
    for number, one in enumerate(clients):
        pool.add(number, one)
    return pool


def alone(one: Update) -> dict[str, np.ndarray]:
    """What the global state would be if a client were the only one; NaN where it has nothing."""
    values, coverage = one.transfer.push(
        {k: v.double() if v.is_floating_point() else v for k, v in one.state.items()}
    )
    return {k: (v.double() / coverage[k]).numpy() for k, v in values.items()}


# ------------------------------------------------------------------------- values of one position


@given(
    st.lists(
        st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=4, max_size=4), min_size=1
    ),
    st.sampled_from([0.0, 0.125, 0.25, 0.375, 0.49]),
)
def test_with_all_clients_they_are_those_of_numpy_and_scipy(
    rows: list[tuple[float, ...]], share: float
):
    values = np.array(rows, dtype=np.float32)
    everywhere = torch.ones(values.shape, dtype=torch.bool)
    exact = values.astype(np.float64)
    found, counts = middle(torch.from_numpy(values), everywhere, MEDIAN)
    assert counts.tolist() == [len(rows)] * 4
    np.testing.assert_array_equal(found, np.median(exact, axis=0))
    cut = TrimmedMeanOptions(share=share).cut
    found, _ = middle(torch.from_numpy(values), everywhere, cut)
    expected = scipy.stats.trim_mean(exact, share, axis=0)
    scale = np.abs(exact).max(axis=0)
    assert (np.abs(found.numpy() - expected) <= 1e-12 * scale).all()


@given(st.floats(0, 0.499999999999), st.integers(0, 200))
def test_a_trimmed_mean_leaves_some_values(share: float, count: int):
    out = TrimmedMeanOptions(share=share).cut(count)
    assert 0 <= out <= count / 2
    assert out == math.floor(share * count) or abs(out - share * count) < 1e-8


def test_a_fold_is_undone_in_the_precision_of_its_entry():
    """``Aᵀ θ / |A|ᵀ|A| 1``: 0.1 · 5 / (0.1 · 0.8)."""
    slots, one = (Slot("w", (2,), "float64"),), (Slot("w", (1,), "float64"),)
    fold = DimMap.sparse([0, 0], [0, 1], [0.1, 0.7], size=2, length=1)
    folded = Transfer(slots, one, {"w": Entry("w", (fold,))})
    update = Update(folded, {"w": torch.tensor([5.0]).double()})
    pool = pooled([update], {"w": torch.zeros(2, dtype=torch.float64)}, slots)
    expected = torch.tensor([5 / 0.8, 5 / 0.8], dtype=torch.float64)
    torch.testing.assert_close(pool.middle(MEDIAN)["w"], expected, rtol=1e-14, atol=0)


def test_values_that_are_not_covered_do_not_count():
    values = torch.tensor([[1.0, 9.0], [2.0, 9.0], [9.0, 9.0], [4.0, 9.0]])
    covered = torch.tensor([[True, False], [True, False], [False, False], [True, False]])
    for cut, expected in ((MEDIAN, 2.0), (NOTHING, 7 / 3)):
        found, counts = middle(values, covered, cut)
        assert found[0].item() == pytest.approx(expected, rel=1e-12)
        assert counts.tolist() == [3, 0]


# --------------------------------------------------------------------------------- whole updates


@given(fleets, st.sampled_from(sorted(CUTS)))
@at_most(25)
def test_every_position_is_averaged_over_those_who_cover_it(clients: list[Update], name: str):
    cut = CUTS[name]
    found = pooled(clients).middle(cut)
    every = [alone(one) for one in clients]
    for slot in (s for s in SLOTS if s.averaged):
        stacked = np.stack([one[slot.name] for one in every])
        for place in np.ndindex(slot.shape):
            values = stacked[(slice(None), *place)]
            values = np.sort(values[~np.isnan(values)])
            now = found[slot.name][place].item()
            if not len(values):
                assert now == OLD[slot.name][place].item()
                continue
            out = min(cut(len(values)), (len(values) - 1) // 2)
            expected = values[out : len(values) - out].mean()
            assert now == pytest.approx(expected, rel=1e-5, abs=1e-6)


@given(fleets)
def test_nothing_trimmed_is_the_covered_mean(clients: list[Update]):
    """Of those who take positions; a fold counts more than once in the mean, once here."""
    others = [KINDS[name] for name in ("weighted", "replicated", "folded", "scaled")]
    plain = [c for c in clients if c.transfer not in others]
    expected = merge(plain, OLD)[0] if plain else OLD
    found = pooled(plain).middle(NOTHING)
    for slot in (s for s in SLOTS if s.averaged):
        torch.testing.assert_close(found[slot.name], expected[slot.name], rtol=1e-5, atol=1e-6)


@given(fleets, st.randoms(), st.sampled_from(sorted(CUTS)))
def test_the_order_of_clients_changes_no_bit(clients: list[Update], order: Any, name: str):
    """Neither that in which they arrive nor that of their numbers."""
    mixed = list(clients)
    order.shuffle(mixed)
    a, b = pooled(clients).middle(CUTS[name]), pooled(mixed).middle(CUTS[name])
    assert all(same_bits(a[s.name], b[s.name]) for s in SLOTS)


@given(fleets, st.integers(1, 60), st.sampled_from(sorted(CUTS)))
@at_most(12)
def test_the_size_of_a_slab_changes_no_bit(clients: list[Update], slab: int, name: str):
    a, b = pooled(clients).middle(CUTS[name]), pooled(clients, slab=slab).middle(CUTS[name])
    assert all(same_bits(a[s.name], b[s.name]) for s in SLOTS)
    few, many = (
        p.squared_distances(range(len(clients)))
        for p in (pooled(clients), pooled(clients, slab=slab))
    )
    torch.testing.assert_close(few[0], many[0])
    assert torch.equal(few[1], many[1])


@given(
    st.sampled_from(["float32", "float64", "bfloat16", "complex64"]),
    st.integers(1, 9),
    st.integers(0, 99),
    st.sampled_from(sorted(CUTS)),
)
def test_the_middle_of_equal_updates_is_that_update(dtype: str, count: int, seed: int, name: str):
    slots = (Slot("w", (3, 2), dtype), Slot("x", (), dtype), Slot("n", (), "int64", "buffer"))
    state = random(slots, seed)
    pool = pooled([Update(Transfer.identity(slots), state, 1.0)] * count, random(slots, 0), slots)
    found = pool.middle(CUTS[name])
    assert all(torch.equal(found[k], state[k]) and found[k].dtype == state[k].dtype for k in state)


@given(
    st.lists(st.sampled_from(["full", "prefix", "window", "scattered"]), min_size=2, max_size=6),
    st.sampled_from(sorted(KINDS)),
    st.sampled_from([1e30, -1e30, 1e9]),
)
@at_most(12)
def test_one_client_moves_nothing_out_of_the_honest_range(kinds: list[str], kind: str, size: float):
    """Where two honest clients or more cover a position, whatever the third one sends."""
    honest = [client(name, seed) for seed, name in enumerate(kinds)]
    evil = client(kind, 77)
    huge = {k: v * size if v.is_floating_point() else v for k, v in evil.state.items()}
    every = [alone(one) for one in honest]
    for place in range(len(honest) + 1):
        clients = [*honest[:place], evil._replace(state=huge), *honest[place:]]
        found = pooled(clients).middle(MEDIAN)
        third = pooled(clients).middle(TrimmedMeanOptions(share=0.34).cut)
        for slot in (s for s in SLOTS if s.averaged):
            stacked = np.stack([one[slot.name] for one in every])
            two = (~np.isnan(stacked)).sum(0) >= 2
            low = np.where(np.isnan(stacked), np.inf, stacked).min(0).astype(np.float32)
            high = np.where(np.isnan(stacked), -np.inf, stacked).max(0).astype(np.float32)
            for result in (found, third):
                now = result[slot.name].numpy()
                assert ((now >= low) & (now <= high))[two].all()


def test_what_nobody_covers_and_what_is_below_the_quorum_keeps_its_bits():
    clients = [client("prefix", 1), client("prefix", 2), client("window", 3)]
    old = {**OLD, "conv.weight": torch.full((6, 4, 3, 3), -0.0)}
    for quorum in (1, 2, 3):
        found = pooled(clients, old).middle(MEDIAN, quorum=quorum)["norm.mean"]
        covering = torch.tensor([2, 2, 3, 1, 1, 0])
        stays = covering < quorum
        assert same_bits(found[stays], OLD["norm.mean"][stays])
        assert not (found == OLD["norm.mean"])[~stays].any()
    found = pooled(clients, old).middle(MEDIAN)["conv.weight"]
    assert same_bits(found[5], old["conv.weight"][5])
    empty = Pool(SLOTS, OLD).middle(MEDIAN)
    assert all(same_bits(empty[s.name], OLD[s.name]) for s in SLOTS)
    assert all(empty[s.name] is not OLD[s.name] for s in SLOTS)


def test_integers_take_the_lower_median_of_those_who_have_them():
    steps = [client("full", seed) for seed in (7, 3, 2**40, 5)]
    found = pooled(steps).middle(NOTHING)["norm.steps"]
    assert found.item() == 5 and found.dtype == torch.int64


def test_frozen_parameters_and_bools_are_left_alone():
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))
    graph, state = captured(net, torch.zeros(1, 3))
    graph = ag.train_only(graph, ["1.*"]).graph
    moved = [{k: v + number for k, v in state.items()} for number in range(3)]
    updates = [Update(Transfer.identity(graph), each) for each in moved]
    found = pooled(updates, state, graph).middle(MEDIAN)
    assert torch.equal(found["0.weight"], state["0.weight"])
    assert torch.equal(found["1.weight"], state["1.weight"] + 1)
    slots = (Slot("mask", (2,), "bool", "buffer"),)
    old = {"mask": torch.tensor([True, False])}
    one = Update(Transfer.identity(slots), {"mask": torch.tensor([False, True])}, 1.0)
    assert torch.equal(pooled([one] * 3, old, slots).middle(MEDIAN)["mask"], old["mask"])


def test_rows_skip_scales_and_factors_are_honoured():
    states = [random(SLOTS, seed) for seed in range(3)]
    owned = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])
    updates = [
        Update(
            FULL,
            {k: v for k, v in state.items() if k != "norm.mean"},
            scales={"conv.weight": 0.5},
            rows={"fc.weight": owned if number else 1 - owned},
            unmerged={"norm.mean"},
        )
        for number, state in enumerate(states)
    ]
    found = pooled(updates).middle(NOTHING, multiply={"conv.weight": 4.0})
    assert same_bits(found["norm.mean"], OLD["norm.mean"])
    mean = torch.stack([s["conv.weight"] for s in states]).double().mean(0) * 2
    torch.testing.assert_close(found["conv.weight"], mean.float())
    fc = [s["fc.weight"] for s in states]
    for row, own in enumerate(owned):
        expected = (fc[1][row] + fc[2][row]) / 2 if own else fc[0][row]
        torch.testing.assert_close(found["fc.weight"][row], expected)


def test_rows_that_a_client_does_not_give_do_not_count_where_rows_are_copies():
    slots, wide = (Slot("w", (2,), "float32"),), (Slot("w", (3,), "float32"),)
    copied = Transfer(slots, wide, {"w": Entry("w", (DimMap.of([0, 1, 0], 2),))})
    mask = torch.tensor([1.0, 1.0, 0.0])
    update = Update(copied, {"w": torch.tensor([1.0, 2.0, 30.0])}, rows={"w": mask})
    pool = pooled([update], {"w": torch.zeros(2)}, slots)
    assert pool.middle(MEDIAN)["w"].tolist() == [1.0, 2.0]


def test_a_position_whose_mean_is_not_finite_stays():
    large = lone(1e30, 1.0)._replace(scales={"w": 1e10})
    pool = pooled([large] * 3, {"w": torch.tensor([7.0, 8.0])}, large.transfer.source)
    assert pool.middle(MEDIAN, multiply={"w": 1e-5})["w"].tolist() == [7.0, 1e5]


# ------------------------------------------------------------------------------------------ Krum


@given(
    st.integers(5, 9),
    st.integers(0, 2),
    st.integers(1, 4),
    st.integers(0, 99),
)
def test_krum_is_the_papers_where_all_cover_all(count: int, f: int, keep: int, seed: int):
    points = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed)).double()
    squares, counts = distances(points, torch.ones(count, 6, dtype=torch.bool))
    every = (points[:, None] - points).square().sum(-1)
    torch.testing.assert_close(squares, every, rtol=1e-9, atol=1e-9)
    assert (counts == 6).all()
    others = [sorted(every[i, [j for j in range(count) if j != i]].tolist()) for i in range(count)]
    scores = [sum(row[: max(count - f - 2, 1)]) for row in others]
    best = sorted(sorted(range(count), key=scores.__getitem__)[:keep])
    assert krum(squares, counts, f, keep) == best


def test_krum_compares_what_two_updates_both_have():
    values = torch.tensor([[1.0, 5.0, 0.0], [1.0, 0.0, 7.0], [2.0, 5.0, 9.0], [0.0, 0.0, 3.0]])
    covered = torch.tensor([[1, 1, 0], [1, 0, 1], [1, 1, 1], [0, 0, 1]]).bool()
    squares, counts = distances(values.double(), covered)
    for i, j in itertools.product(range(4), repeat=2):
        both = covered[i] & covered[j]
        assert counts[i, j] == both.sum()
        assert squares[i, j] == pytest.approx((values[i] - values[j])[both].square().sum())
    # 0 and 3 have nothing in common: neither is near or far.
    assert krum(squares, counts, 0, 1) == [0]


@given(st.integers(0, 30), st.sampled_from([1e3, 1e30, 3e38]), st.integers(0, 4))
def test_krum_never_chooses_what_lies_far_from_a_majority(seed: int, size: float, place: int):
    clients = [client("full", seed)] * 4
    moved = [
        c._replace(
            state={k: v + 0.01 * n if v.is_floating_point() else v for k, v in c.state.items()}
        )
        for n, c in enumerate(clients)
    ]
    evil = client("full", 50)
    far = {k: v.sign() * size if v.is_floating_point() else v for k, v in evil.state.items()}
    clients = [*moved[:place], evil._replace(state=far), *moved[place:]]
    squares, counts = pooled(clients).squared_distances(range(5))
    assert place not in krum(squares, counts, malicious=1, keep=4)
    assert counts[0, 0] == sum(math.prod(s.shape) for s in SLOTS if s.averaged)


def test_updates_with_nothing_in_common_with_anyone_come_last():
    squares = torch.zeros(3, 3, dtype=torch.float64)
    counts = torch.tensor([[4, 0, 0], [0, 4, 4], [0, 4, 4]])
    assert krum(squares, counts, 0, 2) == [1, 2]
    assert krum(torch.zeros(1, 1), torch.ones(1, 1), 0, 3) == [0]


# ------------------------------------------------------------------------------------------ disk


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "complex64", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (4, 2, 3)])
def test_what_was_spilled_is_read_back(dtype: str, shape: tuple[int, ...]):
    tensor = (torch.arange(math.prod(shape)).view(shape) % 5).to(getattr(torch, dtype))
    spill = Spill()
    spill.put({"before": torch.ones(7)})
    stored = spill.put({"x": tensor.t() if tensor.dim() == 2 else tensor})
    back = spill.get(stored)["x"]
    assert back.dtype == tensor.dtype
    assert torch.equal(back, tensor.t() if tensor.dim() == 2 else tensor)
    if len(shape) == 3:
        assert torch.equal(spill.rows(stored["x"], 1, 3), tensor[1:3])


@pytest.mark.parametrize("call", ["write", "flush"])
def test_a_full_disk_is_said(call):
    """Also where the last bytes were waiting in a buffer."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    class Full:
        def __getattr__(self, name: str) -> Any:
            return full if name == call else getattr(real, name)

    spill = Spill()
    real, spill._file = spill._file, Full()  # type: ignore[assignment]
    with pytest.raises(ag.RunError, match=r"cannot be written to .*; found a full disk"):
        spill.put({"x": torch.ones(2)})


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pool = pooled([client("full", 1)])
    assert not list(tmp_path.iterdir())
    del pool


@pytest.mark.parametrize("slab", [1, 2, 100])
def test_entries_of_one_source_are_all_read_however_it_is_cut(slab):
    """An entry that has nothing among some rows does not hide those after it."""
    whole, parts = (
        (Slot("w", (4,), "float32"),),
        (Slot("a", (2,), "float32"), Slot("b", (2,), "float32")),
    )
    halves = {
        "a": Entry("w", (DimMap.of([0, 1], 4),)),
        "b": Entry("w", (DimMap.of([2, 3], 4),)),
    }
    state = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, 4.0])}
    update = Update(Transfer(whole, parts, halves), state)
    pool = pooled([update], {"w": torch.zeros(4)}, whole, slab=slab)
    assert pool.middle(lambda count: 0)["w"].tolist() == [1, 2, 3, 4]


def test_distances_are_in_double_precision():
    updates = [lone(1.0, 0.0), lone(1.0 + 2.0**-20, 1e4)]
    pool = pooled(updates, {"w": torch.zeros(2)}, updates[0].transfer.source)
    sums, counts = pool.squared_distances([0, 1])
    assert (sums.dtype, counts.dtype) == (torch.float64, torch.float64)
    assert sums[0, 1].item() == 1e8 + 2.0**-40


def test_entries_of_one_source_count_as_one_client():
    slots = (Slot("w", (4,), "float32"),)
    small = (Slot("a", (2,), "float32"), Slot("b", (4,), "float32"))
    split = Transfer(
        slots, small, {"a": Entry("w", (DimMap.of([0, 1], 4),)), "b": Entry("w", (None,))}
    )
    both = Update(split, {"a": torch.tensor([1.0, 1.0]), "b": torch.tensor([3.0] * 4)}, 1.0)
    assert pooled([both], {"w": torch.zeros(4)}, slots).middle(MEDIAN)["w"].tolist() == [2, 2, 3, 3]


@pytest.mark.full
def test_memory_does_not_grow_with_the_number_of_updates():
    def peak(clients: int) -> float:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.bench_robust", "--memory", str(clients)],
            check=True,
            capture_output=True,
            text=True,
            cwd=Path(__file__).resolve().parents[2],
        )
        return float(done.stdout)

    few, many = peak(5), peak(20)
    assert many < few + 0.2


def test_what_is_not_computed_yet_is_written_as_it_is():
    spill = Spill()
    values = torch.tensor([1.0, -2.0])
    conjugated = torch.tensor([1 + 2j, 3 - 4j])
    stored = spill.put({"n": torch._neg_view(values), "c": conjugated.conj()})
    back = spill.get(stored)
    assert torch.equal(back["n"], -values) and torch.equal(back["c"], conjugated.conj())
