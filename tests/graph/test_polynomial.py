"""Sizes: sums, products and quotients of names, in one form."""

import operator
import pickle

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from archgraph.graph.polynomial import Polynomial, Size, as_size, divide, floor_divide, sizes_in

NAMES = ("batch", "length", "height")
names = st.sampled_from(NAMES).map(Polynomial.of)
values = st.fixed_dictionaries({name: st.integers(1, 40) for name in NAMES})
sizes: st.SearchStrategy[Size] = st.recursive(
    names | st.integers(-9, 9),
    lambda inner: (
        st.builds(
            lambda op, a, b: as_size(op(a, b)),
            st.sampled_from([operator.add, operator.sub, operator.mul]),
            inner,
            inner,
        )
        | st.builds(floor_divide, inner, st.integers(1, 9))
    ),
    max_leaves=6,
)


def at(size: Size, numbers: dict[str, int]) -> int:
    return size.value(numbers) if isinstance(size, Polynomial) else size


@given(sizes, sizes, values)
def test_arithmetic_is_that_of_numbers(a: Size, b: Size, numbers: dict[str, int]) -> None:
    x, y = at(a, numbers), at(b, numbers)
    assert at(a + b, numbers) == x + y
    assert at(a - b, numbers) == x - y
    assert at(a * b, numbers) == x * y
    assume(y != 0 and b != 0)
    assert at(floor_divide(a, b), numbers) == x // y


@given(sizes, sizes)
def test_a_product_is_divided_exactly(a: Size, b: Size) -> None:
    assume(as_size(b) != 0)
    assert divide(as_size(a * b), as_size(b)) == as_size(a)


@given(sizes, values)
def test_a_size_that_is_a_number_is_an_int(a: Size, numbers: dict[str, int]) -> None:
    assert as_size(a - a) == 0
    assert isinstance(a, int) or sizes_in(a)


@given(sizes, values)
def test_replaced_names_have_their_values(a: Size, numbers: dict[str, int]) -> None:
    if isinstance(a, Polynomial):
        assert a.replaced(numbers) == a.value(numbers)
        doubled = {name: 2 * Polynomial.of(name) for name in NAMES}
        twice = {name: 2 * value for name, value in numbers.items()}
        assert at(a.replaced(doubled), numbers) == a.value(twice)


@given(sizes)
def test_sizes_can_be_pickled(a: Size) -> None:
    assert pickle.loads(pickle.dumps(a)) == a


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (lambda h: (h - 1) // 2 + 1, "(height + 1) // 2"),
        (lambda h: ((h + 1) // 2 + 1) // 2, "(height + 3) // 4"),
        (lambda h: (2 * h + 3) // 6, "(height + 1) // 3"),
        (lambda h: 4 * (h // 2), "4*(height // 2)"),
        (lambda h: (h // 7) * (h // 7), "(height // 7)**2"),
        (lambda h: (2 * h) // h, "2"),
        (lambda h: h // (h // 2), "height // (height // 2)"),
        (lambda h: 9 - h, "-1*height + 9"),
        (lambda h: 0 - h // 3, "-1*(height // 3)"),
        (lambda h: h - h // 3, "height - height // 3"),
    ],
)
def test_one_form(size, text: str) -> None:
    assert str(size(Polynomial.of("height"))) == text
