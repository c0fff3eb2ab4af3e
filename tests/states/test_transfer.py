"""Transfers in closed form: pulling, initialisers, descriptions, refusals."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
import torch

from archgraph.errors import RewriteError
from archgraph.graph.ir import ArchGraph, Constant, Param, TensorType, Value
from archgraph.states import (
    DimMap,
    Entry,
    Rewritten,
    Slot,
    Transfer,
    signature,
)
from archgraph.states.coverage import Coverage, Term
from archgraph.states.entry import INITIALISERS
from archgraph.states.state import accumulator


def graph(**shapes: tuple[int, ...]) -> ArchGraph:
    params = tuple(Param(k, TensorType(v, "float32")) for k, v in shapes.items())
    return ArchGraph(inputs=(), params=params, nodes=(), outputs=())


def transfer(source: Slot, target: Slot, *dims: DimMap | None, scale: float = 1.0) -> Transfer:
    return Transfer((source,), (target,), {target.name: Entry(source.name, dims, scale)})


W = Slot("w", (4, 3), "float32")


# ------------------------------------------------------------------------------------- pulling


def test_pulling_by_slices_makes_no_index(monkeypatch):
    half = transfer(W, Slot("w", (2, 2), "float32"), DimMap.of([0, 1], 4), DimMap.of([1, 2], 3))
    monkeypatch.setattr(DimMap, "gather", None)
    monkeypatch.setattr(DimMap, "_tensor", None)
    state = {"w": torch.arange(12.0).view(4, 3)}
    assert half.pull(state)["w"].tolist() == [[1, 2], [4, 5]]


def test_entries_stand_in_the_target_s_order_and_share_equal_maps():
    slots = tuple(Slot(name, (4,), "float32") for name in "ab")
    target = tuple(Slot(name, (2,), "float32") for name in "ab")
    maps = {name: (DimMap.of([0, 1], 4),) for name in "ba"}
    made = Transfer(slots, target, {name: Entry(name, dims) for name, dims in maps.items()})
    assert list(made.entries) == ["a", "b"]
    assert made.entries["a"].dims is made.entries["b"].dims


def test_channels_last_becomes_contiguous():
    slot = Slot("w", (4, 3, 2, 2), "float32")
    x = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    x = x.to(memory_format=torch.channels_last)
    for map_ in (None, DimMap.of([0, 1], 4), DimMap.of([3, 0, 1], 4)):
        new = slot._replace(shape=(4 if map_ is None else map_.length, 3, 2, 2))
        assert transfer(slot, new, map_, None, None, None).pull({"w": x})["w"].is_contiguous()


def test_a_state_in_another_precision_keeps_it():
    half = transfer(W, W._replace(shape=(2, 3)), DimMap.of([0, 1], 4), None)
    state = {"w": torch.ones(4, 3, dtype=torch.float64)}
    assert half.pull(state)["w"].dtype == torch.float64
    narrow = transfer(W, W._replace(dtype="float16"), None, None)
    assert narrow.pull({"w": torch.ones(4, 3)})["w"].dtype == torch.float16


def test_half_precision_is_pushed_in_single():
    slot = Slot("w", (1,), "float16")
    copies = transfer(slot, slot._replace(shape=(4096,)), DimMap.of([0] * 4096, 1))
    numerator, coverage = copies.push({"w": torch.ones(4096, dtype=torch.float16)})
    assert numerator["w"].item() == coverage["w"].item() == 4096
    assert numerator["w"].dtype == torch.float32 == accumulator(torch.float16)


# -------------------------------------------------------------------------------- initialising


def test_every_initialiser_fills_its_entry():
    args: dict[str, dict[str, Value | Constant]] = {
        "constant": {"val": 2.0},
        "value": {"value": Constant("float32", (6, 6), np.ones(36, "<f4").tobytes())},
    }
    for name in sorted(INITIALISERS):
        slot = Slot("w", (6, 6, 3) if name == "dirac" else (6, 6), "float32")
        made = Entry.initialised(slot, name, **args.get(name, {})).pull(None)
        assert made.shape == slot.shape
        assert made.isfinite().all()
        assert name == "zeros" or made.any()
    with pytest.raises(RewriteError, match="unknown initialiser; found kaiming; expected cons"):
        Entry.initialised(W, "kaiming")


def test_initial_values_depend_on_seed_and_entry_alone():
    names = ("a", "b", "c")
    slots = tuple(Slot(n, (5, 5), "float32") for n in names)
    entries = {s.name: Entry.initialised(s, "kaiming_uniform", a=5**0.5) for s in slots}
    fresh = Transfer((), slots, entries)
    state = fresh.pull({}, seed=3)
    assert not torch.equal(state["a"], state["b"])
    assert not torch.equal(state["a"], fresh.pull({}, seed=4)["a"])
    alone = Transfer((), slots[1:], {n: entries[n] for n in names[1:]})
    assert torch.equal(alone.pull({}, seed=3)["b"], state["b"])
    drawn = [fresh.pull({}, seed=torch.Generator().manual_seed(9))["a"] for _ in range(2)]
    assert torch.equal(*drawn)


def test_what_is_initialised_can_be_narrowed_afterwards():
    fresh = Transfer((), (W,), {"w": Entry.initialised(W, "normal")})
    half = transfer(W, W._replace(shape=(2, 3)), DimMap.of([0, 1], 4), None)
    assert torch.equal((fresh >> half).pull({})["w"], fresh.pull({})["w"][:2])


# -------------------------------------------------------------------------- values and refusals


def test_description():
    small, bias = W._replace(shape=(2, 3)), Slot("b", (4,), "float32")
    new = Slot("new", (2,), "float32")
    entries = {
        "w": Entry("w", (DimMap.of([0, 1], 4), None), 0.5),
        "new": Entry.initialised(new, "uniform", a=-1.0, b=1.0),
        "same": Entry("same", (None,)),
    }
    same = Slot("same", (4,), "float32")
    text = Transfer((W, bias, same), (small, new, same), entries).describe()
    assert text.splitlines() == [
        "2 of 3 entries taken, 1 initialised; 20 → 12 values",
        "w: float32[2, 3] = 0.5 · w[:2, :]",
        "new: float32[2] = uniform(a=-1.0, b=1.0)",
        "unchanged: 1 entries",
        "dropped: b: float32[4]",
    ]


def test_digest_sees_every_part():
    base = transfer(W, W, None, None)
    others = [
        transfer(W, W, None, None, scale=2.0),
        transfer(W, W, DimMap.of([0, 1, 3, 2], 4), None),
        transfer(W, W._replace(dtype="float64"), None, None),
        transfer(W, W._replace(role="buffer"), None, None),
        transfer(W, W, DimMap.of([0, 1, 2, 3], 4, weights=[1, 1, 1, 2]), None),
    ]
    assert len({base.digest, *(t.digest for t in others)}) == len(others) + 1
    assert base == Transfer.identity((W,))
    assert base != "something else"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (Entry("v", (None, None)), "w: no such source entry; found v"),
        (Entry("w", (None,)), "w: maps do not fit the shapes"),
        (Entry("w", (DimMap.of([0], 4), None)), r"w: maps do not fit .* expected \(4, 3\)"),
        (Entry("w", (DimMap.of([0, 1, 2, 0], 3), None)), "w: maps do not fit the shapes"),
    ],
)
def test_entries_that_do_not_fit_are_refused(entry, message):
    with pytest.raises(RewriteError, match=message):
        Transfer((W,), (W,), {"w": entry})


def test_an_entry_needs_one_origin():
    with pytest.raises(RewriteError, match="either a source or an initialiser"):
        Entry(None, (None,))
    with pytest.raises(RewriteError, match=r"entries and target differ; found \['v', 'w'\]"):
        Transfer((W,), (W,), {"v": Entry("w", (None, None))})


def test_integers_are_only_selected():
    count = Slot("n", (4,), "int64", "buffer")
    state = {"n": torch.arange(4)}
    assert transfer(count, count, DimMap.of([3, 1, 2, 0], 4)).pull(state)["n"].tolist() == [
        *(3, 1, 2, 0)
    ]
    numerator, _ = transfer(count, count._replace(shape=(1,)), DimMap.of([2], 4)).push(
        {"n": torch.tensor([5])}
    )
    assert numerator["n"].tolist() == [0, 0, 5, 0]
    with pytest.raises(RewriteError, match="n: integers and bools can only be selected"):
        transfer(count, count, None, scale=2.0)


def test_states_that_do_not_fit_are_refused():
    same = Transfer.identity((W,))
    with pytest.raises(RewriteError, match=r"w: the state lacks an entry; expected \[4, 3\]"):
        same.pull({})
    with pytest.raises(RewriteError, match=r"w: the state does not fit .* found \[3, 4\]; exp"):
        same.push({"w": torch.ones(3, 4)})


def test_rewrites_chain():
    old, new = graph(w=(4, 3)), graph(w=(2, 3))

    def half(source: ArchGraph) -> Rewritten:
        dims = (DimMap.of(range(2), source.params[0].shape[0]), None)
        entries = {"w": Entry("w", dims)}
        return Rewritten(new, Transfer(signature(source), signature(new), entries))

    small, map_ = Rewritten.identity(old) >> half
    assert (small, map_) == (new, half(old).transfer)
    assert Rewritten.identity(old) >> half(old) == half(old)
    with pytest.raises(
        RewriteError,
        match=r"w: target of the first transfer is not .*; found w: float32\[2, 3\]",
    ):
        half(old) >> half(old)
    with pytest.raises(RewriteError, match="w: the transfer does not end at the graph"):
        Rewritten(old, map_)
    with pytest.raises(dataclasses.FrozenInstanceError):
        half(old).graph = old  # type: ignore[misc]


def test_a_signature_leaves_constants_out():
    table = Param("t", TensorType((2,), "int64"), "constant", value=Constant("int64", (2,), b""))
    slots = signature(
        dataclasses.replace(
            graph(w=(4, 3)), params=(Param("w", TensorType((4, 3), "float32")), table)
        )
    )
    assert slots == (W,)


def test_values_show_themselves_on_one_line():
    """In a shell a transfer of any size is one line, in a notebook a table of what changed."""
    names = [f"layer{i}.weight" for i in range(60)]
    wide = tuple(Slot(name, (64, 64), "float32") for name in names)
    narrow = tuple(slot._replace(shape=(32, 64)) for slot in wide)
    odd = DimMap.of(np.random.default_rng(0).permutation(64)[:32], 64)
    half = Transfer(wide, narrow, {name: Entry(name, (odd, None)) for name in names})
    for value in (half, odd, half.entries[names[0]]):
        assert "\n" not in repr(value) and len(repr(value)) < 120
    assert repr(half).startswith("<Transfer 60 of 60 entries taken, 0 initialised; 245,760 →")
    page = half._repr_html_()
    assert page.count("<tr") == 41 and "and 20 more" in page
    old = graph(a=(3,))
    assert repr(Rewritten.identity(old)).startswith("<Rewritten graph: 0 operators, 1 leaves; 1 of")


def test_a_transfer_travels_without_what_it_computed():
    half = transfer(W, W._replace(shape=(2, 3)), DimMap.of([3, 0], 4), None)
    state = {"w": torch.arange(12.0).view(4, 3)}
    half.push(half.pull(state))
    again = pickle.loads(pickle.dumps(half))
    assert again == half and not {"coverage", "_plan"} & set(vars(again))
    assert torch.equal(again.coverage["w"], half.coverage["w"])


def test_one_entry_is_made_as_all_are():
    half = transfer(W, W._replace(shape=(2, 3)), DimMap.of([3, 0], 4), None)
    state = {"w": torch.arange(12.0).view(4, 3)}
    assert torch.equal(half.entry("w", state), half.pull(state)["w"])
    assert Transfer.identity((W,)).entry("w", state) is state["w"]
    with pytest.raises(RewriteError, match="w: the state lacks an entry"):
        half.entry("w", {})


def test_what_is_covered_evenly_is_looked_up_as_one_number():
    half = Term.of(Entry("w", (DimMap.of(range(2), 4), None)))
    coverage = Coverage({"w": (4, 3), "v": (4, 3)}, {"w": [half], "v": [Term(1.0, (None, None))]})
    assert [coverage[name].stride() for name in "wv"] == [(1, 0), (0, 0)]
