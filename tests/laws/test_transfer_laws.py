"""Laws of dimension maps and transfers, on random shapes and maps.

Weights and scales are dyadic and values small integers, so that float64 is exact and the laws are
equalities; where a law is about rounding, the tolerance stands at the call.
"""

from __future__ import annotations

import pickle
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archgraph.errors import RewriteError
from archgraph.states import DimMap, Entry, Slot, Transfer
from archgraph.states.coverage import Coverage, Term
from archgraph.states.dimension_map import composed

WEIGHTS = [-2.0, 0.25, 0.5, 1.0, 2.0]


@st.composite
def maps(draw: st.DrawFn, size: int, *, selecting: bool = False) -> DimMap | None:
    """Any map of an axis of this size."""
    kinds = ["identity", "prefix", "stride", "rolled", "permutation", "any"]
    kind = draw(st.sampled_from(kinds if selecting else [*kinds, "weighted", "fold"]))
    positions = st.integers(0, size - 1)
    match kind:
        case "identity":
            return None
        case "prefix":
            start = draw(positions)
            return DimMap.of(range(start, draw(st.integers(start + 1, size))), size)
        case "stride":
            return DimMap.of(range(draw(positions), size, draw(st.integers(1, 3))), size)
        case "rolled":
            start = draw(positions)
            return DimMap.of(np.roll(np.arange(size), start)[: draw(st.integers(1, size))], size)
        case "permutation":
            return DimMap.of(draw(st.permutations(range(size))), size)
        case "any":
            return DimMap.of(draw(st.lists(positions, min_size=1, max_size=8)), size)
        case "weighted":
            where = draw(st.lists(positions, min_size=1, max_size=8))
            count = len(where)
            factors = st.lists(st.sampled_from(WEIGHTS), min_size=count, max_size=count)
            return DimMap.of(where, size, weights=draw(factors))
        case _:
            length = draw(st.integers(1, 6))
            cell = st.tuples(st.integers(0, length - 1), positions, st.sampled_from(WEIGHTS))
            rows, columns, weights = zip(
                *draw(st.lists(cell, min_size=1, max_size=30)), strict=True
            )
            return DimMap.sparse(rows, columns, weights, size=size, length=length)


def matrix(map_: DimMap | None, size: int) -> np.ndarray:
    return np.eye(size) if map_ is None else map_.matrix()


class Chain(NamedTuple):
    transfers: list[Transfer]
    state: dict[str, torch.Tensor]


def slots_of(shapes: list[tuple[int, ...]]) -> tuple[Slot, ...]:
    return tuple(Slot(f"p{i}", shape, "float64") for i, shape in enumerate(shapes))


def integers(slots: tuple[Slot, ...], seed: int) -> dict[str, torch.Tensor]:
    stream = torch.Generator().manual_seed(seed)
    return {
        s.name: torch.randint(-8, 9, s.shape, generator=stream).to(torch.float64) for s in slots
    }


@st.composite
def transfers(
    draw: st.DrawFn, source: tuple[Slot, ...], *, selecting: bool = False, fresh: bool = True
) -> Transfer:
    """Any transfer from this signature: sources used never, once or several times."""
    entries = {}
    slots = []
    for i in range(draw(st.integers(1, 3))):
        slot = draw(st.sampled_from(source))
        dims = [draw(maps(n, selecting=selecting)) for n in slot.shape]
        shape = tuple(n if m is None else m.length for n, m in zip(slot.shape, dims, strict=True))
        scale = 1.0 if selecting else draw(st.sampled_from([1.0, 0.5, -2.0]))
        new = Slot(f"q{i}", shape, "float64")
        if fresh and draw(st.integers(0, 5)) == 0:
            entries[new.name] = Entry.initialised(new, "uniform", a=-1.0, b=1.0)
        else:
            entries[new.name] = Entry(slot.name, tuple(dims), scale)
        slots.append(new)
    return Transfer(source, tuple(slots), entries)


