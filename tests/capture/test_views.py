"""Views: what shares memory is a view, what was copied is not."""

from __future__ import annotations

from typing import Any

import pytest

from archgraph.capture.calls import memory
from tests.capture.tapes import inlined


def of(body):
    """Names of the operators that took views, from the result to what it is a view of."""
    tape, _ = inlined(body)
    node: Any = tape.results[0]
    path = []
    while node in tape.views:
        view = tape.views[node]
        path.append("" if view.call is None else str(view.call.target).split(".")[1])
        node = view.parent
    return path


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (lambda net, x: (x * 2)[:, 1:].t(), ["t", "slice", "slice"]),
        (lambda net, x: (x * 2).unsqueeze(1).select(2, 0), ["select", "unsqueeze"]),
        (lambda net, x: (x * 2).split([1, 2], 1)[1], ["split_with_sizes"]),
        (lambda net, x: (x * 2)[:, 1:].clone(), []),
        (lambda net, x: (x * 2)[:, 1:] + 1, []),
        (lambda net, x: (x * 2).t_().add_(1), ["", "t_"]),
    ],
)
def test_a_view_leads_to_the_tensor_that_it_is_a_view_of(body, path):
    assert of(body) == path


def test_a_view_lives_in_the_memory_of_its_parent():
    tape, _ = inlined(lambda net, x: (x * 2)[:, 1:].reshape(-1) + (x * 3).view(-1)[:2].sum())
    assert tape.views
    assert all(memory(n) in (None, memory(v.parent)) for n, v in tape.views.items())
