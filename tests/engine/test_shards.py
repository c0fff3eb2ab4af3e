"""Clients' examples stay on a device from round to round, as far as they fit."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch

from archgraph.engine.shards import DeviceShards
from archgraph.federation import Shard

MEGABYTE = 2**18  # float32 numbers


def made_by(reads: list[int]) -> Callable[[int], Shard]:
    def read(client: int) -> Shard:
        reads.append(client)
        return Shard((torch.ones(MEGABYTE),), torch.ones(0), ())

    return read


def test_the_first_clients_that_fit_stay() -> None:
    reads: list[int] = []
    shards = DeviceShards(2.0)
    for _ in range(3):
        for client in range(3):
            shards.of(client, made_by(reads))
    assert reads == [0, 1, 2, 2, 2]


def test_what_a_program_wrote_to_is_read_again() -> None:
    reads: list[int] = []
    shards = DeviceShards(1.0)
    shards.of(0, made_by(reads)).inputs[0].zero_()
    assert shards.of(0, made_by(reads)).inputs[0].all()
    assert shards.of(0, made_by(reads)).inputs[0].all()
    assert reads == [0, 0]


@pytest.mark.parametrize("limit", [0.0, 0.5])
def test_nothing_stays_beyond_the_limit(limit: float) -> None:
    reads: list[int] = []
    shards = DeviceShards(limit)
    assert shards.of(0, made_by(reads)) is not shards.of(0, made_by(reads))
    assert reads == [0, 0]


def test_examples_do_not_travel_to_other_processes() -> None:
    shards = DeviceShards(1.0)
    shards.of(0, made_by([]))
    assert len(pickle.dumps(shards)) < 200
