"""Which weights a run leaves behind, by name."""

from __future__ import annotations

import pytest
import torch

from archgraph.engine.run_models import versions
from archgraph.federation import Evaluated, Train
from archgraph.record.client import ClientState

KEPT = {1: ClientState({"b": torch.ones(1), "elsewhere": torch.ones(1)})}


def own(client: int) -> dict[str, torch.Tensor]:
    return {"w": torch.full((1,), 10.0 + client), "b": torch.zeros(1)}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"m": (5, 0)}),
        # Tuning is not left behind, so that all clients' weights are the same.
        ({"program": Train()}, {"m": (5, 0)}),
        ({"private": True}, {"m/0": (5, 0), "m/1": (5, 1)}),
        ({"states": own}, {"m/0": (10, 0), "m/1": (11, 0)}),
        ({"states": own, "private": True}, {"m/0": (10, 0), "m/1": (11, 1)}),
        ({"states": own, "private": True, "clients": ()}, {"m": (5, 0)}),
    ],
)
def test_clients_versions_are_named_by_their_clients(net, options, expected):
    state = {"w": torch.full((1,), 5.0), "b": torch.zeros(1)}
    model = Evaluated("m", net, state, **{"clients": (0, 1), **options})
    found = dict(versions([model], KEPT))
    assert {n: (m.state["w"].item(), m.state["b"].item()) for n, m in found.items()} == expected
    assert all(m.graph is net and set(m.state) == {"w", "b"} for m in found.values())


def test_versions_are_made_when_asked_for(net):
    made: list[int] = []

    def told(client: int) -> dict[str, torch.Tensor]:
        made.append(client)
        return own(client)

    found = versions([Evaluated("m", net, own(9), (0, 1), states=told)], {})
    assert made == []
    assert next(found)[0] == "m/0"
    assert made == [0]
