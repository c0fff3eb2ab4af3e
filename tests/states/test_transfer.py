"""Transfers in closed form: forms of a map, initialisers, moments, descriptions, refusals."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from archgraph.errors import RewriteError
from archgraph.graph.ir import ArchGraph, Constant, Param, TensorType, Value
from archgraph.states.dimmap import MAX_RUNS, DimMap
from archgraph.states.transfer import (
    INITIALISERS,
    Entry,
    Rewritten,
    Slot,
    Transfer,
    accumulator,
    compose,
    signature,
)


def graph(**shapes: tuple[int, ...]) -> ArchGraph:
    params = tuple(Param(k, TensorType(v, "float32")) for k, v in shapes.items())
    return ArchGraph(inputs=(), params=params, nodes=(), outputs=())


def transfer(source: Slot, target: Slot, *dims: DimMap | None, scale: float = 1.0) -> Transfer:
    return Transfer((source,), (target,), {target.name: Entry(source.name, dims, scale)})


W = Slot("w", (4, 3), "float32")


# ------------------------------------------------------------------------------ forms of a map


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DimMap.of([0, 4], 4), "position outside the axis; found 4; expected 0 … 3"),
        (lambda: DimMap.of([-1], 4), "position outside the axis; found -1; expected 0 … 3"),
        (lambda: DimMap.of([0], 4, weights=[1, 1]), "weights do not match positions; found 2"),
        (lambda: DimMap.sparse([2], [0], [1.0], size=2, length=2), "row outside the map; found 2"),
    ],
)
def test_maps_outside_their_axis_are_refused(make, message):
    with pytest.raises(RewriteError, match=message):
        make()


# ------------------------------------------------------------------------------------- pulling


def test_pulling_by_slices_makes_no_index(monkeypatch):
    half = transfer(W, Slot("w", (2, 2), "float32"), DimMap.of([0, 1], 4), DimMap.of([1, 2], 3))
    monkeypatch.setattr(DimMap, "gather", None)
    monkeypatch.setattr(DimMap, "_tensor", None)
    state = {"w": torch.arange(12.0).view(4, 3)}
    assert half.pull(state)["w"].tolist() == [[1, 2], [4, 5]]


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


def test_several_entries_of_one_source_add_up():
    block = Slot("a", (2,), "float32")
    copies = (block, block._replace(name="b"))
    graft = Transfer((block,), copies, {n: Entry("a", (None,)) for n in ("a", "b")})
    state = {"a": torch.tensor([1.0, 2.0])}
    assert torch.equal(graft.pull(state)["b"], state["a"])
    numerator, coverage = graft.push({"a": torch.ones(2), "b": torch.full((2,), 3.0)})
    assert (numerator["a"] / coverage["a"]).tolist() == [2, 2]


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
    with pytest.raises(RewriteError, match="w: no such initialiser; found kaiming; expected cons"):
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


# ------------------------------------------------------------------------------------- moments


def widen(units: int, where: list[int]) -> Transfer:
    """Net2Wider on the hidden units of a two-layer perceptron."""
    share = (1 / np.bincount(where)[where]).tolist()
    n = len(where)
    source = (Slot("a", (units, 3), "float64"), Slot("b", (2, units), "float64"))
    target = (Slot("a", (n, 3), "float64"), Slot("b", (2, n), "float64"))
    rows, columns = DimMap.of(where, units), DimMap.of(where, units, weights=share)
    entries = {"a": Entry("a", (rows, None)), "b": Entry("b", (None, columns))}
    return Transfer(source, target, entries)


def narrow(units: int, where: list[int]) -> Transfer:
    """Its inverse: mean of the incoming, sum of the outgoing weights."""
    wide = widen(units, where)
    share = 1 / np.bincount(where)[where]
    n = range(len(where))
    rows = DimMap.sparse(where, n, share, size=len(where), length=units)
    columns = DimMap.sparse(where, n, np.ones(len(where)), size=len(where), length=units)
    entries = {"a": Entry("a", (rows, None)), "b": Entry("b", (None, columns))}
    return Transfer(wide.target, wide.source, entries)


def gradients(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    leaves = {k: v.clone().requires_grad_() for k, v in state.items()}
    x = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    loss = (torch.relu(x @ leaves["a"].T) @ leaves["b"].T).square().sum()
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def perceptron() -> dict[str, torch.Tensor]:
    stream = torch.Generator().manual_seed(0)
    shapes = {"a": (4, 3), "b": (2, 4)}
    return {k: torch.randn(s, dtype=torch.float64, generator=stream) for k, s in shapes.items()}


WHERE = [0, 1, 2, 3, 0, 1, 0]


def test_momentum_of_a_widened_model_is_what_its_own_gradients_give():
    wide, state = widen(4, WHERE), perceptron()
    own = gradients(wide.pull(state))
    mapped = wide.pull_moments(gradients(state))
    for name, value in own.items():
        torch.testing.assert_close(mapped[name], value, rtol=1e-12, atol=0)
    squares = {k: v.square() for k, v in gradients(state).items()}
    for name, value in wide.pull_moments(squares, order=2).items():
        torch.testing.assert_close(value, own[name].square(), rtol=1e-12, atol=0)


def test_narrowing_takes_widening_back():
    both = widen(4, WHERE) >> narrow(4, WHERE)
    state = perceptron()
    for name, value in both.pull(state).items():
        torch.testing.assert_close(value, state[name], rtol=1e-15, atol=0)
    wide, back = widen(4, WHERE), narrow(4, WHERE)
    for order in (1, 2):
        there = back.pull_moments(wide.pull_moments(state, order=order), order=order)
        for name, value in there.items():
            torch.testing.assert_close(value, state[name], rtol=1e-14, atol=0)


def test_replicas_merge_to_what_they_were():
    state = perceptron()
    wide = widen(4, WHERE)
    numerator, coverage = wide.push(wide.pull(state))
    for name, value in numerator.items():
        torch.testing.assert_close(value / coverage[name], state[name], rtol=1e-15, atol=0)


def test_a_repeated_leaf_leaves_moments_where_they_were():
    """Whether or not both are widened; with no original left, copies share them."""
    copy = W._replace(name="copy")
    both = Transfer((W,), (W, copy), {k: Entry("w", (None, None)) for k in ("w", "copy")})
    moments = {"w": torch.rand(4, 3)}
    rows = DimMap.of(WHERE, 4)
    wide = {k: Entry("w", (rows, None)) for k in ("w", "copy")}
    slots = (W._replace(shape=(len(WHERE), 3)), copy._replace(shape=(len(WHERE), 3)))
    assert both.repeated == {"copy"}
    for order in (1, 2):
        found = both.pull_moments(moments, order=order)
        assert torch.equal(found["w"], moments["w"]) and not found["copy"].any()
        grown = Transfer((W,), slots, wide).pull_moments(moments, order=order)
        alone = Transfer((W,), slots[:1], {"w": wide["w"]}).pull_moments(moments, order=order)
        assert torch.equal(grown["w"], alone["w"]) and not grown["copy"].any()
    assert set(both.pull_moments(moments, order=0)) == {"w"}
    assert torch.equal(both.pull_moments(moments, order=-1)["w"], moments["w"])
    names = (copy, copy._replace(name="other"))
    moved = Transfer((W,), names, {s.name: Entry("w", (None, None)) for s in names})
    assert not moved.repeated
    for value in moved.pull_moments(moments).values():
        torch.testing.assert_close(value, moments["w"] / 2)


def test_moments_of_some_parameters():
    new = Slot("new", (2,), "float32")
    entries = {"w": Entry("w", (None, None)), "new": Entry.initialised(new, "ones")}
    grown = Transfer((W,), (W, new), entries)
    assert grown.pull_moments({"w": torch.ones(4, 3)})["new"].tolist() == [0, 0]
    assert grown.pull_moments({"w": torch.tensor(7.0)}, order=0) == {"w": torch.tensor(7.0)}
    assert "w" not in grown.pull_moments({})
    with pytest.raises(RewriteError, match="no such moment; found 3; expected -1, 0, 1 or 2"):
        grown.pull_moments({}, order=3)


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
    with pytest.raises(RewriteError, match=r"entries are not the target's; found \['v', 'w'\]"):
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
    with pytest.raises(RewriteError, match="n: only a selection of integers is defined"):
        transfer(count, count, None, scale=2.0)


def test_states_that_do_not_fit_are_refused():
    same = Transfer.identity((W,))
    with pytest.raises(RewriteError, match=r"w: the state lacks an entry; expected \[4, 3\]"):
        same.pull({})
    with pytest.raises(RewriteError, match=r"w: the state does not fit .* found \[3, 4\]; exp"):
        same.push({"w": torch.ones(3, 4)})


def test_compose_needs_something():
    with pytest.raises(RewriteError, match="nothing to compose"):
        compose([])


def test_rewrites_chain():
    old, new = graph(w=(4, 3)), graph(w=(2, 3))

    def half(source: ArchGraph) -> Rewritten:
        dims = (DimMap.of(range(2), source.params[0].shape[0]), None)
        entries = {"w": Entry("w", dims)}
        return Rewritten(new, Transfer(signature(source), signature(new), entries))

    small, map_ = Rewritten.identity(old) >> half
    assert (small, map_) == (new, half(old).transfer)
    assert Rewritten.identity(old) >> half(old) == half(old)
    with pytest.raises(RewriteError, match=r"w: transfers do not meet; found w: float32\[2, 3\]"):
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