@st.composite
def chains(draw: st.DrawFn, /, length: int, **options: bool) -> Chain:
    """Transfers that follow one another, and a state of the first one's source."""
    shape = st.lists(st.sampled_from([1, 2, 3, 5, 9]), max_size=3).map(tuple)
    source = slots_of(draw(st.lists(shape, min_size=1, max_size=3)))
    state = integers(source, draw(st.integers(0, 99)))
    links: list[Transfer] = []
    for _ in range(length):
        links.append(draw(transfers(source, **options)))
        source = links[-1].target
    return Chain(links, state)


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def inner(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return float(sum((a[k] * b[k]).sum() for k in a))


# ------------------------------------------------------------------------------ one dimension


@given(st.data(), st.integers(1, 12))
def test_composition_is_the_matrix_product(data: st.DataObject, size: int):
    a = data.draw(maps(size))
    middle = size if a is None else a.length
    b = data.draw(maps(middle))
    product = matrix(b, middle) @ matrix(a, size)
    assert np.array_equal(matrix(composed(a, b), size), product)


@given(st.data(), st.integers(1, 12))
def test_equal_matrices_are_equal_maps(data: st.DataObject, size: int):
    map_ = data.draw(maps(size))
    dense = matrix(map_, size)
    rows, columns = np.nonzero(dense)
    again = DimMap.sparse(rows, columns, dense[rows, columns], size=size, length=len(dense))
    assert again == map_


@given(st.data(), st.integers(1, 12))
def test_a_composition_is_in_canonical_form(data: st.DataObject, size: int):
    a = data.draw(maps(size))
    middle = size if a is None else a.length
    made = composed(a, data.draw(maps(middle)))
    dense = matrix(made, size)
    rows, columns = np.nonzero(dense)
    assert made == DimMap.sparse(rows, columns, dense[rows, columns], size=size, length=len(dense))


@given(st.data(), st.integers(1, 12))
def test_coverage_counts_what_reaches_a_position(data: st.DataObject, size: int):
    map_ = data.draw(maps(size))
    if map_ is None:
        return
    dense = np.abs(map_.matrix())
    rows = np.asarray(data.draw(st.lists(st.integers(0, 1), min_size=1)), dtype=float)
    rows = np.resize(rows, map_.length)
    assert np.array_equal(map_.coverage(), dense.T @ dense.sum(1))
    assert np.array_equal(map_.coverage(rows), dense.T @ (rows * dense.sum(1)))


@given(st.data(), st.integers(1, 12), st.integers(0, 2))
def test_gather_and_scatter_are_the_matrix_and_its_transpose(
    data: st.DataObject, size: int, dim: int
):
    map_ = data.draw(maps(size))
    if map_ is None:
        return
    dense = torch.from_numpy(map_.matrix())
    shape = [2, 3, 2]
    x = torch.arange(12.0 * size / shape[dim], dtype=torch.float64)
    x = x.reshape([size if d == dim else n for d, n in enumerate(shape)])
    y = map_.gather(x, dim)
    assert torch.equal(y, torch.tensordot(dense, x, ([1], [dim])).movedim(0, dim))
    into = torch.ones_like(x)
    map_.scatter(y, dim, into, alpha=2.0)
    assert torch.equal(into - 1, 2 * torch.tensordot(dense, y, ([0], [dim])).movedim(0, dim))


def test_a_full_matrix_is_applied_as_one():
    rows, columns = np.divmod(np.arange(40 * 60), 60)
    weights = (rows + columns) % 5 + 1.0
    map_ = DimMap.sparse(rows, columns, weights, size=60, length=40)
    assert map_ is not None
    assert map_._dense
    x = torch.arange(120.0, dtype=torch.float64).view(60, 2)
    dense = torch.from_numpy(map_.matrix())
    assert torch.equal(map_.gather(x, 0), dense @ x)
    into = torch.zeros_like(x)
    map_.scatter(dense @ x, 0, into)
    assert torch.equal(into, dense.T @ (dense @ x))


# ---------------------------------------------------------------------------------- transfers


@given(chains(3))
def test_composition_is_associative(chain_: Chain):
    a, b, c = chain_.transfers
    assert (a >> b) >> c == a >> (b >> c)
    assert hash((a >> b) >> c) == hash(a >> (b >> c))


@given(chains(1))
def test_identity_is_neutral(chain_: Chain):
    (a,) = chain_.transfers
    assert Transfer.identity(a.source) >> a == a == a >> Transfer.identity(a.target)
    assert same(Transfer.identity(a.source).pull(chain_.state), chain_.state)


@given(chains(2), st.integers(0, 3))
def test_pull_of_a_composition_is_the_composition_of_pulls(chain_: Chain, seed: int):
    a, b = chain_.transfers
    together = (a >> b).pull(chain_.state, seed=seed)
    one_by_one = b.pull(a.pull(chain_.state, seed=seed), seed=seed)
    assert together.keys() == one_by_one.keys()
    for name, value in together.items():
        # Initialised values are not dyadic: folding them in another order rounds differently.
        torch.testing.assert_close(value, one_by_one[name], rtol=1e-12, atol=1e-12)


@given(chains(2, fresh=False))
def test_push_of_a_composition_is_the_composition_of_pushes_backwards(chain_: Chain):
    a, b = chain_.transfers
    y = integers(b.target, 1)
    assert same((a >> b).push(y)[0], a.push(b.push(y)[0])[0])


@given(chains(1, fresh=False))
def test_push_is_the_transpose_of_pull(chain_: Chain):
    (a,) = chain_.transfers
    y = integers(a.target, 2)
    assert inner(a.pull(chain_.state), y) == inner(chain_.state, a.push(y)[0])


@given(chains(1, fresh=False, selecting=True))
def test_coverage_of_a_selection_is_the_push_of_ones(chain_: Chain):
    (a,) = chain_.transfers
    ones = {s.name: torch.ones(s.shape, dtype=torch.float64) for s in a.target}
    numerator, coverage = a.push(ones)
    assert same(numerator, dict(coverage))


@given(chains(1, selecting=True))
def test_what_a_selection_pulled_comes_back_as_it_was(chain_: Chain):
    (a,) = chain_.transfers
    numerator, coverage = a.push(a.pull(chain_.state))
    initialised = {n for n, e in a.entries.items() if e.source is None}
    for name, old in chain_.state.items():
        covered = coverage[name] > 0
        assert torch.equal((numerator[name] / coverage[name])[covered], old[covered])
        assert coverage.share(name) == pytest.approx(covered.double().mean().item(), abs=1e-12)
    assert initialised <= set(a.entries)


@given(chains(1))
def test_pull_copies_and_leaves_the_state_alone(chain_: Chain):
    (a,) = chain_.transfers
    before = {name: value.clone() for name, value in chain_.state.items()}
    pulled = a.pull(chain_.state)
    for name, value in pulled.items():
        assert value.is_contiguous()
        assert value.shape == next(s.shape for s in a.target if s.name == name)
        value.fill_(77)
    assert same(before, chain_.state)


@given(chains(1))
def test_transfers_survive_pickling_and_are_described(chain_: Chain):
    (a,) = chain_.transfers
    assert pickle.loads(pickle.dumps(a)) == a
    assert len(a.describe().splitlines()) >= 1


@given(chains(2))
def test_transfers_that_do_not_meet_are_refused(chain_: Chain):
    a, b = chain_.transfers
    if a.target != a.source:
        with pytest.raises(RewriteError, match="target of the first transfer is not"):
            b >> a


@given(st.data(), st.lists(st.integers(1, 5), max_size=3).map(tuple))
def test_coverage_adds_up_outer_products(data: st.DataObject, shape: tuple[int, ...]):
    terms, dense = [], torch.zeros(shape, dtype=torch.float64)
    for _ in range(data.draw(st.integers(0, 3))):
        dims: tuple[DimMap | None, ...] = tuple(data.draw(maps(n)) for n in shape)
        length = dims[0].length if shape and dims[0] else (shape or (1,))[0]
        rows: tuple[float, ...] = ()
        if len(shape) > 0 and data.draw(st.booleans()):
            rows = tuple(float(i % 2) for i in range(length))
        terms.append(Term.of(Entry("w", dims, 0.5), 3.0, rows))
        part = torch.tensor(0.75, dtype=torch.float64)
        for axis, (n, m) in enumerate(zip(shape, dims, strict=True)):
            vector = np.asarray(rows) if rows and axis == 0 else None
            ones = np.ones(n) if vector is None else vector
            cells = torch.from_numpy(ones if m is None else m.coverage(vector))
            part = part.unsqueeze(-1) * cells
        dense += part
    coverage = Coverage({"w": shape}, {"w": terms})
    assert torch.equal(coverage["w"], dense)
    assert torch.equal(coverage.times(2.0)["w"], 2 * dense)
