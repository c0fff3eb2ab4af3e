from __future__ import annotations

import pickle

import pytest

from archgraph import errors
from archgraph.errors import ArchGraphError, DataError


def test_renders_where_message_found_expected_hint_in_this_order():
    error = ArchGraphError("wrong rank", where="conv1", found=3, expected=4, hint="add a dim")
    assert str(error) == "conv1: wrong rank; found 3; expected 4; add a dim"


def test_leaves_out_what_is_unknown_but_keeps_falsy_values():
    assert str(ArchGraphError("empty")) == "empty"
    assert str(ArchGraphError("too few", found=0, expected="1")) == "too few; found 0; expected 1"


def test_parts_stay_accessible_and_survive_pickling():
    error = DataError("gone", where="x", found=1, expected=2, hint="look")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is DataError
    assert str(copy) == str(error)
    assert (copy.message, copy.where, copy.found, copy.expected, copy.hint) == (
        "gone",
        "x",
        1,
        2,
        "look",
    )


@pytest.mark.parametrize(
    "name",
    [
        "GraphError",
        "TraceError",
        "SpecError",
        "AxisError",
        "RewriteError",
        "RejectedUpdate",
        "DataError",
        "RunError",
    ],
)
def test_every_error_is_an_archgraph_error(name):
    assert issubclass(getattr(errors, name), ArchGraphError)
