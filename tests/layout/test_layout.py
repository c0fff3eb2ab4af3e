"""Unification of layouts: closed forms and laws."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archgraph.graph.ir import BATCH
from archgraph.graph.polynomial import divide
from archgraph.layout.layouts import (
    Fixed,
    Prod,
    Solver,
    Sum,
    Var,
    concatenation,
    leaves,
    product,
)


def solver_of(**options: Any) -> Any:
    """A solver whose results need no narrowing: a wrong type fails the test anyway."""
    return Solver(**options)


def show(solver, layout):
    return str(solver.resolve(layout))


def test_two_axes_become_one():
    solver = solver_of()
    a, b = solver.new(8), solver.new(8)
    solver.unify(a, b)
    assert solver.resolve(a) is solver.resolve(b)


def test_fixed_pins_with_the_reason_at_hand():
    solver = solver_of(reason="because")
    a = solver.new(8)
    solver.unify(a, Fixed(8))
    assert a.pinned == "because"


def test_different_sizes_pin_both():
    solver = solver_of(reason="sizes")
    a, b = solver.new(8), solver.new(4)
    solver.unify(a, b)
    assert a.pinned == b.pinned == "sizes"


def test_products_refine_to_common_factors():
    solver = solver_of()
    a, b = solver.new(4), solver.new(6)
    c, d = solver.new(12), solver.new(2)
    solver.unify(Prod((a, b)), Prod((c, d)))  # 4·6 = 12·2: the 6 splits into 3·2, the 12 into 4·3
    assert show(solver, b) == "3 × 2"
    assert show(solver, c) == "4 × 3"
    assert show(solver, Prod((a, b))) == show(solver, Prod((c, d))) == "4 × 3 × 2"


def test_coprime_products_cannot_be_refined():
    solver = solver_of(reason="coprime")
    a, b, c, d = (solver.new(n) for n in (2, 3, 3, 2))
    solver.unify(Prod((a, b)), Prod((c, d)))
    assert all(v.pinned for v in (a, b, c, d))


def test_sums_refine_to_common_cuts():
    solver = solver_of()
    a, b = solver.new(3), solver.new(5)
    c, d = solver.new(6), solver.new(2)
    solver.unify(Sum((a, b)), Sum((c, d)))
    assert show(solver, b) == "3 + 2"
    assert show(solver, c) == "3 + 3"


def test_fused_projection_is_three_equal_parts():
    solver = solver_of()
    fused = solver.new(24)
    three = Fixed(3)
    head, width = solver.new(2), solver.new(4)
    solver.unify(fused, Prod((three, head, width)))
    q, k, v = solver.new(8), solver.new(8), solver.new(8)
    solver.unify(fused, Sum((q, k, v)))
    assert show(solver, q) == show(solver, k) == show(solver, v) == "2 × 4"
    assert not any(x.pinned for x in leaves(solver.resolve(fused)) if isinstance(x, Var))


def test_concatenation_of_equal_halves_seen_as_groups():
    solver = solver_of()
    a, b = solver.new(6), solver.new(6)
    outer, inner = solver.split_product(Sum((a, b)), 6)
    assert outer == Fixed(2)
    assert solver.resolve(a) is solver.resolve(b) is solver.resolve(inner)


def test_cut_inside_a_product_cuts_its_outer_factor():
    solver = solver_of()
    a = solver.new(4)
    left, right = solver.cut(Prod((a, Fixed(3))), 6)
    assert (left.size, right.size) == (6, 6)
    assert show(solver, a) == "2 + 2"
    assert solver.cut(Prod((solver.new(4), Fixed(3))), 5) is None


def test_a_pinned_axis_stays_pinned_through_a_split():
    solver = solver_of()
    a = solver.new(6)
    solver.pin(a, "first")
    solver.pin(a, "second")
    outer, inner = solver.split_product(a, 2)
    assert outer.pinned == inner.pinned == "first"


def test_regroup_splits_and_joins_and_carries_the_batch():
    solver = solver_of()
    c = solver.new(12)
    dims = [Fixed(BATCH), Fixed(6), c]
    out = solver.regroup(dims, [2 * BATCH, 3, 4, 3])
    assert [str(d.size) for d in out] == ["2*batch", "3", "4", "3"]
    assert show(solver, c) == "4 × 3"
    back = solver.regroup(out, [BATCH, 6, 12])
    assert [str(solver.resolve(d)) for d in back] == ["batch", "6", "4 × 3"]


def test_regroup_across_factors_is_refused_without_pins():
    solver = solver_of()
    a, b = solver.new(2), solver.new(3)
    assert solver.regroup([a, b], [3, 2]) is None
    assert not a.pinned and not b.pinned


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.randoms())
def test_regrouping_keeps_order_and_size(factors, random):
    solver = solver_of()
    dims = [solver.new(n) for n in factors]
    total = math.prod(factors)
    cuts, sizes, rest = list(factors), [], []
    while cuts:  # join random neighbours: a coarser grouping always lines up
        n = cuts.pop(0)
        while cuts and random.random() < 0.5:
            n *= cuts.pop(0)
        sizes.append(n)
    out = solver.regroup(dims, sizes)
    assert [d.size for d in out] == sizes
    rest = [leaf for d in out for leaf in leaves(solver.resolve(d)) if leaf.size != 1]
    assert rest == [d for d in dims if d.size != 1] or not rest
    assert math.prod(d.size for d in out) == total


@given(st.lists(st.integers(2, 6), min_size=1, max_size=5), st.lists(st.integers(2, 6), max_size=5))
def test_unified_sums_have_equal_parts(xs, ys):
    total = max(sum(xs), sum(ys))
    xs, ys = [*xs, total - sum(xs) + 2], [*ys, total - sum(ys) + 2]
    solver = solver_of(reason="sums")
    a = concatenation(solver.new(n) for n in xs)
    b = concatenation(solver.new(n) for n in ys)
    solver.unify(a, b)
    assert show(solver, a).replace("!", "") == show(solver, b).replace("!", "")
    assert sum(int(str(leaf.size)) for leaf in leaves(solver.resolve(a))) == total + 2


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (12, 5, None),
        (6 * BATCH, 4 * BATCH, None),
        (6, BATCH, None),
        (2 * BATCH * BATCH, BATCH, 2 * BATCH),
    ],
)
def test_divide(a, b, expected):
    assert divide(a, b) == expected


def test_units_and_empty_terms_vanish():
    assert product([Fixed(1), Fixed(1)]) == Fixed(1)
    assert concatenation([Fixed(0), Fixed(2), Fixed(3)]) == Fixed(5)


def test_sizes_that_leave_factors_over_do_not_regroup():
    solver = solver_of()
    assert solver.regroup([solver.new(6)], [3]) is None
    assert solver.regroup([solver.new(6)], [3, 4]) is None
