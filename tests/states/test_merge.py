"""Laws of merging: the covered mean, its order, what it leaves alone and what it refuses."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
import warnings
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archgraph.errors import ArchGraphError, RejectedUpdate
from archgraph.states import (
    DimMap,
    Entry,
    Merger,
    Signature,
    Slot,
    Transfer,
    Update,
    check_update,
)
from archgraph.states.coverage import SMALL, Coverage, _light_division
from archgraph.states.entry import Initial
from archgraph.states.merge import _plan

Tensors = dict[str, torch.Tensor]

SLOTS = (
    Slot("conv.weight", (6, 4, 3, 3), "float32"),
    Slot("norm.mean", (6,), "float32", "buffer"),
    Slot("norm.steps", (), "int64", "buffer"),
    Slot("fc.weight", (5, 6), "float32"),
)


def random(slots: Signature, seed: int) -> Tensors:
    stream = torch.Generator().manual_seed(seed)
    return {
        s.name: torch.randn(s.shape, generator=stream, dtype=torch.float64).to(s.torch_dtype)
        if s.averaged
        else torch.full(s.shape, seed, dtype=s.torch_dtype)
        for s in slots
    }


def select(slots: Signature, **axes: DimMap | None) -> Transfer:
    """The transfer that narrows the axes ``in`` (4), ``out`` (6) of ``SLOTS``."""
    places = {"conv.weight": ("out", "in"), "norm.mean": ("out",), "fc.weight": (None, "out")}
    entries, target = {}, []
    for slot in slots:
        named = (*places.get(slot.name, ()), *[None] * 4)[: len(slot.shape)]
        dims = tuple(axes.get(name) if name else None for name in named)
        shape = (n if m is None else m.length for n, m in zip(slot.shape, dims, strict=True))
        entries[slot.name] = Entry(slot.name, dims)
        target.append(slot._replace(shape=tuple(shape)))
    return Transfer(slots, tuple(target), entries)


FULL = Transfer.identity(SLOTS)
KINDS = {
    "full": FULL,
    "prefix": select(SLOTS, out=DimMap.of(range(3), 6), **{"in": DimMap.of(range(2), 4)}),
    "window": select(SLOTS, out=DimMap.of(range(2, 5), 6)),
    "stride": select(SLOTS, out=DimMap.of([0, 2, 4], 6)),
    "scattered": select(SLOTS, out=DimMap.of([5, 0, 3], 6), **{"in": DimMap.of([3, 1], 4)}),
    "replicated": select(SLOTS, out=DimMap.of([0, 1, 2, 3, 4, 5, 0, 2], 6)),
    "weighted": select(SLOTS, out=DimMap.of([1, 1, 4], 6, weights=[0.5, 0.5, 2.0])),
    "folded": select(
        SLOTS, out=DimMap.sparse([0, 0, 1, 2], [0, 5, 1, 2], [1, 1, 0.5, 1], size=6, length=3)
    ),
}


KINDS["scaled"] = Transfer(
    SLOTS,
    KINDS["window"].target,
    {
        name: dataclasses.replace(entry, scale=0.5 if "weight" in name else 1.0)
        for name, entry in KINDS["window"].entries.items()
    },
)


def add(merger: Merger, update: Update) -> None:
    """Check an update and add it."""
    state, options = update[:3], update._asdict()
    merger.add(*state, **{name: options[name] for name in ("scales", "rows", "unmerged")})


def merge(
    updates: Iterable[Update],
    old: Tensors | None = None,
    *,
    multiply: Mapping[str, float] | None = None,
    **options: Any,
) -> tuple[Tensors, Coverage]:
    """The mean of some updates and the coverage; the old state has zeros where nothing is said."""
    updates = list(updates)
    slots = updates[0].transfer.source
    merger = Merger(slots, random(slots, 0) if old is None else old, **options)
    for update in updates:
        add(merger, update)
    assert merger.clients == len(updates)
    return merger.result(multiply or {})


def alone(*values: float, dtype: str = "float32") -> Update:
    """An update whose only entry has these values."""
    slots = (Slot("w", (len(values),), dtype),)
    content = torch.tensor(values, dtype=torch.float64).to(slots[0].torch_dtype)
    return Update(Transfer.identity(slots), {"w": content})


def client(kind: str, seed: int, weight: float = 1.0, **options: Any) -> Update:
    return Update(KINDS[kind], random(KINDS[kind].target, seed), weight, **options)


clients = st.lists(
    st.builds(client, st.sampled_from(sorted(KINDS)), st.integers(0, 99), st.floats(0.5, 50)),
    min_size=1,
    max_size=5,
)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    flat = (x.contiguous().view(-1).view(torch.uint8) for x in (a, b))
    return a.dtype == b.dtype and torch.equal(*flat)


def reference(clients: list[Update], old: Tensors) -> Tensors:
    """The covered mean as it is written, in double precision."""
    result = dict(old)
    for slot in (s for s in SLOTS if s.averaged):
        above = torch.zeros(slot.shape, dtype=torch.float64)
        below = torch.zeros(slot.shape, dtype=torch.float64)
        for client in clients:
            numerator, coverage = client.transfer.push(
                {k: v.double() if v.is_floating_point() else v for k, v in client.state.items()}
            )
            above += client.weight * numerator[slot.name]
            below += client.weight * coverage[slot.name]
        mean = (above / below).float()
        result[slot.name] = torch.where(below > 0, mean, old[slot.name])
    return result


# ----------------------------------------------------------------------------------- the mean


@given(clients)
def test_it_is_the_covered_mean(clients: list[Update]):
    old = random(SLOTS, 100)
    found, expected = merge(clients, old)[0], reference(clients, old)
    assert list(found) == [s.name for s in SLOTS]
    for slot in SLOTS:
        if slot.averaged:
            torch.testing.assert_close(found[slot.name], expected[slot.name], rtol=1e-5, atol=1e-6)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=8, unique=True), st.floats(1e-3, 1e6))
def test_equal_weights_are_the_uniform_mean_bit_for_bit(seeds: list[int], weight: float):
    states = [random(SLOTS, seed) for seed in seeds]
    new, _ = merge(Update(FULL, s, weight) for s in states)
    for slot in (s for s in SLOTS if s.averaged):
        total = states[0][slot.name].clone()
        for state in states[1:]:
            total += state[slot.name]
        assert torch.equal(new[slot.name], total / len(states))


@given(clients, st.randoms(use_true_random=False))
def test_the_order_of_clients_does_not_matter(clients: list[Update], random_):
    old = random(SLOTS, 100)
    shuffled = clients.copy()
    random_.shuffle(shuffled)
    (a, _), (b, _) = merge(clients, old), merge(shuffled, old)
    for name, value in a.items():
        scale = max(float(c.state[n].abs().max()) for c in clients for n in c.state)
        torch.testing.assert_close(value, b[name], rtol=1e-6, atol=1e-6 * scale)


@given(clients)
def test_sums_of_few_transfers_give_the_same(clients: list[Update]):
    old = random(SLOTS, 100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("archgraph.states.merge.GROUPS", 1)
        a, _ = merge(clients, old)
    b, _ = merge(clients, old)
    for name, value in a.items():
        torch.testing.assert_close(value, b[name], rtol=1e-5, atol=1e-5)


@given(clients)
def test_what_no_client_covers_keeps_its_bits(clients: list[Update]):
    old = random(SLOTS, 100)
    old["conv.weight"].view(-1)[::3] = -0.0
    old["fc.weight"].view(-1)[::5] = math.nan
    new, coverage = merge(clients, old)
    for slot in (s for s in SLOTS if s.averaged):
        left = coverage[slot.name] == 0
        assert same_bits(new[slot.name][left], old[slot.name][left])
        assert new[slot.name][~left].isfinite().all()


def test_no_client_at_all_changes_nothing():
    old = random(SLOTS, 3)
    new, coverage = Merger(SLOTS, old).result()
    assert all(same_bits(new[name], old[name]) for name in old)
    assert not any(new[name].data_ptr() == old[name].data_ptr() for name in old)
    assert repr(coverage) == "Coverage(0 of 4 entries covered everywhere)"


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"folded"}))
def test_what_was_sent_and_not_trained_comes_back(kind):
    old, transfer = random(SLOTS, 3), KINDS[kind]
    new, _ = merge([Update(transfer, transfer.pull(old), weight) for weight in (3.0, 10.0)], old)
    for name, value in new.items():
        torch.testing.assert_close(value, old[name], rtol=1e-6, atol=0)


def test_coverage_is_in_the_weights_given():
    _, coverage = merge([client("full", 1, 20.0), client("window", 2, 5.0)])
    assert coverage["norm.mean"].tolist() == [20, 20, 25, 25, 25, 20]
    assert coverage["conv.weight"].shape == (6, 4, 3, 3)
    assert coverage["norm.steps"].item() == 0


def test_more_cells_than_are_worth_slicing():
    slots = (Slot("w", (300,), "float32"),)
    every = Transfer(
        slots,
        (Slot("w", (150,), "float32"),),
        {"w": Entry("w", (DimMap.of(range(0, 300, 2), 300),))},
    )
    updates = [Update(every, {"w": torch.full((150,), value)}) for value in (1.0, 2.0)]
    new, _ = merge(updates, multiply={"w": 2.0})
    assert new["w"][::2].tolist() == [3.0] * 150
    assert same_bits(new["w"][1::2], random(slots, 0)["w"][1::2])


@given(clients, st.integers(1, 80))
def test_a_sum_is_divided_by_its_coverage_wherever_there_is_any(clients: list[Update], bands: int):
    """By bands of rows or by a dense tensor, and what is not covered keeps the old value."""
    old = random(SLOTS, 100)
    _, coverage = merge(clients, old)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("archgraph.states.coverage.MAX_BANDS", bands)
        patch.setattr("archgraph.states.coverage.SMALL", bands % 2 * SMALL)
        _light_division.cache_clear()
        for name in ("conv.weight", "norm.mean", "fc.weight"):
            dense = coverage[name]
            division = coverage.division(name, torch.float64)
            quotient = torch.ones_like(old[name], dtype=torch.float64)
            for rows, divisor in division.bands:
                quotient[rows] /= divisor
            expected = torch.where(dense > 0, 1 / dense, 1.0)
            torch.testing.assert_close(quotient, expected, rtol=1e-15, atol=0)
            kept = torch.zeros_like(old[name], dtype=torch.bool)
            for box in division.uncovered:
                kept[box] = True
            if division.covered is not None:
                kept = ~division.covered
            assert torch.equal(kept, dense == 0)
            even = coverage.even(name)
            assert even is None or (dense == even).all()


# ------------------------------------------------------------------- what stays over rounds


def merged_bits(dtype: str, seed: int, *, wait: int = 0, rows: bool = False) -> Tensors:
    """Merge clients of all kinds, the same entries masked for some of them, from another state."""
    slots = tuple(s._replace(dtype=dtype) if s.averaged else s for s in SLOTS)
    low, updates = slots[0].torch_dtype, []
    for i, kind in enumerate(("full", *KINDS, *reversed(KINDS))):
        transfer, state, *_ = client(kind, seed + i)
        target = tuple(s._replace(dtype=dtype) if s.averaged else s for s in transfer.target)
        updates.append(
            Update(
                Transfer(slots, target, transfer.entries),
                {n: v.to(low) if v.is_floating_point() else v for n, v in state.items()},
                weight=(10, 30, 7)[i % 3],
                scales={"conv.weight": 0.5 + i} if i % 2 else {},
                rows={"fc.weight": torch.tensor([1, 0, 1, 0, 1])} if rows and i % 3 else {},
                unmerged=("norm.mean",) if i % 4 == 3 else (),
            )
        )
    return merge(updates, random(slots, seed), wait=wait)[0]


def forget() -> None:
    _plan.cache_clear()
    _light_division.cache_clear()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("rows", [False, True])
def test_plans_of_earlier_rounds_change_no_bit(dtype: str, rows: bool):
    """Of the same transfers, from other states and in other dtypes, and after they were evicted."""
    for seed in (1, 2):
        forget()
        anew = merged_bits(dtype, seed, rows=rows)
        merged_bits(dtype, seed + 5, rows=rows)
        merged_bits("float32", seed, rows=not rows)
        again = merged_bits(dtype, seed, rows=rows)
        for i in range(70):
            other = (Slot("w", (99,), "float32"),)
            map_ = DimMap.of(range(i, i + 9), 99)
            part = Transfer(other, (Slot("w", (9,), "float32"),), {"w": Entry("w", (map_,))})
            Merger(other, random(other, 0)).add(part, {"w": torch.ones(9)})
        assert _plan.cache_info().misses > 64
        evicted = merged_bits(dtype, seed, rows=rows)
        for name, value in anew.items():
            assert same_bits(value, again[name]) and same_bits(value, evicted[name]), name


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("rows", [False, True])
def test_updates_that_wait_change_no_bit(dtype: str, rows: bool):
    alone = merged_bits(dtype, 3, rows=rows)
    for wait in (1500, 2**30):
        together = merged_bits(dtype, 3, wait=wait, rows=rows)
        assert all(same_bits(value, together[name]) for name, value in alone.items())


# ------------------------------------------------------------------------------------ options


@given(st.sampled_from(sorted(KINDS)), st.integers(0, 99), st.floats(0.5, 50))
def test_what_makes_the_entries_may_be_said_beside_the_state(kind, seed, weight):
    """Entries made one at a time are added as those of a whole state are, bit for bit."""
    down = KINDS[kind]

    def spread(length: int, size: int, averaged: bool) -> DimMap | None:
        where = [i % length for i in range(size)]
        return DimMap.of(where, length, weights=[0.5] * size if averaged else None)

    entries = {
        slot.name: Entry(
            slot.name,
            tuple(
                spread(*lengths, slot.averaged)
                for lengths in zip(small.shape, slot.shape, strict=True)
            ),
        )
        for small, slot in zip(down.target, SLOTS, strict=True)
    }
    grow = Transfer(down.target, SLOTS, entries)
    states = [random(down.target, seed + i) for i in range(3)]
    results = []
    for through in (None, grow):
        merger = Merger(SLOTS, random(SLOTS, 100))
        add(merger, client("full", 7))
        for state in states:
            sent = state if through else grow.pull(state)
            merger.accumulate(Update(FULL, sent, weight, unmerged=["fc.weight"]), through=through)
        results.append(merger.result()[0])
    assert all(same_bits(results[0][name], results[1][name]) for name in results[0])


def test_what_makes_the_entries_ends_where_the_transfer_does():
    narrow = KINDS["prefix"]
    merger = Merger(SLOTS, random(SLOTS, 0))
    with pytest.raises(ArchGraphError, match=r"conv\.weight: `through` does not end at"):
        merger.accumulate(Update(FULL, random(SLOTS, 1)), through=narrow)
    assert merger.clients == 0


def test_two_entries_of_one_global_entry_add_up_in_their_order():
    slots = (Slot("w", (2,), "float32"),)
    twice = tuple(slot._replace(name=name) for slot in slots for name in ("a", "b"))
    both = Transfer(slots, twice, {name: Entry("w", (None,)) for name in ("a", "b")})
    values, total = [1e8, 1.0, -1e8, 3.0, 1e8, -1e8], torch.zeros(())
    for value in values:
        total += torch.tensor(value)
    updates = [
        Update(both, {"a": torch.full((2,), a), "b": torch.full((2,), b)})
        for a, b in zip(values[::2], values[1::2], strict=True)
    ]
    assert merge(updates)[0]["w"].tolist() == [float(total / 6)] * 2


def test_scales_count_in_the_numerator_alone():
    updates = [
        client("full", 1, 2.0, scales={"fc.weight": 0.25}),
        client("full", 2, 6.0, scales={"fc.weight": 0.5}),
    ]
    new, coverage = merge(updates, multiply={"fc.weight": 3.0, "norm.mean": 1.0})
    a, b = random(SLOTS, 1), random(SLOTS, 2)
    expected = 3 * (2 * 0.25 * a["fc.weight"] + 6 * 0.5 * b["fc.weight"]) / 8
    torch.testing.assert_close(new["fc.weight"], expected, rtol=1e-6, atol=1e-6)
    plain = (2 * a["norm.mean"] + 6 * b["norm.mean"]) / 8
    torch.testing.assert_close(new["norm.mean"], plain, rtol=1e-6, atol=1e-6)
    assert coverage["fc.weight"].unique().tolist() == [8]


@pytest.mark.parametrize("kind", ["full", "prefix", "scattered"])
def test_factors_of_one_change_no_bit(kind):
    ones = {s.name: 1.0 for s in SLOTS if s.averaged}
    options: list[dict[str, Any]] = [
        {}, {"scales": ones}, {"rows": {"fc.weight": torch.ones(5, dtype=torch.bool)}},
    ]  # fmt: skip
    plain, *others = (
        merge([client(kind, seed, 7.0, **o) for seed in range(3)], multiply=ones if o else None)[0]
        for o in options
    )
    assert all(torch.equal(plain[name], other[name]) for other in others for name in plain)


@pytest.mark.parametrize("kind", ["full", "prefix", "scattered"])
def test_rows_come_only_from_those_who_give_them(kind):
    old, given_rows = random(SLOTS, 0), {1: [1, 1, 0, 0, 0], 2: [0, 1, 0, 1, 0]}
    updates = [
        client(kind, seed, 2.0, rows={"fc.weight": torch.tensor(rows)})
        for seed, rows in given_rows.items()
    ]
    new, coverage = merge(updates)
    sent = KINDS[kind].pull(new)["fc.weight"]
    a, b = (update.state["fc.weight"] for update in updates)
    expected = [a[0], (a[1] + b[1]) / 2, None, b[3], None]
    for row, value in enumerate(expected):
        if value is None:
            assert same_bits(new["fc.weight"][row], old["fc.weight"][row])
        else:
            torch.testing.assert_close(sent[row], value, rtol=1e-6, atol=1e-6)
    assert coverage["fc.weight"].amax(1).tolist() == [2, 4, 0, 2, 0]


def test_rows_of_some_and_whole_entries_of_others_mix():
    first = client("full", 1, rows={"fc.weight": torch.tensor([1, 0, 0, 0, 0])})
    new, coverage = merge([first, client("full", 2, 3.0)])
    a, b = random(SLOTS, 1)["fc.weight"], random(SLOTS, 2)["fc.weight"]
    torch.testing.assert_close(new["fc.weight"][0], (a[0] + 3 * b[0]) / 4, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(new["fc.weight"][1:], b[1:], rtol=1e-6, atol=1e-6)
    assert coverage["fc.weight"][:, 0].tolist() == [4, 3, 3, 3, 3]


def test_skipped_entries_are_not_given():
    first = client("full", 1, unmerged={"norm.mean", "norm.steps"})
    new, _ = merge([first, client("full", 9, unmerged={"norm.steps"})])
    assert torch.equal(new["norm.mean"], random(SLOTS, 9)["norm.mean"])
    assert new["norm.steps"] == 0


def test_skipped_entries_may_be_missing():
    """What a client keeps to itself is left out as if it had sent it and it were skipped."""
    private = {"norm.mean", "norm.steps"}
    old, results = random(SLOTS, 0), []
    clients = [
        client(kind, seed, 3.0, unmerged=private)
        for kind, seed in (("prefix", 1), ("scattered", 2))
    ]
    for sent in (SLOTS, [slot for slot in SLOTS if slot.name not in private]):
        given = [c._replace(state={s.name: c.state[s.name] for s in sent}) for c in clients]
        results.append(merge(given, old)[0])
    whole, part = results
    assert all(torch.equal(part[name], whole[name]) for name in old)
    assert all(torch.equal(part[name], old[name]) for name in private)
    with pytest.raises(RejectedUpdate, match=r"norm.mean: missing entry"):
        add(Merger(SLOTS, old), given[-1]._replace(unmerged={"norm.steps"}))


def test_integers_take_the_maximum_of_those_who_have_them():
    counts = (Slot("n", (4,), "int64", "buffer"), Slot("flag", (2,), "bool", "buffer"))
    some = Transfer(
        counts, (Slot("n", (3,), "int64", "buffer"),), {"n": Entry("n", (DimMap.of([2, 0, 2], 4),))}
    )
    old = {"n": torch.tensor([50, 60, 70, 80]), "flag": torch.tensor([True, False])}
    sent = [Update(some, {"n": torch.tensor(n)}) for n in ([5, -3, 7], [9, -4, 1], [5, 6, 70])]
    new, _ = merge(sent[:2], old)
    assert new["n"].tolist() == [-3, 60, 9, 80]
    assert new["flag"].tolist() == [True, False]
    every = Update(Transfer.identity(counts), {**old, "n": torch.tensor([1, 2, 3, 4])})
    assert merge([sent[2], every], old)[0]["n"].tolist() == [6, 2, 70, 4]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_summed_in_single(dtype):
    slots = (Slot("w", (3,), dtype), Slot("v", (3,), dtype))
    one = Transfer(slots, slots[:1], {"w": Entry("w", (None,))})
    new, _ = merge([Update(one, {"w": torch.ones(3, dtype=slots[0].torch_dtype)})] * 3000)
    assert new["w"].tolist() == [1, 1, 1]
    assert new["w"].dtype == slots[0].torch_dtype
    assert torch.equal(new["v"], random(slots, 0)["v"])


def test_sums_can_be_kept_in_double():
    new, _ = merge([alone(value) for value in (1e8, 1.0, -1e8)], dtype=torch.float64)
    assert new["w"].dtype == torch.float32
    assert new["w"].item() == pytest.approx(1 / 3, rel=1e-6)


def test_the_updates_stay_as_they_are():
    old, update = random(SLOTS, 0), random(SLOTS, 1)
    copies = {k: v.clone() for k, v in update.items()}
    merge([Update(FULL, update, weight) for weight in (1.0, 4.0)], old)
    assert all(torch.equal(update[k], copies[k]) for k in update)
    assert all(torch.equal(old[k], random(SLOTS, 0)[k]) for k in old)


# ------------------------------------------------------------------- sums that stay in range


WIDE = st.floats(2.0**-39, 2.0**39)


@pytest.mark.parametrize("kind", ["full", "window", "scattered"])
@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (1.0, 1e6, 3e9)])
def test_sums_of_the_largest_values_do_not_overflow(kind, weights):
    """Values just below the bound have a mean, with whatever transfer."""
    values = (1.2e24, -1.1e24, 1e23)
    updates = [client(kind, 1, weight) for weight in weights]
    for update, value in zip(updates, values, strict=True):
        update.state["norm.mean"].fill_(value)
    sent = KINDS[kind].pull(merge(updates)[0])["norm.mean"]
    mean = sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
    torch.testing.assert_close(sent, torch.full_like(sent, mean), rtol=1e-5, atol=1e18)


@pytest.mark.parametrize("kind", ["full", "window", "scattered"])
@pytest.mark.parametrize("heavy", [2.0**39, 2.0**41, 2.0**60])
def test_the_mean_is_that_of_the_heavy_weights(kind, heavy):
    light = [client(kind, 0), client("full", 7, 0.5)]
    a, b = (client(kind, i, i * heavy) for i in (1, 3))
    sent = KINDS[kind].pull(merge([*light, a, b])[0])
    for name in ("conv.weight", "norm.mean", "fc.weight"):
        mean = (a.state[name].double() + 3 * b.state[name].double()) / 4
        torch.testing.assert_close(sent[name], mean.float(), rtol=1e-5, atol=1e-6)
    assert sent["conv.weight"].dtype == torch.float32


@pytest.mark.parametrize("value", [1.21e24, -3e38])
def test_values_that_no_sum_holds_are_refused_by_name(value):
    update = alone(1.0, value)
    merger = Merger(update.transfer.source, {"w": torch.zeros(2)})
    with pytest.raises(RejectedUpdate, match="w: too large to be averaged; found a value of"):
        add(merger, update)
    assert merger.clients == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steep_scales_and_heavy_weights_together_never_overflow_unseen(dtype):
    """Each below its bound: the sum leaves float32 only because the weights add up."""
    values = [(-1) ** (n // 16) * 2.0**79 for n in range(24)]
    kinds: list[dict[str, Any]] = [{}, {"weight": 2.0**25, "scales": {"w": 2.0**20}}]
    updates = [alone(value)._replace(**kind) for value in values for kind in kinds]
    if dtype == torch.float32:
        with pytest.raises(ArchGraphError, match="w: the mean is not finite"):
            merge(updates)
        return
    new, _ = merge(updates, dtype=dtype)
    mean = sum(values) / len(values) * 2.0**20
    assert new["w"].item() == pytest.approx(mean, rel=1e-5)


def test_a_steep_scale_does_not_overflow():
    """FedFA divides by a size and multiplies with the mean size."""
    steep = alone(3e12, -2e12)._replace(scales={"w": 1e24})
    new, _ = merge([steep] * 2, multiply={"w": 1e-24})
    torch.testing.assert_close(new["w"], torch.tensor([3e12, -2e12]), rtol=1e-5, atol=0)


@given(st.lists(st.tuples(st.floats(-1e3, 1e3, width=32), WIDE), min_size=1, max_size=6))
def test_weights_of_any_size_give_the_weighted_mean(pairs):
    new, coverage = merge(alone(value)._replace(weight=weight) for value, weight in pairs)
    total = sum(Fraction(weight) for _, weight in pairs)
    mean = float(sum(Fraction(value) * Fraction(weight) for value, weight in pairs) / total)
    largest = max(abs(value) for value, _ in pairs)
    assert abs(new["w"].item() - mean) <= 1e-6 * largest + 1e-43
    assert coverage["w"].item() == pytest.approx(float(total), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_weight_that_vanishes_beside_the_first_one_is_refused(dtype):
    light, heavy = client("full", 2, 1e-13), client("window", 1, 1e12)
    if dtype == torch.float32:
        with pytest.raises(ArchGraphError, match="it vanishes next to the first; found"):
            merge([heavy, light])
        # Twenty of them would add up to more than float32 holds, and every mean to zero.
        with pytest.raises(ArchGraphError, match="the first one vanishes; found"):
            merge([light, heavy])
        return
    new, _ = merge([heavy, light], dtype=dtype)
    assert torch.equal(new["fc.weight"][:, :2], light.state["fc.weight"][:, :2])


@pytest.mark.parametrize("weights", [(1e-11, 1e11), (1e11, 1e-11)])
@pytest.mark.parametrize("kind", ["window", "scattered"])
def test_a_light_client_decides_where_it_is_alone(weights, kind):
    pair = [client("full" if weight < 1 else kind, 1, weight) for weight in weights]
    light, heavy = sorted(pair, key=lambda update: update.weight)
    new, coverage = merge(pair)
    sent = KINDS[kind].pull(new)["norm.mean"]
    torch.testing.assert_close(sent, heavy.state["norm.mean"], rtol=1e-6, atol=0)
    apart = coverage["norm.mean"] < heavy.weight / 2
    assert apart.any()
    lone = light.state["norm.mean"][apart]
    torch.testing.assert_close(new["norm.mean"][apart], lone, rtol=1e-6, atol=0)


def test_many_light_weights_do_not_grow_without_bound():
    """A first client with one example, and others with many."""
    new, coverage = merge(alone(1e24)._replace(weight=w) for w in (1e-3, *[1e6] * 200))
    assert new["w"].item() == pytest.approx(1e24, rel=3e-6)
    assert coverage["w"].item() == pytest.approx(2e8)


@pytest.mark.parametrize("kind", ["full", "prefix", "window"])
@given(
    st.floats(-(2.0**79), 2.0**79, width=32),
    st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=12),
)
def test_the_mean_of_equal_updates_is_that_update(kind, value, weights):
    update = client(kind, 1)
    update.state["norm.mean"].fill_(value)
    sent = KINDS[kind].pull(merge(update._replace(weight=weight) for weight in weights)[0])
    for name in sent:
        torch.testing.assert_close(sent[name], update.state[name], rtol=2e-6, atol=1e-36)


@given(st.integers(1, 4), st.integers(1, 4), st.sampled_from(["full", "prefix", "scattered"]))
def test_equal_updates_before_and_after_another_count_each(before, after, kind):
    old, same, other = random(SLOTS, 0), client("full", 1, 3.0), client(kind, 2, 3.0)
    found, _ = merge([same] * before + [other] + [same] * after, old)
    expected = reference([same] * before + [other] + [same] * after, old)
    for slot in SLOTS:
        if slot.averaged:
            torch.testing.assert_close(found[slot.name], expected[slot.name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("heavy", [2.0**20, 2.0**30, 2.0**50])
def test_rows_keep_their_weight_beside_a_heavy_client(heavy):
    first = client("full", 1, rows={"fc.weight": torch.tensor([1, 0, 1, 0, 1])})
    second = client("full", 2, heavy)
    found, coverage = merge([first, second])
    whole = torch.tensor([1.0, 0, 1, 0, 1], dtype=torch.float64) + heavy
    assert torch.allclose(coverage["fc.weight"], whole[:, None].expand(5, 6), rtol=1e-12)
    mean = (first.state["fc.weight"].double() * (whole - heavy)[:, None]) / whole[:, None]
    mean += second.state["fc.weight"].double() * (heavy / whole)[:, None]
    torch.testing.assert_close(found["fc.weight"], mean.float(), rtol=1e-5, atol=1e-6)


def test_what_a_client_makes_up_is_not_merged():
    """An entry without a source has no place in the global state."""
    own = Slot("own", (2,), "float32")
    made = Entry(None, (None,), init=Initial("constant", (("val", 0.5),), (2,), "own"))
    more = Transfer(SLOTS, (*SLOTS, own), {**FULL.entries, "own": made})
    found, _ = merge([Update(more, {**random(SLOTS, 1), "own": torch.ones(2)})])
    assert found.keys() == random(SLOTS, 0).keys()


def test_rows_may_have_any_dtype():
    """They are 0 or 1, so no bit depends on it."""
    found = []
    for dtype in (torch.bool, torch.uint8, torch.float32, torch.float64):
        rows = {"fc.weight": torch.tensor([1, 0, 1, 0, 1]).to(dtype)}
        merged, _ = merge(client("full", seed, seed / 3, rows=rows) for seed in (1, 2, 3))
        found.append(merged["fc.weight"])
    assert all(torch.equal(value, found[0]) for value in found)


def test_equal_updates_with_other_scales_or_rows_are_not_one_value():
    one, state = client("full", 1), random(SLOTS, 1)
    rows = {"fc.weight": torch.tensor([1, 0, 0, 0, 0])}
    new, _ = merge([one, one._replace(scales={"norm.mean": 3.0}), one._replace(rows=rows)])
    torch.testing.assert_close(new["norm.mean"], state["norm.mean"] * 5 / 3)
    torch.testing.assert_close(new["fc.weight"], state["fc.weight"])


@given(clients, st.randoms(use_true_random=False))
def test_in_double_the_order_changes_one_rounding(clients: list[Update], random_):
    old = random(SLOTS, 100)
    shuffled = clients.copy()
    random_.shuffle(shuffled)
    a, b = (merge(each, old, dtype=torch.float64)[0] for each in (clients, shuffled))
    for name, value in a.items():
        if value.is_floating_point():
            torch.testing.assert_close(value, b[name], rtol=2**-23, atol=1e-12)


# ----------------------------------------------------------------------------------- refusals


def broken(change: str) -> Tensors:
    state = random(SLOTS, 5)
    conv = state["conv.weight"]
    match change:
        case "nan":
            conv[3, 1, 0, 2] = math.nan
        case "infinite":
            conv[0, 0, 0, 0], conv[1, 1, 1, 1] = math.inf, -math.inf
        case "missing":
            del state["conv.weight"]
        case "further":
            state["conv.bias"] = torch.zeros(6)
        case "shape":
            state["conv.weight"] = conv[:, :, :1]
        case "dtype":
            state["conv.weight"] = conv.half()
        case "array":
            state["conv.weight"] = conv.numpy()  # type: ignore[assignment]
        case "sparse":
            state["conv.weight"] = conv.to_sparse()
        case "meta":
            state["conv.weight"] = conv.to("meta")
        case "quantized":
            with warnings.catch_warnings():  # it is on its way out of torch
                warnings.simplefilter("ignore")
                state["conv.weight"] = torch.quantize_per_tensor(conv, 0.1, 0, torch.qint8)
    return state


FAULTS = {
    "nan": "conv.weight: not finite; found 1 NaN and 0 infinite of 216 values$",
    "infinite": "conv.weight: not finite; found 0 NaN and 2 infinite of 216 values",
    "missing": r"conv.weight: missing entry; expected conv.weight: float32\[6, 4, 3, 3\]",
    "further": "conv.bias: unknown entry",
    "shape": r"conv.weight: wrong shape; found \[6, 4, 1, 3\]; expected \[6, 4, 3, 3\]",
    "dtype": "conv.weight: wrong dtype; found float16; expected float32",
    "array": "conv.weight: not a dense tensor; found ndarray",
    "sparse": "conv.weight: not a dense tensor; found torch.sparse_coo tensor on cpu",
    "meta": "conv.weight: not a dense tensor; found torch.strided tensor on meta",
    "quantized": "conv.weight: not a dense tensor; found quantized tensor",
}
OPTIONS: dict[str, dict[str, Any]] = {
    r"weight is not between 2\*\*-80 and 2\*\*80; found 0": {"weight": 0},
    r"weight is not between 2\*\*-80 and 2\*\*80; found nan": {"weight": math.nan},
    r"weight is not between 2\*\*-80 and 2\*\*80; found -1": {"weight": -1.0},
    r"weight is not between 2\*\*-80 and 2\*\*80; found 3": {"weight": "3"},
    r"weight is not between 2\*\*-80 and 2\*\*80; found 1000": {"weight": 10**400},
    r"weight is not between 2\*\*-80 and 2\*\*80; found tensor": {"weight": torch.ones(2)},
    r"fc.weight: scale is not a number below 2\*\*80": {"scales": {"fc.weight": None}},
    r"fc.weight: scale is not a number below 2\*\*80; found inf": {
        "scales": {"fc.weight": math.inf}
    },
    r"fc.weight: scale is not a number below 2\*\*80; found 1e[+]25": {
        "scales": {"fc.weight": 1e25}
    },
    r"weight is not between 2\*\*-80 and 2\*\*80; found 1e[+]25": {"weight": 1e25},
    r"weight is not between 2\*\*-80 and 2\*\*80; found 1e-25": {"weight": 1e-25},
    "fc: scale of an unknown entry": {"scales": {"fc": 1.0}},
    "fc: row mask of an unknown entry": {"rows": {"fc": torch.ones(5)}},
    "fc: unmerged of an unknown entry": {"unmerged": ["fc"]},
    r"fc.weight: row mask has the wrong length; found \[4\]; expected \[5\]": {
        "rows": {"fc.weight": torch.ones(4)}
    },
    "fc.weight: row mask is not a dense tensor; found list": {"rows": {"fc.weight": [1] * 5}},
    "fc.weight: row mask is not a dense tensor; found torch.sparse_coo": {
        "rows": {"fc.weight": torch.ones(5).to_sparse()}
    },
    "norm.steps: row mask has the wrong length": {"rows": {"norm.steps": torch.ones(())}},
    "fc.weight: row mask has values other": {"rows": {"fc.weight": torch.full((5,), 0.5)}},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_update_is_refused_by_name(fault):
    with pytest.raises(RejectedUpdate, match=FAULTS[fault]):
        check_update(SLOTS, broken(fault))


@pytest.mark.parametrize("when", ["first", "later"])
@pytest.mark.parametrize("fault", [*FAULTS, *OPTIONS])
def test_a_refused_update_leaves_no_trace(fault, when):
    old = random(SLOTS, 0)
    good = [client("full", 1, 3.0), client("prefix", 2, 5.0), client("scattered", 3, 2.0)]
    merger = Merger(SLOTS, old)
    for index, one in enumerate(good):
        if index == (0 if when == "first" else 2):
            with pytest.raises(RejectedUpdate, match=FAULTS.get(fault, fault)):
                merger.add(FULL, broken(fault), **OPTIONS.get(fault, {}))
        add(merger, one)
    new, coverage = merger.result()
    assert merger.clients == 3
    state, covered = merge(good, old)
    assert all(same_bits(new[name], state[name]) for name in old)
    assert all(torch.equal(coverage[name], covered[name]) for name in old)


@pytest.mark.parametrize("update", [None, [], "conv.weight", torch.ones(2), 3])
def test_what_is_not_a_state_is_refused(update):
    for optional in ((), {"conv.weight"}):
        with pytest.raises(RejectedUpdate, match=r"not a mapping of names to tensors; found"):
            check_update(SLOTS, update, optional=optional)


def test_names_that_are_not_text_are_unknown_entries():
    with pytest.raises(RejectedUpdate, match="unknown entry; found 3 more"):
        check_update(SLOTS, {**random(SLOTS, 0), 3: 1, None: 2, ("x",): 3})  # type: ignore[dict-item]


def test_the_form_alone_may_be_checked():
    check_update(SLOTS, broken("nan"), finite=False)
    with pytest.raises(RejectedUpdate, match="wrong shape"):
        check_update(SLOTS, broken("shape"), finite=False)


def test_values_whose_norm_overflows_are_finite():
    check_update((Slot("w", (4,), "float32"),), {"w": torch.full((4,), 1.2e24)})
    check_update((Slot("w", (4,), "float16"),), {"w": torch.full((4,), 6e4).half()})


def test_a_foreign_transfer_is_refused():
    merger = Merger(SLOTS, random(SLOTS, 0))
    other = Transfer.identity(SLOTS[:1])
    with pytest.raises(ArchGraphError, match="does not start at the merger's graph"):
        merger.add(other, random(SLOTS[:1], 1))
    with pytest.raises(RejectedUpdate, match=r"fc.weight: missing entry"):
        Merger(SLOTS, random(SLOTS[:3], 0))


def test_the_result_is_taken_once():
    merger = Merger(SLOTS, random(SLOTS, 0))
    with pytest.raises(ArchGraphError, match="fc: factor of an unknown entry"):
        merger.result({"fc": 1.0})
    merger.result()
    with pytest.raises(ArchGraphError, match="already returned; create a new Merger"):
        merger.result()
    with pytest.raises(ArchGraphError, match="already returned"):
        add(merger, client("full", 1))


# ------------------------------------------------------------------------------------- memory


@pytest.mark.full
@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_updates():
    def peak(clients: int) -> tuple[float, float]:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.bench_transfer", "--memory", str(clients)],
            check=True,
            capture_output=True,
            text=True,
            cwd=Path(__file__).resolve().parents[2],
        )
        states, architectures = map(float, done.stdout.split())
        return states, architectures

    few, architectures = peak(10)
    many, _ = peak(100)
    # The old state is there before; the new one, the sums and the one update in hand come on top.
    assert 0.9 < few < 1 + architectures + 0.2
    assert many < few + 0.1


def test_sums_of_no_more_transfers_than_allowed_are_kept(monkeypatch):
    monkeypatch.setattr("archgraph.states.merge.GROUPS", 2)
    every = [select(SLOTS, out=DimMap.of([i, (i + 1) % 6, (i + 3) % 6], 6)) for i in range(6)]
    merger = Merger(SLOTS, random(SLOTS, 0))
    for seed, transfer in enumerate(every * 2):
        merger.add(transfer, random(transfer.target, seed))
    groups = merger._groups.values()
    pending = [any(g.sums[i] is not None for i in g.plan.apart) for g in groups]
    assert pending == [False] * 4 + [True] * 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second device")
def test_updates_may_come_from_another_device():
    update = random(SLOTS, 1)
    new, _ = merge([Update(FULL, {name: value.cuda() for name, value in update.items()})])
    assert all(torch.equal(new[s.name], update[s.name]) for s in SLOTS if s.averaged)


def test_bytes_kept_do_not_depend_on_the_number_of_clients():
    def kept(count: int) -> int:
        merger = Merger(SLOTS, random(SLOTS, 0))
        for seed in range(count):
            add(merger, client(("full", "prefix", "scattered")[seed % 3], seed))
        sums = sum(v.nbytes for v in merger._sums.values())
        pairs = [
            pair
            for group in merger._groups.values()
            for pair in zip(group.plan.lanes, group.sums, strict=True)
        ]
        return sums + sum(x.nbytes for lane, x in pairs if lane.view is None and x is not None)

    size = sum(int(np.prod(s.shape)) * 4 for s in SLOTS)
    assert kept(6) == kept(60) < 2 * size


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("size", [1.0, 2.0**70])
def test_a_factor_that_overflows_is_an_error_by_name(dtype: str, size: float):
    size = min(size, 2.0**15) if dtype == "float16" else size
    updates = [alone(size * part, size * part, dtype=dtype) for part in (1.0, 0.5)]
    with pytest.raises(ArchGraphError, match=r"w: the mean is not finite; found factor 1e\+39"):
        merge(updates, multiply={"w": 1e39})


def test_a_scale_that_leaves_half_precision_is_refused() -> None:
    with pytest.raises(ArchGraphError, match="w: the mean is not finite"):
        merge([alone(1e3, 1e3, dtype="float16")._replace(scales={"w": 1e3})])


EIGHT_BITS = [f"float8_{kind}" for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")]


@pytest.mark.parametrize("kind", EIGHT_BITS)
@pytest.mark.parametrize("wait", [0, 10**9])
def test_eight_bits_are_summed_in_single(kind, wait):
    """What no client changed keeps its bits, whatever the weights and parts; else it is a mean."""
    slots: Signature = (Slot("w", (6, 2), kind), Slot("b", (6,), kind, "buffer"))
    old = {s.name: (torch.arange(math.prod(s.shape)) % 5 - 2.0).exp2() for s in slots}
    state = {s.name: old[s.name].view(s.shape).to(s.torch_dtype) for s in slots}
    parts = [
        Transfer(
            slots,
            tuple(s._replace(shape=(len(rows), *s.shape[1:])) for s in slots),
            {
                s.name: Entry(s.name, (DimMap.of(rows, 6), *[None] * (len(s.shape) - 1)))
                for s in slots
            },
        )
        for rows in ([0, 1, 2], [1, 3, 4], range(6))
    ]
    weights = zip([*parts, parts[-1]], (3.7, 0.3, 11.0, 1e-3), strict=True)
    merged, _ = merge([Update(p, p.pull(state), weight) for p, weight in weights], state, wait=wait)
    for name, value in state.items():
        assert torch.equal(merged[name].view(torch.uint8), value.view(torch.uint8)), name
    changed = {k: (v.float() * 4).to(v.dtype) for k, v in state.items()}
    merged, _ = merge([Update(parts[-1], state, 2.0), Update(parts[-1], changed)], state)
    for name, value in state.items():
        assert torch.equal(merged[name].float(), (2 * value.float()).to(value.dtype).float())
    broken = {**state, "b": torch.full((6,), math.nan).to(state["b"].dtype)}
    with pytest.raises(RejectedUpdate, match="b: not finite"):
        Merger(slots, state).add(parts[-1], broken)
