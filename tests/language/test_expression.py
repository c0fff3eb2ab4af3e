"""Arithmetic over parameters: Python's results, and nothing else of Python."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archgraph.fields import Mistake
from archgraph.language.expression import evaluate, resolve_expressions
from archgraph.limits import LIMITS

VALUES = {"width": 24, "depth": 3, "zero": 0}

terms = st.integers(0, 99).map(str) | st.sampled_from([f"${n}" for n in VALUES])
expressions = st.recursive(
    terms,
    lambda inner: (
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        )
        | inner.map(lambda t: f"(-{t})")
    ),
    max_leaves=6,
).filter(lambda text: "$" in text)


@given(expressions)
def test_results_are_those_of_python(text: str) -> None:
    plain = text
    for name, value in VALUES.items():
        plain = plain.replace(f"${name}", f"({value})")
    try:
        expected = eval(plain, {"__builtins__": {}})  # our own generated arithmetic
    except ZeroDivisionError:
        expected = None
    try:
        assert evaluate(text, VALUES) == expected
    except Mistake as mistake:
        assert mistake.message in ("divides by zero", "is out of range")
        assert expected is None or mistake.message == "is out of range"


def test_a_lone_name_keeps_its_type() -> None:
    assert evaluate("$act", {"act": "relu"}) == "relu"
    assert evaluate("$bias", {"bias": True}) is True
    assert resolve_expressions({"a": ("$x", {"b": "$x + 1"})}, {"x": 1}) == {"a": (1, {"b": 2})}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("$width ** 9", "is not an expression"),
        ("$width.real", "is not an expression"),
        ("$width and 1", "is not an expression"),
        ("[$width]", "is not an expression"),
        ("f($width)", "is not an expression"),
        ("__import__('os') + $width", "is not an expression"),
        ("_width + $width + width", "is not an expression"),
        ("$width + 1.5", "is not an expression"),
        ("$width +", "is not an expression"),
        ("$width / 2", "divides with '/'"),
        ("$width % $zero", "divides by zero"),
        ("$act * 2", "uses a parameter that is not an integer"),
        ("$flag * 2", "uses a parameter that is not an integer"),
        ("$wdith", "names an unknown parameter"),
        ("$width * 999999999", "is out of range"),
        ("$width" + " + 1" * 99, "is too long"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(Mistake) as mistake:
        evaluate(text, {**VALUES, "act": "relu", "flag": True})
    assert mistake.value.message == message


def test_the_bound_is_that_of_sizes() -> None:
    largest = LIMITS.expression_value
    assert evaluate("$x + 0", {"x": largest}) == largest
