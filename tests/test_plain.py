"""Plain values: one digest whatever the order, and nothing that JSON lacks."""

from __future__ import annotations

from archgraph.plain import differences, digest, json_safe


def test_identity_ignores_the_order_of_keys_and_sees_every_value():
    assert digest({"a": [1, {"b": 2}], "c": None}) == digest({"c": None, "a": [1, {"b": 2}]})
    assert digest({"a": 1}) != digest({"a": 1.5})
    assert list(differences({"a": 1}, {"a": 1, "b": {"c": 2}})) == ['b: null instead of {"c": 2}']


def test_json_has_no_nan():
    assert json_safe({"a": [float("inf"), (1, float("nan"))], "b": "nan"}) == {
        "a": [None, [1, None]],
        "b": "nan",
    }
